"""What an expression in a formula may do: name columns, compute, call known functions.

formulaic evaluates expressions as Python. A formula may come from a model file, which must never
decide what code runs, so everything but arithmetic, elementwise functions of numpy and
formulaic's own transforms is refused.
"""

import ast
from typing import NamedTuple

import numpy as np
from formulaic.parser.types import Factor
from formulaic.transforms import TRANSFORMS
from formulaic.transforms.contrasts import ContrastsRegistry
from formulaic.utils.code import sanitize_variable_names

from nghvi.formula.bounds import check_work
from nghvi.formula.errors import FormulaError

FUNCTIONS = frozenset(TRANSFORMS) - {"np", "contr", "Q", "lag"}
"""Backticks do what Q does; lag needs an order of rows, which a model does not know."""
CODINGS = frozenset({"Treatment", "Sum", "Helmert", "Diff", "Poly"})
CONTRASTS = frozenset(name for name in vars(ContrastsRegistry) if not name.startswith("_"))
CALCULATION = (
    *(ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Compare, ast.cmpop),
    *(ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Load, ast.Expression),
)


class Expression(NamedTuple):
    """A factor as Python, with the nodes that name columns."""

    tree: ast.Expression
    names: list[ast.Name]
    quoted: dict[str, str]
    """Columns whose names are no names in Python, by those that stand for them."""

    @staticmethod
    def of(expression: str, formula: str) -> "Expression":
        """Complains about anything that is not a calculation."""
        quoted: dict[str, str] = {}
        try:
            tree = ast.parse(sanitize_variable_names(expression, {}, quoted), mode="eval")
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
            reason = getattr(error, "msg", None) or str(error) or type(error).__name__
            raise FormulaError.at(
                formula, expression, f"this is no expression ({reason}); correct it."
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
        """The columns that are read."""
        return [self.quoted.get(node.id, node.id) for node in self.names]

    def apart_from_functions(self) -> tuple[str, dict[str, str]]:
        """The expression with a name of its own for every column, and the columns by these names.

        A column may be called as a function is: ``log(log)``, ``C(k) + (1 | C)``.
        """
        columns = {f"column_{j}": name for j, name in enumerate(dict.fromkeys(self.columns))}
        alias = {name: key for key, name in columns.items()}
        for node in self.names:
            node.id = alias[self.quoted.get(node.id, node.id)]
        return ast.unparse(self.tree), columns


def columns_of(factor: Factor, formula: str) -> list[str]:
    """The columns that a factor reads; complains about anything that is not a calculation."""
    if factor.eval_method is Factor.EvalMethod.LOOKUP:
        return [factor.expr]
    if factor.eval_method is Factor.EvalMethod.LITERAL:
        return []
    return Expression.of(factor.expr, formula).columns


def _codings(call: ast.Call) -> list[ast.expr]:
    """Where ``C`` is told a coding: after the column."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "C"):
        return []
    return [*call.args[1:], *(keyword.value for keyword in call.keywords)]


def _is_known(node: ast.AST, called: bool, codings: set[ast.expr]) -> bool:
    """A function or a coding, as against a column that may have the same name."""
    if isinstance(node, ast.Name):
        return node.id in FUNCTIONS if called else node in codings and node.id in CODINGS
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return False
    if node.value.id == "np":
        return isinstance(getattr(np, node.attr, None), np.ufunc)
    return node.value.id == "contr" and node.attr in CONTRASTS


def _refusal(node: ast.AST) -> str:
    return (
        f"{ast.unparse(node)!r} is not a function that formulas know. They know "
        f"{', '.join(sorted(FUNCTIONS))}, contr.*, numpy's elementwise functions such as np.sqrt, "
        "and + - * / ** inside I(...); compute anything else as a column of the data first."
    )
