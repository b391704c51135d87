"""Standardisation and the way back: a linear map of coefficients, exact for every draw.

With columns ``(x_j - m_j) / s_j`` and response ``(y - m_y) / s_y`` the raw coefficients are
``T b`` (plus ``m_y`` on the intercept) and the raw effects ``T_R a`` with Omega -> T_R Omega T_R'.
"""

from typing import Any, NamedTuple, SupportsFloat

import numpy as np


class Scaling(NamedTuple):
    """Centres and scales of the feature columns (intercept column first, if any) and of y."""

    centre: np.ndarray
    scale: np.ndarray
    y_centre: float
    y_scale: float
    densities: float = 1.0
    """Share of the responses with a density; others have probabilities, which have no unit."""

    @staticmethod
    def none(num_columns: int) -> "Scaling":
        """Leave everything as it is."""
        return Scaling(np.zeros(num_columns), np.ones(num_columns), 0.0, 1.0)

    @staticmethod
    def from_moments(
        mean: np.ndarray,
        variance: np.ndarray,
        centred: np.ndarray,
        y: tuple[float, float] | None,
        centre_y: bool,
    ) -> "Scaling":
        """Root mean squares about the centre (0 where a column is not to be centred).

        ``y``: mean and variance of the response; None leaves it as it is.
        """
        centre = np.where(centred, mean, 0.0)
        scale = nonzero(np.sqrt(variance + (mean - centre) ** 2))
        if y is None:
            return Scaling(centre, scale, 0.0, 1.0)
        y_centre = y[0] if centre_y else 0.0
        y_scale = nonzero(np.sqrt(y[1] + (y[0] - y_centre) ** 2))
        return Scaling(centre, scale, float(y_centre), float(y_scale))

    def in_units_of_response(self, columns: np.ndarray) -> "Scaling":
        """The same, but columns with a known coefficient are scaled as the response is."""
        if not len(columns):
            return self
        centre, scale = self.centre.copy(), self.scale.copy()
        centre[columns], scale[columns] = 0.0, self.y_scale
        return self._replace(centre=centre, scale=scale)

    def with_facts(self, number: int, *, as_response: bool) -> "Scaling":
        """The same with so many more columns, which stay as they are or are scaled like y."""
        centre, scale = (self.y_centre, self.y_scale) if as_response else (0.0, 1.0)
        return self._replace(
            centre=np.append(self.centre, np.full(number, centre)),
            scale=np.append(self.scale, np.full(number, scale)),
        )

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Scaled columns."""
        return (x - self.centre) / self.scale

    def apply_response(self, y: np.ndarray) -> np.ndarray:
        """Scaled response."""
        return (y - self.y_centre) / self.y_scale

    def raw_response(self, y: np.ndarray) -> np.ndarray:
        """The way back from a scaled response."""
        return self.y_centre + self.y_scale * y

    def log_jacobian(self, num_rows: SupportsFloat) -> float:
        """What a log density of scaled responses exceeds that of the raw ones by."""
        return float(num_rows) * self.densities * float(np.log(self.y_scale))

    def back(self, columns: tuple[int, ...]) -> np.ndarray:
        """T for these columns; the first of all is the intercept wherever anything is centred."""
        index = list(columns)
        matrix = np.diag(self.y_scale / self.scale[index])
        if 0 in index:
            matrix[index.index(0)] -= self.y_scale * self.centre[index] / self.scale[index]
        return matrix


def add_intercept(x: np.ndarray, intercept: bool) -> np.ndarray:
    """Columns of the fixed part: those of x, after a column of ones for an intercept."""
    return np.concatenate([np.ones((len(x), 1)), x], axis=1) if intercept else x


def moments(values: np.ndarray, weight: np.ndarray | None) -> tuple[Any, Any]:
    """Mean and variance over rows; ``weight``: how often each row was observed."""
    mean = np.average(values, axis=0, weights=weight)
    return mean, np.average((values - mean) ** 2, axis=0, weights=weight)


def nonzero(size: np.ndarray) -> np.ndarray:
    """The same with 1 in the place of 0."""
    return np.where(size > 0, size, 1.0)
