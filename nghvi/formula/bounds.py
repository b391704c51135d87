"""How much work a formula may ask for, told from its text before anything is evaluated.

Terms are counted without being made: a + b has as many as both, a:b their product, a * b both and
the product, (a)**k as many as n^k products of its n terms. Constants are folded in floating point,
so that a number with a billion digits is seen where Python would begin to compute it. The same
holds for a formula that comes with a model file.
"""

import ast
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
MOST_PRODUCTS = 50_000
"""Of terms that a power is made from."""
MOST_POWER = 50
MOST_COLUMNS = 10_000
LARGEST = 1e300
MOST_NESTED = 100
SIZES = {"df": 1000, "levels": 2000, "degree": 25}
"""Arguments of transforms that say how many columns there will be."""
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
    """A part of the formula does not ask for more terms than can be made."""
    try:
        number = _terms(DefaultFormulaParser().get_ast(text), formula)
    except (FormulaicError, SyntaxError):
        return  # said with its place where the terms are made
    except RecursionError:
        raise _too_deep(formula) from None
    if number > MOST_TERMS:
        raise FormulaError(
            f"formula {formula!r}: it has {_count(number)} terms, and {MOST_TERMS:,} are the most. "
            "Leave interactions out ('(a + b + c)**2' has those of two columns only); for many "
            "columns without a formula, give them as X and name the group."
        )


def check_work(formula: str, expression: str, tree: ast.AST) -> None:
    """Numbers in an expression stay within what can be computed, sizes within what can be used."""
    try:
        _fold(tree, formula, expression, 0)
    except RecursionError:
        raise _too_deep(formula) from None


def check_columns(formula: str, terms: Iterable[Term], levels: Callable[[str], int]) -> None:
    """The terms do not make more columns than can be used.

    ``levels``: how many columns a column of the data becomes, 1 if it holds numbers.
    """
    number, largest = 0.0, (0.0, "")
    for term in terms:
        columns = math.prod(levels(factor.expr) for factor in term.factors)
        number, largest = number + columns, max(largest, (columns, str(term)))
    if number > MOST_COLUMNS:
        raise FormulaError.at(
            formula,
            largest[1],
            f"it makes {_count(number)} columns, {_count(largest[0])} of them here, and "
            f"{MOST_COLUMNS:,} are the most. Categories with many levels belong after '|' as "
            "the group; merge rare ones or leave the term out; a number that is held as text has "
            "to be converted.",
        )


def _terms(node: Any, formula: str) -> float:
    total, waiting = 0.0, [node]
    while waiting:  # a long sum is as deep as it is long
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
        return base  # formulaic says what is wrong with it
    if power > MOST_POWER or base ** min(power, MOST_POWER) > MOST_PRODUCTS:
        raise FormulaError.at(
            formula,
            exponent,
            f"a power of {_count(base)} terms with the exponent {exponent} is too large: beyond "
            f"{_count(base)} it adds nothing, and every step multiplies the interactions; write a "
            "smaller one. A power of a column's numbers is I(x**2).",
        )
    return base**power


def _fold(node: ast.AST, formula: str, expression: str, depth: int) -> float | None:
    """The value of what is made of numbers alone, None of everything else; checks on the way."""
    if depth > MOST_NESTED:
        raise _too_deep(formula)

    def folded(child: ast.AST) -> float | None:
        return _fold(child, formula, expression, depth + 1)

    if isinstance(node, ast.Constant):
        constant = node.value
        if not isinstance(constant, int | float):
            return None
        return _bounded(lambda: float(constant), formula, expression)
    if isinstance(node, ast.BinOp):
        if any(_is_listed(side) for side in (node.left, node.right)):
            raise FormulaError.at(
                formula, expression, "text and lists cannot be calculated with; use numbers."
            )
        left, right = folded(node.left), folded(node.right)
        compute = OPERATIONS.get(type(node.op))
        if left is None or right is None or compute is None:
            return None
        return _bounded(lambda: compute(left, right), formula, expression)
    if isinstance(node, ast.Call):
        values = [folded(child) for child in (*node.args, *(k.value for k in node.keywords))]
        for name, value in _sizes(node).items():
            _check_size(name, value, folded(value), formula, expression)
        alone = isinstance(node.func, ast.Name) and node.func.id == "I" and len(values) == 1
        return values[0] if alone else None
    values = [folded(child) for child in ast.iter_child_nodes(node)]
    known = [value for value in values if value is not None]
    return known[0] if isinstance(node, ast.UnaryOp | ast.Expression) and len(known) == 1 else None


def _bounded(compute: Callable[[], float], formula: str, expression: str) -> float | None:
    try:
        value = compute()
    except OverflowError:
        value = float("inf")
    except ZeroDivisionError:
        raise FormulaError.at(formula, expression, "it divides by zero; correct it.") from None
    if isinstance(value, complex):
        return None
    if abs(value) > LARGEST:
        raise FormulaError.at(
            formula, expression, f"it holds a number beyond {LARGEST:g}; write a smaller one."
        )
    return value


def _is_listed(node: ast.AST) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return text or isinstance(node, ast.List | ast.Tuple)


def _sizes(call: ast.Call) -> dict[str, ast.expr]:
    """Arguments of a call that say how many columns it makes."""
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


def _check_size(
    name: str, value: ast.expr, size: float | None, formula: str, expression: str
) -> None:
    if size is None and not isinstance(value, ast.List | ast.Tuple | ast.Constant):
        raise FormulaError.at(formula, expression, f"{name} has to be a number; write one.")
    if size is not None and size > SIZES[name]:
        raise FormulaError.at(
            formula,
            expression,
            f"{name}={_count(size)} asks for too many columns; {SIZES[name]:,} is the most.",
        )


def _too_deep(formula: str) -> FormulaError:
    shown = formula if len(formula) < 200 else f"{formula[:200]}..."
    return FormulaError(
        f"formula {shown!r}: its brackets are nested too deeply; compute parts of it as columns."
    )


def _count(number: float) -> str:
    return f"{number:,.0f}" if number < 1e15 else f"{number:.0e}"
