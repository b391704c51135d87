"""The Student-t response and its kernels against scipy and brute-force integration.

The fits are in ``test_student_t_fit``; the contract of all responses in ``test_responses``.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from nghvi._special import t_cdf
from nghvi.data import LinearStatistics, Rows
from nghvi.data.grouped import CellRows
from nghvi.latents.augment import draw_precision, sample_gamma
from nghvi.latents.rows import conditional_mode, newton_step
from nghvi.models import MixedModel, MixedParams
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity, Perceptron
from nghvi.paper.methods.gibbs import gibbs
from nghvi.paper.methods.sweep import State, _reweigh
from nghvi.priors import Gamma, InverseGamma, PriorError, Priors
from nghvi.responses import StudentT
from nghvi.responses.student_t import NoiseLaw
from tests.oracles import marginal_facts

STUDENT = StudentT()
LAWS = [(0.3, 2.05), (1.7, 3.3), (0.9, 11.0), (1.0, 400.0)]
"""sigma and nu."""


def dispersion(sigma, nu):
    return NoiseLaw(jnp.asarray(sigma**2), jnp.asarray(nu)).dispersion()


@pytest.mark.parametrize(("sigma", "nu"), LAWS)
def test_density_and_cdf_are_those_of_scipy(sigma, nu):
    y = np.concatenate([-np.geomspace(1e3, 1e-3, 40), [0.0], np.geomspace(1e-3, 1e3, 40)])
    law, at = stats.t(nu, 0.4, sigma), dispersion(sigma, nu)
    np.testing.assert_allclose(STUDENT.log_prob(y, 0.4, at), law.logpdf(y), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(STUDENT.cdf(y, 0.4, 0.0, at), law.cdf(y), atol=1e-7)
    np.testing.assert_allclose(STUDENT.moments(jnp.zeros(1), 0.0, at)[1], law.var(), rtol=1e-9)
    reported = STUDENT.reported(at, 10.0)
    np.testing.assert_allclose([reported["noise_scale"], reported["degrees"]], [10 * sigma, nu])


def test_the_cdf_goes_over_into_the_normal_s():
    x = np.linspace(-12, 12, 49)
    np.testing.assert_allclose(t_cdf(x, jnp.asarray(1e9)), stats.norm.cdf(x), atol=1e-7)


def expectation(values, sigma, nu):
    """Means of functions of y at equally probable points; y = 0 is the centre."""
    y = stats.t(nu, 0, sigma).ppf((np.arange(200_000) + 0.5) / 200_000)
    return np.mean(values(jnp.asarray(y)), axis=0)


@pytest.mark.parametrize(("sigma", "nu"), LAWS[1:3])
def test_coordinates_are_orthogonal_and_the_curvature_is_the_information(sigma, nu):
    at = dispersion(sigma, nu)
    score = jax.vmap(jax.grad(lambda d, y: STUDENT.log_prob(y, 0.0, d)), (None, 0))

    def products(y):
        slopes = score(at, y)
        return np.asarray(slopes[:, :, None] * slopes[:, None])

    information = expectation(products, sigma, nu)
    assert abs(information[0, 1]) < 1e-3 * np.sqrt(information[0, 0] * information[1, 1])
    curvature = expectation(lambda y: -np.asarray(STUDENT.slopes(y, 0.0, at)[1]), sigma, nu)
    np.testing.assert_allclose(curvature, (nu + 1) / (nu + 3) / sigma**2, rtol=1e-4)


def test_the_prior_is_that_of_scale_and_degrees():
    """By change of variables: the densities of scipy times a numerical Jacobian."""
    priors = Priors(noise=InverseGamma(1.5, 0.4), degrees=Gamma(3.0, 0.2))

    def natural(d):
        law = NoiseLaw.of(d)
        return jnp.stack([law.variance, law.degrees])

    for at in ([-0.7, 0.3], [0.4, 2.0], [1.0, -1.5]):
        variance, nu = np.asarray(natural(jnp.asarray(at)))
        jacobian = np.linalg.det(jax.jacfwd(natural)(jnp.asarray(at)))
        exact = stats.invgamma(1.5, scale=0.4).logpdf(variance)
        exact += stats.gamma(3.0, scale=5.0).logpdf(nu - 2) + np.log(abs(jacobian))
        np.testing.assert_allclose(STUDENT.log_prior(jnp.asarray(at), priors), exact, rtol=1e-10)
    with pytest.raises(PriorError, match=r"Gamma\(rate=0\)"):
        Gamma(2.0, 0)
    with pytest.raises(PriorError, match=r"degrees=4.*Gamma\(shape, rate\)"):
        Priors(degrees=4)


def test_standardisation_does_not_measure_outliers():
    y = np.concatenate([np.linspace(-1, 1, 99), [1e6]])
    assert STUDENT.typical(y).max() < 5
    np.testing.assert_array_equal(STUDENT.typical(y[:99]), y[:99])
    constant = np.array([0.0] * 9 + [3.0])
    np.testing.assert_array_equal(STUDENT.typical(constant), constant)


def test_gamma_draws():
    """Four Kolmogorov-Smirnov tests at level 1e-4 (false alarm rate 4e-4), and independence:
    correlations at lags 1 to 5 within 4.5 standard errors (2e-4)."""
    draw = jax.jit(lambda key, shape: sample_gamma(key, shape, (300, 200)))
    for shape in (1.0, 1.5, 3.0, 1000.0):
        drawn = np.asarray(draw(jax.random.key(0), jnp.asarray(shape))).ravel()
        assert stats.kstest(drawn, stats.gamma(shape).cdf).pvalue > 1e-4
        z = (drawn - drawn.mean()) / drawn.std()
        lags = [np.mean(z[k:] * z[:-k]) for k in range(1, 6)]
        assert np.abs(lags).max() < 4.5 / np.sqrt(drawn.size)
    one = jax.jit(lambda key: sample_gamma(key, jnp.asarray(1.0), ()))(jax.random.key(1))
    assert one.shape == ()


# effects

SIZES = np.array([3, 6, 1, 0, 4])
CODES = np.random.default_rng(0).permutation(np.repeat(np.arange(SIZES.size), SIZES))
X = np.column_stack([np.ones(CODES.size), np.random.default_rng(1).normal(size=CODES.size)])
Y = X @ [0.5, 0.8] + np.random.default_rng(2).standard_t(2.5, size=CODES.size)
Y[np.flatnonzero(CODES == 4)[0]] += 9.0  # a second mode of this group's conditional
SIGMA, NU = 0.8, 3.2
EFFECTS = {1: [0.2], 2: [-0.3, 0.5, 0.1]}
DATA = Rows.from_arrays(X, Y, CODES, SIZES.size)


def params_for(r):
    coef, effects = jnp.array([0.4, -0.7]), jnp.array(EFFECTS[r])
    return MixedParams((), coef, dispersion(SIGMA, NU), effects)


def model_for(r, num_nodes=None):
    return MixedModel(Identity(2), STUDENT, Priors(), tuple(range(r)), num_nodes=num_nodes)


@functools.cache
def brute_force(r, k):
    """log p(y_k | theta), and mean and covariance of the whitened effects, on a grid."""
    lower = np.zeros((r, r))
    lower[np.tril_indices(r)] = EFFECTS[r]
    np.fill_diagonal(lower, np.exp(np.diag(lower)))
    axis = np.linspace(-9, 9, 601)
    points = np.stack(np.meshgrid(*[axis] * r, indexing="ij"), -1).reshape(-1, r)
    mine = k == CODES
    eta = X[mine] @ [0.4, -0.7] + points @ np.linalg.solve(lower, X[mine, :r].T)
    log_value = stats.t(NU, eta, SIGMA).logpdf(Y[mine]).sum(axis=1)
    log_value += stats.norm.logpdf(points).sum(axis=1)
    value = logsumexp(log_value)
    weight = np.exp(log_value - value)
    mean = weight @ points
    covariance = (weight[:, None] * (points - mean)).T @ (points - mean)
    return value + r * np.log(axis[1] - axis[0]), mean, covariance


@pytest.mark.parametrize(("r", "fine"), [(1, 63), (2, 31)])
def test_log_marginal_is_the_integral_and_its_gradient_the_differences(r, fine):
    value, gradient, differences = marginal_facts(model_for(r, fine), params_for(r), DATA)
    exact = sum(brute_force(r, k)[0] for k in range(SIZES.size))
    np.testing.assert_allclose(value, exact, atol=2e-5)
    # The nodes are held while differentiating, so what their grid misses is in the difference.
    np.testing.assert_allclose(gradient, differences, rtol=1e-4, atol=2e-4)


@functools.cache
def problem():
    return model_for(2).row_problem(params_for(2), DATA)


def test_modes_are_stationary_and_no_step_leads_downhill():
    @jax.jit
    def climb(p):
        def move(u, _):
            return u + newton_step(p, u).step, p.log_prob(u)

        heights = jax.lax.scan(move, jnp.full((2, SIZES.size), 4.0), None, 30)[1]
        return heights, p.derivatives(conditional_mode(p).effects)[0]

    heights, gradient = climb(problem())
    assert np.all(np.diff(heights, axis=0) > -1e-9)
    assert np.abs(gradient).max() < 1e-5


def test_gibbs_sweeps_have_the_conditional_moments_of_the_effects():
    """25 comparisons at 4.5 standard errors of 100 batch means: false alarm rate 5e-4."""

    @jax.jit
    def chain(problem, start, keys):
        def move(u, key):
            return (STUDENT.gibbs(key, problem, u, 1),) * 2

        return jax.lax.scan(move, start, keys)[1]

    keys = jax.random.split(jax.random.key(1), 40_000)
    draws = np.asarray(chain(problem(), jnp.zeros((2, SIZES.size)), keys))
    draws = draws[:, :, np.asarray(DATA.original_order)]
    for k in range(SIZES.size):
        _, mean, covariance = brute_force(2, k)
        deviation = draws[..., k] - mean
        products = deviation[:, :, None] * deviation[:, None]
        for values, exact in ((deviation, 0 * mean), (products, covariance)):
            batches = values.reshape(100, -1, *exact.shape).mean(axis=1)
            error = batches.std(axis=0, ddof=1) / 10
            assert np.all(np.abs(batches.mean(axis=0) - exact) < 4.5 * error)


def test_repeated_inputs_run_through_the_network_once():
    rng = np.random.default_rng(4)
    inputs = rng.normal(size=(6, 2))
    index, group = rng.integers(0, 6, 90), rng.integers(0, 5, 90)
    y = np.round(rng.standard_t(3, size=90), 1)  # some responses repeat
    rows = Rows.from_arrays(inputs[index], y, group, 5)
    latents, values = jnp.asarray(rng.normal(size=(5, 3))), []
    for sweeps in (None, 2):
        model = MixedModel(Perceptron(2, (2,)), STUDENT, Priors(), (0, 1, 2), sweeps)
        data, theta = prepare(model, rows), jax.jit(model.init_params)(jax.random.key(0), rows)
        assert data.x.shape == (6, 2)
        # Gibbs sampling draws a precision for every observation: none may be merged.
        seen = data.within if isinstance(data, CellRows) else data
        merged = np.max(np.ones(1) if seen.weight is None else seen.weight)
        assert (merged > 1) == (sweeps is None)
        for form in (rows, data):
            mine = latents[np.argsort(form.original_order)]
            values.append(jax.jit(model.log_joint)(theta, mine, form))
    np.testing.assert_allclose(values, values[0], rtol=1e-12)


def test_reweighed_statistics_are_those_of_weighted_rows():
    """The sweep's linear algebra is then that of the Gaussian model."""
    model, coef = model_for(2), jnp.array([0.3, -0.2])
    zero = LinearStatistics.from_rows(DATA, model.random)
    zero = dataclasses.replace(zero, centre=jnp.zeros(2))
    state = State(coef, jnp.zeros((5, 2)), jnp.asarray(0.7), jnp.eye(2), jnp.asarray(3.0))

    @jax.jit
    def compute(key, at):
        found = _reweigh(key, state, model, zero, DATA)
        drawn = draw_precision(key, DATA.y - DATA.x @ coef, state.noise_var, state.degrees)
        return DATA.weighted(0.7 * drawn), found.moments(lambda x: x, at, model.random)

    at = jnp.array([-2.0, 1.0])
    weight, ours = compute(jax.random.key(2), at)
    exact = LinearStatistics.from_rows(dataclasses.replace(DATA, weight=weight), model.random)
    theirs = jax.jit(lambda e: e.moments(lambda x: x, at, model.random))(exact)
    for mine, other in zip(ours[:3], theirs[:3], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)


def test_the_reference_sampler_agrees_with_a_grid():
    """Six comparisons at 5 standard errors of 100 batch means: false alarm rate 2e-5."""
    rng = np.random.default_rng(5)
    y = 0.3 + 0.6 * rng.standard_t(3, size=40)
    priors = Priors(coef_sd=2.0, noise=InverseGamma())
    rows = Rows.from_arrays(np.ones((40, 1)), y, np.zeros(40, int), 1)
    draws = gibbs(
        jax.random.key(6),
        MixedModel(Identity(1), STUDENT, priors, ()),
        rows,
        draws=5000,
        burn_in=200,
    )
    axes = np.arange(-0.6, 1.2, 0.06), np.arange(-3.0, 1.2, 0.15), np.arange(-3.0, 4.6, 0.2)
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    # Another coordinate of nu than the library's, and scipy's densities.
    variance, nu = np.exp(points[:, 1]), 2 + np.exp(points[:, 2])
    log_value = stats.norm(0, 2).logpdf(points[:, 0]) + points[:, 2]
    log_value += stats.invgamma(1.01, scale=1.01).logpdf(variance) + points[:, 1]
    log_value += stats.gamma(2, scale=10).logpdf(nu - 2)
    for value in y:
        log_value += stats.t.logpdf(value, nu, points[:, 0], np.sqrt(variance))
    weight = np.exp(log_value - logsumexp(log_value))
    found = draws.coef[..., 0], jnp.log(draws.noise_var), jnp.log(draws.degrees - 2)
    for drawn, exact in zip(found, points.T, strict=True):
        mean = weight @ exact
        for f in (lambda x: x, lambda x, mean=mean: (x - mean) ** 2):
            batches = np.asarray(f(drawn)).reshape(100, -1).mean(axis=1)
            error = batches.std(ddof=1) / 10
            assert abs(batches.mean() - weight @ f(exact)) < 5 * error
