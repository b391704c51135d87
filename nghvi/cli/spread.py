"""Arguments of ``nghvi fit`` for several devices and hosts, and for checkpoints."""

import argparse
import pathlib

from nghvi._core.hosts import any_process, is_first, join
from nghvi.cli.parts import UsageError
from nghvi.estimators.checkpoints import EVERY
from nghvi.storage.checkpoints import checkpoint_files

PROCESSES = ("coordinator", "process_id", "num_processes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.add_argument("--devices", type=_devices, help="a number of them, or all; default one")
    parser.add_argument("--coordinator", help="host:port of process 0, of several processes")
    parser.add_argument("--process-id", type=int, help="which process this is, from 0")
    parser.add_argument("--num-processes", type=int, help="how many there are")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="directory of checkpoints")
    parser.add_argument(
        "--every", type=float, default=EVERY, help=f"seconds between checkpoints ({EVERY:.0f})"
    )


def join_others(chosen: argparse.Namespace) -> None:
    """Join the other processes, if there are any."""
    given = [getattr(chosen, name) is not None for name in PROCESSES]
    if not any(given):
        return
    if not all(given):
        raise UsageError("--coordinator, --process-id and --num-processes go together.")
    join(chosen.coordinator, chosen.process_id, chosen.num_processes)


def clear_checkpoints(chosen: argparse.Namespace) -> None:
    """Checkpoints of an earlier run are gone on with or removed, as was asked."""
    if chosen.checkpoint is None or chosen.resume:
        return
    there = checkpoint_files(chosen.checkpoint)
    if any_process(bool(there)) and not chosen.force:
        raise UsageError(
            f"{chosen.checkpoint}: there are checkpoints of an earlier run; --resume to go on "
            "with it, or --force to begin anew."
        )
    for path in there if is_first() else ():
        path.unlink()
    any_process(False)  # nobody looks before they are gone


def _devices(text: str) -> int | str:
    return text if text == "all" else int(text)
