"""Networks with more weights than rows: what counting the data several times for them does.

Curves, a line and noise in a few dozen or a few hundred rows; a network of 32 and 16 units with the
data counted as the default does (``emphasis``), or once (``once``), which is all there was before.
Log scores of held-out rows of known groups and of new groups minus those of the linear mixed model
with intercepts. One line of JSON per fit, so that an interrupted run continues where it stopped.
Ends with the table of decision 19.

Run: python -m benchmarks.fewer_rows [--seeds 31,32]
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
from nghvi.recipes import deep

OUT = pathlib.Path(__file__).parent / "results/fewer_rows.jsonl"
SIZES = ((6, 48, 2), (8, 80, 2), (6, 150, 2), (20, 300, 4))
"""Groups, rows and inputs; with four inputs the last is constant within groups."""
NOISES, SPREAD, NEW, HELD_OUT = (0.3, 0.8), 0.5, 40, 20
"""Noise sds, sd of intercepts, new groups, and held-out rows per group."""
CURVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sin(2a)": lambda x: np.sin(2 * x[:, 0]),
    "product": lambda x: x[:, 0] * x[:, 1],
    "hinge": lambda x: 2 * np.maximum(x[:, 0], 0) - x[:, 1] / 2,
    "bend": lambda x: 0.2 * x[:, 0] ** 2 + x[:, 1],
    "line": lambda x: x[:, 0] - x[:, 1] / 2,
    "none": lambda x: np.zeros(len(x)),
}
STRAIGHT = ("line", "none")
COUNTED = {"once": (1.0, 1.0), "emphasis": (deep.EMPHASIS_AT_FIRST, deep.EMPHASIS)}
KNOWN = ("curve", "groups", "rows", "noise", "seed", "counted")


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
        which: model.log_score(parts[which].drop(columns="y"), parts[which]["y"].to_numpy())
        for which in ("known", "new")
    }


def fits(curve: str, groups: int, rows: int, inputs: int, noise: float, seed: int) -> list[dict]:
    """The network with the data counted either way, and the linear model."""
    parts = table(curve, groups, rows, inputs, noise, seed)
    train = parts["train"].drop(columns="y"), parts["train"]["y"].to_numpy()
    found = []
    with warnings.catch_warnings():  # groups that are new on purpose
        warnings.simplefilter("ignore")
        linear = scores(nghvi.MixedRegressor("group").fit(*train), parts)
        for counted, (at_first, later) in COUNTED.items():
            deep.EMPHASIS_AT_FIRST, deep.EMPHASIS = at_first, later
            begun = time.process_time()
            model = nghvi.MixedRegressor("group", hidden=(32, 16), random_state=seed).fit(*train)
            row: dict[str, Any] = dict(
                zip(KNOWN, (curve, groups, rows, noise, seed, counted), strict=True)
            )
            row |= {"cpu seconds": time.process_time() - begun, "verdict": model.verdict_}
            row |= {"network": isinstance(model.posterior_.model.trunk, Skip), "linear": linear}
            found.append(row | scores(model, parts))
    return found


def lines(rows: list[dict]) -> list[str]:
    """Means over curves and seeds, curves and straight lines separately."""
    said = [
        "| rows, groups | truth | fits | networks kept, once / emphasis | gain for known groups "
        "| gain for new groups | worst gain, known / new, with emphasis |",
        "|---|---|---|---|---|---|---|",
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
            by = {counted: [row for row in own if row["counted"] == counted] for counted in COUNTED}
            kept = " / ".join(str(sum(row["network"] for row in each)) for each in by.values())
            gains = {
                counted: np.array(
                    [[row[w] - row["linear"][w] for w in ("known", "new")] for row in each]
                )
                for counted, each in by.items()
            }
            means = [
                " / ".join(f"{each[:, part].mean():+.3f}" for each in gains.values())
                for part in (0, 1)
            ]
            worst = " / ".join(f"{each:+.3f}" for each in gains["emphasis"].min(axis=0))
            said.append(
                f"| {number}, {groups} | {truth} | {len(by['once'])} | {kept} | {means[0]} "
                f"| {means[1]} | {worst} |"
            )
    return said


def main() -> int:
    """Fit what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="31,32")
    chosen = parser.parse_args()
    rows = [json.loads(text) for text in OUT.read_text().splitlines()] if OUT.exists() else []
    done = {tuple(row[name] for name in KNOWN[:-1]) for row in rows}
    for groups, number, inputs in SIZES:
        for seed in map(int, chosen.seeds.split(",")):
            for curve in CURVES:
                for noise in NOISES:
                    if (curve, groups, number, noise, seed) in done:
                        continue
                    for row in fits(curve, groups, number, inputs, noise, seed):
                        rows.append(row)
                        print({name: value for name, value in row.items() if name != "verdict"})
                        with OUT.open("a") as file:
                            file.write(json.dumps(row | {"about": about()}) + "\n")
    print(*lines(rows), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
