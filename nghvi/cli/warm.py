"""``nghvi warm``: compile the programs of linear mixed models before somebody waits for them.

Programs are made per number of columns and of effects, and for groups in powers of two, which
tables of about that size share. A later process that fits such a model compiles nothing.
"""

import argparse
import itertools
import sys
import time

import numpy as np
import pandas as pd

import nghvi
from nghvi import _compiled
from nghvi.cli import UsageError, tell

EXAMPLES = "nghvi warm\nnghvi warm --inputs 1 2 3 --groups 100 --slopes 0"
ROWS_PER_GROUP = 4


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    tell(parser, run, EXAMPLES)
    for name, usual, what in (
        ("--inputs", [1, 2, 3], "input columns"),
        ("--slopes", [0, 1], "random slopes"),
        ("--groups", [64, 256], "groups"),
    ):
        told = f"numbers of {what}; by default {' '.join(map(str, usual))}"
        parser.add_argument(name, type=int, nargs="+", metavar="N", default=usual, help=told)


def run(chosen: argparse.Namespace) -> int:
    """Fit a small model of every kind, and ask it what people ask; return the exit code."""
    if _compiled.programs_folder is None:
        raise UsageError("programs are not kept (NGHVI_CACHE=off, or no folder to write to).")
    if min(*chosen.inputs, *chosen.groups) < 1 or min(chosen.slopes) < 0:
        raise UsageError("give at least one input and one group, and no negative slopes.")
    kinds = itertools.product(chosen.groups, chosen.inputs, chosen.slopes)
    for groups, inputs, slopes in (kind for kind in kinds if kind[2] <= kind[1]):
        begun = time.perf_counter()
        _fit(groups, inputs, slopes)
        seconds = time.perf_counter() - begun
        named = f"inputs {inputs}, slopes {slopes}, groups {groups}"
        print(f"{named}: {seconds:.1f} s", file=sys.stderr)
    print(f"programs are in {_compiled.programs_folder}")
    return 0


def _fit(groups: int, inputs: int, slopes: int) -> None:
    rng = np.random.default_rng(0)
    rows = groups * ROWS_PER_GROUP
    names = [f"x{i}" for i in range(inputs)]
    frame = pd.DataFrame(rng.normal(size=(rows, inputs)), columns=names)
    frame["g"] = np.arange(rows) % groups
    frame["y"] = rng.normal(size=groups)[frame["g"]] + rng.normal(size=rows)
    effects = " + ".join(["1", *names[:slopes]])
    model = nghvi.mixed(f"y ~ {' + '.join(names)} + ({effects} | g)", frame)
    model.predict(frame), model.summary(), model.group_effects()
