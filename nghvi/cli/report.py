"""``nghvi report``: the report of a run."""

import argparse
import pathlib

from nghvi.cli import rundir
from nghvi.cli.parts import Commands, UsageError, add_command

EXAMPLES = "nghvi report run\nnghvi report run -o report.html --force"
REPORT = "report.html"


def add(commands: Commands) -> None:
    """The command's arguments."""
    parser = add_command(commands, "report", run, "write the report of a run", EXAMPLES)
    parser.add_argument("run_directory", metavar="run", type=pathlib.Path, help="--out of a fit")
    parser.add_argument("-o", "--out", type=pathlib.Path, help=f"otherwise {REPORT} in the run")
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(chosen: argparse.Namespace) -> int:
    """Write it; exit code."""
    estimator = rundir.load(chosen.run_directory)
    out = chosen.out or chosen.run_directory / REPORT
    if out.exists() and not chosen.force:
        raise UsageError(f"{out}: it exists; choose another -o, or --force to replace it.")
    estimator.report(out)
    print(f"wrote {out}")
    return 0
