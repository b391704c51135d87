"""A grouped model whose groups are divided over devices, or over steps in mini-batches.

Groups are independent given theta, so with pieces p of the data::

    log p(y, theta) = log p(theta) + sum_p log p(y_p | theta)

A device draws or integrates the latents of its own groups, and differentiates. Only one sum per
density travels between devices: its value and its gradient, m + 1 numbers, however many groups
there are.
"""

import numbers
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Float

from nghvi._core.batches import Batches, Subsampled
from nghvi._core.errors import InputError
from nghvi._core.hosts import DeviceError
from nghvi._core.model import DividedModel, LatentModel, MarginalModel
from nghvi._typing import Data, Key, Latents, Params, PyTree, Scalar
from nghvi.data import Rows
from nghvi.data.grouped import Grouped
from nghvi.data.pieces import StackedPieces, cut
from nghvi.data.working_copy import StreamedRows

AXIS = "groups"
"""Name of the mesh axis over which groups are spread."""
EVERYWHERE, BY_PIECE = Spec(), Spec(AXIS)
"""How arrays are placed: whole on every device, or one piece per device."""


class Shards(eqx.Module):
    """Stacked pieces whose leading axis is spread over a mesh, one piece per device."""

    pieces: Grouped
    num_rows: float = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)

    def each(
        self, function: Callable[..., PyTree], replicated: PyTree, split: PyTree, out: Spec
    ) -> PyTree:
        """Call ``function(replicated, split, piece)`` on every device, with its part of ``split``.

        ``out``: how the results are spread over the mesh.
        """
        same, same_static = eqx.partition(replicated, eqx.is_array)
        parts, parts_static = eqx.partition((split, self.pieces), eqx.is_array)

        def local(same: PyTree, parts: PyTree) -> PyTree:
            mine = jax.tree.map(lambda leaf: leaf[0], parts)
            return function(eqx.combine(same, same_static), *eqx.combine(mine, parts_static))

        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(EVERYWHERE, BY_PIECE),
            out_specs=out,
            check_vma=False,
        )(same, parts)

    @property
    def piece_shapes(self) -> Grouped:
        """A piece with shapes in place of arrays."""
        return eqx.filter_eval_shape(
            lambda pieces: jax.tree.map(lambda x: x[0], pieces), self.pieces
        )


def mesh_of(devices: int | str | None) -> Mesh | None:
    """Return a mesh of ``"all"`` devices, or of a number of them, equally many in every process.

    None stands for one device without a mesh. If there are several processes it stands for all
    devices, since the others would wait for a process that is not in the mesh.
    """
    if devices is None and jax.process_count() == 1:
        return None
    devices = "all" if devices is None else devices
    processes, there = jax.process_count(), jax.devices()
    number = len(there) if devices == "all" else devices
    if isinstance(number, bool) or not isinstance(number, numbers.Integral) or number < 1:
        raise DeviceError(f"devices={devices!r}: give a number >= 1, 'all' or None.")
    each, rest = divmod(number, processes)
    if rest or each > jax.local_device_count():
        raise DeviceError(
            f"devices={devices}: there are {len(there)} ({there[0].platform}) in {processes} "
            f"process{'es' * (processes > 1)}, and every process gives equally many; on a CPU "
            "XLA_FLAGS=--xla_force_host_platform_device_count=N makes N."
        )
    chosen = [
        d for p in range(processes) for d in [d for d in there if d.process_index == p][:each]
    ]
    return Mesh(np.array(chosen), (AXIS,))


def shard(data: Grouped, mesh: Mesh) -> Shards:
    """Divide the groups; a process makes and places only the pieces of its own devices."""
    if not isinstance(data, Grouped):
        raise DeviceError(
            f"devices: data of type {type(data).__name__} cannot be divided by group; use Rows, "
            "LinearStatistics or a Panel."
        )
    if data.num_present < mesh.size:
        raise DeviceError(
            f"devices={mesh.size}: there are only {data.num_present} groups, and a device needs "
            "at least one; ask for fewer devices."
        )
    mine = [i for i, d in enumerate(mesh.devices) if d.process_index == jax.process_index()]
    spread = NamedSharding(mesh, BY_PIECE)

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        shape = (mesh.size, *leaf.shape[1:])
        return jax.make_array_from_process_local_data(spread, np.ascontiguousarray(leaf), shape)

    return Shards(jax.tree.map(place, cut(data, mesh.size, mine)), float(data.num_rows), mesh)


def place_latents(latents: Latents, mesh: Mesh) -> Latents:
    """Place latents of all draws (first axis) and pieces (second) on the devices of the pieces."""
    spread = NamedSharding(mesh, Spec(None, AXIS))

    def place(z: Array) -> Array:
        values = np.asarray(z)
        return jax.make_array_from_callback(values.shape, spread, lambda i: values[i])

    return jax.tree.map(place, latents)


class Sharded(DividedModel):
    """A model of grouped data that states its prior, on :class:`Shards` of the data.

    Latents have a leading axis with one entry per piece, and stay where their groups are.
    """

    def __check_init__(self) -> None:
        for name in ("log_marginal", "log_prior"):
            stated = getattr(type(self.model), name, None)
            if stated in (None, LatentModel.log_prior):
                raise DeviceError(
                    f"devices: {type(self.model).__name__} states no {name}, so its groups cannot "
                    "be spread over devices; use devices=None."
                )

    def init_params(self, key: Key, data: Shards) -> Params:
        # All pieces give the same result.
        return data.each(
            lambda given, split, piece: given[0].init_params(given[1], piece),
            (self.model, key),
            (),
            EVERYWHERE,
        )

    def log_marginal(self, params: Params, data: Shards) -> Scalar:
        return self._density("log_marginal", params, (), (), data)

    def log_joint(self, params: Params, latents: Latents, data: Shards) -> Scalar:
        return self._density("log_joint", params, (), (latents,), data)

    def log_joint_moving(
        self, params: Params, anchor: Params, latents: Latents, data: Shards
    ) -> Scalar:
        return self._density("log_joint_moving", params, (anchor,), (latents,), data)

    def log_at_rest(self, params: Params, data: Shards) -> Scalar | None:
        if eqx.filter_eval_shape(self.model.log_at_rest, params, data.piece_shapes) is None:
            return None
        return self._density("log_at_rest", params, (), (), data)

    def log_conditional(self, params: Params, latents: Latents, data: Shards) -> Scalar | None:
        def local(given: tuple, z: Latents, piece: Grouped) -> Scalar | None:
            known = given[0].log_conditional(given[1], z, piece)
            return None if known is None else jax.lax.psum(known, AXIS)

        return data.each(local, (self.model, params), latents, EVERYWHERE)

    def init_latents(self, key: Key, params: Params, data: Shards) -> Latents:
        def local(given: tuple, split: tuple, piece: Grouped) -> Latents:
            model, key, params = given
            return _stacked(model.init_latents(_own(key), params, piece))

        return data.each(local, (self.model, key, params), (), BY_PIECE)

    def sample_latents(self, key: Key, params: Params, latents: Latents, data: Shards) -> Latents:
        def local(given: tuple, z: Latents, piece: Grouped) -> Latents:
            model, key, params = given
            return _stacked(model.sample_latents(_own(key), params, z, piece))

        return data.each(local, (self.model, key, params), latents, BY_PIECE)

    def num_observations(self, data: Shards) -> float:
        return data.num_rows

    def evaluation_size(self, data: Shards) -> int:
        return data.mesh.size * self.model.evaluation_size(data.piece_shapes)

    def _density(
        self, name: str, params: Params, replicated: tuple, split: tuple, data: Shards
    ) -> Scalar:
        theta, unravel = ravel_pytree(params)
        return _total(theta, (self.model, replicated), split, data, name, unravel)


def _own(key: Key) -> Key:
    """Return the key of the piece on this device."""
    return jax.random.fold_in(key, jax.lax.axis_index(AXIS))


def _stacked(latents: Latents) -> Latents:
    return jax.tree.map(lambda z: z[None], latents)


def _part(
    theta: Array, given: tuple, split: tuple, piece: Grouped, name: str, unravel: Callable, of: int
) -> Scalar:
    """Return the term of one piece in a density, with its share of the prior."""
    model, replicated = given
    params = unravel(theta)
    value = getattr(model, name)(params, *replicated, *split, piece)
    prior = model.log_prior_at_rest if name == "log_at_rest" else model.log_prior
    return value - (1 - 1 / of) * prior(params)


@eqx.filter_custom_vjp
def _total(
    theta: Float[Array, " m"],
    given: tuple,
    split: tuple,
    data: Shards,
    name: str,
    unravel: Callable,
) -> Scalar:
    """Return a density, summed over the pieces."""

    def local(same: tuple, split: tuple, piece: Grouped) -> Scalar:
        theta, given = same
        part = _part(theta, given, split, piece, name, unravel, data.mesh.size)
        return jax.lax.psum(part, AXIS)

    return data.each(local, (theta, given), split, EVERYWHERE)


@_total.def_fwd
def _forward(
    perturbed: tuple,
    theta: Array,
    given: tuple,
    split: tuple,
    data: Shards,
    name: str,
    unravel: Callable,
) -> tuple[Scalar, Array]:
    """Return value and gradient from a single sum over devices, since each sum is a message."""

    def local(same: tuple, split: tuple, piece: Grouped) -> Array:
        theta, given = same
        value, slope = jax.value_and_grad(_part)(
            theta, given, split, piece, name, unravel, data.mesh.size
        )
        return jax.lax.psum(jnp.concatenate([value[None], slope]), AXIS)

    both = data.each(local, (theta, given), split, EVERYWHERE)
    return both[0], both[1:]


@_total.def_bwd
def _backward(slope: Array, cotangent: Array, *unused: Any) -> Array:
    return cotangent * slope


def in_batches(
    model: LatentModel,
    data: Data,
    batch_groups: int | None,
    *,
    seed: int = 0,
    method: object = "auto",
    full: bool = False,
    devices: int | str | None = None,
) -> tuple[Subsampled, Batches]:
    """Return the model of a piece, and the pieces, or refuse settings that exclude batches.

    ``batch_groups``: about how many groups a piece has; None if the pieces are on disk already.
    ``full``: whether a full covariance was asked for.
    """
    if method != "auto":
        raise InputError(
            f"batch_groups with method={method!r}: the published rules see all groups at every "
            "step; leave batch_groups=None, or method='auto'."
        )
    if full:
        raise InputError("batch_groups with family='full' (rank='full'): give a number of factors.")
    if devices is not None:
        raise InputError(
            f"batch_groups with devices={devices!r}: a batch is computed on one device; choose one "
            "of the two settings."
        )
    if not isinstance(data, Rows | StreamedRows) or not isinstance(model, MarginalModel):
        raise InputError(
            f"batch_groups with {type(model).__name__} of {type(data).__name__}: only a model of "
            "grouped rows with a log_marginal can be divided into groups."
        )
    if getattr(model, "gibbs", None) is not None:
        raise InputError(
            "batch_groups with Gibbs sweeps: they continue from a group's last draw of effects, "
            "which is many steps old; give the model gibbs=None."
        )
    pieces = data if isinstance(data, StreamedRows) else StackedPieces(data, batch_groups, seed)
    return Batches.of(pieces, seed, model)
