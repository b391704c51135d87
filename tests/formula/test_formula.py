"""Formulas without fits: every element of the syntax, compared with a design made by hand."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from nghvi._core.errors import DataError, DataWarning
from nghvi.formula import FormulaError, learn, response_of, variables
from nghvi.storage import file
from nghvi.storage.codec import decode, encode

N = 40
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "y": RNG.normal(size=N),
        "x": RNG.uniform(1, 3, N),
        "my col": RNG.normal(size=N),
        "sex": RNG.choice(["f", "m"], N),
        "size": pd.Categorical(RNG.choice(["small", "large"], N), ["small", "large", "huge"]),
        "k": RNG.integers(1, 4, N),
        "g": RNG.choice(["s1", "s2", "s3"], N),
    }
)
X, MALE = FRAME["x"].to_numpy(), (FRAME["sex"] == "m").to_numpy(float)
ORTHONORMAL = np.linalg.qr(np.column_stack([np.ones(N), X, X**2]))[0]


def spline(x):
    """Return cubic Bernstein polynomials: a B-spline on the unit interval without inner knots."""
    t = (x - x.min()) / (x.max() - x.min())
    return [3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3]


# formula, columns made by hand (without the intercept), names of effects, known coefficients
DESIGNS = {
    "y ~ x": ({"x": X}, (), ()),
    "y ~ 1 + (1 | g)": ({}, ("intercept",), ()),
    "y ~ (1|g)": ({}, ("intercept",), ()),
    "y ~ x + (1 + x | g)": ({"x": X}, ("intercept", "x"), ()),
    "y ~ (x | g) + x": ({"x": X}, ("intercept", "x"), ()),
    "y ~ x + (x || g)": ({"x": X}, ("intercept", "x"), ()),
    "y ~ x + (0 + x | g)": ({"x": X}, ("x",), ()),
    "y ~ x + (x - 1 | g)": ({"x": X}, ("x",), ()),
    "y ~ x + (1 | g) + (0 + x | g)": ({"x": X}, ("intercept", "x"), ()),
    "y ~ x + ((1 | g) + (0 + x | g))": ({"x": X}, ("intercept", "x"), ()),
    "y ~ x + sex + (. | g)": (
        {"x": X, "sex[T.m]": MALE},
        ("intercept", "x", "sex[T.m]"),
        (),
    ),
    "y ~ 0 + sex": ({"sex[f]": 1 - MALE, "sex[m]": MALE}, (), ()),
    "y ~ -1 + x": ({"x": X}, (), ()),
    "y ~ x*sex": ({"x": X, "sex[T.m]": MALE, "x:sex[T.m]": X * MALE}, (), ()),
    "y ~ x:sex": ({"x:sex[f]": X * (1 - MALE), "x:sex[m]": X * MALE}, (), ()),
    "y ~ size": ({"size[T.large]": FRAME["size"] == "large"}, (), ()),
    "y ~ C(k)": ({"C(k)[T.2]": FRAME["k"] == 2, "C(k)[T.3]": FRAME["k"] == 3}, (), ()),
    "y ~ C(sex, contr.treatment('m'))": (
        {"C(sex, contr.treatment('m'))[T.f]": 1 - MALE},
        (),
        (),
    ),
    "y ~ C(sex, Sum)": ({"C(sex, Sum)[S.f]": 1 - 2 * MALE}, (), ()),
    "y ~ log(x) + np.sqrt(x)": ({"log(x)": np.log(X), "np.sqrt(x)": np.sqrt(X)}, (), ()),
    "y ~ I(x^2)": ({"I(x ** 2)": X**2}, (), ()),
    "y ~ center(x)": ({"center(x)": X - X.mean()}, (), ()),
    "y ~ scale(x)": ({"scale(x)": (X - X.mean()) / X.std(ddof=1)}, (), ()),
    "y ~ poly(x, 2)": (
        {f"poly(x, 2)[{j}]": ORTHONORMAL[:, j] * np.sign(ORTHONORMAL[-1, j]) for j in (1, 2)},
        (),
        (),
    ),
    "y ~ bs(x, df=3)": (
        {f"bs(x, df=3)[{j + 1}]": column for j, column in enumerate(spline(X))},
        (),
        (),
    ),
    "y ~ `my col` + (`my col` | g)": (
        {"my col": FRAME["my col"]},
        ("intercept", "my col"),
        (),
    ),
    "y ~ x + offset(k)": ({"x": X, "offset(k)": FRAME["k"]}, (), (1.0,)),
    "y ~ offset(log(x)) + offset(k)": (
        {"offset(log(x) + k)": np.log(X) + FRAME["k"]},
        (),
        (1.0,),
    ),
    "y ~ sex + offset(k) + (0 + sex | g)": (
        {"sex[T.m]": MALE, "sex[f]": 1 - MALE, "sex[m]": MALE, "offset(k)": FRAME["k"]},
        ("sex[f]", "sex[m]"),
        (0.0, 0.0, 1.0),
    ),
    "y ~ 0 + x + (1 | g)": ({"x": X, "intercept": np.ones(N)}, ("intercept",), (0.0,)),
}


@pytest.mark.parametrize("formula", DESIGNS)
def test_a_formula_is_the_design_made_by_hand(formula):
    columns, random, known = DESIGNS[formula]
    design = learn(formula, FRAME)
    table = design.table(FRAME)
    assert table.names == design.columns == tuple(columns)
    assert (design.random, design.known_coef) == (random, known)
    for name, values in zip(table.names, table.values.T, strict=True):
        by_hand = np.asarray(columns[name], float)
        sign = np.sign(values @ by_hand) if name.startswith("poly") else 1  # arbitrary
        np.testing.assert_allclose(values, sign * by_hand, atol=1e-9)
    assert (table.group is None) == ("|" not in formula)


@pytest.mark.parametrize("formula", DESIGNS)
def test_a_design_treats_new_rows_alike_also_after_saving(formula, tmp_path):
    design = learn(formula, FRAME)
    file.write(tmp_path / "design", *encode(design))
    stored = file.read(tmp_path / "design")
    back = decode(stored.model, stored.arrays)
    few = FRAME.iloc[[7, 3]]
    np.testing.assert_array_equal(design.table(few).values, design.table(FRAME).values[[7, 3]])
    np.testing.assert_array_equal(back.table(few).values, design.table(few).values)
    assert repr(back) == repr(design)


@pytest.mark.parametrize("formula", ["y ~ x*sex + size + (x | g)", "y ~ poly(x, 2) + C(k)"])
def test_polars_is_read_like_pandas(formula):
    polars = pl.DataFrame(
        {name: FRAME[name].to_list() for name in FRAME.columns},
        schema_overrides={"size": pl.Enum(["small", "large", "huge"])},
    )
    ours, theirs = learn(formula, polars).table(polars), learn(formula, FRAME).table(FRAME)
    np.testing.assert_array_equal(ours.values, theirs.values)
    assert ours.names == theirs.names
    np.testing.assert_array_equal(response_of(formula, polars), FRAME["y"])


def test_the_left_hand_side_is_a_column_or_an_expression():
    np.testing.assert_array_equal(response_of("sex ~ x", FRAME), FRAME["sex"])
    np.testing.assert_allclose(response_of("log(x) ~ 1", FRAME), np.log(X))
    assert set(variables("log(x) ~ k + offset(y) + (sex | g)")) == {"x", "k", "y", "sex", "g"}


@pytest.mark.parametrize(
    ("formula", "movable"),
    [
        ("y ~ x + sex + (x | g)", ("x",)),
        ("y ~ x*sex", ()),
        ("y ~ x + I(x^2) + `my col`", ("my col",)),
        ("y ~ x + k + offset(k)", ("x",)),
    ],
)
def test_columns_that_nothing_else_reads_can_move(formula, movable):
    assert learn(formula, FRAME).movable == movable


SHADOWED = FRAME.assign(
    **{"log": FRAME["x"], "C": FRAME["sex"], "bs": FRAME["x"], "np": FRAME["x"], "Sum": FRAME["x"]}
)


@pytest.mark.parametrize(
    ("formula", "same"),
    [
        ("y ~ log(x) + log", "y ~ log(x) + x"),
        ("y ~ log(log)", "y ~ log(x)"),
        ("y ~ C(C) + (1 | C)", "y ~ C(sex) + (1 | sex)"),
        ("y ~ C(k) + (1 | C)", "y ~ C(k) + (1 | sex)"),
        ("y ~ bs(bs, df=3) + scale(`log`)", "y ~ bs(x, df=3) + scale(x)"),
        ("y ~ np.sqrt(np) + np", "y ~ np.sqrt(x) + x"),
        ("y ~ C(C, Sum) + log(Sum)", "y ~ C(sex, Sum) + log(x)"),
    ],
)
def test_columns_may_be_called_as_functions_are(formula, same):
    ours, theirs = learn(formula, SHADOWED), learn(same, FRAME)
    np.testing.assert_array_equal(ours.table(SHADOWED).values, theirs.table(FRAME).values)
    few = SHADOWED.iloc[[5, 1, 1]]
    np.testing.assert_array_equal(ours.table(few).values, theirs.table(few).values)


def test_a_column_called_intercept_is_not_lost():
    frame = FRAME.assign(Intercept=FRAME["x"], intercept=FRAME["x"])
    assert learn("y ~ Intercept + k", frame).columns == ("Intercept", "k")
    assert learn("y ~ 0 + Intercept", frame).columns == ("Intercept",)
    with pytest.raises(FormulaError, match=r"at 'intercept' .*rename it"):
        learn("y ~ k + intercept", frame)


BAD = {
    "": "a formula is a text",
    "y": "needs exactly one '~'",
    "y ~ x ~ k": "needs exactly one '~'",
    "~ x": "response before '~' is missing",
    "y ~ x +* k": r"at '\+\*' \(character 7\)",
    "y ~ x + ": r"at '\+' \(character 7\): this operator needs a term on each side",
    "y ~ (1 | g": r"at '\(1 \| g' \(character 5\): this bracket is never closed",
    "y ~ x)": r"at '\)' \(character 6\): this bracket was never opened",
    "y ~ `x": "quote ` is never closed",
    "y ~ (1 | g/g)": r"\(character 5\): 'g' is nested in itself",
    "y ~ (1 | g:sex:g)": "'g' is nested in itself: name every column once",
    "y ~ (1 | g + sex)": r"\(character 5\): name the group column .* '\(1 \| a\) \+ \(1 \| b\)'",
    "y ~ (1 | g) + (x | sex) + (1 | g)": "appears twice",
    "y ~ (1 | g) + (x | g)": "write one term",
    "y ~ (1 | g) + (1 | g)": "appears twice",
    "y ~ x*(1 | g)": "needs its own brackets",
    "y ~ x | g": "needs its own brackets",
    "y ~ (1 | x | g)": "one '|'",
    "y ~ x - (1 | g)": "added, never subtracted",
    "y ~ ( | g)": "write what varies by group",
    "y ~ (1 | )": "name the group column",
    "y ~ x + (0 | g)": "nothing varies",
    "y ~ ": "write 'y ~ 1' for an intercept alone",
    "y ~ .": "name the columns of the fixed part",
    "y ~ I(x +)": r"'I\(x \+\)' cannot be read",
    "y ~ offset(sex)": "column 'sex' is not numeric, but offsets",
    "y ~ 0": "fixed part has no column",
    "y ~ xx": r"there is no column 'xx' in the data\. Did you mean 'x'\?",
    "y ~ foo(x)": "'foo' is not available in formulas",
    "y ~ lag(x)": "'lag' is not available",
    "y ~ sex.upper()": "'sex.upper' is not available",
    "y ~ np.load('x')": "'np.load' is not available",
    "y ~ {().__class__}": "is not available",
    "y ~ I([v for v in x])": "is not available",
    "y ~ log(x - 2)": r"column 'log\(x - 2\)' .* rows",
    "y ~ y": "the response 'y' is also an input",
    "y ~ x + log(y)": "the response 'y' is also an input",
    "y ~ x + (1 | y)": "the response 'y' is also an input",
    "y ~ log(sex)": r"at 'log\(sex\)' \(character 5\): this cannot be evaluated \(TypeError: ",
    "y ~ poly(sex,2)": r"at 'poly\(sex,2\)' \(character 5\): .*float: '.'\); check its arguments",
    "y ~ C(x, 5)": r"cannot be evaluated \(IndexError: ",
}


@pytest.mark.parametrize("formula", BAD)
def test_bad_formulas_show_the_place_and_the_reason(formula):
    with pytest.raises(DataError, match=BAD[formula]) as caught:
        learn(formula, FRAME)
    assert "\n" not in str(caught.value)


def test_new_data_that_the_design_cannot_code_are_refused():
    design = learn("y ~ x + sex + C(k) + (1 | g)", FRAME)
    for changed, said in [
        (FRAME.assign(sex="z"), "column 'sex' holds 'z', which did not occur in the training data"),
        (FRAME.assign(k=9), "column 'k' holds 9"),
        (FRAME.assign(sex=1.5), "held text then holds numbers now"),
        (FRAME.assign(x=np.nan), r"missing values .* in column 'x' .40 rows, "),
        (FRAME.assign(sex=None), r"missing values .* in column 'sex' .40 rows, "),
        (FRAME.drop(columns="x"), "no column 'x'"),
        (FRAME.iloc[:0], "no rows"),
        (FRAME["x"].to_numpy(), "needs a data frame"),
    ]:
        with pytest.raises(DataError, match=said):
            design.table(changed)


def test_a_file_cannot_decide_what_runs(tmp_path):
    harmful = learn("y ~ x", FRAME)._replace(formula="y ~ open('harm', 'w')")
    with pytest.raises(FormulaError, match="'open' is not available"):
        harmful.table(FRAME)


ENDLESS = {
    "y ~ I(9**9**9)": "exceeds 1e\\+300",
    "y ~ {x + 9**9**9}": "exceeds",
    "y ~ I(I(9)**I(9)**I(9))": "exceeds",
    "y ~ I(x + (1 << 10**10))": "exceeds",
    "y ~ I(x * 'a' * 10**9)": "not text or lists",
    "y ~ I([0] * 10**9)": "not text or lists",
    "y ~ bs(x, df=10**8)": "df=100,000,000 asks for too many columns; use at most 1,000",
    "y ~ bs(x, 10**8)": "df=100,000,000",
    "y ~ bs(x, df=np.power(10, 8))": "df must be a number",
    "y ~ poly(x, 10**7)": "degree=10,000,000",
    "y ~ hashed(sex, levels=10**9)": "levels=1,000,000,000",
    "y ~ (x + k)**1000": "at '1000'.*too large for 2 terms",
    "y ~ x^99999999": r"I\(x\*\*2\)",
    "y ~ " + "*".join(f"I(x + {i})" for i in range(18)): "262,144 terms",
    "y ~ " + "+".join(f"I(x + {i})" for i in range(3000)): "3,001 terms",
    "y ~ x + (" + "*".join(f"I(x + {i})" for i in range(18)) + " | g)": "terms",
    "y ~ x + offset(9**9**9)": "exceeds",
    "y ~ I(" + "-" * 300 + "x)": "nested too deeply",
}


@pytest.mark.parametrize("formula", ENDLESS)
def test_formulas_without_end_are_refused_before_they_are_evaluated(formula):
    with pytest.raises(FormulaError, match=ENDLESS[formula]):
        learn(formula, FRAME)


def test_a_formula_of_a_model_file_is_refused_as_well():
    design = learn("y ~ x", FRAME)
    with pytest.raises(FormulaError, match="exceeds"):
        design._replace(formula="y ~ I(9**9**9)").table(FRAME)


def test_columns_are_counted_before_they_are_made():
    many = pd.DataFrame({"a": [f"a{i}" for i in range(300)], "k": range(300), "x": 1.0})
    with pytest.warns(DataWarning, match="category with 300 levels"):
        assert len(learn("y ~ a + x", many).columns) == 300
    with pytest.raises(FormulaError, match=r"at 'a:C\(k\)'|90,601 columns"):
        learn("y ~ a * C(k)", many)
