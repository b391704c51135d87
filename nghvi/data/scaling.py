"""Standardisation, and the linear map that takes coefficients back, exactly and draw by draw.

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
    """Share of responses that have a density; the others have probabilities, without a unit."""

    @staticmethod
    def none(num_columns: int) -> "Scaling":
        """Return the scaling that leaves everything as it is."""
        return Scaling(np.zeros(num_columns), np.ones(num_columns), 0.0, 1.0)

    @staticmethod
    def from_moments(
        mean: np.ndarray,
        variance: np.ndarray,
        centred: np.ndarray,
        y: tuple[float, float] | None,
        centre_y: bool,
    ) -> "Scaling":
        """Scale columns by their root mean square about the centre, 0 for those not ``centred``.

        ``y`` is mean and variance of the response; None leaves the response as it is.
        """
        centre = np.where(centred, mean, 0.0)
        scale = nonzero(np.sqrt(variance + (mean - centre) ** 2))
        if y is None:
            return Scaling(centre, scale, 0.0, 1.0)
        y_centre = y[0] if centre_y else 0.0
        y_scale = nonzero(np.sqrt(y[1] + (y[0] - y_centre) ** 2))
        return Scaling(centre, scale, float(y_centre), float(y_scale))

    def in_units_of_response(self, columns: np.ndarray) -> "Scaling":
        """Return the scaling in which these columns, of known coefficient, are scaled like y."""
        if not len(columns):
            return self
        centre, scale = self.centre.copy(), self.scale.copy()
        centre[columns], scale[columns] = 0.0, self.y_scale
        return self._replace(centre=centre, scale=scale)

    def with_facts(self, number: int, *, as_response: bool) -> "Scaling":
        """Append ``number`` columns, which are scaled like y if ``as_response``, else unscaled."""
        centre, scale = (self.y_centre, self.y_scale) if as_response else (0.0, 1.0)
        return self._replace(
            centre=np.append(self.centre, np.full(number, centre)),
            scale=np.append(self.scale, np.full(number, scale)),
        )

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return columns on the fitted scale."""
        return (x - self.centre) / self.scale

    def apply_response(self, y: np.ndarray) -> np.ndarray:
        """Return the response on the fitted scale."""
        return (y - self.y_centre) / self.y_scale

    def raw_response(self, y: np.ndarray) -> np.ndarray:
        """Return a response on the fitted scale in the units of the data."""
        return self.y_centre + self.y_scale * y

    def log_jacobian(self, num_rows: SupportsFloat) -> float:
        """Return by how much the log density of scaled responses exceeds that of raw ones."""
        return float(num_rows) * self.densities * float(np.log(self.y_scale))

    def back(self, columns: tuple[int, ...]) -> np.ndarray:
        """Return T for these columns; column 0 is the intercept if any column is centred."""
        index = list(columns)
        matrix = np.diag(self.y_scale / self.scale[index])
        if 0 in index:
            matrix[index.index(0)] -= self.y_scale * self.centre[index] / self.scale[index]
        return matrix


def add_intercept(x: np.ndarray, intercept: bool) -> np.ndarray:
    """Return x, with a column of ones before it if there is an intercept."""
    return np.concatenate([np.ones((len(x), 1)), x], axis=1) if intercept else x


def moments(values: np.ndarray, weight: np.ndarray | None) -> tuple[Any, Any]:
    """Return mean and variance over rows; ``weight`` is how often each row was observed."""
    mean = np.average(values, axis=0, weights=weight)
    return mean, np.average((values - mean) ** 2, axis=0, weights=weight)


def nonzero(size: np.ndarray) -> np.ndarray:
    """Return sizes with 1 in place of 0."""
    return np.where(size > 0, size, 1.0)
