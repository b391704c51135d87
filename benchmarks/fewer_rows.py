"""Networks with more weights than rows: are curves found, and lines and noise left alone?

Curves, a line and noise in a few dozen or a few hundred rows; the default network of 32 and 16
units. Log scores of held-out rows of known groups and of new groups minus those of the linear mixed
model with intercepts. One line of JSON per fit, so that an interrupted run continues where it
stopped. Ends with the table of decision 25.

Run: python -m benchmarks.fewer_rows [--seeds 41,42]
"""

import argparse
import json
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import nghvi
from nghvi.networks import Skip
from nghvi.paper.studies.facts import about

OUT = pathlib.Path(__file__).parent / "results/fewer_rows.jsonl"
SIZES = ((6, 48, 2), (8, 80, 2), (6, 150, 2), (20, 300, 4))
"""Groups, rows and inputs; with four inputs the last is constant within groups."""
NOISES, SPREAD, NEW, HELD_OUT, DRAWS = (0.3, 0.8), 0.5, 40, 20, 2000
"""Noise sds, sd of intercepts, new groups, held-out rows per group, and draws of a log score."""
CURVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sin(2a)": lambda x: np.sin(2 * x[:, 0]),
    "product": lambda x: x[:, 0] * x[:, 1],
    "hinge": lambda x: 2 * np.maximum(x[:, 0], 0) - x[:, 1] / 2,
    "bend": lambda x: 0.2 * x[:, 0] ** 2 + x[:, 1],
    "line": lambda x: x[:, 0] - x[:, 1] / 2,
    "none": lambda x: np.zeros(len(x)),
}
STRAIGHT = ("line", "none")
KNOWN = ("curve", "groups", "rows", "noise", "seed")


def table(
    curve: str, groups: int, rows: int, inputs: int, noise: float, seed: int
) -> dict[str, pd.DataFrame]:
    """Training rows, held-out rows of the same groups, and rows of new groups."""
    rng = np.random.default_rng([seed, groups, rows, int(100 * noise), *curve.encode()])
    intercepts, level = SPREAD * rng.normal(size=groups + NEW), rng.normal(size=groups + NEW)

    def drawn(group: np.ndarray) -> pd.DataFrame:
        x = rng.uniform(-2, 2, (len(group), inputs))
        y = CURVES[curve](x) + intercepts[group] + noise * rng.normal(size=len(group))
        if inputs > 2:
            x[:, -1] = level[group]
            y = y + level[group] / 2
        return pd.DataFrame(x).add_prefix("x").assign(group=group, y=y)

    return {
        "train": drawn(np.arange(rows) % groups),
        "known": drawn(np.repeat(np.arange(groups), HELD_OUT)),
        "new": drawn(np.repeat(np.arange(groups, groups + NEW), HELD_OUT)),
    }


def scores(model: Any, parts: dict[str, pd.DataFrame]) -> dict[str, float]:
    """Mean log density of held-out rows."""
    return {
        which: model.log_score(
            parts[which].drop(columns="y"), parts[which]["y"].to_numpy(), draws=DRAWS
        )
        for which in ("known", "new")
    }


def fit(curve: str, groups: int, rows: int, inputs: int, noise: float, seed: int) -> dict:
    """The network and the linear model on one table."""
    parts = table(curve, groups, rows, inputs, noise, seed)
    train = parts["train"].drop(columns="y"), parts["train"]["y"].to_numpy()
    with warnings.catch_warnings():  # groups that are new on purpose
        warnings.simplefilter("ignore")
        linear = nghvi.MixedRegressor("group", random_state=seed).fit(*train)
        begun = time.process_time()
        model = nghvi.MixedRegressor("group", hidden=(32, 16), random_state=seed).fit(*train)
        row: dict[str, Any] = dict(zip(KNOWN, (curve, groups, rows, noise, seed), strict=True))
        row |= {"cpu seconds": time.process_time() - begun, "verdict": model.verdict_}
        row |= {"network": isinstance(model.posterior_.model.trunk, Skip)}
        row |= {"elbo": model.elbo_, "linear evidence": linear.log_evidence_}
        return row | scores(model, parts) | {"linear": scores(linear, parts)}


def lines(rows: list[dict]) -> list[str]:
    """Means over curves and seeds, curves and straight lines separately."""
    said = [
        "| rows, groups | truth | fits | networks kept | settled or converged "
        "| gain for known groups (worst) | gain for new groups (worst) | CPU seconds, median |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for groups, number, _ in SIZES:
        for truth, straight in (("curve", False), ("line, none", True)):
            own = [
                row
                for row in rows
                if (row["groups"], row["rows"]) == (groups, number)
                and (row["curve"] in STRAIGHT) == straight
            ]
            if not own:
                continue
            gains = [
                np.array([row[which] - row["linear"][which] for row in own])
                for which in ("known", "new")
            ]
            done = sum(row["verdict"].startswith(("Settled", "Converged")) for row in own)
            kept = sum(row["network"] for row in own)
            cells = [f"{number}, {groups}", truth, str(len(own)), str(kept), str(done)]
            cells += [f"{each.mean():+.3f} ({each.min():+.3f})" for each in gains]
            cells.append(f"{np.median([row['cpu seconds'] for row in own]):.1f}")
            said.append(f"| {' | '.join(cells)} |")
    return said


def main() -> int:
    """Fit what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="41,42")
    chosen = parser.parse_args()
    rows = [json.loads(text) for text in OUT.read_text().splitlines()] if OUT.exists() else []
    done = {tuple(row[name] for name in KNOWN) for row in rows}
    for groups, number, inputs in SIZES:
        for seed in map(int, chosen.seeds.split(",")):
            for curve in CURVES:
                for noise in NOISES:
                    if (curve, groups, number, noise, seed) in done:
                        continue
                    row = fit(curve, groups, number, inputs, noise, seed)
                    rows.append(row)
                    print({name: value for name, value in row.items() if name != "verdict"})
                    with OUT.open("a") as file:
                        file.write(json.dumps(row | {"about": about()}) + "\n")
    print(*lines(rows), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
