"""What both estimators share: reading data, building the model, fitting, reporting."""

import dataclasses
import time
from typing import Any, ClassVar, Self, cast

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from nghvi._core.hosts import is_first
from nghvi._core.response import Response
from nghvi.data import Rows
from nghvi.data.frame import Column, DataError, Group, column_names, read_columns, stated_order
from nghvi.data.scaling import Scaling, add_intercept
from nghvi.data.source import GroupedDataset, InMemory, OnDisk, Source
from nghvi.estimators import tables
from nghvi.estimators.assembly import assemble
from nghvi.estimators.checks import Checks
from nghvi.estimators.choices import (
    check_counts,
    check_level,
    check_on_disk,
    check_runs,
    check_seed,
    check_stops,
    choose_response,
    choose_seed,
    with_known_settings,
)
from nghvi.estimators.columns import rows_of_known_groups
from nghvi.estimators.fit_checkpoints import EVERY, Kept, with_checkpoints
from nghvi.estimators.linear_instead import adopt_linear, size_if_nothing, tell_of_nothing
from nghvi.estimators.progress import FitProgress
from nghvi.families import family_of
from nghvi.formula import parse
from nghvi.inference import Inference, infer
from nghvi.methods import Method
from nghvi.models.mixed import MixedModel
from nghvi.paper.methods import BASELINES
from nghvi.paper.methods.published_start import published_start
from nghvi.posterior.mixed import MixedPosterior
from nghvi.priors import Priors
from nghvi.recipes.run import Position
from nghvi.recipes.verdict import Cause, Status, Verdict
from nghvi.storage import save


class MixedEstimator(Checks):
    """Base of the two estimators; not for use by itself."""

    usual_response: ClassVar[str]
    """What ``response="auto"`` means."""
    of_classes: ClassVar[bool]
    """Whether the response names classes."""

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
        source = self._source(X, y, counts, validation, response)
        if response.classes:
            response = response.of_classes(tuple(map(str, getattr(self, "classes_", ()))))
        self._describe(source)
        check_runs(self.method, devices=self.devices, checkpoint=kept)
        made = assemble(self, self._spec, source, response)
        self._rows, self._batch_groups = made.rows, made.batch_groups
        held_out = self._held_out(validation, made.scaling)
        inference = self._infer(made.model, made.data, made.scaling, None, held_out, kept)
        self.posterior_ = MixedPosterior(inference, made.scaling, made.names)
        self._publish(inference, time.perf_counter() - begun)
        if (
            size := size_if_nothing(self.posterior_)
        ) is not None and inference.run.position is None:
            adopt_linear(self, size, X, y, counts)
            self.seconds_ = time.perf_counter() - begun
        return self

    def _source(
        self, X: Any, y: Any, counts: Any, validation: Any, response: Response
    ) -> InMemory | OnDisk:
        """The rows of a fit, and with them what a formula and the classes have learnt."""
        if isinstance(X, GroupedDataset):
            check_on_disk(self, y, counts if validation is None else validation)
            self._learn(None)
            number = self.batch_groups if isinstance(self.batch_groups, int) else None
            on_disk = OnDisk.of(
                *(X, str(self._spec.group), y),
                classes=response.classes,
                batch_groups=number,
                seed=self._seed(),
            )
            self._learn_classes(on_disk.copy.learnt.classes, None, response)
            return on_disk
        X, y, counts, _ = self._complete(X, y, counts)
        self._learn(X)
        order = stated_order(self._response_column(X, y)) if response.classes else None
        name = self._response_name(y)
        table, y = self._read(X, y)
        self._learn_classes(y, order, response)
        columns = tuple(column_names(X)) if table.named else None
        if self.formula_ is not None:
            columns = self.formula_.variables
            raw = read_columns(X, self.formula_.inputs, self._bounds)
            self._raw_quantiles, self._commonest = tables.typical_inputs(raw)
        return InMemory.of(
            table,
            self._response_values(y),
            counts,
            group=self._spec.group,
            columns=columns,
            response_name=name,
        )

    def _describe(self, source: Source) -> None:
        """What scikit-learn and new data are told about the data of the fit."""
        self.groups_, self._inputs = source.groups, source.inputs
        self.n_features_in_ = len(source.inputs) + self._spec.num_factors
        if source.columns is not None:
            self.feature_names_in_ = np.array(source.columns, dtype=object)
            self.n_features_in_ = len(source.columns)
        elif hasattr(self, "feature_names_in_"):  # of an earlier fit
            del self.feature_names_in_
        self.input_quantiles_ = tables.quantile_table(source.sample.x, source.inputs)

    def resume(self) -> Self:
        """Continue a fit that was interrupted, as if it had not been."""
        check_is_fitted(self, "posterior_")
        before = self.posterior_.inference
        if before.run.position is None:
            return self
        begun = time.perf_counter()
        model, scaling = self.posterior_.model, self.posterior_.scaling
        inference = self._infer(model, before.data, scaling, before.run.position)
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
        x = add_intercept(table.values, self._spec.intercept)
        x, y = scaling.apply(x), scaling.apply_response(y)
        return rows_of_known_groups(x, y, cast(Any, table.group), cast(np.ndarray, self.groups_))

    def _infer(
        self,
        model: MixedModel,
        data: Any,
        scaling: Scaling,
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

    @property
    def group_(self) -> Group:
        """The group column of the fit, which a formula may have named; None for no groups.

        Of several factors a tuple.
        """
        check_is_fitted(self, "posterior_")
        return self._spec.group

    @property
    def group_columns_(self) -> tuple:
        """The columns of the data that say which rows belong together."""
        if self.formula_ is not None:
            return parse(self.formula_.formula).group_columns
        group = self.group_
        return group if isinstance(group, tuple) else () if group is None else (group,)

    def _seed(self) -> int:
        return choose_seed(self.random_state)

    def posterior_draws(self, draws: int = 2000, seed: int = 0) -> dict[str, np.ndarray]:
        """Joint posterior draws on the scale of the data.

        Returns ``coef`` (S, q), intercept first; ``effects_cov`` (S, r, r); ``effects`` (S, K, r),
        groups in the order of ``groups_``; and (S,) each, ``noise_var`` of a Gaussian response or
        ``noise_scale`` and ``degrees`` of a Student-t. Of several grouping factors
        ``effects_cov[month]`` and ``effects[month]`` each.
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

    def group_effects(self, factor: Any = None) -> pd.DataFrame:
        """Posterior mean and sd of every group's effects, one row per group.

        ``factor``: which one's, where there are several grouping factors.
        """
        check_is_fitted(self, "posterior_")
        if factor is not None and not self._spec.terms and str(factor) != str(self._spec.group):
            raise DataError(f"factor={factor!r}: the grouping factor is {self._spec.group!r}.")
        return tables.effects_table(self.posterior_, factor)

    def save(self, path: Any) -> None:
        """Write the fitted estimator to a file for ``nghvi.load``."""
        check_is_fitted(self, "posterior_")
        save(self, path)
