"""Data that were probably meant otherwise: an error or a warning names column and remedy."""

import copy
import dataclasses

import numpy as np
import pandas as pd
import polars as pl
import pytest

import nghvi
from nghvi import DataError, DataWarning, MixedClassifier, MixedRegressor
from nghvi.data.cells import misread
from nghvi.data.frame import drop_missing
from nghvi.formula import learn
from nghvi.recipes.verdict import Cause
from tests.conftest import panel_frame

FRAME = panel_frame()
N = len(FRAME)
NUMBERS = FRAME["a"].round(3).astype(str)
DAYS = pd.date_range("2020-01-01", periods=N)


def with_one(word):
    column = NUMBERS.copy()
    column[3] = word
    return column


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (with_one("n/a"), r"'s' holds numbers except in 1 of 247 cells \('n/a' in row 3\)"),
        (FRAME["a"].astype(object).where(FRAME.index != 5, "?"), r"1 of 247 cells \('\?' in row 5"),
        (NUMBERS, r"'s' holds numbers as text .*astype\(float\)"),
        (NUMBERS.str.replace(".", ","), r"'s' holds numbers with decimal commas.*decimal=','"),
        ([f"{1000 + i:,}" for i in range(N)], "commas between thousands.*'1,000' in row 0"),
        ("$" + NUMBERS, r"sign of their unit, .*str.strip\("),
        (NUMBERS + " %", r"sign of their unit, which are text \('.* %' in row 0"),
        (DAYS.strftime("%Y-%m-%d"), r"'s' holds dates as text .*dt\.days"),
        (DAYS.strftime("%d/%m/%Y"), r"'s' holds dates as text"),
        (DAYS, r"'s' holds dates: .*dt\.days"),
    ],
)
def test_text_that_means_numbers_or_dates_is_refused(values, said):
    frame = FRAME.assign(s=values)
    with pytest.raises(DataError, match=said):
        learn("y ~ a + s", frame)
    if not isinstance(values, pd.DatetimeIndex):
        with pytest.raises(DataError, match=said):
            MixedRegressor("g").fit(frame[["g", "s"]], frame["y"])
        with pytest.raises(DataError, match=said):
            learn(
                "y ~ a + s",
                pl.DataFrame({"y": FRAME["y"], "a": FRAME["a"], "s": list(map(str, values))}),
            )


@pytest.mark.parametrize(
    "values",
    [
        (np.arange(N) % 3).astype(str),  # a category written in digits
        [f"{i % 12:02d}" for i in range(N)],  # leading zeros make it a code
        np.where(np.arange(N) % 2, "1.5 l", "0.5 l"),
        np.where(np.arange(N) % 2, "2020-01-01", "2020-07-01"),  # two dates are two levels
    ],
)
def test_categories_stay_categories(values):
    assert misread(values, "s") is None
    assert len(learn("y ~ s", FRAME.assign(s=values)).columns) < 12


def test_c_says_that_a_category_is_meant():
    with pytest.warns(DataWarning, match=r"C\(s\) is a category with \d+ levels in 247 rows"):
        learn("y ~ C(s)", FRAME.assign(s=NUMBERS))
    with pytest.warns(
        DataWarning, match=r"s is a category with 247 levels in 247 rows.*\(1 \| s\)"
    ):
        learn("y ~ s", FRAME.assign(s=[f"town {i}" for i in range(N)]))


def holes():
    frame = FRAME.astype({"g": float})
    frame.loc[3, "a"] = frame.loc[5, "y"] = frame.loc[7, "g"] = np.nan
    return frame


SAID = r"3 of 247 rows have missing values in .* are left out \(missing='drop'\)"


def test_rows_with_missing_cells_are_left_out_if_asked():
    frame, whole = holes(), FRAME.drop([3, 5, 7])
    expected = MixedRegressor("g").fit(whole[["g", "a"]], whole["y"]).summary()
    fits = [
        lambda: nghvi.mixed("y ~ a + (1 | g)", frame.assign(b=np.nan), missing="drop"),
        lambda: MixedRegressor("g", missing="drop").fit(frame[["g", "a"]], frame["y"]),
        lambda: MixedRegressor("g", missing="drop").fit(
            pl.from_pandas(frame[["g", "a"]]), pl.from_pandas(frame["y"])
        ),
    ]
    for fit in fits:
        with pytest.warns(DataWarning, match=SAID):
            fitted = fit()
        pd.testing.assert_frame_equal(fitted.summary(), expected)
    X = frame if fitted.formula else frame[["g", "a"]]
    with pytest.warns(DataWarning, match=SAID):
        checked = fitted.check_rows(X, frame["y"], draws=50)
    assert checked["k_hat"].notna().all()
    assert list(checked.index[:6]) == [0, 1, 2, 4, 6, 8]
    with pytest.raises(DataError, match=r"'[ag]'.*1 row"):
        fitted.predict(X)


def test_missing_cells_of_arrays_and_counts():
    frame = holes()
    X, y = frame[["g", "a"]].to_numpy(), np.ma.array(frame["y"], mask=[True] + [False] * (N - 1))
    with pytest.warns(DataWarning, match=r"4 of 247 rows .* 'x0' \(1\), 'x1' \(1\), 'y' \(2\)"):
        found = drop_missing(X, y, np.arange(N))
    np.testing.assert_array_equal(found.kept[:5], [1, 2, 4, 6, 8])
    np.testing.assert_array_equal(found.counts, found.kept)
    np.testing.assert_array_equal(found.data, X[found.kept])
    assert len(found.y) == N - 4
    with pytest.raises(DataError, match="every row has missing values"):
        drop_missing(X * np.nan, y)
    with pytest.raises(DataError, match="missing='ignore': choose 'error', 'drop' or"):
        MixedRegressor(0, missing="ignore").fit(FRAME[["g", "a"]].to_numpy(), FRAME["y"])
    assert drop_missing(FRAME, FRAME["y"]).kept is None


def test_the_target_among_the_inputs_warns():
    for column in (FRAME["y"], 3 - 2 * FRAME["y"]):
        with pytest.warns(DataWarning, match="'t' is the response itself"):
            MixedRegressor("g").fit(FRAME[["g", "a"]].assign(t=column), FRAME["y"])
    labels = panel_frame(binary=True)["y"]
    with pytest.warns(DataWarning, match="'t' is the response itself"):
        MixedClassifier("g", method="sg-hvi", steps=5).fit(
            FRAME[["g", "a"]].assign(t=labels), labels
        )


@pytest.mark.parametrize("kind", [int, bool, float])
def test_two_classes_taken_for_measurements_warn(kind):
    y = panel_frame(binary=True)["y"].astype(kind)
    with pytest.warns(DataWarning, match="only 0 and 1 .*MixedClassifier, or response='logit'"):
        MixedRegressor("g").fit(FRAME[["g", "a"]], y)


def test_a_measurement_as_group_warns():
    with pytest.warns(DataWarning, match="'b' looks like a measurement: .* in 247 rows"):
        MixedRegressor("b").fit(FRAME[["a"]].assign(b=FRAME["b"].round(4)), FRAME["y"])


@pytest.mark.parametrize("power", [-200, -80, 80, 150, 300])
def test_sizes_beyond_numbers_are_refused(power, tmp_path):
    for x, y, name in [(10.0**power, 1.0, "a"), (1.0, 10.0**power, "y")]:
        X, response = FRAME[["g", "a"]].assign(a=x * FRAME["a"]), y * FRAME["y"]
        with pytest.raises(DataError, match=f"column '{name}' has values of size .*another unit"):
            MixedRegressor("g").fit(X, response)
        X.assign(y=response).to_parquet(tmp_path / "rows.parquet")
        rows = nghvi.GroupedDataset(tmp_path / "rows.parquet")
        with pytest.raises(DataError, match=f"column '{name}' has values of size"):
            MixedRegressor("g").fit(rows, "y")


def test_a_summary_that_is_not_finite_is_a_failure(fitted):
    """The last safeguard, whatever the optimiser reports."""
    assert fitted.converged_
    pool = fitted.posterior_.inference.pool
    broken = dataclasses.replace(
        fitted.posterior_.inference, pool=pool._replace(theta=np.full_like(pool.theta, np.inf))
    )
    copied = copy.copy(fitted)
    copied._publish(fitted.posterior_._replace(inference=broken))
    assert not copied.converged_
    assert copied.posterior_.inference.verdict.cause == Cause.NOT_FINITE
    assert copied.verdict_.startswith("Failed: parameters in the summary are not finite numbers.")
    extreme = MixedRegressor("g", standardize=False).fit(FRAME[["g", "a"]], 1e30 * FRAME["y"])
    assert not extreme.converged_ or np.isfinite(extreme.summary().to_numpy()).all()


@pytest.mark.parametrize(("of_x", "of_y"), [(1e-60, 1e60), (1e60, 1e-60)])
def test_large_and_small_units_give_the_same_fit(of_x, of_y):
    settings = {"group": "g", "random": ["intercept", "a"]}
    plain = MixedRegressor(**settings).fit(FRAME[["g", "a"]], FRAME["y"])
    X = FRAME[["g", "a"]].assign(a=of_x * FRAME["a"])
    other = MixedRegressor(**settings).fit(X, of_y * FRAME["y"])
    assert other.converged_
    ours, theirs = other.summary(), plain.summary()
    assert np.isfinite(ours.to_numpy()).all()
    slope = of_y / of_x
    for name, unit in {"a": slope, "noise_var": of_y**2, "effects_sd[a]": slope}.items():
        np.testing.assert_allclose(ours.loc[name] / unit, theirs.loc[name], rtol=0.02)
