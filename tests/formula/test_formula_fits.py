"""Fits from formulas equal those of the estimators; coefficients may be known."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import nghvi
from nghvi.data import Rows
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity
from nghvi.priors import Priors, normal_log_density
from nghvi.responses import RESPONSES

FORMULA = "y ~ a + b + (1 + a | g)"


@pytest.fixture(scope="module")
def by_formula(panel):
    return nghvi.mixed(FORMULA, panel)


@pytest.fixture(scope="module")
def with_offset(panel):
    return nghvi.mixed("y ~ a + offset(2 * b) + (1 | g)", panel)


def test_a_formula_fits_what_the_estimator_fits(by_formula, fitted, panel):
    assert by_formula.elbo_ == fitted.elbo_
    pd.testing.assert_frame_equal(by_formula.summary(), fitted.summary(), check_exact=True)
    np.testing.assert_array_equal(by_formula.groups_, fitted.groups_)
    np.testing.assert_array_equal(by_formula.predict(panel), fitted.predict(panel[["g", "a", "b"]]))


def test_the_estimator_reads_raw_frames(by_formula, fitted, panel):
    plain = panel[["b", "g", "a"]].assign(unused="text").head(5)
    new = plain.assign(g=[-1, -1, -2, 0, 1])
    np.testing.assert_array_equal(
        by_formula.predict(new), fitted.predict(new[["g", "a", "b"]])
    )  # groups -1 and -2 are new
    assert by_formula.log_score(panel, panel["y"]) == fitted.log_score(
        panel[["g", "a", "b"]], panel["y"]
    )
    added = by_formula.add_groups(panel.head(5).assign(g=-1), panel["y"].head(5))
    assert -1 in added.groups_
    refit = clone(by_formula).fit(panel, panel["y"])
    assert refit.elbo_ == by_formula.elbo_


def test_a_formula_comes_back_from_a_file(by_formula, with_offset, panel, tmp_path):
    for estimator in (by_formula, with_offset):
        estimator.save(tmp_path / "model")
        back = nghvi.load(tmp_path / "model")
        assert back.formula_ == estimator.formula_
        np.testing.assert_array_equal(back.predict(panel), estimator.predict(panel))


def test_an_offset_is_taken_off_and_put_back(with_offset, panel):
    """The fit equals one to y - 2 b up to rounding, which the optimiser hardly amplifies."""
    rest = nghvi.MixedRegressor("g").fit(panel[["g", "a"]], panel["y"] - 2 * panel["b"])
    ours, theirs = with_offset.summary(), rest.summary()
    assert list(ours.index) == list(theirs.index)
    for column in ("mean", "q5", "q95"):
        assert (np.abs(ours[column] - theirs[column]) < 1e-3 * theirs["sd"]).all()
    shifted = rest.predict(panel[["g", "a"]]) + 2 * panel["b"]
    np.testing.assert_allclose(with_offset.predict(panel), shifted, atol=1e-3)
    assert with_offset.elbo_ == pytest.approx(rest.elbo_, abs=1e-3)


@eqx.filter_jit
def log_marginal(model, params, data):
    return model.log_marginal(params, data)


@pytest.mark.parametrize(
    ("name", "reduced"), [("gaussian", True), *((name, False) for name in sorted(RESPONSES))]
)
def test_a_known_coefficient_is_a_parameter_held_there(name, reduced, panel):
    """log p(y, theta) with known coefficients is that of the larger model minus their prior.

    A column of known coefficient has effects; if these are integrated exactly, so has another.
    """
    rng = np.random.default_rng(1)
    n, priors = len(panel), Priors()
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    y = (panel["y"] > 0).to_numpy(float) if RESPONSES[name].classes else panel["y"].to_numpy()
    rows = Rows.from_arrays(x, y, panel["g"].to_numpy(), panel["g"].nunique())
    response = RESPONSES[name]()
    larger = MixedModel(Identity(4), response, priors, (0, 2) if response.conjugate else (2,))
    smaller = dataclasses.replace(larger, known_coef=(0.0, 1.0))
    data = prepare(larger, rows) if reduced else rows
    init = eqx.filter_jit(lambda model: model.init_params(jax.random.key(0), data))
    start = init(larger)
    known = jnp.array([0.0, 1.0])
    held = start._replace(coef=jnp.concatenate([jnp.array([0.3, -0.2]), known]))
    free = held._replace(coef=held.coef[:2])
    assert init(smaller).coef.shape == (2,)
    prior = normal_log_density(known, priors.coef_sd)
    np.testing.assert_allclose(
        log_marginal(smaller, free, data), log_marginal(larger, held, data) - prior, rtol=1e-12
    )


def test_settings_that_the_formula_says_or_nobody_knows_are_refused(panel):
    for settings, said in [
        ({"group": "h"}, "group='h' contradicts the formula .* says group='g'"),
        ({"stepz": 5}, "Unknown setting 'stepz'. Did you mean steps="),
        ({"response": "gausian"}, r"Did you mean 'gaussian'\?"),
        ({"hidden": (3,)}, "with hidden layers write"),
        ({"method": "davi", "formula_text": "y ~ b + (1 + a | g)"}, "supports neither offsets"),
    ]:
        formula = settings.pop("formula_text", FORMULA)
        with pytest.raises(nghvi.DataError, match=said):
            nghvi.mixed(formula, panel, **settings)


def test_a_network_takes_no_offset(panel):
    with pytest.raises(nghvi.DataError, match="no offset"):
        nghvi.mixed("y ~ a + offset(b) + (1 | g)", panel, hidden=(3,))
