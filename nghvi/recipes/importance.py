"""Draws of theta, corrected by importance weights where that can be trusted.

q is the best Gaussian; a posterior with few groups is skewed. For small m the exact posterior
is in reach: draw from a multivariate t fitted to the weighted draws of q (heavier tails than
the target's keep the weights bounded), weigh by p(y, theta) / proposal, smooth the largest
weights (PSIS), and keep the result if the Pareto shape says that it is reliable. Where densities
take long, a polynomial through those of the first round stands for most of the others.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammaincinv, gammaln, ndtri

from nghvi._core.evaluate import Evaluation, log_mean_exp, log_targets
from nghvi._core.model import MarginalModel
from nghvi._core.sobol import sobol
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Data
from nghvi.recipes.pareto import pareto_smoothed
from nghvi.recipes.surface import Surface, fitted_surface

RELIABLE = 0.7
"""Pareto shape above which importance weights are not to be trusted."""
DEGREES = 7.0
LARGEST_DIMENSION = 60
ENOUGH = 1500
"""Effective draws with which no further round is made: means are known to 0.026 posterior sd."""
LOG2_SPREAD, EVEN = 12, 32
"""Of evenly spread draws: how many there are, and how many of them tell a mean better than a
hundred independent ones."""


class Pool(NamedTuple):
    """Weighted draws of theta that stand for its posterior."""

    theta: Float[np.ndarray, "s m"]
    weight: Float[np.ndarray, " s"]
    """Sums to one."""
    k_hat: float
    """Pareto shape of the weights; nan where none were computed."""
    corrected: bool
    """Whether the weights correct q towards the exact posterior."""
    log_evidence: float = np.nan
    """log p(y) by the weights; nan where none were computed."""

    @staticmethod
    def plain(theta: np.ndarray) -> "Pool":
        """Equally weighted draws of q."""
        return Pool(theta, np.full(len(theta), 1 / len(theta)), np.nan, False)

    @staticmethod
    def spread(q: Variational, rng: np.random.Generator) -> "Pool":
        """Draws of q that are spread evenly: independent ones know an sd to one or two percent."""
        return Pool.plain(np.asarray(_transported(q, ndtri(_even(q.noise_dim, LOG2_SPREAD, rng)))))

    @property
    def effective(self) -> float:
        """Effective number of draws."""
        return float(1 / np.sum(self.weight**2))

    @staticmethod
    def merged(pools: "list[Pool]") -> "Pool":
        """All draws, those of a pool in proportion to its effective number: the numbers add up."""
        share = np.array([pool.effective for pool in pools])
        share /= share.sum()
        best = pools[int(share.argmax())]
        theta = np.concatenate([pool.theta for pool in pools])
        weight = np.concatenate([s * pool.weight for s, pool in zip(share, pools, strict=True)])
        return best._replace(theta=theta, weight=weight)

    def few(self, most: int, rng: np.random.Generator) -> Float[np.ndarray, "s m"]:
        """Equally weighted draws, at most so many, for what takes seconds per draw.

        The first points of a Sobol sequence are spread evenly themselves; other pools, known by
        their size, hold independent draws.
        """
        even = not self.corrected and len(self.theta) == 2**LOG2_SPREAD
        return self.theta[: min(most, EVEN)] if even else self.resample(most, rng)

    def resample(self, draws: int, rng: np.random.Generator) -> Float[np.ndarray, "s m"]:
        """Equally weighted draws, by systematic resampling in random order."""
        positions = (rng.random() + np.arange(draws)) / draws
        chosen = np.searchsorted(np.cumsum(self.weight), positions, side="right")
        return self.theta[rng.permutation(np.minimum(chosen, len(self.theta) - 1))]


def smooth_weights(log_ratio: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto smoothed, normalised weights and the shape k-hat."""
    log_weight, k_hat = pareto_smoothed(log_ratio)
    return np.exp(log_weight), float(k_hat)


def pareto_shape(log_ratio: np.ndarray) -> float:
    """k-hat of q itself: what the Gaussian family misses, converged or not."""
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
    """Correct the draws of an evaluation; None where the weights are not to be trusted.

    ``expensive``: whether densities take so long that the second round is a smaller one, too.
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
    for turn in range(rounds):
        # Few draws know the proposal's moments roughly: a small round finds better ones first.
        # Then half of the draws are usually enough.
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
        if few and not kept and k_hat < RELIABLE:
            surface = fitted_surface(theta, log_target, weight)
        current = Pool(theta, weight, k_hat, k_hat < RELIABLE, log_mean_exp(log_ratio))
        # Weighted draws of q itself are never among them: its tails are too light to be seen
        # missing, so their effective number flatters.
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
    """Standard multivariate t points from a scrambled Sobol sequence: far less noise in moments."""
    uniform = _even(m + 1, log2_draws, rng)
    chi_square = 2 * gammaincinv(DEGREES / 2, uniform[:, :1])
    return ndtri(uniform[:, 1:]) / np.sqrt(chi_square / DEGREES)


def _moments(pool: Pool) -> tuple[np.ndarray, np.ndarray | None]:
    """Weighted mean and a covariance root; the t's scale matrix is its covariance, shrunk."""
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
