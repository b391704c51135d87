"""Are predictions of a small deep mixed model calibrated? PIT and coverage over data sets.

Each data set comes from a network [4] with random weights, 60 groups of 10 training and 5 test
rows, random coefficients on all features. Coverage of 50, 80 and 95 % intervals of the test rows
and a histogram of P(Y <= y) under the predictive distribution. Rows of one data set share a fit,
so the error is taken over data sets.

Run: python -m benchmarks.network_calibration
"""

import json
import pathlib

import numpy as np
import pandas as pd

import nghvi
from nghvi.paper.studies.facts import about
from nghvi.priors import InverseGamma, Priors

ROOT = pathlib.Path(__file__).parent.parent
LEVELS = (0.5, 0.8, 0.95)
GROUPS, TRAIN, TEST, INPUTS = 60, 10, 5, 3


def simulate(seed: int) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    size = TRAIN + TEST
    x = rng.normal(size=(GROUPS, size, INPUTS))
    w = rng.normal(size=(4, INPUTS + 1))
    h = np.maximum(x @ w[:, 1:].T + w[:, 0], 0)
    h = np.concatenate([np.ones((GROUPS, size, 1)), h], axis=-1)
    coef = rng.normal(size=5) + 0.5 * rng.normal(size=(GROUPS, 5))
    y = np.einsum("kni,ki->kn", h, coef) + rng.normal(size=(GROUPS, size))

    def part(first: int, last: int) -> tuple[pd.DataFrame, np.ndarray]:
        table = pd.DataFrame(x[:, first:last].reshape(-1, INPUTS), columns=["a", "b", "c"])
        return table.assign(g=np.repeat(np.arange(GROUPS), last - first)), y[:, first:last].ravel()

    return *part(0, TRAIN), *part(TRAIN, size)


def one(seed: int) -> dict:
    x, y, new, response = simulate(seed)
    priors = Priors(noise=InverseGamma())
    fitted = nghvi.MixedRegressor("g", hidden=(4,), priors=priors, random_state=seed).fit(x, y)
    draws = fitted.sample_predictive(new, draws=1000)
    row: dict = {"seed": seed, "pit": np.mean(draws <= response, axis=0).round(4).tolist()}
    for level in LEVELS:
        lower, upper = fitted.predict_interval(new, level=level)
        row[f"coverage_{level}"] = nghvi.scores.coverage(response, lower, upper)
    shown = "  ".join(f"{level:.0%} {row[f'coverage_{level}']:.3f}" for level in LEVELS)
    print(f"data set {seed:2d}  {shown}  {fitted.verdict_[:40]}", flush=True)
    return row


def plot(rows: list[dict], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    pit = np.concatenate([r["pit"] for r in rows])
    axes[0].hist(pit, bins=20, range=(0, 1), density=True, color="#2a6f97", alpha=0.7)
    band = 1.96 * np.sqrt(20 / pit.size)
    axes[0].axhspan(1 - band, 1 + band, color="#8d99ae", alpha=0.35, lw=0)
    axes[0].axhline(1, color="black", lw=0.8)
    axes[0].set(title=f"PIT of {pit.size:,} test rows", xlabel="P(Y ≤ y)", ylim=(0, 1.6))
    for level in LEVELS:
        values = np.array([r[f"coverage_{level}"] for r in rows])
        axes[1].plot(np.full(values.size, level), values, "o", ms=3, alpha=0.4, color="#2a6f97")
        axes[1].errorbar(
            level, values.mean(), 1.96 * values.std(ddof=1) / np.sqrt(values.size),
            fmt="s", color="#d1495b", capsize=3,
        )  # fmt: skip
    axes[1].plot([0.4, 1], [0.4, 1], color="black", lw=0.8)
    axes[1].set(title=f"Coverage, {len(rows)} data sets", xlabel="level", ylabel="covered")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)


def main() -> int:
    """20 data sets: rows, plot and a line for each level."""
    rows = [one(seed) for seed in range(1, 21)]
    for level in LEVELS:
        values = np.array([r[f"coverage_{level}"] for r in rows])
        error = values.std(ddof=1) / np.sqrt(values.size)
        print(f"{level:.0%}: covered {values.mean():.4f} +- {error:.4f} (standard error)")
    results = ROOT / "benchmarks" / "results" / "network_calibration.json"
    results.write_text(json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    plot(rows, ROOT / "docs" / "figures" / "network_calibration.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
