"""The results of a run: ``nghvi summary`` in the terminal, ``nghvi report`` as a page, and
``nghvi demo``, which does both for built-in data."""

import argparse
import contextlib
import pathlib
import sys
from typing import TYPE_CHECKING, Any

import pandas as pd

import nghvi
from nghvi.cli import UsageError, add_run, as_json, one_line, rundir, tell, writing
from nghvi.cli.table_files import Csv, named_as_in, read_checked
from nghvi.estimators.tables import LEVEL
from nghvi.formula import parse, response_of, variables
from nghvi.report.words import is_linear

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator


SUMMARY_EXAMPLES = "nghvi summary run\nnghvi summary run --level 0.95 --json"


def add_summary(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nghvi summary``."""
    tell(parser, run_summary, SUMMARY_EXAMPLES)
    add_run(parser)
    parser.add_argument("--level", type=float, default=LEVEL, help="probability of the intervals")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_summary(chosen: argparse.Namespace) -> int:
    """Print the parameters and the verdict of a run; return the exit code."""
    estimator = rundir.load(chosen.run_directory)
    level = chosen.level
    print(as_json(findings(estimator, level)) if chosen.json else shown(estimator, level))
    return 0


def findings(estimator: "MixedEstimator", level: float = LEVEL) -> dict[str, Any]:
    """Return what a program wants to know about a fit."""
    return {
        "converged": bool(estimator.converged_),
        "status": estimator.status_,
        "cause": estimator.posterior_.inference.verdict.cause.value,
        "verdict": estimator.verdict_,
        "elbo": estimator.elbo_,
        "elbo_se": estimator.elbo_se_,
        "log_evidence": estimator.log_evidence_ if is_linear(estimator) else None,
        "k_hat": estimator.k_hat_,
        "steps": estimator.n_iter_,
        "seconds": estimator.seconds_,
        "summary": estimator.summary(level).to_dict(orient="index"),
    }


def shown(estimator: "MixedEstimator", level: float = LEVEL) -> str:
    """Return what a person wants to know about a fit, as text."""
    # That of a network belongs to one mode and cannot be trusted.
    evidence = f"log evidence {estimator.log_evidence_:.2f}, " if is_linear(estimator) else ""
    return (
        f"{estimator.summary(level).round(3).to_string()}\n{estimator.verdict_}\n"
        f"ELBO {estimator.elbo_:.2f} (+-{estimator.elbo_se_:.2f}), {evidence}"
        f"k-hat {estimator.k_hat_:.2f}, {estimator.n_iter_} steps, {estimator.seconds_:.1f} s"
    )


REPORT_EXAMPLES = """\
nghvi report run
nghvi report run --data held_out.csv -o report.html --force"""
REPORT = "report.html"


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nghvi report``."""
    tell(parser, run_report, REPORT_EXAMPLES)
    add_run(parser)
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        help="rows to judge predictions by, as .csv (with the --sep and --decimal of the fit) or "
        ".parquet; by default the table of the fit, if it is still there and has not changed",
    )
    parser.add_argument(
        "-o", "--out", type=pathlib.Path, help=f"file to write, by default {REPORT} in the run"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run_report(chosen: argparse.Namespace) -> int:
    """Write the report of a run; return the exit code."""
    estimator = rundir.load(chosen.run_directory)
    out = chosen.out or chosen.run_directory / REPORT
    if out.exists() and not chosen.force:
        raise UsageError(
            f"{out}: the file exists already; choose another -o, or give --force to replace it."
        )
    try:
        path = chosen.data or rundir.table_of(chosen.run_directory)
    except UsageError as error:
        print(
            f"nghvi report: {one_line(error).rstrip('.')}. The report is written without "
            "predictive check, calibration and residuals; to include them, give rows with --data.",
            file=sys.stderr,
        )
        X = y = None
        named: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    else:
        X, y = _rows(estimator, path, chosen.run_directory)
        named = named_as_in(path, X)
    with writing(out, "-o"), named:
        estimator.report(out, X, y)
    print(f"wrote {out}")
    return 0


def _rows(
    estimator: "MixedEstimator", path: pathlib.Path, run_directory: pathlib.Path
) -> tuple[Any, pd.Series]:
    """Return inputs and responses in a table, as the fit read them."""
    inputs, formula = list(estimator.feature_names_in_), estimator.formula
    made_in_python = formula and not (run_directory / rundir.SETTINGS).is_file()
    asked = {} if made_in_python else rundir.settings_of(run_directory)["asked"]
    target = None if formula else asked["target"]
    names = list(variables(formula)) if formula else [*inputs, target]
    missing = asked.get("missing", "error")
    role = "a column of the model"
    table = read_checked(path, Csv.of(asked), names, role, estimator, missing)
    if formula is None:
        return table[inputs], table[target]
    return table[inputs], pd.Series(response_of(formula, table), name=parse(formula).response)


DEMO_EXAMPLES = "nghvi demo --out demo"


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``nghvi demo``."""
    tell(parser, run_demo, DEMO_EXAMPLES)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo"))
    parser.add_argument("--seed", type=int, default=0)


def run_demo(chosen: argparse.Namespace) -> int:
    """Fit built-in data; write table, verdict, picture and report; return the exit code."""
    import matplotlib
    from rich.console import Console

    from nghvi import plots
    from nghvi.datasets import simulate_schools

    matplotlib.use("agg")
    console = Console()
    data = simulate_schools()
    inputs = data.frame.drop(columns=data.target)
    console.print(
        f"[bold]{len(inputs)} pupils in {inputs[data.group].nunique()} schools[/]: "
        "score ~ intake + hours + girl, intercept and slope of intake by school"
    )
    model = nghvi.MixedRegressor(
        group=data.group, random=["intercept", "intake"], random_state=chosen.seed, verbose=True
    ).fit(inputs, data.frame[data.target])
    table = model.summary()
    table["truth"] = pd.Series(data.truth)
    console.print(table.round(3).to_string(), markup=False, highlight=False)
    colour = "green" if model.converged_ else "red"
    console.print(f"[{colour}]{model.verdict_}[/]")
    console.print(
        f"ELBO {model.elbo_:.2f} (+-{model.elbo_se_:.2f}), log evidence {model.log_evidence_:.2f}, "
        f"k-hat {model.k_hat_:.2f}, {model.n_iter_} steps, {model.seconds_:.1f} s"
    )
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
        picture = chosen.out / "overview.png"
        plots.overview(model, data.truth).savefig(picture, dpi=130)
        table.to_csv(chosen.out / "summary.csv")
        model.report(chosen.out / "report.html", inputs, data.frame[data.target])
    except OSError as error:
        console.print(
            f"[red]cannot write to {chosen.out}: {error.strerror}; choose another --out[/]"
        )
        return 1
    console.print(f"wrote report.html, overview.png and summary.csv in {chosen.out}")
    return 0 if model.converged_ else 3
