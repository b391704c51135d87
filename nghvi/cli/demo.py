"""``nghvi demo``: a fit to built-in data, with a table, a picture and a report."""

import argparse
import pathlib

import matplotlib
import pandas as pd
from rich.console import Console

import nghvi
from nghvi import plots
from nghvi.cli.parts import tell
from nghvi.datasets import simulate_schools

EXAMPLES = "nghvi demo --out demo"


def add(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    tell(parser, run, EXAMPLES)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo"))
    parser.add_argument("--seed", type=int, default=0)


def run(chosen: argparse.Namespace) -> int:
    """Table, verdict, picture and report; exit code."""
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
