"""Compares predictions with observed rows: those of the fit, each without itself, or new ones.

Rows are recognised as those of the fit by their :class:`~nghvi.data.fingerprint.Fingerprint`. The
functions that check one fit take rows on the fitted scale: a request, and the values of the
response. :func:`compare` takes several fitted models and ranks them by leave-one-out.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from nghvi._core.errors import warn
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import DataError, Tabular, Vector
from nghvi.formula import parse
from nghvi.posterior import pointwise
from nghvi.posterior.left_out import LeftOut, leave_out, left_out, raw_densities
from nghvi.posterior.mixed_posterior import MixedPosterior
from nghvi.posterior.predictive import around, between, predict
from nghvi.posterior.request import Request

if TYPE_CHECKING:
    from nghvi.posterior.arviz import Loo


ORIGIN = "rows"
"""The key of ``attrs`` under which :func:`checked_rows` says where the rows are from."""
OF_THE_FIT, NEW, PARTLY = "of the fit", "new", "partly of the fit"
"""Where rows are from."""
FEWEST_DRAWS = 100
"""The fewest draws from which the tail of importance weights can be estimated."""
SMALL = 4.0
"""The difference of elpd below which its standard error is unreliable (Sivula et al.)."""


def check_tail(draws: int) -> None:
    """Raise an error if there are fewer draws than the tail of importance weights needs."""
    if draws < FEWEST_DRAWS:
        raise DataError(
            f"draws={draws}: leave-one-out needs at least {FEWEST_DRAWS} draws for the tail of its "
            "weights."
        )


def rows_of_the_fit(
    posterior: MixedPosterior, fit: Fingerprint, request: Request, values: np.ndarray
) -> pointwise.Observed:
    """Return the rows, or raise an error if they are not those of the fit."""
    if reason := why_not_of_the_fit(posterior, fit, request, values):
        raise DataError(f"{reason}; pass all rows of the fit and no others.")
    return pointwise.Observed(request.x, request.codes, values)


def why_not_of_the_fit(
    posterior: MixedPosterior, fit: Fingerprint, request: Request, values: np.ndarray
) -> str | None:
    """Return a reason why rows are not those of the fit, or None if they are, in any order."""
    given, groups = _fingerprint(posterior, request, values), posterior.names.labels
    if fit.same(given):
        return None
    if given.num_rows != fit.num_rows:
        fitted = sum(float(part.num_rows) for part in posterior.parts)
        return f"X has {given.num_rows:g} rows, but the fit had {fitted:g} (including counts)"
    known = list(map(len, groups.values())) if isinstance(groups, dict) else len(groups)
    if len(groups) and (request.codes >= known).any():
        return "X has groups that the fit did not have"
    return "X and y hold other values than the rows of the fit"


def leave_one_out(
    posterior: MixedPosterior, rows: pointwise.Observed, draws: int, seed: int
) -> "Loo":
    """Estimate the log density of every row given all others, on the scale of the data."""
    from nghvi.posterior.arviz import psis_loo

    rows, back = rows.by_group()
    return psis_loo(raw_densities(posterior, rows, draws, seed)).in_order(back)


def checked_rows(
    posterior: MixedPosterior,
    fit: Fingerprint,
    request: Request,
    values: np.ndarray,
    most: int | None,
) -> pd.DataFrame:
    """Return the table of ``check_rows`` by position, for at most ``most`` rows at random."""
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
        "pit": between(found.below, found.up_to, request.seed),
        "k_hat": found.k_hat,
    }
    checked = pd.DataFrame(table, index=pd.Index(chosen, name="row"))
    checked.attrs[ORIGIN] = origin
    return checked


def _without_themselves(posterior: MixedPosterior, request: Request, values: np.ndarray) -> LeftOut:
    observed = pointwise.Observed(request.x, request.codes, values)
    observed, back = observed.by_group()
    drawn = request.draws, request.seed
    found = leave_out(left_out(posterior, pointwise.judged, observed, *drawn))
    return LeftOut(*(each[back] for each in found))


def _as_they_are(posterior: MixedPosterior, request: Request, values: np.ndarray) -> LeftOut:
    found = predict(posterior, request)
    below, up_to = around(posterior, request, values)
    return LeftOut(found.mean, found.sd, below, up_to, np.full(len(values), np.nan))


def _origin(
    posterior: MixedPosterior, fit: Fingerprint, request: Request, values: np.ndarray
) -> str:
    """Return whether rows are those of the fit, new, or partly of the fit, with a warning."""
    if why_not_of_the_fit(posterior, fit, request, values) is None:
        return OF_THE_FIT
    if not fit.overlaps(_fingerprint(posterior, request, values)):
        return NEW
    warn(
        "most of these rows are rows of the fit, but some are missing or others are among them. "
        "They are therefore predicted by a fit that has seen them, which looks better than it is. "
        "Pass exactly the rows of the fit, each of which is then predicted without itself, or only "
        "held-out rows."
    )
    return PARTLY


def _fingerprint(posterior: MixedPosterior, request: Request, values: np.ndarray) -> Fingerprint:
    grouped = len(posterior.names.labels) > 0
    codes = request.codes if grouped else np.zeros(len(values), int)
    return Fingerprint.of(request.x, values, codes)


def compare(
    models: Mapping[str, Any] | Sequence[Any],
    X: Tabular | None = None,
    y: Vector | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Rank fitted models by leave-one-out cross-validation on the same rows (see ``loo``).

    Parameters
    ----------
    models
        Fitted estimators or results of their ``loo``, in a dictionary by name or in a list.
    X, y
        The rows that all models were fitted to; each model reads its own columns of a data frame.
        They may be left out if all ``models`` are results of ``loo``.
    draws, seed
        Number of posterior draws, and their seed.

    Returns
    -------
    pandas.DataFrame
        One row per model, best first: ``elpd`` and its ``se``; ``elpd_diff``, the difference from
        the best, and its ``diff_se``; ``p_loo``, the effective number of parameters;
        ``unreliable``, the number of rows with too large a k-hat; and ``reading``, what that means
        in words.
    """
    if not isinstance(models, Mapping):
        models = {f"model {i}": model for i, model in enumerate(models, 1)}
    if not models:
        raise DataError("compare: pass at least one fitted model.")
    _check_responses(models)
    found = {str(name): _loo(name, m, X, y, draws, seed) for name, m in models.items()}
    _check_rows(found)
    order = sorted(found, key=lambda name: -found[name].elpd)
    best = found[order[0]]
    rows = []
    for name in order:
        each = found[name]
        difference = np.asarray(each.elpd_i) - np.asarray(best.elpd_i)
        lost, error = float(difference.sum()), float(np.sqrt(difference.size) * difference.std())
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


def _loo(
    name: Any, model: Any, X: Tabular | None, y: Vector | None, draws: int, seed: int
) -> "Loo":
    from nghvi.posterior.arviz import Loo

    if isinstance(model, Loo):
        return model
    if not hasattr(model, "loo"):
        raise DataError(
            f"compare: {name!r} is a {type(model).__name__}; pass fitted estimators or results of "
            "their loo."
        )
    if X is None or y is None:
        raise DataError("compare: fitted models need X and y, the rows of the fit.")
    own = list(getattr(model, "feature_names_in_", ()))
    readable = own and set(own) <= set(getattr(X, "columns", ()))
    return model.loo(cast(Any, X)[own] if readable else X, y, draws, seed)


def _check_responses(models: Mapping[str, Any]) -> None:
    """Raise an error if formulas explain different quantities, whose densities differ in units."""
    designs = [getattr(model, "formula_", None) for model in models.values()]
    stated = [parse(each.formula).response for each in designs if each is not None]
    explained = dict.fromkeys("".join(each.split()).strip("`") for each in stated)
    if len(explained) > 1:
        raise DataError(
            f"compare: the models explain different responses ({', '.join(explained)}), whose "
            "densities cannot be compared; fit all of them to the same one, for instance "
            "response='lognormal' to y instead of a Gaussian model of log(y)."
        )


def _check_rows(found: Mapping[str, "Loo"]) -> None:
    sizes = {name: each.n_data_points for name, each in found.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(
            f"compare: the models have different numbers of rows ({sizes}); fit all of them to the "
            "same rows."
        )


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
