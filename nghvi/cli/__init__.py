"""The command line program, and what all commands share: exit codes, one-line errors, JSON.

The module of a command is loaded only when the command is called.

Exit codes: 0 done, 2 usage or bad input, 3 not converged, 4 another process was lost, 130
interrupted.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import pkgutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import nghvi
from nghvi._core.errors import InputError
from nghvi._core.hosts import LOST, LostProcessError

BAD_INPUT, NOT_CONVERGED, INTERRUPTED = 2, 3, 130
COMMANDS = {
    "fit": ("fit a mixed model to a CSV or Parquet file", "nghvi.cli.fit:add"),
    "predict": ("predict the rows of a CSV or Parquet file", "nghvi.cli.predict:add"),
    "summary": ("show the parameters and verdict of a run", "nghvi.cli.show:add_summary"),
    "report": ("write the report of a run", "nghvi.cli.show:add_report"),
    "demo": ("fit a mixed model to built-in data and report on it", "nghvi.cli.show:add_demo"),
    "warm": ("compile programs before somebody waits for them", "nghvi.cli.warm:add"),
    "reproduce": ("run a study of the paper: tables and figures", "nghvi.cli.reproduce:add"),
}
"""What each command is for, and the function that adds its arguments to a parser."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="nghvi",
        description="Mixed models with calibrated posteriors.",
        epilog="exit codes: 0 done, 2 usage or bad input, 3 not converged, 4 another process was "
        "lost, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"nghvi {nghvi.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    given = sys.argv[1:] if arguments is None else list(arguments)
    for name, (purpose, add) in COMMANDS.items():
        command = commands.add_parser(
            name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}."
        )
        if given[:1] == [name]:
            pkgutil.resolve_name(add)(command)
    chosen = parser.parse_args(given)

    shown: set[str] = set()

    def show(message: Warning | str, *place: Any, **more: Any) -> None:
        if (line := one_line(message)) not in shown:  # a command may ask a model twice
            shown.add(line)
            print(f"nghvi {chosen.command}: {line}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show  # for people: no line of the program's own code
            return chosen.run(chosen)
    except (UsageError, InputError) as error:
        print(f"nghvi {chosen.command}: {one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except LostProcessError as error:
        print(f"nghvi {chosen.command}: {one_line(error)}", file=sys.stderr, flush=True)
        os._exit(LOST)  # an orderly exit would wait for the process that is gone
    except BrokenPipeError:  # whoever read the output has seen enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        place = error.filename or "a file"
        said = f"{place}: {error.strerror}; check the place, its permissions and free space."
        print(f"nghvi {chosen.command}: {said}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"nghvi {chosen.command}: interrupted; nothing was saved", file=sys.stderr)
        return INTERRUPTED


class UsageError(Exception):
    """Raised if a request cannot be carried out; the message says why, and what to do."""


def tell(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], examples: str
) -> None:
    """Tell the parser of a command what runs it, and the examples for its help text."""
    parser.set_defaults(run=run)
    parser.epilog = f"examples:\n{textwrap.indent(examples, '  ')}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a run."""
    parser.add_argument(
        "run_directory", metavar="run", type=pathlib.Path, help="the --out of a fit"
    )


@contextlib.contextmanager
def writing(out: pathlib.Path, flag: str) -> Iterator[None]:
    """Turn a failure to write to ``out``, which the argument ``flag`` named, into a usage error."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{out}: cannot write there ({error.strerror}); choose another {flag}."
        ) from None


def one_line(error: object) -> str:
    """Return a message without line breaks."""
    return " ".join(str(error).split())


def as_json(value: Any) -> str:
    """Return JSON that every parser reads, in which a number that is not finite is null."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):  # a number of numpy's
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
