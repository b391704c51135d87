"""Classification with random coefficients."""

from typing import Any, cast

import numpy as np

from nghvi.data.frame import Tabular, Vector, stated_order
from nghvi.data.source import GroupedDataset
from nghvi.estimators._base import MixedEstimator
from nghvi.estimators.reader import DRAWS, response_column
from nghvi.posterior import predictive


class MixedClassifier(MixedEstimator):
    """Mixed model for two classes or for ordered classes.

    Parameters and attributes are those of :class:`MixedRegressor`, with two differences:
    ``response`` is "probit" (the default) or "logit" for two classes, and "ordered-probit" (the
    default if y is an ordered category of more than two) or "ordered-logit" for ordered ones. Their
    order is that of an ordered category, of numbers, or of the alphabet. The attribute ``classes_``
    holds the labels in their order; the second of two classes counts as 1.
    """

    estimator_type = "classifier"
    usual_response, ordered_response = "probit", "ordered-probit"
    of_classes = True

    def _usual_response(self, X: Tabular | GroupedDataset, y: Vector | None) -> str:
        order = stated_order(response_column(self.formula, X, y))
        return self.usual_response if order is None or len(order) <= 2 else self.ordered_response

    @property
    def classes_(self) -> np.ndarray:
        """Labels of the classes, in their order."""
        return cast(np.ndarray, self.reader_.classes)

    def predict_proba(
        self, X: Tabular, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> np.ndarray:
        """Return the predictive probability of every class, one row per row of X.

        Columns are in the order of ``classes_``. ``which``, ``draws`` and ``seed`` are as in
        :meth:`MixedRegressor.predict`.
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

    def predict(self, X: Tabular, which: str = "known", draws: int = DRAWS, seed: int = 0) -> Any:
        """Return the most probable class of each row; arguments as for :meth:`predict_proba`."""
        probability = self.predict_proba(X, which, draws, seed)
        return self.classes_[np.argmax(probability, axis=1)]
