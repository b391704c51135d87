"""Inputs with heavy tails: by what map, and from what tails on, should a network see them?

``--part choose``: many simulated columns and curves, wide random networks with the inputs beside
them, fitted by ridge regression; the network sees the column standardised, by asinh of robust
units, or by ranks. The score is the log of the ratio of held-out errors to those with the
standardised column (below 0 is better), by ``sd / unit``, where unit is the interquartile range
over 1.349. ``--part judge``: fresh columns and curves, the library's own network with
``scaling="plain"`` and with its default; gains of log scores (above 0 is better).
One line of JSON per data set; ends with the table.

Run: python -m benchmarks.heavy_inputs --part choose [--sets 300]
"""

import argparse
import itertools
import json
import pathlib
import time
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.stats import norm, rankdata
from sklearn.linear_model import RidgeCV

import nghvi
from nghvi.estimators.columns import robust_unit
from nghvi.paper.studies.facts import about

OUT = pathlib.Path(__file__).parent / "results"
Draw = Callable[[np.random.Generator, int], np.ndarray]


def _contaminated(rng: np.random.Generator, n: int) -> np.ndarray:
    """Normal but for up to three cells that are wrong by powers of ten."""
    x = rng.normal(size=n)
    wrong = rng.choice(n, rng.integers(1, 4), replace=False)
    x[wrong] *= 10.0 ** rng.uniform(1, 6, len(wrong))
    return x


COLUMNS: dict[str, Draw] = {
    "normal": lambda r, n: r.normal(size=n),
    "uniform": lambda r, n: r.uniform(-1, 1, n),
    "exponential": lambda r, n: r.exponential(size=n),
    "gamma": lambda r, n: r.gamma(r.uniform(0.2, 1.0), size=n),
    "lognormal": lambda r, n: np.exp(r.uniform(0.3, 2.5) * r.normal(size=n)),
    "t": lambda r, n: r.standard_t(r.uniform(1, 5), n),
    "pareto": lambda r, n: r.pareto(r.uniform(0.8, 4), n),
    "outliers": _contaminated,
    "zeros": lambda r, n: (r.random(n) < 0.6) * np.exp(r.uniform(0.3, 2.0) * r.normal(size=n)),
}
CURVES = ("ranks", "asinh", "line", "clipped", "bump")
UNITS = 200
"""Of a random network."""
BINS = (0, 1.25, 1.5, 2, 3, 6, np.inf)


def truth(x: np.ndarray, curve: str, rng: np.random.Generator) -> np.ndarray:
    """A curve of a column, in units of its own spread."""
    normal = norm.ppf((rankdata(x) - 0.5) / len(x))
    middle = np.median(x)
    unit = robust_unit(x) or 1.0
    z = (x - middle) / unit
    values = {
        "ranks": np.sin(2 * normal + rng.uniform(0, 6)),
        "asinh": np.arcsinh(z),
        "line": (x - x.mean()) / x.std(),
        "clipped": np.clip(z, -1, 1),
        "bump": np.exp(-0.5 * (z - rng.uniform(-1, 1)) ** 2 / 0.3),
    }[curve]
    return values / values.std()


def drawn(seed: int, part: str, n: int = 800) -> dict:
    """A column, a second input, and a response; half of the rows are held out."""
    rng = np.random.default_rng([seed, *part.encode()])
    column, curve = rng.choice(list(COLUMNS)), rng.choice(CURVES)
    x = COLUMNS[column](rng, n)
    other, group = rng.normal(size=n), np.arange(n) % 20
    signal = truth(x, curve, rng) + 0.5 * other + (0.3 * rng.normal(size=20))[group]
    y = signal + 0.4 * rng.normal(size=n)
    return {"column": column, "curve": curve, "x": x, "z": other, "group": group, "y": y}


def maps(x: np.ndarray) -> dict[str, np.ndarray]:
    """The candidates, all learnt from the first half."""
    train = x[: len(x) // 2]
    unit = robust_unit(train)
    found = {"plain": x, "asinh": np.arcsinh((x - np.median(train)) / (unit or 1.0))}
    known, ordered = np.unique(train), np.sort(train)
    below, up_to = (np.searchsorted(ordered, known, side) for side in ("left", "right"))
    found["ranks"] = np.interp(x, known, norm.ppf((below + up_to) / 2 / len(train)))
    return {
        name: (v - v[: len(train)].mean()) / (v[: len(train)].std() or 1.0)
        for name, v in found.items()
    }


def choose(seed: int) -> dict:
    """Held-out errors of wide random networks with the inputs beside them, by ridge regression.

    The column beside the network is standardised ("asinh") or mapped as well ("asinh beside").
    """
    data = drawn(seed, "choose")
    half = len(data["x"]) // 2
    row = {"column": data["column"], "curve": data["curve"]}
    unit = robust_unit(data["x"][:half])
    row["tails"] = float(data["x"][:half].std() / unit) if unit else None
    rng = np.random.default_rng([seed, 1])
    inner, bias = rng.normal(size=(2, UNITS)), 2 * rng.normal(size=UNITS)
    candidates = maps(data["x"])
    for name, values in candidates.items():
        hidden = np.maximum(np.column_stack([values, data["z"]]) @ inner + bias, 0)
        for place in ("", " beside"):
            beside = values if place else candidates["plain"]
            design = np.column_stack([10 * beside, 10 * data["z"], hidden / np.sqrt(UNITS)])
            model = RidgeCV(np.logspace(-5, 1, 13)).fit(design[:half], data["y"][:half])
            error = data["y"][half:] - model.predict(design[half:])
            row[name + place] = float(np.log(np.mean(error**2)) / 2)
            usual = np.abs(error) <= np.quantile(np.abs(error), 0.98)
            row[f"{name}{place} usual"] = float(np.log(np.mean(error[usual] ** 2)) / 2)
    return row


def judge(seed: int) -> dict:
    """Log scores of held-out rows, with and without."""
    data = drawn(seed, "judge", n=400)
    half = len(data["x"]) // 2
    frame = pd.DataFrame({name: data[name] for name in ("x", "z", "group")})
    unit = robust_unit(data["x"][:half])
    row = {"column": data["column"], "curve": data["curve"]}
    row["tails"] = float(data["x"][:half].std() / unit) if unit else None
    for scaling in ("plain", "auto"):
        model = nghvi.MixedRegressor(
            "group", hidden=(8,), random="intercept", n_starts=1, scaling=scaling
        )
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(frame[:half], data["y"][:half])
            row[scaling] = model.log_score(frame[half:], data["y"][half:])
        row[f"{scaling} seconds"] = round(time.process_time() - begun, 1)
        row[f"{scaling} verdict"] = model.verdict_.partition(".")[0]
    return row


def lines(rows: list[dict], part: str) -> list[str]:
    """Means and standard errors by tails."""
    names = ("asinh", "asinh beside", "ranks", "ranks beside") if part == "choose" else ("auto",)
    said = [
        "| sd / unit | data sets | " + " | ".join(names) + " |",
        "|---" * (2 + len(names)) + "|",
    ]
    for low, high in itertools.pairwise(BINS):
        own = [r for r in rows if r["tails"] is not None and low <= r["tails"] < high]
        cells = []
        for name in names:
            gain = np.array([r[name] - r["plain"] for r in own])
            if len(gain) > 1:
                cells.append(f"{gain.mean():+.3f} ({gain.std() / np.sqrt(len(gain)):.3f})")
        if cells:
            said.append(f"| {low:g} to {high:g} | {len(own)} | " + " | ".join(cells) + " |")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("choose", "judge"), default="choose")
    parser.add_argument("--sets", type=int, default=300)
    chosen = parser.parse_args()
    file = OUT / f"heavy_inputs_{chosen.part}.jsonl"
    rows = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    one = choose if chosen.part == "choose" else judge
    for seed in range(len(rows), chosen.sets):
        rows.append({"seed": seed} | one(seed) | {"about": about()})
        with file.open("a") as out:
            out.write(json.dumps(rows[-1]) + "\n")
    print(*lines(rows, chosen.part), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
