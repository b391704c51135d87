"""Mini-batches: one piece of the data per step, weighted so that nothing is biased.

The log likelihood is a sum over P pieces, l = l_1 + ... + l_P. A step sees one piece p, and the
model of a piece (:class:`Subsampled`) has the log density::

    log p(theta) + P l_p(theta) - [a_p + b_p'(theta - theta_0)],      sum_p a_p = 0, sum_p b_p = 0

Its mean over the pieces is log p(y, theta) whatever a_p and b_p are. Without an anchor they are 0.
Anchored at theta_0 they are what P l_p and its gradient differ by from l and its gradient there:
near theta_0 a piece then says what all the data would say, up to the difference of curvatures, and
the noise of the batches all but vanishes.

Every pass over the data visits the pieces in a fresh order that depends only on the number of the
pass, so neither chunks nor interruptions change anything.
"""

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from nghvi._core.errors import InputError
from nghvi._core.model import DividedModel, MarginalModel, parameter_dimension
from nghvi._core.score import Sampled, Score
from nghvi._programs import program
from nghvi._typing import Data, Key, Latents, Params, Scalar

MOST_BYTES = 64 * 2**20
"""Bound on the bytes of the pieces held together; the pieces being read may take as much again."""
DRAWS_AT_ANCHOR = 4
"""Number of evaluations averaged at the anchor if latents are drawn, which makes each one noisy."""


class Pieces(Protocol):
    """Data divided into pieces of one shape, in memory or elsewhere."""

    @property
    def num_pieces(self) -> int:
        """Number of pieces."""

    def piece(self, number: int) -> Data:
        """Return one piece, as host arrays."""


class Anchor(NamedTuple):
    """What makes a piece resemble the whole near one theta: (a_p), (b_p) and theta_0."""

    theta: Float[np.ndarray, " m"]
    value: Float[np.ndarray, " p"]
    slope: Float[np.ndarray, "p m"]

    @staticmethod
    def none(theta: Float[np.ndarray, " m"], num_pieces: int) -> "Anchor":
        """Return the anchor that leaves every piece as it is: all corrections are zero."""
        return Anchor(theta, np.zeros(num_pieces), np.zeros((num_pieces, len(theta))))


class Piece(NamedTuple):
    """What one step sees: rows, and the anchor's theta_0, a_p and b_p."""

    rows: Data
    theta: Any
    value: Any
    slope: Any


class Subsampled(DividedModel):
    """A model of all the data that reads one :class:`Piece` of them."""

    num_pieces: int = eqx.field(static=True)

    def _weigh(
        self, value: Scalar, params: Params, data: Piece, prior: Scalar | None = None
    ) -> Scalar:
        prior = self.model.log_prior(params) if prior is None else prior
        if prior is None:
            raise InputError(
                f"batch_groups: {type(self.model).__name__} states no log_prior, so its likelihood "
                "cannot be weighted."
            )
        moved = ravel_pytree(params)[0] - data.theta
        return prior + self.num_pieces * (value - prior) - data.value - data.slope @ moved

    def log_marginal(self, params: Params, data: Piece) -> Scalar:
        return self._weigh(self.model.log_marginal(params, data.rows), params, data)

    def log_joint(self, params: Params, latents: Latents, data: Piece) -> Scalar:
        return self._weigh(self.model.log_joint(params, latents, data.rows), params, data)

    def log_joint_moving(
        self, params: Params, anchor: Params, latents: Latents, data: Piece
    ) -> Scalar:
        value = self.model.log_joint_moving(params, anchor, latents, data.rows)
        return self._weigh(value, params, data)

    def log_at_rest(self, params: Params, data: Piece) -> Scalar | None:
        value = self.model.log_at_rest(params, data.rows)
        if value is None:
            return None
        return self._weigh(value, params, data, self.model.log_prior_at_rest(params))

    def init_params(self, key: Key, data: Piece) -> Params:
        return self.model.init_params(key, data.rows)

    def init_latents(self, key: Key, params: Params, data: Piece) -> Latents:
        return self.model.init_latents(key, params, data.rows)

    def sample_latents(self, key: Key, params: Params, latents: Latents, data: Piece) -> Latents:
        # The latents of the previous step belong to another piece, so each step starts afresh.
        return self.model.init_latents(key, params, data.rows)

    def num_observations(self, data: Piece) -> float:
        return float(self.num_pieces * self.model.num_observations(data.rows))

    def evaluation_size(self, data: Piece) -> int:
        return self.model.evaluation_size(data.rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """Pieces in the order in which steps see them, read ahead by a thread."""

    pieces: Pieces
    seed: int
    anchor: Anchor

    @staticmethod
    def of(pieces: Pieces, seed: int, model: MarginalModel) -> tuple[Subsampled, "Batches"]:
        """Return the model of one piece, and the batches, not yet anchored."""
        theta = np.zeros(parameter_dimension(model, pieces.piece(0)))
        nowhere = Anchor.none(theta, pieces.num_pieces)
        return Subsampled(model, pieces.num_pieces), Batches(pieces, seed, nowhere)

    @property
    def example(self) -> Piece:
        """The first piece, used for its shapes and for the start of a model."""
        return self._piece(0)

    @staticmethod
    def example_of(data: Data) -> Data:
        """Return the example of batches, and other data as they are."""
        return data.example if isinstance(data, Batches) else data

    def which(self, start: int, stop: int) -> Int[np.ndarray, " steps"]:
        """Return the number of the piece that each step from ``start`` to ``stop`` sees."""
        number = self.pieces.num_pieces
        passes = range(start // number, -(-stop // number))
        orders = [np.random.default_rng([self.seed, p]).permutation(number) for p in passes]
        begun = start - number * (start // number)
        return np.concatenate(orders)[begun : begun + stop - start]

    def chunks(self, step: int, num_steps: int, chunk: int) -> Generator[Piece]:
        """Yield what the steps from ``step`` on see, stacked by ``chunk``; the last is padded."""
        spans = [(s, min(s + chunk, num_steps)) for s in range(step, num_steps, chunk)]
        return self._read([self.which(*span) for span in spans], chunk)

    @property
    def at_once(self) -> int:
        """Number of pieces that may be held in memory together."""
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(self.example))
        return max(1, MOST_BYTES // size)

    def each(self) -> Iterator[Piece]:
        """Iterate over all pieces, each once."""
        stacks = self._read([[p] for p in range(self.pieces.num_pieces)], 1)
        return (jax.tree.map(lambda leaf: leaf[0], stack) for stack in stacks)

    def anchored(self, key: Key, model: Subsampled, score: Score, theta: Array) -> "Batches":
        """Return the same pieces anchored at ``theta``, which takes one pass over the data."""
        bare = dataclasses.replace(self, anchor=Anchor.none(np.asarray(theta), model.num_pieces))
        found = [
            _at_anchor(jax.random.fold_in(key, p), model, score, piece)
            for p, piece in enumerate(bare.each())
        ]
        value, slope = (np.stack([np.asarray(f[i]) for f in found]) for i in range(2))
        kept = bare.anchor._replace(value=value - value.mean(), slope=slope - slope.mean(axis=0))
        # Numbers that are not finite would spoil every step: then there is no anchor.
        usable = np.isfinite(value).all() and np.isfinite(slope).all()
        return dataclasses.replace(bare, anchor=kept) if usable else bare

    def _piece(self, number: int) -> Piece:
        theta, value, slope = self.anchor
        return Piece(self.pieces.piece(number), theta, value[number], slope[number])

    def _read(self, spans: Sequence[Sequence[int]], size: int) -> Generator[Piece]:
        """Yield the pieces of each span, stacked; the next span is read while one is in use."""
        with ThreadPoolExecutor(1) as reader:
            waiting = [reader.submit(self._stack, span, size) for span in spans[:1]]
            for following in [*spans[1:], None]:
                ready = waiting.pop().result()
                if following is not None:
                    waiting = [reader.submit(self._stack, following, size)]
                yield ready

    def _stack(self, numbers: Sequence[int], size: int) -> Piece:
        def stacked(*leaves: Any) -> Array:
            out = np.zeros((size, *np.shape(leaves[0])), np.asarray(leaves[0]).dtype)
            for i, leaf in enumerate(leaves):
                out[i] = leaf
            return jnp.asarray(out)

        return jax.tree.map(stacked, *(self._piece(int(number)) for number in numbers))


@program
def _at_anchor(key: Key, model: Subsampled, score: Score, piece: Piece) -> tuple[Array, Array]:
    def one(key: Key) -> tuple[Array, Array]:
        begin, draw = jax.random.split(key)
        latents = score.init_latents(begin, piece.theta, model, piece)
        return score(draw, piece.theta, latents, model, piece)[:2]

    draws = DRAWS_AT_ANCHOR if isinstance(score, Sampled) else 1
    values, slopes = jax.lax.map(one, jax.random.split(key, draws))
    return jnp.mean(values), jnp.mean(slopes, axis=0)
