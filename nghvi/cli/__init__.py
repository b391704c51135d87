"""The command line program. A command's own module is loaded when the command is called.

Exit codes: 0 done, 2 usage or bad input, 3 not converged, 4 another process was lost, 130
interrupted.
"""

import argparse
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import nghvi
from nghvi._core.errors import InputError
from nghvi._core.hosts import LOST, LostProcessError
from nghvi.cli.parts import BAD_INPUT, INTERRUPTED, UsageError, one_line

COMMANDS = {
    "fit": ("fit a mixed model to a CSV or Parquet file", "nghvi.cli.fit:add"),
    "predict": ("predict the rows of a CSV or Parquet file", "nghvi.cli.predict:add"),
    "summary": ("show the parameters and verdict of a run", "nghvi.cli.show:add_summary"),
    "report": ("write the report of a run", "nghvi.cli.show:add_report"),
    "demo": ("fit a mixed model to built-in data and report on it", "nghvi.cli.demo:add"),
    "reproduce": ("run a study of the paper: tables and figures", "nghvi.cli.reproduce:add"),
}
"""What each command is for, and the function that adds its arguments to a parser."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
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

    def show(message: Warning | str, *place: Any, **more: Any) -> None:
        print(f"nghvi {chosen.command}: {one_line(message)}", file=sys.stderr)

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
