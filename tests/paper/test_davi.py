"""DAVI: closed forms against dense algebra and autodiff, fits against the log evidence.

Seeds are fixed. Monte Carlo comparisons allow five standard errors: with new seeds each of the
three would fail with probability 6e-7.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from nghvi._core.model import initial_theta, unraveller
from nghvi._linalg.lowrank import pack_lower, unpack_lower
from nghvi.data import Rows
from nghvi.data.scaling import Scaling
from nghvi.inference import infer
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity, Perceptron
from nghvi.paper.methods import snngm
from nghvi.paper.methods.davi import (
    ELBO_PAIRS,
    davi,
    davi_start,
    effects_from_locals,
    local_kl,
    log_target,
)
from nghvi.paper.methods.snngm import Block
from nghvi.posterior.mixed_posterior import MixedPosterior, Named
from nghvi.posterior.predictive import predict
from nghvi.posterior.request import Request
from nghvi.priors import InverseGamma, Priors, WishartPrecision
from nghvi.responses import Gaussian, Probit

KEY = jax.random.key(0)
STANDARD_ERRORS = 5.0


def simulate(num_groups, size, columns, seed, kink, noise):
    """Unequal groups, rows in random order: memory order differs from that of the codes."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(size, size + 2, num_groups)
    codes = rng.permutation(np.repeat(np.arange(num_groups), sizes))
    x = np.column_stack([np.ones(codes.size), rng.normal(size=(codes.size, columns - 1))])
    eta = x @ np.linspace(1.0, -0.5, columns) + rng.normal(size=num_groups)[codes]
    return x, eta + kink * np.maximum(x[:, -1], 0) + noise * rng.normal(size=codes.size), codes


X, Y, CODES = simulate(30, 20, 3, seed=0, kink=1.0, noise=0.7)
ROWS = Rows.from_arrays(X, Y, CODES, 30)
# Published steps grow with the number of groups, and with them the distance at which they hover.
MANY = Rows.from_arrays(*simulate(150, 6, 3, seed=0, kink=0.0, noise=0.1), 150)
LINEAR = MixedModel(Identity(3), Gaussian(), Priors(effects=InverseGamma()), (0,))
SLOPES = MixedModel(Identity(3), Gaussian(), Priors(effects=WishartPrecision(0.1)), (0, 2))
NETWORK = MixedModel(
    Perceptron(3, (2,)),
    Gaussian(),
    Priors(effects=WishartPrecision(0.1), weight_sd=3.0),
    (0, 1, 2),
)


def random_block(seed, dim, *batch):
    """Factors with diagonals of either sign."""
    rng = np.random.default_rng(seed)
    lower = np.tril(np.ones((dim, dim))).reshape(dim, dim, *(1 for _ in batch))
    eye = np.eye(dim).reshape(lower.shape)
    factor = lower * rng.normal(size=(dim, dim, *batch)) + 1.5 * eye
    return Block(jnp.asarray(rng.normal(size=(dim, *batch))), jnp.asarray(factor))


def fisher(mean, factor):
    """Hessian of KL(q || q') in the free parameters of q', at q' = q."""
    dim = mean.size

    def divergence(free):
        other = unpack_lower(free[dim:], dim, dim)
        ratio = solve_triangular(other, factor, lower=True)
        shift = solve_triangular(other, mean - free[:dim], lower=True)
        log_det = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(other))))
        return 0.5 * (jnp.sum(ratio**2) + shift @ shift) + log_det

    return jax.hessian(divergence)(jnp.concatenate([mean, pack_lower(factor)]))


@jax.jit
def dense_natural_gradient(mean, factor, noise, slope):
    """F^-1 times the path gradient of the ELBO."""
    residual = slope + jnp.linalg.solve(factor.T, noise)
    gradient = jnp.concatenate([residual, pack_lower(jnp.outer(residual, noise))])
    return jnp.linalg.solve(fisher(mean, factor), gradient)


def free(block):
    return jnp.concatenate([block.mean, pack_lower(block.factor)])


def test_natural_gradients_solve_the_fisher_system():
    rng = np.random.default_rng(1)
    block, (noise, slope) = random_block(0, 5), jnp.asarray(rng.normal(size=(2, 5)))
    found = block.push(block.natural_gradient(noise, slope))
    np.testing.assert_allclose(free(found), dense_natural_gradient(*block, noise, slope), rtol=1e-8)
    block, (noise, slope) = random_block(2, 3, 4), jnp.asarray(rng.normal(size=(2, 3, 4)))
    found = block.push(block.natural_gradient(noise, slope))
    for k in range(4):
        own = Block(block.mean[:, k], block.factor[..., k])
        expected = dense_natural_gradient(*own, noise[:, k], slope[:, k])
        one = Block(found.mean[:, k], found.factor[..., k])
        np.testing.assert_allclose(free(one), expected, rtol=1e-8)
        assert not np.any(np.triu(one.factor, 1))


def test_draws_densities_and_divergences_of_a_block():
    block, noise = random_block(3, 4), jnp.array([0.3, -1.0, 0.7, 0.2])
    np.testing.assert_allclose(block.transport(noise), block.mean + block.factor @ noise)
    covariance = block.factor @ block.factor.T
    density = jax.scipy.stats.multivariate_normal.logpdf(
        block.transport(noise), block.mean, covariance
    )
    np.testing.assert_allclose(block.log_density(noise), density)
    expected = 0.5 * (
        jnp.trace(covariance) + block.mean @ block.mean - 4 - jnp.linalg.slogdet(covariance)[1]
    )
    one = Block(block.mean[:, None], block.factor[..., None])
    np.testing.assert_allclose(local_kl(one), [expected])
    assert (block.size, random_block(0, 3, 7).size) == (14, 63)


def test_the_corrected_step_is_the_retraction_and_keeps_signs():
    block, rng = random_block(4, 4), np.random.default_rng(5)
    noise, slope = jnp.asarray(10 * rng.normal(size=(2, 4)))
    direction = block.natural_gradient(noise, slope)
    change = block.push(direction)
    tangent = np.linalg.solve(block.factor, change.factor) / np.linalg.norm(free(change))
    middle = np.tril(2.0 * tangent, -1) + np.diag(np.exp(2.0 * np.diag(tangent)))
    # The first average of a bias corrected momentum is the direction itself.
    start = snngm.init((block,), False)
    (moved,), _, norm = snngm.step((block,), (direction,), start, 2.0, False)
    np.testing.assert_allclose(moved.factor, block.factor @ middle, atol=1e-12)
    np.testing.assert_allclose(moved.mean, block.mean + 2.0 * change.mean / norm)
    assert np.array_equal(np.sign(moved.diagonal), np.sign(block.diagonal))


def test_published_steps_are_the_recursion_over_all_blocks():
    blocks, rng = (random_block(6, 3), random_block(7, 2, 5)), np.random.default_rng(8)
    state, length = snngm.init(blocks, True), 0.05
    position, momentum = ravel_pytree(blocks)[0], 0.0
    for t in range(1, 4):
        directions = tuple(
            b.natural_gradient(*jnp.asarray(rng.normal(size=(2, *b.mean.shape)))) for b in blocks
        )
        pushed = tuple(b.push(d) for b, d in zip(blocks, directions, strict=True))
        natural = ravel_pytree(pushed)[0]
        momentum = 0.9 * momentum + 0.1 * natural / jnp.linalg.norm(natural)
        position = position + length * momentum / (1 - 0.9**t)
        blocks, state, _ = snngm.step(blocks, directions, state, length, True)
        np.testing.assert_allclose(ravel_pytree(blocks)[0], position, rtol=1e-12)


@pytest.mark.parametrize("model", [SLOPES, NETWORK])
def test_the_target_is_the_joint_density_with_its_jacobian(model):
    rng, data = np.random.default_rng(9), prepare(model, ROWS)
    start, unravel, r = initial_theta(KEY, model, ROWS), unraveller(model, ROWS), model.num_effects
    theta = start + 0.3 * jnp.asarray(rng.normal(size=(5, start.size)))
    standardised = jnp.asarray(rng.normal(size=(5, r, 30)))

    def both(theta, standardised):
        params = unravel(theta)
        effects, log_det = effects_from_locals(model, params, standardised, data)
        joint = model.log_joint(params, effects, ROWS)
        return log_target(theta, standardised, model, data), joint + log_det, log_det

    found, expected, log_det = jax.jit(jax.vmap(both))(theta, standardised)
    np.testing.assert_allclose(found, expected, rtol=1e-11)

    @jax.jit
    def jacobian(a):
        def mapped(a):
            return effects_from_locals(model, unravel(theta[0]), a.reshape(r, 30), data)[0].ravel()

        return jax.jacfwd(mapped)(a.ravel())

    _, by_autodiff = np.linalg.slogdet(jacobian(standardised[0]))
    np.testing.assert_allclose(by_autodiff, log_det[0], rtol=1e-10)


def test_the_start_is_the_published_one():
    linear, network = davi_start(LINEAR, ROWS, 0), davi_start(NETWORK, ROWS, 0)
    np.testing.assert_array_equal(linear.theta.factor, np.eye(5))
    np.testing.assert_array_equal(network.locals.factor[..., 7], 0.1 * np.eye(3))
    np.testing.assert_array_equal(linear.theta.mean, 0.01)
    assert not np.any(network.locals.mean)


@pytest.fixture(scope="module")
def evidence():
    return infer(LINEAR, prepare(LINEAR, MANY)).log_evidence


def test_corrected_steps_reach_the_evidence_and_published_ones_stay_below(evidence):
    corrected, published = (davi(LINEAR, MANY, legacy=legacy) for legacy in (False, True))
    found = corrected.inference
    assert evidence - 0.3 < found.elbo <= evidence + STANDARD_ERRORS * found.elbo_se
    assert np.all(np.diagonal(found.q.factor) > 0)
    assert corrected.local_kl.sum() < 0.01
    below = published.inference
    assert below.elbo < found.elbo - STANDARD_ERRORS * below.elbo_se
    assert not below.converged
    assert below.verdict.mean_error > found.verdict.mean_error
    trace = found.run.traces[0][1]
    assert trace.log_target.shape == (10_000,)
    # The noisy ELBO ends where the ELBO is; 1000 steps make its mean good to 0.1.
    noisy = (trace.log_target - trace.log_q)[-1000:].mean()
    assert noisy == pytest.approx(found.elbo, abs=0.3)


@pytest.fixture(scope="module")
def network():
    seen = []
    fit = davi(NETWORK, ROWS, steps=250, progress=lambda *report: seen.append(report[:3]))
    assert seen == [("davi", 100, 250), ("davi", 200, 250), ("davi", 250, 250)]
    return fit


def test_the_elbo_is_that_of_the_whole_family(network):
    """Against plain draws of theta and locals and the joint density of rows and effects."""
    found, rng = network.inference, np.random.default_rng(10)
    assert network.local_kl.sum() > 10  # far from the optimum, so that it matters
    data, unravel = found.data, unraveller(NETWORK, found.data)
    memory = np.argsort(data.original_order)
    locals_ = Block(
        jnp.asarray(network.local_mean[memory].T),
        jnp.asarray(np.moveaxis(network.local_factor[memory], 0, -1)),
    )
    theta_block = Block(found.q.mean, found.q.factor)

    def ratio(noise):
        z, local = noise
        params, a = unravel(theta_block.transport(z)), locals_.transport(local)
        effects, log_det = effects_from_locals(NETWORK, params, a, data)
        log_q = theta_block.log_density(z) + locals_.log_density(local)
        return NETWORK.log_joint(params, effects, data) + log_det - log_q

    draws = (rng.normal(size=(2000, found.q.dim)), rng.normal(size=(2000, 3, 30)))
    ratios = np.asarray(jax.lax.map(ratio, jax.tree.map(jnp.asarray, draws), batch_size=100))
    noise = np.hypot(ratios.std() / np.sqrt(ratios.size), found.elbo_se)
    assert abs(ratios.mean() - found.elbo) < STANDARD_ERRORS * noise


def test_a_network_predicts(network):
    found = network.inference
    assert not found.converged
    assert np.isfinite([found.elbo, found.elbo_se, found.log_evidence]).all()
    assert found.pool.theta.shape == (4 * ELBO_PAIRS, found.q.dim)
    names = Named(("intercept", "h1", "h2"), ("intercept", "h1", "h2"), np.arange(30))
    posterior = MixedPosterior(found, Scaling.none(3), names)
    predicted = predict(posterior, Request(X, CODES, True, 100, 0), Y)
    assert np.isfinite(np.stack(predicted)).all()
    assert np.mean((Y - predicted.mean) ** 2) < np.var(Y)


def test_equal_seeds_give_equal_fits(network):
    again = davi(NETWORK, ROWS, steps=250).inference
    assert again.elbo == network.inference.elbo
    assert davi(NETWORK, ROWS, steps=250, seed=1).inference.elbo != again.elbo


def test_what_it_cannot_do_is_said():
    binary = Rows.from_arrays(X, (Y > 0) * 1.0, CODES, 30)
    with pytest.raises(ValueError, match="Probit"):
        davi(MixedModel(Identity(3), Probit(), Priors(), (0,)), binary)
    with pytest.raises(ValueError, match="steps"):
        davi(LINEAR, ROWS, steps=0)
