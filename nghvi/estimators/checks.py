"""What a fitted estimator says about itself: leave-one-out, calibration, a report."""

import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from nghvi._core.errors import warn
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import DataError
from nghvi.estimators import tables
from nghvi.estimators.choices import check_counts, check_seed
from nghvi.estimators.predictions import Predictions
from nghvi.networks import Identity
from nghvi.posterior import pointwise
from nghvi.posterior.left_out import LeftOut, leave_out
from nghvi.posterior.predictive import Request, around, predict
from nghvi.recipes.verdict import k_hat_meaning

if TYPE_CHECKING:
    from nghvi.posterior.loo import Loo

ORIGIN = "rows"
"""Where :meth:`Checks.check_rows` says, in ``attrs``, which rows it has judged:"""
OF_THE_FIT, NEW, PARTLY = "of the fit", "new", "partly of the fit"


class Checks(Predictions):
    """The part of both estimators that judges a fit."""

    @property
    def k_hat_meaning_(self) -> str:
        """What ``k_hat_`` says about the fit, in words."""
        check_is_fitted(self, "posterior_")
        inference = self.posterior_.inference
        network = not isinstance(self.posterior_.model.trunk, Identity)
        return k_hat_meaning(inference.k_hat, inference.pool.corrected, network)

    @property
    def status_(self) -> str:
        """How the fit ended, for programs: ``"converged"``, ``"settled"``, ``"not_converged"``,
        ``"not_settled"``, ``"interrupted"`` or ``"failed"``; ``verdict_`` says it in words."""
        check_is_fitted(self, "posterior_")
        return self.posterior_.inference.verdict.status.value

    def prior_summary(self) -> pd.DataFrame:
        """Every prior in words, the scale it is stated on, and its 95 % range in raw units.

        One row per parameter of :meth:`summary`, for a network also one per layer of weights.
        ``q2.5``, ``q50`` and ``q97.5`` are quantiles of draws from the prior, mapped to the units
        of the data as the posterior is.
        """
        check_is_fitted(self, "posterior_")
        return tables.prior_table(self.posterior_, self.standardize)

    def prior_sensitivity(self) -> pd.DataFrame:
        """How much the posterior of each parameter depends on the priors, and on the data.

        Prior and likelihood are raised to powers near one, and the draws weighted anew (power
        scaling; Kallioinen, Paananen, Bürkner and Vehtari, 2024). ``prior``, ``likelihood``:
        change of the posterior for a doubling of the power; from 0.05 on it counts. All priors are
        scaled together. ``diagnosis`` says it in words: a prior that matters although the data
        speak contradicts them; one that matters where they are silent decides the result.
        """
        check_is_fitted(self, "posterior_")
        return tables.sensitivity_table(self.posterior_)

    def loo(self, X: Any, y: Any, draws: int = 2000, seed: int = 0) -> "Loo":
        """Leave-one-out cross-validation of the rows of the fit, without refitting (PSIS).

        One row is left out at a time, not a group: the row is predicted with the effects that
        the other rows of its group determine, drawn jointly with the parameters. How well new
        groups are predicted is another question; score held-out groups for that.

        Memory grows with draws x groups x effects; rows are taken in pieces. Returns the result
        of arviz-stats (``elpd``, ``se``, ``p``, ``elpd_i``, ``pareto_k``); printed, it says
        whether it can be trusted.
        """
        check_counts(optional=False, draws=draws)
        if draws < 100:
            raise DataError(f"draws={draws}: the tail of the weights needs 100 draws at least.")
        check_seed(seed=seed)
        from nghvi.posterior.loo import psis_loo

        observed = self._rows_of_the_fit(X, y)
        theta, effects = self.posterior_.joint(int(draws), int(seed))
        pieces = pointwise.by_rows(
            self.posterior_, pointwise.log_likelihood, theta, effects, observed
        )
        jacobian = np.log(self.posterior_.scaling.y_scale)
        return psis_loo(piece - jacobian for piece in pieces)

    def check_rows(
        self, X: Any, y: Any, draws: int = 1000, seed: int = 0, most: int | None = None
    ) -> pd.DataFrame:
        """What the model predicts for rows with a known response.

        Rows of the fit, recognised by their values in any order, are predicted without
        themselves, as in :meth:`loo`, so that the comparison does not flatter; other rows as they
        are, with a warning if most of them are rows of the fit.
        ``most``: that many rows at random, if there are more.

        Returns a row each, by position: ``observed`` (0 and 1 for classes), ``predicted`` mean and
        ``sd``, ``pit`` (the probability of a smaller response: uniform if predictions are
        calibrated; drawn within its step for classes and counts) and ``k_hat`` (nan for rows not of
        the fit).
        """
        check_counts(draws=draws, most=most)
        X, y, _, kept = self._complete(X, y)
        request = self._request(X, "known", draws, seed)
        values = self._scaled_response(y, request)
        origin = self._origin(request, values)
        rng = np.random.default_rng(seed)
        chosen = np.arange(len(values))
        if most is not None and len(chosen) > most:
            chosen = np.sort(rng.choice(len(chosen), most, replace=False))
        request = request._replace(x=request.x[chosen], codes=request.codes[chosen])
        values = values[chosen]
        judge = self._left_out if origin == OF_THE_FIT else self._predicted_at
        found = judge(request, values)
        scaling = self.posterior_.scaling
        table = {
            "observed": scaling.raw_response(values),
            "predicted": scaling.raw_response(found.mean),
            "sd": scaling.y_scale * found.sd,
            "pit": found.below + rng.random(len(values)) * (found.up_to - found.below),
            "k_hat": found.k_hat,
        }
        positions = chosen if kept is None else kept[chosen]
        checked = pd.DataFrame(table, index=pd.Index(positions, name="row"))
        checked.attrs[ORIGIN] = origin
        return checked

    def _left_out(self, request: Request, values: np.ndarray) -> LeftOut:
        theta, effects = self.posterior_.joint(request.draws, request.seed)
        observed = pointwise.Observed(request.x, request.codes, values)
        return leave_out(
            pointwise.by_rows(self.posterior_, pointwise.judged, theta, effects, observed)
        )

    def _predicted_at(self, request: Request, values: np.ndarray) -> LeftOut:
        posterior = self.posterior_
        found = predict(posterior, request)
        below, up_to = around(posterior, request, values)
        return LeftOut(found.mean, found.sd, below, up_to, np.full(len(values), np.nan))

    def to_arviz(self, draws: int = 1000, seed: int = 0, X: Any = None, y: Any = None) -> Any:
        """The posterior as a labelled DataTree for ArviZ.

        With the rows of the fit (X, y) it also holds ``posterior_predictive``,
        ``log_likelihood`` (given each draw's effects) and ``observed_data``.
        """
        check_is_fitted(self, "posterior_")
        check_counts(optional=False, draws=draws)
        check_seed(seed=seed)
        from nghvi.posterior.arviz import to_datatree

        observed = None if X is None else self._rows_of_the_fit(X, y)
        return to_datatree(self.posterior_, int(draws), int(seed), observed)

    def report(self, path: Any, X: Any = None, y: Any = None) -> pathlib.Path:
        """Write one HTML page about the fit that opens anywhere, without a network.

        ``X``, ``y``: the rows of the fit, or better held-out ones, for predictive checks,
        calibration and residuals; without them these parts are left out. Returns the path.
        """
        check_is_fitted(self, "posterior_")
        from nghvi.report.page import write_report

        X, y = (X, y) if X is None or y is None else self._complete(X, y)[:2]
        return write_report(self, path, X, y)

    def _rows_of_the_fit(self, X: Any, y: Any) -> pointwise.Observed:
        X, y = self._complete(X, y)[:2]
        request = self._request(X, "known", 1, 0)
        values = self._scaled_response(y, request)
        if reason := self._why_not_of_the_fit(request, values):
            raise DataError(f"{reason}: give the rows of the fit.")
        return pointwise.Observed(request.x, request.codes, values)

    def _why_not_of_the_fit(self, request: Request, values: np.ndarray) -> str | None:
        """What shows that rows are not those of the fit; None if they are, in any order."""
        given = self._fingerprint(request, values)
        if self._rows.same(given):
            return None
        if given.num_rows != self._rows.num_rows:
            fitted = sum(float(part.num_rows) for part in self.posterior_.parts)
            return f"X has {given.num_rows:g} rows, the fit had {fitted:g} (counts included)"
        groups = self.groups_
        known = list(map(len, groups.values())) if isinstance(groups, dict) else len(groups)
        if len(groups) and (request.codes >= known).any():
            return "X has groups that the fit did not have"
        return "X and y hold other values than the rows of the fit"

    def _origin(self, request: Request, values: np.ndarray) -> str:
        """Whether rows are those of the fit, new, or taken from both or a part of the fit's."""
        if self._why_not_of_the_fit(request, values) is None:
            return OF_THE_FIT
        if not self._rows.overlaps(self._fingerprint(request, values)):
            return NEW
        warn(
            "most of these rows are rows of the fit, but they are not all of it or not only it: "
            "they are predicted with themselves among the data, which flatters; give all rows of "
            "the fit (each is then predicted without itself), or held-out rows only."
        )
        return PARTLY

    def _fingerprint(self, request: Request, values: np.ndarray) -> Fingerprint:
        codes = request.codes if len(self.groups_) else np.zeros(len(values), int)
        return Fingerprint.of(request.x, values, codes)
