"""The tables about networks on the page of measurements, from the rows of three benchmarks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.report import span
from benchmarks.tables import difference
from nghvi.paper.studies.exhibits import markdown

Row = dict[str, Any]
PARTS = {"known": "known groups", "new": "new groups"}
LEVEL = 1e-3
"""Log score per row by which two models are level, as they are if one returns the other."""


def grouped(rows: Sequence[Row]) -> dict[str, Any]:
    """Deep models compared with linear ones and boosted trees on grouped tables."""
    of = {(row["table"], row["split"], row["model"]): row for row in rows}
    names = list(dict.fromkeys(row["table"] for row in rows if row["model"] == "deep"))
    lines = []
    for name in names:
        splits = [split for table, split, model in of if (table, model) == (name, "deep")]
        deep, linear = ([of[name, split, m] for split in splits] for m in ("deep", "linear"))
        pairs = list(zip(deep, linear, strict=True))
        kept = sum(row["verdict"].startswith(("Settled", "Not settled")) for row in deep)
        cells = [name, f"{deep[0]['rows']:,} in {deep[0]['groups']}", f"{kept} of {len(deep)}"]
        for part in PARTS:
            gains = [difference(ours[part], theirs[part])[0] for ours, theirs in pairs]
            cells += [", ".join(f"{gain:+.3f}" for gain in gains)]
            r2 = (np.mean([row[part]["r2"] for row in each]) for each in (deep, linear))
            cells += [" / ".join(f"{value:.2f}" for value in r2)]
        lines.append(cells)
    gained = ("log score gained, known groups", "R2", "log score gained, new groups", "R2")
    found: dict[str, Any] = {
        "table": markdown(("table", "rows, groups", "network kept", *gained), lines)
    }
    commits = dict.fromkeys(row["about"]["commit"][:7] for row in rows if row["model"] == "deep")
    found["commits"] = ", ".join(commits)
    for other in ("linear", "lightgbm"):
        gains_of = [
            difference(row[part], of[table, split, other][part])
            for (table, split, model), row in of.items()
            if model == "deep" and (table, split, other) in of
            for part in PARTS
        ]
        worse = [gain for gain, error in gains_of if gain < -error - LEVEL]
        found |= {
            f"{other}_pairs": len(gains_of),
            f"{other}_ahead": sum(gain > LEVEL for gain, _ in gains_of),
            f"{other}_level": sum(abs(gain) <= LEVEL for gain, _ in gains_of),
            f"{other}_worse": len(worse),
            f"{other}_worst": f"{min(gain for gain, _ in gains_of):+.3f}",
        }
    return found


def beside_nuts(rows: Sequence[Row]) -> str:
    """Posterior means and sds of f compared with those of NUTS, known groups / new groups."""

    def both(row: Row, say: Any) -> str:
        return " / ".join(say(row[part]) for part in PARTS)

    head = ("truth, units", "means within 0.2 sd", "largest error, sds", "sd ratios in [0.8, 1.25]")
    lines = [
        [
            f"{row['problem']}, {', '.join(map(str, row['hidden']))}",
            both(row, lambda part: f"{part['mean within .2 sd']:.2f}"),
            both(row, lambda part: f"{part['error of a mean 50, 95, 100 %'][2]:.2f}"),
            both(row, lambda part: f"{part['sd ratio in [.8, 1.25]']:.2f}"),
            both(row, lambda part: f"{part['rhat of f 50, 95 %'][1]:.3f}"),
            f"{row['cpu seconds']:.1f}",
        ]
        for row in rows
        if "known" in row
    ]
    return markdown((*head, "R-hat of NUTS", "CPU s of the fit"), lines)


def seeds(rows: Sequence[Row]) -> str:
    """Spread of posterior means over seeds, in posterior sds, and mean log scores."""
    lines = [
        [
            f"{row['table']} ({row['split']})",
            *(f"{row[part]['mean']:.2f}" for part in PARTS),
            *(f"{np.mean(row[part]['log scores']):.3f}" for part in PARTS),
        ]
        for row in rows
        if "log scores" in row["known"]
    ]
    head = [f"{what}, {part}" for what in ("spread", "log score") for part in PARTS.values()]
    return markdown(("table (split)", *head), lines)


def networks(rows: Sequence[Row], when: Callable[[Row], str]) -> Row:
    """The default recipe compared with the published rule on Example 2(a), in pairs.

    ``when`` writes the date of a run.
    """
    of = {(row["example"], row["method"], row["seed"]): row for row in rows}
    pairs = [
        (key, row, of[key[0], "ng-hvi", key[2]])
        for key, row in of.items()
        if key[:2] in (("ex2a", "auto"), ("fresh", "auto"))
    ]
    head = ("data", "ELBO", "ELBO, published", "test R2", "R2, published", "log score")
    lines = [
        [
            f"stored, seed {key[2]}" if key[0] == "ex2a" else f"fresh {key[2]}",
            f"{ours['elbo']:.0f}",
            f"{theirs['elbo']:.0f}",
            f"{ours['r2']:.4f}",
            f"{theirs['r2']:.4f}",
            f"{ours['log_score']:.4f}",
            f"{theirs['log_score']:.4f}",
        ]
        for key, ours, theirs in pairs
    ]
    gains = [ours["r2"] - theirs["r2"] for _, ours, theirs in pairs]
    stored = [(ours["r2"], theirs["r2"]) for key, ours, theirs in pairs if key[0] == "ex2a"]
    large = next(row for row in rows if row["example"] == "ex2b")
    binary = [row for row in rows if row["example"] == "ex3"]
    return dict(
        when=when(rows[0]["about"]),
        table=markdown((*head, "log score, published"), lines),
        ahead=sum(gain > 0 for gain in gains),
        pairs=len(pairs),
        gains=span(gains, "+.4f"),
        seeds=span((ours for ours, _ in stored), ".4f"),
        seeds_published=span((theirs for _, theirs in stored), ".4f"),
        settled=_opening([ours for _, ours, _ in pairs], "Settled"),
        published=_opening([theirs for *_, theirs in pairs], "Not converged"),
        coverage=span(ours["coverage"] for _, ours, _ in pairs),
        seconds=span((ours["seconds"] for _, ours, _ in pairs), ".1f"),
        seconds_published=span((theirs["seconds"] for *_, theirs in pairs), ".1f"),
        large_r2=f"{large['r2']:.3f}",
        large_score=f"{large['log_score']:.3f}",
        large_coverage=f"{large['coverage']:.3f}",
        large_seconds=f"{large['seconds']:.0f}",
        large_verdict=large["verdict"].split(";")[0],
        pce=span((row["pce"] for row in binary), ".4f"),
        f1=span((row["f1"] for row in binary), ".4f"),
        binary_seeds=len(binary),
        binary_seconds=span((row["seconds"] for row in binary), ".0f"),
        binary_settled=_opening(binary, "Settled"),
    )


def _opening(rows: Sequence[Row], word: str) -> str:
    """How many verdicts begin with a word."""
    return f"{sum(row['verdict'].startswith(word) for row in rows)} of {len(rows)}"
