"""What both estimators are: settings, a fit, and what the fit can be asked."""

import copy
import pathlib
import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd

from nghvi._sklearn import Estimator, check_is_fitted
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import Column, DataError, Group
from nghvi.data.source import GroupedDataset, Groups, Source
from nghvi.estimators import checks, tables
from nghvi.estimators.assembly import assemble
from nghvi.estimators.choices import (
    check_counts,
    check_level,
    check_on_disk,
    check_runs,
    check_seed,
    check_stops,
    choose_response,
    with_known_settings,
)
from nghvi.estimators.fitting import EVERY, Kept, adopt_linear, inferred, judged, size_if_nothing
from nghvi.estimators.reader import (
    DRAWS,
    RowReader,
    complete_rows,
    raw_responses,
    read_held_out,
    read_to_fit,
)
from nghvi.formula import Design
from nghvi.methods import Method
from nghvi.posterior import predictive
from nghvi.posterior.mixed_posterior import MixedPosterior
from nghvi.posterior.pointwise import Observed
from nghvi.priors import Priors
from nghvi.storage import save

if TYPE_CHECKING:
    from nghvi.posterior.arviz import Loo


class MixedEstimator(Estimator):
    """Base of the two estimators; not for use by itself."""

    usual_response: ClassVar[str]
    """What ``response="auto"`` means."""
    of_classes: ClassVar[bool]
    """Whether the response names classes."""
    posterior_: MixedPosterior
    reader_: RowReader
    """How new rows are read."""
    input_quantiles_: pd.DataFrame
    n_features_in_: int
    _rows: Fingerprint
    """Of the rows whose posterior this is."""

    @with_known_settings
    def __init__(
        self,
        group: Any = None,
        *,
        formula: str | None = None,
        hidden: tuple[int, ...] = (),
        activation: str = "relu",
        trunk: Any = None,
        skip: bool | str = "auto",
        random: Any = "auto",
        response: Any = "auto",
        trials: Column | float | None = None,
        exposure: Column | float | None = None,
        censored: tuple[Any, Any] | None = None,
        weights: Column | float | None = None,
        covariance: str = "auto",
        priors: Priors | None = None,
        rank: int | str = "auto",
        fit_intercept: bool = True,
        standardize: bool = True,
        scaling: str = "auto",
        missing: str = "error",
        method: Method = "auto",
        steps: int | None = None,
        n_starts: int | str = "auto",
        latents: str = "auto",
        importance: bool = True,
        batch_groups: int | str | None = None,
        random_state: Any = None,
        devices: int | str | None = None,
        verbose: bool = False,
    ) -> None:
        self.group = group
        self.formula = formula
        self.hidden = hidden
        self.activation = activation
        self.trunk = trunk
        self.skip = skip
        self.random = random
        self.response = response
        self.trials = trials
        self.exposure = exposure
        self.censored = censored
        self.weights = weights
        self.covariance = covariance
        self.priors = priors
        self.rank = rank
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.scaling = scaling
        self.missing = missing
        self.method = method
        self.steps = steps
        self.n_starts = n_starts
        self.latents = latents
        self.importance = importance
        self.batch_groups = batch_groups
        self.random_state = random_state
        self.devices = devices
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        counts: Any = None,
        validation: Any = None,
        checkpoint: Any = None,
        every: float = EVERY,
    ) -> Self:
        """Fit to a table X, group column included, and a response y: numbers, or labels of classes.

        X may be a :class:`nghvi.GroupedDataset`, with the name of its response column as y. With
        a formula y is its left side and may be left out; values that differ from it are refused.
        ``counts``: how often each row was observed, if not once. Binomial data are two rows per
        observation, with successes and failures as counts. ``validation``: a pair (X, y) of
        held-out rows for methods that stop by them (``method="nagvac"``).

        ``checkpoint``: a directory to keep the state of the fit in, ``every`` so many seconds. The
        same call made again, after the process was killed say, goes on from there bit for bit.
        """
        begun = time.perf_counter()
        kept = Kept.of(checkpoint, every)
        response = choose_response(self.response, self.usual_response, classes=self.of_classes)
        if isinstance(X, GroupedDataset):
            check_on_disk(self, response, y, counts if validation is None else validation)
        reader, source = read_to_fit(self, X, y, counts, response)
        if response.classes:
            labels = () if reader.classes is None else reader.classes
            response = response.of_classes(tuple(map(str, labels)))
        self._describe(reader, source)
        check_runs(self.method, devices=self.devices, checkpoint=kept)
        made = assemble(self, reader.spec, source, response)
        self._rows, self._batch_groups = made.rows, made.batch_groups
        held_out = None
        if validation is not None:
            check_stops(self.method)
            held_out = read_held_out(self, reader, validation, made.scaling, source.groups)
        settings = (made.model, made.data, made.scaling, made.batch_groups)
        inference = inferred(self, *settings, held_out=held_out, kept=kept)
        self._publish(MixedPosterior(inference, made.scaling, made.names))
        size = size_if_nothing(self.posterior_)
        if size is not None and inference.run.position is None:
            adopt_linear(self, size, X, y, counts)
        self.seconds_ = time.perf_counter() - begun
        return self

    def _describe(self, reader: RowReader, source: Source) -> None:
        """What scikit-learn and curves are told about the data of the fit."""
        self.reader_, self.n_features_in_ = reader, reader.num_columns
        if reader.columns is not None:
            self.feature_names_in_ = np.array(reader.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        self.input_quantiles_ = tables.quantile_table(source.sample.x, source.inputs)

    def resume(self) -> Self:
        """Continue a fit that was interrupted, as if it had not been."""
        check_is_fitted(self)
        before, scaling = self.posterior_.inference, self.posterior_.scaling
        if before.run.position is None:
            return self
        begun = time.perf_counter()
        settings = (self.posterior_.model, before.data, scaling, self._batch_groups)
        inference = inferred(self, *settings, resume=before.run.position)
        self._publish(self.posterior_._replace(inference=inference))
        self.seconds_ += time.perf_counter() - begun
        return self

    def _publish(self, posterior: MixedPosterior) -> None:
        self.posterior_ = judged(posterior)
        inference = self.posterior_.inference
        jacobian = posterior.scaling.log_jacobian(inference.data.num_rows)
        self.elbo_ = inference.elbo - jacobian
        self.elbo_se_ = inference.elbo_se
        self.log_evidence_ = inference.log_evidence - jacobian
        self.k_hat_ = inference.k_hat
        self.converged_ = inference.converged
        self.verdict_ = tables.verdict_sentence(self.posterior_)
        self.trace_ = tables.trace_table(inference, jacobian)
        self.n_iter_ = max(inference.run.steps, 1)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_spec" in state:  # of a version in which the parts of the reader were attributes
            self.reader_ = RowReader.gathered(self)

    @property
    def formula_(self) -> Design | None:
        """What the formula has learnt from the data; None without a formula."""
        return self.reader_.design

    @property
    def groups_(self) -> Groups:
        """Labels of the groups, by factor where there are several."""
        return self.posterior_.names.labels

    @property
    def group_(self) -> Group:
        """The group column of the fit, which a formula may have named; None for no groups.

        Of several factors a tuple.
        """
        check_is_fitted(self)
        return self.reader_.spec.group

    @property
    def group_columns_(self) -> tuple:
        """The columns of the data that say which rows belong together."""
        check_is_fitted(self)
        return self.reader_.group_columns

    @property
    def k_hat_meaning_(self) -> str:
        """What ``k_hat_`` says about the fit, in words."""
        check_is_fitted(self)
        return tables.k_hat_sentence(self.posterior_)

    @property
    def status_(self) -> str:
        """How the fit ended, for programs: ``"converged"``, ``"settled"``, ``"not_converged"``,
        ``"not_settled"``, ``"interrupted"`` or ``"failed"``; ``verdict_`` says it in words."""
        check_is_fitted(self)
        return self.posterior_.inference.verdict.status.value

    def posterior_draws(self, draws: int = 2000, seed: int = 0) -> dict[str, np.ndarray]:
        """Joint posterior draws on the scale of the data.

        Returns ``coef`` (S, q), intercept first; ``effects_cov`` (S, r, r); ``effects`` (S, K, r),
        groups in the order of ``groups_``; and (S,) each, ``noise_var`` of a Gaussian response or
        ``noise_scale`` and ``degrees`` of a Student-t. Of several grouping factors
        ``effects_cov[month]`` and ``effects[month]`` each.
        """
        check_is_fitted(self)
        check_counts(optional=False, draws=draws)
        check_seed(seed=seed)
        return self.posterior_.draws(int(draws), int(seed))

    def summary(self, level: float = tables.LEVEL) -> pd.DataFrame:
        """Posterior mean, sd, median and central interval of every parameter by name.

        ``level``: probability of the interval, whose ends are columns named by their percentage:
        ``q5`` and ``q95``, or ``q2.5`` and ``q97.5`` at 0.95. Effects have their sds and, beside
        them, their correlations; :meth:`effects_covariance` has variances and covariances.
        """
        check_is_fitted(self)
        check_level(level)
        return tables.summary_table(self.posterior_, level)

    def ratios(self, level: float = tables.LEVEL) -> pd.DataFrame:
        """Rate or odds ratios: the exponential of every coefficient; columns as in :meth:`summary`.

        What the mean, or the odds, are multiplied by where an input is larger by 1.
        """
        check_is_fitted(self)
        check_level(level)
        return tables.ratio_table(self.posterior_, level)

    def effects_covariance(self, level: float = tables.LEVEL) -> pd.DataFrame:
        """The covariance matrix of the effects, one row per pair; columns as in :meth:`summary`."""
        check_is_fitted(self)
        check_level(level)
        return tables.covariance_table(self.posterior_, level)

    def group_effects(self, factor: Any = None) -> pd.DataFrame:
        """Posterior mean and sd of every group's effects, one row per group.

        ``factor``: which one's, where there are several grouping factors.
        """
        check_is_fitted(self)
        spec = self.reader_.spec
        if factor is not None and not spec.terms and str(factor) != str(spec.group):
            raise DataError(f"factor={factor!r}: the grouping factor is {spec.group!r}.")
        return tables.effects_table(self.posterior_, factor)

    def prior_summary(self) -> pd.DataFrame:
        """Every prior in words, the scale it is stated on, and its 95 % range in raw units.

        One row per parameter of :meth:`summary`, for a network also one per layer of weights.
        ``q2.5``, ``q50`` and ``q97.5`` are quantiles of draws from the prior, mapped to the units
        of the data as the posterior is.
        """
        check_is_fitted(self)
        return tables.prior_table(self.posterior_, self.standardize)

    def prior_sensitivity(self) -> pd.DataFrame:
        """How much the posterior of each parameter depends on the priors, and on the data.

        Prior and likelihood are raised to powers near one, and the draws weighted anew (power
        scaling; Kallioinen, Paananen, Bürkner and Vehtari, 2024). ``prior``, ``likelihood``:
        change of the posterior for a doubling of the power; from 0.05 on it counts. All priors are
        scaled together. ``diagnosis`` says it in words: a prior that matters although the data
        speak contradicts them; one that matters where they are silent decides the result.
        """
        check_is_fitted(self)
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
        checks.check_tail(draws)
        check_seed(seed=seed)
        rows = self._rows_of_the_fit(X, y)
        return checks.leave_one_out(self.posterior_, rows, int(draws), int(seed))

    def check_rows(
        self, X: Any, y: Any, draws: int = 1000, seed: int = 0, most: int | None = None
    ) -> pd.DataFrame:
        """What the model predicts for rows with a known response.

        Rows of the fit, recognised by their values in any order, are predicted without
        themselves, as in :meth:`loo`, so that the comparison does not flatter; other rows as they
        are, with a warning if most of them are rows of the fit.
        ``most``: that many rows at random, if there are more.

        Returns one row per row of X, by position: ``observed`` (0 and 1 for classes), ``predicted``
        mean and ``sd``, ``pit`` (the probability of a smaller response: uniform if predictions are
        calibrated; drawn within its step for classes and counts) and ``k_hat`` (nan for rows not of
        the fit).
        """
        check_counts(draws=draws, most=most)
        X, y, _, kept = complete_rows(self, X, y)
        observed = self._observed(X, y, draws=draws, seed=seed)
        checked = checks.checked_rows(self.posterior_, self._rows, *observed, most)
        if kept is not None:
            checked.index = pd.Index(kept[checked.index], name=checked.index.name)
        return checked

    def to_arviz(self, draws: int = 1000, seed: int = 0, X: Any = None, y: Any = None) -> Any:
        """The posterior as a labelled DataTree for ArviZ.

        With the rows of the fit (X, y) it also holds ``posterior_predictive``,
        ``log_likelihood`` (given each draw's effects) and ``observed_data``.
        """
        check_is_fitted(self)
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
        check_is_fitted(self)
        from nghvi.report.page import write_report

        X, y = (X, y) if X is None or y is None else complete_rows(self, X, y)[:2]
        return write_report(self, path, X, y)

    def sample_predictive(
        self, X: Any, draws: int = 1000, seed: int = 0, which: str = "known"
    ) -> np.ndarray:
        """Joint draws from the posterior predictive distribution, shape (draws, rows).

        Within a draw, rows of one group share its effects, also if the group is new. A
        classifier's draws are 0 and 1, for the first and the second of its ``classes_``.
        """
        request = self._request(X, which, draws, seed)
        return raw_responses(self.posterior_, request, predictive.sample(self.posterior_, request))

    def log_score(
        self, X: Any, y: Any, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> float:
        """Mean log predictive density of y; larger is better."""
        return float(np.mean(self.log_densities(X, y, which, draws, seed)))

    def log_densities(
        self, X: Any, y: Any, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> np.ndarray:
        """Log predictive density of each response, log probability of one that is censored."""
        request, values = self._observed(X, y, which, draws, seed)
        found = predictive.predict(self.posterior_, request, values)
        return found.log_density - self.posterior_.log_units(request.x, values)

    def add_groups(self, X: Any, y: Any) -> Self:
        """A copy that also knows the groups in X, conditioned on their rows; nothing is refitted.

        The posterior of the global parameters stays as it is.
        """
        check_is_fitted(self)
        table, scaling = self.reader_.table(X), self.posterior_.scaling
        x = self.reader_.scaled(table, scaling)
        values = self.reader_.responses(self.posterior_, x, y)
        extended = copy.copy(self)
        extended.posterior_, codes = self.posterior_.with_groups(
            x, values, table.group, self.group_
        )
        added = Fingerprint.of(x, values, codes)
        extended._rows = Fingerprint.joined([self._rows, added])
        return extended

    def save(self, path: Any) -> None:
        """Write the fitted estimator to a file for ``nghvi.load``."""
        check_is_fitted(self)
        save(self, path)

    def _request(self, X: Any, which: str, draws: int, seed: int) -> predictive.Request:
        check_is_fitted(self)
        return self.reader_.request(self.posterior_, X, which, draws, seed)

    def _observed(
        self, X: Any, y: Any, which: str = "known", draws: int = 1, seed: int = 0
    ) -> tuple[predictive.Request, np.ndarray]:
        check_is_fitted(self)
        return self.reader_.observed(self.posterior_, X, y, which, draws, seed)

    def _rows_of_the_fit(self, X: Any, y: Any) -> Observed:
        X, y = complete_rows(self, X, y)[:2]
        return checks.rows_of_the_fit(self.posterior_, self._rows, *self._observed(X, y))
