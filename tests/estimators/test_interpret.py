"""Curves follow the posterior, groups keep their effects, and errors name the culprit."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

import nghvi
from nghvi import interpret, plots

GROUPS = [0, 7, 13]
DRAWS = 2000


@pytest.fixture(scope="module")
def frame():
    """Return 20 groups of 10 rows in units far from standard ones; the slope of a varies."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(20), 10)
    a, b = 50 + 10 * rng.normal(size=200), -3 + rng.normal(size=200)
    intercept, slope = rng.normal(size=(2, 20)) * [[20.0], [1.0]]
    y = 100 + intercept[group] + (2 + slope[group]) * (a - 50) - 5 * b + 5 * rng.normal(size=200)
    return pd.DataFrame({"g": group, "a": a, "b": b, "y": y})


@pytest.fixture(scope="module")
def inputs(frame):
    return frame[["g", "a", "b"]]


@pytest.fixture(scope="module")
def linear(frame, inputs):
    return nghvi.MixedRegressor("g", random=["intercept", "a"]).fit(inputs, frame["y"])


@pytest.fixture(scope="module")
def deep(frame, inputs):
    model = nghvi.MixedRegressor("g", hidden=(3,), random="all", steps=60, n_starts=1)
    with pytest.warns(nghvi.DataWarning, match="learns .* with 20 groups"):
        return model.fit(inputs, frame["y"])


@pytest.fixture(scope="module")
def binary(frame):
    """Fit to arrays with the group in the middle and text labels; a few cheap steps suffice."""
    X = np.column_stack([frame["a"], frame["g"], frame["b"]])
    model = nghvi.MixedClassifier(1, method="sg-hvi", steps=20)
    return model.fit(X, np.where(frame["y"] > 115, "yes", "no")), X


def slope_of(curve, variable="a"):
    """Return the slope of a curve, after checking that it is a straight line."""
    x, y = curve[variable].to_numpy(), curve["mean"].to_numpy()
    slope, level = np.polyfit(x, y, 1)
    np.testing.assert_allclose(y, level + slope * x, atol=1e-8 * np.ptp(y))
    return slope


def test_lek_profile_of_a_linear_model_is_its_line(linear, inputs):
    table = interpret.lek_profile(linear, "a", ["population", *GROUPS], draws=DRAWS)
    assert list(table.columns) == ["group", "a", "mean", "lower", "upper"]
    assert len(table) == 4 * 19
    ends = np.quantile(inputs["a"], [0.05, 0.95])
    np.testing.assert_allclose([table["a"].min(), table["a"].max()], ends)
    coef, effects = linear.summary()["mean"], linear.group_effects()
    sd = linear.summary()["sd"]["a"] + effects["a_sd"].max()
    at_median = coef["intercept"] + coef["b"] * inputs["b"].median()
    for group in ["population", *GROUPS]:
        curve = table[table["group"] == group]
        shift, tilt = (
            (0, 0) if group == "population" else effects.loc[group, ["intercept_mean", "a_mean"]]
        )
        assert slope_of(curve) == pytest.approx(coef["a"] + tilt, abs=0.1 * sd)
        line = at_median + shift + (coef["a"] + tilt) * curve["a"]
        np.testing.assert_allclose(curve["mean"], line, atol=0.1 * (curve["upper"] - line).max())
        assert (curve["lower"] < curve["mean"]).all()
        assert (curve["mean"] < curve["upper"]).all()


def test_bands_are_those_of_the_expected_response(linear):
    """Bands are quantiles of coef + effects, much narrower than predictive intervals."""
    drawn = linear.posterior_draws(4000)
    table = interpret.lek_profile(linear, "a", 7, {"b": -3.0}, grid=[60.0], draws=4000, level=0.8)
    row, at = np.array([1.0, 60.0, -3.0]), np.array([1.0, 60.0])
    eta = drawn["coef"] @ row + drawn["effects"][:, 7] @ at
    expected = [eta.mean(), *np.quantile(eta, [0.1, 0.9])]
    np.testing.assert_allclose(
        table[["mean", "lower", "upper"]].iloc[0], expected, atol=0.1 * eta.std()
    )
    new = pd.DataFrame({"g": [7], "a": [60.0], "b": [-3.0]})
    low, high = linear.predict_interval(new, 0.8)
    assert table["upper"][0] - table["lower"][0] < 0.8 * (high - low)[0]


def test_a_row_of_the_table_is_a_reference(linear, inputs):
    row = inputs.iloc[4]
    from_row = interpret.lek_profile(linear, "a", reference=row, draws=50)
    from_dict = interpret.lek_profile(linear, "a", reference={"b": row["b"]}, draws=50)
    pd.testing.assert_frame_equal(from_row, from_dict)
    at_zero = linear.predict(
        inputs.iloc[[4] * 19].assign(a=from_row["a"].to_numpy()), which="zero", draws=50
    )
    np.testing.assert_allclose(from_row["mean"], at_zero)


def test_an_indicator_has_no_values_between_0_and_1(frame, inputs):
    marked = inputs.assign(high=(inputs["a"] > 50).astype(float))
    model = nghvi.MixedRegressor("g", random="intercept").fit(marked, frame["y"])
    table = interpret.lek_profile(model, "high", draws=20)
    assert list(table["high"]) == [0, 1]
    assert len(interpret.lek_profile(model, "high", grid=[0, 0.5, 1], draws=20)) == 3
    drawn = plots.lek(model, "high", draws=20).lines[0]
    assert drawn.get_marker() == "o"
    assert list(drawn.get_xdata()) == [0, 1]


def test_partial_dependence_has_the_average_slope(linear, inputs):
    uneven = inputs[(inputs["g"] != 3) | (np.arange(200) % 10 < 2)]
    table = interpret.partial_dependence(linear, "a", uneven, draws=500)
    slopes = linear.summary()["mean"]["a"] + linear.group_effects()["a_mean"]
    assert set(table["group"]) == {"all"}
    average = slopes.loc[uneven["g"]].mean()
    assert slope_of(table) == pytest.approx(average, abs=0.2 * linear.summary()["sd"]["a"])
    at = uneven.assign(a=table["a"].iloc[5])
    expected = linear.predict(at, draws=500).mean()
    assert table["mean"].iloc[5] == pytest.approx(expected, abs=0.5)


def test_partial_dependence_by_group(linear, inputs, monkeypatch):
    settings = {"groups": GROUPS, "n_grid": 5, "draws": 400}
    table = interpret.partial_dependence(linear, "a", inputs, **settings)
    slopes = linear.summary()["mean"]["a"] + linear.group_effects()["a_mean"]
    for group, curve in table.groupby("group"):
        tolerance = 0.25 * linear.group_effects()["a_sd"][group]
        assert slope_of(curve) == pytest.approx(slopes[group], abs=tolerance)
        assert curve["mean"].between(curve["lower"], curve["upper"]).all()
    monkeypatch.setattr(interpret, "NUMBERS_AT_ONCE", 30_000)
    in_pieces = interpret.partial_dependence(linear, "a", inputs, **settings)
    pd.testing.assert_frame_equal(in_pieces, table)


def test_groups_never_seen_widen_the_band(linear, inputs):
    own = interpret.partial_dependence(linear, "a", inputs[:10], n_grid=3)
    new = interpret.partial_dependence(linear, "a", inputs[:10].assign(g=99), n_grid=3)
    assert (new["upper"] - new["lower"] > 2 * (own["upper"] - own["lower"])).all()


def test_probabilities_of_a_classifier_fitted_to_arrays(binary):
    model, X = binary
    curves = [
        interpret.lek_profile(model, 0, ["population", 3], draws=50),
        interpret.partial_dependence(model, "x0", X, draws=20, n_grid=4),
    ]
    for curve in curves:
        assert curve.columns[1] == "x0"
        assert curve[["lower", "mean", "upper"]].stack().between(0, 1).all()
    medians = np.tile(np.median(X, axis=0), (19, 1))
    medians[:, 0] = curves[0]["x0"][:19]
    without = model.predict_proba(medians, which="zero", draws=50)[:, 1]
    np.testing.assert_allclose(curves[0]["mean"][:19], without)


def test_deep_model_gives_finite_curves_and_shares(deep, inputs):
    tables = [
        interpret.lek_profile(deep, "a", ["population", 2], draws=50),
        interpret.partial_dependence(deep, "b", inputs, n_grid=4, draws=20),
        interpret.variance_share(deep),
    ]
    for table in tables:
        assert np.isfinite(table.select_dtypes("number")).all(axis=None)
    assert list(tables[2].index) == ["intercept", "a", "b", "h1", "h2", "h3"]
    assert tables[2]["mean"].sum() == pytest.approx(1)
    pd.testing.assert_frame_equal(interpret.variance_share(deep, inputs), tables[2])


def test_variance_shares_of_a_linear_model(linear, inputs):
    """With standardised columns E[h_j^2] = 1, so that shares are those of the variances alone."""
    table = interpret.variance_share(linear, draws=1000)
    scale = np.array([1.0, inputs["a"].std(ddof=0)])
    posterior = linear.posterior_
    theta = posterior.inference.pool.resample(1000, np.random.default_rng(0))
    back = np.linalg.inv(posterior.maps()[1])
    variances = np.diagonal(
        back @ posterior.globals_at(theta)["effects_cov"] @ back.T, axis1=1, axis2=2
    )
    shares = variances / variances.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(table["mean"], shares.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(table["sd"], shares.std(axis=0), rtol=1e-6)
    assert table["mean"].sum() == pytest.approx(1)
    assert posterior.scaling.scale[:2] == pytest.approx(scale)
    shifted = interpret.variance_share(linear, inputs.assign(a=inputs["a"] + 20))
    assert shifted["mean"]["a"] > table["mean"]["a"]


def test_complaints_name_the_culprit(linear, frame, inputs):
    for call, message in (
        (lambda: interpret.lek_profile(linear, "c"), "variable='c'"),
        (lambda: interpret.lek_profile(linear, "a", [0, 77]), "group 77"),
        (lambda: interpret.lek_profile(linear, "a", []), "groups is empty"),
        (lambda: interpret.lek_profile(linear, "a", quantiles=(0.1, 0.9)), "0.05, 0.25"),
        (lambda: interpret.lek_profile(linear, "a", grid=[np.nan]), "grid"),
        (lambda: interpret.lek_profile(linear, "a", level=90), "level=90"),
        (lambda: interpret.lek_profile(linear, "a", draws=0), "draws=0"),
        (lambda: interpret.lek_profile(linear, "a", reference={"z": 1}), "'z'"),
        (lambda: interpret.lek_profile(linear, "a", reference={"b": "x"}), "'b'"),
        (lambda: interpret.partial_dependence(linear, "a", inputs[:10], 7), "group 7 has no row"),
        (lambda: interpret.partial_dependence(linear, "a", inputs, "who"), "'who'"),
    ):
        with pytest.raises(nghvi.DataError, match=message):
            call()
    plain = nghvi.MixedRegressor(steps=5).fit(frame[["a", "b"]], frame["y"])
    assert len(interpret.lek_profile(plain, "a", draws=10)) == 19
    for call in (
        lambda: interpret.lek_profile(plain, "a", [0]),
        lambda: interpret.variance_share(plain),
    ):
        with pytest.raises(nghvi.DataError, match="the model has no"):
            call()


def test_a_group_column_called_noise_is_not_taken_for_noise(frame):
    renamed = frame.rename(columns={"g": "noise"})
    model = nghvi.MixedRegressor("noise").fit(renamed[["noise", "a"]], frame["y"])
    with pytest.raises(nghvi.DataError, match=r"grouping factor 'noise' .*rename it"):
        interpret.icc(model)


def test_quantiles_of_the_inputs_outlive_a_file(linear, inputs, tmp_path):
    linear.save(tmp_path / "model.nghvi")
    loaded = nghvi.load(tmp_path / "model.nghvi")
    pd.testing.assert_frame_equal(loaded.input_quantiles_, linear.input_quantiles_)
    assert linear.input_quantiles_.loc[0.5, "b"] == pytest.approx(inputs["b"].median())


def test_pictures(linear, binary, inputs):
    few = plots.lek(linear, "a", ["population", 0, 7], draws=20)
    assert [t.get_text() for t in few.get_legend().get_texts()] == ["population", "g 0", "g 7"]
    many = plots.lek(linear, "a", ["population", *range(20)], draws=20)
    assert many.get_legend() is None
    assert len(many.lines) == 21
    _, ax = plt.subplots()
    assert plots.partial_dependence(linear, "a", inputs, ax=ax, n_grid=4, draws=10) is ax
    assert plots.lek(binary[0], "x0", draws=10).get_ylabel() == "probability of yes"
    shares = plots.variance_share(linear, most=1)
    assert len(shares.patches) == 1
    plt.close("all")


def test_an_input_of_an_interaction_moves_in_all_of_its_columns(frame):
    """Curves equal a formula's own predictions, also with the effects of groups."""
    data = frame.assign(sector=lambda d: np.where(d["b"] > d["b"].median(), "public", "private"))
    model = nghvi.mixed("y ~ a * sector + (1 | g)", data)
    grid = [-1.0, 0.0, 2.0]
    rows = pd.DataFrame({"a": grid, "sector": "public"})
    table = interpret.lek_profile(model, "a", reference={"sector": "public"}, grid=grid)
    np.testing.assert_allclose(table["mean"], model.predict(rows, which="zero"), rtol=1e-6)
    table = interpret.lek_profile(model, "a", [3], {"sector": "public"}, grid=grid)
    np.testing.assert_allclose(table["mean"], model.predict(rows.assign(g=3)), atol=0.5)
    common = interpret.lek_profile(model, "a", grid=grid)
    rows["sector"] = data["sector"].mode()[0]
    np.testing.assert_allclose(common["mean"], model.predict(rows, which="zero"), rtol=1e-6)
    average = interpret.partial_dependence(model, "a", data, grid=grid, draws=200)
    moved = [model.predict(data.assign(a=value)).mean() for value in grid]
    np.testing.assert_allclose(average["mean"], moved, atol=0.5)
    with pytest.raises(nghvi.DataError, match=r"'sector' is not a numeric input"):
        interpret.lek_profile(model, "sector")
    with pytest.raises(nghvi.DataError, match="'c' is not an input"):
        interpret.lek_profile(model, "a", reference={"c": 1})
