"""A fit killed (SIGKILL) at random moments and resumed: does it end as if it had not been?

Half of the kills come at any time before the program's first checkpoint, that is in imports and
compilation, or soon after it; the others after its first new checkpoint. Of two processes one is
killed, and the other must end by itself. Effects are drawn, so they are part of what is kept.

Run: python -m benchmarks.kills [--kills 20] [--processes 1 2] [--steps 120000]
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np
import pandas as pd

import nghvi
from nghvi.paper.studies.facts import about
from nghvi.storage.checkpoints import checkpoint_files

LONGEST = 300
"""Seconds a process may take to end by itself."""


def table(path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(40), rng.integers(1, 12, 40))
    a = rng.normal(size=group.size)
    y = a + rng.normal(size=40)[group] + rng.normal(size=group.size)
    pd.DataFrame({"g": group, "a": a, "y": y}).to_csv(path, index=False, float_format="%.17g")


class Life:
    """One start of all processes of a fit."""

    def __init__(self, place: pathlib.Path, out: str, processes: int, steps: int) -> None:
        self.kept = place / f"{out}-kept"
        self.before = self.newest()
        self.begun = time.monotonic()
        command = [
            *(sys.executable, "-m", "nghvi", "fit", str(place / "data.csv"), "--quiet"),
            *("--target", "y", "--group", "g", "--method", "sg-hvi", "--steps", str(steps)),
            *(
                "--out",
                str(place / out),
                "--resume",
                "--checkpoint",
                str(self.kept),
                "--every",
                "0",
            ),
        ]
        if processes > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                command += ["--coordinator", f"127.0.0.1:{probe.getsockname()[1]}"]
            command += ["--num-processes", str(processes)]
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(place / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }
        self.processes = [
            subprocess.Popen(
                [*command, *(["--process-id", str(i)] if processes > 1 else [])],
                env={**os.environ, **cache},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for i in range(processes)
        ]

    def newest(self) -> int:
        return max((int(p.stem) for p in checkpoint_files(self.kept)), default=0)

    def running(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def kill_one(self, rng: np.random.Generator, startup: float) -> dict:
        """Kill a process at a random moment; how the others ended."""
        after_checkpoint = bool(rng.random() < 0.5)
        while after_checkpoint and self.running() and self.newest() == self.before:
            time.sleep(0.01)
        end = time.monotonic() + rng.random() * (0.3 if after_checkpoint else startup)
        while self.running() and time.monotonic() < end:
            time.sleep(0.001)
        if not self.running():
            return {"ended_before": [p.wait() for p in self.processes]}
        victim = int(rng.integers(len(self.processes)))
        age, killed = time.monotonic() - self.begun, time.monotonic()
        os.kill(self.processes[victim].pid, signal.SIGKILL)
        row: dict[str, Any] = {
            "age": age,
            "victim": victim,
            "before": self.before,
            "checkpoint": self.newest(),
        }
        others = [p for i, p in enumerate(self.processes) if i != victim]
        said = [process.communicate(timeout=LONGEST)[1] for process in others]
        self.processes[victim].communicate()
        if others:
            row |= {
                "others": [p.returncode for p in others],
                "seconds": time.monotonic() - killed,
                "clear": all("cannot continue" in s or "not all of" in s for s in said),
                "said": "" if said[0].count("nghvi") else said[0][-300:],
            }
        return row

    def finish(self) -> list[int]:
        for process in self.processes:
            process.communicate(timeout=3600)
        return [p.returncode for p in self.processes]


def same(place: pathlib.Path) -> bool:
    """Whether both runs have the same state to the last bit."""
    whole, killed = (nghvi.load(place / out / "model.nghvi") for out in ("whole", "killed"))
    leaves = [
        [*jax.tree.leaves(m.posterior_.inference.q), m.posterior_.inference.pool.theta, m.elbo_]
        for m in (whole, killed)
    ]
    equal = all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))
    return bool(equal and whole.trace_.equals(killed.trace_))


def measure(processes: int, kills: int, steps: int, seed: int) -> dict:
    rng = np.random.default_rng([seed, processes])
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as made:
        place = pathlib.Path(made)
        table(place / "data.csv")
        whole = Life(place, "whole", processes, steps)
        while whole.running() and not whole.newest():
            time.sleep(0.01)
        startup = time.monotonic() - whole.begun
        codes = whole.finish()
        while len(rows) < kills:
            rows.append(Life(place, "killed", processes, steps).kill_one(rng, startup))
            print(rows[-1], flush=True)
            if "ended_before" in rows[-1]:
                break
        ended = Life(place, "killed", processes, steps).finish()
        return {
            "about": about(), "processes": processes, "steps": steps,
            "kills": sum("victim" in row for row in rows), "exit_codes": [codes, ended],
            "same_bits": same(place), "rows": rows,
        }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=120_000)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args()
    found = []
    for processes in chosen.processes:
        found.append(measure(processes, chosen.kills, chosen.steps, chosen.seed))
        print({k: v for k, v in found[-1].items() if k != "rows"}, flush=True)
        results = pathlib.Path(__file__).parent / "results" / "kills.json"
        results.write_text(json.dumps({"runs": found}, indent=1) + "\n")
    return 0 if all(run["same_bits"] for run in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
