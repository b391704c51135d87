"""The command line program."""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import nghvi


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="nghvi", description="Mixed models with calibrated posteriors."
    )
    parser.add_argument("--version", action="version", version=f"nghvi {nghvi.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="fit a mixed model to built-in data and plot it")
    demo.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo"))
    demo.add_argument("--seed", type=int, default=0)
    study = commands.add_parser("reproduce", help="run a study of the paper: tables and figures")
    study.add_argument(
        "name", help="example1, probit, example2a, example2b, example3, finance or all"
    )
    study.add_argument("--quick", action="store_true", help="few steps, two data sets")
    study.add_argument("--replicates", type=int, help="number of data sets")
    study.add_argument("--seed", type=int, default=1, help="of the first data set")
    study.add_argument("--out", type=pathlib.Path, default=pathlib.Path("reproduction"))
    study.add_argument(
        "--parameters", type=pathlib.Path, help="the authors' parameters of Example 2(b), JSON"
    )
    study.add_argument(
        "--data", type=pathlib.Path, help="returns and factors for finance: a folder or a file"
    )
    chosen = parser.parse_args(arguments)
    if chosen.command == "reproduce":
        return _reproduce(chosen)
    return _demo(chosen.out, chosen.seed)


def _reproduce(chosen: argparse.Namespace) -> int:
    import matplotlib
    from rich.console import Console

    from nghvi import studies

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
        for name in names:
            studies.reproduce(studies.STUDIES[name], chosen.out, options, console)
    except studies.StudyError as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("[red]interrupted; finished cells are kept, run it again to go on[/]")
        return 130
    console.print(f"tables and figures are in {chosen.out}")
    return 0


def _demo(out: pathlib.Path, seed: int) -> int:
    import pandas as pd
    from rich.console import Console

    from nghvi import plots
    from nghvi.datasets import simulate_schools

    console = Console()
    data = simulate_schools()
    inputs = data.frame.drop(columns=data.target)
    console.print(
        f"[bold]{len(inputs)} pupils in {inputs[data.group].nunique()} schools[/]: "
        "score ~ intake + hours + girl, intercept and slope of intake by school"
    )
    model = nghvi.MixedRegressor(
        group=data.group, random=["intercept", "intake"], random_state=seed, verbose=True
    ).fit(inputs, data.frame[data.target])
    table = model.summary()
    table = table[~table.index.str.startswith("effects_cov")]
    table["truth"] = pd.Series(data.truth)
    console.print(table.round(3).to_string(), markup=False, highlight=False)
    colour = "green" if model.converged_ else "red"
    console.print(f"[{colour}]{model.verdict_}[/]")
    console.print(
        f"ELBO {model.elbo_:.2f} (+-{model.elbo_se_:.2f}), log evidence {model.log_evidence_:.2f}, "
        f"k-hat {model.k_hat_:.2f}, {model.n_iter_} steps, {model.seconds_:.1f} s"
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        picture = out / "overview.png"
        plots.overview(model, data.truth).savefig(picture, dpi=130)
        table.to_csv(out / "summary.csv")
    except OSError as error:
        console.print(f"[red]cannot write to {out}: {error.strerror}; choose another --out[/]")
        return 1
    console.print(f"wrote {picture} and {out / 'summary.csv'}")
    return 0 if model.converged_ else 3


if __name__ == "__main__":
    sys.exit(main())
