"""What an expression in a formula may do: name columns, compute, call known functions.

formulaic evaluates expressions as Python. A formula may come from a model file, which must never
decide what code runs, so everything but arithmetic, elementwise functions of numpy and
formulaic's own transforms is refused.
"""

import ast

import numpy as np
from formulaic.parser.types import Factor
from formulaic.transforms import TRANSFORMS
from formulaic.transforms.contrasts import ContrastsRegistry
from formulaic.utils.code import sanitize_variable_names

from nghvi.formula.errors import FormulaError

FUNCTIONS = frozenset(TRANSFORMS) - {"np", "contr", "Q", "lag"}
"""Backticks do what Q does; lag needs an order of rows, which a model does not know."""
CODINGS = frozenset({"Treatment", "Sum", "Helmert", "Diff", "Poly"})
CONTRASTS = frozenset(name for name in vars(ContrastsRegistry) if not name.startswith("_"))
CALCULATION = (
    *(ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Compare, ast.cmpop),
    *(ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Load, ast.Expression),
)


def columns_of(factor: Factor, formula: str) -> list[str]:
    """The columns that a factor reads; complains about anything that is not a calculation."""
    if factor.eval_method is Factor.EvalMethod.LOOKUP:
        return [factor.expr]
    if factor.eval_method is Factor.EvalMethod.LITERAL:
        return []
    aliases: dict[str, str] = {}
    try:
        tree = ast.parse(sanitize_variable_names(factor.expr, {}, aliases), mode="eval")
    except SyntaxError as error:
        raise FormulaError.at(
            formula, factor.expr, f"this is no expression ({error.msg})."
        ) from None
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    known = {node for node in ast.walk(tree) if _is_known(node, node in called)}
    inside = {child for node in known for child in ast.walk(node)}
    columns = []
    for node in ast.walk(tree):
        if node in inside:
            continue
        if node in called or not isinstance(node, (*CALCULATION, ast.Name)):
            raise FormulaError.at(formula, factor.expr, _refusal(node))
        if isinstance(node, ast.Name):
            columns.append(aliases.get(node.id, node.id))
    return columns


def _is_known(node: ast.AST, called: bool) -> bool:
    """A function or a coding, as against a column that may have the same name."""
    if isinstance(node, ast.Name):
        return node.id in (FUNCTIONS if called else CODINGS)
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
