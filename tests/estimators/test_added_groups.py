"""Groups added after the fit, and rows with counts. Deterministic: every seed is fixed."""

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi import DataError
from nghvi.data.labels import encode_groups
from tests.estimators.test_predictions import (
    BINARY,
    COLUMNS,
    DRAWS,
    FRAME,
    NEW,
    known_groups,
    moments,
    oracle,
)

Y_NEW = np.random.default_rng(5).normal(size=len(NEW)) + 2
ADDED = NEW.assign(y=Y_NEW)
BOTH = pd.concat([FRAME[COLUMNS], NEW], ignore_index=True)
FEW = BOTH.iloc[-20:]
"""Rows of known groups and of all added ones."""


@pytest.fixture(scope="module")
def extended(fitted):
    return fitted.add_groups(NEW, Y_NEW)


def test_added_groups_are_conditioned_on_their_rows(fitted, extended, unmoved):
    """Given the same draws of theta the result is exact up to rounding; globals do not change."""
    theta = extended.posterior_draws(DRAWS)
    expected = moments(*oracle(theta, BOTH, {**known_groups(), **known_groups(ADDED)}))
    found = extended.predict(BOTH, return_std=True)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    before = fitted.posterior_draws(DRAWS)
    for name in ("coef", "noise_var", "effects_cov"):
        np.testing.assert_array_equal(theta[name], before[name])
    np.testing.assert_array_equal(theta["effects"][:, :30], before["effects"])


def test_the_original_knows_nothing_of_added_groups(fitted, extended, unmoved):
    assert len(fitted.groups_) == 30
    assert list(extended.groups_[30:]) == [500, 600, 700]
    assert fitted.posterior_.added == ()
    population = moments(*oracle(fitted.posterior_draws(DRAWS), NEW))
    np.testing.assert_allclose(fitted.predict(NEW, return_std=True), population, atol=1e-8)


def test_added_groups_are_in_draws_and_tables(extended):
    drawn = extended.posterior_draws(1000)["effects"]
    assert drawn.shape == (1000, 33, 2)
    table = extended.group_effects()
    assert list(table.index[-3:]) == [500, 600, 700]
    assert (np.abs(drawn[:, :, 0].mean(axis=0) - table["intercept_mean"]) < 0.1).all()
    # Added groups have noise of their own; the bound is 5 standard errors of a correlation.
    noise = drawn[:, :, 0] - drawn[:, :, 0].mean(axis=0)
    old_and_new = np.corrcoef(noise.T)[:30, 30:]
    globals_alone = np.abs(np.corrcoef(noise.T)[:30, :30] - np.eye(30)).max()
    assert np.abs(old_and_new).max() < globals_alone + 5 / np.sqrt(1000)
    tree = extended.to_arviz(draws=10)
    assert tree["posterior"]["effects"].sizes["group"] == 33


def test_a_large_added_group_finds_its_own_mean(fitted):
    """With 400 rows the prior's share is below 1 %; the mean's standard error is 0.035."""
    rng = np.random.default_rng(2)
    x = pd.DataFrame({"g": 77, "a": rng.normal(size=400), "b": rng.normal(size=400)})
    y = 6 + 2 * x["a"] - 0.5 * x["b"] + 0.7 * rng.normal(size=400)
    found = fitted.add_groups(x, y).predict(x)
    assert found.mean() == pytest.approx(y.mean(), abs=0.05)
    assert np.polyfit(x["a"], found, 1)[0] == pytest.approx(2, abs=0.2)


def test_adding_twice_is_adding_once(fitted, extended):
    first = (NEW["g"] == 700).to_numpy()
    twice = fitted.add_groups(NEW[first], Y_NEW[first]).add_groups(NEW[~first], Y_NEW[~first])
    assert list(twice.groups_[30:]) == [700, 500, 600]
    np.testing.assert_allclose(
        twice.predict(FEW, return_std=True), extended.predict(FEW, return_std=True), rtol=1e-9
    )
    drawn = twice.sample_predictive(FEW, draws=DRAWS)
    mean, sd = twice.predict(FEW, return_std=True)
    assert (np.abs(drawn.mean(axis=0) - mean) < 5 * sd / np.sqrt(DRAWS)).all()


def test_refused_additions(fitted, extended):
    with pytest.raises(DataError, match=r"group .*500.* is already known"):
        extended.add_groups(NEW, Y_NEW)
    with pytest.raises(DataError, match="is already known"):
        fitted.add_groups(FRAME[COLUMNS], FRAME["y"])
    with pytest.raises(DataError, match="y has 3"):
        fitted.add_groups(NEW, Y_NEW[:3])


def test_an_extended_estimator_comes_back_from_a_file(extended, tmp_path):
    extended.save(tmp_path / "model")
    again = nghvi.load(tmp_path / "model")
    np.testing.assert_array_equal(again.groups_, extended.groups_)
    np.testing.assert_array_equal(again.predict(FEW), extended.predict(FEW))


def test_groups_of_classifiers_and_networks_are_added(fitted_case):
    """A group with only successes moves up; labels of any length are kept."""
    text = BINARY.assign(g="s" + BINARY["g"].astype(str))
    model = nghvi.MixedClassifier("g").fit(text[COLUMNS], text["y"])
    rows = text[COLUMNS][:10].assign(g="a much longer label")
    extended = model.add_groups(rows, np.ones(10, int))
    assert extended.groups_[-1] == "a much longer label"
    assert (extended.predict_proba(rows)[:, 1] > model.predict_proba(rows)[:, 1]).all()
    deep = fitted_case("deep")[0]
    rows = FRAME[COLUMNS][:60].assign(g=99)
    assert deep.add_groups(rows, np.full(60, 4.0)).predict(rows).mean() > 2.5
    assert deep.predict(rows).mean() < 1.5


@pytest.mark.parametrize(
    ("labels", "levels", "expected"),
    [
        ([2, 1], [0.5, 1.0, 2.0], [2, 1]),
        ([0.5, 1.0], [1, 2], [-1, 0]),
        (["7", "x"], [8, 7], [1, -1]),
        (["abc", "ab"], ["b", "ab"], [-1, 1]),
    ],
)
def test_labels_are_found_whatever_their_type(labels, levels, expected):
    assert list(encode_groups(np.array(labels), np.array(levels))) == expected


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("kind", [nghvi.MixedRegressor, nghvi.MixedClassifier])
def test_counts_are_repeated_rows(kind, standardize):
    """The same likelihood is summed in another order, so that fits differ only by rounding."""
    frame = BINARY if kind is nghvi.MixedClassifier else FRAME
    counts = np.random.default_rng(0).integers(0, 4, len(frame))
    counts[frame["g"] == 0] = 1
    repeated = frame.loc[frame.index.repeat(counts)]
    model = kind("g", standardize=standardize)
    one = model.fit(frame[COLUMNS], frame["y"], counts=counts)
    summary, elbo = one.summary(), one.elbo_
    two = model.fit(repeated[COLUMNS], repeated["y"])
    np.testing.assert_allclose(summary["mean"], two.summary()["mean"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(summary["sd"], two.summary()["sd"], rtol=1e-5)
    assert elbo == pytest.approx(two.elbo_, rel=1e-6)


def test_a_group_that_was_never_observed_has_the_prior():
    """Counts of 0 for one group do not change the sums of the others."""
    from nghvi.data import LinearStatistics, Rows

    x, group = np.arange(1.0, 13.0).reshape(6, 2), np.repeat([0, 1, 2], 2)
    for empty in range(3):
        weight = np.where(group == empty, 0.0, 1.0)
        rows = Rows.from_arrays(x, x[:, 0] ** 2, group, 3, weight)
        found = LinearStatistics.from_rows(rows, (0,))
        gram = found.in_original_order(np.moveaxis(np.asarray(found.effects_gram), -1, 0))
        np.testing.assert_allclose(gram.ravel(), np.bincount(group, weight * x[:, 0] ** 2))


@pytest.mark.parametrize("counts", [[1, 2], -np.ones(len(FRAME)), np.zeros(len(FRAME))])
def test_bad_counts_are_refused(counts):
    with pytest.raises(DataError, match="counts"):
        nghvi.MixedRegressor("g").fit(FRAME[COLUMNS], FRAME["y"], counts=counts)
