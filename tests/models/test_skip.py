"""Networks with a skip connection: features, priors, start, natural steps, no network at all."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import nghvi
from nghvi._core.direction import ScaledGradient
from nghvi._core.draws import IndependentDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.loop import fit
from nghvi._core.model import MarginalModel
from nghvi._core.score import Emphasised, Faint, Integrated
from nghvi._core.step_rules import NaturalSteps
from nghvi.data import Panel, Rows
from nghvi.estimators.assembly import assemble
from nghvi.estimators.fitting import clearly_best
from nghvi.estimators.reader import read_to_fit
from nghvi.estimators.response_columns import RowFacts
from nghvi.estimators.spec import Spec, Structure, follow_data
from nghvi.families import FactorGaussian, Point
from nghvi.models.bounded import Bounded
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import LinearStart
from nghvi.models.smallest_form import prepare
from nghvi.networks import Perceptron, Skip, Tamed
from nghvi.priors import HalfT, HuangWand, Priors
from nghvi.recipes.deep import deep_recipe, kept
from nghvi.recipes.run import Ended
from nghvi.recipes.settings import Settings
from nghvi.recipes.settling import End
from nghvi.recipes.verdict import Cause, Status, Verdict
from nghvi.responses import RESPONSES, Gaussian, Logit

KEY = jax.random.key(0)
TRUNK = Skip(Perceptron(3, (4, 2), "tanh"), 3)


def line_frame(num_groups=25, size=8, seed=0):
    """A linear model with intercepts by group; column ``c`` is constant within groups."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(num_groups), size)
    x = rng.normal(size=(g.size, 2))
    c, effects = rng.normal(size=(2, num_groups))
    y = x[:, 0] - x[:, 1] + 0.5 * c[g] + 0.7 * effects[g] + rng.normal(size=g.size)
    return pd.DataFrame({"g": g, "a": x[:, 0], "b": x[:, 1], "c": c[g]}), y


def rows_of(frame, y):
    x = frame[["a", "b", "c"]].to_numpy()
    return Rows.from_arrays(x, y, frame["g"].to_numpy(), frame["g"].nunique())


# the model


def test_features_are_the_inputs_beside_the_network():
    weights = TRUNK.init_weights(KEY)._replace(size=jnp.array([0.7]))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    learnt = TRUNK.network(weights.network, x)[:, 1:]
    expected = np.column_stack([np.ones(5), x, 0.7 * learnt / np.sqrt(2)])
    np.testing.assert_allclose(TRUNK(weights, x), expected, rtol=1e-12)
    assert TRUNK.num_features == expected.shape[1] == 6
    off = TRUNK(weights._replace(size=jnp.zeros(1)), x)
    np.testing.assert_array_equal(off[:, 4:], 0)


def test_layers_have_the_stated_prior_and_no_scales_of_their_own():
    rows = rows_of(*line_frame())
    model = MixedModel(TRUNK, Gaussian(), Priors(), (0,))
    params = model.init_params(KEY, rows)
    assert params.weight_scale.size == 0
    weights = params.weights
    exact = stats.norm.logpdf(weights.size).sum()
    for w in weights.network:
        exact += stats.norm.logpdf(np.asarray(w), 0, 1 / np.sqrt(w.shape[1])).sum()
    found = Priors().log_weights(weights, params.weight_scale)
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_the_density_does_not_grow_as_a_network_vanishes():
    # With a learnt scale per layer it did, without bound.
    rows = rows_of(*line_frame())
    model = MixedModel(TRUNK, Gaussian(), Priors(), (0,))
    params = model.init_params(KEY, rows)

    def at(share):
        weights = jax.tree.map(lambda w: share * w, params.weights)
        return float(model.log_marginal(params._replace(weights=weights), rows))

    assert abs(at(1e-3) - at(1e-9)) < 0.1


def test_start_is_least_squares_and_analysis_of_variance():
    frame, y = line_frame()
    found = LinearStart.of(rows_of(frame, y))
    x = np.column_stack([np.ones(len(y)), frame[["a", "b", "c"]]])
    coef = np.linalg.lstsq(x, y)[0]
    np.testing.assert_allclose(found.coef, coef, rtol=1e-4)
    left = pd.Series(y - x @ coef).groupby(frame["g"])
    within = left.var(ddof=0).sum() * 8 / (200 - 25)
    between = (8 * (left.mean() ** 2).sum() - 24 * within) / (200 - 8)
    np.testing.assert_allclose([found.noise, found.between], [within, between], rtol=1e-3)


def test_start_is_the_same_from_repeated_inputs():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(5), 40)
    x = rng.normal(size=(4, 3))[rng.integers(0, 4, group.size)]
    rows = Rows.from_arrays(x, rng.normal(size=group.size) + group, group, 5)
    model = MixedModel(TRUNK, Gaussian(), Priors(effects=HalfT()), (0, 1, 5))
    panel = prepare(model, rows)
    assert isinstance(panel, Panel)
    starts = [ravel_pytree(model.suited(data).start)[0] for data in (rows, panel)]
    np.testing.assert_allclose(*starts, rtol=1e-6)
    params = model.suited(rows).init_params(KEY, rows)
    variances = np.exp(np.asarray(params.effects))
    np.testing.assert_allclose(variances[0], starts[0][-1])
    assert (variances[1:] < variances[0]).all()


# natural steps


class Normal(MarginalModel):
    """Independent normals with these means and sds."""

    mean: np.ndarray
    sd: np.ndarray

    def init_params(self, key, data):
        return jnp.zeros(self.mean.size)

    def log_marginal(self, params, data):
        return -0.5 * jnp.sum(((params - self.mean) / self.sd) ** 2)

    def log_joint(self, params, latents, data):
        return self.log_marginal(params, data)

    def init_latents(self, key, params, data):
        return jnp.zeros(0)

    def sample_latents(self, key, params, latents, data):
        return latents


def test_natural_steps_find_a_gaussian_in_any_units():
    model = Normal(np.array([3.0, -2e3, 1e-3]), np.array([1.0, 1e3, 1e-4]))
    start = FactorGaussian.start(jnp.zeros(3), jnp.asarray(3 * model.sd), 0)
    rule = NaturalSteps(0.1, 0.05, 1500, 0.3)
    scaled = ScaledGradient(jnp.ones(3), 1.0)
    algorithm = HybridVI(IndependentDraws(1), Integrated(), scaled, rule)
    q = fit(KEY, algorithm, model, jnp.zeros(1), start, num_steps=1500, average_last=150).q
    np.testing.assert_allclose((q.mean - model.mean) / model.sd, 0, atol=0.02)
    np.testing.assert_allclose(q.scale / model.sd, 1, atol=0.02)


def test_a_natural_step_is_the_stated_one():
    rule = NaturalSteps(0.1, 0.01, 10, 0.5)
    q = FactorGaussian.start(jnp.zeros(2), jnp.ones(2), 0)
    direction = FactorGaussian(jnp.array([0.3, -0.4]), jnp.zeros(0), jnp.array([2.0, -1e3]), 0)
    update, state = rule.update(direction, rule.init(q))
    np.testing.assert_allclose(update.mean, [-0.03, 0.04])  # the first average is the gradient
    np.testing.assert_allclose(update.scale, [-0.01, 0.25])  # a quarter at most
    far = FactorGaussian(jnp.array([30.0, -40.0]), jnp.zeros(0), jnp.zeros(2), 0)
    update, _ = rule.update(far, rule.init(q))
    np.testing.assert_allclose(np.linalg.norm(update.mean), 0.1 * np.sqrt(2))
    assert state.step == 1


# the estimator


@pytest.fixture(scope="module")
def nothing():
    """A fit to data from which a network has nothing to learn, with its rows."""
    frame, y = line_frame()
    model = nghvi.MixedRegressor("g", hidden=(2,), n_starts=1)
    return model.fit(frame, y), frame, y


def test_where_a_network_adds_nothing_the_linear_model_is_returned(nothing):
    model, frame, y = nothing
    linear = nghvi.MixedRegressor("g").fit(frame, y)
    assert model.status_ == "converged"
    assert "The network adds nothing here" in model.verdict_
    assert "with intercepts by group" in model.verdict_
    np.testing.assert_allclose(model.predict(frame), linear.predict(frame), rtol=1e-10)
    assert list(model.summary().index) == list(linear.summary().index)
    assert model.get_params()["hidden"] == (2,)


def test_it_is_saved_as_it_is(nothing, tmp_path):
    model, frame, _ = nothing
    model.save(tmp_path / "m.nghvi")
    again = nghvi.load(tmp_path / "m.nghvi")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert again.verdict_ == model.verdict_


def test_a_network_that_is_kept_is_saved(tmp_path):
    frame, y = line_frame()
    model = nghvi.MixedRegressor("g", hidden=(2,), steps=40, n_starts=1)
    model.fit(frame, y + 3 * np.abs(frame["a"]))
    assert isinstance(model.posterior_.model.trunk, Skip)
    model.save(tmp_path / "m.nghvi")
    again = nghvi.load(tmp_path / "m.nghvi")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))


def structure_of(frame, response="gaussian", **settings):
    """The structure of a model for this frame, and the names of its features with effects."""
    model = nghvi.MixedRegressor("g", hidden=(2,), response=response, **settings)
    spec, inputs = Spec.of(model, None, RowFacts.of(model)), frame.drop(columns="g")
    made = Structure.of(model, spec, tuple(inputs))
    groups = frame["g"].to_numpy()
    given = inputs.to_numpy(), groups, np.unique(groups), RESPONSES[response]()
    made = made.with_usual_effects(spec, *given)
    if model.priors is None:
        made = follow_data(made, spec, np.zeros(3), np.ones(3), (0.0, 1.0), len(frame))
    return made, [made.features[j] for j in made.effects[0]]


def test_groups_of_one_row_do_not_count_as_groups_that_show_curves():
    frame = line_frame(num_groups=50)[0]
    alone = np.where(frame["g"] == 0, 50 + np.arange(len(frame)), frame["g"])
    for group, learnt in ((frame["g"], ["h1", "h2"]), (alone, [])):
        effects = structure_of(frame.assign(g=group))[1]
        assert [name for name in effects if name.startswith("h")] == learnt


def test_inputs_that_are_constant_within_groups_have_no_effects_by_default():
    frame = line_frame(num_groups=50)[0]
    made, effects = structure_of(frame)
    assert made.features == ("intercept", "a", "b", "c", "h1", "h2")
    assert effects == ["intercept", "a", "b", "h1", "h2"]
    assert made.priors.effects == HalfT(scale=(2.5, 0.5, 0.5, 1.0, 1.0))
    assert made.priors.coef_sd == (10.0, 10.0, 10.0, 10.0, 1.0, 1.0)
    assert structure_of(frame, random="all")[1] == list(made.features)
    made, effects = structure_of(frame, random=["intercept", "c"], covariance="full")
    assert effects == ["intercept", "c"]
    assert made.priors.effects == HuangWand(scale=(2.5, 0.5))


def test_few_groups_have_no_effects_of_what_is_learnt_by_default():
    frame = line_frame(num_groups=49, size=3)[0]
    assert structure_of(frame)[1] == ["intercept", "a", "b"]
    made, effects = structure_of(frame, random="all")
    assert effects == list(made.features)


def assembled(**settings):
    """The model of a fit, which warns as it is assembled."""
    estimator = nghvi.MixedRegressor("g", hidden=(2,), **settings)
    reader, source = read_to_fit(estimator, *line_frame(), None, Gaussian())
    return assemble(estimator, reader.spec, source, Gaussian()).model


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"random": "all"}, r"learns \(h1 to h2\) with 25 groups\. .*random='intercept'"),
        ({"random": ["intercept", "h2"]}, r"learns \(h2\) with 25 groups"),
        ({"priors": Priors.paper()}, r"Priors.paper\(\) is stated for raw data.*standardize=False"),
    ],
)
def test_what_is_asked_for_and_does_harm_is_pointed_at(settings, said):
    with pytest.warns(nghvi.DataWarning, match=said) as found:
        assembled(**settings)
    assert len(found) == 1


def test_the_warning_comes_once_in_a_fit():
    model = nghvi.MixedRegressor("g", hidden=(2,), steps=1, n_starts=1, random="all")
    with pytest.warns(nghvi.DataWarning, match="learns") as found:
        model.fit(*line_frame())
    assert len(found) == 1


def test_networks_without_closed_form_have_intercepts_by_group():
    made, effects = structure_of(line_frame(num_groups=50)[0], response="student-t")
    assert made.features == ("intercept", "a", "b", "c", "h1", "h2")
    assert effects == ["intercept"]


@pytest.mark.parametrize("settings", [{"skip": False}, {"random": "intercept"}])
def test_what_does_no_harm_is_not_pointed_at(settings):
    assert not assembled(**settings).trunk.linear  # warnings are errors


def wave_frame(num_groups=6, size=25, seed=6):
    """A curve far from any line, with intercepts by group."""
    rng = np.random.default_rng(seed)
    x, g = rng.uniform(-2, 2, (num_groups * size, 2)), np.tile(np.arange(num_groups), size)
    y = np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=num_groups)[g] + 0.3 * rng.normal(size=g.size)
    return pd.DataFrame({"g": g, "a": x[:, 0], "b": x[:, 1]}), y


def test_a_curve_in_few_rows_is_found_and_holds_for_new_groups():
    # With the whole prior from the first step, a climb would give up the network here; with effects
    # on what is learnt, every group would have its own curve.
    model = nghvi.MixedRegressor("g", hidden=(32, 16)).fit(*wave_frame())
    assert isinstance(model.posterior_.model.trunk, Skip)
    new = pd.DataFrame({"a": np.linspace(-2, 2, 101), "b": 0.0})
    truth = np.sin(2 * new["a"])
    error = truth - model.predict(new, which="zero")
    assert np.mean(error**2) < 0.25 * np.var(truth)


def test_a_faint_prior_counts_by_its_share():
    rows = rows_of(*line_frame())
    model = MixedModel(TRUNK, Gaussian(), Priors.paper(), random=(0,))
    data = prepare(model, rows)
    theta, unravel = ravel_pytree(model.init_params(KEY, data))

    def density(t):
        params = unravel(t)
        return model.log_marginal(params, data) - 0.9 * model.log_prior(params)

    faint = Faint(Integrated(), jnp.asarray(0.1))
    value, score, _ = jax.jit(lambda t: faint(KEY, t, (), model, data))(theta)
    expected, slope = jax.jit(jax.value_and_grad(density))(theta)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(score, slope, rtol=1e-9, atol=1e-9)


def test_data_that_count_several_times_do_so_at_their_coordinates_only():
    model = MixedModel(TRUNK, Gaussian(), Priors.paper(), random=(0,))
    data = prepare(model, rows_of(*line_frame()))
    theta, unravel = ravel_pytree(model.init_params(KEY, data))
    times = jnp.asarray(np.random.default_rng(0).uniform(1, 4, theta.size))

    def parts(t):
        prior = model.log_prior(unravel(t))
        return jnp.stack([model.log_marginal(unravel(t), data) - prior, prior])

    emphasised = Emphasised(Integrated(), times)
    value, score, _ = jax.jit(lambda t: emphasised(KEY, t, (), model, data))(theta)
    likelihood, prior = jax.jit(jax.jacrev(parts))(theta)
    np.testing.assert_allclose(value, jnp.sum(parts(theta)), rtol=1e-12)
    np.testing.assert_allclose(score, times * likelihood + prior, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("units", "times"), [(1000, 2.0), (75, 2.0), (20, 1.6), (10, None)])
def test_classes_count_for_weights_by_how_many_weights_there_are_for_a_row(units, times):
    """There are 4 weights per unit, and 200 rows."""
    model = Bounded(MixedModel(Skip(Perceptron(3, (units,)), 3), Logit(), Priors.paper(), (0,)))
    frame, y = line_frame()
    rows = rows_of(frame, (y > 0).astype(float))
    stages = deep_recipe(model, rows, Integrated(), Settings()).stages
    for stage in stages:
        score = stage.algorithm.score
        if stage.name.startswith(("search", "climb")) or times is None:
            assert not isinstance(score, Emphasised)
        else:
            np.testing.assert_allclose(np.unique(score.times), [1, times])


def test_a_further_stage_is_compared_with_the_end_of_the_one_before():
    def ended(name, step):
        return Ended(name, types.SimpleNamespace(step=step))

    model = MixedModel(TRUNK, Gaussian(), Priors.paper(), random=(0,))
    names = [("natural", 30), ("natural", 40), ("natural 2", 40), ("natural 3", 80)]
    done = tuple(ended(*each) for each in names)
    (first,) = kept(model, None, done[:2])
    assert first == End(done[0].fit, done[1].fit, 10, 10)
    for number in (3, 4):
        (found,) = kept(model, None, done[:number])
        before, after = (stage.fit for stage in done[number - 2 : number])
        assert found == End(before, after, after.step, after.step // 4)


def test_natural_stages_are_repeated_only_while_the_elbo_moves():
    model = MixedModel(Skip(Perceptron(3, (40,)), 3), Gaussian(), Priors.paper(), random=(0,))
    data = prepare(model, rows_of(*line_frame()))
    stages = deep_recipe(model, data, Integrated(), Settings()).stages
    natural = [s for s in stages if s.name.startswith("natural") and not s.continues]
    assert [stage.encore for stage in natural] == [False, True, True, True, True]


def test_a_network_that_is_given_up_gets_no_encores():
    model = MixedModel(Skip(Perceptron(3, (2,)), 3), Gaussian(), Priors.paper(), random=(0,))
    data = prepare(model, rows_of(*line_frame()))
    recipe = deep_recipe(model, data, Integrated(), Settings())
    for size, worth in ((0.5, True), (0.05, False), (0.0, False), (-0.5, True)):
        params = model.init_params(KEY, data)
        weights = params.weights._replace(size=jnp.full(1, size))
        theta = ravel_pytree(params._replace(weights=weights))[0]
        assert recipe.promising(model, data, Point(theta)) is worth


def test_rough_features_differ_in_their_last_digits_only():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(30, 3)))
    trunk = Skip(Tamed(Perceptron(3, (8, 4)), (1,), *np.array([[0.1], [2.0], [0.3], [0.7]])), 3)
    weights, shape = ravel_pytree(trunk.init_weights(KEY))

    def moment(trunk):
        return jax.value_and_grad(lambda w: jnp.mean(trunk(shape(w), x) ** 3))(weights)

    (value, slope), (rough, rough_slope) = moment(trunk), moment(trunk.rough())
    assert rough_slope.dtype == slope.dtype
    np.testing.assert_allclose(rough, value, rtol=1e-5)
    np.testing.assert_allclose(rough_slope, slope, rtol=1e-4, atol=1e-5 * np.abs(slope).max())
    assert not np.array_equal(rough, value)


@pytest.mark.parametrize(("evidence", "chosen"), [(-100.5, 0), (-97.0, 1), (np.nan, 0)])
def test_slopes_are_taken_where_the_evidence_is_clearly_for_them(evidence, chosen):
    models = [types.SimpleNamespace(log_evidence_=each) for each in (-100.0, evidence)]
    assert clearly_best(models) is models[chosen]


def test_learnt_features_are_not_taken_for_columns():
    made, _ = structure_of(line_frame()[0].rename(columns={"b": "h1"}))
    assert list(made.features) == ["intercept", "a", "h1", "c", "h_1", "h_2"]


@pytest.mark.parametrize(
    "settings",
    [{"skip": False}, {"priors": Priors.paper()}, {"method": "ng-hvi"}],
)
def test_the_papers_structure_is_one_argument_away(settings):
    made, effects = structure_of(line_frame()[0], **settings)
    assert made.features == ("intercept", "h1", "h2") == tuple(effects)
    assert isinstance(made.trunk, Perceptron)


def test_skip_is_checked():
    frame, y = line_frame()
    with pytest.raises(nghvi.DataError, match="skip='x': choose True, False or 'auto'"):
        nghvi.MixedRegressor("g", hidden=(2,), skip="x").fit(frame, y)


def test_a_verdict_tells_of_a_network_that_adds_nothing():
    facts = {"mean_bound": 0.01, "scale_bound": 0.01, "bad_draws": 0, "network_size": 0.012}

    def said(**more):
        return Verdict(Status.CONVERGED, Cause.OPTIMUM, {**facts, **more}).sentence

    assert said().endswith("(its size is 0.01): a linear mixed model would do.")
    assert said(effects=0).endswith("this is the linear model.")
    assert said(effects=1).endswith("this is the linear model with intercepts by group.")
    assert said(effects=3).endswith("this is the linear model with 3 effects by group.")
