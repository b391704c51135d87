"""Labels of groups: none are merged, none may be missing, and another type is not a new group."""

import datetime

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi import DataError, DataWarning, MixedRegressor
from nghvi.data.labels import encode_groups, read_labels, warn_of_strangers
from tests.conftest import panel_frame

DAYS = pd.date_range("2020-01-01", periods=3).to_numpy()


def objects(*values):
    found = np.empty(len(values), object)
    found[:] = values
    return found


@pytest.mark.parametrize(
    "values",
    [
        np.array(["2020-01-01", "NaT"], "M8[ns]"),
        objects(pd.Timestamp("2020-01-01"), pd.NaT),
        objects("a", None),
        objects("a", pd.NA),
        np.array([1.0, np.nan]),
        np.ma.array([1, 2], mask=[False, True]),
        np.ma.array(["a", "b"], mask=[False, True]),
    ],
)
def test_a_missing_label_is_refused_with_its_place(values):
    with pytest.raises(DataError, match=r"'school': 1 row without a group \(position 1\)"):
        read_labels(values, "school")


@pytest.mark.parametrize(
    "values",
    [
        objects("a", "a\0"),
        objects(b"a", b"a\0"),
        np.array([2**63, 2**63 + 1], np.uint64),
        objects(2**70, 2**70 + 1),
        np.array([2**53, 2**53 + 1]),
        objects((1, 2), (1, 3)),
        objects(1, 2.5),
        objects(datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
        pd.date_range("2020-01-01", periods=2, tz="Europe/Berlin").astype(object).to_numpy(),
    ],
)
def test_labels_that_differ_stay_different(values):
    labels = read_labels(values, "g")
    assert len(np.unique(labels)) == 2
    np.testing.assert_array_equal(encode_groups(labels, labels), [0, 1])


@pytest.mark.parametrize("values", [[2.0**63, 2.0**63 + 4096], np.array([2**24], np.float32)])
def test_floats_that_cannot_tell_labels_apart_are_refused(values):
    with pytest.raises(DataError, match=r"'g' holds .* cannot tell .* apart; read .* as integers"):
        read_labels(np.asarray(values), "g")


def test_labels_of_several_kinds_that_look_the_same_warn():
    with pytest.warns(DataWarning, match="among them 1 and '1'"):
        assert list(read_labels(objects(1, "1", "b"), "g")) == ["1", "1", "b"]
    assert list(read_labels(objects(1, "x", 2.0), "g")) == ["1", "x", "2"]


@pytest.mark.parametrize(
    ("labels", "levels", "expected"),
    [
        (["2020-01-02", "2020-01-03 00:00:00", "x"], DAYS, [1, 2, -1]),
        (DAYS, ["2020-01-02", "2020-01-01"], [1, 0, -1]),
        ([0, 1, 2], [False, True], [0, 1, -1]),
        ([True, False], [0, 1], [1, 0]),
        (["True", "false"], [False, True], [1, 0]),
        ([True], ["False", "True"], [1]),
        (["0.0", "1.0", "2"], [0, 1], [0, 1, -1]),
        ([0, 1], ["0.0", "1.0"], [0, 1]),
        ([1.0, 2.5], [1, 2], [0, -1]),
        ([7], ["7", "07"], [0]),  # the same literally
        ([7, 8], ["007", "8"], [0, 1]),
        ([7], ["007", "07"], [-1]),  # ambiguous
        (["9223372036854775809"], np.array([2**63, 2**63 + 1], np.uint64), [1]),
        (np.array([5], np.uint64), [4, 5], [1]),
        ([1], DAYS, [-1]),
    ],
)
def test_labels_are_matched_by_what_they_mean(labels, levels, expected):
    assert list(encode_groups(np.asarray(labels), np.asarray(levels))) == expected


@pytest.fixture(scope="module")
def dated():
    frame = panel_frame(num_groups=12)
    day = pd.Timestamp("2021-03-01") + pd.to_timedelta(frame["g"], unit="D")
    return frame.assign(g=day)


def test_predictions_after_a_csv_file_are_the_same(dated, tmp_path):
    fitted = MixedRegressor("g").fit(dated[["g", "a"]], dated["y"])
    dated.to_csv(tmp_path / "rows.csv", index=False)
    back = pd.read_csv(tmp_path / "rows.csv")[["g", "a"]]
    np.testing.assert_array_equal(fitted.predict(back), fitted.predict(dated[["g", "a"]]))
    with pytest.warns(DataWarning, match=r"'g' held dates at the fit \('2021.* holds text now"):
        fitted.predict(back.assign(g=back["g"].str.replace("2021", "March ")))
    with pytest.raises(DataError, match=r"held dates at the fit .* whole numbers now"):
        fitted.add_groups(dated[["g", "a"]].assign(g=3), dated["y"])


def test_predictions_of_strangers_only_warn(fitted, panel):
    strangers = panel[["g", "a", "b"]].assign(g=panel["g"] + 1000)
    with pytest.warns(DataWarning, match=r"'g': 0 of 30 groups are known \(now 1000, 1001"):
        fitted.predict(strangers)
    fitted.predict(strangers, which="population")
    fitted.predict(strangers[strangers["g"] < 1003])  # a few new groups are normal
    assert issubclass(nghvi.DataWarning, UserWarning)


@pytest.mark.parametrize(
    ("now", "fit", "warns"),
    [
        (np.arange(1, 40, 4), np.arange(0, 40, 2), False),  # a fold of groups
        (np.arange(100, 140), np.arange(40), True),
        ([f"S{i:02}" for i in range(20, 30)], [f"S{i:02}" for i in range(20)], False),
        ([f"school {i}" for i in range(20)], [f"S{i:02}" for i in range(20)], True),
        ([f"s{i:02}" for i in range(20)], [f"S{i:02}" for i in range(20)], True),
        (["Graz", "New York", "Linz", "Wels", "Bonn"], ["Paris", "Rome", "Oslo"], False),
        (DAYS[1::2], DAYS[::2], False),
    ],
)
def test_new_groups_that_look_like_the_fit_s_are_everyday_use(now, fit, warns, recwarn):
    now, fit = np.asarray(now), np.asarray(fit)
    warn_of_strangers(now, encode_groups(now, fit), fit, "g")
    assert bool(len(recwarn)) == warns


def test_masked_cells_are_missing():
    X = np.ma.array(panel_frame()[["g", "a", "b"]].to_numpy())
    y = np.ma.array(panel_frame()["y"].to_numpy())
    fit = MixedRegressor(0).fit
    for row, column, said in [(4, 1, "'x1' .1 row"), (5, 0, "without a group .position 5")]:
        masked = X.copy()
        masked[row, column] = np.ma.masked
        with pytest.raises(DataError, match=said):
            fit(masked, y)
    y[6] = np.ma.masked
    with pytest.raises(DataError, match=r"y: 1 row .*position 6"):
        fit(X, y)
