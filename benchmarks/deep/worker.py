"""One method on one task, in its own process; every result is reported when it is known."""

import argparse
import importlib
import resource
import time
from pathlib import Path

import numpy as np

from benchmarks.deep.run import METHODS
from benchmarks.deep.task import Prediction, scores, simulate
from benchmarks.worker import Reporter, number, timed, without_paths


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method")
    parser.add_argument("--size", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--started", type=float, required=True, help="time.time() of the parent")
    parser.add_argument("--events", type=Path, required=True)
    options = parser.parse_args(arguments)
    report = Reporter(options.events)
    try:
        measure(report, options.method, options.size, options.seed, options.started)
    except ImportError as error:
        report("failed", status="not installed", remark=without_paths(str(error)))
    except Exception as error:
        message = without_paths(f"{type(error).__name__}: {error}")
        report("failed", status="failed", remark=message)


def measure(report: Reporter, method: str, size: str, seed: int, started: float) -> None:
    """Fit, then predict and score the test rows."""
    module = importlib.import_module(METHODS[method])
    task = simulate(size, seed)
    fitted, seconds = timed(lambda: module.fit(task, seed))
    report("fit", fit_seconds=seconds, cold_seconds=time.time() - started)
    report("fit", cold_cpu_seconds=time.process_time())
    prediction, seconds = timed(lambda: module.predict(task, fitted))
    report("said", remark=prediction.remark, facts=finite(prediction.facts))
    check(prediction)
    found = {name: number(value) for name, value in scores(task.test, prediction).items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report("scores", **found, predict_seconds=seconds, peak_megabytes=round(peak))


def check(prediction: Prediction) -> None:
    """NaN would pass as an interval that covers nothing: it is a failure."""
    for name in ("mean", "log_score", "lower", "upper"):
        if not np.isfinite(getattr(prediction, name)).all():
            raise ValueError(f"{name} of the predictions is not finite")


def finite(facts: dict[str, object]) -> dict[str, object]:
    """JSON knows no infinity and no NaN."""
    return {k: number(v) if isinstance(v, float) else v for k, v in facts.items()}


if __name__ == "__main__":
    main()
