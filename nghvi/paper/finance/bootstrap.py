"""Standard errors of scores by the circular block bootstrap over months.

Returns of one month share its shocks and months follow each other, so whole blocks of months are
drawn with replacement (Politis and Romano 1992), wrapping around at the end.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

BLOCK, DRAWS = 6, 2000


def block_bootstrap(
    monthly: Float[np.ndarray, "t c"],
    statistic: Callable[[Float[np.ndarray, "*s c"]], np.ndarray],
    *,
    block: int = BLOCK,
    draws: int = DRAWS,
    seed: int = 0,
) -> float:
    """Standard error of ``statistic(means)``, a smooth function of the means over months.

    ``monthly`` holds one row per month; ``statistic`` is called once with the means of all draws.
    """
    number = len(monthly)
    block = min(block, number)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, number, (draws, -(-number // block)))
    chosen = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, :number] % number
    return float(np.std(statistic(monthly[chosen].mean(axis=1)), ddof=1))


def mean_se(monthly: Float[np.ndarray, " t"], **settings: int) -> float:
    """Standard error of a mean over months, such as a log score or a difference of two."""
    return block_bootstrap(monthly[:, None], lambda means: means[..., 0], **settings)


def r2_se(
    squared_error: Float[np.ndarray, " t"],
    y: Float[np.ndarray, " t"],
    y_square: Float[np.ndarray, " t"],
    **settings: int,
) -> float:
    """Standard error of R2 from monthly means of squared errors, of y and of its square."""

    def r2(means: np.ndarray) -> np.ndarray:
        return 1 - means[..., 0] / (means[..., 2] - means[..., 1] ** 2)

    return block_bootstrap(np.column_stack([squared_error, y, y_square]), r2, **settings)
