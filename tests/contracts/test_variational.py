"""Variational families: contracts over the registry, Fisher matrices against dense algebra.

Vectors below are the flattened leaves of a family, its free parameters lambda in their order.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

from nghvi._core.draws import OrthogonalDraws
from nghvi._linalg.tree import SolveOptions
from nghvi.families import CholeskyGaussian, FactorGaussian
from nghvi.families.factor import factor_size
from tests.registry import DIM, FACTOR_FAMILIES, FAMILIES, factor_gaussian

families = pytest.mark.parametrize("name", FAMILIES)
factor_families = pytest.mark.parametrize("name", FACTOR_FAMILIES)
OPTIONS = SolveOptions(tolerance=1e-12, max_iterations=300)


def flat(q):
    return np.asarray(ravel_pytree(q)[0])


def tangent_at(q, seed=0):
    """A random tangent vector: the family with random leaves."""
    vector, unravel = ravel_pytree(q)
    return unravel(jnp.asarray(np.random.default_rng(seed).normal(size=vector.size)))


@functools.cache
def member(name):
    return FAMILIES[name]()


def divergence(p, q):
    """KL(p || q) of Gaussians from dense covariances."""
    covariance = q.covariance()
    shift = q.centre - p.centre
    solved = jnp.linalg.solve(covariance, jnp.column_stack([p.covariance(), shift]))
    log_det = jnp.linalg.slogdet(covariance)[1] - jnp.linalg.slogdet(p.covariance())[1]
    return 0.5 * (jnp.trace(solved[:, :-1]) + shift @ solved[:, -1] - q.dim + log_det)


@functools.cache
def fisher_by_hessian(name):
    """Hessian of KL(q_lambda0 || q_lambda) at lambda0."""
    q = member(name)
    vector, unravel = ravel_pytree(q)
    hessian = jax.jit(jax.hessian(lambda x: divergence(q, unravel(x))))
    return np.asarray(hessian(vector))


def fisher_as_printed(q):
    """The paper's matrix from dense blocks; exact apart from the block of the loadings."""
    b, d = np.asarray(q.loadings), np.asarray(q.scale)
    p = np.linalg.inv(np.asarray(q.covariance()))
    rows, columns = np.tril_indices(q.dim, 0, q.rank)
    kronecker = 2 * np.kron(b.T @ p @ b, p)
    stacked = columns * q.dim + rows  # columns of B on top of each other
    f22 = kronecker[np.ix_(stacked, stacked)]
    f23 = 2 * d * p[rows] * (p @ b)[:, columns].T
    f33 = 2 * np.outer(d, d) * p**2
    zero = np.zeros((q.dim, len(rows) + q.dim))
    return np.block([[p, zero], [zero.T, np.block([[f22, f23], [f23.T, f33]])]])


# contracts of every family

THETA = np.random.default_rng(1).normal(size=(3, DIM))
STEP = np.random.default_rng(2).normal(size=DIM)
WIDER = 1.2
CURVATURE = np.cov(np.random.default_rng(3).normal(size=(DIM, 20)))


@functools.cache
def balanced_noise(dim):
    """Draws with mean 0 and second moments I exactly."""
    turn = np.linalg.qr(np.random.default_rng(dim).normal(size=(dim, dim)))[0]
    return np.sqrt(dim) * np.concatenate([turn, -turn])


def pulled_back(q, noise, score):
    """``pull_back`` and, by autodiff, the gradient of the mean of score . theta."""
    gradient = jax.grad(lambda q: jnp.mean(jnp.sum(score * jax.vmap(q.transport)(noise), axis=1)))
    return ravel_pytree(q.pull_back(noise, score))[0], ravel_pytree(gradient(q))[0]


def gradient_towards(q, mean, covariance, noise):
    """Gradient of the ELBO of a Gaussian target along the path, at these draws."""
    theta = jax.vmap(q.transport)(noise)
    target = -jnp.linalg.solve(covariance, (theta - mean).T).T
    return q.pull_back(noise, target - jax.vmap(jax.grad(q.log_density))(theta))


@functools.cache
def facts(name):
    """All that the contracts compare, from one compiled program per family."""

    @eqx.filter_jit
    def compute(q, noise, other_noise):
        theta = jax.vmap(q.transport)(noise)
        covariance = q.covariance()

        def error(mean, widened):
            return q.remaining_error(gradient_towards(q, mean, widened * covariance, noise))

        return {
            "covariance": covariance,
            "sd": q.standard_deviation(),
            "log_density": jax.vmap(q.log_density)(THETA),
            "theta": theta,
            "quadratic": pulled_back(q, noise, (0.5 - theta) @ CURVATURE),
            "any": pulled_back(q, other_noise, THETA),
            "error": jax.vmap(error)(
                jnp.stack([q.centre, q.centre + STEP, q.centre]), jnp.array([1.0, 1.0, WIDER**2])
            ),
            "rescaled": q.rescale(q, STEP).mean,
        }

    noise = balanced_noise(member(name).noise_dim)
    return jax.tree.map(np.asarray, compute(member(name), noise, noise[:3] + 0.7))


@families
def test_log_density_is_that_of_the_normal_with_its_mean_and_covariance(name):
    covariance = facts(name)["covariance"]
    exact = stats.multivariate_normal(member(name).centre, covariance).logpdf(THETA)
    np.testing.assert_allclose(facts(name)["log_density"], exact, rtol=1e-11)
    np.testing.assert_allclose(facts(name)["sd"] ** 2, np.diag(covariance), rtol=1e-13)


@families
def test_transported_noise_has_the_mean_and_covariance_of_the_family(name):
    theta = facts(name)["theta"]
    assert theta.shape == (2 * member(name).noise_dim, DIM)
    np.testing.assert_allclose(theta.mean(axis=0), member(name).centre, atol=1e-12)
    np.testing.assert_allclose(np.cov(theta.T, bias=True), facts(name)["covariance"], atol=1e-12)


@families
def test_pull_back_is_the_chain_rule_for_the_score_of_a_quadratic(name):
    """Exact for every family: with balanced noise the whitened matrix is symmetric."""
    np.testing.assert_allclose(*facts(name)["quadratic"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n.startswith("factor")])
def test_pull_back_of_a_factor_family_is_the_chain_rule_for_any_score(name):
    np.testing.assert_allclose(*facts(name)["any"], rtol=1e-12, atol=1e-13)


@families
def test_remaining_error_vanishes_at_the_optimum_and_else_is_the_distance_in_sds(name):
    error = facts(name)["error"]
    np.testing.assert_allclose(error.mean[0], 0, atol=1e-10)
    np.testing.assert_allclose(error.mean[1], STEP / facts(name)["sd"], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(error.scale[:2], 0, atol=1e-10)
    # All sds are short by the same factor, which every family can repair: v -> v + v (1 - v / v*).
    np.testing.assert_allclose(error.mean[2], 0, atol=1e-10)
    np.testing.assert_allclose(error.scale[2], 0.5 * (1 - WIDER**-2), rtol=1e-9)


@families
def test_remaining_error_is_what_the_dense_natural_gradient_step_does_to_means_and_sds(name):
    """For any gradient: F is the Hessian of the divergence, the step's effect a derivative."""
    q = member(name)
    vector, unravel = ravel_pytree(q)
    gradient = tangent_at(q, 9)
    step = np.linalg.solve(fisher_by_hessian(name), flat(gradient))

    def means_and_log_sds(x):
        moved = unravel(x)
        return moved.centre, 0.5 * jnp.log(jnp.diagonal(moved.covariance()))

    _, (mean, log_sd) = jax.jvp(means_and_log_sds, (vector,), (jnp.asarray(step),))
    error = q.remaining_error(gradient)
    np.testing.assert_allclose(error.mean, mean / facts(name)["sd"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(error.scale, log_sd, rtol=1e-7, atol=1e-9)
    assert np.abs(error.scale).min() > 1e-3


def test_remaining_error_sees_loadings_that_are_too_small():
    """Loadings .3 where the optimum has .95: sds .44 of what they should be."""
    m, scale = 20, 0.324
    mean, scales = jnp.zeros(m), jnp.full(m, scale)
    q, best = (FactorGaussian.start(mean, scales, 1, loading) for loading in (0.3, 0.95))
    np.testing.assert_allclose(q.standard_deviation() / best.standard_deviation(), 0.44, rtol=1e-2)
    noise = balanced_noise(q.noise_dim)
    gradient = eqx.filter_jit(gradient_towards)(q, mean, best.covariance(), noise)
    np.testing.assert_allclose(0.5 * q.scale * gradient.scale, 0, atol=0.03)  # blameless
    # Only the variance along (1, ..., 1) is wrong; a full step adds v (1 - v / v*) to it.
    along, aim = (m * loading**2 + scale**2 for loading in (0.3, 0.95))
    exact = 0.5 * along * (1 - along / aim) / m / (0.3**2 + scale**2)
    np.testing.assert_allclose(q.remaining_error(gradient).scale, exact, rtol=1e-9)
    assert exact > 0.2


@families
def test_rescaling_multiplies_locations_by_the_unit(name):
    np.testing.assert_allclose(facts(name)["rescaled"], STEP * member(name).mean, rtol=1e-15)


@families
def test_retraction_starts_at_the_family_and_leaves_along_the_tangent(name):
    q = member(name)
    vector, unravel = ravel_pytree(q)
    tangent = ravel_pytree(tangent_at(q))[0]

    def moments(q):
        return jnp.column_stack([q.covariance(), q.centre])

    moved = jax.jit(lambda t: moments(q.retract(unravel(t * tangent))))
    slope = jax.jit(lambda: jax.jvp(lambda x: moments(unravel(x)), (vector,), (tangent,))[1])

    start = np.column_stack([facts(name)["covariance"], q.centre])
    np.testing.assert_allclose(moved(0.0), start, rtol=1e-12, atol=1e-12)
    # Differences of fourth order: the error is h^4 times a fifth derivative.
    h = 1e-4
    differences = 8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))
    np.testing.assert_allclose(differences / (12 * h), slope(), rtol=1e-7, atol=1e-8)


# natural gradients


@eqx.filter_jit
def compiled_natural_gradient(q, gradient, damping, fisher):
    return q.natural_gradient(gradient, damping, fisher, OPTIONS)


def natural_gradient(q, gradient, damping, fisher="exact"):
    return compiled_natural_gradient(q, gradient, jnp.asarray(damping), fisher)


@functools.cache
def fisher_by_products(name, fisher):
    """The columns of the family's own product with the Fisher matrix."""
    q = member(name)
    vector, unravel = ravel_pytree(q)
    columns = jax.jit(jax.vmap(lambda x: ravel_pytree(q.fisher_product(unravel(x), fisher))[0]))
    return np.asarray(columns(jnp.eye(vector.size)))


@factor_families
def test_exact_fisher_product_is_the_hessian_of_the_divergence(name):
    np.testing.assert_allclose(
        fisher_by_products(name, "exact"), fisher_by_hessian(name), rtol=1e-9, atol=1e-11
    )


@factor_families
def test_paper_fisher_product_is_the_printed_formula_on_the_free_entries(name):
    printed = fisher_as_printed(member(name))
    np.testing.assert_allclose(fisher_by_products(name, "printed"), printed, rtol=1e-9, atol=1e-11)


@factor_families
def test_paper_fisher_exceeds_the_exact_one_by_a_positive_semidefinite_matrix(name):
    excess = fisher_as_printed(member(name)) - fisher_by_hessian(name)
    assert np.linalg.eigvalsh(excess).min() > -1e-12 * np.abs(excess).max() - 1e-12
    if member(name).rank:  # they differ even at rank one
        assert np.linalg.norm(excess) > 0.1 * np.linalg.norm(fisher_by_hessian(name))


@pytest.mark.parametrize("damping", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("fisher", ["exact", "printed"])
@factor_families
def test_natural_gradient_of_a_factor_family_solves_the_dense_damped_system(name, fisher, damping):
    q = member(name)
    matrix = fisher_by_hessian(name) if fisher == "exact" else fisher_as_printed(q)
    gradient = tangent_at(q, 5)
    direction, info = natural_gradient(q, gradient, damping, fisher)
    damped = matrix + damping * np.diag(np.diag(matrix))
    exact = np.linalg.solve(damped, flat(gradient))
    np.testing.assert_allclose(flat(direction), exact, rtol=1e-6, atol=1e-8)
    assert info.residual < 1e-11


def test_natural_gradient_of_the_cholesky_family_is_the_dense_fisher_solve():
    q = member("cholesky")
    gradient = tangent_at(q, 6)
    exact = np.linalg.solve(fisher_by_hessian("cholesky"), flat(gradient))
    for damping in (0.0, 1.0):
        direction, info = natural_gradient(q, gradient, damping)
        np.testing.assert_allclose((1 + damping) * flat(direction), exact, rtol=1e-8, atol=1e-10)
        assert (info.iterations, info.residual) == (0, 0)


def test_one_full_natural_gradient_step_lands_on_a_gaussian_target():
    start, rng = member("cholesky"), np.random.default_rng(7)
    root, white = np.asarray(start.factor), 0.06 * rng.normal(size=(DIM, DIM))
    # Near enough that no bound of the retraction is active.
    mean = np.asarray(start.mean) + 0.3 * root @ rng.normal(size=DIM)
    covariance = root @ (np.eye(DIM) + white + white.T) @ root.T
    noise = OrthogonalDraws()(jax.random.key(0), DIM)
    gradient = eqx.filter_jit(gradient_towards)(start, mean, covariance, noise)
    q = start.retract(natural_gradient(start, gradient, 0.0)[0])
    np.testing.assert_allclose(q.covariance(), covariance, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(q.mean, mean, rtol=1e-10, atol=1e-11)


def test_any_root_of_the_covariance_gives_the_same_cholesky_family():
    root = np.random.default_rng(8).normal(size=(DIM, DIM))
    q = CholeskyGaussian.from_covariance_factor(jnp.zeros(DIM), jnp.asarray(root))
    np.testing.assert_allclose(q.factor, np.linalg.cholesky(root @ root.T), rtol=1e-9, atol=1e-11)


@factor_families
def test_a_factor_family_has_as_many_numbers_as_it_says(name):
    assert flat(member(name)).size == factor_size(DIM, member(name).rank)


# cost


def intermediate_sizes(jaxpr):
    """Sizes of everything computed on the way, inner programs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            if hasattr(inner, "eqns"):
                yield from intermediate_sizes(inner)


@pytest.mark.parametrize("fisher", ["exact", "printed"])
def test_natural_gradient_of_a_factor_family_makes_no_array_of_order_m_squared(fisher):
    m, p = 400, 3
    q = factor_gaussian(p, m)
    program = jax.make_jaxpr(lambda g: q.natural_gradient(g, 1.0, fisher, SolveOptions()))(q)
    sizes = list(intermediate_sizes(program.jaxpr))
    assert len(sizes) > 100  # the loop of the solver has been entered
    assert max(sizes) <= 20 * m * p
