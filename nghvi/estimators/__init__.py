"""Estimators in the style of scikit-learn, and :func:`mixed`, which makes one from a formula."""

from typing import Any

from nghvi.data.frame import DataError, suggest
from nghvi.estimators.classifier import MixedClassifier as MixedClassifier
from nghvi.estimators.fitting import EVERY
from nghvi.estimators.regressor import MixedRegressor as MixedRegressor
from nghvi.formula import parse
from nghvi.responses import RESPONSES, Response


def mixed(
    formula: str,
    data: Any,
    response: Any = "gaussian",
    hidden: tuple[int, ...] | None = None,
    checkpoint: Any = None,
    every: float = EVERY,
    **settings: Any,
) -> MixedRegressor | MixedClassifier:
    """Fit the mixed model that a formula describes to a pandas or polars data frame.

    ``"score ~ ses + sector * sex + (1 + ses | school)"``: fixed effects, interactions and coding
    of categories as in R and patsy; transformations ``log``, ``center``, ``scale``, ``poly``,
    ``bs``, ``cr``, ``C`` and calculations in ``I(...)``; ``offset(x)``; grouping factors, whose
    effects are correlated after ``|`` and independent after ``||``. Without a group term the model
    has no effects. ``(. | school)`` gives every column of the fixed part, or with ``hidden`` every
    feature of the network, an effect.

    ``response``: one of ``nghvi.responses.RESPONSES`` by name, such as "gaussian", "student-t",
    "probit" or "logit", or a response object, also one of your own. ``settings``: those of
    :class:`nghvi.MixedRegressor` that the formula does not say. ``checkpoint`` and ``every``: as in
    :meth:`nghvi.MixedRegressor.fit`. The fitted estimator reads raw
    data frames and codes them as the training data were.
    """
    parse(formula)  # what is wrong with it is said before anything else
    if not isinstance(response, Response) and response not in tuple(RESPONSES):
        raise DataError(f"response={response!r}: {suggest(str(response), RESPONSES)}.")
    chosen = response if isinstance(response, Response) else RESPONSES[response]
    kind = MixedClassifier if chosen.classes else MixedRegressor
    hidden = () if hidden is None else hidden
    estimator = kind(formula=formula, response=response, hidden=hidden, **settings)
    return estimator.fit(data, checkpoint=checkpoint, every=every)
