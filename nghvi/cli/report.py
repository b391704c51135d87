"""``nghvi report``: the report of a run."""

import argparse
import pathlib
import sys
from typing import Any

import pandas as pd

from nghvi.cli import rundir
from nghvi.cli.parts import Commands, UsageError, add_command, one_line, writing
from nghvi.cli.tables import Csv, check_cells, check_column, read_table, without_missing
from nghvi.formula import parse, response_of, variables

EXAMPLES = """\
nghvi report run
nghvi report run --data held_out.csv -o report.html --force"""
REPORT = "report.html"


def add(commands: Commands) -> None:
    """The command's arguments."""
    parser = add_command(commands, "report", run, "write the report of a run", EXAMPLES)
    parser.add_argument("run_directory", metavar="run", type=pathlib.Path, help="--out of a fit")
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        help="rows to judge predictions by, .csv (with the --sep and --decimal of the fit) or "
        ".parquet; otherwise the table of the fit, if it is where it was and has not changed",
    )
    parser.add_argument("-o", "--out", type=pathlib.Path, help=f"otherwise {REPORT} in the run")
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(chosen: argparse.Namespace) -> int:
    """Write it; exit code."""
    estimator = rundir.load(chosen.run_directory)
    out = chosen.out or chosen.run_directory / REPORT
    if out.exists() and not chosen.force:
        raise UsageError(f"{out}: it exists; choose another -o, or --force to replace it.")
    try:
        path = chosen.data or rundir.table_of(chosen.run_directory)
    except UsageError as error:
        print(
            f"nghvi report: {one_line(error).rstrip('.')}. The report goes without predictive "
            "check, calibration and residuals: give their rows with --data.",
            file=sys.stderr,
        )
        X = y = None
    else:
        X, y = _rows(estimator, path, chosen.run_directory)
    with writing(out, "-o"):
        estimator.report(out, X, y)
    print(f"wrote {out}")
    return 0


def _rows(estimator: Any, path: pathlib.Path, run_directory: pathlib.Path) -> tuple[Any, pd.Series]:
    """Inputs and responses in a table, as the fit read them."""
    inputs, formula = list(estimator.feature_names_in_), estimator.formula
    made_in_python = formula and not (run_directory / rundir.SETTINGS).is_file()
    asked = {} if made_in_python else rundir.settings_of(run_directory)["asked"]
    table = read_table(path, Csv.of(asked))
    target = None if formula else asked["target"]
    names = list(variables(formula)) if formula else [*inputs, target]
    for name in names:
        check_column(path, table, name, "a column of the model")
    table = without_missing(path, table[names], asked.get("missing", "error"))
    check_cells(path, table, [estimator.group_])
    if formula is None:
        return table[inputs], table[target]
    return table[inputs], pd.Series(response_of(formula, table), name=parse(formula).response)
