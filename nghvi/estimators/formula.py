"""``mixed``: an estimator from a formula."""

from typing import Any

from nghvi.data.frame import DataError, suggest
from nghvi.estimators.checkpoints import EVERY
from nghvi.estimators.choices import is_deep
from nghvi.estimators.classifier import MixedClassifier
from nghvi.estimators.regressor import MixedRegressor
from nghvi.formula import Syntax, has_intercept, parse, response_of
from nghvi.formula.errors import FormulaError
from nghvi.formula.syntax import EVERY_COLUMN
from nghvi.responses import RESPONSES

SAID_BY_FORMULA = ("group", "random", "fit_intercept", "covariance", "formula")


def mixed(
    formula: str,
    data: Any,
    response: str = "gaussian",
    hidden: tuple[int, ...] | None = None,
    checkpoint: Any = None,
    every: float = EVERY,
    **settings: Any,
) -> MixedRegressor | MixedClassifier:
    """Fit the mixed model that a formula describes to a pandas or polars data frame.

    ``"score ~ ses + sector * sex + (1 + ses | school)"``: fixed effects, interactions and coding
    of categories as in R and patsy; transformations ``log``, ``center``, ``scale``, ``poly``,
    ``bs``, ``cr``, ``C`` and calculations in ``I(...)``; ``offset(x)``; one grouping factor, whose
    effects are correlated after ``|`` and independent after ``||``. Without a group term the model
    has no effects. ``(. | school)`` gives every column of the fixed part, or with ``hidden`` every
    feature of the network, an effect.

    ``response``: "gaussian", "student-t", "probit" or "logit". ``settings``: those of
    :class:`nghvi.MixedRegressor` that the formula does not say. ``checkpoint`` and ``every``: as in
    :meth:`nghvi.MixedRegressor.fit`. The fitted estimator reads raw
    data frames and codes them as the training data were.
    """
    syntax = parse(formula)
    if response not in RESPONSES:
        raise DataError(f"response={response!r}: {suggest(response, RESPONSES)}.")
    said = sorted(settings.keys() & set(SAID_BY_FORMULA))
    if said:
        raise DataError(f"{said[0]}={settings[said[0]]!r}: the formula says it; leave it out.")
    kind = MixedClassifier if RESPONSES[response].binary else MixedRegressor
    unknown = sorted(settings.keys() - set(kind._get_param_names()))
    if unknown:
        raise DataError(
            f"{unknown[0]} is no setting of {kind.__name__}; "
            f"{suggest(unknown[0], kind._get_param_names())}."
        )
    hidden = () if hidden is None else hidden
    estimator = kind(
        syntax.group,
        formula=formula,
        response=response,
        hidden=hidden,
        fit_intercept=has_intercept(syntax),
        **_effects(syntax, is_deep(hidden, settings.get("trunk"))),
        **settings,
    )
    y = response_of(formula, data)
    return estimator.fit(data, y, checkpoint=checkpoint, every=every)


def _effects(syntax: Syntax, deep: bool) -> dict[str, Any]:
    """What the group term says about effects, as settings."""
    if syntax.group is None:
        return {}
    covariance = "diagonal" if syntax.independent else "auto"
    if not deep:
        # The columns are known only with the data: the estimator takes them from the formula.
        return {"covariance": covariance}
    if syntax.random not in (("1",), (EVERY_COLUMN,)):
        raise FormulaError.at(
            syntax.text,
            f"({syntax.random[-1]}",
            "with hidden layers write '(1 | group)' for an intercept by group, or '(. | group)' "
            "for effects of every feature of the network.",
        )
    random = "intercept" if syntax.random == ("1",) else "all"
    return {"covariance": covariance, "random": random}
