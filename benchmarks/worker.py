"""One method on one problem, in its own process: fit, summarise, fit again.

Every result is written as one JSON line as soon as it is known, so that a process that is
killed at its time limit or crashes leaves what it had finished.
"""

import argparse
import json
import math
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import methods, problems
from benchmarks.methods.base import Summary

WARM_FITS = 5
WARM_SECONDS = 5.0
"""Quick fits are repeated, each time on another data set, until either is reached."""


class Reporter:
    """Appends events to a file the parent process watches."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, event: str, **values: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"event": event, **values}) + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem")
    parser.add_argument("method")
    parser.add_argument("--size", default="full")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--started", type=float, required=True, help="time.time() of the parent")
    parser.add_argument("--events", type=Path, required=True)
    options = parser.parse_args(arguments)
    report = Reporter(options.events)
    try:
        measure(
            report, options.problem, options.method, options.size, options.seed, options.started
        )
    except NotImplementedError as error:
        report("unsupported", message=str(error))
    except ImportError as error:
        report("not installed", message=without_paths(str(error)))
    except Exception as error:
        report("failed", message=without_paths(f"{type(error).__name__}: {error}"))
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        report("done", peak_megabytes=round(peak))


def measure(report: Reporter, name: str, method: str, size: str, seed: int, started: float) -> None:
    """Cold fit on the first data set, its summary, then warm fits on others of its shape."""
    module = methods.load(method)
    problem = problems.simulate(name, size, seed)
    fitted = module.fit(problem, seed)
    report("cold", seconds=time.time() - started, cpu_seconds=time.process_time())
    summary, _ = timed(lambda: module.summarise(problem, fitted))
    report("summary", **as_json(summary))
    spent, count = 0.0, 0
    while count < WARM_FITS and spent < WARM_SECONDS:
        count += 1
        other = problems.simulate(name, size, seed + count)
        cpu = time.process_time()
        fitted, seconds = timed(lambda: module.fit(other, seed))  # noqa: B023  called at once
        cpu = time.process_time() - cpu
        _, summary_seconds = timed(lambda: module.summarise(other, fitted))  # noqa: B023
        report("warm", seconds=seconds, cpu_seconds=cpu, summary_seconds=summary_seconds)
        spent += seconds + summary_seconds


def timed(action: Callable) -> Any:
    """The action's value and its wall time."""
    begun = time.perf_counter()
    value = action()
    return value, time.perf_counter() - begun


def as_json(summary: Summary) -> dict[str, object]:
    """JSON knows no NaN: a figure a method does not have is null."""
    return {
        "mean": [number(v) for v in summary.mean],
        "sd": [number(v) for v in summary.sd],
        "remark": summary.remark,
        "facts": {k: number(v) if isinstance(v, float) else v for k, v in summary.facts.items()},
    }


def number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def without_paths(message: str, longest: int = 300) -> str:
    """First part of a message, with directories of this machine left out."""
    return re.sub(r"(?:/[\w.+-]+)+/(?=[\w.+-])", "", " ".join(message.split()))[:longest]


if __name__ == "__main__":
    main()
