"""Classification with random coefficients."""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from nghvi.data.frame import DataError
from nghvi.estimators._base import MixedEstimator
from nghvi.estimators.predictions import DRAWS


class MixedClassifier(ClassifierMixin, MixedEstimator):
    """Mixed model for two classes. Parameters and attributes as in :class:`MixedRegressor`.

    ``response`` is "probit" ("auto" means that) or "logit"; ``classes_`` holds the two labels, the
    second one counted as 1.
    """

    usual_response = "probit"
    of_classes = True

    def predict_proba(
        self, X: Any, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> np.ndarray:
        """Posterior predictive probabilities of the two classes.

        ``which`` chooses the effects used, as in :meth:`MixedRegressor.predict`.
        """
        second = self._predicted(X, which, draws, seed).mean
        return np.column_stack([1 - second, second])

    def predict(self, X: Any, which: str = "known", draws: int = DRAWS, seed: int = 0) -> Any:
        """The more probable class."""
        probability = self.predict_proba(X, which, draws, seed)
        return self.classes_[(probability[:, 1] > 0.5).astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _learn_classes(self, y: np.ndarray) -> None:
        self.classes_ = _classes(y)
        if len(self.classes_) != 2:
            continuous = y.dtype.kind == "f" and (y != np.round(y)).any()
            raise DataError(
                "Only binary classification is supported. "
                f"y {'is continuous and ' if continuous else ''}has {len(self.classes_)} classes "
                f"({', '.join(map(str, self.classes_[:5]))}): a binary response needs exactly two; "
                "for numbers use MixedRegressor."
            )

    def _response_values(self, y: np.ndarray) -> np.ndarray:
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            raise DataError(
                f"y holds {y[unknown][0]!r}, which is not a class of the fit ({self.classes_})."
            )
        return (y == self.classes_[1]).astype(float)


def _classes(y: np.ndarray) -> np.ndarray:
    try:
        return np.unique(y)
    except TypeError:  # values that have no order, such as 1 and "a"
        kinds = ", ".join(sorted({type(value).__name__ for value in y}))
        raise DataError(
            f"y mixes labels of several kinds ({kinds}): give labels of one kind, for example "
            "y.astype(str)."
        ) from None
