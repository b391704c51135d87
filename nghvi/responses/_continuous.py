"""What continuous responses share: numbers on the real line that may be standardised."""

import numpy as np

from nghvi._core.response import Response, ResponseError


class Continuous(Response):
    """Finite numbers that are not all the same."""

    def check(self, y: np.ndarray, column: str = "y") -> None:
        if not np.isfinite(y).all():
            raise ResponseError("a continuous response takes finite numbers only.")
        if np.ptp(y) == 0:
            raise ResponseError(
                f"the response is constant (every value is {y[0]:g}): there is nothing to explain."
            )

    def typical(self, y: np.ndarray) -> np.ndarray:
        return y
