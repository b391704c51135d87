"""scikit-learn's own checks of both estimators; deterministic, they fix their seeds."""

import warnings

import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils import estimator_checks

import nghvi


# One of the checks fits a regression to two classes.
@pytest.mark.filterwarnings("ignore:y holds 0 and 1 only")
@estimator_checks.parametrize_with_checks([nghvi.MixedRegressor(), nghvi.MixedClassifier()])
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


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
