"""The program: ``python -m benchmarks.fuzz [--seed 0] [--only CASE] [--workers 1]``."""

import argparse
import collections
import json
import pathlib
import sys
import time

from benchmarks.fuzz import files, formulas, frames, pool, settings
from benchmarks.fuzz.judge import BAD, OUTCOMES, Case, judge
from nghvi.paper.studies.facts import about

KINDS = {
    "frame": (frames.cases, 300),
    "formula": (formulas.cases, 100),
    "setting": (settings.cases, 100),
    "file": (files.cases, 200),
}
SECONDS = 120.0


def all_cases(seed: int) -> list[Case]:
    """Of every kind."""
    return [case for cases, number in KINDS.values() for case in cases(number, seed)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fuzz", description="Strange input, counted.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="run the case of this name here and show what it found")
    parser.add_argument("--kind", choices=KINDS, help="cases of one kind only")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after which a case hangs")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    cases = all_cases(chosen.seed)
    by_name = {case.name: case for case in cases}
    if chosen.answer:
        pool.answer(by_name.__getitem__)
        return 0
    if chosen.only:
        found = judge(by_name[chosen.only])
        print(json.dumps(found._asdict(), indent=1, ensure_ascii=False))
        return int(found.outcome in BAD)
    if chosen.kind:
        cases = [case for case in cases if case.name.startswith(chosen.kind)]
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.fuzz", "--answer", "--seed", str(chosen.seed)]
    counts = {kind: collections.Counter[str]() for kind in KINDS}
    offending, rows = [], []
    for found in pool.run(cases, command, chosen.workers, chosen.seconds):
        counts[found.case.split("-")[0]][found.outcome] += 1
        rows.append({"case": found.case, "outcome": found.outcome, "input": found.described})
        if found.outcome in BAD:
            offending.append(found._asdict())
            print(f"{found.case}: {found.outcome}: {found.described}: {found.said}", flush=True)
    counts["all"] = sum(counts.values(), collections.Counter())
    print(f"{'':10s}" + "".join(f"{outcome:>19s}" for outcome in OUTCOMES))
    for kind, counted in counts.items():
        print(f"{kind:10s}" + "".join(f"{counted[outcome]:19d}" for outcome in OUTCOMES))
    report = {
        "about": about(),
        "seed": chosen.seed,
        "seconds": round(time.perf_counter() - begun, 1),
        "counts": {kind: dict(counted) for kind, counted in counts.items()},
        "offending": offending,
        "rows": rows,
    }
    if not chosen.kind:
        results = pathlib.Path(__file__).parents[1] / "results" / "fuzz.json"
        results.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    return int(bool(offending))


if __name__ == "__main__":
    raise SystemExit(main())
