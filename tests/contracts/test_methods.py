"""The paper's rules as objects: constants do what they say, names mean objects, files keep them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.base import clone

import nghvi
from nghvi.data import Rows
from nghvi.families import Factor
from nghvi.inference import infer
from nghvi.methods import PUBLISHED, NaturalGradient, OrdinaryGradient
from nghvi.models import MixedModel
from nghvi.networks import Identity
from nghvi.priors import Priors
from nghvi.responses import Gaussian


@pytest.fixture(scope="module")
def panel():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(24), rng.normal(size=24)])
    rows = Rows.from_arrays(x, x[:, 1] + rng.normal(size=24), np.repeat(np.arange(6), 4), 6)
    return rows, MixedModel(Identity(2), Gaussian(), Priors(), (0,))


DIRECTION = {"a": jnp.array([30.0, -40.0]), "b": jnp.array([120.0])}  # of length 130


def first_update(method):
    rule = method.step_rule
    return rule.update(DIRECTION, rule.init(DIRECTION))[0]


def test_a_learning_rate_goes_straight_along_the_clipped_direction():
    method = NaturalGradient(learning_rate=0.1, momentum=0.0, clip=13.0)
    found = first_update(method)
    np.testing.assert_allclose(found["a"], [-0.3, 0.4], rtol=1e-12)
    np.testing.assert_allclose(found["b"], [-1.2], rtol=1e-12)
    unit = first_update(dataclasses.replace(method, clip=None))
    np.testing.assert_allclose(optax.tree.norm(unit), 0.1, rtol=1e-12)
    free = first_update(OrdinaryGradient(learning_rate=0.1))
    np.testing.assert_allclose(free["b"], [-12.0], rtol=1e-12)


def test_momentum_averages_directions():
    found = first_update(OrdinaryGradient(learning_rate=0.1, momentum=0.6))
    np.testing.assert_allclose(found["b"], [-12.0 * 0.4], rtol=1e-12)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_name_means_its_object(name, panel):
    rows, model = panel
    start = jnp.zeros(4)
    named, meant = (
        infer(model, rows, method=method, steps=20, family=Factor(1), start=start, seed=1).q
        for method in (name, PUBLISHED[name])
    )
    same = jax.tree.map(np.array_equal, named, meant)
    assert all(jax.tree.leaves(same))


def test_the_printed_fisher_matrix_leads_elsewhere(panel):
    rows, model = panel
    means = [
        infer(
            model, rows, method=NaturalGradient(fisher=fisher, steps=20), family=Factor(1), seed=1
        ).q.mean
        for fisher in ("exact", "printed")
    ]
    assert not np.allclose(*means)


def test_an_estimator_with_a_method_of_its_own_can_be_cloned_and_saved(tmp_path):
    rng = np.random.default_rng(0)
    x, group = rng.normal(size=(40, 1)), np.repeat(np.arange(8), 5)
    method = NaturalGradient(damping=1.0, steps=30)
    estimator = clone(nghvi.MixedRegressor(group=group, method=method))
    assert estimator.method == method
    y = x[:, 0] + rng.normal(size=40)
    fitted = nghvi.MixedRegressor(0, method=method).fit(np.column_stack([group, x]), y)
    assert fitted.n_iter_ == 30
    fitted.save(tmp_path / "model.nghvi")
    assert nghvi.load(tmp_path / "model.nghvi").method == method


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fisher": "paper"}, "'exact', 'printed'"),
        ({"damping": -1.0}, "damping=-1.0"),
        ({"clip": 0.0}, "positive length"),
        ({"draws": 0}, "whole number"),
        ({"steps": True}, "whole number"),
        ({"momentum": 1.0}, "below 1"),
        ({"learning_rate": -0.1}, "ADADELTA"),
    ],
)
def test_constants_out_of_range_are_refused(wrong, said):
    with pytest.raises(nghvi.InputError, match=said):
        NaturalGradient(**wrong)
