"""Every response with several grouping factors: their effects are integrated out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from nghvi.data import Rows
from nghvi.data.factors import CrossedRows, FactorRows
from nghvi.models.general_factors import GeneralFactors
from nghvi.models.mixed import MixedModel
from nghvi.networks import Identity
from nghvi.priors import HalfT, Priors
from tests.contracts.test_response_fits import bound, over
from tests.registry import RESPONSES

GENERAL = [name for name in RESPONSES if not RESPONSES[name].response.conjugate]
LEVELS = 12, 6


def rows_of(name):
    """Rows with two factors, five per level of the first; effects have sds 0.5 and 0.4."""
    case, rng = RESPONSES[name], np.random.default_rng(3)
    codes = np.column_stack([np.arange(60) // 5, rng.integers(0, LEVELS[1], 60)])
    x = rng.normal(size=60)
    first, second = (sd * rng.normal(size=k) for sd, k in zip((0.5, 0.4), LEVELS, strict=True))
    eta = 0.5 + 0.7 * x + first[codes[:, 0]] + second[codes[:, 1]]
    known = {
        "n": rng.integers(1, 12, 60),
        "low": np.where(rng.random(60) < 0.5, -0.5, 0.0),
        "high": np.full(60, 2.0),
    }
    response = bound(case.response, known)
    dispersion = jnp.asarray(case.dispersion, float)
    y = np.asarray(response.sample(jax.random.key(3), jnp.asarray(eta), dispersion), float)
    columns = {"trials": known["n"], "weights": known["n"], "lower": known["low"]}
    facts = [columns.get(fact, np.full(60, 2.0)) for fact in case.response.facts]
    return np.column_stack([np.ones(60), x, *facts]), y, codes


@over(GENERAL)
def test_effects_of_several_factors_are_integrated_out(name):
    case = RESPONSES[name]
    x, y, codes = rows_of(name)
    settings = {"num_facts": len(case.response.facts)}
    model = GeneralFactors(
        *(Identity(2), case.response, Priors(), (0, 0)),
        parts=(HalfT(), HalfT()),
        effects=(1, 1),
        **settings,
    )
    data = CrossedRows.from_rows(FactorRows(x, y, codes, None, LEVELS), ((0,), (0,)))
    params = model.init_params(jax.random.key(0), data)._replace(
        coef=jnp.array([0.5, 0.7]),
        dispersion=jnp.asarray(case.dispersion, float),
        effects=2 * jnp.log(jnp.array([0.5, 0.4])),
    )

    def log_marginal(model, data, params):
        return model.log_marginal(params, data) - model.log_prior(params)

    value = jax.jit(log_marginal)(model, data, params)
    more = jax.jit(log_marginal)(dataclasses.replace(model, num_pairs=200), data, params)
    np.testing.assert_allclose(value, more, atol=0.05)
    # Without a variance of the second factor, the quadrature is that of one factor.
    one = MixedModel(
        *(Identity(2), case.response, Priors(effects=HalfT()), (0,)), num_nodes=14, **settings
    )
    alone = jax.jit(log_marginal)(
        one,
        Rows.from_arrays(x, y, codes[:, 0], LEVELS[0]),
        params._replace(effects=params.effects[:1]),
    )
    nothing = params._replace(effects=params.effects.at[1].set(-40.0))
    np.testing.assert_allclose(jax.jit(log_marginal)(model, data, nothing), alone, atol=2e-3)
