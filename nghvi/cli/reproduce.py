"""``nghvi reproduce``: the studies of the paper."""

import argparse
import os
import pathlib
import queue
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from rich.console import Console

from nghvi.cli import tell

QUICK_TO_COMPILE = {
    "0.10": "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 "
    "--xla_cpu_parallel_codegen_split_count=1",
}
"""By version of jaxlib, which refuses flags that it does not know: older, simpler emitters and no
optimisation of the machine code compile four times faster and run slower. Code in one piece takes a
quarter less to compile than in pieces for several cores, of which a process here has one."""


def quick_to_compile(flags: str | None = None) -> dict[str, str]:
    """Return the environment of a process in which compiling is most of the work.

    ``flags`` are further ones for XLA, which replace those of this process.
    """
    given = os.environ.get("XLA_FLAGS", "") if flags is None else flags
    quick = QUICK_TO_COMPILE.get(version("jaxlib").rpartition(".")[0], "")
    return {**os.environ, "XLA_FLAGS": f"{given} {quick}".strip()}


def run_side_by_side(commands: Sequence[Sequence[str]], console: Console) -> int:
    """Run ``nghvi COMMAND`` for each and print their output as they end.

    Returns the worst exit code.
    """
    free: queue.Queue[set[int]] = queue.Queue()
    for core in available_cores():
        free.put({core})
    running: list[subprocess.Popen[str]] = []

    def one(command: Sequence[str]) -> int:
        cores = free.get()
        console.print(f"started: nghvi {shlex.join(command)}", highlight=False, markup=False)
        process = subprocess.Popen(
            [sys.executable, "-m", "nghvi", *command],
            env=quick_to_compile(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, cores)
        said, _ = process.communicate()
        free.put(cores)
        console.print(said.rstrip(), highlight=False, markup=False)
        return process.returncode

    with ThreadPoolExecutor(free.qsize()) as pool:
        try:
            return max(pool.map(one, commands))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise


def available_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


EXAMPLES = "nghvi reproduce example1 --quick\nnghvi reproduce all --out reproduction"

STUDY_NAMES = (
    "example1, probit, example2a, example2b, example3, finance, months, summary, controls, claims"
)
"""Written down: to ask the studies would import them all."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    tell(parser, run, EXAMPLES)
    parser.add_argument("name", help=f"{STUDY_NAMES} or all")
    parser.add_argument("--quick", action="store_true", help="few steps and two data sets")
    parser.add_argument("--replicates", type=int, help="number of data sets")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first data set")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path("reproduction"),
        help="directory for tables and figures, by default reproduction",
    )
    parser.add_argument(
        "--parameters",
        type=pathlib.Path,
        help="JSON file of the authors' parameters of Example 2(b)",
    )
    parser.add_argument(
        "--data", type=pathlib.Path, help="returns and factors for finance, months and controls"
    )
    parser.add_argument(
        "--any-version",
        action="store_true",
        help="count what other versions of nghvi have run as finished, too",
    )


def run(chosen: argparse.Namespace) -> int:
    """Make the tables and figures of one study or of all; return the exit code."""
    import matplotlib
    from rich.console import Console

    from nghvi.paper import studies

    matplotlib.use("agg")
    console = Console()
    names = list(studies.STUDIES) if chosen.name == "all" else [chosen.name]
    try:
        if chosen.name != "all" and chosen.name not in studies.STUDIES:
            known = ", ".join([*studies.STUDIES, "all"])
            raise studies.StudyError(f"unknown study {chosen.name!r}; choose one of {known}.")
        if chosen.replicates is not None and chosen.replicates < 1:
            raise studies.StudyError(f"--replicates {chosen.replicates}: give at least 1.")
        if chosen.parameters is not None and not chosen.parameters.is_file():
            raise studies.StudyError(f"--parameters {chosen.parameters}: there is no such file.")
        if chosen.data is not None and not chosen.data.exists():
            raise studies.StudyError(f"--data {chosen.data}: there is no such file or folder.")
        options = studies.Options(
            chosen.quick,
            chosen.replicates,
            chosen.seed,
            chosen.parameters,
            chosen.data,
            chosen.any_version,
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
    """Return the command that runs one of the chosen studies."""
    given = {
        key: getattr(chosen, key) for key in ("replicates", "seed", "out", "parameters", "data")
    }
    options = [f"--{key}={value}" for key, value in given.items() if value is not None]
    options += ["--any-version"] * chosen.any_version
    return ["reproduce", name, "--quick", *options]
