"""Groups whose conditionals are far from Gaussian: modes, integrals, derivatives, coordinates."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln
from scipy.integrate import quad
from scipy.special import log_expit, log_ndtr, logsumexp
from scipy.stats import norm, poisson

from nghvi.data import Rows
from nghvi.inference import infer
from nghvi.latents import integrate, rules
from nghvi.latents.rows import RowProblem, conditional_mode
from nghvi.models import MixedModel, MixedParams
from nghvi.networks import Identity
from nghvi.priors import Priors
from nghvi.responses import Logit, Probit


class Counts(Logit):
    """Poisson observations: a full Newton step from zero overshoots by far."""

    def log_prob(self, y, eta, dispersion):
        return y * eta - jnp.exp(eta) - gammaln(y + 1)


def one_effect(response, y, sd):
    """One group per observation, with effects of this sd."""
    rows = Rows.from_arrays(np.ones((y.size, 1)), y, np.arange(y.size), y.size)
    return RowProblem(response, jnp.zeros(0), rows, jnp.zeros(y.size), jnp.full((y.size, 1), sd))


@pytest.mark.parametrize("sd", [0.5, 8.0, 30.0])
def test_counts_far_from_the_start_have_the_right_marginal(sd):
    y = np.array([0.0, 3.0, 200.0, 1e5])

    def exact(y):
        centre = np.log(max(y, 1)) / sd
        points = [centre + width for width in (-9, -1, -0.1, 0, 0.1, 1)]
        return np.log(
            quad(
                lambda u: np.exp(poisson.logpmf(y, np.exp(sd * u)) + norm.logpdf(u)),
                min(points[0], -9),
                centre + 3,
                points=points[1:],
                epsabs=0,
                limit=500,
            )[0]
        )

    problem = one_effect(Counts(), y, sd)
    mode = conditional_mode(problem)
    assert mode.found.all()
    gradient, curvature = problem.derivatives(mode.effects)
    assert np.abs(gradient[0] / np.sqrt(curvature[0, 0])).max() < 1e-6
    value = integrate.log_marginal(problem, 41)
    np.testing.assert_allclose(value, sum(exact(v) for v in y), atol=5e-3)


def test_a_mode_that_is_not_found_makes_the_density_no_number():
    class Cliff(Logit):
        def log_prob(self, y, eta, dispersion):
            return jnp.where(eta > 0.1, jnp.nan, 100 * eta)

    problem = one_effect(Cliff(), np.ones(3), 1.0)
    assert not conditional_mode(problem).found.any()
    assert jnp.isnan(integrate.log_marginal(problem, 5))


PERSONS, VISITS, SPREAD = 12, 7, np.array([[7.0, 0.0], [1.4, 4.4]])
TIME = np.tile(np.linspace(-1.5, 1.5, VISITS), PERSONS)
CODES = np.repeat(np.arange(PERSONS), VISITS)
DESIGN = np.column_stack([np.ones(TIME.size), TIME])
Y = np.concatenate(
    [np.zeros(4 * VISITS), np.ones(4 * VISITS), (np.random.default_rng(0).random(4 * VISITS) < 0.5)]
)
"""Four persons all 0, four all 1, four mixed."""


def longitudinal(response, num_nodes=None, **settings):
    rows = Rows.from_arrays(DESIGN, Y, CODES, PERSONS)
    model = MixedModel(Identity(2), response, Priors(), (0, 1), num_nodes=num_nodes, **settings)
    precision = np.linalg.inv(SPREAD @ SPREAD.T)
    lower = np.linalg.cholesky(precision)
    free = np.array([np.log(lower[0, 0]), lower[1, 0], np.log(lower[1, 1])])
    return model, MixedParams((), jnp.array([-2.0, -1.0]), jnp.zeros(0), jnp.asarray(free)), rows


def dense_integral(log_cdf=log_expit, spread=SPREAD):
    axis = np.linspace(-7, 7, 401)
    u = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    total = 0.0
    for k in range(PERSONS):
        mine = k == CODES
        eta = DESIGN[mine] @ [-2.0, -1.0] + u @ spread.T @ DESIGN[mine].T
        log = log_cdf((2 * Y[mine] - 1) * eta).sum(axis=1) + norm.logpdf(u).sum(axis=1)
        total += logsumexp(log) + 2 * np.log(axis[1] - axis[0])
    return total


def test_groups_of_one_class_with_large_effects_are_integrated_by_few_nodes():
    """It takes 160 nodes; a Gauss-Hermite rule of that size is off by ten times as much."""
    model, params, rows = longitudinal(Logit())
    exact = dense_integral()
    value = {
        n: float(integrate.log_marginal(model.row_problem(params, rows), n)) for n in (5, 14, 20)
    }
    assert (model.refined().nodes, model.yardstick().nodes) == (7, 14)
    assert abs(value[5] - exact) > 0.1
    assert abs(value[14] - exact) < 0.02
    assert abs(value[20] - exact) < 0.005


@pytest.mark.parametrize(("factor", "wrong"), [(0.6, 0.001), (2.0, 0.02)])
def test_more_nodes_reach_as_far_as_conditionals_of_one_class_do(factor, wrong):
    """They are many times wider than their curvature at the mode says, most of all for probit."""
    model, params, rows = longitudinal(Probit())
    shift = jnp.array([-np.log(factor), 0.0, -np.log(factor)])
    wider = params._replace(effects=params.effects.at[1].divide(factor) + shift)
    exact = dense_integral(log_ndtr, factor * SPREAD)
    value = float(integrate.log_marginal(model.row_problem(wider, rows), 31))
    assert abs(value - exact) < wrong


@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize("num_nodes", [10, 14])
def test_trapezoidal_rules_integrate_the_normal_density_and_its_moments(r, num_nodes):
    """This holds for every shift of the grid."""
    points, logs = rules.rule(num_nodes, r)
    weights = np.exp(logs)
    assert len(points) == rules.num_points(num_nodes, r)
    assert r == 1 or len(points) % 8 == 0
    tolerance = 0.02 if num_nodes == 10 else 1e-3
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=tolerance)
    np.testing.assert_allclose(np.einsum("jt,jrt->rt", weights, points), 0, atol=tolerance)
    second = np.einsum("jt,jat,jbt->abt", weights, points, points)
    np.testing.assert_allclose(second, np.eye(r)[:, :, None] + 0 * second, atol=5 * tolerance)


@pytest.mark.parametrize("num_nodes", [1, 5, 14])
@pytest.mark.parametrize("response", [Probit(), Logit()], ids=lambda r: r.name)
def test_second_derivatives_through_integrals_are_right(response, num_nodes):
    model, params, rows = longitudinal(response, num_nodes)
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    def value(theta):
        return model.log_marginal(unravel(theta), rows)

    # Effects of moderate size: nodes that stay where they are serve small changes of theta.
    theta = flat + jnp.array([0.0, 0.0, 1.5, 0.0, 1.5])
    score = jax.jit(jax.grad(value))
    step = 1e-4 * np.eye(theta.size)
    differences = np.stack([score(theta + e) - score(theta - e) for e in step]) / 2e-4
    hessian = jax.jit(jax.hessian(value))(theta)
    tolerance = 1e-5 if num_nodes == 1 else 0.03
    np.testing.assert_allclose(
        hessian, differences, atol=tolerance * np.abs(np.diagonal(differences)).max()
    )


def test_relative_coefficients_are_a_change_of_coordinates():
    """log p(y, theta) moves by the log Jacobian, and nothing else does."""
    model, params, rows = longitudinal(Logit())
    relative = dataclasses.replace(model, relative_coef=True)
    unit = relative.coef_unit(params)
    np.testing.assert_allclose(unit, np.sqrt(1 + 0.3457 * np.sum(SPREAD**2)), rtol=1e-3)
    moved = params._replace(coef=params.coef / unit)
    np.testing.assert_allclose(relative.coef(moved), params.coef, rtol=1e-12)
    difference = relative.log_marginal(moved, rows) - model.log_marginal(params, rows)
    np.testing.assert_allclose(difference, 2 * jnp.log(unit), rtol=1e-9)


def test_what_priors_state_has_the_same_density_in_both_coordinates():
    """Power scaling reads the prior without Jacobians, here at small and at large effects."""
    model, params, _ = longitudinal(Logit())
    relative = dataclasses.replace(model, relative_coef=True)
    for shift in (0.0, 1.0):
        at = params._replace(effects=params.effects + shift)
        moved = at._replace(coef=at.coef / relative.coef_unit(at))
        stated = [m.log_prior(p) - m.log_volume(p) for m, p in ((model, at), (relative, moved))]
        np.testing.assert_allclose(stated[1], stated[0], rtol=1e-12)


def test_both_coordinates_give_the_same_posterior():
    rng = np.random.default_rng(1)
    y = (DESIGN @ [0.5, 1.0] + rng.normal(size=PERSONS)[CODES] + rng.logistic(size=TIME.size)) > 0
    rows = Rows.from_arrays(DESIGN, y * 1.0, CODES, PERSONS)
    found = []
    for relative in (False, True):
        model = MixedModel(Identity(2), Logit(), Priors(), (0,), relative_coef=relative)
        done = infer(model, rows)
        params = done.draws(4000)
        found.append(np.asarray(jax.vmap(model.coef)(params)))
    mean, sd = found[0].mean(axis=0), found[0].std(axis=0)
    np.testing.assert_array_less(np.abs(found[1].mean(axis=0) - mean) / sd, 0.08)
    np.testing.assert_allclose(found[1].std(axis=0), sd, rtol=0.08)


def test_integrals_that_cannot_be_afforded_are_not_called_converged(monkeypatch):
    model, _, rows = longitudinal(Logit())
    monkeypatch.setattr("nghvi.latents.rules.LARGEST_GRID", 30)
    done = infer(model, rows, importance=False)
    assert done.model.nodes == model.nodes
    assert (done.verdict.status, done.verdict.cause) == ("not_converged", "unaffordable")
