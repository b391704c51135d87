"""What both estimators have in common: settings, the fit, and what can be asked of it."""

import copy
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd

from nghvi._sklearn import Estimator, check_is_fitted
from nghvi._typing import Place
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import Column, DataError, Group, Tabular, Vector
from nghvi.data.source import GroupedDataset, Groups, Source
from nghvi.estimators import checks, choices, tables
from nghvi.estimators.assembly import assemble
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
    """Base class of the two estimators; not meant to be used by itself."""

    usual_response: ClassVar[str]
    """What ``response="auto"`` means, unless the data say otherwise."""
    of_classes: ClassVar[bool]
    """Whether the response names classes."""
    posterior_: MixedPosterior
    reader_: RowReader
    """Reads further rows as the fit read its own."""
    input_quantiles_: pd.DataFrame
    n_features_in_: int
    _rows: Fingerprint
    """Fingerprint of the rows that the posterior is conditioned on."""

    @choices.with_known_settings
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
        X: Tabular | GroupedDataset,
        y: Vector | None = None,
        counts: Vector | None = None,
        validation: tuple[Tabular, Vector] | None = None,
        checkpoint: Place | None = None,
        every: float = EVERY,
    ) -> Self:
        """Fit the model and return the estimator itself.

        ``X`` is a data frame or array that includes the group column, ``y`` the response: numbers,
        or labels of classes. With a formula, y is its left-hand side and may be left out; other
        values raise an error. X may also be a :class:`nghvi.GroupedDataset`, with the name of its
        response column as y. ``counts`` says how often each row was observed, if not once; binomial
        data may be given as two rows with the numbers of successes and failures. ``validation`` is
        a pair (X, y) of held-out rows for methods that stop by them (``method="nagvac"``).

        ``checkpoint`` is a directory in which the state of the fit is saved, and ``every`` the
        seconds between two saves. If the process is killed, the same call continues from there,
        bit for bit.
        """
        begun = time.perf_counter()
        kept = Kept.of(checkpoint, every)
        usual = self._usual_response(X, y)
        response = choices.choose_response(self.response, usual, classes=self.of_classes)
        if isinstance(X, GroupedDataset):
            choices.check_on_disk(self, response, y, counts if validation is None else validation)
        reader, source = read_to_fit(self, X, y, counts, response)
        if response.classes:
            labels = () if reader.classes is None else reader.classes
            response = response.of_classes(tuple(map(str, labels)))
        self._describe(reader, source)
        choices.check_runs(self.method, devices=self.devices, checkpoint=kept)
        made = assemble(self, reader.spec, source, response)
        self._rows, self._batch_groups = made.rows, made.batch_groups
        held_out = None
        if validation is not None:
            choices.check_stops(self.method)
            held_out = read_held_out(self, reader, validation, made.scaling, source.groups)
        settings = (made.model, made.data, made.scaling, made.batch_groups)
        inference = inferred(self, *settings, held_out=held_out, kept=kept)
        self._publish(MixedPosterior(inference, made.scaling, made.names))
        size = size_if_nothing(self.posterior_)
        if size is not None and inference.run.position is None:
            adopt_linear(self, size, X, y, counts)
        self.seconds_ = time.perf_counter() - begun
        return self

    def _usual_response(self, X: Tabular | GroupedDataset, y: Vector | None) -> str:
        """Return the name of the response that "auto" stands for with these data."""
        return self.usual_response

    def _describe(self, reader: RowReader, source: Source) -> None:
        """Set the attributes that describe the data of the fit to scikit-learn and curves."""
        self.reader_, self.n_features_in_ = reader, reader.num_columns
        if reader.columns is not None:
            self.feature_names_in_ = np.array(reader.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        self.input_quantiles_ = tables.quantile_table(source.sample.x, source.inputs)

    def resume(self) -> Self:
        """Continue a fit that was interrupted; the result is as if it had not been."""
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
        if "_spec" in state:  # from a version in which the parts of the reader were attributes
            self.reader_ = RowReader.gathered(self)

    @property
    def _fitted(self) -> MixedPosterior:
        """The posterior; an error if there is none yet."""
        check_is_fitted(self)
        return self.posterior_

    @property
    def formula_(self) -> Design | None:
        """What the formula learnt from the data; None without a formula."""
        return self.reader_.design

    @property
    def groups_(self) -> Groups:
        """Labels of the groups; a dictionary by factor if there are several factors."""
        return self.posterior_.names.labels

    @property
    def group_(self) -> Group:
        """The group column of the fit; a tuple for several factors, None without groups."""
        check_is_fitted(self)
        return self.reader_.spec.group

    @property
    def group_columns_(self) -> tuple:
        """The columns of the data that hold group labels."""
        check_is_fitted(self)
        return self.reader_.group_columns

    @property
    def k_hat_meaning_(self) -> str:
        """What ``k_hat_`` says about the fit, in words."""
        return tables.k_hat_meaning(tables.draws_of(self._fitted))

    @property
    def status_(self) -> str:
        """How the fit ended, as one word: ``"converged"``, ``"settled"``, ``"not_converged"``,
        ``"not_settled"``, ``"interrupted"`` or ``"failed"``. ``verdict_`` says it in a sentence."""
        return self._fitted.inference.verdict.status.value

    def posterior_draws(self, draws: int = 2000, seed: int = 0) -> dict[str, np.ndarray]:
        """Return joint posterior draws by name, on the scale of the data.

        ``draws`` is their number S, ``seed`` that of the random numbers. There are ``coef``
        (S, q), intercept first; ``effects_cov`` (S, r, r); ``effects`` (S, K, r), with groups in
        the order of ``groups_``; and the response's own parameters, such as ``noise_var`` (S,) of a
        Gaussian or ``noise_scale`` and ``degrees`` of a Student-t. With several grouping factors
        each has its own, such as ``effects_cov[month]`` and ``effects[month]``.
        """
        choices.check_draws(draws, seed)
        return self._fitted.draws(int(draws), int(seed))

    def summary(self, level: float = tables.LEVEL) -> pd.DataFrame:
        """Return posterior mean, sd, median and central interval of every parameter by name.

        ``level`` is the probability of the interval, whose ends are columns named by percentage:
        ``q5`` and ``q95`` at 0.9, ``q2.5`` and ``q97.5`` at 0.95. Effects are shown by their sds
        and correlations; :meth:`effects_covariance` has their variances and covariances.
        """
        return tables.summary_table(self._fitted, level)

    def ratios(self, level: float = tables.LEVEL) -> pd.DataFrame:
        """Return rate or odds ratios, exponentials of the coefficients, as :meth:`summary` does.

        A ratio is the factor by which the mean, or the odds, change if an input increases by 1.
        """
        return tables.ratio_table(self._fitted, level)

    def effects_covariance(self, level: float = tables.LEVEL) -> pd.DataFrame:
        """Return variances and covariances of the effects, one per row, like :meth:`summary`."""
        return tables.covariance_table(self._fitted, level)

    def group_effects(self, factor: Column | None = None) -> pd.DataFrame:
        """Return posterior mean and sd of every group's effects, one row per group.

        ``factor`` names the grouping factor; it is needed only if there are several.
        """
        check_is_fitted(self)
        spec = self.reader_.spec
        if factor is not None and not spec.several and str(factor) != str(spec.group):
            raise DataError(f"factor={factor!r}: the only grouping factor is {spec.group!r}.")
        return tables.effects_table(self.posterior_, factor)

    def prior_summary(self) -> pd.DataFrame:
        """Return every prior as text, the scale it is stated on, and its range in raw units.

        There is one row per parameter of :meth:`summary` and, for a network, per layer of weights.
        ``q2.5``, ``q50`` and ``q97.5`` are quantiles of draws from the prior, mapped to the units
        of the data like those of the posterior.
        """
        return tables.prior_table(self._fitted, self.standardize)

    def prior_sensitivity(self) -> pd.DataFrame:
        """Return how much the posterior of each parameter depends on the priors and on the data.

        Prior and likelihood are raised to powers near one, and the draws reweighted (power scaling;
        Kallioinen, Paananen, Bürkner and Vehtari, 2024). ``prior`` and ``likelihood`` are the
        changes of the posterior for a doubling of the power; 0.05 or more matters. All priors are
        scaled together. ``diagnosis`` puts it in words: a prior that matters may contradict
        informative data, and decides the result if the data say little.
        """
        return tables.sensitivity_table(self._fitted)

    def loo(self, X: Tabular, y: Vector, draws: int = 2000, seed: int = 0) -> "Loo":
        """Return leave-one-out cross-validation of the rows of the fit, without refitting (PSIS).

        ``X`` and ``y`` are all rows of the fit. One row is left out at a time, not a group: to see
        how well new groups are predicted, score held-out groups instead. With a Gaussian response
        what the row itself said is taken back exactly given every draw. ``draws`` and ``seed`` are
        those of the posterior draws; tables of more than 50,000 rows get fewer, at least 400.

        The result is that of arviz-stats (``elpd``, ``se``, ``p``, ``elpd_i``, ``pareto_k``), and
        says in print whether it is reliable.
        """
        choices.check_draws(draws, seed)
        checks.check_tail(draws)
        rows = self._rows_of_the_fit(X, y)
        return checks.leave_one_out(self.posterior_, rows, int(draws), int(seed))

    def check_rows(
        self, X: Tabular, y: Vector, draws: int = 1000, seed: int = 0, most: int | None = None
    ) -> pd.DataFrame:
        """Compare observed responses ``y`` of the rows ``X`` with their predictions.

        The rows of the fit, recognised by their values in any order, are each predicted without
        themselves, as in :meth:`loo`, which keeps the comparison fair. Other rows are predicted as
        they are, with a warning if most of them are rows of the fit. ``draws`` and ``seed`` are
        those of the posterior draws; ``most`` limits the result to that many random rows.

        Returns one row per row of X, by position: ``observed`` (for classes the position in
        ``classes_``), ``predicted`` mean and ``sd``, ``pit`` (the predictive probability of no
        larger response, uniform if calibrated; drawn within its step for classes and counts) and
        ``k_hat`` (NaN for rows that are not of the fit).
        """
        choices.check_counts(draws=draws, most=most)
        complete = complete_rows(self, X, y)
        observed = self._observed(complete.data, complete.y, draws=draws, seed=seed)
        checked = checks.checked_rows(self.posterior_, self._rows, *observed, most)
        if complete.kept is not None:
            checked.index = pd.Index(complete.kept[checked.index], name=checked.index.name)
        return checked

    def to_arviz(
        self, draws: int = 1000, seed: int = 0, X: Tabular | None = None, y: Vector | None = None
    ) -> Any:
        """Return ``draws`` posterior draws as a labelled DataTree for ArviZ.

        With the rows of the fit, ``X`` and ``y``, it also holds ``posterior_predictive``,
        ``log_likelihood`` (given the effects of each draw) and ``observed_data``.
        """
        posterior = self._fitted
        choices.check_draws(draws, seed)
        from nghvi.posterior.arviz import to_datatree

        observed = None if X is None else self._rows_of_the_fit(X, y)
        return to_datatree(posterior, int(draws), int(seed), observed)

    def report(self, path: Place, X: Tabular | None = None, y: Vector | None = None) -> Path:
        """Write an HTML page about the fit to ``path``, which needs no internet; return the path.

        ``X`` and ``y`` are rows for predictive checks, calibration and residuals: those of the fit
        or, better, held-out ones. Without them these parts are left out.
        """
        check_is_fitted(self)
        from nghvi.report.page import write_report

        X, y = (X, y) if X is None or y is None else complete_rows(self, X, y)[:2]
        return write_report(self, path, X, y)

    def sample_predictive(
        self, X: Tabular, draws: int = 1000, seed: int = 0, which: str = "known"
    ) -> np.ndarray:
        """Draw jointly from the posterior predictive distribution; the shape is (draws, rows).

        Within a draw, rows of the same group share its effects, even if the group is new. A
        classifier's draws are positions in ``classes_``. Arguments are as in ``predict``.
        """
        request = self._request(X, which, draws, seed)
        return raw_responses(self.posterior_, request, predictive.sample(self.posterior_, request))

    def log_score(
        self, X: Tabular, y: Vector, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> float:
        """Return the mean of :meth:`log_densities`; larger is better."""
        return float(np.mean(self.log_densities(X, y, which, draws, seed)))

    def log_densities(
        self, X: Tabular, y: Vector, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> np.ndarray:
        """Return the log predictive density of each response ``y``, or log probability if censored.

        The other arguments are as in ``predict``.
        """
        request, values = self._observed(X, y, which, draws, seed)
        found = predictive.predict(self.posterior_, request, values)
        return found.log_density - self.posterior_.log_units(request.x, values)

    def start_distances(
        self, X: Tabular, which: str = "known", draws: int = 500
    ) -> np.ndarray | None:
        """Return how far the means of a network's two starts are apart, in posterior sds.

        The arguments are as in ``predict``. None means that the result is that of one start.
        """
        return predictive.distance_of_starts(self.posterior_, self._request(X, which, draws, 0))

    def add_groups(self, X: Tabular, y: Vector) -> Self:
        """Return a copy that also knows the new groups in X, conditioned on their rows and y.

        Nothing is refitted: the posterior of the global parameters stays as it is. With several
        grouping factors every row needs a new level of at least one of them; effects of the known
        levels in these rows are conditioned on them as well.
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

    def save(self, path: Place) -> None:
        """Write the fitted estimator to the file ``path``, which ``nghvi.load`` reads."""
        check_is_fitted(self)
        save(self, path)

    def _request(self, X: Tabular, which: str, draws: int, seed: int) -> predictive.Request:
        posterior = self._fitted
        return self.reader_.request(posterior, X, which, draws, seed)

    def _observed(
        self, X: Tabular, y: Vector | None, which: str = "known", draws: int = 1, seed: int = 0
    ) -> tuple[predictive.Request, np.ndarray]:
        posterior = self._fitted
        return self.reader_.observed(posterior, X, y, which, draws, seed)

    def _rows_of_the_fit(self, X: Tabular, y: Vector | None) -> Observed:
        X, y = complete_rows(self, X, y)[:2]
        return checks.rows_of_the_fit(self.posterior_, self._rows, *self._observed(X, y))
