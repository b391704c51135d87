"""scikit-learn's own checks of both estimators; deterministic, they fix their seeds."""

import warnings

import pytest
from sklearn.base import clone
from sklearn.exceptions import SkipTestWarning
from sklearn.utils import estimator_checks

import nghvi


def all_checks():
    """Return pairs of an estimator and a check.

    A warning says that the estimators do not inherit from scikit-learn's base class, which is slow
    to load; what that class stands for is tested here.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Estimator Mixed.* does not inherit")
        for estimator in (nghvi.MixedRegressor(), nghvi.MixedClassifier()):
            for each, check in estimator_checks.estimator_checks_generator(estimator):
                yield pytest.param(each, check, id=f"{type(each).__name__}-{check.func.__name__}")


# One of the checks fits a regression to two classes; the classes of several are far apart.
@pytest.mark.filterwarnings("ignore:y holds only 0 and 1")
@pytest.mark.filterwarnings("ignore:the classes are separated")
@pytest.mark.parametrize(("estimator", "check"), list(all_checks()))
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


def test_metadata_are_passed_on_where_a_tool_is_told_to():
    model = nghvi.MixedRegressor("g").set_fit_request(counts=True)
    copy = clone(model)
    assert copy.get_metadata_routing().fit.requests["counts"] is True
    assert copy.get_metadata_routing().predict.requests["which"] is None
    with pytest.raises(TypeError, match="no argument loudness"):
        model.set_fit_request(loudness=True)


def test_an_estimator_shows_what_was_changed():
    model = nghvi.MixedRegressor("g", hidden=(8, 4))
    assert repr(model) == "MixedRegressor(group='g', hidden=(8, 4))"
    assert "MixedRegressor" in model._repr_html_()


DEEP = nghvi.MixedRegressor(hidden=(3,), steps=30, n_starts=1)


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_estimators_unfitted,
        estimator_checks.check_dict_unchanged,
        estimator_checks.check_methods_subset_invariance,
        estimator_checks.check_methods_sample_order_invariance,
    ],
)
def test_a_network_without_groups_passes_the_cheap_checks(check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        check("MixedRegressor", DEEP)
