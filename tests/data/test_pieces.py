"""Pieces of grouped data: no row is lost or counted twice, and they add up to the whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from nghvi.data import Rows
from nghvi.data.panel import collapse
from nghvi.data.pieces import cut, deal, in_pieces
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity
from nghvi.priors import Priors
from nghvi.responses import Gaussian, Probit

SIZES = {
    "unbalanced": np.array([1, 40, 1, 17, 0, 3, 12, 1, 2, 5, 5]),
    "single rows": np.ones(7, int),
    "fewer than pieces": np.array([3, 8]),
    "equal": np.full(8, 3),
}
PIECES = 4
sizes_of = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)


@sizes_of
@pytest.mark.parametrize("seed", [None, 3])
def test_every_group_is_dealt_once_to_a_block_that_holds_it(sizes, seed):
    dealt = deal(sizes, PIECES, seed)
    counts, lengths = zip(*dealt.blocks, strict=True)
    assert dealt.members.shape == (PIECES, sum(counts))
    assert sorted(dealt.members[dealt.members >= 0]) == list(range(len(sizes)))
    room = np.repeat(lengths, counts)
    held = np.where(dealt.members >= 0, sizes[dealt.members], 0)
    assert (held <= room).all()
    # No piece is longer than necessary.
    for (count, _), start in zip(dealt.blocks, np.cumsum(counts) - counts, strict=True):
        there = (dealt.members[:, start : start + count] >= 0).sum(axis=1)
        assert there.max() == count
        assert there.max() - there.min() <= 1


def test_rows_are_balanced_whatever_the_sizes():
    """Serpentine order leaves at most about one largest group of each block between pieces."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        sizes = np.ceil(rng.pareto(1.2, 1000) + 1e-3).astype(int).clip(1, 300)
        held = np.where((m := deal(sizes, PIECES).members) >= 0, sizes[m], 0).sum(axis=1)
        assert np.ptp(held) <= sizes.max()


def test_a_seed_deals_at_random_and_every_group_equally_often_to_every_piece():
    """In 500 deals a cell is binomial(500, 1/4): seven sds of 9.7 fail by chance once in 10^10."""
    sizes, times = SIZES["unbalanced"], np.zeros((PIECES, 11))
    for seed in range(500):
        members = deal(sizes, PIECES, seed).members
        piece, slot = np.nonzero(members >= 0)
        times[piece, members[piece, slot]] += 1
    assert np.abs(times - 125).max() < 68
    assert (deal(sizes, PIECES, 5).members == deal(sizes, PIECES, 5).members).all()


@functools.cache
def table(name, binary=False):
    sizes = SIZES[name]
    rng = np.random.default_rng(1)
    group = rng.permutation(np.repeat(np.arange(sizes.size), sizes))
    x = np.column_stack([np.ones(group.size), rng.normal(size=(group.size, 2)).round()])
    y = rng.normal(size=group.size) + x[:, 1]
    y = (y > 0) * 1.0 if binary else y
    return x, y, group, rng.integers(1, 4, group.size).astype(float)


def model_of(kind):
    response = Probit() if kind == "probit" else Gaussian()
    return MixedModel(Identity(3), response, Priors(), (0, 1))


def data_of(kind, name):
    x, y, group, weight = table(name, binary=kind == "probit")
    rows = Rows.from_arrays(x, y, group, SIZES[name].size, weight)
    if kind in ("panel", "cells"):
        return collapse(rows, sums_suffice=kind == "panel")
    if kind == "indexed":
        return collapse(rows, sums_suffice=False, merge=False)
    return prepare(model_of(kind), rows) if kind == "linear" else rows


def some_params(model, data):
    params = jax.jit(model.init_params)(jax.random.key(1), data)
    theta, unravel = ravel_pytree(params)
    return unravel(theta + 0.3 * jnp.asarray(np.random.default_rng(2).normal(size=theta.size)))


def on_device(pieces):
    return jax.tree.map(jnp.asarray, pieces)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("rows", "single rows"),
        ("linear", "fewer than pieces"),
        *((kind, "unbalanced") for kind in ("rows", "probit", "panel", "indexed", "cells")),
    ],
)
def test_log_marginals_of_pieces_add_up_to_the_whole(kind, name):
    model, data = model_of(kind), data_of(kind, name)
    params, pieces = some_params(model, data), on_device(cut(data, PIECES))

    def likelihood(params, data):
        return model.log_marginal(params, data) - model.log_prior(params)

    def both(params):
        parts = jax.vmap(lambda piece: likelihood(params, piece))(pieces)
        return jnp.stack([likelihood(params, data), jnp.sum(parts)])

    whole, summed = jax.jit(both)(params)
    np.testing.assert_allclose(summed, whole, rtol=1e-12)
    if (kind, name) in (("rows", "unbalanced"), ("linear", "fewer than pieces")):
        for of_whole, of_sum in jax.tree.leaves(jax.jit(jax.jacrev(both))(params)):
            np.testing.assert_allclose(of_sum, of_whole, rtol=1e-10, atol=1e-10)


def test_densities_with_effects_at_rest_add_up_to_the_whole():
    """Pieces leave out the prior of the effects' covariance, and so must what is subtracted."""
    model, data = model_of("probit"), data_of("probit", "unbalanced")
    params, pieces = some_params(model, data), on_device(cut(data, PIECES))

    def likelihood(data):
        return model.log_at_rest(params, data) - model.log_prior_at_rest(params)

    parts = jax.jit(jax.vmap(likelihood))(pieces)
    np.testing.assert_allclose(jnp.sum(parts), jax.jit(likelihood)(data), rtol=1e-12)
    no_effects = model.log_prior(params) - model.log_prior_at_rest(params)
    expected = model.priors.effects.log_density(params.effects, model.num_effects)
    np.testing.assert_allclose(no_effects, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "rows", "panel"])
def test_a_model_starts_from_a_piece_as_from_the_whole(kind):
    model, data = model_of(kind), data_of(kind, "unbalanced")
    start = jax.vmap(lambda piece: model.init_params(jax.random.key(0), piece))
    each = jax.jit(start)(on_device(cut(data, PIECES)))
    expected = jax.jit(model.init_params)(jax.random.key(0), data)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, np.broadcast_to(b, a.shape), rtol=1e-12),
        each,
        expected,
    )


@pytest.mark.parametrize("name", ["unbalanced"])
def test_log_joints_of_pieces_add_up_to_the_whole_and_absent_groups_add_nothing(name):
    model, data = model_of("rows"), data_of("rows", name)
    dealt = deal(SIZES[name], PIECES)
    x, y, group, weight = table(name)
    pieces = on_device(in_pieces(dealt, x, y, group, weight))
    params = some_params(model, data)
    effects = np.random.default_rng(3).normal(size=(SIZES[name].size, 2))
    # Absent groups get effects that would show up.
    parted = np.where((dealt.members >= 0)[..., None], effects[dealt.members], 50.0)
    memory = jnp.asarray(effects[np.argsort(data.original_order)])

    @jax.jit
    def densities(z, data):
        joint = model.log_joint(params, z, data)
        known = model.log_conditional(params, z, data)
        moving = model.log_joint_moving(params, params, z, data)
        return joint - model.log_prior(params), known, moving - joint

    found = jnp.sum(jnp.stack(jax.vmap(densities)(jnp.asarray(parted), pieces)), axis=1)
    np.testing.assert_allclose(found, densities(memory, data), rtol=1e-11)


def test_a_process_may_make_its_own_pieces_only():
    data = data_of("rows", "unbalanced")
    whole, some = cut(data, PIECES), cut(data, PIECES, which=[1, 3])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[[1, 3]], b), whole, some)
    statistics = data_of("linear", "unbalanced")
    whole, some = cut(statistics, PIECES), cut(statistics, PIECES, which=[2])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[[2]], b), whole, some)
