"""Several commands at once, each in a process and on a core of its own.

Nearly all of a quick study is compilation, which uses one core however many there are.
"""

import os
import queue
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from rich.console import Console

QUICK_TO_COMPILE = {
    "0.10": "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0",
}
"""By version of jaxlib, which refuses flags that it does not know: older, simpler emitters and no
optimisation of the machine code compile four times faster and run slower."""


def quick_to_compile(flags: str | None = None) -> dict[str, str]:
    """The environment of a process in which compiling is most of the work.

    ``flags``: further ones for XLA, in the place of those of this process.
    """
    given = os.environ.get("XLA_FLAGS", "") if flags is None else flags
    quick = QUICK_TO_COMPILE.get(version("jaxlib").rpartition(".")[0], "")
    return {**os.environ, "XLA_FLAGS": f"{given} {quick}".strip()}


def run_side_by_side(commands: Sequence[Sequence[str]], console: Console) -> int:
    """Run ``nghvi COMMAND`` for each, print what they say as they end; the worst exit code."""
    free: queue.Queue[set[int]] = queue.Queue()
    for core in available_cores():
        free.put({core})
    running: list[subprocess.Popen[str]] = []

    def one(command: Sequence[str]) -> int:
        cores = free.get()
        console.print(f"started: nghvi {shlex.join(command)}", highlight=False, markup=False)
        process = subprocess.Popen(
            [sys.executable, "-m", "nghvi.cli", *command],
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
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
