"""Inputs of any kind: categories, gaps, and columns that differ from those of the fit.

Oracles are the coding of formulas and columns made by hand. What a fit reads is compared exactly,
without fitting.
"""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import nghvi
from nghvi import DataError, DataWarning
from nghvi.data.coding import Coding, Gaps
from nghvi.data.frame import read_cells
from nghvi.estimators.reader import RowReader
from nghvi.formula import learn
from nghvi.responses import Gaussian

RNG = np.random.default_rng(3)
N = 120
FRAME = pd.DataFrame(
    {
        "g": np.arange(N) % 10,
        "x": RNG.normal(size=N),
        "colour": RNG.choice(["red", "blue", "green"], N),
        "size": pd.Categorical(RNG.choice(["small", "large"], N), ["small", "large"]),
        "code": pd.Categorical(RNG.integers(1, 4, N)),
        "old": RNG.random(N) < 0.5,
        "y": RNG.normal(size=N),
    }
)
INPUTS = ["x", "colour", "size", "code"]
HOLES = FRAME.assign(
    x=FRAME["x"].where(np.arange(N) % 7 != 0),
    z=np.where(np.arange(N) % 7 == 0, np.nan, RNG.normal(size=N)),
    colour=FRAME["colour"].where(np.arange(N) % 5 != 0),
    code=FRAME["code"].where(np.arange(N) % 6 != 0),
)


def reader(frame, **settings):
    """Return what a fit would learn about the columns."""
    found = RowReader.of(nghvi.MixedRegressor("g", **settings), frame, Gaussian())
    return found._replace(columns=tuple(frame.columns))


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_categories_are_coded_as_a_formula_codes_them(fit_intercept):
    found = reader(FRAME[["g", *INPUTS]], fit_intercept=fit_intercept).table(FRAME)
    none = "" if fit_intercept else "0 + "
    expected = learn(f"y ~ {none}{' + '.join(INPUTS)} + (1 | g)", FRAME).table(FRAME)
    assert set(found.names) == set(expected.names) - {"intercept"}
    for name in found.names:
        ours, theirs = (t.values[:, t.names.index(name)] for t in (found, expected))
        np.testing.assert_array_equal(ours, theirs)


def test_tables_of_every_kind_are_coded_alike():
    columns = ["g", "x", "colour", "old"]
    known = reader(FRAME[columns])
    expected = known.table(FRAME)
    assert expected.names == ("x", "colour[T.green]", "colour[T.red]", "old")
    same = [
        pl.from_pandas(FRAME[columns]),
        pl.from_pandas(FRAME[columns]).with_columns(pl.col("colour").cast(pl.Categorical)),
        pa.Table.from_pandas(FRAME[columns]),
        FRAME[columns].astype({"colour": "category", "old": "boolean"}),
        FRAME[columns].astype({"colour": "string", "old": object}),
        FRAME[columns[::-1]].assign(y="not looked at"),
    ]
    for table in same:
        np.testing.assert_array_equal(known.table(table).values, expected.values)
    array = FRAME[columns].to_numpy(object)
    by_place = RowReader.of(nghvi.MixedRegressor(0), array, Gaussian()).table(array)
    np.testing.assert_array_equal(by_place.values, expected.values)
    assert by_place.names == ("x1", "x2[T.green]", "x2[T.red]", "x3")


def test_codes_of_categories_are_matched_by_what_they_mean():
    known = reader(FRAME[["g", "code"]])
    for codes in (
        FRAME["code"].astype(int),
        FRAME["code"].astype(float),
        FRAME["code"].astype(str),
    ):
        found = known.table(FRAME[["g"]].assign(code=codes))
        np.testing.assert_array_equal(found.values, known.table(FRAME).values)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (
            FRAME.assign(colour="pink"),
            r"'colour' holds 'pink', which did not occur in the training data \(it had",
        ),
        (FRAME.assign(x="one"), "'x' held numbers at the fit and holds text now"),
        (HOLES, r"'x' \(18 rows, positions 0, 7, 14, ...\), 'colour' .*not learnt what a gap"),
        (FRAME.drop(columns="x"), "missing 'x' and unexpected 'size'"),
        (FRAME.assign(x=np.inf), "infinite values .inf. in column 'x'"),
    ],
)
def test_rows_that_the_fit_cannot_read_are_refused(frame, said):
    with pytest.raises(DataError, match=said):
        reader(FRAME[["g", "x", "colour"]]).table(frame)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (
            [f"town {i % 40}" for i in range(N)],
            r"'s' is a category with 40 levels .*group=\['school'",
        ),
        ([f"word {i}" for i in range(N)], "nearly one per row"),
        (pd.date_range("2020", periods=N), r"'s' holds dates or times: .*dt\.days"),
        ([f"{v:.2f}" for v in FRAME["x"]], "holds numbers as text"),
        ([None] * N, "missing values"),
        ([{}] * N, "'s' is neither numeric nor a category"),
    ],
)
def test_columns_that_are_no_inputs_are_refused_with_a_remedy(column, said):
    with pytest.raises(DataError, match=said):
        reader(FRAME[["g", "x"]].assign(s=column))


def test_a_category_of_one_level_is_left_out():
    with pytest.warns(DataWarning, match="'colour' holds 'red' in every row"):
        known = reader(FRAME[["g", "x"]].assign(colour="red"))
    assert known.coding.names_of("colour") == ()


def test_gaps_are_filled_and_told_as_by_hand():
    columns = ["g", "x", "z", "colour", "code"]
    found = reader(HOLES[columns], missing="indicator").table(HOLES)
    lost = HOLES["x"].isna()
    known = np.sort(HOLES["x"].dropna())
    by_hand = HOLES[columns].assign(
        x=HOLES["x"].fillna(known[(len(known) - 1) // 2]),
        z=HOLES["z"].fillna(np.sort(HOLES["z"].dropna())[(len(known) - 1) // 2]),
        colour=HOLES["colour"].fillna("blue"),
        code=HOLES["code"].fillna(1),
    )
    by_hand["missing(x, z)"] = 1.0 * lost
    by_hand["missing(colour)"] = 1.0 * HOLES["colour"].isna()
    by_hand["missing(code)"] = 1.0 * HOLES["code"].isna()
    expected = reader(by_hand).table(by_hand)
    assert found.names == expected.names
    np.testing.assert_array_equal(found.values, expected.values)


def test_a_formula_fills_and_tells_alike():
    columns = ["g", "x", "z", "colour", "code"]
    ours = reader(HOLES[columns], missing="indicator").table(HOLES)
    design = learn("y ~ x + z + colour + code + (1 | g)", HOLES, indicator=True)
    theirs = design.table(HOLES)
    assert ours.names == theirs.names
    np.testing.assert_array_equal(ours.values, theirs.values)
    assert set(design.movable) == set()
    curved = learn("y ~ log(x**2) + (1 + x | g)", HOLES, indicator=True)
    assert curved.columns == ("log(x ** 2)", "missing(x)", "x")
    with pytest.raises(DataError, match="a response is never filled"):
        nghvi.mixed("x ~ z + (1 | g)", HOLES, missing="indicator")
    with pytest.raises(DataError, match=r"'x' .*missing='drop'"):
        learn("y ~ z + offset(x)", HOLES, indicator=True)


def test_a_column_with_gaps_only_later_is_refused():
    known = reader(FRAME[["g", "x", "colour"]], missing="indicator")
    with pytest.raises(DataError, match="fit with missing='indicator' to rows that have such"):
        known.table(HOLES)
    design = learn("y ~ x + colour", FRAME, indicator=True)
    with pytest.raises(DataError, match="the fit has not learnt what a gap there means"):
        design.table(HOLES)


def test_medians_are_values_that_occur():
    columns = {"k": np.array([1.0, np.nan, 2.0, 9.0, 4.0]), "t": np.array([True, None, False])}
    gaps = Gaps.learn({**columns, "t": np.array([True, None, False, True, True], object)})
    assert gaps.fillings == {"k": 2.0, "t": True}
    assert gaps.told == (("k", "t"),)
    with pytest.raises(DataError, match="'k' has no values at all"):
        Gaps.learn({"k": np.full(3, np.nan)})


def test_names_that_collide_are_refused():
    frame = FRAME[["g", "size"]].assign(**{"size[T.large]": 1.0 * FRAME["old"]})
    with pytest.raises(DataError, match="brackets in its name"):
        reader(frame).table(frame)


def test_numbers_are_read_as_before():
    cells = read_cells(FRAME[["g", "x", "old"]], "g")
    coding = Coding.learn(cells, indicator=False, intercept=True, pool=False)
    assert coding == Coding(("x", "old"), {})
