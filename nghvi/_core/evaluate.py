"""The ELBO, and nothing else called ELBO::

    ELBO(q) = E_q[ log p(y | theta) + log p(theta) - log q(theta) ]  <=  log p(y)

z is integrated out; all constants and Jacobians are included. (Dropping p(z | theta) and
p(z | theta, y) from the noisy ELBO, as the paper proposes, overstates it: they do not cancel.)
"""

from typing import Any, NamedTuple

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
from nghvi._programs import Ahead, program
from nghvi._typing import Data, Key

BATCH = 50
"""Number of draws that are made and evaluated together."""
FEW = 16
"""Number of draws below which a batch is not padded: so few are made only if each takes seconds."""
ROOM = 500
"""Number of draws for which a call of a program has room."""
AT_ONCE = 20_000_000
"""Numbers touched by one call: about a second's work, since Ctrl-C is heard between calls."""
COST_OF_SCORE = 4
"""How many times as long as a log density its gradient takes."""
SIDE_BY_SIDE = 200_000
"""Numbers that fit into the caches; draws beyond them are evaluated one after another."""


class Evaluation(NamedTuple):
    """Draws from q with the logarithms of p(y, theta) and q(theta)."""

    theta: Float[np.ndarray, "s m"]
    log_target: Float[np.ndarray, " s"]
    log_q: Float[np.ndarray, " s"]
    score: Float[np.ndarray, "s m"] | None = None
    """Gradients of log p(y, theta); None if they were not computed."""

    @property
    def log_ratio(self) -> Float[np.ndarray, " s"]:
        """Log importance ratios log p(y, theta) - log q(theta)."""
        return self.log_target - self.log_q

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
    model: MarginalModel,
    data: Data,
    theta: Float[Array, "p s m"],
    number: Int[Array, ""],
    batch: int,
) -> Float[Array, "p s"]:
    """Return log targets of the first ``number`` parts, computed one part after another."""
    unravel = unraveller(model, data)

    def one(theta: Array) -> Array:
        return model.log_marginal(unravel(theta), data)

    def add(i: Array, values: Array) -> Array:
        # Even a batch of one would make both branches of every condition run.
        alone = theta.shape[1] == 1
        part = one(theta[i, 0])[None] if alone else map_in_parts(one, theta[i], batch)
        return jax.lax.dynamic_update_index_in_dim(values, part, i, 0)

    return jax.lax.fori_loop(0, number, add, jnp.zeros(theta.shape[:2]))


def log_targets(
    model: MarginalModel, data: Data, theta: np.ndarray, batch: int | None = None
) -> np.ndarray:
    """Return log p(y, theta) at every row of ``theta``, -inf where it is not a number.

    All large numbers of rows share one program, which evaluates ``batch`` rows side by side (None:
    ``BATCH``). For :class:`Batches` the mean over all pieces is returned, which is the density of
    all the data.
    """
    if isinstance(data, Batches):
        at, one = _host(theta[None]), _host(1)
        each = (_log_targets(model, p, at, one, batch or BATCH) for p in data.each())
        total = sum(np.asarray(values)[0] for values in each)
        return np.where(np.isfinite(total), total, -np.inf) / data.pieces.num_pieces
    room, size = _layout(model, len(theta), batch)
    most = min(room, max(1, AT_ONCE // max(1, size * model.evaluation_size(data))))
    parts = -(-len(theta) // size)
    filled = np.resize(theta[:1], (parts + room, size, theta.shape[1]))
    filled.reshape(-1, theta.shape[1])[: len(theta)] = theta

    def of(start: int, number: int) -> np.ndarray:
        part, asked = _host(filled[start : start + room]), _host(number)
        return np.asarray(_log_targets(model, data, part, asked, batch or BATCH))[:number]

    values = [of(start, min(most, parts - start)) for start in range(0, parts, most)]
    joined = np.concatenate(values).ravel()[: len(theta)]
    return np.where(np.isfinite(joined), joined, -np.inf)


@program
def _values_and_scores(
    model: MarginalModel, data: Data, theta: Float[Array, "s m"], number: Int[Array, ""]
) -> tuple[Float[Array, " s"], Float[Array, "s m"]]:
    """Return log p(y, theta) and its gradient at the first ``number`` rows, one after another."""
    unravel = unraveller(model, data)

    def add(i: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        value, score = jax.value_and_grad(lambda t: model.log_marginal(unravel(t), data))(theta[i])
        put = jax.lax.dynamic_update_index_in_dim
        return put(found[0], value, i, 0), put(found[1], score, i, 0)

    return jax.lax.fori_loop(0, number, add, (jnp.zeros(len(theta)), jnp.zeros_like(theta)))


def values_and_scores(
    model: MarginalModel, data: Data, theta: Float[np.ndarray, "s m"]
) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, "s m"]]:
    """Return log p(y, theta) and its gradient at every row, by one program for any number."""
    room = 2 * theta.shape[1]
    most = 1
    if len(theta) > 1:
        size = COST_OF_SCORE * max(1, evaluation_size(model, data))
        most = min(room, max(1, AT_ONCE // size))
    found = []
    for start in range(0, len(theta), most):
        some = theta[start : start + most]
        filled = np.resize(some, (room, theta.shape[1]))
        made = _values_and_scores(model, data, _host(filled), _host(len(some)))
        found.append([np.asarray(each)[: len(some)] for each in made])
    values, scores = (np.concatenate(each) for each in zip(*found, strict=True))
    return values, scores


def _host(value: Any) -> Any:
    """Return an array of NumPy, which a program takes as it is."""
    return np.asarray(value)


def _layout(model: MarginalModel, rows: int, batch: int | None) -> tuple[int, int]:
    """Return for how many parts a call has room, and how many rows a part has."""
    # If each evaluation fills the caches, rows go one by one: one program serves any number.
    alone = model.one_by_one or batch == 1
    size = 1 if alone else BATCH if rows >= FEW else rows
    return ROOM // size if alone or size == BATCH else 1, size


def make_ahead(
    ahead: Ahead, key: Key, q: Variational, model: MarginalModel, data: Data, batch: int | None
) -> None:
    """Begin to make the programs of :func:`evaluate`, given only the shapes of ``q``."""
    number = _host(0)
    theta: Any = jax.ShapeDtypeStruct((*_layout(model, BATCH, batch), q.dim), float)
    ahead.make(_draw_and_weigh, q, key, number, number)
    ahead.make(_log_targets, model, data, theta, number, batch or BATCH)


@program
def _draw_and_weigh(
    q: Variational, key: Key, first: Int[Array, ""], number: Int[Array, ""]
) -> tuple[Float[Array, "p s m"], Float[Array, "p s"]]:
    """Return ``number`` batches of antithetic draws, counted from ``first``, with densities."""

    def add(i: Array, made: tuple[Array, Array]) -> tuple[Array, Array]:
        half = flat_normal(jax.random.fold_in(key, first + i), (BATCH // 2, q.noise_dim))
        theta = jax.vmap(q.transport)(jnp.concatenate([half, -half]))
        put = jax.lax.dynamic_update_index_in_dim
        density = jax.vmap(q.log_density)(theta)
        return put(made[0], theta, i, 0), put(made[1], density, i, 0)

    parts = ROOM // BATCH
    blank = jnp.zeros((parts, BATCH, q.dim)), jnp.zeros((parts, BATCH))
    return jax.lax.fori_loop(0, number, add, blank)


def evaluate(
    key: Key,
    q: Variational,
    model: MarginalModel,
    data: Data,
    *,
    draws: int = 2000,
    batch: int | None = None,
    with_scores: bool = False,
) -> Evaluation:
    """Return antithetic draws of q with their log ratios.

    ``draws``: their number, rounded up to a multiple of ``BATCH`` from there on and made even below
    it; ``batch``: how many of them are evaluated side by side; ``with_scores``: whether gradients
    are computed as well.
    """
    theta, log_q = draw(key, q, draws)
    if draws < BATCH:
        pairs = theta.reshape(2, -1, q.dim)[:, : draws // 2]
        theta, log_q = pairs.reshape(-1, q.dim), log_q.reshape(2, -1)[:, : draws // 2].ravel()
    if with_scores:
        values, scores = values_and_scores(model, data, theta)
        return Evaluation(theta, np.where(np.isfinite(values), values, -np.inf), log_q, scores)
    return Evaluation(theta, log_targets(model, data, theta, batch), log_q)


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
    parts, room = max(1, -(-draws // BATCH)), ROOM // BATCH
    made = []
    for first in range(0, parts, room):
        number = min(room, parts - first)
        found = _draw_and_weigh(q, key, _host(first), _host(number))
        made.append([np.asarray(each)[:number] for each in found])
    theta, log_q = (np.concatenate(each) for each in zip(*made, strict=True))
    halves = (np.swapaxes(each.reshape(parts, 2, BATCH // 2, -1), 0, 1) for each in (theta, log_q))
    theta, log_q = halves
    return theta.reshape(-1, theta.shape[-1]), log_q.ravel()
