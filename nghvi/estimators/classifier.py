"""Classification with random coefficients."""

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin

from nghvi.data.frame import Column, DataError
from nghvi.estimators._base import MixedEstimator
from nghvi.priors import Priors
from nghvi.responses import Probit

LINKS = {"probit": Probit}


class MixedClassifier(ClassifierMixin, MixedEstimator):
    """Mixed model for two classes. Parameters and attributes as in :class:`MixedRegressor`.

    ``response`` is "probit"; ``classes_`` holds the two labels, the second one counted as 1.
    """

    def __init__(
        self,
        group: Column | None = None,
        *,
        hidden: tuple[int, ...] = (),
        activation: str = "relu",
        random: str | list = "auto",
        response: str = "probit",
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

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to a table X (group column included) and labels y of two classes."""
        if self.response not in LINKS:
            raise DataError(f"response={self.response!r}: choose one of {sorted(LINKS)}.")
        table, y = self._read(X, y)
        self.classes_ = np.unique(y)
        if len(self.classes_) != 2:
            raise DataError(
                f"y has {len(self.classes_)} classes ({', '.join(map(str, self.classes_[:5]))}): "
                "a binary response needs exactly two; for numbers use MixedRegressor."
            )
        return self._fit(X, (y == self.classes_[1]).astype(float), table, LINKS[self.response]())

    def predict_proba(self, X: Any) -> np.ndarray:
        """Posterior predictive probabilities of the two classes."""
        second = self._predict_mean(X)
        return np.column_stack([1 - second, second])

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class."""
        return self.classes_[(self.predict_proba(X)[:, 1] > 0.5).astype(int)]
