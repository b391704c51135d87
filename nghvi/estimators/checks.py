"""How well fits predict rows with a known response: their own rows without themselves, or new ones.

Rows are those of the fit if their :class:`~nghvi.data.fingerprint.Fingerprint` is the fit's. The
functions that check one fit take rows on the fitted scale: a request, and the values of the
response. :func:`compare` takes several fitted models and ranks them by leave-one-out.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nghvi._core.errors import warn
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import DataError
from nghvi.posterior import pointwise
from nghvi.posterior.mixed_posterior import MixedPosterior
from nghvi.posterior.pointwise import LeftOut, leave_out
from nghvi.posterior.predictive import Request, around, predict

if TYPE_CHECKING:
    from nghvi.posterior.arviz import Loo


ORIGIN = "rows"
"""Where :func:`checked_rows` says, in ``attrs``, which rows it has judged:"""
OF_THE_FIT, NEW, PARTLY = "of the fit", "new", "partly of the fit"
FEWEST_DRAWS = 100
SMALL = 4.0
"""Difference of elpd below which its standard error says little (Sivula et al.)."""


def check_tail(draws: int) -> None:
    """Refuse fewer draws than the tail of importance weights needs."""
    if draws < FEWEST_DRAWS:
        raise DataError(
            f"draws={draws}: the tail of the weights needs {FEWEST_DRAWS} draws at least."
        )


def rows_of_the_fit(
    posterior: MixedPosterior, fit: Fingerprint, request: Request, values: np.ndarray
) -> pointwise.Observed:
    """The rows, if they are those of the fit."""
    if reason := why_not_of_the_fit(posterior, fit, request, values):
        raise DataError(f"{reason}: give the rows of the fit.")
    return pointwise.Observed(request.x, request.codes, values)


def why_not_of_the_fit(
    posterior: MixedPosterior, fit: Fingerprint, request: Request, values: np.ndarray
) -> str | None:
    """What shows that rows are not those of the fit; None if they are, in any order."""
    given, groups = _fingerprint(posterior, request, values), posterior.names.labels
    if fit.same(given):
        return None
    if given.num_rows != fit.num_rows:
        fitted = sum(float(part.num_rows) for part in posterior.parts)
        return f"X has {given.num_rows:g} rows, the fit had {fitted:g} (counts included)"
    known = list(map(len, groups.values())) if isinstance(groups, dict) else len(groups)
    if len(groups) and (request.codes >= known).any():
        return "X has groups that the fit did not have"
    return "X and y hold other values than the rows of the fit"


def leave_one_out(
    posterior: MixedPosterior, rows: pointwise.Observed, draws: int, seed: int
) -> "Loo":
    """Expected log density of every row given the others, on the scale of the data."""
    from nghvi.posterior.arviz import psis_loo

    theta, effects = posterior.joint(draws, seed)
    return psis_loo(pointwise.raw_log_likelihood(posterior, theta, effects, rows))


def checked_rows(
    posterior: MixedPosterior,
    fit: Fingerprint,
    request: Request,
    values: np.ndarray,
    most: int | None,
) -> pd.DataFrame:
    """The table of ``check_rows``, by position among the rows; ``most``: so many at random."""
    origin = _origin(posterior, fit, request, values)
    rng = np.random.default_rng(request.seed)
    chosen = np.arange(len(values))
    if most is not None and len(chosen) > most:
        chosen = np.sort(rng.choice(len(chosen), most, replace=False))
    request = request._replace(x=request.x[chosen], codes=request.codes[chosen])
    values = values[chosen]
    judge = _without_themselves if origin == OF_THE_FIT else _as_they_are
    found = judge(posterior, request, values)
    scaling = posterior.scaling
    table = {
        "observed": scaling.raw_response(values),
        "predicted": scaling.raw_response(found.mean),
        "sd": scaling.y_scale * found.sd,
        "pit": found.below + rng.random(len(values)) * (found.up_to - found.below),
        "k_hat": found.k_hat,
    }
    checked = pd.DataFrame(table, index=pd.Index(chosen, name="row"))
    checked.attrs[ORIGIN] = origin
    return checked


def _without_themselves(posterior: MixedPosterior, request: Request, values: np.ndarray) -> LeftOut:
    theta, effects = posterior.joint(request.draws, request.seed)
    observed = pointwise.Observed(request.x, request.codes, values)
    return leave_out(pointwise.by_rows(posterior, pointwise.judged, theta, effects, observed))


def _as_they_are(posterior: MixedPosterior, request: Request, values: np.ndarray) -> LeftOut:
    found = predict(posterior, request)
    below, up_to = around(posterior, request, values)
    return LeftOut(found.mean, found.sd, below, up_to, np.full(len(values), np.nan))


def _origin(
    posterior: MixedPosterior, fit: Fingerprint, request: Request, values: np.ndarray
) -> str:
    """Whether rows are those of the fit, new, or taken from both or a part of the fit's."""
    if why_not_of_the_fit(posterior, fit, request, values) is None:
        return OF_THE_FIT
    if not fit.overlaps(_fingerprint(posterior, request, values)):
        return NEW
    warn(
        "most of these rows are rows of the fit, but they are not all of it or not only it: "
        "they are predicted with themselves among the data, which flatters; give all rows of "
        "the fit (each is then predicted without itself), or held-out rows only."
    )
    return PARTLY


def _fingerprint(posterior: MixedPosterior, request: Request, values: np.ndarray) -> Fingerprint:
    grouped = len(posterior.names.labels) > 0
    codes = request.codes if grouped else np.zeros(len(values), int)
    return Fingerprint.of(request.x, values, codes)


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


def _loo(name: Any, model: Any, X: Any, y: Any, draws: int, seed: int) -> "Loo":
    from nghvi.posterior.arviz import Loo

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


def _check_rows(found: Mapping[str, "Loo"]) -> None:
    sizes = {name: each.n_data_points for name, each in found.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(f"compare: the models have different numbers of rows ({sizes}).")


def _sum_error(values: np.ndarray) -> float:
    return float(np.sqrt(len(values) * np.var(values)))


def _reading(loo: "Loo", best: bool, lost: float, error: float) -> str:
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
