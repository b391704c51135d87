"""Estimators with a formula: it decides, however the estimator is fitted and what else is set."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold

import nghvi
from nghvi import MixedRegressor
from nghvi.estimators.response_columns import RowFacts
from nghvi.estimators.spec import Spec, Structure
from nghvi.formula import learn
from nghvi.priors import HalfT, HuangWand
from tests.conftest import panel_frame

FRAME = panel_frame().assign(h=panel_frame()["g"] % 3)

FOLDS = KFold(2, shuffle=True, random_state=0)


def structure(formula, **settings):
    estimator = MixedRegressor(formula=formula, **settings)
    design = learn(formula, FRAME)
    spec = Spec.of(estimator, design, RowFacts.of(estimator))
    return spec, Structure.of(estimator, spec, design.columns)


@pytest.mark.parametrize(
    ("formula", "group", "features", "effects", "prior"),
    [
        ("y ~ a + (1 | g)", "g", ("intercept", "a"), (0,), HuangWand),
        ("y ~ a + (1 + a | h)", "h", ("intercept", "a"), (0, 1), HuangWand),
        ("y ~ a + (1 + a || g)", "g", ("intercept", "a"), (0, 1), HalfT),
        ("y ~ a + (1 | g) + (0 + a | g)", "g", ("intercept", "a"), (0, 1), HalfT),
        ("y ~ 0 + a + (0 + a | g)", "g", ("a",), (0,), HuangWand),
        ("y ~ a + b", None, ("intercept", "a", "b"), (), HuangWand),
    ],
)
def test_the_formula_alone_says_what_is_fitted(formula, group, features, effects, prior):
    spec, made = structure(formula)
    assert (spec.group, made.features, made.effects) == (group, features, (effects,))
    assert isinstance(made.priors.effects, prior)


def test_effects_of_a_network_are_said_by_the_formula():
    for term, number in {"(1 | g)": 1, "(. | g)": 6, "(. || g)": 6}.items():
        spec, made = structure(f"y ~ a + b + {term}", hidden=(3,))
        assert (spec.intercept, len(made.effects[0])) == (False, number)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group": "h"}, "group='h' contradicts the formula 'y ~ .*', which says group='g'"),
        ({"random": "all"}, "random='all' contradicts .* effects of 'intercept', 'a'"),
        ({"random": ["a"]}, r"random=\['a'\] contradicts"),
        ({"covariance": "diagonal"}, "covariance='diagonal' contradicts .* '||'"),
        ({"fit_intercept": False}, "fit_intercept=False contradicts .* an intercept"),
    ],
)
def test_settings_that_contradict_the_formula_are_refused(settings, said):
    with pytest.raises(nghvi.InputError, match=said):
        structure("y ~ a + b + (1 + a | g)", **settings)


def test_settings_without_groups_or_with_two_bars():
    for formula, settings, said in [
        ("y ~ a", {"group": "g"}, "says that there are no groups"),
        ("y ~ a", {"random": "intercept"}, "says that there are no effects"),
        ("y ~ a + (a || g)", {"covariance": "full"}, "effects are independent"),
        ("y ~ a + b + (1 | g)", {"random": "all", "hidden": (3,)}, "effects of 'intercept'"),
    ]:
        with pytest.raises(nghvi.InputError, match=said):
            structure(formula, **settings)


def test_settings_may_repeat_the_formula():
    settings = {"group": "g", "random": ["a", "intercept"], "covariance": "full"}
    _, repeated = structure("y ~ a + b + (1 + a | g)", **settings)
    assert repeated == structure("y ~ a + b + (a | g)")[1]


@pytest.mark.parametrize("formula", ["y ~ a + (1 | g)", "y ~ 0 + a + (0 + a || g)"])
def test_an_estimator_with_a_formula_fits_what_mixed_fits(formula):
    by_mixed = nghvi.mixed(formula, FRAME)
    for X, y in [
        (FRAME, FRAME["y"]),
        (FRAME, None),
        (FRAME, "y"),
        (FRAME.drop(columns="y"), FRAME["y"]),
    ]:
        fitted = MixedRegressor(formula=formula).fit(X, y)
        pd.testing.assert_frame_equal(fitted.summary(), by_mixed.summary(), check_exact=True)
        assert fitted.group_ == "g"
    np.testing.assert_array_equal(fitted.predict(FRAME), by_mixed.predict(FRAME))


def test_clone_set_params_and_grids_read_the_formula_that_is_set():
    other = clone(MixedRegressor(formula="y ~ a + (1 | g)")).set_params(formula="y ~ a + (1 | h)")
    assert other.fit(FRAME, FRAME["y"]).group_ == "h"
    search = GridSearchCV(MixedRegressor(), {"formula": ["y ~ 1", "y ~ a + b + (1 | g)"]}, cv=FOLDS)
    found = search.fit(FRAME, FRAME["y"]).best_estimator_
    assert (found.formula, found.group_) == ("y ~ a + b + (1 | g)", "g")
    assert "effects_sd[intercept]" in found.summary().index


@pytest.mark.parametrize(
    ("formula", "columns", "y", "said"),
    [
        ("y ~ a", ["a", "y"], "a", "y='a' contradicts the formula .* left-hand side is 'y'"),
        ("y ~ a", ["a", "y"], FRAME["y"] + 1, "y differs from the values of 'y' in X"),
        ("y ~ a", ["a"], FRAME["b"], r"y \(named 'b'\) cannot be checked against 'y'"),
        ("exp(y) ~ a", ["a", "y"], FRAME["y"], r"y differs from the values of 'exp\(y\)'"),
        ("exp(y) ~ a", ["a"], FRAME["y"], "cannot be checked"),
        ("y ~ a", ["a"], None, "no column 'y'"),
    ],
)
def test_y_must_agree_with_the_left_side(formula, columns, y, said):
    with pytest.raises(nghvi.InputError, match=said):
        MixedRegressor(formula=formula).fit(FRAME[columns], y)


def test_all_complaints_are_of_one_family():
    from nghvi._core.hosts import DeviceError
    from nghvi._core.response import ResponseError
    from nghvi.formula import FormulaError
    from nghvi.priors import PriorError
    from nghvi.storage import StorageError

    for kind in (
        nghvi.DataError,
        FormulaError,
        ResponseError,
        PriorError,
        StorageError,
        DeviceError,
    ):
        assert issubclass(kind, nghvi.InputError)
    assert issubclass(nghvi.InputError, ValueError)
