"""The command line program: one file a command.

Exit codes: 0 done, 2 usage or bad input, 3 not converged, 4 another process was lost, 130
interrupted.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import nghvi
from nghvi._core.hosts import LOST, DeviceError, LostProcessError
from nghvi._core.response import ResponseError
from nghvi.cli import demo, fit, predict, reproduce
from nghvi.cli.parts import BAD_INPUT, INTERRUPTED, UsageError, one_line
from nghvi.cli.show import add_report, add_summary

BAD = (UsageError, nghvi.InputError, DeviceError, ResponseError)


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
    for add in (fit.add, predict.add, add_summary, add_report, demo.add, reproduce.add):
        add(commands)
    chosen = parser.parse_args(arguments)

    def show(message: Warning | str, *place: Any, **more: Any) -> None:
        print(f"nghvi {chosen.command}: {one_line(message)}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show  # for people: no line of the program's own code
            return chosen.run(chosen)
    except BAD as error:
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
