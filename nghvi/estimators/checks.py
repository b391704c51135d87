"""How well a fit predicts rows with a known response, its own ones without themselves.

Rows are those of the fit if their :class:`~nghvi.data.fingerprint.Fingerprint` is the fit's. All
functions take rows on the fitted scale: a request, and the values of the response.
"""

from typing import TYPE_CHECKING

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
