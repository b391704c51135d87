"""Networks: trunks, weight priors, the recipe, repeated inputs, and what goes wrong."""

import signal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats
from sklearn.base import clone

import nghvi
from nghvi._core.direction import ScaledGradient
from nghvi._core.draws import IndependentDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.loop import fit
from nghvi._core.score import Integrated
from nghvi._core.step_rules import Adam
from nghvi._linalg.tree import materialise
from nghvi.data import Panel, Rows
from nghvi.data.grouped import CellRows
from nghvi.data.panel import collapse, distinct_rows
from nghvi.estimators import fitting
from nghvi.families import Mixture, Point
from nghvi.inference import infer
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import ACTIVATIONS, OwnTrunk, Perceptron, as_trunk
from nghvi.priors import Priors
from nghvi.recipes.verdict import Cause, Status
from nghvi.responses import Gaussian, Probit, StudentT

KEY = jax.random.key(0)


def curve_frame(num_groups=40, size=12, seed=0):
    """A kink that a linear model cannot follow, and intercepts by group."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(num_groups), size)
    x = rng.normal(size=(g.size, 2))
    y = 2 * np.maximum(x[:, 0], 0) + 0.5 * rng.normal(size=num_groups)[g] + 0.3 * x[:, 1]
    return pd.DataFrame({"g": g, "a": x[:, 0], "b": x[:, 1]}), y + 0.3 * rng.normal(size=g.size)


@pytest.fixture(scope="module")
def curve():
    return curve_frame()


@pytest.fixture(scope="module")
def deep(curve):
    return nghvi.MixedRegressor("g", hidden=(4,), steps=600, n_starts=2).fit(*curve)


def test_a_network_follows_what_a_line_cannot(curve, deep):
    x, y = curve_frame(seed=1)
    linear = nghvi.MixedRegressor("g").fit(*curve)
    deep_r2, linear_r2 = (
        nghvi.scores.r2(y, model.predict(x, which="zero")) for model in (deep, linear)
    )
    assert deep_r2 > linear_r2 + 0.03
    assert deep.log_score(*curve) > linear.log_score(*curve) + 0.2


def test_a_network_is_judged_and_evaluated(deep):
    verdict = deep.posterior_.inference.verdict
    facts = verdict.facts
    assert (deep.status_ == "settled") == (facts["bound"] <= facts["limit"] == 1.0)
    assert facts["steps"] == 100  # the last quarter of 400, after a trial of 100
    assert verdict.cause in (Cause.ONE_OF_MANY_MODES, Cause.RISING, Cause.NOISE)
    assert np.isfinite([deep.elbo_, deep.log_evidence_]).all()
    assert np.isfinite(deep.summary().to_numpy()).all()
    climbs = {f"{part} {n}" for part in ("search", "climb", "trial") for n in (1, 2)}
    assert set(deep.trace_["stage"]) == {*climbs, "natural", "second"}


def test_a_network_interrupted_in_its_first_climb_is_usable_and_resumes(
    curve, deep, monkeypatch, tmp_path
):
    class Interrupting(fitting.FitProgress):
        def __call__(self, *state):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(fitting, "FitProgress", Interrupting)
    part = clone(deep).set_params(verbose=True).fit(*curve)
    assert part.status_ == "interrupted"
    assert part.verdict_.startswith("Interrupted: stage 'search 1'")
    assert part.posterior_.inference.verdict.resumable
    assert np.isfinite(part.predict(curve[0])).all()
    part.save(tmp_path / "model")
    part = nghvi.load(tmp_path / "model").set_params(verbose=False).resume()
    np.testing.assert_array_equal(part.predict(curve[0]), deep.predict(curve[0]))


def test_the_same_seed_gives_the_same_network(curve, deep):
    again = nghvi.MixedRegressor("g", hidden=(4,), steps=600, n_starts=2).fit(*curve)
    np.testing.assert_array_equal(again.predict(curve[0]), deep.predict(curve[0]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_perceptron_is_its_layers(activation):
    trunk = Perceptron(3, (4, 2), activation)
    weights = jax.tree.map(lambda w: w + 0.1, trunk.init_weights(KEY))
    x = np.random.default_rng(0).normal(size=(5, 3))
    h = x
    for w in weights:
        h = np.asarray(ACTIVATIONS[activation](jnp.asarray(h @ w[:, 1:].T + w[:, 0])))
    features = trunk(weights, jnp.asarray(x))
    np.testing.assert_allclose(features, np.column_stack([np.ones(5), h]), rtol=1e-12)
    assert trunk.num_features == features.shape[1] == 3


def test_own_networks_are_trunks():
    module = eqx.nn.MLP(2, 3, 4, 1, key=KEY)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    trunk = as_trunk(module, 2)
    features = trunk(trunk.init_weights(KEY), x)
    np.testing.assert_allclose(features[:, 1:], jax.vmap(module)(x), rtol=1e-6)
    pair = (lambda key: {"w": jnp.eye(2)}, lambda weights, x: x @ weights["w"])
    assert isinstance(as_trunk(pair, 2), OwnTrunk)
    assert as_trunk(pair, 2).num_features == 3
    with pytest.raises(TypeError, match="pair"):
        as_trunk(lambda x: x, 2)


def test_an_own_network_fits(curve):
    def init(key):
        return 0.5 * jax.random.normal(key, (3, 2))

    fitted = nghvi.MixedRegressor(
        "g", trunk=(init, lambda w, x: jnp.tanh(x @ w.T)), steps=60, n_starts=1
    ).fit(*curve)
    assert np.isfinite(fitted.predict(curve[0])).all()
    with pytest.raises(nghvi.DataError, match="not both"):
        nghvi.MixedRegressor("g", hidden=(3,), trunk=(init, init)).fit(*curve)


def test_learnt_weight_prior_is_the_stated_density():
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=(4, 3)), rng.normal(size=(2, 5)))
    scale = rng.normal(size=2)
    exact = stats.norm.logpdf(scale).sum()
    for w, s in zip(weights, scale, strict=True):
        exact += stats.norm.logpdf(w, 0, np.exp(s) / np.sqrt(w.shape[1])).sum()
    ours = Priors().log_weights(jax.tree.map(jnp.asarray, weights), jnp.asarray(scale))
    np.testing.assert_allclose(ours, exact, rtol=1e-12)
    fixed = sum(stats.norm.logpdf(w, 0, 10).sum() for w in weights)
    np.testing.assert_allclose(
        Priors.paper().log_weights(jax.tree.map(jnp.asarray, weights), np.zeros(0)), fixed
    )


# repeated inputs


def repeated_rows(seed=0, binary=False):
    """60 groups of unequal size, 7 distinct inputs, groups in no order."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(60), rng.integers(1, 60, 60)))
    x = rng.normal(size=(7, 3))[rng.integers(0, 7, group.size)]
    y = rng.normal(size=group.size)
    return Rows.from_arrays(x, (y > 0) * 1.0 if binary else y, group, 60)


def parameters(model, rows):
    theta, unravel = ravel_pytree(model.init_params(KEY, rows))
    return unravel(theta + 0.3 * np.random.default_rng(1).normal(size=theta.size))


@pytest.mark.parametrize(
    ("response", "form"), [(Gaussian(), Panel), (Probit(), Rows), (StudentT(), CellRows)]
)
def test_collapsed_rows_give_identical_values_and_gradients(response, form):
    rows = repeated_rows(binary=response.classes)
    model = MixedModel(Perceptron(3, (4,)), response, Priors(), (0, 2))
    params = parameters(model, rows)
    small = prepare(model, rows)
    assert type(small) is form
    assert len(small.x) == 7
    assert small.num_rows == rows.num_rows
    value = eqx.filter_jit(lambda p, d: jax.value_and_grad(lambda q: model.log_marginal(q, d))(p))
    (left, slope), (right, other) = value(params, rows), value(params, small)
    np.testing.assert_allclose(left, right, rtol=1e-11)
    np.testing.assert_allclose(ravel_pytree(slope)[0], ravel_pytree(other)[0], rtol=1e-8, atol=1e-9)
    drawn = np.random.default_rng(3).normal(size=(rows.num_groups, 2))
    joint = eqx.filter_jit(
        lambda p, d, z: jax.value_and_grad(lambda q: model.log_joint(q, z, d))(p)
    )
    (left, slope), (right, other) = (
        joint(params, data, drawn[np.argsort(data.original_order)]) for data in (rows, small)
    )
    np.testing.assert_allclose(left, right, rtol=1e-11)
    np.testing.assert_allclose(ravel_pytree(slope)[0], ravel_pytree(other)[0], rtol=1e-8, atol=1e-9)
    moments = eqx.filter_jit(lambda p, d: model.effect_moments(KEY, p, d)[0])
    for data in (rows, small):
        ordered = data.in_original_order(moments(params, data))
        np.testing.assert_allclose(
            ordered, rows.in_original_order(moments(params, rows)), atol=1e-9
        )


def test_distinct_inputs_are_left_alone():
    rng = np.random.default_rng(0)
    rows = Rows.from_arrays(rng.normal(size=(30, 2)), rng.normal(size=30), np.arange(30) % 3, 3)
    assert collapse(rows, sums_suffice=True) is rows


def test_distinct_rows_agree_with_numpy():
    values = np.random.default_rng(0).integers(-2, 3, (500, 3)).astype(float)
    values[values == 0] *= -1.0  # both zeros are one number
    first, index = distinct_rows(values)
    assert len(first) == len(np.unique(values, axis=0))
    np.testing.assert_array_equal(values[first][index], values)


# parts of the recipe


def test_a_point_climbs_to_the_mode():
    rows = repeated_rows()
    model = MixedModel(Perceptron(3, (2,), "tanh"), Gaussian(), Priors(weight_sd=1.0), (0,))
    start = Point(ravel_pytree(model.init_params(KEY, rows))[0])
    algorithm = HybridVI(
        IndependentDraws(1), Integrated(), ScaledGradient(jnp.ones(start.dim)), Adam(0.02, 800, 0.2)
    )
    end = fit(KEY, algorithm, model, rows, start, num_steps=800)
    assert np.asarray(end.trace.gradient_norm)[-1] < 0.05 * np.asarray(end.trace.gradient_norm)[0]
    heights = np.asarray(end.trace.log_target)
    assert heights[-1] > heights[0]
    assert np.abs(np.diff(heights[-20:])).max() < 0.01


def test_a_step_to_nowhere_is_not_taken():
    class Cliff(MixedModel):
        def log_marginal(self, params, data):
            value = super().log_marginal(params, data)
            return jnp.where(params.coef[0] > 0.05, jnp.inf, value)

    rows = repeated_rows()
    model = Cliff(Perceptron(3, (2,)), Gaussian(), Priors(), (0,))
    done = infer(model, rows, steps=60, n_starts=1)
    assert np.isfinite(np.asarray(done.q.centre)).all()
    assert np.isfinite(done.elbo) or done.verdict.status is Status.FAILED


def test_materialise_returns_its_argument_or_nan():
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(materialise(x), x)
    assert np.isnan(materialise(x.at[1].set(jnp.inf))).all()


def test_adam_has_the_stated_schedule():
    rule = Adam(0.1, 10, 0.5)
    state, lengths = rule.init(jnp.zeros(1)), []
    for _ in range(11):
        update, state = rule.update(jnp.ones(1), state)
        lengths.append(-float(update[0]))
    np.testing.assert_allclose(lengths[:6], 0.1, rtol=1e-6)
    np.testing.assert_allclose(lengths[10], 0.001, rtol=1e-5)


# what goes wrong


def test_a_dead_network_is_reported(curve):
    x, y = curve
    dead = (lambda key: jnp.full((2, 2), -1.0), lambda w, x: jnp.maximum(-1e3 - x**2 @ w.T**2, 0))
    fitted = nghvi.MixedRegressor("g", trunk=dead, steps=40, n_starts=1).fit(x, y)
    assert fitted.posterior_.inference.verdict.cause is Cause.CONSTANT_FEATURES
    assert not fitted.converged_
    np.testing.assert_allclose(np.ptp(fitted.predict(x, which="zero")), 0, atol=1e-9)


def test_one_row_groups_and_huge_inputs_stay_finite():
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"g": np.arange(60), "a": 1e6 * rng.normal(size=60)})
    fitted = nghvi.MixedRegressor("g", hidden=(3,), steps=40, n_starts=1).fit(
        x, rng.normal(size=60)
    )
    assert np.isfinite(fitted.predict(x)).all()
    far = pd.DataFrame({"g": [0, 99], "a": [1e12, -1e12]})
    assert np.isfinite(fitted.predict(far)).all()


def test_a_network_of_own_functions_cannot_be_saved(curve, tmp_path):
    fitted = nghvi.MixedRegressor(
        "g", trunk=(lambda key: jnp.ones((2, 2)), lambda w, x: x @ w.T), steps=10, n_starts=1
    ).fit(*curve)
    with pytest.raises(nghvi.storage.StorageError, match="register"):
        fitted.save(tmp_path / "own.nghvi")


def test_the_two_best_starts_are_mixed(deep, curve, tmp_path):
    inference = deep.posterior_.inference
    member = inference.pool.member
    assert isinstance(inference.run.q, Mixture)
    assert 0.4 < member.mean() < 0.6
    # The centre is that of one start: the network is as it was drawn there, not an average of two.
    first = inference.pool.theta[member == 0]
    np.testing.assert_allclose(inference.q.centre, first.mean(axis=0), atol=1e-10)
    deep.save(tmp_path / "deep.nghvi")
    loaded = nghvi.load(tmp_path / "deep.nghvi")
    np.testing.assert_array_equal(loaded.posterior_.inference.pool.member, member)
    x = curve[0].iloc[:20]
    apart = deep.start_distances(x)
    assert apart.shape == (20,)
    assert ((apart >= 0) & (apart <= 2)).all()
    np.testing.assert_allclose(loaded.start_distances(x), apart)


def test_one_start_is_not_mixed(curve):
    one = nghvi.MixedRegressor("g", hidden=(4,), steps=600, n_starts=1).fit(*curve)
    assert one.posterior_.inference.pool.member is None
    assert one.start_distances(curve[0].iloc[:3]) is None
