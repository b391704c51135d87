"""The one loop: steps in compiled chunks, with monitors, stop and resume.

The key of step t is ``fold_in(key, t)``, so neither the chunk length nor an interruption can
change a bit of the answer.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from nghvi._core.batches import Batches
from nghvi._core.hosts import beside
from nghvi._core.hybrid import HybridVI, Info, State
from nghvi._core.model import LatentModel
from nghvi._core.variational import Variational
from nghvi._programs import Ahead, program
from nghvi._typing import Data, Key

Q = TypeVar("Q", bound=Variational)


class Fit(NamedTuple, Generic[Q]):
    """A run so far; pass it back to :func:`fit` as ``resume`` to continue."""

    state: State[Q]
    tail: Q
    """Sum of the iterates inside the averaging window."""
    tail_count: Array
    """Number of iterates in that sum."""
    step: int
    """Number of steps taken."""
    trace: Info | None
    """What was recorded: leaves have a leading axis with one entry per step."""
    stopped: bool
    """Whether a monitor ended the run before its last step."""

    @property
    def q(self) -> Q:
        """The average over the window, or the last iterate where there is no window."""
        count = int(self.tail_count)
        if count == 0:
            return self.state.q
        return self.state.q.averaged(self.tail, count)


Monitor = Callable[[int, Info, Variational], bool]
"""Called after every chunk with the step count, the trace so far and q; True stops the run."""


def never_stop(step: int, trace: Info, q: Variational) -> bool:
    """The default monitor, which never stops a run."""
    return False


Keep = Callable[[Fit], None]
"""Called after every chunk with the run so far."""


def keep_nothing(current: Fit) -> None:
    """The default ``keep``, which keeps nothing of an unfinished run."""


def fit(
    key: Key,
    algorithm: HybridVI,
    model: LatentModel,
    data: Data,
    q: Q,
    *,
    num_steps: int,
    chunk: int = 100,
    average_last: int = 0,
    monitor: Monitor = never_stop,
    keep: Keep = keep_nothing,
    resume: Fit[Q] | None = None,
) -> Fit[Q]:
    """Run ``algorithm`` from ``q`` until ``num_steps`` steps are done, or continue ``resume``.

    ``chunk``: steps per compiled call; ``average_last``: number of last iterates that the result
    averages; ``monitor`` and ``keep`` are called after every chunk. If ``data`` are
    :class:`Batches` every step sees one piece of them.
    """
    batched = isinstance(data, Batches)
    if resume is None:
        key_init = jax.random.fold_in(key, num_steps)
        first = data.example if batched else data
        state, tail = _init(algorithm, key_init, model, first, beside(q, data))
        resume = Fit(state, tail, _integer(0), 0, None, False)
    current = beside(resume._replace(stopped=False), data)
    window = _integer(num_steps - average_last)
    if batched:
        chunk = min(chunk, data.at_once)
    parts = data.chunks(current.step, num_steps, chunk) if batched else _same(data)
    with contextlib.closing(parts):
        while current.step < num_steps and not current.stopped:
            length = min(chunk, num_steps - current.step)
            carry, info = _run_chunk(
                algorithm,
                model,
                next(parts),
                key,
                (current.state, current.tail, current.tail_count),
                _integer(current.step),
                _integer(length),
                window,
                chunk,
                batched,
            )
            step, trace = current.step + length, _append(current.trace, info, length)
            state, tail, tail_count = carry
            current = Fit(state, tail, tail_count, step, trace, monitor(step, trace, state.q))
            keep(current)
    return current


def make_ahead(
    ahead: Ahead, key: Key, algorithm: HybridVI, model: LatentModel, data: Data, q: Q, chunk: int
) -> None:
    """Begin to make the programs of :func:`fit`, given only the shapes of ``q``."""
    state = eqx.filter_eval_shape(algorithm.init, key, model, data, q)
    zero = _integer(0)
    carry = (state, q, zero)
    ahead.make(_run_chunk, algorithm, model, data, key, carry, zero, zero, zero, chunk, False)
    ahead.make(_init, algorithm, key, model, data, q)


def _integer(value: int) -> Any:
    return np.asarray(value)


def _same(data: Data) -> Generator[Data]:
    """Yield all the data at every step."""
    while True:
        yield data


def _append(trace: Info | None, info: Info, length: int) -> Info:
    new = jax.tree.map(lambda x: np.asarray(x)[:length], info)
    return new if trace is None else jax.tree.map(lambda a, b: np.concatenate([a, b]), trace, new)


@program
def _init(
    algorithm: HybridVI, key: Key, model: LatentModel, data: Data, q: Q
) -> tuple[State[Q], Q]:
    """Return the first state, and an empty sum of iterates."""
    return algorithm.init(key, model, data, q), jax.tree.map(jnp.zeros_like, q)


@program
def _run_chunk(
    algorithm: HybridVI,
    model: LatentModel,
    data: Data,
    key: Key,
    carry: tuple,
    start: Array,
    length: Array,
    window: Array,
    chunk: int,
    batched: bool = False,
) -> tuple[tuple, Info]:
    """Take ``length <= chunk`` steps, so that a shorter last chunk runs the same program.

    ``batched``: whether the data have a leading axis with one entry per step.
    """

    @jax.jit  # traced once, although its shapes are asked for before it runs
    def step(carry: tuple, t: Array) -> tuple[tuple, Info]:
        state, tail, tail_count = carry
        seen = jax.tree.map(lambda leaf: leaf[t - start], data) if batched else data
        state, info = algorithm.step(jax.random.fold_in(key, t), state, model, seen)
        inside = t >= window
        tail = jax.tree.map(lambda a, b: a + jnp.where(inside, b, 0.0), tail, state.q)
        return (state, tail, tail_count + inside), info

    # Unlike an indexed update, this is a single kernel, and there are a dozen traces.
    put = jax.lax.dynamic_update_index_in_dim

    def recorded(i: Array, loop: tuple[tuple, Info]) -> tuple[tuple, Info]:
        carry, info = step(loop[0], start + i)
        return carry, jax.tree.map(lambda trace, x: put(trace, x, i, 0), loop[1], info)

    shapes = jax.eval_shape(step, carry, start)[1]
    blank = jax.tree.map(lambda s: jnp.zeros((chunk, *s.shape), s.dtype), shapes)
    return jax.lax.fori_loop(0, length, recorded, (carry, blank))
