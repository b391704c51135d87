"""A polynomial that replaces the log density of a posterior::

    log p(y, theta)  ~  sum of c_a He_a(x) over |a| <= 4,      x = root^-1 (theta - centre)

He_a are products of Hermite polynomials, orthonormal for a Gaussian x. Coefficients of degree three
and four are shrunk, by as much as predicts left-out points best. The least squares are weighted by
the posterior, so what they miss is uncorrelated, under the posterior, with x and its squares: means
and variances computed with the surface are wrong only at second order. Tails are another matter: an
sd that may be near zero has a logarithm whose variance is made there, and what the surface misses
of a hundredth of the posterior weighs nothing in least squares. Beyond the bulk of the posterior
the surface is used only if it predicts densities there, and not at all very far out.

If gradients are known as well, they are fitted together with the densities, in units of x. Hermite
polynomials are orthogonal in both, so the best polynomial stays the same, but a draw of m
parameters says m + 1 numbers about it instead of one.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import cho_factor, cho_solve
from scipy.special import gammaincinv

POLYNOMIAL_DEGREE, FREE_DEGREE = 4, 2
"""Degree of the polynomial, and the degree up to which its coefficients are not shrunk."""
MOST_TERMS = 500
"""Number of terms beyond which the degree is lowered, since fitting them would take longer than it
saves."""
PER_TERM, PER_TERM_WITH_SCORES = 3, 2
"""Numbers known about draws of q, per term, from which on these are enough to fit a surface: their
log densities alone, or also the gradients."""
PENALTIES = 10.0 ** np.arange(-6, 1)
"""Strengths of the shrinkage that are tried."""
MISSED = 0.15
"""Nats that a surface may miss, as the root mean square over the posterior of errors at left-out
points."""
WITHIN, BULK, WIDER = 0.99, 0.9, 0.9999
"""Probability, under a Gaussian posterior, of the region in which a surface is fitted, of the one
in which it is used, and of the one in which it may be used if it predicts densities there."""


class Surface(NamedTuple):
    """A polynomial in standardised theta that replaces a log density, and where it holds."""

    centre: Float[np.ndarray, " m"]
    root: Float[np.ndarray, "m m"]
    terms: list[tuple[int, ...]]
    """Columns that each term multiplies, repeated according to their degree in it."""
    coefficients: Float[np.ndarray, " t"]

    def __call__(self, theta: Float[np.ndarray, "s m"]) -> Float[np.ndarray, " s"]:
        """Return the log density at every row."""
        return _polynomials(self._standard(theta), self.terms) @ self.coefficients

    def slopes(self, x: Float[np.ndarray, "s m"]) -> Float[np.ndarray, "s m"]:
        """Return the gradient in x at standardised points x."""
        m = len(self.centre)
        return _polynomials(x, self.terms) @ _derivative(self.terms, self.coefficients, m)

    def scores(self, theta: Float[np.ndarray, "s m"]) -> Float[np.ndarray, "s m"]:
        """Return the gradient of the log density at every row."""
        return np.linalg.solve(self.root.T, self.slopes(self._standard(theta)).T).T

    def holds(
        self, theta: Float[np.ndarray, "s m"], within: float = WITHIN
    ) -> Bool[np.ndarray, " s"]:
        """Return whether each row lies in the region of this probability about the centre."""
        bound = 2 * gammaincinv(len(self.centre) / 2, within)
        return np.sum(self._standard(theta) ** 2, axis=1) < bound

    def _standard(self, theta: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self.root, (theta - self.centre).T).T


def fitted_surface(
    theta: Float[np.ndarray, "s m"],
    log_density: Float[np.ndarray, " s"],
    weight: Float[np.ndarray, " s"],
    score: Float[np.ndarray, "s m"] | None = None,
) -> Surface | None:
    """Return the surface fitted to weighted draws of a posterior; None if it does not fit.

    ``score``: gradients of the log density, if they are known.
    """
    m = theta.shape[1]
    centre = weight @ theta
    covariance = (weight[:, None] * (theta - centre)).T @ (theta - centre)
    terms = _terms(m, _degree(m))
    try:
        root = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return None
    blank = Surface(centre, root, terms, np.zeros(len(terms)))
    used = np.isfinite(log_density) & blank.holds(theta)
    if score is not None:
        used &= np.isfinite(score).all(axis=1)
    weight = weight[used] / weight[used].sum()
    level = weight @ log_density[used]
    values = _polynomials(blank._standard(theta[used]), terms)
    rows, wanted = values[:, None], (log_density[used] - level)[:, None]
    if score is not None:
        rows = np.concatenate([rows, _slopes(values, terms, m)], axis=1)
        wanted = np.concatenate([wanted, score[used] @ root], axis=1)
    share = np.sqrt(weight)[:, None]
    held = np.array([len(columns) > FREE_DEGREE for columns in terms])
    missed, coefficients = _best_ridge(share[..., None] * rows, share * wanted, held)
    if not missed < MISSED:
        return None
    coefficients[0] += level  # the first term is the empty product
    return blank._replace(coefficients=coefficients)


def _best_ridge(
    rows: Float[np.ndarray, "s e t"], wanted: Float[np.ndarray, "s e"], held: Bool[np.ndarray, " t"]
) -> tuple[float, Float[np.ndarray, " t"]]:
    """Return the least root of summed squared leave-one-out errors, and the coefficients there.

    A draw is left out with all its rows, and what counts is the error of the first of them. The
    columns that are ``held`` are shrunk. What the others leave of them is turned once to its
    principal axes, along which every strength of the shrinkage is a division.
    """
    free, shrunk = rows[..., ~held], rows[..., held]
    flat = free.reshape(wanted.size, -1)
    try:
        factor = cho_factor(flat.T @ flat)
        through = cho_solve(factor, flat.T @ shrunk.reshape(wanted.size, held.sum()))
        rest = shrunk - free @ through
        spread, axes = np.linalg.eigh(np.einsum("set,seu->tu", rest, rest, optimize=True))
    except np.linalg.LinAlgError:
        return np.inf, np.zeros(rows.shape[-1])
    first = cho_solve(factor, flat.T @ wanted.ravel())
    along, left = rest @ axes, wanted - free @ first
    base = free @ cho_solve(factor, flat.T).reshape(-1, *wanted.shape).transpose(1, 0, 2)
    target, best = np.einsum("set,se->t", along, wanted), (np.inf, np.zeros(held.sum()))
    # Where a draw determines a coefficient alone, nothing is left to predict it from.
    identity = (1 + 1e-9) * np.eye(rows.shape[1])
    for penalty in PENALTIES:
        inverse = 1 / (np.maximum(spread, 0.0) + penalty)
        leverage = base + (along * inverse) @ along.transpose(0, 2, 1)
        error = (left - along @ (inverse * target))[..., None]
        error = np.linalg.solve(identity - leverage, error)[:, 0, 0]
        best = min(best, (float(np.sqrt(np.sum(error**2))), inverse * target), key=lambda b: b[0])
    coefficients = np.empty(rows.shape[-1])
    coefficients[held] = axes @ best[1]
    coefficients[~held] = first - through @ coefficients[held]
    return best[0], coefficients


def _degree(m: int) -> int:
    """Return the degree of a surface in m dimensions."""
    degrees = range(POLYNOMIAL_DEGREE, FREE_DEGREE, -1)
    return next((d for d in degrees if math.comb(m + d, d) <= MOST_TERMS), FREE_DEGREE)


def _terms(m: int, degree: int) -> list[tuple[int, ...]]:
    return [
        columns
        for d in range(degree + 1)
        for columns in itertools.combinations_with_replacement(range(m), d)
    ]


def _polynomials(x: Float[np.ndarray, "s m"], terms: list[tuple[int, ...]]) -> np.ndarray:
    """Return every term, a product of orthonormal Hermite polynomials, at every row."""
    hermite = [np.ones_like(x), x]
    for d in range(1, POLYNOMIAL_DEGREE):
        hermite.append(x * hermite[d] - d * hermite[d - 1])
    scaled = [h / math.sqrt(math.factorial(d)) for d, h in enumerate(hermite)]
    out = np.ones((len(x), len(terms)))
    for place, columns in enumerate(terms):
        for column in set(columns):
            out[:, place] *= scaled[columns.count(column)][:, column]
    return out


def _slopes(
    values: Float[np.ndarray, "s t"], terms: list[tuple[int, ...]], m: int
) -> Float[np.ndarray, "s m t"]:
    """Return the derivatives of all terms in each coordinate, from the terms' own values.

    The derivative of an orthonormal Hermite polynomial of degree d is sqrt(d) times the one of
    degree d - 1.
    """
    place = {columns: number for number, columns in enumerate(terms)}
    out = np.zeros((len(values), m, len(terms)))
    for number, columns in enumerate(terms):
        for column in set(columns):
            at = columns.index(column)
            lower = values[:, place[columns[:at] + columns[at + 1 :]]]
            out[:, column, number] = math.sqrt(columns.count(column)) * lower
    return out


def _derivative(
    terms: list[tuple[int, ...]], coefficients: Float[np.ndarray, " t"], m: int
) -> Float[np.ndarray, "t m"]:
    """Return the coefficients of a polynomial's derivative in each coordinate."""
    place = {columns: number for number, columns in enumerate(terms)}
    out = np.zeros((len(terms), m))
    for columns, coefficient in zip(terms, coefficients, strict=True):
        for column in set(columns):
            at = columns.index(column)
            lower = place[columns[:at] + columns[at + 1 :]]
            out[lower, column] += math.sqrt(columns.count(column)) * coefficient
    return out


def draws_for_surface(m: int, with_scores: bool) -> int:
    """Return how many draws of q, of m parameters, are enough to fit a surface."""
    terms = len(_terms(m, _degree(m)))
    return -(-terms * PER_TERM_WITH_SCORES // (1 + m)) if with_scores else terms * PER_TERM
