"""NAGVAC (Tran, Nguyen, Nott and Kohn 2020): natural gradients for a one-factor Gaussian.

Effects are integrated out of the likelihood by importance sampling. An iteration and its parts are
in ``nagvac_step``; this module has the loop and its stopping rule. The prior is NAGVAC's own, not
the model's. By mistake, the published program inverts a matrix that is not the Fisher information
and draws effects from dependent points, which only ``mistakes=True`` repeats.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.errors import InputError
from nghvi._core.hybrid import Info
from nghvi._core.variational import RemainingError
from nghvi._programs import program
from nghvi._typing import Key
from nghvi.data import Rows
from nghvi.families.factor import FactorGaussian
from nghvi.inference import Inference, finish
from nghvi.models.mixed import MixedModel
from nghvi.paper.methods.nagvac_step import FIRST_PRECISION, METRICS, Iterate, Nagvac, Ridge, start
from nghvi.priors import HalfT, InverseGamma
from nghvi.recipes.run import Interrupt, Progress, Run
from nghvi.recipes.verdict import LOOKS, Cause, Status, Verdict, judge

LENGTH = 0.1
CHUNK = 10


class NagvacFit(NamedTuple):
    """A result of :func:`nagvac` and how it came about, iteration by iteration."""

    inference: Inference
    """Its ELBO and k-hat refer to the model's own prior, which the fit does not use."""
    losses: Float[np.ndarray, " t"]
    """Mean negative log density of the validation rows (of the training rows where there are
    none) at the mean of q, effects at their mode given the training rows."""
    clock: Float[np.ndarray, " t"]
    """Seconds since the start, compilation included; read once per chunk of ten iterations."""
    stopped: bool
    """Whether the stopping rule ended the run."""


class Task(NamedTuple):
    """What stays the same from step to step."""

    algorithm: Nagvac
    model: MixedModel
    rows: Rows
    watched: Rows
    """Rows whose loss is followed."""


class Trace(NamedTuple):
    """What is recorded of every iteration."""

    info: Info
    loss: Float[Array, " t"]


def nagvac(
    model: MixedModel,
    rows: Rows,
    *,
    validation: Rows | None = None,
    seed: int = 0,
    steps: int = 300,
    patience: int = 10,
    legacy: bool = False,
    mistakes: bool = False,
    fisher: str = "blockdiag",
    progress: Progress | None = None,
) -> NagvacFit:
    """Fit a mixed model with independent effects by NAGVAC.

    With ``validation`` rows (whose groups are coded like those of ``rows``) the run ends when their
    loss has had no new minimum for more than ``patience`` iterations, and the best iterate is
    returned; without them, the last of ``steps`` iterations is. ``legacy``: propose the effects of
    binary responses from their prior, as published, and not from Laplace's approximation.
    ``mistakes``: solve and draw as the published program does by mistake.
    ``fisher``: ``"blockdiag"``, or ``"exact"`` for the whole matrix, damped.
    """
    _require_supported(model, rows, validation, steps, fisher)
    begun = time.perf_counter()
    key_start, key_run, key_judge, key_evaluate = jax.random.split(jax.random.key(seed), 4)
    from_prior = legacy and not model.response.conjugate
    watching = validation is not None
    algorithm = Nagvac(Ridge.of(model, rows), from_prior, fisher, watching, mistakes)
    task = Task(algorithm, model, rows, rows if validation is None else validation)
    state = _begin(start(key_start, model, rows), jnp.full(2, FIRST_PRECISION, float), LENGTH)
    traces: list[Trace] = []
    ends, seconds = [0], [0.0]
    with Interrupt() as interrupt:
        while ends[-1] < steps and state.stale <= patience and not interrupt.requested:
            end = min(ends[-1] + CHUNK, steps)
            state, trace = _advance(task, key_run, state, end, patience)
            trace = trace._replace(info=_largest_errors(trace.info))
            traces.append(trace)
            ends.append(int(state.step))
            seconds.append(time.perf_counter() - begun)
            if progress is not None:
                progress("nagvac", ends[-1], steps, trace.info)
    stopped = bool(state.stale > patience)
    still = _begin(state.best, algorithm.ridge.adapt(state.best), 0.0)
    if interrupt.requested:
        facts = {"stage": "nagvac", "step": ends[-1], "steps": steps}
        verdict = Verdict(Status.INTERRUPTED, Cause.USER, facts)
    else:
        verdict = _judge(task, key_judge, still, stopped)
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *traces)
    named = (("nagvac", whole.info),)
    run = Run(state.best, verdict, named, ends[-1], time.perf_counter() - begun, None)
    inference = finish(key_evaluate, model, rows, run, correct=False)
    clock = np.interp(np.arange(1, ends[-1] + 1), ends, seconds)
    return NagvacFit(inference, whole.loss, clock, stopped)


def _require_supported(
    model: MixedModel, rows: Rows, validation: Rows | None, steps: int, fisher: str
) -> None:
    if fisher not in METRICS:
        raise InputError(f"fisher={fisher!r}: choose one of {', '.join(map(repr, METRICS))}.")
    if steps < 1:
        raise InputError(f"steps={steps!r}: give at least one.")
    if model.num_effects == 0:
        raise InputError("nagvac fits mixed models: the model has no random effects.")
    if not isinstance(model.priors.effects, InverseGamma | HalfT):
        raise InputError(
            "nagvac has independent effects: give the model a prior with a diagonal covariance, "
            "InverseGamma or HalfT."
        )
    if model.priors.weight_sd is None and jax.tree.leaves(
        model.trunk.init_weights(jax.random.key(0))
    ):
        raise InputError(
            "nagvac does not support learnt scales of weights: give the priors a fixed weight_sd."
        )
    if validation is not None and validation.num_groups != rows.num_groups:
        raise InputError(
            f"the training rows have {rows.num_groups} groups, the validation rows "
            f"{validation.num_groups}: code both alike."
        )


def _begin(q: FactorGaussian, precisions: Array, length: float) -> Iterate:
    # Arrays of definite type throughout: what a step returns must not look new to the compiler.
    nothing, zero = jax.tree.map(jnp.zeros_like, q), jnp.zeros((), int)
    unknown, first = jnp.full((), jnp.inf, float), jnp.full((), length, float)
    return Iterate(q, nothing, precisions, unknown, q, unknown, zero, zero, first)


def _advance(
    task: Task, key: Key, state: Iterate, end: int, patience: int
) -> tuple[Iterate, Trace]:
    """At most a chunk of iterations, and their trace on the host."""
    after, trace = _run_chunk(task, key, state, (jnp.asarray(end), jnp.asarray(patience)))
    taken = int(after.step) - int(state.step)
    return after, jax.tree.map(lambda x: np.asarray(x)[:taken], trace)


@program
def _run_chunk(
    task: Task, key: Key, state: Iterate, limits: tuple[Array, Array]
) -> tuple[Iterate, Trace]:
    def step(state: Iterate) -> tuple[Iterate, Trace]:
        key_step = jax.random.fold_in(key, state.step)
        following, info = task.algorithm.step(key_step, state, *task[1:])
        return following, Trace(info, following.loss)

    def unfinished(carry: tuple[Iterate, Trace]) -> Array:
        return (carry[0].step < limits[0]) & (carry[0].stale <= limits[1])

    def move(carry: tuple[Iterate, Trace]) -> tuple[Iterate, Trace]:
        following, new = step(carry[0])
        at = carry[0].step - state.step
        return following, jax.tree.map(lambda old, x: old.at[at].set(x), carry[1], new)

    shapes = jax.eval_shape(step, state)[1]
    blank = jax.tree.map(lambda s: jnp.zeros((CHUNK, *s.shape), s.dtype), shapes)
    return jax.lax.while_loop(unfinished, move, (state, blank))


def _largest_errors(info: Info) -> Info:
    """The trace of a long run need not hold every coordinate's error."""
    mean, scale = (np.abs(x).max(axis=1) for x in info.remaining)
    return info._replace(remaining=RemainingError(mean, scale))


def _judge(task: Task, key: Key, still: Iterate, stopped: bool) -> Verdict:
    """By the gradient that fresh draws leave at the result, under NAGVAC's own prior."""
    cause = Cause.STOPPING_RULE if stopped else Cause.STEPS
    mean, scale, bad = [], [], 0
    for look in range(LOOKS):
        _, fresh = _advance(task, jax.random.fold_in(key, look), still, CHUNK, CHUNK)
        mean.append(fresh.info.remaining.mean)
        scale.append(fresh.info.remaining.scale)
        bad += int(fresh.info.bad_draws.sum())
        errors = (np.concatenate(each) for each in (mean, scale))
        verdict = judge(*errors, cause=cause, bad_draws=bad)
        if verdict.cause is not Cause.NOISE:
            break
    return verdict
