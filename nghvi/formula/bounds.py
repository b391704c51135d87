"""Limits on the work that a formula may ask for, checked before anything is evaluated.

Terms are counted from the text without being built: ``a + b`` has as many as both together,
``a:b`` their product, ``a * b`` the sum and the product, and ``(a)**k`` up to n^k products of the n
terms of ``a``. Constants are folded in floating point, so that a number with a billion digits is
caught before Python starts to compute it. Formulas from model files pass the same checks.
"""

import ast
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from formulaic.errors import FormulaicError
from formulaic.parser import DefaultFormulaParser
from formulaic.parser.types import ASTNode, Term
from formulaic.transforms import TRANSFORMS

from nghvi._core.errors import FormulaError

MOST_TERMS = 2000
"""The most terms that one part of a formula may expand to."""
MOST_PRODUCTS = 50_000
"""The most products that a power such as ``(a + b)**2`` may form, duplicates included."""
MOST_POWER = 50
"""The largest exponent of a power of terms."""
MOST_COLUMNS = 10_000
"""The most columns that one part of a formula may make."""
LARGEST = 1e300
"""The largest constant, close to where doubles overflow."""
MOST_NESTED = 100
"""The deepest nesting of an expression, well within Python's recursion limit."""
SIZES = {"df": 1000, "levels": 2000, "degree": 25}
"""The largest values of the arguments that set how many columns a transform makes."""
OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: lambda a, b: a * 2.0**b,
}


def check_terms(formula: str, text: str) -> None:
    """Raise an error if a part of the formula expands to too many terms."""
    try:
        number = _terms(DefaultFormulaParser().get_ast(text), formula)
    except (FormulaicError, SyntaxError):
        return  # reported with its place when the terms are built
    except RecursionError:
        raise _too_deep(formula) from None
    if number > MOST_TERMS:
        raise FormulaError(
            f"formula {formula!r}: it expands to {_count(number)} terms, but at most "
            f"{MOST_TERMS:,} are allowed. Drop interactions ('(a + b + c)**2' has only those of "
            "two columns), or pass the columns as X and name the group instead of using a formula."
        )


def check_work(formula: str, expression: str, tree: ast.AST) -> None:
    """Raise an error if an expression holds too large a number or asks for too many columns."""
    try:
        _fold(tree, functools.partial(FormulaError.at, formula, expression))
    except RecursionError:
        raise _too_deep(formula) from None


def check_columns(formula: str, terms: Iterable[Term], levels: Callable[[str], int]) -> None:
    """Raise an error if the terms make too many columns.

    ``levels`` gives the number of columns that a column of the data becomes: 1 if it is numeric.
    """
    number, largest = 0.0, (0.0, "")
    for term in terms:
        columns = math.prod(levels(factor.expr) for factor in term.factors)
        number, largest = number + columns, max(largest, (columns, str(term)))
    if number > MOST_COLUMNS:
        raise FormulaError.at(
            formula,
            largest[1],
            f"it makes {_count(number)} columns, {_count(largest[0])} of them here, but at most "
            f"{MOST_COLUMNS:,} are allowed. Make a category with many levels the group, after "
            "'|'; merge its rare levels; or leave the term out. If the column holds numbers stored "
            "as text, convert it.",
        )


def _terms(node: Any, formula: str) -> float:
    total, waiting = 0.0, [node]
    while waiting:  # the tree of a long sum is as deep as the sum is long
        part = waiting.pop()
        if isinstance(part, ASTNode) and part.operator.symbol in ("+", "-"):
            waiting += part.args
        else:
            total += _of_product(part, formula)
    return total


def _of_product(node: Any, formula: str) -> float:
    if not isinstance(node, ASTNode):
        return 1
    if node.operator.symbol in ("**", "^") and len(node.args) == 2:
        return _power(_terms(node.args[0], formula), str(node.args[1]), formula)
    numbers = [_terms(arg, formula) for arg in node.args]
    if len(numbers) < 2:
        return sum(numbers) or 1
    product = numbers[0] * numbers[1]
    many = {":": product, "*": sum(numbers) + product, "in": product}
    return many.get(node.operator.symbol, sum(numbers))


def _power(base: float, exponent: str, formula: str) -> float:
    try:
        power = float(exponent)
    except ValueError:
        return base  # formulaic reports what is wrong with it
    if power > MOST_POWER or base ** min(power, MOST_POWER) > MOST_PRODUCTS:
        raise FormulaError.at(
            formula,
            exponent,
            f"the exponent {exponent} is too large for {_count(base)} terms: every increment "
            f"multiplies the interactions, and beyond {_count(base)} it adds none. Use a smaller "
            "exponent. To raise the values of a column to a power, write I(x**2).",
        )
    return base**power


Refusal = Callable[[str], FormulaError]
"""Makes the error about an expression, given the reason."""


def _fold(node: ast.AST, refusal: Refusal, depth: int = 0) -> float | None:
    """Return the value of a constant expression, or None for any other; check along the way."""
    if depth > MOST_NESTED:
        raise RecursionError

    def folded(child: ast.AST) -> float | None:
        return _fold(child, refusal, depth + 1)

    if isinstance(node, ast.Constant):
        constant = node.value
        if not isinstance(constant, int | float):
            return None
        return _bounded(lambda: float(constant), refusal)
    if isinstance(node, ast.BinOp):
        if any(_is_listed(side) for side in (node.left, node.right)):
            raise refusal("arithmetic needs numbers, not text or lists.")
        left, right = folded(node.left), folded(node.right)
        compute = OPERATIONS.get(type(node.op))
        if left is None or right is None or compute is None:
            return None
        return _bounded(lambda: compute(left, right), refusal)
    if isinstance(node, ast.Call):
        values = [folded(child) for child in (*node.args, *(k.value for k in node.keywords))]
        for name, value in _sizes(node).items():
            size = folded(value)
            if size is None and not isinstance(value, ast.List | ast.Tuple | ast.Constant):
                raise refusal(f"{name} must be a number, such as {name}=3.")
            if size is not None and size > SIZES[name]:
                raise refusal(
                    f"{name}={_count(size)} asks for too many columns; use at most {SIZES[name]:,}."
                )
        alone = isinstance(node.func, ast.Name) and node.func.id == "I" and len(values) == 1
        return values[0] if alone else None
    values = [folded(child) for child in ast.iter_child_nodes(node)]
    known = [value for value in values if value is not None]
    return known[0] if isinstance(node, ast.UnaryOp | ast.Expression) and len(known) == 1 else None


def _bounded(compute: Callable[[], float], refusal: Refusal) -> float | None:
    try:
        value = compute()
    except OverflowError:
        value = float("inf")
    except ZeroDivisionError:
        raise refusal("this divides by zero; correct the expression.") from None
    if isinstance(value, complex):
        return None
    if abs(value) > LARGEST:
        raise refusal(f"a number here exceeds {LARGEST:g}; use a smaller one.")
    return value


def _is_listed(node: ast.AST) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return text or isinstance(node, ast.List | ast.Tuple)


def _sizes(call: ast.Call) -> dict[str, ast.expr]:
    """Return the arguments of a call that set how many columns it makes."""
    transform = TRANSFORMS.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if transform is None:
        return {}
    try:
        names = list(inspect.signature(transform).parameters)
    except (TypeError, ValueError):
        return {}
    given = dict(zip(names, call.args, strict=False))
    given |= {word.arg: word.value for word in call.keywords if word.arg is not None}
    return {name: value for name, value in given.items() if name in SIZES}


def _too_deep(formula: str) -> FormulaError:
    shown = formula if len(formula) < 200 else f"{formula[:200]}..."
    return FormulaError(
        f"formula {shown!r}: its brackets are nested too deeply; compute parts of it as columns "
        "of the data."
    )


def _count(number: float) -> str:
    return f"{number:,.0f}" if number < 1e15 else f"{number:.0e}"
