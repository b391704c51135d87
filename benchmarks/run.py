"""Problems x methods: one process per cell, one row per cell, whatever happens in it."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from benchmarks import methods, problems, reference, report
from benchmarks.worker import without_paths
from nghvi.paper.studies import facts

RESULTS = Path(__file__).parent / "results"


def run(
    names: Sequence[str],
    chosen: Sequence[str],
    *,
    size: str = "full",
    seed: int = 1,
    time_limit: float = 900.0,
    with_reference: bool = True,
    output: Path | None = None,
) -> Path:
    """Run every cell, print a table per problem, write the rows; returns the file written."""
    about = facts.about()
    settings = {
        "size": size,
        "seed": seed,
        "time_limit": time_limit,
        "groups": problems.SIZES[size],
    }
    if output is None:
        commit = str(about["commit"] or "unknown")[:7]
        output = RESULTS / f"peers-{size}-{str(about['date'])[:10]}-{commit}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for name in names:
        posterior = reference.load_or_run(name, size, seed) if with_reference else None
        for method in chosen:
            print(f"{name}: {method} ...", file=sys.stderr, flush=True)
            limit = methods.TIME_LIMITS.get((method, name), time_limit)
            row = run_cell(name, method, size=size, seed=seed, limit=limit)
            if posterior is not None and "mean" in row:
                row["comparison"] = reference.compare(row, posterior)
            rows.append(row)
            report.add_ratios(rows)
            # Written after every cell: an interrupted run keeps its rows.
            content = {"about": about, "settings": settings, "rows": rows}
            output.write_text(json.dumps(content, indent=1) + "\n")
        print(report.table([r for r in rows if r["problem"] == name]), flush=True)
    return output


def run_cell(name: str, method: str, *, size: str, seed: int, limit: float) -> dict:
    """One row; a failure is a row with its reason."""
    load = round(os.getloadavg()[0], 2)  # what else the machine is doing
    with tempfile.TemporaryDirectory() as folder:
        events, log = Path(folder) / "events", Path(folder) / "log"
        events.touch()
        with log.open("w") as stream:
            stopped = _watch(_start(name, method, size, seed, events, stream), events, limit)
        seen = [json.loads(line) for line in events.read_text().splitlines()]
        last_words = log.read_text(errors="replace").strip().splitlines()[-1:]
    return _row(name, method, limit, load, seen, stopped, "".join(last_words))


def _start(
    name: str, method: str, size: str, seed: int, events: Path, stream: TextIO
) -> subprocess.Popen:
    # A cache of compiled programs on disk would make a cold start warm.
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu"}
    settings = ["--size", size, "--seed", str(seed), "--events", str(events)]
    command = [sys.executable, "-m", "benchmarks.worker", name, method, *settings]
    return subprocess.Popen(
        [*command, "--started", repr(time.time())],
        stdout=stream,
        stderr=stream,
        env=environment,
        cwd=Path(__file__).parent.parent,
    )


def _watch(process: subprocess.Popen, events: Path, limit: float) -> str | None:
    """Wait; the limit starts again at every event. Returns why the process ended badly."""
    count, since = 0, time.monotonic()
    while True:
        try:
            # Wakes up at once when the process ends, so watching costs the worker nothing.
            code = process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            now = len(events.read_text().splitlines())
            if now > count:
                count, since = now, time.monotonic()
            if time.monotonic() - since > limit:
                process.kill()
                process.wait()
                return "time limit"
        else:
            return None if code == 0 else f"ended with code {code}"


def _row(
    name: str,
    method: str,
    limit: float,
    load: float,
    seen: list[dict],
    stopped: str | None,
    last_words: str,
) -> dict:
    row: dict = {"problem": name, "method": method, "status": "ok", "remark": "", "load": load}
    warm = [e for e in seen if e["event"] == "warm"]
    for event in seen:
        values = {k: v for k, v in event.items() if k != "event"}
        if event["event"] == "cold":
            row |= {"cold_seconds": values["seconds"], "cold_cpu_seconds": values["cpu_seconds"]}
        elif event["event"] in ("summary", "done"):
            row |= values
        elif event["event"] != "warm":
            row |= {"status": event["event"], "remark": values["message"]}
    if warm:
        row["warm_seconds_all"] = [e["seconds"] for e in warm]
        for key in ("seconds", "cpu_seconds", "summary_seconds"):
            target = key if key == "summary_seconds" else f"warm_{key}"
            row[target] = statistics.median(e[key] for e in warm)
    if stopped == "time limit":
        phase = "the cold fit" if "cold_seconds" not in row else "a warm fit"
        row |= {"status": "time limit", "remark": f"{phase} exceeded {limit:g} s"}
    elif stopped is not None:
        row |= {"status": "failed", "remark": f"{stopped}: {without_paths(last_words)}"}
    return row
