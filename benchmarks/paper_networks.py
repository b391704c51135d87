"""Networks on the paper's examples: the default recipe, beside the published rule.

    ex2a     five seeds on the stored data, paper's priors; published rule, same data and seeds
    fresh    five new data sets from the process of Example 2(a), both rules, paired
    ex2b     the large network, simulated from the paper's parameters, default priors
    ex3      the binary example, probit link, default priors

Run: python -m benchmarks.paper_networks [--parts ex2a fresh ex2b ex3]
"""

import argparse
import json
import pathlib
import time
from typing import Any

import numpy as np
import pandas as pd

import nghvi
from nghvi.priors import Priors
from nghvi.studies.facts import about

SHARED = pathlib.Path("../shared/data")
Part = tuple[np.ndarray, np.ndarray, np.ndarray]


def stored(name: str) -> dict[str, Part]:
    """Train and test part of a stored example."""
    with np.load(SHARED / "paper_examples" / f"{name}.npz") as held:
        return {
            part: (held[f"X_{part}"][:, 1:], held[f"y_{part}"], held[f"group_{part}"].astype(int))
            for part in ("train", "test")
        }


def simulate(
    seed: int,
    weights: list[np.ndarray],
    coef: np.ndarray,
    omega: np.ndarray,
    noise: float,
    correlation: np.ndarray,
    sizes: tuple[int, int, int],
) -> dict[str, Part]:
    """1,000 groups from the paper's process; rows for training, validation and test."""
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal(np.zeros(len(correlation)), correlation, (1000, sum(sizes)))
    h = x
    for w in weights:
        h = np.maximum(h @ w[:, 1:].T + w[:, 0], 0)
    h = np.concatenate([np.ones((*h.shape[:2], 1)), h], axis=-1)
    effects = rng.normal(size=(1000, len(coef))) * np.sqrt(np.diag(omega))
    y = np.einsum("kni,ki->kn", h, coef + effects) + np.sqrt(noise) * rng.normal(size=h.shape[:2])
    parts, ends = {}, np.cumsum([0, *sizes])
    for part, first, last in (("train", *ends[:2]), ("test", *ends[2:])):
        rows = slice(first, last)
        group = np.repeat(np.arange(1000), last - first)
        parts[part] = (x[:, rows].reshape(-1, x.shape[-1]), y[:, rows].ravel(), group)
    return parts


def fresh_ex2a(seed: int) -> dict[str, Part]:
    with np.load(SHARED / "paper_examples" / "ex2a.npz") as held:
        truth = [held["W1_true"], held["W2_true"]], held["beta_true"], held["Sigma_alpha"]
        return simulate(seed, *truth, 20.0, held["V_x"], (6, 2, 2))


def ex2b(seed: int) -> dict[str, Part]:
    held = json.loads((SHARED / "paper_params" / "parameters_large.json").read_text())
    weights = [np.array(w) for w in held[next(k for k in held if "eight" in k)]]
    omega, correlation = np.array(held["Sigma_alpha"]), np.array(held["V_x"])
    return simulate(seed, weights, np.ravel(held["beta"]), omega, 2.25, correlation, (30, 10, 10))


def frame(part: Part) -> pd.DataFrame:
    names = [f"x{j}" for j in range(part[0].shape[1])]
    return pd.DataFrame(part[0], columns=names).assign(g=part[2])


def assess(name: str, data: dict[str, Part], seed: int, **settings: Any) -> dict[str, Any]:
    """Fit, score on the test rows, print and return a row."""
    kind = nghvi.MixedClassifier if name == "ex3" else nghvi.MixedRegressor
    begun = time.perf_counter()
    fitted = kind("g", random_state=seed, **settings).fit(frame(data["train"]), data["train"][1])
    seconds = time.perf_counter() - begun
    x, y = frame(data["test"]), data["test"][1]
    row = {
        "example": name, "method": settings.get("method", "auto"), "seed": seed,
        "elbo": fitted.elbo_, "seconds": seconds, "verdict": fitted.verdict_,
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
    if part == "fresh":
        for seed in range(101, 106):
            data = fresh_ex2a(seed)
            rows += [assess("fresh", data, seed, **s) for s in (paper, published)]
    if part == "ex2b":
        rows.append(assess("ex2b", ex2b(11), 1, hidden=(32, 16)))
    if part == "ex3":
        rows += [
            assess("ex3", stored("ex3"), seed, hidden=(5, 5), covariance="diagonal")
            for seed in (1, 2, 3)
        ]
    return rows


def main() -> int:
    """Run the chosen parts and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = ("ex2a", "fresh", "ex2b", "ex3")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    chosen = parser.parse_args()
    if not SHARED.is_dir():
        print(f"no examples in {SHARED}: nothing to run")
        return 0
    results = pathlib.Path(__file__).parent / "results" / "paper_networks.json"
    old = json.loads(results.read_text())["rows"] if results.exists() else []
    rows = [row for row in old if row["example"] not in chosen.parts]
    for part in chosen.parts:
        rows += run(part)
        results.write_text(json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
