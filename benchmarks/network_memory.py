"""Peak memory of a network fit: linear in the rows, with very unequal groups.

Each size runs in its own process (peak memory never falls within one): a few steps of every
stage and the final evaluation, on groups whose sizes follow a power law from 1 row upwards.

Run: python -m benchmarks.network_memory [--rows 1000000 2000000 5000000] [--steps 12]
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import time

import numpy as np

from nghvi.paper.studies.facts import about

HIDDEN, COLUMNS, ROWS_A_GROUP = (32, 16), 10, 100


def table(num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, response, group codes; the largest group holds about a tenth of the rows."""
    rng = np.random.default_rng(0)
    num_groups = num_rows // ROWS_A_GROUP
    share = (1 + np.arange(num_groups)) ** -1.0
    sizes = 1 + rng.multinomial(num_rows - num_groups, share / share.sum())
    group = rng.permutation(np.repeat(np.arange(num_groups), sizes))
    x = rng.normal(size=(num_rows, COLUMNS))
    y = np.maximum(x[:, 0], 0) * (2 + 0.5 * rng.normal(size=num_groups)[group])
    return x, y + rng.normal(size=num_rows), group


def fit_once(num_rows: int, steps: int) -> dict[str, float]:
    """Fit and say what it took."""
    import pandas as pd

    import nghvi

    x, y, group = table(num_rows)
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(COLUMNS)]).assign(g=group)
    del x
    gigabyte = 1024**2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / gigabyte
    begun = time.perf_counter()
    fitted = nghvi.MixedRegressor("g", hidden=HIDDEN, steps=steps, n_starts=1).fit(frame, y)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / gigabyte
    sizes = np.bincount(group)
    return {
        "rows": num_rows, "groups": sizes.size, "smallest": int(sizes.min()),
        "largest": int(sizes.max()), "steps": steps, "seconds": seconds,
        "table_gb": before, "peak_gb": peak, "elbo": fitted.elbo_,
    }  # fmt: skip


def main() -> int:
    """Run every size, print and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 2_000_000, 5_000_000])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--one", action="store_true", help="this process, one size, JSON out")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(fit_once(chosen.rows[0], chosen.steps)))
        return 0
    rows = []
    for size in chosen.rows:
        command = [sys.executable, "-m", "benchmarks.network_memory", "--one"]
        command += ["--rows", str(size), "--steps", str(chosen.steps)]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            rows.append({"rows": size, "failed": ended.stderr.strip().splitlines()[-1:]})
        else:
            rows.append(json.loads(ended.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
        results = pathlib.Path(__file__).parent / "results" / "network_memory.json"
        results.write_text(json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
