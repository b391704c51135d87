"""What successes of a known number of trials share, whatever their distribution."""

import dataclasses
from typing import Any, ClassVar, Self

import equinox as eqx
import numpy as np
from jaxtyping import Array

from nghvi._core.response import ResponseError
from nghvi._core.support import Support, offenders
from nghvi._special import log_gamma
from nghvi.responses._summed import Summed


class OfTrials(Summed):
    """Successes; one trial per row where nothing else is said."""

    facts: ClassVar[tuple[str, ...]] = ("trials",)
    trials: Any = None
    level: int = eqx.field(static=True, default=0, kw_only=True)
    """About where eta is; a whole number, so that similar data share compiled programs."""
    usual_trials: float = eqx.field(static=True, default=1.0, kw_only=True)
    """A power of two near the mean number of trials."""
    remedy: ClassVar[str] = (
        "y counts the successes of the trials: give trials='n', the column of their number, or "
        "write 'cbind(successes, failures) ~ ...' or 'successes | trials(n) ~ ...' in a formula; "
        "shares are response='beta'."
    )

    def given(self, facts: Any) -> Self:
        return dataclasses.replace(self, trials=None if facts is None else facts[..., 0])

    @property
    def num_trials(self) -> Any:
        """Of every row."""
        return 1.0 if self.trials is None else self.trials

    @property
    def support(self) -> Support:
        return Support(0, np.inf if self.trials is None else self.trials, discrete=True)

    @property
    def typical_predictor(self) -> float:
        return float(self.level)

    def predictor_at(self, share: float) -> float:
        """eta where that share of the trials succeeds."""
        return float(np.log(share / (1 - share)))

    def suited(self, y: np.ndarray, known: np.ndarray, *, intercept: bool) -> Self:
        number = np.broadcast_to(np.asarray(self.num_trials, float), y.shape)
        share = (np.sum(y) + 0.5) / (np.sum(number) + 1)
        level = round(self.predictor_at(share) - float(np.mean(known))) if intercept else 0
        usual = float(2.0 ** np.round(np.log2(np.mean(number))))
        found = super().suited(y, known, intercept=intercept)
        return dataclasses.replace(found, level=level, usual_trials=usual)

    def noise(self, mean: float, variance: float) -> float:
        share = np.clip(mean / self.usual_trials, 0.01, 0.99)
        return float(1 / (self.usual_trials * share * (1 - share)))

    def check(self, y: np.ndarray, column: str = "y") -> None:
        number = np.broadcast_to(np.asarray(self.num_trials, float), y.shape)
        odd = ~(np.isfinite(number) & (number >= 1) & (number == np.round(number)))
        if odd.any():
            raise ResponseError(
                f"the trials of {column} hold {offenders(number, odd)}: a row needs one trial at "
                "least, and whole numbers; leave rows without trials out."
            )
        above = y > number
        if above.any():
            row, others = int(np.flatnonzero(above)[0]), int(above.sum()) - 1
            more = f" ({others:,} more of that kind)" if others else ""
            raise ResponseError(
                f"{column} holds {y[row]:g} successes of {number[row]:g} trials in row {row}"
                f"{more}: give the number of trials of each row; {self.remedy}"
            )
        super().check(y, column)
        if not y.any() or (y == number).all():
            every = "failed" if not y.any() else "succeeded"
            raise ResponseError(
                f"every trial of {column} {every}: no odds are large enough for them; give data "
                "in which both happened."
            )

    def log_choices(self, y: Array) -> Array:
        """log of n over y."""
        n = self.num_trials
        return log_gamma(n + 1.0) - log_gamma(y + 1.0) - log_gamma(n - y + 1.0)
