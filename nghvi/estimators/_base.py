"""What both estimators share: reading data, building the model, fitting, reporting."""

import numbers
import time
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from nghvi._core.response import Response
from nghvi.data import LinearStatistics, Panel, Rows
from nghvi.data.frame import Column, DataError, Table, encode_groups, read_response, read_table
from nghvi.estimators import tables
from nghvi.estimators.design import (
    add_intercept,
    centred_columns,
    random_columns,
    warn_about_design,
)
from nghvi.estimators.progress import FitProgress
from nghvi.infer import Inference, infer
from nghvi.models.mixed import MixedModel, prepare, published_start
from nghvi.networks import ACTIVATIONS, Identity, Perceptron, Trunk
from nghvi.posterior.mixed import MixedPosterior, Named
from nghvi.posterior.predictive import predictive_mean
from nghvi.posterior.scaling import Scaling
from nghvi.priors import HalfT, HuangWand, InverseGamma, Priors, WishartPrecision
from nghvi.recipes.run import Position
from nghvi.responses import RESPONSES
from nghvi.storage import save

PUBLISHED_SWEEPS = 5


class MixedEstimator(BaseEstimator):
    """Base of the two estimators; not for use by itself."""

    def __init__(
        self,
        group: Column | None = None,
        *,
        hidden: tuple[int, ...] = (),
        activation: str = "relu",
        random: str | list = "auto",
        response: str = "auto",
        covariance: str = "auto",
        priors: Priors | None = None,
        rank: int | str = "auto",
        fit_intercept: bool = True,
        standardize: bool = True,
        method: str = "auto",
        steps: int | None = None,
        latents: str = "auto",
        importance: bool = True,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.group = group
        self.hidden = hidden
        self.activation = activation
        self.random = random
        self.response = response
        self.covariance = covariance
        self.priors = priors
        self.rank = rank
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.method = method
        self.steps = steps
        self.latents = latents
        self.importance = importance
        self.random_state = random_state
        self.verbose = verbose

    def _fit(self, X: Any, y: np.ndarray, table: Table, response: Response) -> Self:
        begun = time.perf_counter()
        self.n_features_in_ = table.values.shape[1] + (self.group is not None)
        if table.named:
            self.feature_names_in_ = np.array(list(X.columns), dtype=object)
        deep = self._check_settings()
        x, features = add_intercept(table, self.fit_intercept and not deep)
        if x.shape[1] == 0:
            raise DataError("there is no input column and no intercept: nothing to fit.")
        codes, self.groups_ = self._encode(table)
        trunk: Trunk = Identity(x.shape[1])
        if deep:
            trunk = Perceptron(x.shape[1], tuple(self.hidden), self.activation)
            features = ("intercept", *(f"h{j}" for j in range(1, trunk.num_features)))
        random = random_columns(self.random, features, grouped=self.group is not None, deep=deep)
        if not deep:
            warn_about_design(x, features, codes, random)
        self._inputs = table.names
        scaling = self._scaling(x, y, random, response, deep)
        response.check(y)
        rows = Rows.from_arrays(
            scaling.apply(x), scaling.apply_response(y), codes, max(len(self.groups_), 1)
        )
        sweeps = None if self.method == "auto" or response.conjugate else PUBLISHED_SWEEPS
        model = MixedModel(trunk, response, self._priors(), random, sweeps)
        sampled = self.method != "auto" or self.latents == "sample"
        data: Rows | LinearStatistics | Panel = rows if sampled else prepare(model, rows)
        inference = self._infer(model, data, deep)
        names = Named(features, tuple(features[j] for j in random), self.groups_)
        self.posterior_ = MixedPosterior(inference, scaling, names)
        self._publish(inference, time.perf_counter() - begun)
        return self

    def resume(self) -> Self:
        """Go on with a fit that was interrupted, as if it had not been."""
        check_is_fitted(self, "posterior_")
        before = self.posterior_.inference
        if before.run.position is None:
            return self
        begun = time.perf_counter()
        deep = not isinstance(self.posterior_.model.trunk, Identity)
        inference = self._infer(self.posterior_.model, before.data, deep, before.run.position)
        self.posterior_ = self.posterior_._replace(inference=inference)
        self._publish(inference, self.seconds_ + time.perf_counter() - begun)
        return self

    def _infer(
        self, model: MixedModel, data: Any, deep: bool, resume: Position | None = None
    ) -> Inference:
        seed = self._seed()
        settings: dict[str, Any] = {
            "seed": seed,
            "rank": self.rank,
            "method": self.method,
            "steps": self.steps,
            "latents": self.latents,
            "smooth": not deep,
            "importance": self.importance,
            "resume": resume,
        }
        if self.method != "auto":
            settings["start"] = published_start(model, data, seed)
        if not self.verbose:
            return infer(model, data, **settings)
        with FitProgress() as progress:
            return infer(model, data, progress=progress, **settings)

    def _publish(self, inference: Inference, seconds: float) -> None:
        # A density of the raw response: standardising it divides by its scale, row by row.
        jacobian = inference.data.num_rows * np.log(self.posterior_.scaling.y_scale)
        self.elbo_ = inference.elbo - jacobian
        self.elbo_se_ = inference.elbo_se
        self.log_evidence_ = inference.log_evidence - jacobian
        self.k_hat_ = inference.k_hat
        self.converged_ = inference.converged
        self.verdict_ = tables.verdict_sentence(inference)
        self.trace_ = tables.trace_table(inference, jacobian)
        self.n_iter_ = max(inference.run.steps, 1)
        self.seconds_ = seconds

    def _check_settings(self) -> bool:
        """Check what can be known without data; returns whether there is a network."""
        hidden = self.hidden if self.hidden is not None else ()
        if isinstance(hidden, numbers.Integral):
            raise DataError(f"hidden={hidden}: give a tuple of layer widths, for example (32, 16).")
        if any(not isinstance(w, numbers.Integral) or w < 1 for w in hidden):
            raise DataError(f"hidden={hidden!r}: every layer needs a width of at least 1.")
        if hidden and self.activation not in ACTIVATIONS:
            raise DataError(f"activation={self.activation!r}: choose one of {sorted(ACTIVATIONS)}.")
        if self.steps is not None and (
            not isinstance(self.steps, numbers.Integral) or self.steps < 1
        ):
            raise DataError(f"steps={self.steps!r}: give a positive whole number or None.")
        if self.covariance not in ("auto", "full", "diagonal"):
            raise DataError(f"covariance={self.covariance!r}: choose 'auto', 'full' or 'diagonal'.")
        return bool(hidden)

    def _priors(self) -> Priors:
        priors = Priors() if self.priors is None else self.priors
        if not isinstance(priors, Priors):
            raise DataError(f"priors={priors!r}: give a nghvi.priors.Priors.")
        effects = priors.effects
        if self.covariance == "diagonal" and isinstance(effects, HuangWand):
            effects = HalfT(effects.df, effects.scale)
        diagonal = isinstance(effects, InverseGamma | HalfT)
        if self.covariance == "full" and diagonal:
            raise DataError(
                f"covariance='full' with {effects}: this prior makes the effects independent; use "
                "HuangWand() or WishartPrecision(scale) for correlated ones."
            )
        if self.covariance == "diagonal" and not diagonal:
            raise DataError(
                f"covariance='diagonal' with {effects}: use InverseGamma or HalfT as the prior."
            )
        return Priors(priors.coef_sd, priors.noise, effects, priors.weight_sd)

    def _response(self, default: str, *, binary: bool, other: str) -> Response:
        fitting = [name for name, kind in RESPONSES.items() if kind.binary == binary]
        name = default if self.response == "auto" else self.response
        if name not in fitting:
            raise DataError(
                f"response={self.response!r}: {type(self).__name__} knows "
                f"{', '.join(map(repr, fitting))}; see {other} for the others."
            )
        return RESPONSES[name]()

    def _scaling(
        self, x: np.ndarray, y: np.ndarray, random: tuple[int, ...], response: Response, deep: bool
    ) -> Scaling:
        if not self.standardize:
            return Scaling.none(x.shape[1])
        correlated = isinstance(self._priors().effects, HuangWand | WishartPrecision)
        # A network's first layer has biases of its own: all its inputs are centred.
        centred = np.full(x.shape[1], True)
        if not deep:
            centred = centred_columns(
                x.shape[1], random, fit_intercept=self.fit_intercept, correlated=correlated
            )
        measured = y if response.conjugate else None
        return Scaling.measure(x, centred, measured, self.fit_intercept or deep)

    def _encode(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        if table.group is None:
            return np.zeros(len(table.values), int), np.array([])
        levels, codes = np.unique(table.group, return_inverse=True)
        if len(levels) == 1:
            raise DataError(
                f"group column {self.group!r} has one level only ({levels[0]!r}): effects cannot "
                "vary; use group=None for a model without them."
            )
        return codes, levels

    def _seed(self) -> int:
        state = self.random_state
        if state is None:
            return 0
        if isinstance(state, numbers.Integral):
            return int(state)
        return int(state.randint(2**31 - 1))

    def _design(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Scaled inputs and group codes of new data; unseen groups get -1."""
        check_is_fitted(self, "posterior_")
        table = read_table(X, self.group)
        if hasattr(self, "feature_names_in_") and table.named:
            table = tables.align(table, self._inputs)
        elif table.values.shape[1] != len(self._inputs):
            raise DataError(
                f"X has {table.values.shape[1] + (self.group is not None)} features, but "
                f"{type(self).__name__} is expecting {self.n_features_in_} features as input."
            )
        deep = bool(self.hidden)
        x, _ = add_intercept(table, self.fit_intercept and not deep)
        codes = np.full(len(x), -1)
        if table.group is not None:
            codes = encode_groups(table.group, self.groups_)
        return self.posterior_.scaling.apply(x), codes

    def _predict_mean(self, X: Any) -> np.ndarray:
        x, codes = self._design(X)
        return predictive_mean(self.posterior_, x, codes)

    def posterior_draws(self, draws: int = 2000, seed: int = 0) -> dict[str, np.ndarray]:
        """Joint posterior draws on the scale of the data.

        Returns ``coef`` (S, q), intercept first; ``noise_var`` (S,); ``effects_cov`` (S, r, r);
        ``effects`` (S, K, r), groups in the order of ``groups_``.
        """
        check_is_fitted(self, "posterior_")
        if not isinstance(draws, numbers.Integral) or draws < 1:
            raise DataError(f"draws={draws!r}: give a positive whole number.")
        return self.posterior_.draws(int(draws), int(seed))

    def summary(self) -> pd.DataFrame:
        """Posterior mean, sd and 5, 50, 95 % quantiles of every parameter by name."""
        check_is_fitted(self, "posterior_")
        return tables.summary_table(self.posterior_)

    def group_effects(self) -> pd.DataFrame:
        """Posterior mean and sd of every group's effects, one row a group."""
        check_is_fitted(self, "posterior_")
        return tables.effects_table(self.posterior_)

    def save(self, path: Any) -> None:
        """Write the fitted estimator to a file for ``nghvi.load``."""
        check_is_fitted(self, "posterior_")
        save(self, path)

    def to_arviz(self, draws: int = 1000, seed: int = 0) -> Any:
        """The posterior as a labelled DataTree for ArviZ."""
        check_is_fitted(self, "posterior_")
        from nghvi.posterior.arviz import to_datatree

        return to_datatree(self.posterior_, draws, seed)

    def _read(self, X: Any, y: Any) -> tuple[Table, np.ndarray]:
        group: Column | None = self.group
        table = read_table(X, group)
        if y is None:
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        return table, read_response(y, len(table.values))
