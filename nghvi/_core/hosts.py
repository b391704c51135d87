"""Several processes that run one program: joining them, agreeing, and bringing results home.

All processes compute the same things in the same order; what only one of them can know (a signal,
a clock) is agreed upon first. With one process everything here does nothing.
"""

import os
import socket

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from nghvi._typing import Data, PyTree

PATIENCE = 60
"""Seconds within which all processes must have arrived."""
HEARTBEAT = 30
"""Seconds of silence after which a process counts as lost."""


class DeviceError(ValueError):
    """Devices or processes that were asked for are not there; the message says what is."""


def join(coordinator: str, process_id: int, num_processes: int, patience: int = PATIENCE) -> None:
    """Make this process one of ``num_processes``; before anything is computed."""
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


def is_first() -> bool:
    """Whether this process writes files."""
    return jax.process_index() == 0


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all must ask."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def beside(tree: PyTree, data: Data) -> PyTree:
    """The tree's arrays on all devices that the data are spread over, if they are.

    Where arrays come from must not show in how they are placed: programs are compiled for a
    placement.
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
    """The tree with arrays of this process alone, whole in every process; all must ask."""

    def whole(leaf: PyTree) -> PyTree:
        if not isinstance(leaf, jax.Array):
            return leaf
        if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return jax.device_put(np.asarray(leaf), jax.local_devices()[0])

    return jax.tree.map(whole, tree)
