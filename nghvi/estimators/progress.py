"""A progress bar for fits, updated once per chunk."""

import time
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nghvi._core.hybrid import Info


class FitProgress:
    """One line per stage on stderr: steps done, noisy ELBO, steps per second, time.

    ``jacobian``: what the ELBO as fitted exceeds that of the raw data by.
    """

    def __init__(self, jacobian: float = 0.0) -> None:
        self._jacobian = jacobian
        self._bar = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            TextColumn("{task.completed:>5}/{task.total} steps"),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, TaskID] = {}
        self._first: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> "FitProgress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for task in self._tasks.values():
            # A stage that stopped early has reached its aim: show it as finished.
            self._bar.update(task, total=self._bar.tasks[task].completed)
        self._bar.stop()

    def __call__(self, stage: str, step: int, num_steps: int, trace: Info) -> None:
        """Show where a stage is."""
        now = time.perf_counter()
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=num_steps, state="")
            # What came before the first report was compiled, or run before an interruption.
            self._first[stage] = (step, now)
        recent = np.asarray(trace.log_target[-10:]) - np.asarray(trace.log_q[-10:])
        state = f"noisy ELBO {recent.mean() - self._jacobian:.2f}"
        first_step, first_time = self._first[stage]
        if step > first_step:
            state += f", {(step - first_step) / (now - first_time):.0f} steps/s"
        self._bar.update(self._tasks[stage], completed=step, state=state)
