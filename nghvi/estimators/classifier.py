"""Classification with random coefficients."""

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin

from nghvi.data.frame import DataError
from nghvi.estimators._base import MixedEstimator


class MixedClassifier(ClassifierMixin, MixedEstimator):
    """Mixed model for two classes. Parameters and attributes as in :class:`MixedRegressor`.

    ``response`` is "probit" ("auto" means that); ``classes_`` holds the two labels, the second
    one counted as 1.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to a table X (group column included) and labels y of two classes."""
        response = self._response("probit", binary=True, other="MixedRegressor")
        table, y = self._read(X, y)
        self.classes_ = np.unique(y)
        if len(self.classes_) != 2:
            raise DataError(
                f"y has {len(self.classes_)} classes ({', '.join(map(str, self.classes_[:5]))}): "
                "a binary response needs exactly two; for numbers use MixedRegressor."
            )
        return self._fit(X, (y == self.classes_[1]).astype(float), table, response)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Posterior predictive probabilities of the two classes."""
        second = self._predict_mean(X)
        return np.column_stack([1 - second, second])

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class."""
        return self.classes_[(self.predict_proba(X)[:, 1] > 0.5).astype(int)]
