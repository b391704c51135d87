"""What all commands share: exit codes, errors in one line, JSON for scripts."""

import argparse
import contextlib
import json
import math
import pathlib
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

BAD_INPUT, NOT_CONVERGED, INTERRUPTED = 2, 3, 130


class UsageError(Exception):
    """What was asked for cannot be done; the message says where and what to do."""


def tell(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], examples: str
) -> None:
    """Tell the parser of a command what runs it, and the examples for its help text."""
    parser.set_defaults(run=run)
    parser.epilog = f"examples:\n{textwrap.indent(examples, '  ')}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


@contextlib.contextmanager
def writing(out: pathlib.Path, flag: str) -> Iterator[None]:
    """What is written inside goes to ``out``, which the argument ``flag`` has named."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{out}: cannot write there ({error.strerror}); choose another {flag}."
        ) from None


def one_line(error: object) -> str:
    """A message without line breaks."""
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
