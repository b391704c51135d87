"""Levels added after the fit of a model with several factors. Every seed is fixed."""

import numpy as np
import pandas as pd
import pytest

import nghvi
from tests.estimators.test_factor_fits import FORMULA, dense_prediction, panel

ROWS = panel()


def more():
    """Rows of a new firm in known months and a new one, and of a known firm in the new month."""
    rng = np.random.default_rng(4)
    new = pd.DataFrame(
        {
            "x": 1 + rng.standard_normal(7),
            "firm": [900, 900, 900, 901, 900, 103, 110],
            "month": ["m0", "m3", "m7", "m2", "late", "late", "late"],
        }
    )
    return new.assign(y=4 + rng.standard_normal(7))


@pytest.fixture(scope="module")
def fitted():
    return nghvi.mixed(FORMULA, ROWS)


@pytest.fixture(scope="module")
def extended(fitted):
    new = more()
    return fitted.add_groups(new.drop(columns="y"), new["y"])


def test_predictions_are_those_of_all_rows(fitted, extended, unmoved):
    """The oracle solves with all rows, old and new, at every draw of theta."""
    asked = pd.DataFrame(
        {
            "x": [0.0, 1.0, 2.0, 1.0, 0.5, 1.0],
            "firm": [900, 901, 103, 100, 777, 110],
            "month": ["late", "m2", "late", "m0", "m3", "m1"],
        }
    )
    everything = pd.concat([ROWS, more()], ignore_index=True)
    mean, sd = extended.predict(asked, return_std=True, draws=200, seed=3)
    expected, spread = dense_prediction(extended, everything, asked)
    np.testing.assert_allclose(mean, expected, atol=1e-8)
    np.testing.assert_allclose(sd, spread, atol=1e-8)
    for name in ("coef", "noise_var", "effects_cov[firm]", "effects_cov[month]"):
        before = fitted.posterior_draws(50)[name]
        np.testing.assert_array_equal(extended.posterior_draws(50)[name], before)


def test_the_original_knows_nothing_of_them(fitted, extended):
    assert len(fitted.groups_["firm"]) == 15
    assert list(extended.groups_["firm"][15:]) == [900, 901]
    assert list(extended.groups_["month"][8:]) == ["late"]
    table = extended.group_effects("month")
    drawn = extended.posterior_draws(2000)["effects[month]"][:, :, 0]
    assert drawn.shape == (2000, 9)
    np.testing.assert_allclose(drawn.mean(0), table["intercept_mean"], atol=0.1)
    # Five rows of a new firm say something about the months they were seen in.
    change = table["intercept_mean"][:8] - fitted.group_effects("month")["intercept_mean"]
    assert np.abs(change).min() > 1e-6


def test_adding_twice_is_adding_once(extended, fitted):
    new, late = more(), (more()["month"] == "late").to_numpy()
    twice = fitted
    for part in (new[~late], new[late]):
        twice = twice.add_groups(part.drop(columns="y"), part["y"])
    found, expected = (model.predict(new, return_std=True) for model in (twice, extended))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_all_rows_are_those_of_the_extended_fit_and_survive_a_file(extended, tmp_path):
    everything = pd.concat([ROWS, more()], ignore_index=True)
    assert len(extended.loo(everything, everything["y"], draws=200).elpd_i) == len(everything)
    extended.save(tmp_path / "model")
    again = nghvi.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(more()), extended.predict(more()))


@pytest.mark.parametrize("nested", [True, False])
def test_counts_move_towards_their_new_levels(nested):
    """The same rows, added or fitted, give about the same effects of new levels."""
    rng = np.random.default_rng(1)
    a, b = np.repeat(np.arange(20), 6), np.tile(np.arange(6), 20)
    b = a // 4 if nested else b
    rate = np.exp(1 + 0.6 * rng.standard_normal(20)[a] + 0.4 * rng.standard_normal(6)[b])
    frame = pd.DataFrame({"n": rng.poisson(rate), "a": a, "b": b})
    first = frame["a"] < 18
    formula = "n ~ 1 + (1 | a) + (1 | b)"
    model = nghvi.mixed(formula, frame[first], response="poisson")
    whole = nghvi.mixed(formula, frame, response="poisson")
    extended = model.add_groups(frame[~first], frame["n"][~first])
    for factor in ("a", "b"):
        found, expected = (each.group_effects(factor) for each in (extended, whole))
        assert list(found.index) == list(expected.index)
        error = np.abs(found["intercept_mean"] - expected["intercept_mean"])
        assert (error < 0.5 * expected["intercept_sd"]).all()


def test_levels_of_a_network(fitted_panel):
    model, rows = fitted_panel
    new = rows[rows["firm"] == rows["firm"].min()].assign(firm=99)
    before, after = model.predict(new), model.add_groups(new, new["y"] + 3).predict(new)
    assert after.mean() > before.mean() + 1


@pytest.fixture(scope="module")
def fitted_panel():
    rng = np.random.default_rng(0)
    firm, month = (each.ravel() for each in np.meshgrid(range(12), range(10)))
    x = rng.normal(size=120)
    y = np.sin(2 * x) + rng.normal(size=12)[firm] + 0.5 * rng.normal(size=10)[month]
    rows = pd.DataFrame({"y": y + 0.2 * rng.normal(size=120), "x": x, "firm": firm, "month": month})
    model = nghvi.mixed("y ~ x + (1 | firm) + (1 | month)", rows, hidden=(4,), steps=50)
    return model, rows


def test_what_cannot_be_added(fitted):
    rows = ROWS.head(3).assign(firm=[950, 101, 951])
    with pytest.raises(
        nghvi.InputError, match="row 1: 'firm' 101 and 'month' m0 are already known"
    ):
        fitted.add_groups(rows, rows["y"])
    with pytest.raises(nghvi.InputError, match="use labels of the same kind"):
        fitted.add_groups(rows.assign(firm="new"), rows["y"])
