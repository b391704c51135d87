"""Deep Poisson and ordered models compared with the truth: ``python -m benchmarks.deep_responses``.

    eta = sin(2 x1) + max(x2, 0) - 0.5 + effect of the group (sd 0.5)

40,000 rows in 200 groups, and 10,000 more rows of the same groups, whose mean log score is compared
with that at the true eta (and the true cutpoints). Required: at most 0.01 below.
"""

import argparse
import json
import pathlib
import time
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit
from scipy.stats import poisson

import nghvi
from nghvi.paper.studies.facts import about

RESULTS = pathlib.Path(__file__).parent / "results" / "deep_responses.json"
ROWS, HELD_OUT, GROUPS, CLOSE = 40_000, 10_000, 200, 0.01
CUTS = np.array([-1.0, 0.5, 2.0])
HIDDEN = (16, 8)


def simulate(response: str, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """All rows, and the log density of each at the truth."""
    rng = np.random.default_rng(seed)
    n = ROWS + HELD_OUT
    x, group = rng.standard_normal((n, 2)), rng.integers(0, GROUPS, n)
    effects = 0.5 * rng.standard_normal(GROUPS)[group]
    eta = np.sin(2 * x[:, 0]) + np.maximum(x[:, 1], 0) - 0.5 + effects
    if response == "poisson":
        y = rng.poisson(np.exp(eta))
        truth = poisson.logpmf(y, np.exp(eta))
    else:
        y = np.sum((eta + rng.logistic(size=n))[:, None] > CUTS, axis=1)
        up_to = np.column_stack([np.zeros(n), expit(CUTS - eta[:, None]), np.ones(n)])
        truth = np.log(np.take_along_axis(np.diff(up_to, axis=1), y[:, None], 1)[:, 0])
    return pd.DataFrame({"y": y, "x1": x[:, 0], "x2": x[:, 1], "g": group}), truth


def measured(response: str) -> dict[str, Any]:
    """One row."""
    rows, truth = simulate(response)
    kept, held_out = rows[:ROWS], rows[ROWS:]
    kind = nghvi.MixedRegressor if response == "poisson" else nghvi.MixedClassifier
    model = kind("g", random="intercept", hidden=HIDDEN, response=response)
    begun, busy = time.perf_counter(), time.process_time()
    model.fit(kept[["x1", "x2", "g"]], kept["y"])
    seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
    score = float(model.log_score(held_out[["x1", "x2", "g"]], held_out["y"]))
    best = float(truth[ROWS:].mean())
    return {
        "response": response,
        "log_score": round(score, 4),
        "truth": round(best, 4),
        "below": round(best - score, 4),
        "verdict": str(model.verdict_),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "ok": bool(best - score <= CLOSE),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="the response whose name contains this")
    chosen = parser.parse_args()
    failed = 0
    for response in ("poisson", "ordered-logit"):
        if chosen.only not in response:
            continue
        facts = about()
        row = measured(response) | {"about": facts}
        print(json.dumps({k: v for k, v in row.items() if k != "about"}), flush=True)
        held = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
        rows = [other for other in held if other["response"] != response] + [row]
        RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
        failed += not row["ok"]
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
