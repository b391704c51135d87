"""Slopes by group where a network adds nothing: what does choosing them by evidence cost and gain?

Linear tables whose slopes differ between groups by sds from none to large, and 30 splits of
sleepstudy. Both linear models that may replace a network are fitted, with intercepts and with
independent slopes as well; a row holds by how much the log evidence and the log scores of held-out
rows of known groups and of new groups differ. The lines compare rules: slopes never (all zeros), if
their log evidence is ahead by so many nats, weighted by evidence, and always.

Run: python -m benchmarks.slopes_by_group [--data DIR]
"""

import argparse
import json
import pathlib
import warnings
from typing import Any

import numpy as np
import pandas as pd

import nghvi
from benchmarks.tables import divide, load
from nghvi.estimators.fitting import WORTH_SLOPES
from nghvi.paper.studies.facts import about

OUT = pathlib.Path(__file__).parent / "results/slopes_by_group.jsonl"
SHAPES, SLOPES, SEEDS, SPLITS = ((12, 8, 1), (20, 10, 3), (40, 5, 2)), (0.0, 0.15, 0.3, 0.6), 8, 30
"""Groups, rows per group and inputs; sds of slopes, with noise of sd 0.8; data sets and splits."""
NEW, HELD_OUT, DRAWS = 40, 10, 500
MODELS: dict[str, dict] = {
    "intercepts": {"random": "intercept"},
    "slopes": {"random": "all", "covariance": "diagonal"},
}


def simulated(groups: int, size: int, inputs: int, sd: float, seed: int) -> dict[str, pd.DataFrame]:
    """Training rows, held-out rows and rows of new groups; inputs have heavy tails in odd seeds."""
    rng = np.random.default_rng([seed, groups, size, inputs, int(100 * sd)])
    coef, number = 0.5 * rng.normal(size=inputs), groups + NEW
    intercepts, slopes = 0.6 * rng.normal(size=number), np.zeros((number, inputs))
    slopes[:, 0] = sd * rng.normal(size=number)

    def rows(group: np.ndarray) -> pd.DataFrame:
        shape = len(group), inputs
        x = rng.standard_t(3, shape) / np.sqrt(3) if seed % 2 else rng.uniform(-1.7, 1.7, shape)
        y = x @ coef + intercepts[group] + np.sum(x * slopes[group], axis=1)
        frame = pd.DataFrame(x).add_prefix("x")
        return frame.assign(group=group, y=y + 0.8 * rng.normal(size=len(group)))

    return {
        "train": rows(np.repeat(np.arange(groups), size)),
        "known": rows(np.repeat(np.arange(groups), HELD_OUT)),
        "new": rows(np.repeat(np.arange(groups, number), HELD_OUT)),
    }


def compared(parts: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Evidence and log scores of slopes minus those of intercepts, alone and weighted."""
    train, evidence, densities = parts["train"], {}, {}
    with warnings.catch_warnings():  # groups that are new on purpose
        warnings.simplefilter("ignore")
        for name, settings in MODELS.items():
            model = nghvi.MixedRegressor("group", **settings)
            model.fit(train.drop(columns="y"), train["y"].to_numpy())
            evidence[name] = model.log_evidence_
            for which in ("known", "new"):
                x, y = parts[which].drop(columns="y"), parts[which]["y"].to_numpy()
                densities[name, which] = model.log_densities(x, y, draws=DRAWS)
    row: dict[str, Any] = {"evidence": evidence["slopes"] - evidence["intercepts"]}
    log_weights = -np.logaddexp(0, [row["evidence"], -row["evidence"]])
    for which in ("known", "new"):
        few, more = (densities[name, which] for name in MODELS)
        weighted = np.logaddexp(log_weights[0] + few, log_weights[1] + more)
        row[which] = {"slopes": float(np.mean(more - few))}
        row[which]["weighted"] = float(np.mean(weighted - few))
    return row


def lines(rows: list[dict]) -> list[str]:
    """Mean and worst gain of every rule."""
    said = [
        "| tables | rule | slopes taken | gain for known groups (worst) "
        "| gain for new groups (worst) |",
        "|---|---|---|---|---|",
    ]
    kinds = {
        f"no slopes, {SHAPES[0][0]} to {SHAPES[-1][0]} groups": lambda row: row.get("sd") == 0.0,
        "slopes": lambda row: row.get("sd", 0.0) > 0,
        "sleepstudy": lambda row: "split" in row,
    }
    for kind, chosen in kinds.items():
        own = [row for row in rows if chosen(row)]
        for rule, least in (
            ("evidence ahead", 0.0),
            (f"ahead by {WORTH_SLOPES:g} nats (the default)", WORTH_SLOPES),
            ("weighted by evidence", None),
            ("always", -np.inf),
        ):
            taken = [least is not None and row["evidence"] > least for row in own]
            cells = [kind, rule, "" if least is None else f"{sum(taken)} of {len(own)}"]
            for which in ("known", "new"):
                gains = [
                    row[which]["weighted"] if least is None else take * row[which]["slopes"] + 0.0
                    for row, take in zip(own, taken, strict=True)
                ]
                cells.append(f"{np.mean(gains):+.3f} ({min(gains):+.3f})" if own else "")
            said.append(f"| {' | '.join(cells)} |")
    return said


def main() -> int:
    """Compare what is missing, and print the table of decision 31."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path)
    chosen = parser.parse_args()
    rows = [json.loads(text) for text in OUT.read_text().splitlines()] if OUT.exists() else []

    def add(problem: dict[str, Any], parts: dict[str, pd.DataFrame]) -> None:
        rows.append(problem | compared(parts) | {"about": about()})
        with OUT.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")

    done = [{name: row.get(name) for name in ("groups", "sd", "seed", "split")} for row in rows]
    for seed in range(SEEDS):
        for groups, size, inputs in SHAPES:
            for sd in SLOPES:
                if {"groups": groups, "sd": sd, "seed": seed, "split": None} not in done:
                    problem = {"groups": groups, "sd": sd, "seed": seed}
                    add(problem, simulated(groups, size, inputs, sd, seed))
    for split in range(1, SPLITS + 1):
        table = load("sleepstudy", split, chosen.data)
        if {"groups": None, "sd": None, "seed": None, "split": split} in done or table is None:
            continue
        add({"split": split}, divide(table, split))
    print(*lines(rows), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
