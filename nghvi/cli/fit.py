"""``nghvi fit``: fit a model to a table and keep it in a directory."""

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pandas as pd

import nghvi
from nghvi._core.hosts import any_process, is_first, join
from nghvi.cli import (
    INTERRUPTED,
    NOT_CONVERGED,
    UsageError,
    as_json,
    rundir,
    table_files,
    tell,
    writing,
)
from nghvi.cli.show import findings, shown
from nghvi.cli.table_files import (
    PARQUET,
    Csv,
    check_cells,
    check_column,
    place,
    read_table,
    without_missing,
)
from nghvi.data.cells import as_numbers
from nghvi.data.parquet import column_names
from nghvi.estimators.fitting import EVERY
from nghvi.estimators.response_columns import RowFacts
from nghvi.formula import bounds_of, parse, variables
from nghvi.recipes.verdict import Status
from nghvi.responses import RESPONSES
from nghvi.storage.checkpoints import checkpoint_files

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

EXAMPLES = """\
nghvi fit pupils.csv --formula "score ~ ses + sector * sex + (1 + ses | school)" --out run
nghvi fit pupils.csv --target score --group school --random intercept,ses --out run
nghvi fit firms.csv --formula "profit ~ size + (1 + size | firm) + (1 | month)" --out crossed
nghvi fit firms.parquet --target profit --group firm --hidden 32,16,8 --out deep
nghvi fit firms.parquet --target profit --group firm --hidden 32,16,8 --out deep --resume
nghvi fit herds.csv --target sick --group herd --response binomial --trials size --out run
nghvi fit big.parquet --target profit --group firm --hidden 32,16 --batch-groups auto --out big
nghvi fit firms.parquet --target profit --group firm --out run --checkpoint kept --every 600
nghvi fit firms.parquet --target profit --group firm --out run \\
    --coordinator first-host:5000 --num-processes 2 --process-id 0   # and 1 on the other host"""


FACTS = ("trials", "exposure", "censored", "weights")
SETTINGS = (*FACTS, "steps", "method", "hidden", "skip", "response", "batch_groups", "devices")
"""Arguments that are settings of the estimator by the same name."""
DECISIVE = (
    *("formula", "target", "group", "random", "hidden", "skip", "response", *FACTS, "seed"),
    *("steps", "method", "batch_groups", "sep", "decimal", "thousands", "missing"),
)
"""Arguments that decide the result."""
USUAL, ORDERED = nghvi.MixedRegressor.usual_response, nghvi.MixedClassifier.ordered_response
"""The response of numbers, and of an ordered category, if none is named."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    tell(parser, run, EXAMPLES)
    parser.add_argument(
        "data", type=pathlib.Path, help="a .csv or .parquet table, or a folder of Parquet files"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--formula", help="a formula such as 'y ~ x + (1 + x | group)'")
    what.add_argument("--target", help="the response column; all other columns are inputs")
    parser.add_argument(
        "--group", help="the group column, or several, such as firm,month (with --target)"
    )
    parser.add_argument(
        "--random",
        type=_random,
        help="what varies by group: intercept, all, or columns such as intercept,ses "
        "(with --target)",
    )
    parser.add_argument(
        "--hidden", type=_widths, default=(), help="widths of hidden layers, such as 32,16,8"
    )
    parser.add_argument(
        "--no-skip",
        dest="skip",
        action="store_const",
        const=False,
        default="auto",
        help="leave out the linear part alongside the network, as in the paper's model",
    )
    parser.add_argument(
        "--response",
        choices=("auto", *sorted(RESPONSES)),
        default="auto",
        metavar="NAME",
        help="distribution of the response, by default gaussian, or ordered-probit for an ordered "
        f"category of a Parquet file; one of {', '.join(RESPONSES)}",
    )
    parser.add_argument(
        "--trials", type=_number_or_column, help="a column or number of trials (with --target)"
    )
    parser.add_argument(
        "--exposure", type=_number_or_column, help="a column of exposures (with --target)"
    )
    parser.add_argument(
        "--censored",
        type=_bounds,
        metavar="LOWER,UPPER",
        help="bounds, as numbers or columns, such as 0,inf (with --target); write "
        "--censored=-1,1 if the first one is negative",
    )
    parser.add_argument(
        "--weights", type=_number_or_column, help="a column of precisions (with --target)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random numbers, by default 0")
    parser.add_argument("--steps", type=int, help="steps of a network or of another method")
    parser.add_argument(
        "--batch-groups",
        type=_number_or("auto"),
        metavar="N",
        help="groups per step, or auto; Parquet (with --target) is then read from disk during the "
        "fit, however large it is",
    )
    parser.add_argument(
        "--memory",
        type=float,
        metavar="GB",
        help="memory that the table may take, by default half of what is free; a larger Parquet "
        "table is read from disk during the fit",
    )
    table_files.add_arguments(parser)
    parser.add_argument("--method", default="auto", help="auto, or a method to compare with")
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="directory to save the run in"
    )
    parser.add_argument("--force", action="store_true", help="replace the run in --out")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    _add_running_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(chosen: argparse.Namespace) -> int:
    """Fit or resume, save and report; return the exit code."""
    if chosen.formula is not None and (chosen.group or chosen.random):
        raise UsageError("--group and --random go with --target; the formula says both.")
    form = Csv.of(vars(chosen))
    used = None if chosen.formula is None else list(variables(chosen.formula))
    on_disk = _stays_on_disk(chosen, used)
    _join_others(chosen)
    table = None if on_disk else _read(chosen, form, used)
    if table is not None and len(table) < 2:
        raise UsageError(f"{chosen.data}: there is only one row; a fit needs more.")
    chosen.response = _response(chosen, table)
    asked = _asked(chosen, on_disk)
    # A run with checkpoints goes on from those.
    resume = chosen.resume and chosen.checkpoint is None
    if resume:
        estimator = rundir.load(chosen.out).set_params(verbose=not chosen.quiet)
        rundir.check_asked(chosen.out, asked)
    with contextlib.ExitStack() as held:
        if is_first():
            occupied = chosen.force or chosen.resume
            held.enter_context(rundir.claimed(chosen.out, occupied=occupied))
        _clear_checkpoints(chosen)
        held.enter_context(table_files.named_as_in(chosen.data, table))
        estimator = estimator.resume() if resume else _fit(chosen, table, used)
        if not is_first():
            return 0 if estimator.converged_ else NOT_CONVERGED
        with writing(chosen.out, "--out"):
            rundir.write(chosen.out, estimator, asked, chosen.data)
    return _report(chosen, estimator)


def _read(chosen: argparse.Namespace, form: Csv, used: list[str] | None) -> pd.DataFrame:
    """Return the table in memory; of Parquet and a formula only the columns that it names."""
    named = chosen.data.suffix.lower() in PARQUET and chosen.data.is_file() and used is not None
    # If columns are lacking, that is said with the whole table at hand.
    there = named and set(used or ()) <= set(column_names([chosen.data]))
    table = read_table(chosen.data, form, used if there else None)
    known = table if used is None else table[[name for name in used if name in table]]
    if chosen.missing == "drop":
        return table.loc[without_missing(chosen.data, known, "drop").index]
    return table


def _stays_on_disk(chosen: argparse.Namespace, used: list[str] | None) -> bool:
    """Return whether rows are read piece by piece: on request, or if memory is too small."""
    parquet = chosen.data.is_dir() or chosen.data.suffix.lower() in PARQUET
    if chosen.data.is_dir() and chosen.formula:
        raise UsageError(
            f"{chosen.data}: a folder is read from disk, but --formula needs the table in memory; "
            "use --target and --group."
        )
    if chosen.data.is_dir() or (parquet and not chosen.formula and bool(chosen.batch_groups)):
        if chosen.missing != "error":
            raise UsageError(
                f"--missing {chosen.missing} needs the table in memory; drop the rows beforehand."
            )
        return True
    if chosen.resume and chosen.checkpoint is None:  # as it was begun
        return (chosen.out / rundir.ROWS).is_dir()
    budget = table_files.memory_budget(chosen.memory)
    needed = table_files.memory_needed(chosen.data, used)
    if needed <= budget:
        return False
    said = (
        f"{chosen.data} needs about {table_files.in_gigabytes(needed)} of memory, and "
        f"{table_files.in_gigabytes(budget)} may be used (--memory)"
    )
    if not parquet or chosen.formula or not chosen.group or chosen.missing != "error":
        raise UsageError(
            f"{said}: save it as Parquet and give --target and --group to read it from disk, or "
            "give a larger --memory, in GB."
        )
    print(f"nghvi fit: {said}: its rows are read from disk", file=sys.stderr)
    return True


def _response(chosen: argparse.Namespace, table: pd.DataFrame | None) -> str:
    """Return the name of the response; "auto" is gaussian unless classes have an order."""
    if chosen.response != "auto":
        return str(chosen.response)
    name = chosen.target if chosen.formula is None else parse(chosen.formula).response
    if table is None or name not in table.columns:
        return USUAL
    levels = table_files.num_ordered_levels(chosen.data, table[name])
    if not levels:
        return USUAL
    found = nghvi.MixedClassifier.usual_response if levels <= 2 else ORDERED
    print(
        f"nghvi fit: the column {name!r} is an ordered category, so that the response is {found}; "
        "--response chooses another",
        file=sys.stderr,
    )
    return found


def _asked(chosen: argparse.Namespace, on_disk: bool) -> dict[str, Any]:
    """Return what decides the result, by name."""
    given = {name: getattr(chosen, name) for name in DECISIVE}
    known_by = rundir.seen_from_outside if on_disk else rundir.fingerprint
    return {"data": chosen.data.name, "sha256": known_by(chosen.data), **given}


def _fit(chosen: argparse.Namespace, table: pd.DataFrame | None, used: list[str] | None) -> Any:
    settings = {name: getattr(chosen, name) for name in SETTINGS}
    settings |= {"random_state": chosen.seed, "verbose": not chosen.quiet}
    filled = chosen.missing == "indicator"
    if filled:
        settings["missing"] = chosen.missing
    kept = {"checkpoint": chosen.checkpoint, "every": chosen.every}
    kind = nghvi.MixedClassifier if RESPONSES[chosen.response].classes else nghvi.MixedRegressor
    random = chosen.random or "auto"
    if table is None:
        rows = nghvi.GroupedDataset(chosen.data, workdir=chosen.out / rundir.ROWS)
        return kind(chosen.group, random=random, **settings).fit(rows, chosen.target, **kept)
    if used is not None:
        syntax = parse(chosen.formula)
        for name in used:
            check_column(chosen.data, table, name, "--formula")
        group = syntax.group_columns
        bounds, may_lack = bounds_of(chosen.formula), used if filled else ()
        check_cells(chosen.data, table[used], group, bounds=bounds, may_lack=may_lack)
        _check_response(chosen, table, syntax.response)
        return nghvi.mixed(chosen.formula, table, **kept, **settings)
    check_column(chosen.data, table, chosen.target, "--target")
    named = _group(chosen.group, table)
    for name in named:
        check_column(chosen.data, table, name, "--group")
    if chosen.target in named:
        raise UsageError(
            f"--target and --group both name the column {chosen.target!r}; change one."
        )
    stated = RowFacts.of(chosen)
    for name in stated.columns:
        check_column(chosen.data, table, name, f"--{stated.setting_of(name)}")
    inputs = table.drop(columns=chosen.target)
    may_lack = inputs.columns if filled else ()
    check_cells(chosen.data, table, named, bounds=stated.bounds, may_lack=may_lack)
    _check_response(chosen, table, chosen.target)
    for name in inputs.columns.drop(named):
        if str(name).startswith("Unnamed: "):  # pandas' word for a column without a name
            raise UsageError(
                f"{chosen.data}, line 1: column {list(table).index(name) + 1} has no name, and "
                "--target makes an input of every column; name it or drop it, or give a --formula."
            )
    estimator = kind(named or None, random=random, **settings)
    return estimator.fit(inputs, table[chosen.target], **kept)


def _group(text: str | None, table: pd.DataFrame) -> list[str]:
    """Return the columns of the groups, which the text names with commas between them."""
    if text is None:
        return []
    return [text] if text in table.columns else text.split(",")


def _check_response(chosen: argparse.Namespace, table: pd.DataFrame, name: str) -> None:
    if name not in table.columns:
        return
    if RESPONSES[chosen.response].classes:
        table_files.check_classes(chosen.data, table[name])
        return
    if not pd.api.types.is_numeric_dtype(as_numbers(table[name].to_numpy())):
        raise UsageError(
            f"{place(chosen.data, 0)}: the response {name!r} holds {table[name].iloc[0]!r}, which "
            f"is not a number, as a {chosen.response} response needs; for two classes give "
            "--response probit or logit, for ordered ones ordered-logit or ordered-probit."
        )


def _report(chosen: argparse.Namespace, estimator: "MixedEstimator") -> int:
    verdict = estimator.posterior_.inference.verdict
    stopped = verdict.status is Status.INTERRUPTED
    if chosen.json:
        print(as_json({"out": str(chosen.out), "interrupted": stopped, **findings(estimator)}))
    else:
        print(shown(estimator))
        print(f"the run is in {chosen.out}")
    if stopped:
        goes_on = "repeat the command with --resume to continue"
        advice = goes_on if verdict.resumable else "it cannot be continued"
        print(f"nghvi fit: interrupted; the result so far is saved; {advice}", file=sys.stderr)
        return INTERRUPTED
    return 0 if estimator.converged_ else NOT_CONVERGED


def _random(text: str) -> Any:
    return text if text in ("intercept", "all", "auto") else text.split(",")


def _number_or_column(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _bounds(text: str) -> tuple[float | str, ...]:
    return tuple(_number_or_column(bound.strip()) for bound in text.split(","))


def _widths(text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(width) for width in text.split(","))
    except ValueError:
        widths = ()
    if not widths or min(widths) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give layer widths, such as 32,16,8")
    return widths


PROCESSES = ("coordinator", "process_id", "num_processes")


def _add_running_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say where the fit runs and where it keeps checkpoints."""
    parser.add_argument(
        "--devices", type=_number_or("all"), help="how many devices to use, or all; by default one"
    )
    parser.add_argument("--coordinator", help="host:port of process 0, if there are several")
    parser.add_argument("--process-id", type=int, help="number of this process, from 0")
    parser.add_argument("--num-processes", type=int, help="number of processes")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="directory for checkpoints")
    parser.add_argument(
        "--every",
        type=float,
        default=EVERY,
        help=f"seconds between checkpoints, by default {EVERY:.0f}",
    )


def _join_others(chosen: argparse.Namespace) -> None:
    """Join the other processes, if there are any."""
    given = [getattr(chosen, name) is not None for name in PROCESSES]
    if not any(given):
        return
    if not all(given):
        raise UsageError("--coordinator, --process-id and --num-processes go together.")
    join(chosen.coordinator, chosen.process_id, chosen.num_processes)


def _clear_checkpoints(chosen: argparse.Namespace) -> None:
    """Keep the checkpoints of an earlier run for --resume, or remove them with --force."""
    if chosen.checkpoint is None or chosen.resume:
        return
    there = checkpoint_files(chosen.checkpoint)
    if any_process(bool(there)) and not chosen.force:
        raise UsageError(
            f"{chosen.checkpoint}: there are checkpoints of an earlier run; give --resume "
            "to continue it, or --force to start again."
        )
    for path in there if is_first() else ():
        path.unlink()
    any_process(False)  # nobody looks before they are gone


def _number_or(word: str) -> Callable[[str], int | str]:
    """Return what reads an argument that is a whole number or this word."""

    def read(text: str) -> int | str:
        try:
            return text if text == word else int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number or {word}") from None

    return read
