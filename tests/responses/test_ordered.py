"""Classes in an order: where the order comes from, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import nghvi
from nghvi._core.errors import DataError
from nghvi._core.response import ResponseError
from nghvi.estimators.reader import read_to_fit
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.networks import Identity
from nghvi.priors import HalfT, Priors
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
    """The classes that an estimator would learn, without a fit."""
    reader, _ = read_to_fit(model(), data, y, None, OrderedLogit())
    return list(reader.classes)


def test_the_order_of_a_category_is_that_of_the_classes():
    data = rows()
    order = ["low", "mid", "high"]
    data["y"] = pd.Categorical(data["y"], categories=order, ordered=True)
    assert learnt(data) == order
    assert learnt(data, data["y"]) == order


def test_an_ordered_category_says_what_the_default_response_is():
    data = rows()
    data["y"] = pd.Categorical(data["y"], categories=["low", "mid", "high"], ordered=True)
    by_formula = nghvi.MixedClassifier(formula=FORMULA)
    by_columns = nghvi.MixedClassifier(group="g")
    fits = by_formula.fit(data), by_columns.fit(data[["x", "g"]], data["y"])
    for fitted in (*fits, nghvi.mixed(FORMULA, data)):
        assert list(fitted.classes_) == ["low", "mid", "high"]
        assert "cut[low|mid]" in fitted.summary().index


def test_the_second_of_two_ordered_classes_counts_as_one():
    data = rows(("no", "no", "ill"))
    data["y"] = pd.Categorical(data["y"], categories=["no", "ill"], ordered=True)
    assert list(nghvi.MixedClassifier(formula=FORMULA).fit(data).classes_) == ["no", "ill"]


def test_numbers_are_in_their_order_and_text_in_that_of_the_alphabet():
    assert learnt(rows([3, 10, 20])) == [3, 10, 20]
    with pytest.warns(nghvi.DataWarning, match="high < low < mid.*ordered=True"):
        assert learnt(rows()) == ["high", "low", "mid"]


def test_a_number_that_is_no_class_between_others_is_named():
    with pytest.warns(nghvi.DataWarning, match=r"no row of y is 2, .*\(1, 3, 4\).*merge"):
        assert learnt(rows([1, 3, 4])) == [1, 3, 4]
    data = rows([1, 3, 4])
    assert learnt(data.assign(y=pd.Categorical(data["y"], ordered=True))) == [1, 3, 4]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"y": np.arange(60) + 0.5}, DataError, "continuous"),
        ({"y": np.ones(60)}, DataError, "1 class, but there must be at least two"),
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
    with pytest.raises(DataError, match="cutpoints in place of an intercept"):
        nghvi.mixed("y ~ 0 + x + (1 | g)", rows([1, 2, 3]), response="ordered-probit")


def test_a_binary_response_refers_to_ordered_ones():
    with pytest.raises(DataError, match="ordered-logit"):
        nghvi.mixed(FORMULA, rows(), response="logit")


PRIORS = Priors(coef_sd=2.0, effects=HalfT())


def cuts_of(model, params):
    coef, own = (jax.vmap(of)(params) for of in (model.coef, model.dispersion))
    return np.column_stack(list(model.response.reported(own, 1.0, coef[:, 0]).values())), coef


@pytest.mark.parametrize("relative", [True, False])
def test_the_prior_of_cutpoints_is_normal_on_the_ordered_set(relative):
    model = MixedModel(Identity(2), OrderedLogit(4), PRIORS, (0,), relative_coef=relative)
    start = MixedParams((), jnp.zeros(2), jnp.zeros(2), jnp.zeros(1))
    drawn = model.sample_prior(np.random.default_rng(0), 20_000, start)
    drawn = drawn._replace(weight_scale=np.zeros((20_000, 0)))
    cuts, coef = cuts_of(model, drawn)
    known = np.sort(2 * np.random.default_rng(1).standard_normal((20_000, 3)), axis=1)
    np.testing.assert_allclose(cuts.mean(axis=0), known.mean(axis=0), atol=0.06)
    np.testing.assert_allclose(np.cov(cuts.T), np.cov(known.T), atol=0.12)
    np.testing.assert_allclose(np.std(coef[:, 1]), 2, rtol=0.03)
    # Densities at two draws with the same effects: that of the cutpoints by the gaps' Jacobian.
    drawn = jax.tree.map(lambda leaf: leaf[:2], drawn._replace(effects=jnp.zeros((20_000, 1))))
    cuts, coef = cuts_of(model, drawn)
    expected = norm.logpdf(cuts, scale=2).sum(axis=1) + np.log(np.diff(cuts)).sum(axis=1)
    expected += norm.logpdf(coef[:, 1], scale=2)
    np.testing.assert_allclose(np.diff(jax.vmap(model.log_prior)(drawn)), np.diff(expected))
