"""Inputs with heavy tails and categories with many levels in networks. Seeds are fixed."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi import DataError, interpret
from nghvi.estimators.columns import is_heavy, robust_unit, tamed
from nghvi.estimators.grouping import Term
from nghvi.estimators.reader import RowReader
from nghvi.networks import Perceptron, Skip, Tamed
from nghvi.responses import Gaussian, Probit

RNG = np.random.default_rng(5)
N = 160
FRAME = pd.DataFrame(
    {
        "g": np.arange(N) % 8,
        "x": np.where(np.arange(N) == 7, 1e6, RNG.normal(size=N)),
        "town": [f"town {i}" for i in RNG.integers(0, 30, N)],
    }
)
Y = np.sin(2 * FRAME["x"].clip(-3, 3)) + RNG.normal(size=8)[FRAME["g"]] + 0.3 * RNG.normal(size=N)
DEEP = {"hidden": (3,), "steps": 20, "n_starts": 1, "random": "intercept"}


@pytest.mark.parametrize(
    ("column", "heavy"),
    [
        (RNG.normal(size=400), False),
        (RNG.uniform(size=400), False),
        (RNG.exponential(size=400), False),
        (np.exp(1.5 * RNG.normal(size=400)), True),
        (RNG.standard_cauchy(400), True),
        (FRAME["x"].to_numpy(), True),
        ((RNG.random(400) < 0.02) * 1.0, False),  # no map of a column of two values changes it
        (np.where(RNG.random(400) < 0.8, 0.0, np.exp(2 * RNG.normal(size=400))), True),
        (np.full(400, 3.0), False),
    ],
)
def test_which_columns_have_heavy_tails(column, heavy):
    assert is_heavy(column) == heavy
    assert is_heavy(1e9 * column - 3e10) == heavy  # whatever the units


def test_a_tamed_network_is_the_network_of_the_mapped_columns():
    x = np.column_stack([RNG.normal(size=N), FRAME["x"], RNG.uniform(size=N)])
    plain = Perceptron(3, (4,), "tanh")
    network = tamed(plain, x)
    assert isinstance(network, Tamed)
    assert network.columns == (1,)
    seen = np.arcsinh((x[:, 1] - np.median(x[:, 1])) / robust_unit(x[:, 1]))
    mapped = x.copy()
    mapped[:, 1] = (seen - seen.mean()) / seen.std()
    weights = network.init_weights(jax.random.key(0))
    found = network(weights, jnp.asarray(x))
    np.testing.assert_allclose(found, plain(weights, jnp.asarray(mapped)), rtol=1e-12, atol=1e-14)
    usual = np.abs(x[:, 1]) < 10
    assert np.std(x[usual, 1]) / np.std(x[:, 1]) < 1e-4  # nearly constant if standardised by the sd
    assert np.std(mapped[usual, 1]) > 0.3
    assert tamed(plain, x[:, [0, 2, 0]]) is plain


@pytest.fixture(scope="module")
def model():
    return nghvi.MixedRegressor("g", **DEEP).fit(FRAME[["g", "x"]], Y)


def test_a_network_sees_an_outlier_by_asinh_and_is_saved_so(model, tmp_path):
    trunk = model.posterior_.model.trunk
    assert isinstance(trunk, Skip)
    assert isinstance(trunk.network, Tamed)
    model.save(tmp_path / "model.nghvi")
    again = nghvi.load(tmp_path / "model.nghvi")
    np.testing.assert_array_equal(again.predict(FRAME), model.predict(FRAME))


def test_curves_are_on_the_scale_of_the_data(model):
    grid = [-1.0, 0.0, 2.0, 1e3]
    profile = interpret.lek_profile(model, "x", grid=grid, draws=100)
    expected = model.predict(pd.DataFrame({"x": grid}), which="zero", draws=100)
    np.testing.assert_allclose(profile["mean"], expected, rtol=1e-6)


def test_the_choice_is_checked():
    plain = nghvi.MixedRegressor("g", scaling="plain", **DEEP)
    with pytest.raises(DataError, match="scaling='log': choose 'auto' or 'plain'"):
        plain.set_params(scaling="log").fit(FRAME[["g", "x"]], Y)


def test_a_network_pools_a_category_of_many_levels():
    """The category acts as if it had been named as a further grouping factor with intercepts."""
    ours = RowReader.of(nghvi.MixedRegressor("g", **DEEP), FRAME, Gaussian())
    stated = nghvi.MixedRegressor(["g", "town"], **DEEP)
    theirs = RowReader.of(stated, FRAME, Gaussian())
    assert ours.spec._replace(pooled=()) == theirs.spec
    found, expected = ours.table(FRAME), theirs.table(FRAME)
    np.testing.assert_array_equal(found.values, expected.values)
    for one, other in zip(found.group, expected.group, strict=True):
        np.testing.assert_array_equal(one, other)
    alone = RowReader.of(nghvi.MixedRegressor(None, **DEEP), FRAME.drop(columns="g"), Gaussian())
    assert alone.spec.group == "town"
    assert alone.spec.terms == (Term("town", "intercept", "auto"),)
    with pytest.raises(DataError, match=r"'town' is a category with 30 levels .*group="):
        RowReader.of(nghvi.MixedClassifier("g", **DEEP), FRAME, Probit())
    holes = FRAME.assign(town=FRAME["town"].where(FRAME.index > 3))
    with pytest.raises(DataError, match=r"'town' .*fillna\('unknown'\)"):
        RowReader.of(nghvi.MixedRegressor("g", missing="indicator", **DEEP), holes, Gaussian())


def test_new_levels_of_a_pooled_category_are_predicted_with_their_uncertainty(tmp_path):
    towns = 2 * RNG.normal(size=30)[FRAME["town"].str[5:].astype(int)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = nghvi.MixedRegressor("g", **DEEP).fit(FRAME, Y + towns)
    assert list(fitted.groups_) == ["g", "town"]
    _, known = fitted.predict(FRAME, return_std=True)
    _, new = fitted.predict(FRAME.assign(town="town 99"), return_std=True)
    assert new.mean() > 1.5 * known.mean()
    fitted.save(tmp_path / "model.nghvi")
    again = nghvi.load(tmp_path / "model.nghvi")
    np.testing.assert_array_equal(again.predict(FRAME), fitted.predict(FRAME))
