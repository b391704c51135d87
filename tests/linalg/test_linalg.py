"""Small linear algebra against dense numpy, and its derivatives against plain autodiff."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nghvi._linalg import small
from nghvi._linalg.lowrank import (
    factor_precision,
    log_cholesky_diagonal,
    pack_lower,
    packed_size,
    unpack_log_cholesky,
    unpack_lower,
)
from nghvi._linalg.tree import SolveOptions, damped_cg, tree_dot, tree_norm, tree_where

# packed triangles


@pytest.mark.parametrize(("rows", "columns"), [(5, 0), (5, 1), (5, 3), (3, 3), (2, 3), (1, 1)])
def test_packing_keeps_the_lower_trapezoid_and_nothing_else(rows, columns):
    dense = np.random.default_rng(0).normal(size=(rows, columns))
    packed = pack_lower(jnp.asarray(dense))
    assert packed.shape == (packed_size(rows, columns),)
    np.testing.assert_array_equal(unpack_lower(packed, rows, columns), np.tril(dense))
    np.testing.assert_array_equal(pack_lower(unpack_lower(packed, rows, columns)), packed)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_log_cholesky_has_exponentials_on_the_diagonal_and_entries_below(size):
    packed = np.random.default_rng(1).normal(size=packed_size(size, size))
    expected = np.zeros((size, size))
    expected[np.tril_indices(size)] = packed
    np.testing.assert_array_equal(log_cholesky_diagonal(packed, size), np.diag(expected))
    np.fill_diagonal(expected, np.exp(np.diag(expected)))
    np.testing.assert_allclose(unpack_log_cholesky(jnp.asarray(packed), size), expected, rtol=1e-15)


def test_tree_operations_run_over_all_leaves():
    left, right = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}, {"a": jnp.ones(2), "b": 4.0}
    assert tree_dot(left, right) == 15
    np.testing.assert_allclose(tree_norm(left), np.sqrt(14))
    assert tree_dot(tree_where(jnp.array(False), left, right), right) == 18


# low rank plus diagonal


@pytest.mark.parametrize("loading", [1.0, 1e-4, 1e-9, 1e4])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_factor_precision_is_the_dense_inverse(rank, loading):
    rng = np.random.default_rng(rank)
    b, d = loading * rng.normal(size=(6, rank)), np.exp(rng.normal(size=6))
    covariance = b @ b.T + np.diag(d**2)
    inverse = np.linalg.inv(covariance)
    ours = jax.jit(factor_precision)(jnp.asarray(b), jnp.asarray(d))
    # With loadings of 1e4 the dense inverse itself has lost eight digits.
    close = functools.partial(
        np.testing.assert_allclose, rtol=1e-6, atol=1e-7 if loading > 1 else 1e-12
    )
    right = rng.normal(size=6)
    close(ours.matvec(jnp.asarray(right)), inverse @ right)
    close(ours.diagonal(), np.diag(inverse))
    np.testing.assert_allclose(ours.log_det_covariance, np.linalg.slogdet(covariance)[1], rtol=1e-9)
    close(ours.core @ ours.core.T, np.linalg.inv(np.eye(rank) + b.T @ (b / d[:, None] ** 2)))


@pytest.mark.parametrize("loading", [1e-3, 1e-6, 1e-9])
def test_products_of_the_precision_with_tiny_loadings_keep_their_digits(loading):
    rng = np.random.default_rng(5)
    unit, d = rng.normal(size=(6, 3)), np.exp(rng.normal(size=6))
    ours = jax.jit(factor_precision)(jnp.asarray(loading * unit), jnp.asarray(d))
    # P B and B'P B to first order in loading^2 relative to their own size.
    inverse = np.linalg.inv(loading**2 * unit @ unit.T + np.diag(d**2))
    np.testing.assert_allclose(ours.projected / loading, inverse @ unit, rtol=1e-10)
    np.testing.assert_allclose(ours.gram / loading**2, unit.T @ inverse @ unit, rtol=1e-10)


def test_negative_scales_give_the_same_precision():
    rng = np.random.default_rng(6)
    b, d = jnp.asarray(rng.normal(size=(6, 3))), jnp.asarray(rng.normal(size=6))
    precision = jax.jit(factor_precision)
    for one, other in zip(precision(b, d), precision(b, jnp.abs(d)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


# damped conjugate gradients


def linear_system(condition, size=40):
    rng = np.random.default_rng(7)
    turn = np.linalg.qr(rng.normal(size=(size, size)))[0]
    matrix = turn @ np.diag(np.geomspace(1, condition, size)) @ turn.T
    return matrix, rng.normal(size=size)


@functools.partial(jax.jit, static_argnames="options")
def jitted_solve(matrix, right, damping, options):
    """The unknown is split into two leaves, as in the factor family."""

    def split(x):
        return x[:15], x[15:]

    x, info = damped_cg(
        lambda x: split(matrix @ jnp.concatenate(x)),
        split(jnp.diagonal(matrix)),
        split(right),
        damping,
        options,
    )
    return jnp.concatenate(x), info


def solve(matrix, right, damping, options=SolveOptions()):
    x, info = jitted_solve(jnp.asarray(matrix), jnp.asarray(right), damping, options)
    return np.asarray(x), info


@pytest.mark.parametrize("damping", [0.1, 1.0, 10.0])
def test_damped_cg_solves_the_dense_system(damping):
    matrix, right = linear_system(1e3)
    x, info = solve(matrix, right, damping)
    damped = matrix + damping * np.diag(np.diag(matrix))
    np.testing.assert_allclose(x, np.linalg.solve(damped, right), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(
        info.residual, np.linalg.norm(damped @ x - right) / np.linalg.norm(right), atol=1e-9
    )
    assert info.residual <= 1e-8


def test_damped_cg_returns_zero_for_a_zero_right_side():
    matrix, right = linear_system(1e3)
    x, info = solve(matrix, 0 * right, 1.0)
    assert np.all(x == 0)
    assert (info.iterations, info.residual) == (0, 0)


def test_damped_cg_is_finite_where_the_diagonal_vanishes():
    matrix, right = linear_system(10.0)
    matrix[3], matrix[:, 3], right[3] = 0, 0, 0
    x, info = solve(matrix, right, 1.0)
    assert np.all(np.isfinite(x))
    assert info.residual <= 1e-8


def test_published_options_stop_at_twenty_iterations_whatever_the_residual():
    matrix, right = linear_system(1e8)
    info = solve(matrix, right, 0.0, SolveOptions.published())[1]
    assert info.iterations == 20
    assert info.residual > 1e-3
    assert solve(matrix, right, 0.0)[1].iterations > 20


# batches of small matrices

SIZES = (1, 2, 4, 9, 11)
BATCH = 4


def batch(r):
    """BATCH positive definite matrices of order r, batch axis last, and right sides."""
    rng = np.random.default_rng(10 + r)
    root = rng.normal(size=(BATCH, r, r))
    matrices = root @ np.swapaxes(root, 1, 2) + np.eye(r)
    return np.moveaxis(matrices, 0, -1), rng.normal(size=(r, BATCH))


def each(function, *arrays):
    """``function`` of every member, batch axis last."""
    results = [function(*(a[..., k] for a in arrays)) for k in range(BATCH)]
    return np.stack(results, axis=-1)


@pytest.mark.parametrize("r", SIZES)
def test_small_factors_solves_and_inverses_equal_numpy(r):
    matrix, right = batch(r)

    @jax.jit
    def ours(matrix, right):
        root = small.cholesky(matrix)
        forward = small.solve_lower(root, right)
        backward = small.solve_lower(root, right, transpose=True)
        lower = small.inverse_lower(root), small.inverse_lower(root[..., 0])
        return root, forward, backward, small.inverse(root), small.half_log_det(root), *lower

    root, forward, backward, inverse, half, *lower = ours(jnp.asarray(matrix), jnp.asarray(right))
    exact = each(np.linalg.cholesky, matrix)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)
    close(root, exact)
    close(forward, each(np.linalg.solve, exact, right))
    close(backward, each(lambda a, b: np.linalg.solve(a.T, b), exact, right))
    close(inverse, each(np.linalg.inv, matrix))
    close(half, each(lambda a: 0.5 * np.linalg.slogdet(a)[1], matrix))
    close(lower[0], each(np.linalg.inv, exact))
    close(lower[1], np.linalg.inv(exact[..., 0]))


def two_derivatives(function, matrix, right, direction):
    """Value, gradient and the gradient's derivative along ``direction``."""
    gradient = jax.grad(function, argnums=(0, 1))
    return function(matrix, right), *jax.jvp(gradient, (matrix, right), direction)


@jax.jit
def plain_two_derivatives(matrix, right, direction):
    def evidence(matrix, right):
        members = jnp.moveaxis(matrix, -1, 0)
        solved = jnp.linalg.solve(members, right.T[..., None])[..., 0]
        return 0.5 * (jnp.sum(solved * right.T) - jnp.sum(jnp.linalg.slogdet(members)[1]))

    return two_derivatives(evidence, matrix, right, direction)


@pytest.mark.parametrize("r", SIZES)
def test_log_evidence_and_two_derivatives_equal_plain_autodiff(r):
    matrix, right = batch(r)
    rng = np.random.default_rng(r)
    slant = rng.normal(size=matrix.shape)
    direction = (slant + np.swapaxes(slant, 0, 1), rng.normal(size=right.shape))
    ours = jax.jit(functools.partial(two_derivatives, small.log_evidence))(matrix, right, direction)

    # Bordering with an identity changes nothing, and the oracle is compiled for one size only.
    def border(array, corner=0.0):
        full = np.zeros((*(max(SIZES),) * (array.ndim - 1), BATCH))
        full[tuple(np.arange(max(SIZES)) for _ in range(array.ndim - 1))] = corner
        full[(slice(r),) * (array.ndim - 1)] = array
        return full

    plain = plain_two_derivatives(
        border(matrix, 1.0), border(right), tuple(border(d) for d in direction)
    )

    def agree(ours, plain):
        inner = np.asarray(plain)[(slice(r),) * max(ours.ndim - 1, 0)]
        np.testing.assert_allclose(ours, inner, rtol=1e-9, atol=1e-10)

    jax.tree.map(agree, ours, plain)


@pytest.mark.parametrize("size", [5, 64, 301, 777])
def test_inverses_by_halves_equal_numpy(size):
    half = np.random.default_rng(size).standard_normal((size, 2 * size))
    matrix = half @ half.T / size + np.eye(size)
    found = small.lapack_inverse(jnp.linalg.cholesky(jnp.asarray(matrix))[None])[0]
    np.testing.assert_allclose(found, np.linalg.inv(matrix), atol=1e-12)
