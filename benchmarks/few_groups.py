"""Effects of what a network learns, with few groups and with many: do they help or harm?

Curves of two inputs with intercepts by group; the default network of 32 and 16 units has effects of
the intercept, the inputs and what it learns (``random="all"``), or the same without what it learns.
Log scores of held-out rows of known groups and of new groups. One line of JSON per fit, so that an
interrupted run continues where it stopped; ends with the table of decision 16.

Run: python -m benchmarks.few_groups [--seeds 2]
"""

import argparse
import json
import pathlib
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd

import nghvi
from nghvi.paper.studies.facts import about

OUT = pathlib.Path(__file__).parent / "results/few_groups.jsonl"
SIZES = ((6, 150), (15, 225), (40, 600), (100, 1000))
NOISE, SPREAD, NEW, HELD_OUT = 0.3, 0.3, 50, 20
"""Noise sd, sd of intercepts, new groups, and held-out rows per group."""
CURVES = {
    "sin(2x)": lambda x: np.sin(2 * x[:, 0]),
    "product": lambda x: x[:, 0] * x[:, 1],
}
EFFECTS: dict[str, Any] = {"with": "all", "without": ["intercept", "x0", "x1"]}
KNOWN = ("curve", "groups", "rows", "seed", "effects")


def table(curve: str, groups: int, rows: int, seed: int) -> dict[str, pd.DataFrame]:
    """Training rows, held-out rows of the same groups, and rows of new groups."""
    rng = np.random.default_rng([seed, groups, *curve.encode()])
    intercepts = SPREAD * rng.normal(size=groups + NEW)

    def drawn(group: np.ndarray) -> pd.DataFrame:
        x = rng.uniform(-2, 2, (len(group), 2))
        y = CURVES[curve](x) + intercepts[group] + NOISE * rng.normal(size=len(group))
        return pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "group": group, "y": y})

    return {
        "train": drawn(np.arange(rows) % groups),
        "known": drawn(np.repeat(np.arange(groups), HELD_OUT)),
        "new": drawn(np.repeat(np.arange(groups, groups + NEW), HELD_OUT)),
    }


def fit(curve: str, groups: int, rows: int, seed: int, effects: str) -> dict:
    """One fit and its log scores."""
    parts = table(curve, groups, rows, seed)
    train = parts["train"].drop(columns="y"), parts["train"]["y"].to_numpy()
    model = nghvi.MixedRegressor(
        "group", hidden=(32, 16), random=EFFECTS[effects], random_state=seed
    )
    begun = time.process_time()
    with warnings.catch_warnings():  # few groups, and groups that are new, on purpose
        warnings.simplefilter("ignore")
        model.fit(*train)
        row: dict[str, Any] = {"cpu seconds": time.process_time() - begun}
        row |= {"verdict": model.verdict_, "elbo": model.elbo_}
        for which in ("known", "new"):
            held_out = parts[which]
            row[which] = model.log_score(held_out.drop(columns="y"), held_out["y"].to_numpy())
    return row


def lines(rows: list[dict]) -> list[str]:
    """The table: means over seeds."""
    columns = [(curve, effects) for curve in CURVES for effects in EFFECTS]
    said = ["| groups, rows | " + " | ".join(" ".join(column) for column in columns) + " |"]
    said.append("|---" * (1 + len(columns)) + "|")
    for groups, number in SIZES:
        cells = []
        for curve, effects in columns:
            own = [
                (row["known"], row["new"])
                for row in rows
                if (row["curve"], row["groups"], row["effects"]) == (curve, groups, effects)
            ]
            if own:
                cells.append(" / ".join(f"{score:.3f}" for score in np.mean(own, axis=0)))
        if len(cells) == len(columns):  # all were run
            said.append(f"| {groups}, {number} | " + " | ".join(cells) + " |")
    return said


def main() -> int:
    """Fit what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    chosen = parser.parse_args()
    rows = [json.loads(text) for text in OUT.read_text().splitlines()] if OUT.exists() else []
    done = {tuple(row[name] for name in KNOWN) for row in rows}
    for groups, number in SIZES:
        for curve in CURVES:
            for seed in range(1, chosen.seeds + 1):
                for effects in EFFECTS:
                    each = (curve, groups, number, seed, effects)
                    if each in done:
                        continue
                    rows.append(dict(zip(KNOWN, each, strict=True)) | fit(*each))
                    print(rows[-1], flush=True)
                    with OUT.open("a") as file:
                        file.write(json.dumps(rows[-1] | {"about": about()}) + "\n")
    print(*lines(rows), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
