"""The estimators inside scikit-learn's tools, and with tables of every kind. Seeds are fixed."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import nghvi
from nghvi import DataError

COLUMNS = ["g", "a", "b"]
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {"g": np.repeat(np.arange(12), 6), "a": RNG.normal(size=72), "b": RNG.normal(size=72)}
)
X, GROUP = FRAME, FRAME["g"].to_numpy()
Y = RNG.normal(size=12)[GROUP] + X["a"] + 0.3 * RNG.normal(size=72)
"""12 groups of 6 rows: thirds of rows or groups have the same shape in every fold."""


@pytest.fixture(scope="module")
def fitted():
    return nghvi.MixedRegressor("g").fit(X, Y)


def test_a_pipeline_passes_the_group_column_through(fitted):
    kind = np.where(np.arange(72) % 3 == 0, "red", "blue")
    columns = ColumnTransformer(
        [
            ("kind", OneHotEncoder(drop="first", sparse_output=False), ["kind"]),
            ("scale", StandardScaler(), ["a", "b"]),
        ],
        remainder="passthrough",
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    pipeline = make_pipeline(columns, nghvi.MixedRegressor("g"))
    pipeline.fit(X.assign(kind=kind), Y)
    assert set(pipeline[-1].feature_names_in_) == {"kind_red", "a", "b", "g"}
    found = pipeline.predict(X.assign(kind=kind))
    # Another column of noise, whose coefficient is 0 with a standard error of 0.07.
    np.testing.assert_allclose(found, fitted.predict(X), atol=0.4)
    assert np.corrcoef(found, fitted.predict(X))[0, 1] > 0.99


def test_search_over_effects_and_networks():
    model = nghvi.MixedRegressor("g", steps=30, n_starts=1)
    grid = [{"random": ["intercept", ["intercept", "a"]]}, {"hidden": [(3,)]}]
    folds = KFold(2, shuffle=True, random_state=0)  # groups in both
    search = GridSearchCV(model, grid, cv=folds, error_score="raise").fit(X, Y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_params_["random"] in ("intercept", ["intercept", "a"])
    assert len(search.predict(X)) == 72


def test_left_out_groups_are_predicted_from_the_population():
    """The effects of unseen groups cannot be predicted, but the slope can."""
    model = nghvi.MixedRegressor("g")
    train, test = next(GroupKFold(3).split(X, Y, GROUP))
    assert not set(GROUP[train]) & set(GROUP[test])
    part = clone(model).fit(X.iloc[train], Y.iloc[train])
    np.testing.assert_allclose(
        part.predict(X.iloc[test]), part.predict(X.iloc[test], which="population")
    )
    within = cross_val_score(model, X, Y, cv=KFold(3, shuffle=True, random_state=0))
    between = cross_val_score(model, X, Y, cv=GroupKFold(3), groups=GROUP)
    assert np.isfinite(between).all()
    assert within.mean() > between.mean()


def test_tables_of_every_kind_predict_alike(fitted):
    """Fit to each kind of table and predict with another, by names or positions."""
    expected = fitted.predict(X)
    assert list(fitted.feature_names_in_) == COLUMNS
    polars = pl.from_pandas(X)
    for table in (polars, polars.to_arrow(), X.convert_dtypes(), X[["b", "g", "a"]]):
        np.testing.assert_allclose(fitted.predict(table), expected, rtol=1e-9)
    array = nghvi.MixedRegressor(0).fit(X.to_numpy(), Y)
    numbered = X.set_axis([0, 1, 2], axis=1)
    for table in (X.to_numpy(), X.to_numpy().tolist(), X, numbered):
        np.testing.assert_allclose(array.predict(table), expected, rtol=1e-9)
    from_numbered = nghvi.MixedRegressor(0).fit(numbered, Y)
    np.testing.assert_allclose(from_numbered.predict(numbered), expected, rtol=1e-9)


def test_names_of_an_earlier_fit_are_forgotten():
    model = nghvi.MixedRegressor(0).fit(X, Y)
    assert hasattr(model, "feature_names_in_")
    model.fit(X.to_numpy(), Y)
    assert not hasattr(model, "feature_names_in_")
    assert np.isfinite(model.predict(X)).all()


TWICE = pd.concat([X, X[["a"]]], axis=1)
REFUSED = {
    "duplicate": (TWICE, "'a' occurs more than once"),
    "duplicate as text": (X.assign(**{"1": 0.0}).rename(columns={"b": 1}), "'1' occurs more"),
    "text": (X.assign(b=X.index.map("row {}".format)), "'b' (is a category|held numbers)"),
    "dicts": (X.assign(b=[{}] * 72), "'b' is neither numeric nor a category"),
    "group missing": (X[["a", "b"]], "'g' is not in the data"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tables_refused_by_fit_and_predict(name, fitted):
    table, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        nghvi.MixedRegressor("g").fit(table, Y)
    with pytest.raises(DataError, match=message):
        fitted.predict(table)


def test_other_columns_than_the_fit_s_are_refused(fitted):
    with pytest.raises(DataError, match="missing 'b'"):
        fitted.predict(X[["g", "a"]])
    np.testing.assert_array_equal(fitted.predict(X.assign(c=1.0, y=Y)), fitted.predict(X))
    with pytest.raises(DataError, match="missing 'b' and unexpected 'c'"):
        fitted.predict(X.rename(columns={"b": "c"}))
    with pytest.raises(DataError, match="index"):
        fitted.predict(X.to_numpy())
    with pytest.raises(DataError, match="is not in the data"):
        nghvi.MixedRegressor(5).fit(X, Y)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.predict(X),
        lambda m: m.sample_predictive(X),
        lambda m: m.log_score(X, Y),
        lambda m: m.add_groups(X, Y),
        lambda m: m.summary(),
        lambda m: m.group_effects(),
        lambda m: m.posterior_draws(),
    ],
)
@pytest.mark.parametrize("kind", [nghvi.MixedRegressor, nghvi.MixedClassifier])
def test_nothing_is_said_before_the_fit(call, kind):
    with pytest.raises(NotFittedError):
        call(kind("g"))
