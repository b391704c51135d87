"""How large the house is, and how many rooms a row passes through: ``python -m benchmarks.house``.

Counted from the source: files and lines, places that ask what form data have, whether a response is
conjugate or a trunk linear, arguments and results annotated by ``Any``, arguments of ``infer``.

Counted by running: functions and files of nghvi that are entered by a first fit of
``y ~ x + (1 + x | g)`` (600 rows, 30 groups) and by what follows it, threads included. Programs of
earlier processes are not used, so a first fit traces all its functions; fitting again traces none.
Modules are loaded before; functions without a name (comprehensions, lambdas) are not counted.

The package that is found first is counted: with PYTHONPATH set to another checkout, and this file
run by its path, the numbers are those of that checkout.
"""

import ast
import contextlib
import importlib
import inspect
import os
import pathlib
import pkgutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

REPRODUCTION = {"paper", "studies", "finance", "baselines"}
"""Folders that reproduce a paper, under their present and their former names."""
SHORT = 60
"""Lines below which a file is short."""
FORMS = {
    *("Batches", "Grouped", "Rows", "CellRows", "LinearStatistics", "Panel", "StackedPieces"),
    *("FactorRows", "CrossedStatistics", "CrossedRows", "CrossedPanel", "Sharded", "Shards"),
    *("GroupedDataset", "StreamedRows", "InMemory", "OnDisk", "RowsPiece", "LinearPiece"),
}
"""Classes of data: what a table is before it is read, and in what form a model reads it."""


class Places(NamedTuple):
    """How often something stands in the source, and in how many files."""

    places: int
    files: int


class Source:
    """The parsed files of a package, without those that reproduce a paper."""

    def __init__(self, root: pathlib.Path) -> None:
        paths = sorted(root.rglob("*.py"))
        self.all = {path: path.read_text() for path in paths}
        library = [p for p in paths if REPRODUCTION.isdisjoint(p.relative_to(root).parts)]
        self.trees = {path: ast.parse(self.all[path]) for path in library}

    @property
    def lengths(self) -> list[int]:
        """Numbers of lines of the library's files."""
        return [self.all[path].count("\n") for path in self.trees]

    def count(self, wanted: Callable[[ast.AST], int]) -> Places:
        """Count what is wanted, node by node."""
        found = [sum(map(wanted, ast.walk(tree))) for tree in self.trees.values()]
        return Places(sum(found), sum(number > 0 for number in found))


def names_in(node: ast.AST | None) -> set[str]:
    """Return all names that an expression mentions, quoted annotations included."""
    if node is None:
        return set()
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            with contextlib.suppress(SyntaxError):
                found |= names_in(ast.parse(part.value, mode="eval"))
    return found


def asks_class(classes: set[str]) -> Callable[[ast.AST], int]:
    """Count tests of isinstance for one of the classes, and of ``type(data)``."""

    def wanted(node: ast.AST) -> int:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return 0
        if node.func.id == "isinstance":
            return int(bool(classes & names_in(node.args[1])))
        is_type = node.func.id == "type" and len(node.args) == 1 and classes is FORMS
        return int(is_type and isinstance(node.args[0], ast.Name) and node.args[0].id == "data")

    return wanted


def reads(name: str) -> Callable[[ast.AST], int]:
    """Count reads of an attribute."""
    return lambda node: int(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
    )


def annotated_any(node: ast.AST) -> int:
    """Count the arguments of a function, and its result, that are annotated by ``Any`` alone."""
    if not isinstance(node, ast.FunctionDef):
        return 0
    every = node.args
    arguments = (*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg)
    hints = [argument.annotation for argument in arguments if argument is not None]
    return sum(isinstance(hint, ast.Name) and hint.id == "Any" for hint in (*hints, node.returns))


def takes_estimator(node: ast.AST) -> int:
    """Count arguments ``estimator: Any``."""
    if not (isinstance(node, ast.arg) and node.arg == "estimator"):
        return 0
    return int(isinstance(node.annotation, ast.Name) and node.annotation.id == "Any")


def counted(root: pathlib.Path) -> list[tuple[str, str]]:
    """Return what is counted from the source."""
    source = Source(root)
    lengths = source.lengths
    whole = [text.count("\n") for text in source.all.values()]
    asked = {
        "tests of the form of data": source.count(asks_class(FORMS)),
        "reads of .conjugate": source.count(reads("conjugate")),
        "reads of .linear": source.count(reads("linear")),
        "tests for Identity": source.count(asks_class({"Identity"})),
        "arguments and results: Any": source.count(annotated_any),
        "arguments estimator: Any": source.count(takes_estimator),
    }
    return [
        ("files, lines", f"{len(lengths)}, {sum(lengths):,}"),
        ("files, lines with the reproduction", f"{len(whole)}, {sum(whole):,}"),
        ("median and largest length", f"{statistics.median(lengths):.0f}, {max(lengths)}"),
        (f"files under {SHORT} lines", str(sum(length < SHORT for length in lengths))),
        *((what, f"{found.places} in {found.files} files") for what, found in asked.items()),
    ]


@contextlib.contextmanager
def entered(root: pathlib.Path) -> Iterator[set[CodeType]]:
    """Collect the named functions of the package that are entered inside the block."""
    found: set[CodeType] = set()
    outside: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in found or code in outside:
            return
        # The bodies of modules and classes are no functions; they are not optimised.
        function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        mine = pathlib.Path(code.co_filename).is_relative_to(root)
        (found if function and mine else outside).add(code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def walks(root: pathlib.Path) -> list[tuple[str, str]]:
    """Return how many functions and files a fit, and what follows it, enters."""
    import numpy as np
    import pandas as pd

    import nghvi

    for module in pkgutil.walk_packages(nghvi.__path__, "nghvi."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    rng = np.random.default_rng(1)
    g, x = np.arange(600) % 30, rng.normal(size=600)
    y = 1 + x + rng.normal(size=30)[g] + 0.5 * rng.normal(size=30)[g] * x + rng.normal(size=600)
    frame = pd.DataFrame({"y": y, "x": x, "g": g})
    models: list[Any] = []

    def fit() -> None:
        models.append(nghvi.mixed("y ~ x + (1 + x | g)", frame))

    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "report.html"
        steps: dict[str, Callable[[], Any]] = {
            "first fit": fit,
            "fitted again": fit,
            "predict": lambda: models[-1].predict(frame),
            "summary": lambda: models[-1].summary(),
            "report": lambda: models[-1].report(page, frame, frame["y"]),
        }
        lines = []
        for name, step in steps.items():
            with entered(root) as found:
                step()
            files = {code.co_filename for code in found}
            lines.append((name, f"{len(found)} in {len(files)} files"))
    return lines


def main() -> int:
    """Print the table."""
    os.environ["NGHVI_CACHE"] = "off"
    import nghvi

    root = pathlib.Path(nghvi.__file__).resolve().parent
    lines = counted(root)
    settings = getattr(nghvi, "Settings", None)
    fields = "" if settings is None else f", settings {len(inspect.signature(settings).parameters)}"
    lines.append(
        ("arguments of infer", f"{len(inspect.signature(nghvi.infer).parameters)}{fields}")
    )
    lines += [(f"functions of nghvi: {name}", what) for name, what in walks(root)]
    width = max(len(what) for what, _ in lines)
    print(root)
    for what, value in lines:
        print(f"{what:{width}}  {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
