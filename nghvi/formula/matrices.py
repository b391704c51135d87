"""Model matrices from formulaic, whose learnt state is only text, numbers and labels.

formulaic evaluates expressions as Python. A formula may come from a model file, which must never
decide what code runs, so an expression may only name columns, do arithmetic, and call numpy's
elementwise functions and formulaic's own transforms. Anything else is refused.
"""

import ast
import copy
import functools
import re
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from formulaic import Formula, ModelSpec
from formulaic.errors import DataMismatchWarning, FormulaicError
from formulaic.formula import SimpleFormula
from formulaic.materializers import PandasMaterializer
from formulaic.parser.types import Factor, Term
from formulaic.transforms import TRANSFORMS
from formulaic.transforms.contrasts import ContrastsRegistry
from formulaic.utils.code import sanitize_variable_names
from formulaic.utils.layered_mapping import LayeredMapping
from formulaic.utils.stateful_transforms import stateful_eval
from formulaic.utils.variables import Variable
from interface_meta import override

from nghvi._core.errors import FormulaError
from nghvi.data.frame import DataError
from nghvi.formula.bounds import check_columns, check_terms, check_work
from nghvi.formula.syntax import Syntax

FUNCTIONS = frozenset(TRANSFORMS) - {"np", "contr", "Q", "lag"}
"""Functions that formulas know. Backticks replace Q; lag needs an order of rows, which a model does
not know."""
CODINGS = frozenset({"Treatment", "Sum", "Helmert", "Diff", "Poly"})
"""Codings of a category that ``C(x, ...)`` takes by name."""
CONTRASTS = frozenset(name for name in vars(ContrastsRegistry) if not name.startswith("_"))
"""Codings that are written ``contr.<name>``."""
CALCULATION = (
    *(ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Compare, ast.cmpop),
    *(ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Load, ast.Expression),
)
"""Nodes of Python's syntax that an expression may hold besides names."""


class Expression(NamedTuple):
    """A factor of a term, parsed as Python, with the nodes that name columns."""

    tree: ast.Expression
    names: list[ast.Name]
    quoted: dict[str, str]
    """Columns whose names are not valid in Python, by the names that stand in for them."""

    @staticmethod
    def of(expression: str, formula: str) -> "Expression":
        """Parse an expression, or raise an error if it is not a permitted calculation."""
        quoted: dict[str, str] = {}
        try:
            tree = ast.parse(sanitize_variable_names(expression, {}, quoted), mode="eval")
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
            reason = getattr(error, "msg", None) or str(error) or type(error).__name__
            raise FormulaError.at(
                formula, expression, f"this is not a valid expression ({reason}); correct it."
            ) from None
        check_work(formula, expression, tree)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        called = {call.func for call in calls}
        codings = {coding for call in calls for coding in _codings(call)}
        known = {node for node in ast.walk(tree) if _is_known(node, node in called, codings)}
        inside = {child for node in known for child in ast.walk(node)}
        names = []
        for node in ast.walk(tree):
            if node in inside:
                continue
            if node in called or not isinstance(node, (*CALCULATION, ast.Name)):
                raise FormulaError.at(formula, expression, _refusal(node))
            if isinstance(node, ast.Name):
                names.append(node)
        return Expression(tree, names, quoted)

    @property
    def columns(self) -> list[str]:
        """The columns that the expression reads."""
        return [self.quoted.get(node.id, node.id) for node in self.names]

    def apart_from_functions(self) -> tuple[str, dict[str, str]]:
        """Return the expression with an alias for every column, and the columns by their alias.

        A column may have the name of a function: ``log(log)``, ``C(k) + (1 | C)``.
        """
        columns = {f"column_{j}": name for j, name in enumerate(dict.fromkeys(self.columns))}
        alias = {name: key for key, name in columns.items()}
        for node in self.names:
            node.id = alias[self.quoted.get(node.id, node.id)]
        return ast.unparse(self.tree), columns


def columns_of(factor: Factor, formula: str) -> list[str]:
    """Return the columns that a factor reads, or raise an error if it is no calculation."""
    if factor.eval_method is Factor.EvalMethod.LOOKUP:
        return [factor.expr]
    if factor.eval_method is Factor.EvalMethod.LITERAL:
        return []
    return Expression.of(factor.expr, formula).columns


def _codings(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of ``C`` that may name a coding: all after the column."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "C"):
        return []
    return [*call.args[1:], *(keyword.value for keyword in call.keywords)]


def _is_known(node: ast.AST, called: bool, codings: set[ast.expr]) -> bool:
    """Return whether a node is a function or a coding, not a column that shares its name."""
    if isinstance(node, ast.Name):
        return node.id in FUNCTIONS if called else node in codings and node.id in CODINGS
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return False
    if node.value.id == "np":
        return isinstance(getattr(np, node.attr, None), np.ufunc)
    return node.value.id == "contr" and node.attr in CONTRASTS


IN_R = {
    "factor": "write C(x)",
    "as.factor": "write C(x)",
    "ns": "write cr(x, df=...), a natural cubic spline",
    "s": "write bs(x, df=...), a spline",
    "abs": "write np.abs(x)",
    "lag": "compute it as a column first: data.groupby(group)[column].shift()",
}
"""What to write in place of functions that formulas know in R."""


def _refusal(node: ast.AST) -> str:
    name = ast.unparse(node)
    known = IN_R.get(name)
    if known is None and isinstance(getattr(np, name, None), np.ufunc):
        known = f"write np.{name}(x)"
    if known is not None:
        return f"{name!r} is not available in formulas; {known}."
    return (
        f"{name!r} is not available in formulas. Available are "
        f"{', '.join(sorted(FUNCTIONS))}, contr.*, numpy's elementwise functions such as np.sqrt, "
        "and + - * / ** inside I(...); compute anything else as a column of the data first."
    )


INTERCEPT = "intercept"
"""Name of the column of ones in designs and results."""
MARKED = re.compile(r"⧛(?:\x1b\[[\d;]*m)*(.*?)(?:\x1b\[[\d;]*m)*⧚", re.DOTALL)
"""Matches the marks, coloured or not, with which formulaic shows the place of an error."""


EVALUATED = re.compile(r"Unable to evaluate factor `(.*)`\. \[(.*?)\.?\]")
"""Matches formulaic's message about a factor that fails: the factor, and Python's error."""
FAILURES = (FormulaicError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What an expression may fail with, depending on the arguments of its functions."""


class Learnt(NamedTuple):
    """What formulaic's encoders and transforms learnt from the training data."""

    categories: dict[str, list]
    """Levels of every categorical factor."""
    transforms: dict[str, Any]
    """State of every transform, such as the mean that ``center`` subtracts."""


class Matrix(NamedTuple):
    """A matrix with named columns."""

    values: np.ndarray
    names: tuple[str, ...]

    def columns(self, chosen: list[int]) -> "Matrix":
        """Return the columns at some positions."""
        return Matrix(self.values[:, chosen], tuple(self.names[j] for j in chosen))


@functools.lru_cache(maxsize=256)  # a fit asks thirty times for the same few parts
def terms_of(syntax: Syntax, text: str) -> SimpleFormula:
    """Parse a part of the formula into terms."""
    check_terms(syntax.text, text)
    try:
        terms = Formula(text)
    except (FormulaicError, SyntaxError) as error:
        marked = MARKED.search(str(error))
        place = marked.group(1) if marked else ""
        raise FormulaError.at(syntax.text, place, _reason(error, text)) from None
    if not isinstance(terms, SimpleFormula):
        raise FormulaError.at(syntax.text, text, "this is not a sum of terms; write 'a + b'.")
    return terms


def _reason(error: Exception, text: str) -> str:
    """Return the complaint of formulaic or Python, with the remedy where one is known."""
    if "as.factor" in text:
        return f"'as.factor' is not available in formulas; {IN_R['as.factor']}."
    if isinstance(error, SyntaxError) and not isinstance(error, FormulaicError):
        return f"{text!r} cannot be read ({error.msg}); correct it."
    reason = str(error).split("\n")[0].split(". ")[0].rstrip(".")
    if "arguments" in reason:
        return "this operator needs a term on each side; add the term or remove the operator."
    if "`.` operator" in reason:
        return "'.' can only be used in a group term; name the columns of the fixed part."
    if reason.startswith("Missing operator"):
        return f"{reason}; write names with spaces in backticks (`my column`), or add the operator."
    return f"{reason}; correct it."


def variables_of(syntax: Syntax, terms: Iterable[Term]) -> tuple[str, ...]:
    """Return the columns of the data that the terms read."""
    factors = [factor for term in terms for factor in term.factors]
    return tuple(name for factor in factors for name in columns_of(factor, syntax.text))


class _Materializer(PandasMaterializer):
    """formulaic's materializer, except that columns may share the names of functions.

    It has no ``REGISTER_NAME``, so that formulaic itself never picks it.
    """

    @override
    def _evaluate(self, expr: str, metadata: Any, spec: ModelSpec) -> tuple[Any, set[Variable]]:
        clear, columns = Expression.of(expr, expr).apart_from_functions()
        values = {alias: self.data[name] for alias, name in columns.items()}
        read: set[Variable] = set()
        found = stateful_eval(
            clear,
            LayeredMapping(values, TRANSFORMS),
            {clear: metadata},
            spec.transform_state,
            spec,
            variables=read,
        )
        return found, read


def evaluate(
    parts: list[SimpleFormula], frame: pd.DataFrame, learnt: Learnt, syntax: Syntax
) -> tuple[list[Matrix], Learnt]:
    """Return the matrix of every part, and the learnt state extended by what is new in them."""
    for terms in parts:
        check_columns(syntax.text, terms, lambda name: _levels(frame, name))
    materializer = _Materializer(frame, context={})
    categories, transforms = dict(learnt.categories), copy.deepcopy(learnt.transforms)
    matrices = []
    for terms in parts:
        spec = ModelSpec(
            formula=terms,
            na_action="ignore",
            output="numpy",
            transform_state=transforms,
            encoder_state={
                factor: (Factor.Kind.CATEGORICAL, {"categories": list(levels)})
                for factor, levels in categories.items()
            },
        )
        try:
            # Cells such as the log of a negative number are found and reported afterwards.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("error", DataMismatchWarning)
                made = materializer.get_model_matrix(spec)
        except DataMismatchWarning as mismatch:
            raise DataError(_unseen(frame, categories, str(mismatch))) from None
        except FAILURES as error:
            raise _failed(syntax, error) from error
        found = made.model_spec
        transforms |= found.transform_state
        for factor, (_, state) in found.encoder_state.items():
            if "categories" in state:
                categories[factor] = list(state["categories"])
        names = _names(found, syntax)
        values = np.asarray(made, float).reshape(len(frame), len(names))
        matrices.append(Matrix(values, names))
    return matrices, Learnt(categories, transforms)


def _failed(syntax: Syntax, error: Exception) -> FormulaError:
    """Return an error that shows the factor that cannot be evaluated, if formulaic names it."""
    reason = str(error).split("\n")[0]
    named = EVALUATED.fullmatch(reason)
    place = named[1] if named else ""
    cause = named[2] if named else f"{type(error).__name__}: {reason.rstrip('.')}"
    remedy = "check its arguments (most functions take columns of numbers)"
    return FormulaError.at(syntax.text, place, f"this cannot be evaluated ({cause}); {remedy}.")


def _names(spec: ModelSpec, syntax: Syntax) -> tuple[str, ...]:
    """Return the names of the columns; the intercept is recognised by its term, not its name."""
    names = spec.column_names
    constant = [j for term, js in spec.term_indices.items() for j in js if str(term) == "1"]
    for j, name in enumerate(names):
        if j not in constant and name == INTERCEPT:
            raise FormulaError.at(
                syntax.text,
                INTERCEPT,
                f"column {INTERCEPT!r} has the same name as the model's own intercept; rename it, "
                "or leave it out if it is constant.",
            )
    return tuple(INTERCEPT if j in constant else name for j, name in enumerate(names))


def _levels(frame: pd.DataFrame, expression: str) -> int:
    """Return how many columns a column, or ``C`` of one, becomes; 1 for any other expression."""
    called = re.fullmatch(r"C\(\s*`?(.+?)`?\s*(?:,.*)?\)", expression, re.DOTALL)
    name = called[1] if called else expression
    if name not in frame or (not called and pd.api.types.is_numeric_dtype(frame[name])):
        return 1
    return int(frame[name].nunique())


def _unseen(frame: pd.DataFrame, categories: dict[str, list], otherwise: str) -> str:
    for factor, levels in categories.items():
        for name in frame.columns:
            new = set(frame[name]) - set(levels)
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", factor) and new:
                shown = ", ".join(map(repr, sorted(new, key=str)[:5]))
                known = ", ".join(map(repr, levels[:10]))
                return (
                    f"column {name!r} holds {shown}, which did not occur in the training data (it "
                    f"had {known}): drop these rows or refit with them."
                )
    return otherwise
