"""Grouped data: where rows are placed, and sums over groups compared with numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nghvi.data import LinearStatistics, Rows
from nghvi.data.blocks import MOST_BLOCKS, lay_out
from nghvi.data.panel import collapse
from nghvi.latents import conjugate

# layout


def shuffled_codes(sizes, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def skewed_sizes(seed):
    """Return Pareto sizes: most groups have few rows, one has hundreds, a tenth are empty."""
    rng = np.random.default_rng(seed)
    sizes = np.ceil(rng.pareto(1.0, 200) + 1e-3).astype(int).clip(1, 5000)
    sizes[rng.random(200) < 0.1] = 0
    return sizes


LAYOUTS = {
    "balanced": [4] * 7,
    "single rows": [1] * 6,
    "one group": [9],
    "one to two hundred": list(range(1, 201)),
    "empty in the middle": [3, 0, 5, 0, 0, 2],
    "empty at both ends": [0, 3, 3, 0],
    "single rows and empty": [1, 0, 1, 1, 0],
    **{f"skewed {seed}": skewed_sizes(seed) for seed in range(8)},
}
layouts = pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS)


@layouts
def test_every_row_is_placed_once_and_groups_are_contiguous(sizes):
    codes = shuffled_codes(sizes)
    layout = lay_out(codes, len(sizes))
    counts, lengths = zip(*layout.blocks, strict=True)
    assert len(layout.blocks) <= MOST_BLOCKS
    assert sum(counts) == len(sizes)
    assert sorted(layout.group_order) == list(range(len(sizes)))
    slots = np.repeat(lengths, counts)
    owner = np.repeat(layout.group_order, slots)
    assert np.unique(layout.position).size == codes.size
    np.testing.assert_array_equal(owner[layout.position], codes)
    # Rows fill the slots of their group from the first, in their original order.
    starts = (np.cumsum(slots) - slots)[np.argsort(layout.group_order)]
    for code, size in enumerate(sizes):
        expected = starts[code] + np.arange(size)
        np.testing.assert_array_equal(layout.position[codes == code], expected)


@pytest.mark.parametrize("seed", range(8))
def test_padding_stays_below_sixty_percent_of_the_rows(seed):
    sizes = skewed_sizes(seed)
    layout = lay_out(shuffled_codes(sizes), len(sizes))
    assert sum(count * size for count, size in layout.blocks) <= 1.6 * sizes.sum()


def test_equal_groups_are_not_padded():
    assert lay_out(shuffled_codes([4] * 7), 7).blocks == ((7, 4),)


# sums over groups

SIZES = {
    "balanced": np.full(6, 4),
    "unequal": np.array([1, 200, 1, 17, 0, 3, 60, 1, 2]),
}
problems = pytest.mark.parametrize("name", SIZES)


@functools.cache
def table(name):
    """Return columns 1, x1, x2; y; and group codes, with rows in random order."""
    rng, codes = np.random.default_rng(1), shuffled_codes(SIZES[name])
    x = np.column_stack([np.ones(codes.size), rng.normal(size=(codes.size, 2))])
    return x, rng.normal(size=codes.size), codes


@functools.cache
def rows_of(name):
    x, y, codes = table(name)
    return Rows.from_arrays(x, y, codes, SIZES[name].size)


def by_group(name, values):
    codes = table(name)[2]
    return np.stack([values[codes == k].sum(axis=0) for k in range(SIZES[name].size)])


@problems
def test_sums_and_grams_over_groups_equal_numpy(name):
    (x, y, _), rows = table(name), rows_of(name)
    original = rows.in_original_order
    total, vectors, gram = jax.jit(lambda d: (d.total(d.y), d.sum(d.x), d.gram(d.x)))(rows)
    assert (rows.num_rows, rows.num_groups) == (len(y), SIZES[name].size)
    assert (rows.weight is None) == (name == "balanced")
    np.testing.assert_allclose(total, y.sum(), rtol=1e-12)
    np.testing.assert_allclose(original(vectors), by_group(name, x), atol=1e-11)
    outer = by_group(name, x[:, :, None] * x[:, None, :])
    np.testing.assert_allclose(original(jnp.moveaxis(gram, -1, 0)), outer, atol=1e-11)


@problems
def test_expanding_gives_every_row_the_value_of_its_group(name):
    rows, sizes = rows_of(name), SIZES[name]
    memory_order = np.argsort(rows.original_order)
    expanded = rows.expand(jnp.asarray(memory_order, float))
    np.testing.assert_array_equal(
        rows.in_original_order(rows.sum(expanded)), np.arange(sizes.size) * sizes
    )
    # The adjoint of the sum, apart from padding.
    values = jnp.asarray(np.random.default_rng(2).normal(size=rows.num_groups))
    np.testing.assert_allclose(
        rows.total(rows.y * rows.expand(values)), rows.sum(rows.y) @ values, rtol=1e-12
    )


@problems
def test_expanding_values_without_columns_gives_rows_without_columns(name):
    """A model without random effects has effects of shape (groups, 0)."""
    rows = rows_of(name)
    assert rows.expand(jnp.zeros((rows.num_groups, 0))).shape == (len(rows.y), 0)


@problems
def test_padding_rows_never_count(name):
    rows = rows_of(name)
    ones = jnp.ones_like(rows.y)
    assert rows.total(ones) == rows.num_rows
    np.testing.assert_array_equal(rows.in_original_order(rows.sum(ones)), SIZES[name])
    assert np.isfinite(rows.x).all()


# moments

RANDOM = (0, 2)
compiled_moments = jax.jit(
    lambda data, coef: data.moments(lambda x: x, coef, RANDOM)._replace(num_rows=0)
)


@problems
def test_moments_about_any_coefficients_equal_numpy(name):
    x, y, _ = table(name)
    coef = np.array([0.3, -1.0, 2.0])
    ours = compiled_moments(rows_of(name), jnp.asarray(coef))
    error, z = y - x @ coef, x[:, RANDOM]
    original = rows_of(name).in_original_order
    np.testing.assert_allclose(ours.square, error @ error, rtol=1e-12)
    np.testing.assert_allclose(
        original(ours.cross.T), by_group(name, z * error[:, None]), atol=1e-11
    )
    outer = by_group(name, z[:, :, None] * z[:, None, :])
    np.testing.assert_allclose(original(jnp.moveaxis(ours.gram, -1, 0)), outer, atol=1e-11)


@pytest.mark.parametrize("used", ["gram", "cross", "square"])
def test_each_moment_has_its_gradient_alone(used):
    rows, coef = rows_of(next(iter(SIZES))), jnp.array([0.3, -1.0, 2.0])

    def total(scale):
        moments = rows.moments(lambda x: scale * x, coef, RANDOM)
        return jnp.sum(getattr(moments, used))

    slope = jax.jit(jax.grad(total))(1.0)
    width = 1e-5
    numeric = (total(1.0 + width) - total(1.0 - width)) / (2 * width)
    np.testing.assert_allclose(slope, numeric, rtol=1e-6, atol=1e-6)


@problems
def test_linear_statistics_give_the_moments_of_the_rows(name):
    rows = rows_of(name)
    statistics = LinearStatistics.from_rows(rows, RANDOM)
    assert (statistics.num_rows, statistics.num_groups) == (rows.num_rows, rows.num_groups)
    np.testing.assert_array_equal(statistics.original_order, rows.original_order)
    for seed in range(3):
        coef = jnp.asarray(3 * np.random.default_rng(seed).normal(size=3))
        ours, direct = compiled_moments(statistics, coef), compiled_moments(rows, coef)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), ours, direct
        )


@pytest.mark.parametrize(
    "reduce",
    [
        lambda rows: LinearStatistics.from_rows(rows, (0,)),
        lambda rows: collapse(rows, sums_suffice=True),
    ],
    ids=["linear", "panel"],
)
def test_sums_of_any_number_of_rows_share_programs(reduce):
    """A compiled program depends on structure, shapes and types, which are the same."""

    def seen(size):
        x = np.arange(3.0)[np.arange(size) % 3, None]
        reduced = reduce(Rows.from_arrays(x, np.sin(np.arange(size)), np.arange(size) % 4, 4))
        assert not isinstance(reduced, Rows)
        assert reduced.num_rows == size
        return jax.tree.flatten(jax.tree.map(jax.typeof, reduced))

    assert seen(48) == seen(60)


def statistics_of(num_groups):
    rng = np.random.default_rng(num_groups)
    codes = np.arange(5 * num_groups) % num_groups
    rows = Rows.from_arrays(rng.normal(size=(codes.size, 3)), np.sin(codes), codes, num_groups)
    return LinearStatistics.from_rows(rows, RANDOM)


def test_numbers_of_groups_share_programs():
    seen = [
        jax.tree.flatten(jax.tree.map(jax.typeof, statistics_of(number).filled_up()))
        for number in (33, 57, 64)
    ]
    assert seen[0] == seen[1] == seen[2]
    assert [statistics_of(n).filled_up().num_groups for n in (3, 57, 1025)] == [16, 64, 1152]
    full, many = statistics_of(64), statistics_of(5000)
    assert full.filled_up() is full
    assert many.filled_up() is many  # compiling another program is cheaper


def test_an_empty_group_adds_nothing():
    """Likelihood, slopes and mean squares stay; only the rounding of sums over groups changes."""
    statistics, coef = statistics_of(57), jnp.array([0.3, -1.0, 2.0])
    factor = jnp.array([[2.0, 0.0], [-0.7, 0.5]])

    @jax.jit
    def likelihood(data):
        def at(coef, noise_var, factor):
            moments = data.moments(lambda x: x, coef, RANDOM)
            return conjugate.log_marginal(moments, noise_var, jnp.tril(factor))

        return jax.value_and_grad(at, argnums=(0, 1, 2))(coef, 0.8, factor)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-12),
        likelihood(statistics),
        likelihood(statistics.filled_up()),
    )
    np.testing.assert_allclose(
        statistics.effects_square, statistics.filled_up().effects_square, rtol=1e-14
    )


@problems
def test_linear_statistics_lose_no_digits_to_a_large_mean(name):
    """With y = 1e6 + noise of sd 1e-3, naive cross products would lose all digits of residuals."""
    x, noise, codes = table(name)
    rows = Rows.from_arrays(x, 1e6 + 1e-3 * noise, codes, SIZES[name].size)
    statistics = LinearStatistics.from_rows(rows, RANDOM)
    coef = np.array([1e6 + 2e-4, 1e-4, -3e-4])
    # Exact in extended precision; y itself is rounded to 1e-10, which is 1e-7 of the noise.
    exact = np.asarray(rows.y, np.longdouble) - np.asarray(rows.x, np.longdouble) @ coef
    mask = np.ones(len(exact)) if rows.weight is None else np.asarray(rows.weight)
    ours = compiled_moments(statistics, jnp.asarray(coef))
    np.testing.assert_allclose(ours.square, float(np.sum(mask * exact**2)), rtol=1e-6)
    z = np.asarray(rows.x)[:, RANDOM]
    cross = rows.sum(jnp.asarray(z * exact[:, None].astype(float))).T
    np.testing.assert_allclose(ours.cross, cross, rtol=1e-5, atol=1e-8)


def test_small_tables_are_padded_rather_than_divided():
    """Every block adds code to a program; in a large table padding would cost more."""
    sizes = np.array([11, 13, 15, 17, 19, 21])
    assert lay_out(shuffled_codes(sizes), 6).blocks == ((6, 21),)
    assert len(lay_out(shuffled_codes(np.tile(sizes, 200)), 1200).blocks) > 1
    uneven = lay_out(shuffled_codes(np.array([2, 2, 2, 2, 60])), 5)
    assert uneven.blocks == ((4, 2), (1, 60))
