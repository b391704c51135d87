"""Estimators in the style of scikit-learn, and :func:`mixed`, which fits one from a formula."""

from typing import Any

from nghvi._core.errors import DataError, suggest
from nghvi._typing import Place
from nghvi.data.frame import Tabular, stated_order
from nghvi.estimators.classifier import MixedClassifier as MixedClassifier
from nghvi.estimators.fitting import EVERY
from nghvi.estimators.reader import response_column
from nghvi.estimators.regressor import MixedRegressor as MixedRegressor
from nghvi.formula import parse
from nghvi.responses import RESPONSES, Response


def mixed(
    formula: str,
    data: Tabular,
    response: str | Response = "auto",
    hidden: tuple[int, ...] | None = None,
    checkpoint: Place | None = None,
    every: float = EVERY,
    **settings: Any,
) -> MixedRegressor | MixedClassifier:
    """Fit the mixed model that a formula describes to a pandas or polars data frame.

    Parameters
    ----------
    formula
        For example ``"score ~ ses + sector * sex + (1 + ses | school)"``. Fixed effects,
        interactions and the coding of categories are as in R and patsy. There are the functions
        ``log``, ``center``, ``scale``, ``poly``, ``bs``, ``cr`` and ``C``, calculations in
        ``I(...)``, and offsets, ``offset(x)``. The effects of a group are correlated after ``|``
        and independent after ``||``; without a group term the model has no effects.
        ``(. | school)`` gives an effect to every column of the fixed part or, with ``hidden``, to
        every feature of the network.
    data
        The raw data frame, including the response. The fitted estimator codes further data frames
        as it coded this one.
    response
        One of ``nghvi.responses.RESPONSES`` by name, such as "gaussian", "student-t", "probit" or
        "logit", or a response object, which may be your own. It decides whether the result is a
        regressor or a classifier. The default, "auto", is "gaussian" or, if the response is an
        ordered category, "ordered-probit" ("probit" for two levels).
    hidden
        Widths of hidden layers; None, the default, is a linear mixed model.
    checkpoint, every
        Where and how often to save the state of the fit; see :meth:`nghvi.MixedRegressor.fit`.
    **settings
        Further settings of :class:`nghvi.MixedRegressor`.

    Returns
    -------
    MixedRegressor or MixedClassifier
        The fitted estimator.
    """
    parse(formula)  # errors in the formula are reported before any others
    if isinstance(response, Response):
        classes = response.classes
    elif response == "auto":
        classes = stated_order(response_column(formula, data, None)) is not None
    elif response in tuple(RESPONSES):
        classes = RESPONSES[response].classes
    else:
        raise DataError(f"response={response!r} is unknown. {suggest(str(response), RESPONSES)}")
    kind = MixedClassifier if classes else MixedRegressor
    hidden = () if hidden is None else hidden
    estimator = kind(formula=formula, response=response, hidden=hidden, **settings)
    return estimator.fit(data, checkpoint=checkpoint, every=every)
