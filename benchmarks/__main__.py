"""Command line: ``python -m benchmarks run | reference | table | step-cost | deep``."""

import argparse
import json
from pathlib import Path


def main(arguments: list[str] | None = None) -> None:
    from benchmarks.deep.run import METHODS as DEEP_METHODS
    from benchmarks.deep.task import SIZES as DEEP_SIZES
    from benchmarks.methods import METHODS
    from benchmarks.problems import GENERATORS, SIZES

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="fit every problem by every method; print and record")
    keep = commands.add_parser("reference", help="compute the long MCMC references if missing")
    for command in (run, keep):
        command.add_argument("--problems", nargs="+", choices=list(GENERATORS), default=None)
        command.add_argument("--size", choices=list(SIZES), default="full")
        command.add_argument("--seed", type=int, default=1)
    run.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    run.add_argument("--time-limit", type=float, default=900.0, help="seconds a fit may take")
    run.add_argument("--no-reference", action="store_true", help="time only, compare with nothing")
    run.add_argument("--output", type=Path, default=None, help="JSON file to write")

    table = commands.add_parser("table", help="print the tables of a recorded run")
    table.add_argument("file", type=Path)

    commands.add_parser(
        "step-cost", help="time of one step against parameters and groups", add_help=False
    )

    deep = commands.add_parser("deep", help="predictions of deep mixed models and of peers")
    deep.add_argument("--seeds", nargs="+", type=int, default=[1])
    deep.add_argument("--methods", nargs="+", choices=list(DEEP_METHODS), default=None)
    deep.add_argument("--size", choices=list(DEEP_SIZES), default="full")
    deep.add_argument("--time-limit", type=float, default=900.0, help="seconds a method may take")
    deep.add_argument("--output", type=Path, default=None, help="JSON file to write")

    options, rest = parser.parse_known_args(arguments)
    if rest and options.command != "step-cost":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    names = getattr(options, "problems", None) or list(GENERATORS)
    if options.command == "run":
        from benchmarks.run import run as run_all

        written = run_all(
            names,
            options.methods,
            size=options.size,
            seed=options.seed,
            time_limit=options.time_limit,
            with_reference=not options.no_reference,
            output=options.output,
        )
        print(f"\nwritten: {written.name}")
    elif options.command == "reference":
        from benchmarks.reference import load_or_run

        for name in names:
            kept = load_or_run(name, options.size, options.seed)
            fewest, worst = min(kept["effective_draws"]), max(kept["r_hat"])
            print(f"{name}: fewest effective draws {fewest:.0f}, largest R-hat {worst:.3f}")
    elif options.command == "table":
        from benchmarks.report import table as as_text

        rows = json.loads(options.file.read_text())["rows"]
        for name in dict.fromkeys(r["problem"] for r in rows):
            print(as_text([r for r in rows if r["problem"] == name]))
    elif options.command == "deep":
        from benchmarks.deep.run import run as run_deep

        written = run_deep(
            options.seeds,
            options.methods or list(DEEP_METHODS),
            size=options.size,
            time_limit=options.time_limit,
            output=options.output,
        )
        print(f"\nwritten: {written.name}")
    else:
        from benchmarks.step_cost import main as step_cost

        step_cost(rest)


if __name__ == "__main__":
    main()
