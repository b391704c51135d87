"""Classification with random coefficients."""

from typing import Any, cast

import numpy as np

from nghvi.estimators._base import MixedEstimator
from nghvi.estimators.reader import DRAWS
from nghvi.posterior import predictive


class MixedClassifier(MixedEstimator):
    """Mixed model for classes. Parameters and attributes as in :class:`MixedRegressor`.

    ``response`` is "probit" ("auto" means that) or "logit" for two classes, "ordered-logit" or
    "ordered-probit" for classes in an order: that of an ordered category, of numbers, or of the
    alphabet. ``classes_`` holds the labels, of two the second one counted as 1.
    """

    estimator_type = "classifier"
    usual_response = "probit"
    of_classes = True

    @property
    def classes_(self) -> np.ndarray:
        """Labels of the classes, in their order."""
        return cast(np.ndarray, self.reader_.classes)

    def predict_proba(
        self, X: Any, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> np.ndarray:
        """Posterior predictive probabilities of the classes, in the order of ``classes_``.

        ``which`` chooses the effects used, as in :meth:`MixedRegressor.predict`.
        """
        request = self._request(X, which, draws, seed)
        if len(self.classes_) == 2:
            second = predictive.predict(self.posterior_, request).mean
            return np.column_stack([1 - second, second])
        n = len(request.x)
        up_to = [
            predictive.cdf(self.posterior_, request, np.full(n, float(k)))
            for k in range(len(self.classes_) - 1)
        ]
        return np.diff(np.column_stack([np.zeros(n), *up_to, np.ones(n)]), axis=1)

    def predict(self, X: Any, which: str = "known", draws: int = DRAWS, seed: int = 0) -> Any:
        """The most probable class."""
        probability = self.predict_proba(X, which, draws, seed)
        return self.classes_[np.argmax(probability, axis=1)]
