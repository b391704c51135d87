"""Seeds x methods: one process per cell, one row per cell, whatever happens in it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.worker import without_paths
from nghvi.paper.studies import facts

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"

METHODS = {
    "nghvi": "benchmarks.deep.nghvi_network",
    "numpyro-svi": "benchmarks.deep.numpyro_network",
    "gpboost": "benchmarks.deep.gpboost_trees",
    "merf": "benchmarks.deep.merf_forest",
    "oracle": "benchmarks.deep.oracle",
}
"""Module by the name used in tables."""

COLUMNS = {
    "fit_seconds": ("fit s", "{:.3g}"),
    "cold_seconds": ("cold s", "{:.3g}"),
    "r2": ("R2", "{:.4f}"),
    "log_score": ("log score", "{:.4f}"),
    "coverage": ("90 % coverage", "{:.3f}"),
    "width": ("width", "{:.2f}"),
}
"""Figures of a table: key in the row, title, form."""

LEGEND = (
    "fit s: the fit alone, tuning and compilation included. cold s: from the start of the process "
    "to the end of the fit.\nR2, mean log predictive density, coverage and mean width of 90 % "
    "intervals: test rows of the groups fitted."
)


def run(
    seeds: Sequence[int],
    chosen: Sequence[str],
    *,
    size: str = "full",
    time_limit: float = 900.0,
    output: Path | None = None,
) -> Path:
    """Run every cell, print a table per seed, write the rows; returns the file written."""
    about: dict[str, Any] = facts.about()
    about["versions"] |= facts.versions(["merf", "scikit-learn"])
    settings = {"size": size, "seeds": list(seeds), "time_limit": time_limit}
    output = output or RESULTS / ("deep.json" if size == "full" else f"deep-{size}.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    for seed in seeds:
        for method in chosen:
            print(f"seed {seed}: {method} ...", file=sys.stderr, flush=True)
            rows.append(run_cell(method, size, seed, time_limit))
            # Written after every cell: an interrupted run keeps its rows.
            content = {"about": about, "settings": settings, "rows": rows}
            output.write_text(json.dumps(content, indent=1) + "\n")
        print(f"\nseed {seed}\n{table([r for r in rows if r['seed'] == seed])}", flush=True)
    if len(seeds) > 1:
        print(f"\nmean over seeds\n{table(over_seeds(rows))}")
    print(LEGEND)
    return output


def run_cell(method: str, size: str, seed: int, limit: float) -> dict:
    """One row; a failure is a row with its reason."""
    row: dict = {"method": method, "seed": seed, "status": "ok", "remark": ""}
    row["load"] = round(os.getloadavg()[0], 2)  # what else the machine is doing
    # A cache of compiled programs on disk would make a cold start warm.
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        events, log = Path(folder) / "events", Path(folder) / "log"
        events.touch()
        settings = ["--size", size, "--seed", str(seed), "--events", str(events)]
        command = [sys.executable, "-m", "benchmarks.deep.worker", method, *settings]
        command += ["--started", repr(time.time())]
        with log.open("w") as stream:
            failure = _run(command, limit, stdout=stream, stderr=stream, env=environment, cwd=ROOT)
        for line in events.read_text().splitlines():
            row |= {k: v for k, v in json.loads(line).items() if k != "event"}
        if failure == "failed":
            last_words = log.read_text(errors="replace").strip().splitlines()[-1:]
            row["remark"] = without_paths("".join(last_words))
    return row | ({"status": failure} if failure else {})


def _run(command: list[str], limit: float, **settings: Any) -> str | None:
    """Run to the end or to the limit; returns why it ended badly."""
    try:
        code = subprocess.run(command, timeout=limit, check=False, **settings).returncode
    except subprocess.TimeoutExpired:
        return f"over {limit:g} s"
    return None if code == 0 else "failed"


def over_seeds(rows: Sequence[dict]) -> list[dict]:
    """Mean of every figure over the seeds in which the method succeeded."""
    means = []
    for method in dict.fromkeys(row["method"] for row in rows):
        good = [r for r in rows if r["method"] == method and r["status"] == "ok"]
        figures = {k: sum(r[k] for r in good) / len(good) for k in COLUMNS} if good else {}
        remark = f"{len(good)} of {sum(r['method'] == method for r in rows)} seeds"
        means.append({"method": method, "status": "ok", "remark": remark, **figures})
    return means


def table(rows: Sequence[dict]) -> str:
    """Rows as text."""
    import pandas as pd

    lines = [
        {
            "method": row["method"],
            **{
                title: "-" if row.get(key) is None else form.format(row[key])
                for key, (title, form) in COLUMNS.items()
            },
            "remark": _remark(row),
        }
        for row in rows
    ]
    return pd.DataFrame(lines).to_string(index=False, max_colwidth=60)


def _remark(row: dict) -> str:
    failure = "" if row["status"] == "ok" else f"{row['status'].upper()} "
    doubt = row.get("facts", {}).get("converged") is False
    return f"{failure}{row['remark']}{' (not converged)' if doubt else ''}"
