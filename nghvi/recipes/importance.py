"""Draws of theta, corrected by importance weights where that can be trusted.

q is the best Gaussian; a posterior with few groups is skewed. For small m the exact posterior
is in reach: draw from a multivariate t fitted to the weighted draws of q (heavier tails than
the target's keep the weights bounded), weigh by p(y, theta) / proposal, smooth the largest
weights, and keep the result if the Pareto shape says that it is reliable. If densities take long,
a polynomial (:mod:`nghvi.recipes.surface`) fitted to those of q's draws, with their gradients, or
of the first round replaces most of the others.

Smoothing (PSIS; Vehtari, Simpson, Gelman, Yao and Gabry, 2024): beyond a cutoff u the weights are
taken to follow a generalised Pareto distribution, ``P(w > u + t) = (1 + k t / sigma)^(-1/k)``, and
the largest ones are replaced by its quantiles. k and sigma are the estimates of Zhang and Stephens
(2009): with b = -k / sigma, k(b) is the mean of log(1 - b t) in closed form, which leaves an
average over a grid of b. arviz-stats computes the same, but loads matplotlib and xarray.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.linalg import solve_triangular
from scipy.special import gammaincinv, gammaln, ndtri, softmax

from nghvi._core.evaluate import Evaluation, log_mean_exp, log_targets
from nghvi._core.model import MarginalModel
from nghvi._core.sobol import sobol
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Data
from nghvi.recipes.surface import (
    BULK,
    MISSED,
    WIDER,
    Surface,
    draws_for_surface,
    fitted_surface,
)

RELIABLE = 0.7
"""Pareto shape above which importance weights are not to be trusted."""
DEGREES, DEGREES_BY_SURFACE = 7.0, 15.0
"""Degrees of freedom of the t from which draws are proposed, and of the one whose moments a surface
gave: its centre is right, so that fewer draws need be far out, where all are evaluated."""
LARGEST_DIMENSION = 60
"""Number of parameters beyond which weights are not tried."""
ENOUGH = 1500
"""Number of effective draws after which no further round is made: means are then known to 0.026
posterior sd."""
LOG2_SPREAD, EVEN = 12, 32
"""Number of evenly spread draws (as a power of two), and how many of the first ones give a mean
more accurately than a hundred independent draws."""
CHECKED = 32
"""Number of draws with large weights, and of others, that a surface has to predict in the tails."""
PER_PARAMETER = 8
"""Least number of draws per parameter for which they are moved to the covariance of all."""
TAIL = 5
"""Least number of weights in a tail."""
EQUAL = 1e-8
"""Spread of log weights that is due to rounding only."""
PRIOR_SHAPE, PRIOR_WEIGHTS = 0.5, 10
"""Value to which the shape is shrunk, and the number of weights that this counts for, since a short
tail says little about the shape."""


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
    chains: int = 0
    """How many Hamiltonian chains have moved the draws from q to the posterior; 0 if none did."""

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
        """Return at most ``most`` equally weighted points, for what takes seconds per point.

        2 m points, opposite in pairs along m random orthogonal directions, have the mean and the
        covariance of all draws: averages of cubic functions of a Gaussian theta are exact. If these
        are too many, points are drawn, or are the first of a Sobol sequence, which are themselves
        evenly spread. A pool of another size than such a sequence holds independent draws.
        """
        m = self.theta.shape[1]
        centre, root = _moments(self)
        if 2 * m <= most and root is not None:
            direction = np.linalg.qr(rng.standard_normal((m, m)))[0]
            away = np.sqrt(m) * direction @ root.T
            return centre + np.concatenate([away, -away])
        even = not self.corrected and len(self.theta) == 2**LOG2_SPREAD
        return self.theta[: min(most, EVEN)] if even else self.resample(most, rng)

    def resample(self, draws: int, rng: np.random.Generator) -> Float[np.ndarray, "s m"]:
        """Return equally weighted draws, by systematic resampling, in random order."""
        positions = (rng.random() + np.arange(draws)) / draws
        chosen = np.searchsorted(np.cumsum(self.weight), positions, side="right")
        return self.theta[rng.permutation(np.minimum(chosen, len(self.theta) - 1))]

    def matched(self, draws: int, rng: np.random.Generator) -> Float[np.ndarray, "s m"]:
        """Return resampled draws, moved a little so that averages over them have less noise.

        They get the mean and covariance of all draws, so that averages of functions that are nearly
        quadratic in theta are nearly exact. Where they are too few to tell a covariance, or all the
        same, they stay as they are.
        """
        theta = self.resample(draws, rng)
        centre, root = _moments(self)
        own_centre, own_root = _moments(Pool.plain(theta))
        if root is None or own_root is None or draws < PER_PARAMETER * theta.shape[1]:
            return theta
        standard = solve_triangular(own_root, (theta - own_centre).T, lower=True)
        return centre + standard.T @ root.T


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
    surface: Surface | None = None,
) -> Pool | None:
    """Return corrected draws, given those of an evaluation; None if weights are not reliable.

    ``rounds``: how often new draws may be proposed; ``log2_draws``: draws of a full round, as a
    power of two; ``batch``: draws evaluated side by side; ``expensive``: whether densities take so
    long that the second round is reduced as well; ``surface``: one through more draws, if known.
    """
    m = evaluation.theta.shape[1]
    if m > LARGEST_DIMENSION or not np.isfinite(evaluation.log_ratio).any():
        return None
    log_ratio = np.maximum(evaluation.log_ratio, evaluation.log_ratio.max() - 700)
    weight, k_hat = smooth_weights(log_ratio)
    current = Pool(evaluation.theta, weight, k_hat, False)
    kept: list[Pool] = []
    few = len(weight) < 2 ** (log2_draws - 2)
    enough = len(weight) >= draws_for_surface(m, evaluation.score is not None)
    if surface is None and few and enough and k_hat < RELIABLE:
        surface = fitted_surface(evaluation.theta, evaluation.log_target, weight, evaluation.score)
    if surface is not None:
        current = _moved(current, surface, log2_draws, rng)
    first = int(surface is not None)
    for turn in range(first, first + rounds):
        # Few draws give the proposal's moments only roughly, so a small round finds better ones
        # first, unless a surface is known already. After that half of the draws are usually enough,
        # but a surface makes the others cheap.
        halved = turn == 1 and expensive and surface is None
        reduction = (3 if turn == 0 else int(halved)) if few else 0
        centre, root = _moments(current)
        if root is None:
            break
        degrees = DEGREES if surface is None else DEGREES_BY_SURFACE
        standard = _t_points(m, log2_draws - reduction, rng, degrees)
        theta = centre + standard @ root.T
        log_proposal = _t_log_density(standard, root, degrees)
        if surface is None:
            log_target = log_targets(model, data, theta, batch)
        else:
            log_target = _by_surface(surface, model, data, theta, log_proposal, batch)
        log_ratio = log_target - log_proposal
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


def _moved(pool: Pool, surface: Surface, log2_draws: int, rng: np.random.Generator) -> Pool:
    """Return draws weighted by the surface alone, from which a proposal gets better moments.

    No density is evaluated. Draws beyond the region where the surface was fitted get no weight.
    """
    centre, root = _moments(pool)
    if root is None:
        return pool
    standard = _t_points(len(centre), log2_draws, rng, DEGREES)
    theta = centre + standard @ root.T
    inside = surface.holds(theta)
    log_ratio = np.where(inside, surface(theta), -np.inf) - _t_log_density(standard, root, DEGREES)
    return Pool(theta, softmax(log_ratio), np.nan, False) if inside.any() else pool


def _by_surface(
    surface: Surface,
    model: MarginalModel,
    data: Data,
    theta: Float[np.ndarray, "s m"],
    log_proposal: Float[np.ndarray, " s"],
    batch: int | None,
) -> Float[np.ndarray, " s"]:
    """Return log targets, most of them by the surface.

    Beyond the bulk of the posterior the surface has to predict the draws to which it gives the
    largest weights, and others that are spread evenly; otherwise all draws there are evaluated. Too
    much density in a tail counts like too little.
    """
    log_target = surface(theta)
    exact = ~surface.holds(theta, WIDER)
    between = np.flatnonzero(~exact & ~surface.holds(theta, BULK))
    log_ratio = log_target[between] - log_proposal[between]
    order = np.argsort(-log_ratio)
    rest = order[CHECKED:]
    checked = np.concatenate([order[:CHECKED], rest[:: max(1, len(rest) // CHECKED)]])
    exact[between[checked]] = True
    predicted = log_target[exact]
    log_target[exact] = log_targets(model, data, theta[exact], batch)
    if len(checked) < len(between):
        chosen = np.isin(np.flatnonzero(exact), between)
        error = (predicted - log_target[exact])[chosen]
        either = np.maximum(predicted, log_target[exact]) - log_proposal[exact]
        weight = softmax(either[chosen])
        if not np.sqrt(np.sum(weight * error**2)) < MISSED:
            left = np.delete(between, checked)
            log_target[left] = log_targets(model, data, theta[left], batch)
    return log_target


def _even(dim: int, log2_draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return points that fill the open unit cube evenly."""
    return np.clip(sobol(dim, log2_draws, rng), 1e-12, 1 - 1e-12)


@program
def _transported(q: Variational, noise: Float[Array, "s e"]) -> Float[Array, "s m"]:
    return jax.vmap(q.transport)(noise)


def _t_points(m: int, log2_draws: int, rng: np.random.Generator, degrees: float) -> np.ndarray:
    """Return standard multivariate t points from a Sobol sequence, which reduces noise."""
    uniform = _even(m + 1, log2_draws, rng)
    chi_square = 2 * gammaincinv(degrees / 2, uniform[:, :1])
    return ndtri(uniform[:, 1:]) / np.sqrt(chi_square / degrees)


def _moments(pool: Pool) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the weighted mean and a root of the covariance; None if that is singular."""
    centre = pool.weight @ pool.theta
    deviation = pool.theta - centre
    covariance = (pool.weight[:, None] * deviation).T @ deviation
    try:
        return centre, np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return centre, None


def _t_log_density(standard: np.ndarray, root: np.ndarray, degrees: float) -> np.ndarray:
    m = standard.shape[1]
    constant = gammaln((degrees + m) / 2) - gammaln(degrees / 2) - 0.5 * m * np.log(degrees * np.pi)
    log_det = np.sum(np.log(np.diag(root)))
    tail = -0.5 * (degrees + m) * np.log1p(np.sum(standard**2, axis=1) / degrees)
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
