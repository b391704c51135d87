"""NAGVAC: its parts against dense algebra and quadrature.

Seeds are fixed. Comparisons of averages state how often new seeds would fail them.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from nghvi._core.model import parameter_dimension, unraveller
from nghvi.data import Rows
from nghvi.families import FactorGaussian
from nghvi.models import MixedModel
from nghvi.networks import Identity, Perceptron
from nghvi.paper.methods.nagvac_step import (
    DAMPING,
    Ridge,
    block_diagonal,
    dependent_normals,
    entropy_gradient,
    exact,
    likelihood_score,
    predictive_loss,
    program_solve,
    sobol_normals,
    start,
)
from nghvi.priors import InverseGamma, Priors
from nghvi.responses import Gaussian, Logit
from tests.contracts.test_variational import fisher_as_printed, fisher_by_hessian, flat, tangent_at
from tests.registry import factor_gaussian

DIAGONAL = Priors(effects=InverseGamma(), weight_sd=10.0)
SIZES = np.array([5, 9, 0, 7, 4, 6, 5])


def simulate(sizes, seed=0, *, binary=True):
    """Intercept, two columns; the intercept and the first slope vary."""
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(sizes.size), sizes))
    x = np.column_stack([np.ones(codes.size), rng.normal(size=(codes.size, 2))])
    effects = rng.normal(size=(sizes.size, 2)) * [0.8, 0.5]
    eta = x @ [0.3, 1.0, -0.7] + np.sum(x[:, :2] * effects[codes], axis=1)
    noise = rng.logistic(size=codes.size) if binary else 0.5 * rng.normal(size=codes.size)
    y = (noise < eta).astype(float) if binary else eta + noise
    return x, y, codes


def rows_of(x, y, codes, keep=slice(None)):
    return Rows.from_arrays(x[keep], y[keep], codes[keep], codes.max() + 1)


LOGIT = MixedModel(Identity(3), Logit(), DIAGONAL, (0, 1), num_nodes=25)
LINEAR = MixedModel(Identity(3), Gaussian(), DIAGONAL, (0, 1))
THETA = jnp.array([0.2, 0.8, -0.5, -0.3, -1.2])


# natural gradients

FACTORS = {
    "even": lambda: factor_gaussian(1),
    # One coordinate has nearly all of the leverage: there the plain splitting divides by v < 0.
    "uneven": lambda: eqx.tree_at(
        lambda q: q.packed_loadings,
        factor_gaussian(1),
        factor_gaussian(1).packed_loadings.at[2].mul(20),
    ),
    "balanced": lambda: FactorGaussian.start(jnp.zeros(2), jnp.ones(2), 1, 30.0),
}


@pytest.mark.parametrize("name", FACTORS)
def test_block_diagonal_natural_gradient_solves_each_block_of_the_published_matrix(name):
    q = FACTORS[name]()
    m, gradient = q.dim, flat(tangent_at(q, 3))
    matrix = fisher_as_printed(q)
    blocks = [slice(i * m, (i + 1) * m) for i in range(3)]
    dense = [np.linalg.solve(matrix[b, b], gradient[b]) for b in blocks]
    direction = flat(block_diagonal(q, tangent_at(q, 3)))
    np.testing.assert_allclose(direction, np.concatenate(dense), rtol=1e-8)


@pytest.mark.parametrize("damping", [0.0, DAMPING])
def test_exact_natural_gradient_solves_the_whole_fisher_matrix(damping):
    q = factor_gaussian(1)
    gradient, matrix = tangent_at(q, 4), fisher_by_hessian("factor-1")
    dense = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), flat(gradient))
    direction = flat(jax.jit(functools.partial(exact, damping=damping))(q, gradient))
    np.testing.assert_allclose(direction, dense, rtol=1e-6, atol=1e-8)


def test_entropy_gradient_is_half_that_of_the_log_determinant():
    q = factor_gaussian(1)
    automatic = jax.grad(lambda q: 0.5 * jnp.linalg.slogdet(q.covariance())[1])(q)
    np.testing.assert_allclose(flat(entropy_gradient(q)), flat(automatic), rtol=1e-10, atol=1e-12)


# the gradient of the likelihood


SHIFTS = 40


@functools.cache
def score(number, from_prior=False, linear=False):
    """Estimates of log p(y | theta) and its gradient by many shifts, and the exact values."""
    model, rows = (LINEAR if linear else LOGIT), rows_of(*simulate(SIZES, binary=not linear))
    theta = jnp.insert(THETA, 3, -1.0) if linear else THETA
    unravel = unraveller(model, rows)

    @jax.jit
    def compute(theta):
        def log_likelihood(theta):
            params = unravel(theta)
            return model.log_marginal(params, rows) - model.log_prior(params)

        keys = jax.random.split(jax.random.key(1), SHIFTS)
        return (
            jax.lax.map(
                lambda key: likelihood_score(key, theta, model, rows, number, from_prior), keys
            ),
            jax.value_and_grad(log_likelihood)(theta),
        )

    return jax.tree.map(np.asarray, compute(theta))


@pytest.mark.parametrize(
    "case",
    [{"number": 512}, {"number": 2048, "from_prior": True}, {"number": 512, "linear": True}],
    ids=["laplace", "prior", "gaussian"],
)
def test_likelihood_gradient_is_that_of_quadrature(case):
    """Means over shifts, five standard errors allowed: the bias of order 1 / N is far less.

    A t with 39 degrees of freedom exceeds five with probability 1.2e-5; 16 comparisons are made.
    """
    (_, slopes), (_, exact_slope) = score(**case)
    errors = slopes.std(axis=0, ddof=1) / np.sqrt(SHIFTS)
    assert errors.max() < 0.05  # gradients are of order 1 to 16: the comparison says something
    assert (np.abs(slopes.mean(axis=0) - exact_slope) < 5 * errors).all()


def test_the_proposal_of_a_gaussian_response_is_its_exact_conditional():
    """All weights are equal: any draws give log p(y | theta) without error."""
    (values, _), (exact_value, _) = score(512, linear=True)
    np.testing.assert_allclose(values, exact_value, rtol=1e-9)


def test_draws_are_rows_of_the_sobol_points():
    """Independent coordinates: sums over them have the variance of independent normals.

    Bounds are ten standard deviations of what they bound, measured over twenty keys.
    """
    noise = np.asarray(sobol_normals(jax.random.key(0), 20, (6, 4000)))
    assert noise.shape == (20, 6, 4000)
    np.testing.assert_allclose(noise.mean(), 0, atol=0.008)
    np.testing.assert_allclose(noise.var(), 1, atol=0.008)
    np.testing.assert_allclose(noise.sum(axis=1).var() / 6, 1, atol=0.041)


def test_the_coordinates_of_the_programs_draws_are_normal_but_dependent():
    """The first two lie in different halves of the interval, else independent: by hand -2 / pi."""
    noise = np.asarray(dependent_normals(jax.random.key(0), 20, (6, 4000)))
    assert noise.shape == (20, 6, 4000)
    np.testing.assert_allclose(noise.mean(), 0, atol=0.008)
    np.testing.assert_allclose(noise.var(), 1, atol=0.008)
    assert 0.1 < noise.sum(axis=1).var() / 6 < 0.2
    first, second = noise[:, 0].ravel(), noise[:, 1].ravel()
    np.testing.assert_allclose(np.corrcoef(first, second)[0, 1], -2 / np.pi, atol=0.03)


def test_the_programs_solution_is_right_for_the_mean_only():
    q = factor_gaussian(1)
    m, gradient = q.dim, flat(tangent_at(q, 4))
    dense = np.linalg.solve(fisher_by_hessian("factor-1"), gradient)
    found = flat(program_solve(q, tangent_at(q, 4)))
    np.testing.assert_allclose(found[:m], dense[:m], rtol=1e-7)
    assert np.linalg.norm(found[m:] - dense[m:]) > 0.1 * np.linalg.norm(dense[m:])


# the prior and the start


def test_the_prior_shrinks_weights_and_coefficients_but_no_biases():
    model = MixedModel(Perceptron(2, (3, 2)), Gaussian(), DIAGONAL, (0, 1, 2))
    rows = rows_of(*simulate(SIZES, binary=False))
    rows = eqx.tree_at(lambda r: r.x, rows, rows.x[:, 1:])
    ridge = Ridge.of(model, rows)
    theta = np.random.default_rng(0).normal(size=parameter_dimension(model, rows))
    params = unraveller(model, rows)(jnp.asarray(theta))
    weights = sum(float(jnp.sum(w[:, 1:] ** 2)) for w in params.weights)
    coef = float(jnp.sum(params.coef[1:] ** 2))
    variances = np.exp(np.asarray(params.effects))
    # density of v times dv / dt = v
    expected = -0.5 * (7 * weights + 3 * coef) + np.sum(np.log(variances) - 0.1 * variances)
    value = ridge.log_prior(jnp.asarray(theta), jnp.array([7.0, 3.0]))
    np.testing.assert_allclose(value, expected, rtol=1e-12)

    q = start(jax.random.key(0), model, rows)
    means, spreads = (unraveller(model, rows)(x) for x in (q.mean, q.standard_deviation()))

    def square(pick):
        return sum(float(jnp.sum(x**2)) for p in (means, spreads) for x in pick(p))

    adapted = ridge.adapt(q)
    np.testing.assert_allclose(adapted[0], 12 / square(lambda p: [w[:, 1:] for w in p.weights]))
    np.testing.assert_allclose(adapted[1], 2 / square(lambda p: [p.coef[1:]]))


def test_a_linear_model_has_a_flat_intercept_and_nothing_to_shrink_where_there_is_none():
    rows = rows_of(*simulate(SIZES))
    ridge = Ridge.of(LOGIT, rows)
    np.testing.assert_array_equal(ridge.shrunk, [[0, 0, 0, 0, 0], [0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(ridge.variances, [0, 0, 0, 1, 1])
    adapted = ridge.adapt(start(jax.random.key(0), LOGIT, rows))
    assert adapted[0] == 0  # no weights: no precision, and no division by zero


# the loss


def test_the_loss_uses_the_mode_of_each_group_given_its_training_rows():
    x, y, codes = simulate(np.array([6, 12, 3, 9, 4]), seed=2)
    train = np.arange(codes.size) % 3 > 0
    rows, validation = rows_of(x, y, codes, train), rows_of(x, y, codes, ~train)
    coef, variance = np.asarray(THETA[:3]), np.exp(np.asarray(THETA[3:]))

    def negative(effects, chosen):
        eta = x[chosen] @ coef + x[chosen, :2] @ effects
        return np.sum(np.logaddexp(0, -(2 * y[chosen] - 1) * eta))

    total = 0.0
    for k in range(5):
        mine = codes == k
        mode = minimize(
            lambda a, mine=mine: negative(a, mine & train) + 0.5 * np.sum(a**2 / variance),
            np.zeros(2),
            tol=1e-10,
        ).x
        total += negative(mode, mine & ~train)
    loss = predictive_loss(THETA, LOGIT, rows, validation)
    np.testing.assert_allclose(loss, total / np.sum(~train), rtol=1e-6)
