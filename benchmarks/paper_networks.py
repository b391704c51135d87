"""Networks on the paper's examples: the default recipe compared with the published rule.

    ex2a     five seeds on the stored data, paper's priors; published rule, same data and seeds
    default  three seeds on the same data, and the large network, with default settings
    fresh    five new data sets from the process of Example 2(a), both rules, paired
    ex2b     the large network, simulated from the paper's parameters, noise ~ IG(1.01, 1.01)
    ex3      the binary example, probit link, default priors

Run: python -m benchmarks.paper_networks [--parts ex2a default fresh ex2b ex3]
"""

import argparse
import json
import pathlib
import time
from typing import Any

import numpy as np
import pandas as pd

import nghvi
from nghvi.paper.studies.facts import about
from nghvi.paper.studies.problems import (
    GROUP,
    NetworkProcess,
    Part,
    Problem,
    network,
    stored_process,
)
from nghvi.priors import InverseGamma, Priors

SHARED = pathlib.Path("../shared/data")


def part(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> Part:
    names = [f"x{j}" for j in range(x.shape[1])]
    return Part(pd.DataFrame(x, columns=names).assign(**{GROUP: group}), y)


def stored(name: str) -> Problem:
    """Train and test part of a stored example."""
    with np.load(SHARED / "paper_examples" / f"{name}.npz") as held:
        train, validation, test = (
            part(held[f"X_{p}"][:, 1:], held[f"y_{p}"], held[f"group_{p}"].astype(int))
            for p in ("train", "val", "test")
        )
    return Problem(train, validation, test, np.full(len(test.y), np.nan))


def fresh_ex2a(seed: int) -> Problem:
    with np.load(SHARED / "paper_examples" / "ex2a.npz") as held:
        weights, effect_var = [held["W1_true"], held["W2_true"]], np.diag(held["Sigma_alpha"])
        process = NetworkProcess(weights, held["beta_true"], effect_var, 20.0, held["V_x"])
    return network(np.random.default_rng(seed), process, (6, 2, 2))


def ex2b(seed: int) -> Problem:
    process = stored_process(SHARED / "paper_params" / "parameters_large.json")
    return network(np.random.default_rng(seed), process, (30, 10, 10))


def assess(name: str, data: Problem, seed: int, **settings: Any) -> dict[str, Any]:
    """Fit, score on the test rows, print and return a row."""
    kind = nghvi.MixedClassifier if name == "ex3" else nghvi.MixedRegressor
    begun, begun_cpu = time.perf_counter(), time.process_time()
    fitted = kind(GROUP, random_state=seed, **settings).fit(*data.train)
    seconds = time.perf_counter() - begun
    x, y = data.test
    row = {
        "example": name, "method": settings.get("method", "auto"), "seed": seed,
        "elbo": fitted.elbo_, "seconds": seconds, "verdict": fitted.verdict_,
        "hidden": list(settings["hidden"]), "cpu seconds": time.process_time() - begun_cpu,
    }  # fmt: skip
    if name == "ex3":
        probability = fitted.predict_proba(x)[:, 1]
        row |= {
            "pce": nghvi.scores.pce(y, probability),
            "f1": nghvi.scores.f1(y, probability),
        }
    else:
        lower, upper = fitted.predict_interval(x, level=0.9)
        row |= {
            "r2": nghvi.scores.r2(y, fitted.predict(x)),
            "log_score": fitted.log_score(x, y),
            "coverage": nghvi.scores.coverage(y, lower, upper),
        }
    shown = (f"{k} {v:.4f}" for k, v in row.items() if isinstance(v, float))
    print(f"{name:6s} {row['method']:7s} seed {seed}  {'  '.join(shown)}", flush=True)
    return row


def run(part: str) -> list[dict[str, Any]]:
    paper = {"hidden": (5, 5), "priors": Priors.paper(), "standardize": False}
    published = {**paper, "method": "ng-hvi", "steps": 3000}
    rows = []
    if part == "ex2a":
        data = stored("ex2a")
        for seed in range(1, 6):
            rows += [assess("ex2a", data, seed, **s) for s in (paper, published)]
    if part == "default":
        data = stored("ex2a")
        rows = [assess("default", data, seed, hidden=(5, 5)) for seed in (1, 2, 3)]
        rows.append(assess("default", ex2b(11), 1, hidden=(32, 16)))
    if part == "fresh":
        for seed in range(101, 106):
            data = fresh_ex2a(seed)
            rows += [assess("fresh", data, seed, **s) for s in (paper, published)]
    if part == "ex2b":
        stated = Priors(noise=InverseGamma())
        rows.append(assess("ex2b", ex2b(11), 1, hidden=(32, 16), priors=stated))
    if part == "ex3":
        rows += [
            assess("ex3", stored("ex3"), seed, hidden=(5, 5), covariance="diagonal")
            for seed in (1, 2, 3)
        ]
    return rows


def main() -> int:
    """Run the chosen parts and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ("ex2a", "default", "fresh", "ex2b", "ex3")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    chosen = parser.parse_args()
    if not SHARED.is_dir():
        print(f"no examples in {SHARED}: nothing to run")
        return 0
    results = pathlib.Path(__file__).parent / "results" / "paper_networks.json"
    old = json.loads(results.read_text())["rows"] if results.exists() else []
    rows = [row for row in old if row["example"] not in chosen.parts]
    for part in chosen.parts:
        rows += [row | {"about": about()} for row in run(part)]
        results.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
