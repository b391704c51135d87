"""Draws of theta, corrected by importance weights where that can be trusted.

q is the best Gaussian; a posterior with few groups is skewed. For small m the exact posterior
is in reach: draw from a multivariate t fitted to the weighted draws of q (heavier tails than
the target's keep the weights bounded), weigh by p(y, theta) / proposal, smooth the largest
weights, and keep the result if the Pareto shape says that it is reliable. If densities take long,
a polynomial fitted to those of the first round replaces most of the others.

Smoothing (PSIS; Vehtari, Simpson, Gelman, Yao and Gabry, 2024): beyond a cutoff u the weights are
taken to follow a generalised Pareto distribution, ``P(w > u + t) = (1 + k t / sigma)^(-1/k)``, and
the largest ones are replaced by its quantiles. k and sigma are the estimates of Zhang and Stephens
(2009): with b = -k / sigma, k(b) is the mean of log(1 - b t) in closed form, which leaves an
average over a grid of b. arviz-stats computes the same, but loads matplotlib and xarray.

The polynomial that replaces a log density is::

    log p(y, theta)  ~  sum of c_a He_a(x) over |a| <= 4,      x = root^-1 (theta - centre)

He_a are products of Hermite polynomials, orthonormal for a Gaussian x. Coefficients of degree three
and four are shrunk, by as much as predicts left-out points best. The least squares are weighted by
the posterior, so what they miss is uncorrelated, under the posterior, with x and its squares: means
and variances computed with the surface are wrong only at second order. The surface is not used far
out, where few points were evaluated.
"""

import itertools
import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.linalg import cho_factor, cho_solve
from scipy.special import gammaincinv, gammaln, ndtri, softmax

from nghvi._core.evaluate import Evaluation, log_mean_exp, log_targets
from nghvi._core.model import MarginalModel
from nghvi._core.sobol import sobol
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Data

RELIABLE = 0.7
"""Pareto shape above which importance weights are not to be trusted."""
DEGREES = 7.0
"""Degrees of freedom of the t from which draws are proposed."""
LARGEST_DIMENSION = 60
"""Number of parameters beyond which weights are not tried."""
ENOUGH = 1500
"""Number of effective draws after which no further round is made: means are then known to 0.026
posterior sd."""
LOG2_SPREAD, EVEN = 12, 32
"""Number of evenly spread draws (as a power of two), and how many of the first ones give a mean
more accurately than a hundred independent draws."""
TAIL = 5
"""Least number of weights in a tail."""
EQUAL = 1e-8
"""Spread of log weights that is due to rounding only."""
PRIOR_SHAPE, PRIOR_WEIGHTS = 0.5, 10
"""Value to which the shape is shrunk, and the number of weights that this counts for, since a short
tail says little about the shape."""
POLYNOMIAL_DEGREE, FREE_DEGREE = 4, 2
"""Degree of the polynomial, and the degree up to which its coefficients are not shrunk."""
MOST_TERMS = 500
"""Number of terms beyond which the degree is lowered, since fitting them would take longer than it
saves."""
PER_TERM = 3
"""Number of draws of q per term from which on these are enough to fit a surface."""
PENALTIES = 10.0 ** np.arange(-6, 1)
"""Strengths of the shrinkage that are tried."""
MISSED = 0.15
"""Nats that a surface may miss, as the root mean square over the posterior of errors at left-out
points."""
WITHIN = 0.99
"""Probability, under a Gaussian posterior, of the region in which a surface is used."""


class Pool(NamedTuple):
    """Weighted draws of theta that represent its posterior."""

    theta: Float[np.ndarray, "s m"]
    weight: Float[np.ndarray, " s"]
    """Weights of the draws, which sum to one."""
    k_hat: float
    """Pareto shape of the weights; NaN if none were computed."""
    corrected: bool
    """Whether the weights correct q towards the exact posterior."""
    log_evidence: float = np.nan
    """The estimate of log p(y) from the weights; NaN if none were computed."""
    member: Int[np.ndarray, " s"] | None = None
    """Which start of a network each draw comes from; None if there is only one."""

    @staticmethod
    def plain(theta: np.ndarray) -> "Pool":
        """Return a pool of equally weighted draws of q."""
        return Pool(theta, np.full(len(theta), 1 / len(theta)), np.nan, False)

    @staticmethod
    def spread(q: Variational, rng: np.random.Generator) -> "Pool":
        """Return evenly spread draws of q; independent ones would give sds only to 1 or 2 %."""
        return Pool.plain(np.asarray(_transported(q, ndtri(_even(q.noise_dim, LOG2_SPREAD, rng)))))

    @property
    def effective(self) -> float:
        """Effective number of draws."""
        return float(1 / np.sum(self.weight**2))

    @staticmethod
    def merged(pools: "list[Pool]") -> "Pool":
        """Return all draws, each pool weighted by its effective number, so that numbers add up."""
        share = np.array([pool.effective for pool in pools])
        share /= share.sum()
        best = pools[int(share.argmax())]
        theta = np.concatenate([pool.theta for pool in pools])
        weight = np.concatenate([s * pool.weight for s, pool in zip(share, pools, strict=True)])
        return best._replace(theta=theta, weight=weight)

    def few(self, most: int, rng: np.random.Generator) -> Float[np.ndarray, "s m"]:
        """Return at most ``most`` equally weighted draws, for what takes seconds per draw.

        The first points of a Sobol sequence are themselves evenly spread. A pool of another size
        than such a sequence holds independent draws.
        """
        even = not self.corrected and len(self.theta) == 2**LOG2_SPREAD
        return self.theta[: min(most, EVEN)] if even else self.resample(most, rng)

    def resample(self, draws: int, rng: np.random.Generator) -> Float[np.ndarray, "s m"]:
        """Return equally weighted draws, by systematic resampling, in random order."""
        positions = (rng.random() + np.arange(draws)) / draws
        chosen = np.searchsorted(np.cumsum(self.weight), positions, side="right")
        return self.theta[rng.permutation(np.minimum(chosen, len(self.theta) - 1))]


def smooth_weights(log_ratio: np.ndarray) -> tuple[np.ndarray, float]:
    """Return Pareto smoothed, normalised weights and the shape k-hat."""
    log_weight, k_hat = pareto_smoothed(log_ratio)
    return np.exp(log_weight), float(k_hat)


def pareto_shape(log_ratio: np.ndarray) -> float:
    """Return k-hat of q itself, which shows what the family misses even at its optimum."""
    if not np.isfinite(log_ratio).any():
        return float("inf")
    return smooth_weights(np.maximum(log_ratio, log_ratio.max() - 700))[1]


def importance_pool(
    evaluation: Evaluation,
    model: MarginalModel,
    data: Data,
    rng: np.random.Generator,
    *,
    rounds: int = 4,
    log2_draws: int = 12,
    batch: int | None = None,
    expensive: bool = True,
) -> Pool | None:
    """Return corrected draws, given those of an evaluation; None if weights are not reliable.

    ``rounds``: how often new draws may be proposed; ``log2_draws``: draws of a full round, as a
    power of two; ``batch``: draws evaluated side by side; ``expensive``: whether densities take so
    long that the second round is reduced as well.
    """
    m = evaluation.theta.shape[1]
    if m > LARGEST_DIMENSION or not np.isfinite(evaluation.log_ratio).any():
        return None
    log_ratio = np.maximum(evaluation.log_ratio, evaluation.log_ratio.max() - 700)
    weight, k_hat = smooth_weights(log_ratio)
    current = Pool(evaluation.theta, weight, k_hat, False)
    kept: list[Pool] = []
    surface: Surface | None = None
    few = len(weight) < 2 ** (log2_draws - 2)
    if few and k_hat < RELIABLE and len(weight) >= PER_TERM * len(_terms(m, _degree(m))):
        surface = fitted_surface(evaluation.theta, evaluation.log_target, weight)
    first = int(surface is not None)
    for turn in range(first, first + rounds):
        # Few draws give the proposal's moments only roughly, so a small round finds better ones
        # first, unless a surface is known already. After that half of the draws are usually enough.
        halved = turn == 1 and (expensive or surface is not None)
        reduction = (3 if turn == 0 else int(halved)) if few else 0
        centre, root = _moments(current)
        if root is None:
            break
        standard = _t_points(m, log2_draws - reduction, rng)
        theta = centre + standard @ root.T
        by_surface = np.full(len(theta), False) if surface is None else surface.holds(theta)
        log_target = np.empty(len(theta))
        log_target[~by_surface] = log_targets(model, data, theta[~by_surface], batch)
        if surface is not None:
            log_target[by_surface] = surface(theta[by_surface])
        log_ratio = log_target - _t_log_density(standard, root)
        if not np.isfinite(log_ratio).any():
            break
        weight, k_hat = smooth_weights(np.maximum(log_ratio, log_ratio.max() - 700))
        if few and surface is None and not kept and k_hat < RELIABLE:
            surface = fitted_surface(theta, log_target, weight)
        current = Pool(theta, weight, k_hat, k_hat < RELIABLE, log_mean_exp(log_ratio))
        # Weighted draws of q itself are never kept: its tails are so light that the draws do not
        # show what they miss, so their effective number is too optimistic.
        if current.corrected:
            kept.append(current)
        if kept and Pool.merged(kept).effective > ENOUGH:
            break
    found = Pool.merged(kept) if kept else None
    return found if found is not None and found.effective > 50 + 10 * m else None


def _even(dim: int, log2_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return points that fill the open unit cube evenly."""
    return np.clip(sobol(dim, log2_draws, rng), 1e-12, 1 - 1e-12)


@program
def _transported(q: Variational, noise: Float[Array, "s e"]) -> Float[Array, "s m"]:
    return jax.vmap(q.transport)(noise)


def _t_points(m: int, log2_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return standard multivariate t points from a Sobol sequence, which reduces noise."""
    uniform = _even(m + 1, log2_draws, rng)
    chi_square = 2 * gammaincinv(DEGREES / 2, uniform[:, :1])
    return ndtri(uniform[:, 1:]) / np.sqrt(chi_square / DEGREES)


def _moments(pool: Pool) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the weighted mean and a root of the covariance; None if that is singular."""
    centre = pool.weight @ pool.theta
    deviation = pool.theta - centre
    covariance = (pool.weight[:, None] * deviation).T @ deviation
    try:
        return centre, np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return centre, None


def _t_log_density(standard: np.ndarray, root: np.ndarray) -> np.ndarray:
    m = standard.shape[1]
    constant = gammaln((DEGREES + m) / 2) - gammaln(DEGREES / 2) - 0.5 * m * np.log(DEGREES * np.pi)
    log_det = np.sum(np.log(np.diag(root)))
    tail = -0.5 * (DEGREES + m) * np.log1p(np.sum(standard**2, axis=1) / DEGREES)
    return constant - log_det + tail


def pareto_smoothed(
    log_ratio: Float[np.ndarray, "... s"],
) -> tuple[Float[np.ndarray, "... s"], Float[np.ndarray, " ..."]]:
    """Return normalised, smoothed log weights along the last axis, and the Pareto shape k-hat.

    Equal weights have no tail and get shape 0. Other weights whose tail cannot be fitted, because
    draws went astray, stay as they are and get an infinite shape.
    """
    log_weight = log_ratio - log_ratio.max(axis=-1, keepdims=True)
    draws = log_weight.shape[-1]
    size = int(3 * draws**0.5 if draws > 225 else draws / 5)
    if size < TAIL:
        raise ValueError(f"{draws} draws have no tail to smooth; give at least {5 * TAIL}.")
    order = np.argpartition(log_weight, -size - 1, axis=-1)[..., -size - 1 :]
    tail = np.take_along_axis(log_weight, order, axis=-1)
    order = np.take_along_axis(order, np.argsort(tail, axis=-1), axis=-1)
    tail = np.sort(tail, axis=-1)
    largest = np.exp(tail)
    cutoff, above = largest[..., :1], largest[..., 1:] - largest[..., :1]
    with np.errstate(all="ignore"):
        shape, scale = _generalised_pareto(above)
        log_survival = np.log1p(-(np.arange(size) + 0.5) / size)
        quantiles = cutoff + scale * np.expm1(-shape * log_survival) / shape
        smoothed = np.minimum(np.log(quantiles), 0.0)  # none above the largest raw weight
    equal = np.ptp(log_weight, axis=-1) < EQUAL
    fitted = np.isfinite(smoothed).all(axis=-1) & ~equal
    smoothed = np.where(fitted[..., None], smoothed, tail[..., 1:])
    np.put_along_axis(log_weight, order[..., 1:], smoothed, axis=-1)
    log_weight -= np.log(np.sum(np.exp(log_weight), axis=-1, keepdims=True))
    return log_weight, np.where(equal, 0.0, np.where(fitted, shape[..., 0], np.inf))


def _generalised_pareto(
    above: Float[np.ndarray, "... t"],
) -> tuple[Float[np.ndarray, "... 1"], Float[np.ndarray, "... 1"]]:
    """Return shape and scale of the excesses over the cutoff, which are in ascending order."""
    size = above.shape[-1]
    points = 30 + int(size**0.5)
    grid = 1 - np.sqrt(points / (np.arange(points) + 0.5))
    quartile = above[..., int(size / 4 + 0.5) - 1, None]
    b = grid / (3 * quartile) + 1 / above[..., -1:]
    k = np.stack([_mean_log(each, above) for each in np.moveaxis(b, -1, 0)], axis=-1)
    likelihood = size * (np.log(-b / k) - k - 1)
    mean_b = np.sum(b * softmax(likelihood, axis=-1), axis=-1)
    k_at_mean = _mean_log(mean_b, above)
    scale = -k_at_mean / mean_b
    shape = (size * k_at_mean + PRIOR_WEIGHTS * PRIOR_SHAPE) / (size + PRIOR_WEIGHTS)
    return shape[..., None], scale[..., None]


def _mean_log(b: np.ndarray, above: np.ndarray) -> np.ndarray:
    return np.mean(np.log1p(-b[..., None] * above), axis=-1)


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

    def holds(self, theta: Float[np.ndarray, "s m"]) -> Bool[np.ndarray, " s"]:
        """Return whether each row lies in the region where the surface was fitted."""
        bound = 2 * gammaincinv(len(self.centre) / 2, WITHIN)
        return np.sum(self._standard(theta) ** 2, axis=1) < bound

    def _standard(self, theta: np.ndarray) -> np.ndarray:
        return np.linalg.solve(self.root, (theta - self.centre).T).T


def fitted_surface(
    theta: Float[np.ndarray, "s m"],
    log_density: Float[np.ndarray, " s"],
    weight: Float[np.ndarray, " s"],
) -> Surface | None:
    """Return the surface fitted to weighted draws of a posterior; None if it does not fit."""
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
    weight = weight[used] / weight[used].sum()
    level = weight @ log_density[used]
    rows = np.sqrt(weight)[:, None] * _polynomials(blank._standard(theta[used]), terms)
    wanted = np.sqrt(weight) * (log_density[used] - level)
    held = np.array([len(columns) > FREE_DEGREE for columns in terms])
    missed, coefficients = _best_ridge(rows, wanted, held)
    if not missed < MISSED:
        return None
    coefficients[0] += level  # the first term is the empty product
    return blank._replace(coefficients=coefficients)


def _best_ridge(
    rows: Float[np.ndarray, "s t"], wanted: Float[np.ndarray, " s"], held: Bool[np.ndarray, " t"]
) -> tuple[float, Float[np.ndarray, " t"]]:
    """Return the least root of summed squared leave-one-out errors, and the coefficients there.

    The columns that are ``held`` are shrunk. What the others leave of them is turned once to its
    principal axes, along which every strength of the shrinkage is a division.
    """
    free, shrunk = rows[:, ~held], rows[:, held]
    try:
        factor = cho_factor(free.T @ free)
        through = cho_solve(factor, free.T @ shrunk)
        rest = shrunk - free @ through
        spread, axes = np.linalg.eigh(rest.T @ rest)
    except np.linalg.LinAlgError:
        return np.inf, np.zeros(rows.shape[1])
    along, first = rest @ axes, cho_solve(factor, free.T @ wanted)
    base = np.sum(free * cho_solve(factor, free.T).T, axis=1)
    target, left, best = along.T @ wanted, wanted - free @ first, (np.inf, np.zeros(held.sum()))
    for penalty in PENALTIES:
        inverse = 1 / (np.maximum(spread, 0.0) + penalty)
        leverage = base + along**2 @ inverse
        error = (left - along @ (inverse * target)) / np.maximum(1 - leverage, 1e-9)
        best = min(best, (float(np.sqrt(np.sum(error**2))), inverse * target), key=lambda b: b[0])
    coefficients = np.empty(rows.shape[1])
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
