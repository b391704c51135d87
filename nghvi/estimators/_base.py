"""What both estimators share: reading data, building the model, fitting, reporting."""

import dataclasses
import time
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from nghvi._core.hosts import is_first
from nghvi._core.response import Response
from nghvi.data import Rows
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import (
    Column,
    DataError,
    Table,
    check_sizes,
    read_columns,
    read_counts,
)
from nghvi.estimators import tables
from nghvi.estimators.checks import Checks
from nghvi.estimators.choices import (
    check_counts,
    check_level,
    check_runs,
    check_seed,
    check_stops,
    choose_batch_groups,
    choose_scaling,
    choose_seed,
    with_known_settings,
)
from nghvi.estimators.columns import (
    add_intercept,
    rows_of_known_groups,
    warn_about_design,
    warn_about_meaning,
    warn_about_origin,
)
from nghvi.estimators.fit_checkpoints import Kept, with_checkpoints
from nghvi.estimators.linear_instead import (
    adopt,
    linear_instead,
    size_if_nothing,
    tell_of_nothing,
)
from nghvi.estimators.progress import FitProgress
from nghvi.estimators.spec import Structure, follow_data
from nghvi.families import family_of
from nghvi.infer import Inference, infer
from nghvi.methods import Method, published
from nghvi.models.mixed import MixedModel, prepare
from nghvi.models.published_start import published_start
from nghvi.networks import Identity
from nghvi.paper.methods import BASELINES
from nghvi.posterior.mixed import MixedPosterior
from nghvi.posterior.scaling import Scaling, moments
from nghvi.priors import HuangWand, Priors
from nghvi.recipes.run import Position
from nghvi.recipes.verdict import Cause, Status, Verdict
from nghvi.storage import save

PUBLISHED_SWEEPS, DEEP_SWEEPS = 5, 2


class MixedEstimator(Checks):
    """Base of the two estimators; not for use by itself."""

    @with_known_settings
    def __init__(
        self,
        group: Column | None = None,
        *,
        formula: str | None = None,
        hidden: tuple[int, ...] = (),
        activation: str = "relu",
        trunk: Any = None,
        skip: bool | str = "auto",
        random: str | list = "auto",
        response: Any = "auto",
        covariance: str = "auto",
        priors: Priors | None = None,
        rank: int | str = "auto",
        fit_intercept: bool = True,
        standardize: bool = True,
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
        self.covariance = covariance
        self.priors = priors
        self.rank = rank
        self.fit_intercept = fit_intercept
        self.standardize = standardize
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

    def _fit(
        self,
        X: Any,
        y: np.ndarray,
        table: Table,
        response: Response,
        counts: Any,
        validation: tuple[Any, Any] | None,
        kept: Kept | None,
    ) -> Self:
        begun = time.perf_counter()
        spec = self._spec
        self.n_features_in_ = table.values.shape[1] + (spec.group is not None)
        if self.formula_ is not None:
            self.feature_names_in_ = np.array(self.formula_.variables, dtype=object)
            self.n_features_in_ = len(self.feature_names_in_)
        elif table.named:
            self.feature_names_in_ = np.array(list(X.columns), dtype=object)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        weight = None if counts is None else read_counts(counts, len(y))
        check_sizes(np.abs(table.values).max(axis=0, initial=0.0), table.names)
        check_sizes(np.abs(y).max(keepdims=True), ["y"])
        structure = Structure.of(self, spec, table.names, response)
        deep, random, known_coef = spec.deep, structure.random, structure.known_coef
        x = add_intercept(table, spec.intercept)
        check_runs(self.method, devices=self.devices, checkpoint=kept)
        codes, self.groups_ = self._encode(table)
        structure = structure.without_fixed_columns(spec, x, codes)
        random = structure.random
        num_fixed = x.shape[1] - len(known_coef)
        warn_about_meaning(
            table,
            y,
            group=spec.group,
            num_inputs=num_fixed - spec.intercept,
            discrete=response.support.discrete,
        )
        if not deep:
            warn_about_design(x[:, :num_fixed], structure.features[:num_fixed], codes, random)
            if not self.standardize and isinstance(structure.priors.effects, HuangWand):
                warn_about_origin(x, structure.features, random)
        self._inputs = table.names
        self.input_quantiles_ = tables.quantile_table(table.values, table.names)
        if self.formula_ is not None:
            raw = read_columns(X, self.formula_.inputs)
            self._raw_quantiles, self._commonest = tables.typical_inputs(raw)
        observed = np.full(len(y), True) if weight is None else weight > 0
        response.check(y[observed], self._response_name())
        known = x[:, num_fixed:] @ known_coef
        response = response.suited(y[observed], known[observed], intercept=spec.intercept or deep)
        scaling = Scaling.none(x.shape[1])
        measured = response.typical(y - known)
        if self.standardize:
            scaling = choose_scaling(
                x,
                measured,
                weight,
                random,
                structure.priors,
                fit_intercept=spec.intercept,
                deep=deep,
            ).in_units_of_response(np.flatnonzero((*np.zeros(num_fixed), *known_coef)))
        scaled, response_scaled = scaling.apply(x), scaling.apply_response(y)
        self._rows = Fingerprint.of(scaled, response_scaled, codes, weight)
        if self.priors is None:
            of_y = (response.typical_predictor, 1.0)
            if measured is not None:
                of_y = moments(scaling.apply_response(measured), weight)
            num_rows = len(y) if weight is None else weight.sum()
            structure = follow_data(structure, spec, *moments(scaled, weight), of_y, num_rows)
        rows = Rows.from_arrays(scaled, response_scaled, codes, max(len(self.groups_), 1), weight)
        if self.method != "auto" and counts is not None:
            raise DataError("counts need method='auto': the other methods work row by row.")
        sums_suffice = response.conjugate and not deep
        self._batch_groups = choose_batch_groups(self.batch_groups, rows, self.method, sums_suffice)
        by_rule = published(self.method) is not None
        # Gibbs draws every observation's own number; its many cheap steps suit a network's.
        sweeps = PUBLISHED_SWEEPS if by_rule else DEEP_SWEEPS
        own_network = deep and self.method == "auto" and self._batch_groups is None
        gibbs = not response.conjugate and counts is None and (by_rule or own_network)
        model = structure.model(response, sweeps if gibbs else None)
        by_row = self.method != "auto" or self.latents == "sample"
        held_out = self._held_out(validation, scaling)
        data = rows if by_row or self._batch_groups else prepare(model, rows)
        if self.method == "auto" and self._batch_groups is None:
            model = model.suited(data)
        inference = self._infer(model, data, scaling, deep, held_out=held_out, kept=kept)
        self.posterior_ = MixedPosterior(inference, scaling, structure.named(self.groups_))
        self._publish(inference, time.perf_counter() - begun)
        size = size_if_nothing(self.posterior_)
        if size is None or inference.run.position is not None:
            return self
        if (linear := linear_instead(self, X, y, counts)) is not None:
            adopt(self, linear, size)
            self.seconds_ = time.perf_counter() - begun
            self.verdict_ = tables.verdict_sentence(self.posterior_)
        return self

    def resume(self) -> Self:
        """Continue a fit that was interrupted, as if it had not been."""
        check_is_fitted(self, "posterior_")
        before = self.posterior_.inference
        if before.run.position is None:
            return self
        begun = time.perf_counter()
        deep = not isinstance(self.posterior_.model.trunk, Identity)
        model, scaling = self.posterior_.model, self.posterior_.scaling
        inference = self._infer(model, before.data, scaling, deep, before.run.position)
        self.posterior_ = self.posterior_._replace(inference=inference)
        self._publish(inference, self.seconds_ + time.perf_counter() - begun)
        return self

    def _held_out(self, validation: tuple[Any, Any] | None, scaling: Scaling) -> Rows | None:
        """Rows that a stopping rule watches; rows of groups without training data are left out."""
        if validation is None:
            return None
        check_stops(self.method)
        table, y = self._read(*self._complete(*validation)[:2])
        table = tables.align(table, self._inputs) if table.named else table
        y = self._response_values(y)
        x = add_intercept(table, self._spec.intercept)
        x, y = scaling.apply(x), scaling.apply_response(y)
        return rows_of_known_groups(x, y, table.group, self.groups_)

    def _infer(
        self,
        model: MixedModel,
        data: Any,
        scaling: Scaling,
        deep: bool,
        resume: Position | None = None,
        held_out: Rows | None = None,
        kept: Kept | None = None,
    ) -> Inference:
        seed = self._seed()
        if self.method in BASELINES:
            given = {"steps": self.steps, "validation": held_out}
            chosen = {name: value for name, value in given.items() if value is not None}
            return BASELINES[self.method](model, data, seed=seed, **chosen)
        settings: dict[str, Any] = {
            "seed": seed,
            "family": family_of(self.rank),
            "method": self.method,
            "steps": self.steps,
            "n_starts": self.n_starts,
            "latents": self.latents,
            "importance": self.importance,
            "resume": resume,
            "batch_groups": self._batch_groups,
            "devices": self.devices,
        }
        if kept is not None:
            settings |= with_checkpoints(kept, self, model, data)
        if self.method != "auto":
            settings["start"] = published_start(model, data, seed)
        if not (self.verbose and is_first()):
            return infer(model, data, **settings)
        with FitProgress(scaling.log_jacobian(data.num_rows)) as progress:
            return infer(model, data, progress=progress, **settings)

    def _publish(self, inference: Inference, seconds: float) -> None:
        jacobian = self.posterior_.scaling.log_jacobian(inference.data.num_rows)
        self.elbo_ = inference.elbo - jacobian
        self.elbo_se_ = inference.elbo_se
        self.log_evidence_ = inference.log_evidence - jacobian
        self.k_hat_ = inference.k_hat
        if (cause := self._why_unusable()) is not None:
            inference = dataclasses.replace(inference, verdict=Verdict(Status.FAILED, cause))
            self.posterior_ = self.posterior_._replace(inference=inference)
        if (size := size_if_nothing(self.posterior_)) is not None:
            tell_of_nothing(self, size)
        self.converged_ = inference.converged
        self.verdict_ = tables.verdict_sentence(self.posterior_)
        self.trace_ = tables.trace_table(inference, jacobian)
        self.n_iter_ = max(inference.run.steps, 1)
        self.seconds_ = seconds

    def _why_unusable(self) -> Cause | None:
        """What makes a result useless although the optimiser is satisfied."""
        if self.posterior_.features_are_constant():
            return Cause.CONSTANT_FEATURES
        good = self.posterior_.inference.converged
        return Cause.NOT_FINITE if good and not tables.is_finite(self.posterior_) else None

    def _encode(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        if table.group is None:
            return np.zeros(len(table.values), int), np.array([])
        levels, codes = np.unique(table.group, return_inverse=True)
        if len(levels) == 1:
            raise DataError(
                f"group column {self._spec.group!r} has only one level ({str(levels[0])!r}): "
                "effects cannot vary; leave the group out (group=None, or no group term in a "
                "formula)."
            )
        return codes, levels

    @property
    def group_(self) -> Column | None:
        """The group column of the fit, which a formula may have named; None for no groups."""
        check_is_fitted(self, "posterior_")
        return self._spec.group

    def _seed(self) -> int:
        return choose_seed(self.random_state)

    def posterior_draws(self, draws: int = 2000, seed: int = 0) -> dict[str, np.ndarray]:
        """Joint posterior draws on the scale of the data.

        Returns ``coef`` (S, q), intercept first; ``effects_cov`` (S, r, r); ``effects`` (S, K, r),
        groups in the order of ``groups_``; and (S,) each, ``noise_var`` of a Gaussian response or
        ``noise_scale`` and ``degrees`` of a Student-t.
        """
        check_is_fitted(self, "posterior_")
        check_counts(optional=False, draws=draws)
        check_seed(seed=seed)
        return self.posterior_.draws(int(draws), int(seed))

    def summary(self, level: float = tables.LEVEL) -> pd.DataFrame:
        """Posterior mean, sd, median and central interval of every parameter by name.

        ``level``: probability of the interval, whose ends are columns named by their percentage:
        ``q5`` and ``q95``, or ``q2.5`` and ``q97.5`` at 0.95. Effects have their sds and, beside
        them, their correlations; :meth:`effects_covariance` has variances and covariances.
        """
        check_is_fitted(self, "posterior_")
        check_level(level)
        return tables.summary_table(self.posterior_, level)

    def ratios(self, level: float = tables.LEVEL) -> pd.DataFrame:
        """Rate or odds ratios: the exponential of every coefficient; columns as in :meth:`summary`.

        What the mean, or the odds, are multiplied by where an input is larger by 1.
        """
        check_is_fitted(self, "posterior_")
        check_level(level)
        response = self.posterior_.model.response
        if response.ratio is None or self._spec.deep:
            kind = "a network" if self._spec.deep else f"the {response.name} response"
            raise DataError(f"coefficients of {kind} are no ratios; summary() has them.")
        return tables.ratio_table(self.posterior_, level)

    def effects_covariance(self, level: float = tables.LEVEL) -> pd.DataFrame:
        """The covariance matrix of the effects, one row per pair; columns as in :meth:`summary`."""
        check_is_fitted(self, "posterior_")
        check_level(level)
        return tables.covariance_table(self.posterior_, level)

    def group_effects(self) -> pd.DataFrame:
        """Posterior mean and sd of every group's effects, one row per group."""
        check_is_fitted(self, "posterior_")
        return tables.effects_table(self.posterior_)

    def save(self, path: Any) -> None:
        """Write the fitted estimator to a file for ``nghvi.load``."""
        check_is_fitted(self, "posterior_")
        save(self, path)
