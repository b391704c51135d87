"""Sentences and numbers for a reader who is not a specialist."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from nghvi import scores
from nghvi.estimators._base import MixedEstimator
from nghvi.estimators.checks import NEW, ORIGIN, PARTLY
from nghvi.estimators.tables import about_draws, draws_of
from nghvi.recipes.importance import RELIABLE


class Judgement(NamedTuple):
    """The verdict as a heading, a colour and advice."""

    kind: str
    heading: str
    sentence: str
    use: str
    """What may be done with the results."""
    advice: tuple[str, ...] = ()


def judgement(estimator: MixedEstimator) -> Judgement:
    """Return the words of the panel that opens the report."""
    verdict, linear = estimator.posterior_.inference.verdict, is_linear(estimator)
    heading = verdict.status.heading
    if not verdict.converged:
        use = "Do not use the numbers below until this is fixed: they are provisional."
        return Judgement("bad", heading, verdict.explanation, use, verdict.remedies)
    draws = draws_of(estimator.posterior_)
    said = f"{verdict.explanation} {about_draws(draws)}".strip()
    if linear and draws.missing_part and not draws.corrected:
        use = "Means can be used; sds and tails are approximate."
        return Judgement("care", f"{heading}, with care", said, use)
    if not linear:
        use = "Other networks may fit equally well: judge this one by its predictions."
        return Judgement("good", heading, said, use)
    return Judgement("good", heading, said, "The results below can be used.")


def is_linear(estimator: MixedEstimator) -> bool:
    """Return whether coefficients belong to input columns."""
    return estimator.posterior_.model.trunk.linear


def number(value: float, sd: float = np.nan) -> str:
    """Return a number rounded to two digits of its sd, or to four of its own without one."""
    if not np.isfinite(value):
        return "-"
    unit = sd if np.isfinite(sd) and sd > 0 else abs(value) / 100
    decimals = 1 - int(np.floor(np.log10(unit))) if unit > 0 else 0
    if decimals > 6 or abs(value) >= 1e7:
        return f"{value:.3g}"
    return f"{value:,.{max(decimals, 0)}f}".replace("-", "\N{MINUS SIGN}")


def sign(row: pd.Series) -> str:
    """Return what the 90 % interval says about the direction."""
    if row["q5"] > 0:
        return "positive"
    return "negative" if row["q95"] < 0 else "sign uncertain"


def scale(estimator: MixedEstimator) -> str:
    """Return what coefficients are measured on if that is not the scale of the response."""
    response = estimator.posterior_.model.response
    if response.support.two_valued:
        effect = f"makes {estimator.classes_[1]} more probable"
    else:
        effect = "raises the expected response"
    return f"All numbers here are on the {response.link} scale: a larger sum of the terms {effect}."


def share(value: float) -> str:
    """Return a share in per cent."""
    return f"{100 * value:.0f} %"


def accuracy(estimator: MixedEstimator, checked: pd.DataFrame) -> str:
    """Return how close predictions are to what was observed."""
    y, predicted = checked["observed"].to_numpy(), checked["predicted"].to_numpy()
    if estimator.posterior_.model.response.support.two_valued:
        right = 1 - scores.misclassification_rate(y, predicted)
        usual = max(y.mean(), 1 - y.mean())
        return (
            f"The more probable class is correct in {share(right)} of the rows; always choosing "
            f"the more frequent class would be correct in {share(usual)}."
        )
    explained, error = scores.r2(y, predicted), scores.rmse(y, predicted)
    return (
        f"Predictions explain {share(explained)} of the variance of the response (R\u00b2); "
        f"they are typically off by {number(error)} (root mean squared error)."
    )


def agreement(distances: np.ndarray) -> str:
    """Return how far the two starts of a network are apart."""
    return (
        "The result mixes two starts of the network, whose predictions are "
        f"{distances.mean():.2f} posterior sd apart on average, and {distances.max():.2f} at most. "
        "Intervals include this difference."
    )


def coverage(checked: pd.DataFrame) -> str:
    """Return whether intervals cover as much as they should, and how far off chance could be."""
    return " ".join(_coverage(checked["pit"].to_numpy(), level) for level in (0.5, 0.9))


def _coverage(pit: np.ndarray, level: float) -> str:
    inside = float(np.mean(np.abs(pit - 0.5) <= level / 2))
    noise = 2 * np.sqrt(level * (1 - level) / len(pit))
    found = f"{share(level)} prediction intervals contain {100 * inside:.1f} % of the responses"
    chance = f"(chance alone: \u00b1{100 * noise:.1f})"
    if abs(inside - level) <= noise:
        return f"{found}, as they should {chance}."
    return f"{found}: they are too {'narrow' if inside < level else 'wide'} {chance}."


def rows_checked(checked: pd.DataFrame, total: int) -> str:
    """Return which rows were compared with their predictions, and how."""
    some = len(checked) < total
    which = f"{len(checked):,} of {total:,} rows, drawn at random" if some else f"{total:,} rows"
    if checked.attrs[ORIGIN] == PARTLY:
        return (
            f"Tested on {which}. Some, but not all, rows of the fit are among them; these are "
            "predicted from data that include them, so the results look better than they are. "
            "Give all rows of the fit, or only held-out rows."
        )
    if checked.attrs[ORIGIN] == NEW:
        return f"Tested on {which} that were not used in the fit, so this is a test on new data."
    said = f"Tested on {which} of the fit, each predicted from all the others (leave-one-out)."
    bad = int((checked["k_hat"] > RELIABLE).sum())
    if bad:
        rows = "row" if bad == 1 else "rows"
        said += f" For {bad} very influential {rows} this is approximate and slightly optimistic."
    return said
