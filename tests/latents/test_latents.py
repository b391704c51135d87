"""Effects integrated out and effects drawn, against dense algebra and numerical integrals.

The oracles see the raw table, groups in the order of their codes; they never see ``Rows``.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import log_expit, log_ndtr, logsumexp

from nghvi.data import Rows
from nghvi.latents import conjugate, drawn, integrate
from nghvi.latents.rows import conditional_mode
from nghvi.models import MixedModel, MixedParams
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity
from nghvi.priors import Priors
from nghvi.responses import Gaussian, Logit, Probit
from tests.oracles import marginal_facts

SIZES = np.array([3, 6, 1, 0, 4])
CODES = np.random.default_rng(0).permutation(np.repeat(np.arange(SIZES.size), SIZES))
X = np.column_stack([np.ones(CODES.size), np.random.default_rng(1).normal(size=CODES.size)])
Y = X @ [0.5, 0.8] + 1.5 * np.random.default_rng(2).normal(size=CODES.size)
NOISE_VAR = 0.6
EFFECTS = {1: [0.2], 2: [-0.3, 0.5, 0.1]}
"""Free parameters of Omega: log-Cholesky factor of its inverse."""
FINE = {1: 63, 2: 65}
"""Nodes at which quadrature is exact to ten digits here."""
GAUSSIAN, PROBIT, LOGIT = Gaussian(), Probit(), Logit()
LOG_CDF = {"probit": log_ndtr, "logit": log_expit}
"""log P(y = 1) of the binary responses, by scipy."""
BINARY = [(PROBIT, 1), (PROBIT, 2), (LOGIT, 2)]
both_sizes = pytest.mark.parametrize("r", [1, 2])


def cases(names, *values):
    return pytest.mark.parametrize(names, values, ids=lambda v: getattr(v, "name", None))


@functools.cache
def data_for(response):
    y = (Y > 0).astype(float) if response.classes else Y
    return Rows.from_arrays(X, y, CODES, SIZES.size)


@functools.cache
def model_for(response, r, num_nodes=None):
    return MixedModel(Identity(2), response, Priors(), tuple(range(r)), num_nodes=num_nodes)


def params_for(response, r):
    dispersion = jnp.log(jnp.full(response.num_dispersion, NOISE_VAR))
    return MixedParams((), jnp.array([0.4, -0.7]), dispersion, jnp.array(EFFECTS[r]))


def likelihood(model, params, data):
    """log p(y | theta) without the prior."""
    return jax.jit(lambda p, d: model.log_marginal(p, d) - model.log_prior(p))(params, data)


def lower_factor(r):
    lower = np.zeros((r, r))
    lower[np.tril_indices(r)] = EFFECTS[r]
    np.fill_diagonal(lower, np.exp(np.diag(lower)))
    return lower


def dense(r):
    """Residual, design of all effects (a group's side by side), prior and total covariance."""
    fixed = X @ np.asarray(params_for(GAUSSIAN, r).coef)
    indicator = np.eye(SIZES.size)[CODES]
    design = (indicator[:, :, None] * X[:, None, :r]).reshape(CODES.size, -1)
    omega = np.kron(np.eye(SIZES.size), np.linalg.inv(lower_factor(r) @ lower_factor(r).T))
    return Y - fixed, design, omega, design @ omega @ design.T + NOISE_VAR * np.eye(CODES.size)


# Gaussian response


@both_sizes
@pytest.mark.parametrize("reduce", [lambda model, rows: rows, prepare], ids=["rows", "statistics"])
def test_gaussian_log_marginal_is_the_dense_normal_density(r, reduce):
    model = model_for(GAUSSIAN, r)
    residual, _, _, covariance = dense(r)
    exact = stats.multivariate_normal(np.zeros(CODES.size), covariance).logpdf(residual)
    ours = likelihood(model, params_for(GAUSSIAN, r), reduce(model, data_for(GAUSSIAN)))
    np.testing.assert_allclose(ours, exact, rtol=1e-11)


@functools.cache
def gaussian_moments(r):
    """Conditional mean (k, r) and covariance (r, r, k), memory order."""
    compiled = jax.jit(lambda p, d: model_for(GAUSSIAN, r).effect_moments(jax.random.key(0), p, d))
    return tuple(np.asarray(a) for a in compiled(params_for(GAUSSIAN, r), data_for(GAUSSIAN)))


@both_sizes
def test_gaussian_effect_moments_are_those_of_the_dense_conditional(r):
    residual, design, omega, covariance = dense(r)
    gain = omega @ design.T @ np.linalg.inv(covariance)
    mean = (gain @ residual).reshape(-1, r)
    blocks = (omega - gain @ design @ omega).reshape(SIZES.size, r, SIZES.size, r)
    ours_mean, ours_covariance = gaussian_moments(r)
    order = np.asarray(data_for(GAUSSIAN).original_order)
    np.testing.assert_allclose(ours_mean[order], mean, atol=1e-12)
    for k, position in enumerate(order):
        np.testing.assert_allclose(ours_covariance[..., position], blocks[k, :, k], atol=1e-12)


@both_sizes
def test_log_joint_less_log_conditional_is_the_log_marginal_at_every_z(r):
    """The identity behind the ELBO; dropping p(z | theta) from it would break it."""
    model, params, data = model_for(GAUSSIAN, r), params_for(GAUSSIAN, r), data_for(GAUSSIAN)
    mean, covariance = gaussian_moments(r)
    z = 3 * np.random.default_rng(3).normal(size=(4, SIZES.size, r))
    marginal, joint = jax.jit(
        lambda p, z, d: (model.log_marginal(p, d), jax.vmap(lambda z: model.log_joint(p, z, d))(z))
    )(params, z, data)
    conditional = sum(
        stats.multivariate_normal(mean[k], covariance[..., k]).logpdf(z[:, k])
        for k in range(SIZES.size)
    )
    np.testing.assert_allclose(joint - conditional, marginal, rtol=1e-11)


# binary responses


def group_integral(response, r, k):
    """log int prod_i P(+-eta_i) N(u; 0, I) du for one group, by scipy or on a 2-d grid."""
    mine = k == CODES
    sign = np.where(Y[mine] > 0, 1.0, -1.0)
    offset = X[mine] @ np.asarray(params_for(response, r).coef)
    design = np.linalg.solve(lower_factor(r), X[mine, :r].T).T

    def log_integrand(u):
        eta = offset + u @ design.T
        rows = LOG_CDF[response.name](sign * eta)
        return rows.sum(axis=-1) + stats.norm.logpdf(u).sum(axis=-1)

    if r == 1:
        value = quad(lambda u: np.exp(log_integrand(np.array([u]))), -12, 12, epsabs=1e-13)[0]
        return np.log(value)
    axis = np.linspace(-9, 9, 161)
    points = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    return logsumexp(log_integrand(points)) + 2 * np.log(axis[1] - axis[0])


@functools.cache
def binary_facts(response, r, num_nodes):
    model = model_for(response, r, num_nodes)
    return marginal_facts(model, params_for(response, r), data_for(response))


@cases(("response", "r"), *BINARY)
def test_binary_log_marginal_is_the_numerical_integral(response, r):
    exact = sum(group_integral(response, r, k) for k in range(SIZES.size))
    np.testing.assert_allclose(binary_facts(response, r, FINE[r])[0], exact, rtol=1e-9)
    usual = model_for(response, r)
    coarse = likelihood(usual, params_for(response, r), data_for(response))
    np.testing.assert_allclose(coarse, exact, atol=2e-3)
    assert usual.refined().nodes > usual.nodes


@cases(("response", "r", "num_nodes"), *((p, r, FINE[r]) for p, r in BINARY), (PROBIT, 2, 1))
def test_binary_gradient_equals_central_differences(response, r, num_nodes):
    """With one node this is Laplace's approximation and its implicit derivative."""
    _, gradient, differences = binary_facts(response, r, num_nodes)
    np.testing.assert_allclose(gradient, differences, rtol=1e-7, atol=1e-8)


SEPARATED = Rows.from_arrays(np.ones((60, 1)), np.ones(60), np.zeros(60, int), 1)


def separated(scale, response=PROBIT, gibbs=None):
    """An intercept of this sd for a group of one class: common, and its conditional is skewed."""
    model = MixedModel(Identity(1), response, Priors(), (0,), gibbs=gibbs)
    return model, MixedParams((), jnp.zeros(1), jnp.zeros(0), jnp.log(1 / jnp.full(1, scale)))


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_mode_of_a_group_with_one_class_only_is_stationary(scale):
    model, params = separated(scale)
    problem = model.row_problem(params, SEPARATED)
    gradient, curvature = jax.jit(lambda p: p.derivatives(conditional_mode(p).effects))(problem)
    assert abs(gradient[0, 0]) < 1e-6 * np.sqrt(curvature[0, 0, 0])


# samplers


@functools.cache
def whitened_problem(response):
    """Two effects per group, and their exact conditional mean and covariance."""
    problem = model_for(response, 2).row_problem(params_for(response, 2), data_for(response))
    return problem, jax.jit(lambda p: integrate.moments(p, FINE[2]))(problem)


def z_scores(values, exact):
    """Of means over draws (leading axis), standard errors from 100 batch means."""
    batches = np.asarray(values).reshape(100, -1, *np.shape(exact)).mean(axis=1)
    error = batches.std(axis=0, ddof=1) / np.sqrt(len(batches))
    return np.abs(batches.mean(axis=0) - exact) / error


def assert_effects_agree(draws, mean, covariance):
    """Means and second moments of effects (draws, r, k): 25 comparisons of a whole problem, at
    4.5 standard errors (t with 99 degrees of freedom, 1.9e-5 each): false alarm rate 5e-4."""
    deviation = np.asarray(draws) - mean
    assert z_scores(deviation, np.zeros_like(mean)).max() < 4.5
    products = deviation[:, :, None] * deviation[:, None]
    assert z_scores(products, covariance).max() < 4.5


@cases(("response", "gibbs"), (PROBIT, True), (LOGIT, True), (PROBIT, False))
def test_long_runs_have_the_conditional_moments_of_the_effects(response, gibbs):
    problem, exact = whitened_problem(response)

    def move(key, problem, u):
        if gibbs:
            return response.gibbs(key, problem, u, 1)
        # Starts afresh; after 12 steps what is left of the start is far below the noise here.
        return drawn.sample(key, problem, drawn.make_proposal(problem, 7), 12)

    @jax.jit
    def chain(problem, start, keys):
        return jax.lax.scan(lambda u, key: (move(key, problem, u),) * 2, start, keys)[1]

    draws = chain(problem, exact[0], jax.random.split(jax.random.key(1), 10_000))
    assert_effects_agree(draws, *exact)


@cases(("response", "gibbs"), (PROBIT, None), (PROBIT, 1), (LOGIT, 1))
def test_one_application_of_the_sampler_leaves_exact_draws_exact(response, gibbs):
    """What a model promises of ``sample_latents``; two comparisons, false alarm rate 4e-5."""
    model, params = separated(3.0, response, gibbs)
    grid = np.linspace(-5, 20, 20_001)
    log_density = 60 * LOG_CDF[response.name](grid) - grid**2 / 18
    weight = np.exp(log_density - logsumexp(log_density))
    mean, start = weight @ grid, np.random.default_rng(5).choice(grid, (10_000, 1, 1), p=weight)
    variance = weight @ (grid - mean) ** 2
    keys = jax.random.split(jax.random.key(6), len(start))
    one = jax.jit(lambda key, z: model.sample_latents(key, params, z, SEPARATED))
    draws = jax.lax.map(lambda pair: one(*pair), (keys, start))
    assert_effects_agree(draws, np.full((1, 1), mean), np.full((1, 1, 1), variance))


def test_conjugate_draws_have_the_conditional_moments():
    @jax.jit
    def compute(params, data, keys):
        conditional = model_for(GAUSSIAN, 2).conditional(params, data)
        draws = jax.vmap(lambda key: conjugate.sample(key, conditional).T)(keys)
        mean, covariance = conjugate.moments(conditional)
        return draws, mean.T, covariance

    keys = jax.random.split(jax.random.key(3), 10_000)
    assert_effects_agree(*compute(params_for(GAUSSIAN, 2), data_for(GAUSSIAN), keys))
