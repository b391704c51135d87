"""Running a recipe: stages one after the other, stoppable, resumable, judged at the end."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from nghvi._core.batches import Batches
from nghvi._core.fit import Fit, Monitor, fit
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.model import LatentModel
from nghvi._core.variational import Variational
from nghvi._typing import Data, Key
from nghvi.recipes.interrupt import Interrupt
from nghvi.recipes.verdict import Verdict


class Ended(NamedTuple):
    """A stage that has run."""

    name: str
    fit: Fit


Begin = Callable[[Key, LatentModel, Data, tuple[Ended, ...]], Variational]
Stop = Callable[[int, Info], bool]
Traces = tuple[tuple[str, Info], ...]
Judge = Callable[[Key, LatentModel, Data, Variational, Traces], Verdict]
Progress = Callable[[str, int, int, Info], None]


class Stage(NamedTuple):
    """One algorithm run for a number of steps."""

    name: str
    begin: Begin
    """Makes this stage's start from the stages that have ended."""
    algorithm: HybridVI
    num_steps: int
    chunk: int = 100
    average_last: int = 0
    stop: Stop = lambda step, trace: False
    """Read after every chunk; True means the stage has reached what it is for."""
    needed: Callable[[Traces], bool] = lambda traces: True
    """Whether to run it at all, after the stages before it."""
    anchored: bool = False
    """Whether mini-batches are made to resemble all the data near the start of the stage."""


class Recipe(NamedTuple):
    """Stages and the judge of their result."""

    name: str
    stages: tuple[Stage, ...]
    judge: Judge
    finish: Callable[[Variational], Variational] = lambda q: q
    """What is made of the judged (or interrupted) result, such as a projection."""


class Position(NamedTuple):
    """Where a run was left: hand it back as ``resume`` to go on as if nothing had happened."""

    stage: int
    current: Fit | None
    done: tuple[Ended, ...]


Keep = Callable[[Position, bool], None]
"""Called after every chunk with where the run is, and with True where it ends there."""


class Run(NamedTuple):
    """What a recipe returned."""

    q: Variational
    verdict: Verdict
    traces: Traces
    steps: int
    seconds: float
    position: Position | None
    """Set if the run was interrupted."""


def run(
    recipe: Recipe,
    key: Key,
    model: LatentModel,
    data: Data,
    progress: Progress | None = None,
    resume: Position | None = None,
    keep: Keep = lambda position, ends: None,
) -> Run:
    """Run all stages; Ctrl-C ends the run after the current chunk with a usable result."""
    begun = time.perf_counter()
    at = resume or Position(0, None, ())
    done = at.done
    with Interrupt() as interrupt:
        for index in range(at.stage, len(recipe.stages)):
            stage, stage_key = recipe.stages[index], jax.random.fold_in(key, index)
            if not stage.needed(_traces(done)):
                continue
            current = at.current if index == at.stage else None
            begin, seen = _begin(stage, stage_key, model, data, done, current)
            watch = _watch(stage, progress, interrupt)

            def keep_stage(current: Fit, index: int = index, done: tuple = done) -> None:
                keep(Position(index, current, done), False)

            # The interruption may have come before the stop rule was asked about the last chunk.
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
                verdict = Verdict(
                    False,
                    f"Interrupted: stage '{stage.name}' stopped at step {current.step} of at most "
                    f"{stage.num_steps}; resume to finish.",
                )
                ended = (*done, Ended(stage.name, current))
                position = Position(index, current, done)
                keep(position, True)
                return _result(recipe.finish(current.state.q), verdict, ended, begun, position)
            done = (*done, Ended(stage.name, current))
    q = done[-1].fit.q
    judge_key = jax.random.fold_in(key, len(recipe.stages))
    verdict = recipe.judge(judge_key, model, data, q, _traces(done))
    return _result(recipe.finish(q), verdict, done, begun, None)


def carry_on(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
    """Begin where the last stage ended."""
    return done[-1].fit.q


def _begin(
    stage: Stage,
    key: Key,
    model: LatentModel,
    data: Data,
    done: tuple[Ended, ...],
    current: Fit | None,
) -> tuple[Variational, Data]:
    """The start of a stage, or where it is, and the data as it sees them."""
    anchored = isinstance(data, Batches) and stage.anchored
    if current and not anchored:
        return current.state.q, data
    example = data.example if isinstance(data, Batches) else data
    begin = stage.begin(key, model, example, done)
    if anchored:  # where it began, also if it goes on now
        data = data.anchored(key, model, stage.algorithm.score, begin.centre)
    return begin, data


def _watch(stage: Stage, progress: Progress | None, interrupt: Interrupt) -> Monitor:
    """Monitor of one stage: reports progress, asks for Ctrl-C and the stop rule."""

    def watch(step: int, trace: Info) -> bool:
        if progress is not None:
            progress(stage.name, step, stage.num_steps, trace)
        return interrupt.agreed() or stage.stop(step, trace)

    return watch


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
