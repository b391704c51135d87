"""Classification with random coefficients."""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from nghvi._core.errors import warn
from nghvi._core.response import Response
from nghvi.data.frame import DataError
from nghvi.estimators._base import MixedEstimator
from nghvi.estimators.predictions import DRAWS
from nghvi.posterior import predictive

MOST_CLASSES = 50


class MixedClassifier(ClassifierMixin, MixedEstimator):
    """Mixed model for classes. Parameters and attributes as in :class:`MixedRegressor`.

    ``response`` is "probit" ("auto" means that) or "logit" for two classes, "ordered-logit" or
    "ordered-probit" for classes in an order: that of an ordered category, of numbers, or of the
    alphabet. ``classes_`` holds the labels, of two the second one counted as 1.
    """

    usual_response = "probit"
    of_classes = True

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _learn_classes(self, y: np.ndarray, order: np.ndarray | None, response: Response) -> None:
        self.classes_ = _classes(y)
        number = f"{len(self.classes_)} class{'' if len(self.classes_) == 1 else 'es'}"
        continuous = y.dtype.kind == "f" and (y != np.round(y)).any()
        if not response.takes_intercept:
            if len(self.classes_) != 2:
                raise DataError(
                    "Only binary classification is supported. "
                    f"y {'is continuous and ' if continuous else ''}has {number} "
                    f"({', '.join(map(str, self.classes_[:5]))}): a binary response needs "
                    "exactly two; ordered classes are response='ordered-logit' or "
                    "'ordered-probit', numbers are for MixedRegressor."
                )
            return
        if len(self.classes_) < 2 or continuous or len(self.classes_) > MOST_CLASSES:
            raise DataError(
                f"y {'is continuous and ' if continuous else ''}has {number}: "
                f"ordered classes are at least two and at most {MOST_CLASSES}; for numbers use "
                "MixedRegressor."
            )
        if order is not None:
            self.classes_ = order
        elif self.classes_.dtype.kind not in "biuf":
            warn(
                f"the classes of y are text, so their order is taken to be that of the alphabet: "
                f"{' < '.join(map(str, self.classes_))}; to state it give an ordered category, "
                "pandas.Categorical(y, categories=[...], ordered=True)."
            )

    def _response_values(self, y: np.ndarray) -> np.ndarray:
        found = y[:, None] == self.classes_
        unknown = ~found.any(axis=1)
        if unknown.any():
            raise DataError(
                f"y holds {y[unknown][0]!r}, which is not a class of the fit ({self.classes_})."
            )
        return np.argmax(found, axis=1).astype(float)


def _classes(y: np.ndarray) -> np.ndarray:
    try:
        return np.unique(y)
    except TypeError:  # values that have no order, such as 1 and "a"
        kinds = ", ".join(sorted({type(value).__name__ for value in y}))
        raise DataError(
            f"y mixes labels of several kinds ({kinds}): give labels of one kind, for example "
            "y.astype(str)."
        ) from None
