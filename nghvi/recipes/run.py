"""Running a recipe: its stages one after another, stoppable, resumable, and judged at the end."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core import evaluate, loop
from nghvi._core.batches import Batches
from nghvi._core.hosts import any_process
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.loop import Fit, Monitor, fit
from nghvi._core.model import LatentModel, MarginalModel, initial_theta, parameter_dimension
from nghvi._core.variational import Start, Variational
from nghvi._programs import Ahead
from nghvi._typing import Data, Key
from nghvi.families import Family
from nghvi.recipes.verdict import Cause, Status, Verdict


class Ended(NamedTuple):
    """A stage that has run."""

    name: str
    fit: Fit


Begin = Callable[[Key, LatentModel, Data, tuple[Ended, ...]], Variational]
"""A function of the stages that have ended, which returns where the next one starts."""
Stop = Callable[[int, Info], bool]
"""A function of the step count and the trace so far; True ends a stage."""
Traces = tuple[tuple[str, Info], ...]
"""The name and the trace of every stage."""
Judge = Callable[[Key, LatentModel, Data, tuple[Ended, ...]], Verdict]
"""A function of the stages that have ended, which judges what the last one left."""
Progress = Callable[[str, int, int, Info], None]
"""Called with the name of a stage, the step, the number of steps and the trace so far."""


class Stage(NamedTuple):
    """One algorithm run for a number of steps."""

    name: str
    begin: Begin
    """Returns where this stage starts, given the stages that have ended."""
    algorithm: HybridVI
    num_steps: int
    chunk: int = 100
    average_last: int = 0
    stop: Stop = lambda step, trace: False
    """Called after every chunk; True means that the stage has achieved its purpose."""
    optional: bool = False
    """Whether the stage is run only if the result so far is promising."""
    encore: bool = False
    """Whether, in addition, it is run only if the judge is not content with that result."""
    continues: bool = False
    """Whether the stage continues the steps of the one before, as if the two were one."""
    anchored: bool = False
    """Whether mini-batches are made to resemble all the data near the start of the stage."""
    family: Family | None = None
    """The family of what the stage starts from, if programs may be made ahead."""


class Recipe(NamedTuple):
    """A list of stages, and the judge of their result."""

    name: str
    stages: tuple[Stage, ...]
    judge: Judge
    finish: Callable[[LatentModel, Data, tuple[Ended, ...]], Variational] = (
        lambda model, data, done: done[-1].fit.q
    )
    """Turns the stages that have ended into what is returned, for example a projection."""
    promising: Callable[[LatentModel, Data, Variational], bool] = lambda model, data, q: True
    """Tells whether a result is worth optional stages."""
    moving: Judge | None = None
    """Judges whether an encore is needed, if not all that the judge reads matters to that."""

    def make_ahead(self, ahead: Ahead, key: Key, model: LatentModel, data: Data) -> None:
        """Begin to make the programs that a run is going to call, the first ones first."""
        known: list[Stage] = []
        for stage in self.stages:
            seen = [other.algorithm for other in known]
            known += [stage] if stage.family is not None and stage.algorithm not in seen else []
        told = [(stage.algorithm, stage.chunk) for stage in known]
        if isinstance(data, Batches) or not ahead.is_of_use(told, model, data):
            return
        numbers = jax.ShapeDtypeStruct((parameter_dimension(model, data),), float)
        for stage in known:
            q = eqx.filter_eval_shape(cast(Family, stage.family).at, numbers, numbers)
            loop.make_ahead(ahead, key, stage.algorithm, model, data, q, stage.chunk)
        if known and isinstance(model, MarginalModel):
            evaluate.make_ahead(ahead, key, q, model, data, evaluate.side_by_side(model, data))


class Position(NamedTuple):
    """Where a run was left; pass it back as ``resume`` to continue as if nothing had happened."""

    stage: int
    current: Fit | None
    done: tuple[Ended, ...]
    refinements: int = 0
    """How often the model that was given had been refined."""


UNJUDGED = Verdict(Status.NOT_CONVERGED, Cause.INTEGRALS)
"""The verdict on a result that was not worth judging, since its integrals were inexact."""

Keep = Callable[[Position, bool], None]
"""Called after every chunk with where the run is, and with True if it ends there."""


class Run(NamedTuple):
    """The result of a recipe."""

    q: Variational
    verdict: Verdict
    traces: Traces
    steps: int
    seconds: float
    position: Position | None
    """Where to resume; None unless the run was interrupted."""


class Interrupt:
    """A context in which ``requested`` tells whether Ctrl-C was pressed.

    Only the main thread receives signals; in any other thread this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._held = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "Interrupt":
        if self._held:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._held:
            signal.signal(signal.SIGINT, self._before)

    def agreed(self) -> bool:
        """Return whether Ctrl-C was pressed in any process; all processes must call this."""
        self.requested = any_process(self.requested)
        return self.requested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def run(
    recipe: Recipe,
    key: Key,
    model: LatentModel,
    data: Data,
    progress: Progress | None = None,
    resume: Position | None = None,
    keep: Keep = lambda position, ends: None,
    worth_judging: Callable[[Variational], bool] = lambda q: True,
    glance: int | None = None,
) -> Run:
    """Run all stages; Ctrl-C ends the run after the current chunk with a usable result.

    ``progress`` and ``keep`` are called after every chunk; ``resume`` continues a run. A result
    that is not ``worth_judging`` is returned without a verdict of its own. After ``glance`` steps
    of a stage this is asked as well, and a stage that leads nowhere ends there.
    """
    begun = time.perf_counter()
    at = resume or Position(0, None, ())
    done, judge_key = at.done, jax.random.fold_in(key, len(recipe.stages))
    judge, left_out = _once_per_stage(recipe.judge, worth_judging), False
    moving = _once_per_stage(recipe.moving, worth_judging) if recipe.moving else judge
    with Interrupt() as interrupt:
        for index in range(at.stage, len(recipe.stages)):
            stage = recipe.stages[index]
            current = at.current if index == at.stage else None
            if stage.optional or stage.encore:
                left_out = current is None and not (
                    recipe.promising(model, data, done[-1].fit.q)
                    and (not stage.encore or _may_be_better(moving(judge_key, model, data, done)))
                )
            else:
                left_out = left_out and stage.continues and current is None
            if left_out:
                continue
            stage_key = jax.random.fold_in(key, index - stage.continues)
            if stage.continues and current is None:
                current = _continued(done[-1].fit)
            before = done[:-1] if stage.continues else done
            begin, seen = _begin(stage, stage_key, model, data, before, current)
            following = recipe.stages[index + 1 : index + 2]
            total = next((s.num_steps for s in following if s.continues), stage.num_steps)
            watch = _watch(stage.name, total, stage.stop, progress, interrupt)
            if glance is not None:
                watch = _glancing(watch, glance, worth_judging)

            def keep_stage(current: Fit, index: int = index, done: tuple = done) -> None:
                keep(Position(index, current, done), False)

            # An interruption may have come before the stop rule was asked about the last chunk.
            if not (current and current.trace and stage.stop(current.step, current.trace)):
                current = fit(
                    stage_key,
                    stage.algorithm,
                    model,
                    seen,
                    begin,
                    num_steps=stage.num_steps,
                    chunk=stage.chunk,
                    average_last=stage.average_last,
                    monitor=watch,
                    keep=keep_stage,
                    resume=current,
                )
            if interrupt.agreed():
                facts = {"stage": stage.name, "step": current.step, "steps": total}
                verdict = Verdict(Status.INTERRUPTED, Cause.USER, facts, resumable=True)
                ended = (*done, Ended(stage.name, current))
                position = Position(index, current, done)
                keep(position, True)
                return _result(recipe.finish(model, data, ended), verdict, ended, begun, position)
            done = (*done, Ended(stage.name, current))
    verdict = judge(judge_key, model, data, done)
    result = done[-1].fit.q if verdict is UNJUDGED else recipe.finish(model, data, done)
    return _result(result, verdict, done, begun, None)


def _may_be_better(verdict: Verdict) -> bool:
    """Return whether further steps may help."""
    unfinished = (Status.NOT_CONVERGED, Status.NOT_SETTLED)
    return verdict.status in unfinished and verdict is not UNJUDGED


def _once_per_stage(judge: Judge, worth_judging: Callable[[Variational], bool]) -> Judge:
    """Return the judge with a memory, since it is asked more than once about the same stages."""
    last: tuple[Fit, Verdict] | None = None

    def remembering(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Verdict:
        nonlocal last
        if last is None or last[0] is not done[-1].fit:
            worth = worth_judging(done[-1].fit.q)
            last = done[-1].fit, judge(key, model, data, done) if worth else UNJUDGED
        return last[1]

    return remembering


def first_theta(
    key: Key, model: LatentModel, data: Data, start: Start | None
) -> Float[Array, " m"]:
    """Return the theta at which the caller, or else the model, wants to start."""
    return initial_theta(key, model, data) if start is None else jnp.asarray(start.theta, float)


def carry_on(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
    """Start where the last stage ended."""
    return done[-1].fit.q


def _begin(
    stage: Stage,
    key: Key,
    model: LatentModel,
    data: Data,
    done: tuple[Ended, ...],
    current: Fit | None,
) -> tuple[Variational, Data]:
    """Return the start of a stage, or where it is now, and the data as the stage sees them."""
    anchored = isinstance(data, Batches) and stage.anchored
    if current and not anchored:
        return current.state.q, data
    example = Batches.example_of(data)
    begin = stage.begin(key, model, example, done)
    if anchored:  # at the stage's start, even if it is being resumed
        data = data.anchored(key, model, stage.algorithm.score, begin.centre)
    return begin, data


def _continued(ended: Fit) -> Fit:
    """Return a stage that has ended as the start of the next one, with an empty window."""
    empty = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype)), ended.tail)
    return ended._replace(tail=empty, tail_count=jax.device_put(np.zeros((), int)), trace=None)


def _watch(
    name: str, total: int, stop: Stop, progress: Progress | None, interrupt: Interrupt
) -> Monitor:
    """Return the monitor of a stage, which reports progress and checks Ctrl-C and stop rule."""

    def watch(step: int, trace: Info, q: Variational) -> bool:
        if progress is not None:
            progress(name, step, total, trace)
        return interrupt.agreed() or stop(step, trace)

    return watch


def _glancing(watch: Monitor, glance: int, worth: Callable[[Variational], bool]) -> Monitor:
    """Return a monitor that also ends a stage which is not worth further steps."""

    def glancing(step: int, trace: Info, q: Variational) -> bool:
        return watch(step, trace, q) or (step == glance and not worth(q))

    return glancing


def _traces(done: tuple[Ended, ...]) -> Traces:
    return tuple((name, f.trace) for name, f in done if f.trace is not None)


def _result(
    q: Variational,
    verdict: Verdict,
    done: tuple[Ended, ...],
    begun: float,
    position: Position | None,
) -> Run:
    traces = _traces(done)
    steps = sum(len(np.asarray(t.log_q)) for _, t in traces)
    return Run(q, verdict, traces, steps, time.perf_counter() - begun, position)
