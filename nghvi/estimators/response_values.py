"""The response as numbers: measurements as they are, classes by their place among the classes."""

import numbers

import numpy as np

from nghvi._core.errors import warn
from nghvi._core.response import Response
from nghvi.data.frame import DataError

MOST_CLASSES = 50


def learn_classes(
    y: np.ndarray, order: np.ndarray | None, response: Response, name: str = "y"
) -> np.ndarray:
    """The classes among training responses of that name; ``order``: all, as the data state it."""
    classes = _distinct(y)
    number = f"{len(classes)} class{'' if len(classes) == 1 else 'es'}"
    continuous = y.dtype.kind == "f" and (y != np.round(y)).any()
    if not response.takes_intercept:
        if len(classes) != 2:
            raise DataError(
                "Only binary classification is supported. "
                f"{name} {'is continuous and ' if continuous else ''}has {number} "
                f"({', '.join(map(str, classes[:5]))}): a binary response needs "
                "exactly two; ordered classes are response='ordered-logit' or "
                "'ordered-probit', numbers are for MixedRegressor."
            )
        return classes
    if len(classes) < 2 or continuous or len(classes) > MOST_CLASSES:
        raise DataError(
            f"{name} {'is continuous and ' if continuous else ''}has {number}: "
            f"ordered classes are at least two and at most {MOST_CLASSES}; for numbers use "
            "MixedRegressor."
        )
    if order is not None:
        return order
    if classes.dtype.kind not in "biuf":
        warn(
            f"the classes of {name} are text, so their order is taken to be that of the alphabet: "
            f"{' < '.join(map(str, classes))}; to state it give an ordered category, "
            "pandas.Categorical(y, categories=[...], ordered=True)."
        )
    return classes


def _distinct(y: np.ndarray) -> np.ndarray:
    try:
        return np.unique(y)
    except TypeError:  # values that have no order, such as 1 and "a"
        kinds = ", ".join(sorted({type(value).__name__ for value in y}))
        raise DataError(
            f"y mixes labels of several kinds ({kinds}): give labels of one kind, for example "
            "y.astype(str)."
        ) from None


def places_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The place of every response among the classes of the fit."""
    found = y[:, None] == classes
    unknown = ~found.any(axis=1)
    if unknown.any():
        raise DataError(f"y holds {y[unknown][0]!r}, which is not a class of the fit ({classes}).")
    return np.argmax(found, axis=1).astype(float)


def measurements(y: np.ndarray, name: str = "y") -> np.ndarray:
    """Responses, of that name, that are numbers already."""
    if y.dtype.kind == "O" and all(isinstance(v, numbers.Real) for v in y):
        y = y.astype(float)
    if y.dtype.kind not in "fiub":
        raise DataError(
            f"{name} holds {y.dtype} values: a regression needs numbers; for two classes use "
            "MixedClassifier, or response='probit' with a formula."
        )
    return y.astype(float)
