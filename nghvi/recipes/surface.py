"""A polynomial that stands for a log density at points where it was not evaluated::

    log p(y, theta)  ~  sum of c_a He_a(x) over |a| <= 4,      x = root^-1 (theta - centre)

He_a are products of Hermite polynomials, orthonormal for a Gaussian x; those of degree three and
four have small coefficients a priori, as much smaller as predicts points best that are left out.
Weights of the posterior make what the least squares miss uncorrelated, under the posterior, with
x and its squares: means and variances by the surface are wrong at second order only. Far out,
where few points were evaluated, a polynomial knows nothing and says so.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import cho_factor, cho_solve
from scipy.special import gammaincinv

DEGREE, FREE = 4, 2
"""Degree of the polynomial, and the degree up to which coefficients are free."""
MOST_TERMS = 500
"""More of them take longer than what they save: then the polynomial has a lower degree."""
PENALTIES = 10.0 ** np.arange(-6, 1)
MISSED = 0.15
"""Nats that a surface may miss, as a root mean square over the posterior, each point left out."""
WITHIN = 0.99
"""Share of a Gaussian posterior in the region where a surface is used."""


class Surface(NamedTuple):
    """Coefficients of polynomials of standardised theta, and where they hold."""

    centre: Float[np.ndarray, " m"]
    root: Float[np.ndarray, "m m"]
    terms: list[tuple[int, ...]]
    """Columns that a term multiplies, one as often as its degree in it."""
    coefficients: Float[np.ndarray, " t"]

    def __call__(self, theta: Float[np.ndarray, "s m"]) -> Float[np.ndarray, " s"]:
        """The log density at every row."""
        return _polynomials(self._standard(theta), self.terms) @ self.coefficients

    def holds(self, theta: Float[np.ndarray, "s m"]) -> Bool[np.ndarray, " s"]:
        """Whether a row lies in the region where the surface was fitted."""
        bound = 2 * gammaincinv(len(self.centre) / 2, WITHIN)
        return np.sum(self._standard(theta) ** 2, axis=1) < bound

    def _standard(self, theta: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self.root, (theta - self.centre).T).T


def fitted_surface(
    theta: Float[np.ndarray, "s m"],
    log_density: Float[np.ndarray, " s"],
    weight: Float[np.ndarray, " s"],
) -> Surface | None:
    """The surface through weighted draws of a posterior; None where no polynomial is near it."""
    m = theta.shape[1]
    centre = weight @ theta
    covariance = (weight[:, None] * (theta - centre)).T @ (theta - centre)
    degree = next((d for d in range(DEGREE, FREE, -1) if math.comb(m + d, d) <= MOST_TERMS), FREE)
    terms = _terms(m, degree)
    try:
        root = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return None
    blank = Surface(centre, root, terms, np.zeros(len(terms)))
    used = np.isfinite(log_density) & blank.holds(theta)
    weight = weight[used] / weight[used].sum()
    level = weight @ log_density[used]
    rows = np.sqrt(weight)[:, None] * _polynomials(blank._standard(theta[used]), terms)
    wanted = np.sqrt(weight) * (log_density[used] - level)
    held = np.array([len(columns) > FREE for columns in terms])
    fits = [_ridge(rows, wanted, penalty * held) for penalty in PENALTIES]
    missed, coefficients = min(fits, key=lambda fit: fit[0])
    if not missed < MISSED:
        return None
    coefficients[0] += level  # of the empty product
    return blank._replace(coefficients=coefficients)


def _ridge(rows: np.ndarray, wanted: np.ndarray, penalty: np.ndarray) -> tuple[float, np.ndarray]:
    """Root of the summed squares that are missed where each row is left out, and coefficients."""
    try:
        factor = cho_factor(rows.T @ rows + np.diag(penalty))
    except np.linalg.LinAlgError:
        return np.inf, np.zeros(rows.shape[1])
    coefficients = cho_solve(factor, rows.T @ wanted)
    leverage = np.sum(rows * cho_solve(factor, rows.T).T, axis=1)
    left = (wanted - rows @ coefficients) / np.maximum(1 - leverage, 1e-9)
    return float(np.sqrt(np.sum(left**2))), coefficients


def _terms(m: int, degree: int) -> list[tuple[int, ...]]:
    return [
        columns
        for d in range(degree + 1)
        for columns in itertools.combinations_with_replacement(range(m), d)
    ]


def _polynomials(x: Float[np.ndarray, "s m"], terms: list[tuple[int, ...]]) -> np.ndarray:
    """Every term at every row: products of orthonormal Hermite polynomials of the columns."""
    hermite = [np.ones_like(x), x]
    for d in range(1, DEGREE):
        hermite.append(x * hermite[d] - d * hermite[d - 1])
    scaled = [h / math.sqrt(math.factorial(d)) for d, h in enumerate(hermite)]
    out = np.ones((len(x), len(terms)))
    for place, columns in enumerate(terms):
        for column in set(columns):
            out[:, place] *= scaled[columns.count(column)][:, column]
    return out
