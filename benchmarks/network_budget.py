"""What a deep mixed model costs and what it finds, on tables of many sizes: before and after.

Curves, lines, products and jumps of one to ten inputs with intercepts by group, or curves that
differ by group; 150 to 5,000 rows, 6 to 300 groups. One line of JSON per fit: CPU seconds, steps,
ELBO, verdict and log scores of held-out rows of known groups and of new groups. ``--label`` names
the version of the code that is measured; fits that a label has already are not repeated.

Seeds below 100 serve to choose settings, those from 100 on to judge them.

Run: python -m benchmarks.network_budget --label after [--seeds 100,101] [--beside before]
"""

import argparse
import json
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import nghvi
from nghvi.paper.studies.facts import about

OUT = pathlib.Path(__file__).parent / "results/network_budget.jsonl"
NEW, HELD_OUT = 40, 20
"""New groups, and held-out rows per group."""


class Case(NamedTuple):
    """What a table looks like."""

    rows: int
    groups: int
    inputs: int
    truth: str
    noise: float = 0.3
    spread: float = 0.5
    """Of the intercepts, as a standard deviation."""


CASES = (
    Case(150, 6, 1, "curve"),
    Case(250, 10, 10, "curve"),
    Case(300, 20, 2, "product"),
    Case(400, 15, 3, "line", noise=1.0),
    Case(700, 60, 2, "own curves"),
    Case(900, 60, 1, "curve", spread=1.0),
    Case(1000, 100, 3, "line", noise=0.5),
    Case(1400, 70, 4, "product", noise=0.5),
    Case(1500, 40, 5, "jump", noise=1.0),
    Case(2000, 100, 10, "friedman", noise=1.0),
    Case(3000, 30, 8, "product", noise=1.0),
    Case(5000, 300, 6, "friedman", noise=1.0),
)
Truth = Callable[[np.ndarray, np.ndarray], np.ndarray]
TRUTHS: dict[str, Truth] = {
    "curve": lambda x, own: np.sin(2 * x[:, 0]),
    "product": lambda x, own: x[:, 0] * x[:, 1],
    "line": lambda x, own: 0.5 * x[:, 0] - 0.3 * x[:, -1],
    "own curves": lambda x, own: (1 + 0.7 * own) * np.sin(2 * x[:, 0]) + 0.3 * x[:, 1],
    "jump": lambda x, own: 1.5 * (x[:, 0] > 0.5) + np.maximum(x[:, 1], 0) + 0.3 * x[:, 2],
    "friedman": lambda x, own: 2 * np.sin(x[:, 0] * x[:, 1]) + x[:, 2] ** 2 + x[:, 3] + x[:, 4] / 2,
}
KNOWN = ("label", "case", "seed")
GOOD = ("settled", "converged")


def tables(case: Case, seed: int) -> dict[str, pd.DataFrame]:
    """Training rows, held-out rows of the same groups, and rows of new groups."""
    rng = np.random.default_rng([seed, case.rows, case.groups, *case.truth.encode()])
    intercepts = case.spread * rng.normal(size=case.groups + NEW)
    own = rng.normal(size=case.groups + NEW)

    def drawn(group: np.ndarray) -> pd.DataFrame:
        x = rng.uniform(-2, 2, (len(group), case.inputs))
        mean = TRUTHS[case.truth](x, own[group]) + intercepts[group]
        y = mean + case.noise * rng.normal(size=len(group))
        return pd.DataFrame(x).add_prefix("x").assign(group=group, y=y)

    return {
        "train": drawn(rng.integers(0, case.groups, case.rows)),
        "known": drawn(np.repeat(np.arange(case.groups), HELD_OUT)),
        "new": drawn(np.repeat(np.arange(case.groups, case.groups + NEW), HELD_OUT)),
    }


def fit(case: Case, seed: int) -> dict[str, Any]:
    """One fit by default settings, and what it is worth."""
    parts = tables(case, seed)
    train = parts["train"].drop(columns="y"), parts["train"]["y"].to_numpy()
    model = nghvi.MixedRegressor("group", hidden=(32, 16), random_state=seed)
    begun = time.process_time()
    with warnings.catch_warnings():  # few rows, and groups that are new, on purpose
        warnings.simplefilter("ignore")
        model.fit(*train)
        row: dict[str, Any] = {"cpu seconds": time.process_time() - begun}
        row |= {"steps": model.posterior_.inference.run.steps, "status": model.status_}
        row |= {"kept": "adds nothing" not in model.verdict_, "elbo": model.elbo_}
        for which in ("known", "new"):
            held_out = parts[which]
            row[which] = model.log_score(held_out.drop(columns="y"), held_out["y"].to_numpy())
    return row | {"verdict": model.verdict_}


def lines(rows: list[dict], label: str, beside: str) -> list[str]:
    """A table of two versions, the second minus the first; means over seeds."""
    said = [
        "| rows, groups, inputs | truth | fits | CPU seconds | steps | settled | network kept | "
        "ELBO gained | log score gained, known / new groups |",
        "|---" * 9 + "|",
    ]
    found = {tuple(row[name] for name in KNOWN): row for row in rows}
    for case in CASES:
        name = named(case)
        seeds = sorted(s for (t, c, s) in found if (t, c) == (label, name))
        pairs = [
            (found[beside, name, s], found[label, name, s])
            for s in seeds
            if (beside, name, s) in found
        ]
        if not pairs:
            continue

        def both(of: Callable[[dict], float], how: str, pairs: list = pairs) -> str:
            return " → ".join(format(np.mean([of(pair[i]) for pair in pairs]), how) for i in (0, 1))

        def gain(key: str, how: str, pairs: list = pairs) -> str:
            kept = [(a, b) for a, b in pairs if a["kept"] and b["kept"]]
            gains = [b[key] - a[key] for a, b in (kept if key == "elbo" else pairs)]
            return format(np.mean(gains), how) if gains else ""

        cells = [f"{case.rows}, {case.groups}, {case.inputs}", case.truth, str(len(pairs))]
        cells += [
            both(lambda row: row["cpu seconds"], ".1f"),
            both(lambda row: row["steps"], ".0f"),
        ]
        cells += [both(lambda row: row["status"] in GOOD, ".2f")]
        cells += [both(lambda row: row["kept"], ".2f"), gain("elbo", "+.1f")]
        cells += [f"{gain('known', '+.3f')} / {gain('new', '+.3f')}"]
        said.append("| " + " | ".join(cells) + " |")
    return said


def named(case: Case) -> str:
    """How rows of results call it."""
    return f"{case.truth} {case.rows} {case.groups} {case.inputs}"


def main() -> int:
    """Fit what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--label", required=True)
    parser.add_argument("--beside", default="before")
    parser.add_argument("--seeds", default="100,101")
    parser.add_argument("--most-rows", type=int, default=10**6)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    chosen = parser.parse_args()
    out = chosen.out
    rows = [json.loads(text) for text in out.read_text().splitlines()] if out.exists() else []
    done = {tuple(row[name] for name in KNOWN) for row in rows}
    for seed in map(int, chosen.seeds.split(",")):
        for case in CASES:
            each = (chosen.label, named(case), seed)
            if each in done or case.rows > chosen.most_rows:
                continue
            rows.append(dict(zip(KNOWN, each, strict=True)) | fit(case, seed))
            print(rows[-1], flush=True)
            with out.open("a") as file:
                file.write(json.dumps(rows[-1] | {"about": about()}) + "\n")
    print(*lines(rows, chosen.label, chosen.beside), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
