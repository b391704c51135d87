"""What an estimator's settings make of named input columns: the model but for the data."""

from typing import Any, NamedTuple

import numpy as np

from nghvi._core.response import Response
from nghvi.data.frame import DataError
from nghvi.estimators.choices import (
    check_counts,
    check_known_coef,
    check_method,
    choose_priors,
    choose_trunk,
    is_deep,
)
from nghvi.estimators.design import feature_names, random_columns
from nghvi.models.mixed import MixedModel
from nghvi.networks import Trunk
from nghvi.posterior.mixed import Named
from nghvi.priors import Priors


class Structure(NamedTuple):
    """Columns, network and effects."""

    deep: bool
    priors: Priors
    trunk: Trunk
    features: tuple[str, ...]
    random: tuple[int, ...]
    known_coef: tuple[float, ...]

    @staticmethod
    def of(settings: Any, names: tuple[str, ...], *, known_coef: Any, random: Any) -> "Structure":
        """From the settings of an estimator and the names of its inputs."""
        check_counts(steps=settings.steps, n_starts=settings.n_starts)
        check_counts(batch_groups=settings.batch_groups)
        check_method(settings.method)
        deep = is_deep(settings.hidden, settings.trunk)
        priors = choose_priors(settings.priors, settings.covariance)
        features = feature_names(names, settings.fit_intercept and not deep)
        if not features:
            raise DataError("there is no input column and no intercept: nothing to fit.")
        trunk = choose_trunk(len(features), settings.hidden, settings.activation, settings.trunk)
        if deep:
            features = ("intercept", *(f"h{j}" for j in range(1, trunk.num_features)))
        check_known_coef(known_coef, settings.method, deep)
        chosen = random_columns(
            settings.random if deep else random,
            features,
            grouped=settings.group is not None,
            deep=deep,
        )
        return Structure(deep, priors, trunk, features, chosen, known_coef)

    def model(self, response: Response, sweeps: int | None) -> MixedModel:
        """The model; ``sweeps`` of Gibbs where its effects are drawn so."""
        return MixedModel(
            self.trunk, response, self.priors, self.random, sweeps, known_coef=self.known_coef
        )

    def named(self, groups: np.ndarray) -> Named:
        """Names of what the model has."""
        fixed = self.features[: len(self.features) - len(self.known_coef)]
        return Named(fixed, tuple(self.features[j] for j in self.random), groups)
