"""``nghvi summary``: what a run found."""

import argparse
import pathlib
from typing import Any

from nghvi.cli import rundir
from nghvi.cli.parts import Commands, add_command, as_json
from nghvi.estimators.tables import LEVEL
from nghvi.report.words import is_linear

EXAMPLES = "nghvi summary run\nnghvi summary run --level 0.95 --json"


def add(commands: Commands) -> None:
    """The command's arguments."""
    parser = add_command(
        commands, "summary", run, "show the parameters and verdict of a run", EXAMPLES
    )
    parser.add_argument("run_directory", metavar="run", type=pathlib.Path, help="--out of a fit")
    parser.add_argument("--level", type=float, default=LEVEL, help="probability of the intervals")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(chosen: argparse.Namespace) -> int:
    """Print it; exit code."""
    estimator = rundir.load(chosen.run_directory)
    level = chosen.level
    print(as_json(findings(estimator, level)) if chosen.json else shown(estimator, level))
    return 0


def findings(estimator: Any, level: float = LEVEL) -> dict[str, Any]:
    """What a program wants to know about a fit."""
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


def shown(estimator: Any, level: float = LEVEL) -> str:
    """What a person wants to know about a fit."""
    # That of a network belongs to one mode and cannot be trusted.
    evidence = f"log evidence {estimator.log_evidence_:.2f}, " if is_linear(estimator) else ""
    return (
        f"{estimator.summary(level).round(3).to_string()}\n{estimator.verdict_}\n"
        f"ELBO {estimator.elbo_:.2f} (+-{estimator.elbo_se_:.2f}), {evidence}"
        f"k-hat {estimator.k_hat_:.2f}, {estimator.n_iter_} steps, {estimator.seconds_:.1f} s"
    )
