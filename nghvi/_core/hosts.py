"""Several processes that run one program: joining them, agreeing, and gathering results.

All processes compute the same things in the same order; what only one of them can know (a signal,
a clock) is agreed upon first. With a single process all functions here do nothing.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from nghvi._core.errors import InputError
from nghvi._typing import Data, PyTree

PATIENCE = 60
"""Seconds within which all processes must have joined."""
HEARTBEAT = 30
"""Seconds of silence after which a process counts as lost."""
PR_SET_PDEATHSIG = 1
"""Linux's number for the request to be signalled when the parent process ends."""
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that the watching process passes on to the one that computes."""
LOST = 4
"""Exit code of a process that cannot continue without another one."""


class DeviceError(InputError):
    """Raised if requested devices or processes do not exist; the message says which do."""


class LostProcessError(RuntimeError):
    """Raised if another process has ended, so that this one cannot continue."""


def lost_message(process_id: int, num_processes: int) -> str:
    """Return the message of a process that has lost another one."""
    return (
        f"process {process_id} of {num_processes} cannot continue, since another one was lost or "
        "could not be reached. Start all of them again with the same arguments; with checkpoints "
        "the fit continues from the last one."
    )


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Explain failures of the exchanges between processes inside the block."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        lost = lost_message(jax.process_index(), jax.process_count())
        raise LostProcessError(f"{lost} ({str(error).splitlines()[0]})") from error


def join(coordinator: str, process_id: int, num_processes: int, patience: int = PATIENCE) -> None:
    """Make this process one of ``num_processes``, before anything has been computed.

    ``coordinator``: host:port of process 0; ``process_id``: the number of this process, from 0;
    ``patience``: seconds to wait for the others.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise DeviceError(f"coordinator {coordinator!r}: give host:port of process 0.")
    if not 0 <= process_id < num_processes:
        raise DeviceError(
            f"process id {process_id} of {num_processes} processes: they are numbered from 0 to "
            f"{num_processes - 1}."
        )
    if process_id == 0:
        _check_free(coordinator, int(port))
    else:
        _wait_for(coordinator, (host, int(port)), patience)
    _outlive_aborts(process_id, num_processes)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method="deactivate",
            initialization_timeout=patience,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
        )
    except RuntimeError as error:
        raise DeviceError(
            f"coordinator {coordinator}: not all of {num_processes} processes met there within "
            f"{patience} s; start them all with the same --coordinator and --num-processes, and "
            f"see that the port can be reached ({str(error).splitlines()[0]})."
        ) from None


def _outlive_aborts(process_id: int, num_processes: int) -> None:
    """Continue in a child process; this one explains what has happened if the child aborts.

    If the coordinator is gone, JAX's runtime aborts from a thread of its own before Python sees an
    error. No Python can be run safely then, so another process has to notice it and to choose the
    exit code. The child ends with its parent, however that ends.
    """
    if not sys.platform.startswith("linux"):
        return
    text = f"nghvi: {lost_message(process_id, num_processes)}\n"
    sys.stdout.flush()
    sys.stderr.flush()
    passed_on = [signal.Signals[name] for name in PASSED_ON]
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, which JAX has not started yet
        child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setpgid(0, 0)  # so that a Ctrl-C reaches it only once, through its parent
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
        return
    for number in passed_on:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended == -signal.SIGABRT:
        os.write(2, text.encode())
        os._exit(LOST)
    if ended < 0:
        if -ended not in (signal.SIGKILL, signal.SIGSTOP):  # these take no handler
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    os._exit(ended)


def _check_free(coordinator: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise DeviceError(
                f"coordinator {coordinator}: port {port} cannot be used here "
                f"({os.strerror(error.errno or 0)}); choose another."
            ) from None


def _wait_for(coordinator: str, address: tuple[str, int], patience: float) -> None:
    """Wait until process 0 listens: JAX's runtime would abort without telling Python."""
    end = time.monotonic() + patience
    while True:
        try:
            socket.create_connection(address, timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise DeviceError(
                    f"coordinator {coordinator}: nobody answers there after {patience} s "
                    f"({error}); start process 0 on that host, and see that the port can be "
                    "reached."
                ) from None
            time.sleep(0.1)


def is_first() -> bool:
    """Return whether this is the first process, the one that writes files."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Return whether the flag is set in any process; all processes must call this."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def same_everywhere(value: int) -> bool:
    """Return whether all processes have the same value; all processes must call this."""
    if jax.process_count() == 1:
        return True
    return bool(np.ptp(multihost_utils.process_allgather(np.array(value))) == 0)


def beside(tree: PyTree, data: Data) -> PyTree:
    """Return the tree with its arrays on all devices over which the data are spread, if they are.

    Programs are compiled for a placement, so the placement of an array must not depend on where
    the array came from.
    """
    placed = [x.sharding for x in jax.tree.leaves(data) if isinstance(x, jax.Array)]
    mesh = next((s.mesh for s in placed if isinstance(s, NamedSharding)), None)
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())

    def put(leaf: PyTree) -> PyTree:
        if not isinstance(leaf, jax.Array) or isinstance(leaf.sharding, NamedSharding):
            return leaf
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, everywhere, lambda i: values[i])

    return jax.tree.map(put, tree)


def on_host(tree: PyTree) -> PyTree:
    """Return the tree with whole, local arrays in every process; all processes must call this."""

    def whole(leaf: PyTree) -> PyTree:
        if not isinstance(leaf, jax.Array):
            return leaf
        if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return jax.device_put(np.asarray(leaf), jax.local_devices()[0])

    return jax.tree.map(whole, tree)
