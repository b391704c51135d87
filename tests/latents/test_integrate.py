"""Rules for N(0, I_r): moments in closed form, integrals of groups against a dense product rule."""

import dataclasses
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_expit, logsumexp

from nghvi.data import Rows
from nghvi.inference import infer
from nghvi.latents import integrate, rules
from nghvi.latents.rows import RowProblem, conditional_mode
from nghvi.models import MixedModel, MixedParams
from nghvi.networks import Identity
from nghvi.priors import InverseGamma, Priors
from nghvi.responses import Logit, StudentT, ZeroInflatedPoisson
from nghvi.responses.student_t import NoiseLaw
from tests.oracles import by_one_program

EFFECTS = 4
SIZES = np.array([2, 9, 1, 14])
CODES = np.repeat(np.arange(SIZES.size), SIZES)
RNG = np.random.default_rng(3)
X = np.column_stack([np.ones(CODES.size), RNG.normal(size=(CODES.size, EFFECTS - 1))])
NOISE = RNG.standard_t(3, CODES.size)
COEF, FREE = np.array([0.3, -0.5, 0.2, 0.6]), 0.3 * RNG.normal(size=10)
STUDENT = NoiseLaw(jnp.asarray(0.8), jnp.asarray(3.0))


@pytest.mark.parametrize("r", range(1, 10))
@pytest.mark.parametrize("num_nodes", [2, 3])
def test_moments_of_the_rules(r, num_nodes):
    points, logs = (part[..., 0] for part in rules.rule(num_nodes, r))
    weights = np.exp(logs)
    assert len(points) == rules.num_points(num_nodes, r)
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(weights @ points, 0, atol=1e-12)
    # Directions are spread as evenly as so few can be.
    exact = r <= rules.LARGEST_PRODUCT
    second = np.einsum("j,ja,jb->ab", weights, points, points)
    np.testing.assert_allclose(second, np.eye(r), atol=1e-10 if exact else 1e-3)
    if r > rules.LARGEST_PRODUCT:
        squares = np.sum(points**2, axis=1)
        np.testing.assert_allclose(weights @ squares**2, r * (r + 2), rtol=1e-8)
        np.testing.assert_allclose(weights @ squares**3, r * (r + 2) * (r + 4), rtol=1e-8)


@pytest.mark.parametrize("r", [4, 6])
def test_fourth_moments_are_exact_where_directions_allow(r):
    points, logs = (part[..., 0] for part in rules.rule(3, r))
    fourth = np.einsum("j,ja,jb,jc,jd->abcd", np.exp(logs), *4 * [points])
    eye, ways = np.eye(r), ("ab,cd->abcd", "ac,bd->abcd", "ad,bc->abcd")
    normal = sum(np.einsum(way, eye, eye) for way in ways)
    np.testing.assert_allclose(fourth, normal, atol=1e-4)


def dense_integral(log_density, offset, design):
    """log int exp(sum_i log p(y_i | eta_i)) N(u; 0, I) du on a grid of 41^4 points, by pieces."""
    axis = np.linspace(-6.5, 6.5, 41)
    last = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    parts = []
    for first in itertools.product(axis, repeat=2):
        u = np.column_stack([np.broadcast_to(first, (len(last), 2)), last])
        prior = -0.5 * np.sum(u**2, axis=1) - 2 * np.log(2 * np.pi)
        parts.append(logsumexp(log_density(offset + u @ design.T).sum(axis=-1) + prior))
    return logsumexp(parts) + 4 * np.log(axis[1] - axis[0])


def facts(name):
    eta = X @ COEF
    if name == "logit":
        y = (eta + NOISE > 0).astype(float)
        return Logit(), y, jnp.zeros(0), lambda k: lambda at: log_expit((2 * y[k] - 1) * at)
    y = eta + NOISE
    top = stats.t.logpdf(0, 3, scale=np.sqrt(0.8))
    return (
        StudentT(),
        y,
        STUDENT.dispersion(),
        lambda k: lambda at: top - 2 * np.log1p((y[k] - at) ** 2 / 2.4),
    )


@pytest.mark.parametrize("name", ["logit", "student-t"])
def test_log_marginal_of_four_effects_is_the_integral_on_a_dense_grid(name):
    """Groups of 1 to 14 rows: conditionals far from Gaussian, where Laplace is off by 0.2 and more.

    A sum over four groups; 72 and 1,152 nodes.
    """
    response, y, dispersion, log_density = facts(name)
    rows = Rows.from_arrays(X, y, CODES, SIZES.size)
    model = MixedModel(Identity(EFFECTS), response, Priors(), tuple(range(EFFECTS)))
    params = MixedParams((), jnp.asarray(COEF), dispersion, jnp.asarray(FREE))
    lower = np.asarray(model.precision_factor(params))
    design = np.linalg.solve(lower, X.T).T
    exact = sum(
        dense_integral(log_density(k == CODES), X[k == CODES] @ COEF, design[k == CODES])
        for k in range(SIZES.size)
    )
    errors = {
        num_nodes: abs(float(_log_marginal(model, num_nodes, params, rows)) - exact)
        for num_nodes in (1, 3, 6)
    }
    assert errors[1] > 0.15
    assert errors[3] < 0.1
    assert errors[6] < 0.01


def _log_marginal(model, num_nodes, params, rows):
    finer = dataclasses.replace(model, num_nodes=num_nodes)
    return jax.jit(lambda p: integrate.log_marginal(finer.row_problem(p, rows), num_nodes))(params)


def test_where_integrals_are_costly_an_approximation_leads_to_the_same_posterior(monkeypatch):
    """Few nodes in the last steps, checked by more of them at the result."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(20), 30)
    x = np.column_stack([np.ones(group.size), rng.normal(size=(group.size, 3))])
    effects = 0.5 * rng.normal(size=(20, EFFECTS))
    y = (np.sum(x * (COEF + effects[group]), axis=1) + rng.logistic(size=group.size) > 0) * 1.0
    model = MixedModel(Identity(EFFECTS), Logit(), Priors(effects=InverseGamma()), (0, 1, 2, 3))
    rows = Rows.from_arrays(x, y, group, 20)
    usual = infer(model, rows, importance=False)
    for module in ("nghvi.inference", "nghvi.recipes.plan"):
        monkeypatch.setattr(sys.modules[module], "HUGE", 0)
    found = infer(model, rows, importance=False)
    assert [name for name, _ in found.run.traces] == ["natural gradient", "exact integrals"]
    assert usual.verdict.converged
    assert found.verdict.converged
    sd = usual.q.standard_deviation()
    np.testing.assert_array_less(np.abs(found.q.centre - usual.q.centre) / sd, 0.1)
    np.testing.assert_allclose(found.q.standard_deviation(), sd, rtol=0.05)
    np.testing.assert_allclose(found.elbo, usual.elbo, atol=0.05)


@pytest.mark.parametrize("name", ["logit", "student-t"])
def test_a_grid_as_data_is_the_rule_and_serves_its_refinements_with_one_program(name):
    """Values, slopes and second derivatives are those of a rule that is part of the program."""
    response, y, dispersion, _ = facts(name)
    rows = Rows.from_arrays(X, y, CODES, SIZES.size)
    model = MixedModel(Identity(EFFECTS), response, Priors(), (0, 1))
    theta = jnp.concatenate([jnp.asarray(COEF), dispersion, jnp.asarray(FREE[:3])])
    traced = []

    def value(theta, model):
        coef, dispersion, effects = jnp.split(theta, [EFFECTS, EFFECTS + response.num_dispersion])
        traced.append(model)
        return model.log_marginal(MixedParams((), coef, dispersion, effects), rows)

    slope = jax.jit(jax.value_and_grad(value))
    bend = jax.jit(jax.hessian(value))
    refined = model.refinable()
    for _ in range(2):
        plain = refined.plain()
        assert plain.grid is None
        assert plain.nodes == refined.nodes
        for found, kept in zip(
            jax.tree.leaves((slope(theta, refined), bend(theta, refined))),
            jax.tree.leaves(
                by_one_program(
                    lambda *at: (jax.value_and_grad(value)(*at), jax.hessian(value)(*at)),
                    *(theta, plain),
                )
            ),
            strict=True,
        ):
            np.testing.assert_allclose(found, kept, rtol=1e-9, atol=1e-9)
        refined = refined.yardstick()
    assert refined.nodes > 14
    assert sum(model.grid is not None for model in traced) == 2


def test_a_ledge_on_the_way_to_the_mode():
    """Six zeros: beside their mode, where they are plain, a ledge, where they are extra ones."""
    offset = np.array([1.84458725, 2.61949523, 2.57125357, 1.50210743, 2.13822903, 3.38124788])
    shift = np.repeat(np.linspace(-0.1, 0.1, 2001), 6)
    group = np.arange(shift.size) // 6
    rows = Rows.from_arrays(np.ones((shift.size, 1)), np.zeros(shift.size), group, 2001)
    problem = RowProblem(
        ZeroInflatedPoisson(zero_unit=0.125),
        jnp.array([2.56945065]),
        rows,
        jnp.asarray(np.tile(offset, 2001) + shift),
        jnp.full((shift.size, 1), 1.71092277),
    )
    # Where the ledge is about to be a mode the steps on it are as short as one likes.
    assert np.sum(~np.asarray(conditional_mode(problem).found)) <= 2
