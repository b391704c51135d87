"""Standardisation and the way back: a linear map of coefficients, exact for every draw.

With columns ``(x_j - m_j) / s_j`` and response ``(y - m_y) / s_y`` the raw coefficients are
``T b`` (plus ``m_y`` on the intercept) and the raw effects ``T_R a`` with Omega -> T_R Omega T_R'.
"""

from typing import NamedTuple

import numpy as np


class Scaling(NamedTuple):
    """Centres and scales of the feature columns (intercept column first, if any) and of y."""

    centre: np.ndarray
    scale: np.ndarray
    y_centre: float
    y_scale: float

    @staticmethod
    def none(num_columns: int) -> "Scaling":
        """Leave everything as it is."""
        return Scaling(np.zeros(num_columns), np.ones(num_columns), 0.0, 1.0)

    @staticmethod
    def measure(
        x: np.ndarray,
        y: np.ndarray | None,
        intercept: bool,
        random: tuple[int, ...],
        correlated: bool,
    ) -> "Scaling":
        """Measure columns and response.

        A column is centred only where an intercept can absorb the shift: the fixed one, and,
        for a column with a random slope, a random one that may be correlated with the slope.
        Otherwise the model would change.
        """
        centre, scale = x.mean(axis=0), x.std(axis=0)
        if intercept:
            centre[0], scale[0] = 0.0, 1.0
        else:
            centre[:] = 0.0
        if 0 not in random or not intercept or not correlated:
            centre[list(random)] = 0.0
        scale = np.where(scale > 0, scale, 1.0)
        if y is None:
            return Scaling(centre, scale, 0.0, 1.0)
        return Scaling(centre, scale, float(y.mean()) if intercept else 0.0, float(y.std()))

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Scaled columns."""
        return (x - self.centre) / self.scale

    def apply_response(self, y: np.ndarray) -> np.ndarray:
        """Scaled response."""
        return (y - self.y_centre) / self.y_scale

    def back(self, columns: tuple[int, ...], intercept: bool) -> np.ndarray:
        """T for these columns."""
        index = list(columns)
        matrix = np.diag(self.y_scale / self.scale[index])
        if intercept and 0 in index:
            matrix[index.index(0)] -= self.y_scale * self.centre[index] / self.scale[index]
        return matrix
