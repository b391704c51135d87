"""``nghvi fit``: fit a model to a table and keep it in a directory."""

import argparse
import pathlib
import sys
from typing import Any

import pandas as pd

import nghvi
from nghvi._core.hosts import is_first
from nghvi.cli import rundir, spread
from nghvi.cli.parts import (
    INTERRUPTED,
    NOT_CONVERGED,
    Commands,
    UsageError,
    add_command,
    as_json,
    writing,
)
from nghvi.cli.summary import findings, shown
from nghvi.cli.tables import check_cells, check_column, place, read_table
from nghvi.formula import parse, variables
from nghvi.responses import RESPONSES

EXAMPLES = """\
nghvi fit pupils.csv --formula "score ~ ses + sector * sex + (1 + ses | school)" --out run
nghvi fit pupils.csv --target score --group school --random intercept,ses --out run
nghvi fit firms.parquet --target profit --group firm --hidden 32,16,8 --out deep
nghvi fit firms.parquet --target profit --group firm --hidden 32,16,8 --out deep --resume
nghvi fit firms.parquet --target profit --group firm --out run --checkpoint kept --every 600
nghvi fit firms.parquet --target profit --group firm --out run \\
    --coordinator first-host:5000 --num-processes 2 --process-id 0   # and 1 on the other host"""


def add(commands: Commands) -> None:
    """The command's arguments."""
    parser = add_command(
        commands, "fit", run, "fit a mixed model to a CSV or Parquet file", EXAMPLES
    )
    parser.add_argument("data", type=pathlib.Path, help="table, .csv or .parquet")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--formula", help="model formula, such as 'y ~ x + (1 + x | group)'")
    what.add_argument("--target", help="column of the response; all others are inputs")
    parser.add_argument("--group", help="column of the groups (with --target)")
    parser.add_argument(
        "--random", type=_random, help="intercept, all, or columns: intercept,ses (with --target)"
    )
    parser.add_argument("--hidden", type=_widths, default=(), help="layer widths: 32,16,8")
    parser.add_argument("--response", choices=sorted(RESPONSES), default="gaussian")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="of a network or another method")
    parser.add_argument("--method", default="auto", help="auto, or a method for comparison")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory of the run")
    parser.add_argument("--force", action="store_true", help="replace the run in --out")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    spread.add_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(chosen: argparse.Namespace) -> int:
    """Fit or resume, save, report; exit code."""
    if chosen.formula is not None and (chosen.group or chosen.random):
        raise UsageError("--group and --random go with --target; the formula says both.")
    spread.join_others(chosen)
    table = read_table(chosen.data)
    if len(table) < 2:
        raise UsageError(f"{chosen.data}: there is one row only; a fit needs more.")
    asked = _asked(chosen)
    # A run with checkpoints goes on from those.
    resume = chosen.resume and chosen.checkpoint is None
    if resume:
        estimator = rundir.load(chosen.out).set_params(verbose=not chosen.quiet)
        rundir.check_asked(chosen.out, asked)
    if is_first():
        rundir.claim(chosen.out, occupied=chosen.force or chosen.resume)
    spread.clear_checkpoints(chosen)
    estimator = estimator.resume() if resume else _fit(chosen, table)
    if not is_first():
        return 0 if estimator.converged_ else NOT_CONVERGED
    with writing(chosen.out, "--out"):
        rundir.write(chosen.out, estimator, asked, chosen.data)
    return _report(chosen, estimator)


def _asked(chosen: argparse.Namespace) -> dict[str, Any]:
    """What decides the result."""
    names = (
        "formula",
        "target",
        "group",
        "random",
        "hidden",
        "response",
        "seed",
        "steps",
        "method",
    )
    given = {name: getattr(chosen, name) for name in names}
    return {"data": chosen.data.name, "sha256": rundir.fingerprint(chosen.data), **given}


def _fit(chosen: argparse.Namespace, table: pd.DataFrame) -> Any:
    settings = {
        "random_state": chosen.seed,
        "steps": chosen.steps,
        "method": chosen.method,
        "hidden": chosen.hidden,
        "response": chosen.response,
        "devices": chosen.devices,
        "verbose": not chosen.quiet,
    }
    kept = {"checkpoint": chosen.checkpoint, "every": chosen.every}
    if chosen.formula is not None:
        syntax = parse(chosen.formula)
        used = list(variables(chosen.formula))
        for name in used:
            check_column(chosen.data, table, name, "--formula")
        check_cells(chosen.data, table[used], [syntax.group])
        _check_response(chosen, table, syntax.response)
        return nghvi.mixed(chosen.formula, table, **kept, **settings)
    check_column(chosen.data, table, chosen.target, "--target")
    if chosen.group is not None:
        check_column(chosen.data, table, chosen.group, "--group")
    check_cells(chosen.data, table, [chosen.group])
    _check_response(chosen, table, chosen.target)
    kind = nghvi.MixedClassifier if RESPONSES[chosen.response].binary else nghvi.MixedRegressor
    random = chosen.random or "auto"
    inputs = table.drop(columns=chosen.target)
    for name in inputs.columns.drop([chosen.group] if chosen.group else []):
        if str(name).startswith("Unnamed: "):  # pandas' word for a column without a name
            raise UsageError(
                f"{chosen.data}, line 1: column {list(table).index(name) + 1} has no name, and "
                "--target makes an input of every column; name it or drop it, or give a --formula."
            )
        if not pd.api.types.is_numeric_dtype(inputs[name]):
            raise UsageError(
                f"{place(chosen.data, 0)}: column {name!r} holds {inputs[name].iloc[0]!r}, and "
                "--target takes numbers only; --formula codes categories and leaves columns out."
            )
    estimator = kind(chosen.group, random=random, **settings)
    return estimator.fit(inputs, table[chosen.target], **kept)


def _check_response(chosen: argparse.Namespace, table: pd.DataFrame, name: str) -> None:
    if name not in table.columns or RESPONSES[chosen.response].binary:
        return
    if not pd.api.types.is_numeric_dtype(table[name]):
        raise UsageError(
            f"{place(chosen.data, 0)}: the response {name!r} holds {table[name].iloc[0]!r}, which "
            f"is not a number as a {chosen.response} response is; for two classes give --response "
            "probit or logit."
        )


def _report(chosen: argparse.Namespace, estimator: Any) -> int:
    stopped = estimator.verdict_.startswith("Interrupted")
    if chosen.json:
        print(as_json({"out": str(chosen.out), "interrupted": stopped, **findings(estimator)}))
    else:
        print(shown(estimator))
        print(f"the run is in {chosen.out}")
    if stopped:
        resumable = estimator.posterior_.inference.run.position is not None
        advice = "repeat the command with --resume to go on" if resumable else "it cannot go on"
        print(f"nghvi fit: interrupted; the result so far is saved; {advice}", file=sys.stderr)
        return INTERRUPTED
    return 0 if estimator.converged_ else NOT_CONVERGED


def _random(text: str) -> Any:
    return text if text in ("intercept", "all", "auto") else text.split(",")


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(width) for width in text.split(","))
    except ValueError:
        widths = ()
    if not widths or min(widths) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give widths of layers, such as 32,16,8")
    return widths
