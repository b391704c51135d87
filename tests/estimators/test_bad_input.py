"""Bad input: each case gets an error that names the place and the remedy, or a warning."""

import contextlib

import numpy as np
import pandas as pd
import polars as pl
import pytest

import nghvi
from nghvi import DataError, DataWarning
from nghvi.priors import HuangWand, InverseGamma, PriorError, Priors, WishartPrecision
from tests.conftest import panel_frame

FRAME = panel_frame()
X, Y = FRAME[["g", "a", "b"]], FRAME["y"]


def spoil(column, value, rows=(3, 7)):
    frame = X.astype({"a": float, "g": object})
    frame.loc[list(rows), column] = value
    return frame


CASES = {
    "nan": (spoil("a", np.nan), Y, {}, r"'a' \(2 rows, pos.*missing='indicator'"),
    "inf": (spoil("a", np.inf, (1,)), Y, {}, r"'a' \(1 row, position 1\)"),
    "missing group label": (spoil("g", None), Y, {}, r"'g': 2 rows without a group"),
    "nan in y": (X, Y.where(Y.index > 1), {}, r"y: 2 rows.*missing"),
    "no such group": (X, Y, {"group": "school"}, r"'school' is not in the data.*'g', 'a'"),
    "group name with array": (X.to_numpy(), Y, {}, "index"),
    "group index out of range": (X.to_numpy(), Y, {"group": 9}, "group=9"),
    "one group": (X.assign(g=1), Y, {}, r"only one level.*group=None"),
    "constant y": (X, Y * 0 + 2, {}, "constant"),
    "text column": (
        X.assign(b=X.index.map("row {}".format)),
        Y,
        {},
        "'b' is a category with .* row",
    ),
    "dates": (X.assign(b=pd.Timestamp("2020-01-01")), Y, {}, "'b' holds dates or times"),
    "text y": (X, Y.map("about {:.2f}".format), {}, "MixedClassifier"),
    "short y": (X, Y[:-2], {}, r"rows but y has"),
    "two columns of y": (X, np.column_stack([Y, Y]), {}, "shape"),
    "empty frame": (X[:0], Y[:0], {}, "no rows"),
    "one dimensional": (X["a"].to_numpy(), Y, {"group": None}, "reshape"),
    "unknown random column": (X, Y, {"random": ["intercept", "c"]}, "'c' is not a column"),
    "random twice": (X, Y, {"random": ["a", "a"]}, "twice"),
    "random nothing": (X, Y, {"random": []}, "group=None"),
    "random word": (X, Y, {"random": "slopes"}, "random='slopes'"),
    "random intercept without": (
        X,
        Y,
        {"fit_intercept": False, "random": "intercept"},
        "fit_interc",
    ),
    "rank": (X, Y, {"rank": -2}, "rank=-2"),
    "method": (X, Y, {"method": "fast"}, "method='fast'"),
    "steps": (X, Y, {"method": "ng-hvi", "steps": 0}, "steps=0"),
    "priors": (X, Y, {"priors": {"coef_sd": 1}}, "nghvi.priors.Priors"),
    "response": (X, Y, {"response": "weibull"}, "knows 'gaussian'"),
    "response of classes": (X, Y, {"response": "probit"}, "see MixedClassifier"),
    "covariance": (X, Y, {"covariance": "banded"}, "covariance="),
    "full covariance with a diagonal prior": (
        X,
        Y,
        {"covariance": "full", "priors": Priors(effects=InverseGamma())},
        "HuangWand",
    ),
    "diagonal covariance with a full prior": (
        X,
        Y,
        {"covariance": "diagonal", "priors": Priors(effects=WishartPrecision(1.0))},
        "HalfT",
    ),
    "column named intercept": (X.assign(intercept=1.0), Y, {}, "rename it"),
    "hidden width": (X, Y, {"hidden": (4, 0)}, "at least 1"),
    "hidden number": (X, Y, {"hidden": 4}, "tuple"),
    "activation": (X, Y, {"hidden": (4,), "activation": "gelu"}, "activation"),
    "list of activations": (X, Y, {"hidden": (4,), "activation": ["relu"]}, "activation"),
    "no y": (X, None, {}, "requires y"),
    "random number": (X, Y, {"random": 3}, "random=3: choose 'auto'"),
    "seed text": (X, Y, {"random_state": "a"}, "random_state='a': it must be a whole number"),
    "seed fraction": (X, Y, {"random_state": 1.5}, "random_state=1.5"),
    "seed list": (X, Y, {"random_state": [1]}, r"random_state=\[1\]"),
    "seed below zero": (X, Y, {"random_state": -1}, "random_state=-1"),
    "seed too large": (X, Y, {"random_state": 2**70}, "random_state="),
    "wide network": (X, Y, {"hidden": (10**6,)}, "500,003,500,006 variances.*narrower"),
    "endless": (X, Y, {"hidden": (2,), "steps": 10**18}, "steps=.*at most 1,000,000,000"),
    "hidden text": (X, Y, {"hidden": "ab"}, "hidden='ab': it must be a tuple"),
    "unknown setting": (X, Y, {"family": "gaussian"}, "'family'. Did you mean response="),
    "setting of lme4": (X, Y, {"REML": True}, "'REML'. There is no REML.*random_state, devices"),
    "misspelt setting": (X, Y, {"standardise": True}, "Did you mean standardize="),
    "lists in a column": (X.assign(a=[[1, 2]] * len(X)), Y, {}, "'a' is neither numeric"),
    "ragged rows": ([[1, [2, 3]], [1, 2]], Y[:2], {"group": None}, "not a table"),
    "many columns": (
        np.broadcast_to(1.0, (3, 10_001)),
        Y[:3],
        {"group": None},
        "10,001 input columns, but at most 10,000",
    ),
}


CASES |= {
    f"random={random!r} without groups": (X, Y, {"group": None, "random": random}, "name one by")
    for random in (["intercept", "a"], "all", {"g": "all"})
}


@pytest.mark.parametrize("name", CASES)
def test_refused_with_reason_and_remedy(name):
    x, y, settings, message = CASES[name]
    with pytest.raises(nghvi.InputError, match=message):
        nghvi.MixedRegressor(**{"group": "g", **settings}).fit(x, y)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: InverseGamma(-1, 1), "shape=-1"),
        (lambda: InverseGamma(1, 0), "scale=0"),
        (lambda: WishartPrecision(float("nan")), "scale=nan"),
        (lambda: HuangWand(df="two"), "df='two'"),
        (lambda: Priors(coef_sd=-3), "coef_sd=-3"),
        (lambda: Priors(noise=3), "noise=3"),
        (lambda: Priors(effects="weak"), "effects='weak'"),
    ],
)
def test_priors_name_the_parameter(make, name):
    with pytest.raises(PriorError, match=name):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c": FRAME["a"]}, r"'c' is a linear combination"),
        ({"c": 2 * FRAME["a"] - FRAME["b"] + 1}, r"'c' is a linear combination"),
        ({"c": 5.0}, r"'c' is constant"),
    ],
)
def test_undetermined_columns_warn_and_fit(change, message):
    with pytest.warns(DataWarning, match=message):
        fitted = nghvi.MixedRegressor("g").fit(X.assign(**change), Y)
    assert fitted.converged_
    # What the data determine does not change: fitted values, known to 0.005 by 2000 draws.
    plain = nghvi.MixedRegressor("g").fit(X, Y).predict(X, draws=2000)
    found = fitted.predict(X.assign(**change), draws=2000)
    np.testing.assert_allclose(found, plain, atol=0.03)


def test_every_row_its_own_group_warns():
    with pytest.warns(DataWarning, match="own group"):
        fitted = nghvi.MixedRegressor("g").fit(X.assign(g=np.arange(len(X))), Y)
    assert np.isfinite(fitted.summary().to_numpy()).all()


def test_fewer_rows_than_coefficients_warn():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(6, 9)), columns=list("abcdefhij")).assign(
        g=[0, 0, 1, 1, 2, 2]
    )
    with pytest.warns(DataWarning, match="fewer rows"):
        fitted = nghvi.MixedRegressor("g").fit(x, rng.normal(size=6))
    assert np.isfinite(fitted.summary().to_numpy()).all()


def test_a_column_on_another_scale_does_no_harm():
    fitted = nghvi.MixedRegressor("g").fit(X.assign(a=1e9 * X["a"] + 1e12), 1e-6 * Y)
    plain = nghvi.MixedRegressor("g").fit(X, Y)
    assert fitted.converged_
    assert fitted.summary()["mean"]["a"] == pytest.approx(
        plain.summary()["mean"]["a"] * 1e-15, rel=0.01
    )


def test_predict_names_what_is_wrong(fitted):
    with pytest.raises(DataError, match="missing 'b'"):
        fitted.predict(X[["g", "a"]])
    np.testing.assert_array_equal(fitted.predict(X.assign(c="other")), fitted.predict(X))
    with pytest.raises(DataError, match="'g' is not in the data"):
        fitted.predict(X[["a", "b"]])
    with pytest.raises(ValueError, match="not fitted"):
        nghvi.MixedRegressor("g").predict(X)
    with pytest.raises(DataError, match="draws=0"):
        fitted.posterior_draws(0)
    for seed in (-1, "a", 1.5, 2**64):
        with pytest.raises(DataError, match="seed="):
            fitted.predict(X, seed=seed)
        with pytest.raises(DataError, match="seed="):
            fitted.posterior_draws(seed=seed)
    reordered = fitted.predict(X[["b", "g", "a"]])
    np.testing.assert_allclose(reordered, fitted.predict(X))


MIXED = np.array([1, "a"] * len(X), object)[: len(X)]


@pytest.mark.parametrize("y", [FRAME["y"] * 0 + 1, np.arange(len(X)) % 3, MIXED])
def test_a_classifier_needs_two_classes(y):
    with pytest.raises(DataError, match=r"class|to one kind"):
        nghvi.MixedClassifier("g").fit(X, y)


def test_polars_complaints_name_columns_too():
    frame = pl.from_pandas(X).with_columns(a=pl.lit(None, dtype=pl.Float64))
    with pytest.raises(DataError, match="'a'"):
        nghvi.MixedRegressor("g").fit(frame, Y)


def test_huge_predictors_stay_finite():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"g": np.repeat(np.arange(20), 10), "a": rng.normal(size=200)})
    y = (x["a"] > 0).astype(int)  # separable: the posterior rests on the prior
    with pytest.warns(DataWarning, match="separated"):
        fitted = nghvi.MixedClassifier("g").fit(x, y)
    assert np.isfinite(fitted.summary().to_numpy()).all()
    assert np.isfinite(fitted.predict_proba(x.assign(a=1e3 * x["a"]))).all()


def test_settings_are_checked_wherever_they_are_given():
    with pytest.raises(nghvi.InputError, match="Did you mean response="):
        nghvi.mixed("y ~ a", FRAME, family="binomial")
    with pytest.raises(TypeError, match="Unknown setting"):  # as for Python's own errors
        nghvi.MixedClassifier(family="binomial")
    with pytest.raises(nghvi.InputError, match="response=3"):
        nghvi.mixed("y ~ a", FRAME, response=3)


def test_a_generator_is_a_random_state():
    first, second = (
        nghvi.MixedRegressor("g", random_state=np.random.default_rng(7)).fit(X, Y) for _ in range(2)
    )
    pd.testing.assert_frame_equal(first.summary(), second.summary())


def test_the_prior_of_nearly_equal_columns_warns_if_it_costs_the_fit():
    rng = np.random.default_rng(0)
    year = 2000 + np.tile(np.arange(10), 8)
    y = 0.1 * (year - 2005) - 0.1 * (year - 2005) ** 2 + 0.5 * rng.normal(size=80)
    frame = pd.DataFrame({"g": np.repeat(np.arange(8), 10), "year": year, "y": y})
    with pytest.warns(DataWarning, match=r"'year', 'I\(year \*\* 2\)' are nearly the same.*poly"):
        nghvi.mixed("y ~ year + I(year**2) + (1 | g)", frame)
    nghvi.mixed("y ~ year + I((year - 2005)**2) + (1 | g)", frame)  # warnings are errors


def test_inputs_that_replace_the_groups_warn():
    with pytest.warns(DataWarning, match="every group an intercept of its own"):
        nghvi.mixed("y ~ C(g) + (1 | g)", FRAME)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [(FRAME["a"] > 0, "separated without error by 'a'"), (FRAME["g"] > 2, "one class only")],
)
def test_classes_without_errors_warn(chosen, message):
    with pytest.warns(DataWarning, match=message):
        nghvi.mixed("c ~ a + (1 | g)", FRAME.assign(c=chosen.astype(int)), response="logit")


@pytest.mark.parametrize(
    ("side", "response"),
    [
        ("y | trials(n) ~ a + level + (1 | g)", "binomial"),
        ("y ~ a + level + (1 | g)", "poisson"),
        ("y ~ a + level + (1 | g)", "ordered-logit"),
        ("c ~ a + level + (1 | g)", "logit"),
    ],
)
@pytest.mark.parametrize(("rare", "warned"), [(0, True), (1, False)])
def test_a_level_without_events_warns(side, response, rare, warned, monkeypatch):
    """The fit itself is not needed: the message is about the data."""
    monkeypatch.setattr("nghvi.estimators._base.inferred", lambda *_, **__: 1 / 0)
    level = np.where(FRAME.index % 3 == 0, "rare", "usual")
    y = np.where(level == "rare", rare, FRAME.index % 4)
    data = FRAME.assign(level=level, y=y, c=(y > 0) & (FRAME.index % 6 != 3), n=5)
    said = r"one end of 'level\[T.usual\]' have the same response.*coef_sd"
    expected = pytest.warns(DataWarning, match=said) if warned else contextlib.nullcontext()
    with pytest.raises(ZeroDivisionError), expected:
        nghvi.mixed(side, data, response=response)


def test_rows_keep_their_places_if_others_are_left_out():
    frame = FRAME.assign(count=1.0, a=FRAME["a"].where(FRAME.index != 0))
    frame.loc[5, "count"] = -3
    with (
        pytest.warns(DataWarning, match="left out"),
        pytest.raises(nghvi.InputError, match="-3 in row 5"),
    ):
        nghvi.mixed("count ~ a + (1 | g)", frame, response="poisson", missing="drop")


WANTING = {
    "index": (FRAME.set_index("g"), "y ~ a + (1 | g)", {}, r"reset_index\(\)"),
    "lazy": (pl.from_pandas(FRAME).lazy(), "y ~ a + (1 | g)", {}, r"collect\(\)"),
    "durations": (
        FRAME.assign(a=pd.to_timedelta(FRAME["a"], unit="D")),
        "y ~ a + (1 | g)",
        {},
        r"'a' holds durations.*total_seconds",
    ),
    "text": (FRAME.assign(y=FRAME["y"].astype(str)), "y ~ a + (1 | g)", {}, r"numbers as text"),
    "log": (FRAME, "y ~ log(a) + (1 | g)", {}, r"'log\(a\)' \(\d+ rows, positions"),
    "factor": (FRAME, "y ~ factor(b) + (1 | g)", {}, r"write C\(x\)"),
    "as.factor": (FRAME, "y ~ as.factor(b) + (1 | g)", {}, r"write C\(x\)"),
    "sqrt": (FRAME, "y ~ sqrt(a) + (1 | g)", {}, r"write np\.sqrt\(x\)"),
    "space": (FRAME, "y ~ a b + (1 | g)", {}, "backticks"),
    "halves": (
        FRAME.assign(y=FRAME.index % 3 / 2),
        "y ~ a + (1 | g)",
        {"response": "ordered-logit"},
        "holds fractions",
    ),
    "shares": (
        FRAME.assign(y=1, n=2),
        "y | weights(n) ~ a + (1 | g)",
        {"response": "binomial"},
        r"trials\(n\)",
    ),
}


@pytest.mark.parametrize("case", WANTING)
def test_messages_state_the_remedy(case):
    data, formula, settings, message = WANTING[case]
    with pytest.raises(DataError, match=message):
        nghvi.mixed(formula, data, **settings)
