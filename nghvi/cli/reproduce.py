"""``nghvi reproduce``: the studies of the paper."""

import argparse
import pathlib

from nghvi.cli.parts import tell
from nghvi.cli.side_by_side import run_side_by_side

EXAMPLES = "nghvi reproduce example1 --quick\nnghvi reproduce all --out reproduction"

STUDY_NAMES = (
    "example1, probit, example2a, example2b, example3, finance, months, summary, controls, claims"
)
"""Written down: to ask the studies would import them all."""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    tell(parser, run, EXAMPLES)
    parser.add_argument("name", help=f"{STUDY_NAMES} or all")
    parser.add_argument("--quick", action="store_true", help="few steps and two data sets")
    parser.add_argument("--replicates", type=int, help="number of data sets")
    parser.add_argument("--seed", type=int, default=1, help="of the first data set")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("reproduction"))
    parser.add_argument(
        "--parameters", type=pathlib.Path, help="the authors' parameters of Example 2(b), JSON"
    )
    parser.add_argument(
        "--data", type=pathlib.Path, help="returns and factors for finance: a folder or a file"
    )


def run(chosen: argparse.Namespace) -> int:
    """Tables and figures of one study or of all; exit code."""
    import matplotlib
    from rich.console import Console

    from nghvi.paper import studies

    matplotlib.use("agg")
    console = Console()
    names = list(studies.STUDIES) if chosen.name == "all" else [chosen.name]
    try:
        if chosen.name != "all" and chosen.name not in studies.STUDIES:
            known = ", ".join([*studies.STUDIES, "all"])
            raise studies.StudyError(f"there is no study {chosen.name!r}; choose one of {known}.")
        if chosen.replicates is not None and chosen.replicates < 1:
            raise studies.StudyError(f"--replicates {chosen.replicates}: give at least 1.")
        if chosen.parameters is not None and not chosen.parameters.is_file():
            raise studies.StudyError(f"--parameters {chosen.parameters}: there is no such file.")
        if chosen.data is not None and not chosen.data.exists():
            raise studies.StudyError(f"--data {chosen.data}: there is no such file or folder.")
        options = studies.Options(
            chosen.quick, chosen.replicates, chosen.seed, chosen.parameters, chosen.data
        )
        if len(names) > 1 and chosen.quick:  # a quick run is for looking, so it may use all cores
            worst = run_side_by_side([_command(name, chosen) for name in names], console)
            if worst:
                return worst
        else:
            for name in names:
                studies.reproduce(studies.STUDIES[name], chosen.out, options, console)
    except studies.StudyError as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("[red]interrupted; finished cells are kept, run it again to continue[/]")
        return 130
    console.print(f"tables and figures are in {chosen.out}")
    return 0


def _command(name: str, chosen: argparse.Namespace) -> list[str]:
    """The command that runs one of the chosen studies."""
    given = {
        key: getattr(chosen, key) for key in ("replicates", "seed", "out", "parameters", "data")
    }
    options = [f"--{key}={value}" for key, value in given.items() if value is not None]
    return ["reproduce", name, "--quick", *options]
