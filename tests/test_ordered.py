"""Classes in an order: where the order comes from, and what is refused."""

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi._core.errors import DataError
from nghvi._core.response import ResponseError
from nghvi.responses import OrderedLogit

FORMULA = "y ~ x + (1 | g)"


def rows(labels=("low", "mid", "high")):
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=60), np.repeat(np.arange(6), 10)
    code = np.digitize(x + rng.logistic(size=60), [-1, 1])
    return pd.DataFrame({"y": np.array(labels)[code], "x": x, "g": g.astype(str)})


def model():
    return nghvi.MixedClassifier(formula=FORMULA, response="ordered-logit")


def learnt(data, y=None):
    """Classes of an estimator without a fit."""
    estimator = model()
    estimator._source(data, y, None, None, OrderedLogit())
    return list(estimator.classes_)


def test_the_order_of_a_category_is_that_of_the_classes():
    data = rows()
    order = ["low", "mid", "high"]
    data["y"] = pd.Categorical(data["y"], categories=order, ordered=True)
    assert learnt(data) == order
    assert learnt(data, data["y"]) == order


def test_numbers_are_in_their_order_and_text_in_that_of_the_alphabet():
    assert learnt(rows([3, 10, 20])) == [3, 10, 20]
    with pytest.warns(nghvi.DataWarning, match="high < low < mid.*ordered=True"):
        assert learnt(rows()) == ["high", "low", "mid"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y": np.arange(60) + 0.5}, DataError, "continuous"),
        ({"y": np.ones(60)}, DataError, "1 classes: ordered classes are at least two"),
        (
            {"y": pd.Categorical(rows()["y"], ["low", "none", "mid", "high"], ordered=True)},
            ResponseError,
            "y has no row of class none.*merge",
        ),
    ],
)
def test_bad_classes_are_named_with_a_remedy(change, error, message):
    with pytest.raises(error, match=message):
        model().fit(rows().assign(**change))


def test_cutpoints_take_the_place_of_the_intercept():
    with pytest.raises(DataError, match="cutpoints in the place of an intercept"):
        nghvi.mixed("y ~ 0 + x + (1 | g)", rows([1, 2, 3]), response="ordered-probit")


def test_a_binary_response_refers_to_ordered_ones():
    with pytest.raises(DataError, match="ordered-logit"):
        nghvi.mixed(FORMULA, rows(), response="logit")
