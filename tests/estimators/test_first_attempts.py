"""What new users try first: tables and settings of other kinds, and columns of unusual types."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi.estimators.reader import RowReader, read_to_fit
from nghvi.responses import Gaussian
from tests.conftest import panel_frame

FRAME = panel_frame()
X, Y = FRAME[["g", "a", "b"]], FRAME["y"]
FORMULA = "y ~ a + b + (1 | g)"


def table(formula, frame):
    return RowReader.learn(nghvi.MixedRegressor(formula=formula), frame, Gaussian())[1]


@pytest.mark.parametrize(
    "column",
    [
        [Decimal(str(round(v, 3))) for v in FRAME["a"]],
        pd.Series(np.arange(len(FRAME)).tolist(), dtype=object),
    ],
    ids=["decimals", "whole numbers"],
)
def test_a_formula_reads_numbers_that_are_held_as_objects(column):
    found = table(FORMULA, FRAME.assign(a=column))
    np.testing.assert_array_equal(found.values[:, 0], np.array(column, float))
    assert found.names == ("a", "b")


def test_a_gap_among_objects_is_a_missing_number():
    column = [None, *[Decimal(k) for k in range(1, len(FRAME))]]
    with pytest.raises(nghvi.DataError, match=r"'a' \(1 row, position 0\)"):
        table(FORMULA, FRAME.assign(a=column))


def test_group_labels_beyond_64_bits_stay_apart():
    found = table(FORMULA, FRAME.assign(g=[10**25 + k // 4 for k in range(len(FRAME))]))
    assert len(np.unique(found.group)) == -(-len(FRAME) // 4)


@pytest.mark.parametrize(
    ("formula", "frame", "said"),
    [
        (FORMULA, "pupils.csv", r"not a str; read the file first"),
        (FORMULA, {"y": [1.0]}, r"not a dict; make it one \(pandas.DataFrame"),
        (FRAME, FORMULA, r"formula a DataFrame: a formula is a text"),
        ("y ~ A + (1 | g)", FRAME, r"no column 'A' in the data. Did you mean 'a'\?"),
        ("y ~ u-v + (1 | g)", FRAME.rename(columns={"b": "u-v"}), "backticks: `u-v`"),
        (FORMULA, FRAME.assign(a=FRAME["a"] + 1j), "'a' holds complex numbers"),
        (FORMULA, FRAME.assign(g=FRAME["g"].where(FRAME["g"] > 0)), "label them: a label that"),
        (f"{FORMULA} + exposure(b)", FRAME.assign(b=1.5), "'gaussian' does not support an expo"),
    ],
)
def test_a_formula_says_what_to_do_instead(formula, frame, said):
    with pytest.raises(nghvi.DataError, match=said):
        nghvi.mixed(formula, frame)


@pytest.mark.parametrize(
    ("data", "settings", "said"),
    [
        (None, {}, "X is None; pass a data frame"),
        ("pupils.csv", {}, "X is a str, not a table.*read the file first"),
        (X, {"group": FRAME["g"]}, r"group=a Series: give the name.*X.assign\(group=labels\)"),
        (X, {"weights": np.ones(500)}, "weights=a ndarray: it must be the name of a column"),
        (X, {"exposure": 2.0}, "does not support an exposure"),
        (pd.concat({"survey": X}, axis=1), {}, r"several levels; join them: data.columns ="),
        (X.to_numpy(), {}, r"set_output\(transform='pandas'\)"),
        (X.assign(b=pd.PeriodIndex(["2024-01"] * len(X), freq="M")), {}, r"'b' is.*period\[M\]"),
    ],
)
def test_an_estimator_says_what_to_do_instead(data, settings, said):
    with pytest.raises(nghvi.DataError, match=said):
        nghvi.MixedRegressor(**{"group": "g"} | settings).fit(data, Y)


def test_columns_without_names_are_found_by_their_number_as_text():
    unnamed = X.set_axis(range(3), axis=1)
    reader, source = read_to_fit(nghvi.MixedRegressor("0"), unnamed, Y, None, Gaussian())
    assert reader.inputs == ("1", "2")
    assert len(source.groups) == FRAME["g"].nunique()


def test_a_response_in_another_order_than_the_inputs_leads_to_a_warning():
    estimator = nghvi.MixedRegressor("g")
    with pytest.warns(nghvi.DataWarning, match=r"matched by their position.*y.loc\[X.index\]"):
        read_to_fit(estimator, X, Y[::-1], None, Gaussian())
    read_to_fit(estimator, X, Y[::-1].reset_index(drop=True), None, Gaussian())  # not another order
