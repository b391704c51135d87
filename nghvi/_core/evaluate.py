"""The ELBO, and nothing else called ELBO::

    ELBO(q) = E_q[ log p(y | theta) + log p(theta) - log q(theta) ]  <=  log p(y)

z is integrated out; all constants and Jacobians are included. (Dropping p(z | theta) and
p(z | theta, y) from the noisy ELBO, as the paper proposes, overstates it: they do not cancel.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import logsumexp

from nghvi._core.batches import Batches
from nghvi._core.draws import flat_normal
from nghvi._core.model import LatentModel, MarginalModel, unraveller
from nghvi._core.variational import Variational
from nghvi._linalg.tree import map_in_parts
from nghvi._programs import program
from nghvi._typing import Data, Key

BATCH = 50
"""Number of draws that are made and evaluated by one call of a program."""
FEW = 16
"""Number of draws below which a batch is not padded: so few are made only if each takes seconds."""
SIDE_BY_SIDE = 200_000
"""Numbers that fit into the caches; draws beyond them are evaluated one after another."""


class Evaluation(NamedTuple):
    """Draws from q with their log importance ratios log p(y, theta) - log q(theta)."""

    theta: Float[np.ndarray, "s m"]
    log_ratio: Float[np.ndarray, " s"]

    @property
    def elbo(self) -> float:
        """The ELBO: the mean log ratio."""
        return float(np.mean(self.log_ratio))

    @property
    def elbo_se(self) -> float:
        """Monte Carlo standard error of :attr:`elbo`, from the means of antithetic pairs."""
        if not np.isfinite(self.log_ratio).all():
            return float("inf")
        pairs = self.log_ratio.reshape(2, -1).mean(axis=0)
        return float(np.std(pairs, ddof=1) / np.sqrt(pairs.size))

    @property
    def log_evidence(self) -> float:
        """Importance sampling estimate of log p(y); never below :attr:`elbo`."""
        return log_mean_exp(self.log_ratio)


def log_mean_exp(log_ratio: Float[np.ndarray, " s"]) -> float:
    """Return the log of the mean of the exponentials; -inf if no value is finite."""
    return float(logsumexp(log_ratio) - np.log(log_ratio.size))


@program
def _log_targets(
    model: MarginalModel, data: Data, theta: Float[Array, "s m"], batch: int
) -> Float[Array, " s"]:
    unravel = unraveller(model, data)
    return map_in_parts(lambda t: model.log_marginal(unravel(t), data), theta, batch)


@program
def _first_log_targets(
    model: MarginalModel, data: Data, theta: Float[Array, "s m"], number: Int[Array, ""]
) -> Float[Array, " s"]:
    """Return log targets of the first ``number`` rows, computed one after another."""
    unravel = unraveller(model, data)

    def add(i: Array, values: Array) -> Array:
        value = model.log_marginal(unravel(theta[i]), data)
        return jax.lax.dynamic_update_index_in_dim(values, value, i, 0)

    return jax.lax.fori_loop(0, number, add, jnp.zeros(len(theta)))


def log_targets(
    model: MarginalModel, data: Data, theta: np.ndarray, batch: int | None = None
) -> np.ndarray:
    """Return log p(y, theta) at every row of ``theta``, -inf where it is not a number.

    All large numbers of rows share one program, which evaluates ``batch`` rows side by side (None:
    ``BATCH``). For :class:`Batches` the mean over all pieces is returned, which is the density of
    all the data.
    """
    if isinstance(data, Batches):
        at = jax.device_put(theta)
        total = sum(np.asarray(_log_targets(model, p, at, batch or BATCH)) for p in data.each())
        return np.where(np.isfinite(total), total, -np.inf) / data.pieces.num_pieces
    # If each evaluation fills the caches, rows go one by one: one program serves any number.
    size = BATCH if model.one_by_one else 1 if batch == 1 else len(theta)
    size = BATCH if size >= FEW else size
    padded = -(-len(theta) // size) * size
    filled = np.concatenate(
        [theta, np.broadcast_to(theta[:1], (padded - len(theta), theta.shape[1]))]
    )

    def of(start: int) -> Array:
        part = jax.device_put(filled[start : start + size])
        if not model.one_by_one:
            return _log_targets(model, data, part, batch or BATCH)
        number = np.asarray(min(size, len(theta) - start))
        return _first_log_targets(model, data, part, jax.device_put(number))

    values = [np.asarray(of(start)) for start in range(0, padded, size)]
    joined = np.concatenate(values)[: len(theta)]
    return np.where(np.isfinite(joined), joined, -np.inf)


@program
def _draw_and_weigh(q: Variational, key: Key) -> tuple[Array, Array]:
    half = flat_normal(key, (BATCH // 2, q.noise_dim))
    theta = jax.vmap(q.transport)(jnp.concatenate([half, -half]))
    return theta, jax.vmap(q.log_density)(theta)


def evaluate(
    key: Key,
    q: Variational,
    model: MarginalModel,
    data: Data,
    *,
    draws: int = 2000,
    batch: int | None = None,
) -> Evaluation:
    """Return antithetic draws of q with their log ratios.

    ``draws``: their number, rounded up to a multiple of ``BATCH`` from there on and made even below
    it; ``batch``: how many of them are evaluated side by side.
    """
    theta, log_q = draw(key, q, draws)
    if draws < BATCH:
        pairs = theta.reshape(2, -1, q.dim)[:, : draws // 2]
        theta, log_q = pairs.reshape(-1, q.dim), log_q.reshape(2, -1)[:, : draws // 2].ravel()
    return Evaluation(theta, log_targets(model, data, theta, batch) - log_q)


def evaluation_size(model: LatentModel, data: Data) -> int:
    """Return how many numbers one evaluation of the density of all the data touches."""
    if isinstance(data, Batches):
        return data.pieces.num_pieces * model.evaluation_size(data.example)
    return model.evaluation_size(data)


def side_by_side(model: LatentModel, data: Data) -> int:
    """Return how many draws are best evaluated together."""
    if model.one_by_one:
        return 1
    return max(1, SIDE_BY_SIDE // max(model.evaluation_size(data), 1))


def draw(key: Key, q: Variational, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return antithetic draws of theta and their log densities.

    Their number is ``draws``, rounded up to a multiple of ``BATCH``.
    """
    parts = [
        _draw_and_weigh(q, jax.random.fold_in(key, i)) for i in range(max(1, -(-draws // BATCH)))
    ]
    theta = np.stack([np.asarray(t).reshape(2, BATCH // 2, -1) for t, _ in parts], axis=1)
    log_q = np.stack([np.asarray(d).reshape(2, BATCH // 2) for _, d in parts], axis=1)
    return theta.reshape(-1, theta.shape[-1]), log_q.ravel()
