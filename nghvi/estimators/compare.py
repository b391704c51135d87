"""Which of several fitted models predicts better? Leave-one-out on the same rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nghvi.data.frame import DataError
from nghvi.posterior.arviz import Loo

SMALL = 4.0
"""Difference of elpd below which its standard error says little (Sivula et al.)."""


def compare(
    models: Mapping[str, Any] | Sequence[Any],
    X: Any = None,
    y: Any = None,
    draws: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Fitted models on the same rows, best first, by leave-one-out (see ``loo``).

    ``models``: fitted estimators, or results of their ``loo``, by name or in a list. ``X``, ``y``:
    the rows that all of them were fitted to; of a data frame each model reads its own columns.

    Returns one row per model: ``elpd`` and its ``se``; ``elpd_diff`` to the best and its
    ``diff_se``; ``p_loo``, the effective number of parameters; ``unreliable`` rows (k-hat too
    large); and ``reading``, what that says in words.
    """
    if not isinstance(models, Mapping):
        models = {f"model {i}": model for i, model in enumerate(models, 1)}
    if not models:
        raise DataError("compare: give at least one fitted model.")
    found = {str(name): _loo(name, m, X, y, draws, seed) for name, m in models.items()}
    _check_rows(found)
    order = sorted(found, key=lambda name: -found[name].elpd)
    best = found[order[0]]
    rows = []
    for name in order:
        each = found[name]
        difference = np.asarray(each.elpd_i) - np.asarray(best.elpd_i)
        lost, error = float(difference.sum()), _sum_error(difference)
        rows.append(
            {
                "elpd": each.elpd,
                "se": each.se,
                "elpd_diff": lost,
                "diff_se": error,
                "p_loo": each.p,
                "unreliable": each.num_unreliable,
                "reading": _reading(each, name == order[0], -lost, error),
            }
        )
    return pd.DataFrame(rows, index=pd.Index(order, name="model"))


def _loo(name: Any, model: Any, X: Any, y: Any, draws: int, seed: int) -> Loo:
    if isinstance(model, Loo):
        return model
    if not hasattr(model, "loo"):
        raise DataError(
            f"compare: {name!r} is a {type(model).__name__}; give fitted estimators or results of "
            "their loo."
        )
    if X is None or y is None:
        raise DataError("compare: fitted models need X and y, the rows of the fit.")
    own = list(getattr(model, "feature_names_in_", ()))
    readable = own and set(own) <= set(getattr(X, "columns", ()))
    return model.loo(X[own] if readable else X, y, draws, seed)


def _check_rows(found: Mapping[str, Loo]) -> None:
    sizes = {name: each.n_data_points for name, each in found.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(f"compare: the models have different numbers of rows ({sizes}).")


def _sum_error(values: np.ndarray) -> float:
    return float(np.sqrt(len(values) * np.var(values)))


def _reading(loo: Loo, best: bool, lost: float, error: float) -> str:
    if best:
        said = "best"
    elif lost < SMALL:
        said = "as good as the best: the difference is small"
    elif lost < 2 * error:
        said = f"not clearly worse: {lost / error:.1f} standard errors below the best"
    else:
        said = f"worse: {lost / max(error, 1e-12):.1f} standard errors below the best"
    if loo.num_unreliable:
        said += f"; k-hat too large in {loo.num_unreliable} of {loo.n_data_points} rows: uncertain"
    return said
