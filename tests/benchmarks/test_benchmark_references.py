"""The referees of the benchmarks are held against oracles of their own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from benchmarks import default_priors, longitudinal, textbook
from benchmarks.longitudinal_reference import log_huang_wand, log_likelihood_by_grid, root
from nghvi._linalg.lowrank import pack_lower
from nghvi.data import Rows
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.networks import Identity
from nghvi.priors import HuangWand
from nghvi.responses import RESPONSES


def log_cholesky_of_precision(coordinates):
    factor = root(coordinates[:2], coordinates[2])
    lower = jnp.linalg.cholesky(jnp.linalg.inv(factor @ factor.T))
    return pack_lower(lower.at[np.diag_indices(2)].set(jnp.log(jnp.diag(lower))))


@pytest.mark.parametrize("prior", [HuangWand(), HuangWand(3.0, 1.2)])
def test_the_prior_of_the_nuts_references_is_the_library_s(prior):
    @jax.jit
    def both(point):
        free = log_cholesky_of_precision(point)
        jacobian = jax.jacobian(log_cholesky_of_precision)(point)
        expected = prior.log_density(free, 2) + jnp.linalg.slogdet(jacobian)[1]
        return log_huang_wand(point[:2], point[2], prior), expected

    for point in np.random.default_rng(0).normal(size=(3, 3)):
        ours, expected = both(point)
        np.testing.assert_allclose(ours, expected, rtol=1e-10)


@eqx.filter_jit
def log_marginal(model, params, rows):
    return model.log_marginal(params, rows) - model.log_prior(params)


# With large effects the adaptive rule is the less exact one: of the grid finer spacings agree to
# 1e-7.
@pytest.mark.parametrize(("sds", "tolerance"), [((0.8, 0.5), 1e-6), ((6.0, 4.5), 0.005)])
@pytest.mark.parametrize("response", longitudinal.LINKS)
def test_the_grid_of_the_references_integrates_like_adaptive_quadrature(response, sds, tolerance):
    problem = longitudinal.simulate(response, "small", 1)
    coef, log_sd, fisher = jnp.array([-1.0, 0.3, 0.2, -0.1]), jnp.log(jnp.array(sds)), 0.3
    ours = log_likelihood_by_grid(problem, coef, log_sd, jnp.asarray(fisher), spacing=0.1)
    free = jax.jit(log_cholesky_of_precision)(jnp.array([*log_sd, fisher]))
    model = MixedModel(
        Identity(4), RESPONSES[response](), longitudinal.PRIORS, problem.random, num_nodes=41
    )
    rows = Rows.from_arrays(problem.design, problem.y, problem.group, problem.num_groups)
    params = MixedParams((), coef, jnp.zeros(0), free)
    np.testing.assert_allclose(ours, log_marginal(model, params, rows), atol=tolerance, rtol=0)


def test_most_persons_of_the_longitudinal_data_are_all_0_or_all_1():
    for response in longitudinal.LINKS:
        for size in longitudinal.SIZES:
            for seed in longitudinal.SEEDS:
                problem = longitudinal.simulate(response, size, seed)
                assert longitudinal.share_constant(problem) > 0.5


@pytest.mark.parametrize(("groups", "rows", "share"), [(3, 2, 0.5), (6, 20, 0.001), (100, 5, 0.99)])
def test_the_grid_of_the_prior_study_is_fine_enough(groups, rows, share):
    priors = default_priors.PAIRS["both half-t(2, 2.5)"]
    squares = default_priors.Squares(np.random.default_rng(1), groups, rows, share, 2)
    found = default_priors.quantiles(squares, priors)
    grid = np.tile(np.linspace(-8, 6, 1500), (2, 1))
    log_density = squares.log_posterior(grid, grid, priors)
    weight = np.exp(log_density - log_density.max(axis=(1, 2), keepdims=True))
    for axis, quantiles in zip((2, 1), found, strict=True):
        below = np.cumsum(weight.sum(axis=axis), axis=1)
        for k in range(2):
            exact = np.interp([0.025, 0.5, 0.975], below[k] / below[k, -1], grid[k] + 0.0047)
            np.testing.assert_allclose(np.log(quantiles[k]), exact, atol=0.03)


def test_textbook_data_in_other_units_are_the_same_facts():
    data = pd.DataFrame({"y": [1.0, 2.0, 4.0], "x": [0.0, 1.0, 2.0], "g": [1, 1, 2]})
    rows = [("fixed", "(Intercept)", 3.0), ("fixed", "x", 0.5), ("residual", "residual", 0.1)]
    fit = pd.DataFrame(rows, columns=["kind", "name", "estimate"])
    case = textbook.Case("some", "y ~ x + (1 | g)", data, fit, "none")
    units = dict(case.in_other_units())
    assert list(units) == ["as they are", "y * 1000", "y / 1000", "x + 1000"]
    assert units["y * 1000"].data["y"].tolist() == [1000.0, 2000.0, 4000.0]
    assert units["y * 1000"].fit["estimate"].tolist() == [3000.0, 500.0, 100.0]
    moved = units["x + 1000"]
    assert moved.data["x"].tolist() == [1000.0, 1001.0, 1002.0]
    assert moved.data["g"].tolist() == [1, 1, 2]
    assert moved.fit["name"].tolist() == ["x", "residual"]
