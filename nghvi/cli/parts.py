"""What all commands share: exit codes, errors in one line, JSON for scripts."""

import argparse
import json
import math
import textwrap
from collections.abc import Callable
from typing import Any

BAD_INPUT, NOT_CONVERGED, INTERRUPTED = 2, 3, 130
Commands = Any
"""argparse has no public name for what add_subparsers returns."""


class UsageError(Exception):
    """What was asked for cannot be done; the message says where and what to do."""


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    purpose: str,
    examples: str,
) -> argparse.ArgumentParser:
    """A command with its purpose and examples in the help text."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        epilog=f"examples:\n{textwrap.indent(examples, '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def one_line(error: BaseException) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split())


def as_json(value: Any) -> str:
    """JSON that every parser reads: what is not a finite number is null."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):  # a number of numpy's
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
