"""Honest numbers: evidence, ELBO, verdicts, importance weights, published rules."""

import signal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma, gammaln, polygamma

import nghvi
from nghvi._core.evaluate import evaluate, log_targets
from nghvi._core.model import unraveller
from nghvi.data.grouped import Rows
from nghvi.families import CholeskyGaussian, Factor
from nghvi.families.factor import project
from nghvi.inference import infer
from nghvi.methods import published_start
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity, Perceptron
from nghvi.priors import InverseGamma, Priors, WishartPrecision
from nghvi.recipes import importance
from nghvi.recipes.importance import Pool, pareto_shape
from nghvi.recipes.plan import HUGE
from nghvi.recipes.refinement import refinements_needed
from nghvi.recipes.verdict import Status
from nghvi.responses import Gaussian, Probit
from tests.conftest import panel_frame
from tests.core.test_fit import DATA, NormalMean


def rows_of(frame, columns=("a", "b")):
    x = np.column_stack([np.ones(len(frame)), frame[list(columns)]])
    return Rows.from_arrays(x, frame["y"].to_numpy(), frame["g"].to_numpy(), frame["g"].max() + 1)


ROWS = rows_of(panel_frame())
MODEL = MixedModel(Identity(3), Gaussian(), Priors(effects=InverseGamma()), (0,))


def test_elbo_and_evidence_of_a_gaussian_target_are_its_normalising_constant(key):
    found = infer(NormalMean(), DATA)
    # log of the integral of exp(-(y-t)^2/4 - t^2/8): Gaussian integral, four times.
    quadratic = -0.25 * DATA**2 + (0.5 * DATA) ** 2 / (2 * 0.75)
    exact = float(jnp.sum(quadratic + 0.5 * jnp.log(2 * jnp.pi / 0.75)))
    assert found.elbo == pytest.approx(exact, abs=1e-6)
    assert found.log_evidence == pytest.approx(exact, abs=1e-6)


class LogGammas(NormalMean):
    """Logarithms of independent Gamma(8, 8) variables in units of 1 / sqrt 8."""

    def log_marginal(self, params, data):
        return jnp.sum(8 * params / np.sqrt(8) - 8 * jnp.exp(params / np.sqrt(8)))


@pytest.mark.parametrize(("draws", "with_scores", "seed"), [(250, False, 0), (100, True, 1)])
def test_draws_of_q_are_enough_for_a_surface(draws, with_scores, seed, monkeypatch):
    """A hundred draws have a k-hat above .7 with one seed in twenty, and are then not enough."""
    key = jax.random.key(seed)
    mean, sd = np.sqrt(8) * (digamma(8) - np.log(8)), np.sqrt(8 * polygamma(1, 8))
    centre = jnp.full(3, mean)
    q = CholeskyGaussian.from_covariance_factor(centre, sd * jnp.eye(3))
    found = evaluate(key, q, LogGammas(), centre, draws=draws, with_scores=with_scores)
    asked = []

    def counted(model, data, theta, batch=None):
        asked.append(len(theta))
        return log_targets(model, data, theta, batch)

    monkeypatch.setattr(importance, "log_targets", counted)
    pool = importance.importance_pool(found, LogGammas(), centre, np.random.default_rng(0))
    assert pool is not None
    assert sum(asked) < 300
    centred = pool.theta - mean
    np.testing.assert_allclose(pool.weight @ centred, 0, atol=0.04 * sd)
    np.testing.assert_allclose(np.sqrt(pool.weight @ centred**2), sd, rtol=0.03)
    # The integral of exp(8 u - 8 exp(u)) over sqrt(8) u, three times.
    exact = 3 * (gammaln(8) - 8 * np.log(8) + 0.5 * np.log(8))
    assert pool.log_evidence == pytest.approx(exact, abs=0.03)


@pytest.mark.parametrize("settings", [{"method": "ng-hvi"}, {"latents": "sample"}])
def test_sums_over_rows_cannot_be_drawn_from(settings):
    with pytest.raises(nghvi.InputError, match="pass the rows themselves"):
        infer(MODEL, prepare(MODEL, ROWS), **settings)


def test_empty_groups_for_the_sake_of_programs_change_nothing(monkeypatch):
    data = prepare(MODEL, rows_of(panel_frame(num_groups=17)))
    found = infer(MODEL, data)
    monkeypatch.setattr("nghvi.data.linear.MOST_FILLED", 0)
    plain = infer(MODEL, data)
    assert found.data is data
    np.testing.assert_allclose(found.q.centre, plain.q.centre, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.pool.theta, plain.pool.theta, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.log_evidence, plain.log_evidence, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", [Factor(0), Factor(1), "factor", "full"])
def test_elbo_never_exceeds_the_evidence_and_grows_with_rank(family):
    best = infer(MODEL, prepare(MODEL, ROWS))
    found = infer(MODEL, prepare(MODEL, ROWS), family=family)
    assert found.elbo <= best.log_evidence + 0.02
    assert found.elbo <= best.elbo + 3 * (found.elbo_se + best.elbo_se)
    assert found.converged


def test_sampled_and_integrated_latents_agree():
    integrated = infer(MODEL, ROWS)
    sampled = infer(MODEL, ROWS, latents="sample")
    sd = integrated.q.standard_deviation()
    np.testing.assert_array_less(np.abs(sampled.q.mean - integrated.q.mean) / sd, 0.1)
    ratio = sampled.q.standard_deviation() / sd
    np.testing.assert_array_less(np.abs(ratio - 1), 0.1)


@pytest.mark.parametrize("method", ["ng-hvi", "ng-hvi-printed", "sg-hvi"])
def test_published_rules_approach_the_optimum_and_are_judged(method):
    start = published_start(MODEL, ROWS, 0).theta
    best = infer(MODEL, prepare(MODEL, ROWS))
    found = infer(MODEL, ROWS, method=method, steps=3000, family=Factor(1), start=start)
    assert best.log_evidence - 15 < found.elbo <= best.log_evidence + 0.05
    few = infer(MODEL, ROWS, method=method, steps=20, family=Factor(1), start=start)
    assert not few.converged
    assert few.verdict.status is Status.NOT_CONVERGED


@pytest.mark.parametrize(
    ("trunk", "response", "rest", "scale"),
    [
        (Identity(3), Probit(), 0.01, 1.0),
        (Perceptron(3, (3,)), Gaussian(), 0.01, 1.0),
        (Perceptron(3, (3,)), Probit(), 0.0, 0.01),
    ],
)
def test_published_rules_start_where_their_authors_did(trunk, response, rest, scale):
    model = MixedModel(trunk, response, Priors.paper(), (0,))
    start = published_start(model, ROWS, 0)
    params = unraveller(model, ROWS)(start.theta)
    assert start.scale == scale
    for part in (params.coef, params.dispersion, params.effects):
        np.testing.assert_array_equal(part, rest)
    for layer in jax.tree.leaves(params.weights):
        bound = np.sqrt(6) / (layer.shape[0] + layer.shape[1] - 1)
        assert np.abs(layer).max() <= bound
        assert np.abs(layer).max() > bound / 2
        assert not layer[:, 0].any()


def test_the_same_seed_gives_the_same_result_and_another_seed_another():
    first, second, other = (infer(MODEL, prepare(MODEL, ROWS), seed=s) for s in (3, 3, 4))
    assert np.array_equal(first.pool.theta, second.pool.theta)
    assert first.elbo == second.elbo
    assert not np.array_equal(first.pool.theta, other.pool.theta)


def test_importance_weights_correct_a_skewed_posterior():
    """log of a Gamma(2, 1) variable: mean digamma(2), variance trigamma(2), both known."""

    class LogGamma(nghvi.MarginalModel):
        def init_params(self, key, data):
            return jnp.zeros(2)

        def init_latents(self, key, params, data):
            return ()

        def log_joint(self, params, latents, data):
            return self.log_marginal(params, data)

        def sample_latents(self, key, params, latents, data):
            return ()

        def log_marginal(self, params, data):
            return jnp.sum(2 * params - jnp.exp(params))

    found = infer(LogGamma(), jnp.zeros(1))
    assert found.converged
    assert found.pool.corrected
    mean = found.pool.weight @ found.pool.theta
    variance = found.pool.weight @ (found.pool.theta - mean) ** 2
    np.testing.assert_allclose(mean, 0.4227843, atol=0.02)
    np.testing.assert_allclose(variance, 0.6449341, rtol=0.05)
    assert found.log_evidence == pytest.approx(0.0, abs=0.005)  # Gamma(2) = 1, twice
    assert found.elbo < found.log_evidence


def test_draws_that_are_not_corrected_have_the_moments_of_the_family():
    """Independent draws would miss an sd by up to 4 %; the seed is fixed."""
    q = infer(MODEL, prepare(MODEL, ROWS)).q
    theta, sd = Pool.spread(q, np.random.default_rng(1)).theta, q.standard_deviation()
    np.testing.assert_allclose((theta.mean(axis=0) - q.mean) / sd, 0.0, atol=1e-3)
    np.testing.assert_allclose(theta.std(axis=0), sd, rtol=5e-3)


def test_k_hat_tells_a_narrow_proposal_from_a_good_one(key):
    model = NormalMean()
    good = infer(model, DATA).q
    narrow = CholeskyGaussian.from_covariance_factor(good.mean, 0.4 * good.factor)
    assert pareto_shape(evaluate(key, narrow, model, DATA).log_ratio) > 0.7


def test_projection_keeps_the_diagonal_family_optimum():
    factor = jnp.linalg.cholesky(jnp.array([[2.0, 0.6, 0.1], [0.6, 1.0, 0.3], [0.1, 0.3, 1.5]]))
    q = CholeskyGaussian.from_covariance_factor(jnp.zeros(3), factor)
    # The mean field optimum of a Gaussian target has the precision's diagonal.
    expected = 1 / jnp.diagonal(jnp.linalg.inv(q.covariance()))
    np.testing.assert_allclose(project(q, 0).scale ** 2, expected, rtol=1e-5)
    np.testing.assert_allclose(project(q, 3).covariance(), q.covariance(), atol=1e-3)


def test_two_modes_are_not_passed_off_as_a_reliable_correction():
    class TwoModes(NormalMean):
        def log_marginal(self, params, data):
            return jnp.logaddexp(
                -0.5 * jnp.sum((params - 8) ** 2), -0.5 * jnp.sum((params + 8) ** 2)
            )

    found = infer(TwoModes(), DATA)
    # One mode is found; the other cannot be seen from there, but the ELBO must stay a bound.
    assert found.elbo <= np.log(2) + 2 * np.log(2 * np.pi) + 0.01


@pytest.mark.parametrize(
    "bad",
    [
        {"method": "magic"},
        {"family": 3},
        {"family": "half"},
        {"family": True},
        {"latents": "guess"},
    ],
)
def test_absurd_settings_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        infer(MODEL, ROWS, **bad)


def test_settings_may_be_an_object_names_or_both():
    data = prepare(MODEL, ROWS)
    chosen = nghvi.Settings(seed=3, importance=False)
    named, given, both = (
        infer(MODEL, data, seed=3, importance=False),
        infer(MODEL, data, chosen),
        infer(MODEL, data, nghvi.Settings(seed=1, importance=False), seed=3),
    )
    assert np.array_equal(named.pool.theta, given.pool.theta)
    assert np.array_equal(named.pool.theta, both.pool.theta)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sede", "Did you mean seed="),
        ("smooth", "many_modes"),
        ("rank", "nghvi.families.Factor"),
        ("start_scale", "nghvi.Start"),
        ("random_state", "Did you mean seed="),
        ("zzz", "The settings are seed, method"),
    ],
)
def test_an_unknown_setting_is_refused_and_the_near_one_named(name, said):
    with pytest.raises(nghvi.InputError, match=f"Unknown setting '{name}'.*{said}"):
        infer(MODEL, ROWS, **{name: 1})


def test_a_smooth_fit_ends_at_the_same_place_from_another_start():
    data = prepare(MODEL, ROWS)
    usual, far = infer(MODEL, data).q, infer(MODEL, data, start=jnp.full(5, 0.3)).q
    sd = usual.standard_deviation()
    np.testing.assert_array_less(np.abs(far.mean - usual.mean) / sd, 0.05)


class RoughlyIntegrated(NormalMean):
    """A model whose integrals seem to take seconds, and are off by less with every refinement."""

    level: int = eqx.field(static=True, default=3)

    def log_marginal(self, params, data):
        return super().log_marginal(params, data + 0.5 * 4.0**-self.level)

    @property
    def integration_is_cheap(self):
        return False

    def evaluation_size(self, data):
        return 2 * HUGE

    def approximate(self):
        return RoughlyIntegrated(0)

    def refined(self):
        return RoughlyIntegrated(self.level + 1)


@pytest.mark.parametrize("from_result", [True, False])
def test_a_run_that_was_refined_resumes_with_the_same_integrals(from_result):
    """From what ``infer`` returned, or from what ``keep`` received, with the model as given."""
    model, kept, begun = RoughlyIntegrated(), [], []

    def interrupt(stage, step, total, trace):
        begun.append(step == 1 and stage == "exact integrals")
        if sum(begun) == 2:  # in the second fit, whose model has been refined
            signal.raise_signal(signal.SIGINT)

    whole = infer(model, DATA)
    part = infer(model, DATA, progress=interrupt, keep=lambda position, ends: kept.append(position))
    assert part.verdict.status is Status.INTERRUPTED
    assert kept[-1].refinements == 1
    rest = (
        infer(part.model, DATA, resume=part.run.position)
        if from_result
        else infer(model, DATA, resume=kept[-1])
    )
    assert np.array_equal(rest.q.mean, whole.q.mean)
    assert np.array_equal(rest.q.packed_factor, whole.q.packed_factor)
    assert rest.elbo == whole.elbo


class Disturbed(NormalMean):
    """Integrals with an error that is known, in posterior sds from the posterior mean."""

    error: str = eqx.field(static=True)

    def log_marginal(self, params, data):
        z = (params[0] - data[0] / 1.5) * np.sqrt(0.75)
        value = {
            "none": 0 * z,
            "noise": 0.04 * jnp.sin(40 * z),
            "slope": 0.06 * z,
            "bend": 0.06 * z**2 - 0.06,
            "level": 0.1 + 0 * z,
            "not a number": jnp.where(z > 1, jnp.nan, z),
        }[self.error]
        return super().log_marginal(params, data) + value

    def refined(self):
        return Disturbed("none")


@pytest.mark.parametrize("error", ["none", "noise", "slope", "bend", "level", "not a number"])
def test_integrals_are_refined_for_errors_that_move_the_posterior(error):
    """The noise has slopes of up to 1.6 sd at a point, and none on average."""
    q = infer(NormalMean(), DATA).q
    needed = refinements_needed(jax.random.key(1), Disturbed(error), DATA, q, costly=False)
    assert needed == (error not in ("none", "noise"))


class Between(Disturbed):
    """Integrals between wrong ones and exact ones, off by ``slope`` sds."""

    error: str = eqx.field(static=True, default="none")
    slope: float = eqx.field(static=True, default=0.0)

    def log_marginal(self, params, data):
        z = (params[0] - data[0] / 1.5) * np.sqrt(0.75)
        return NormalMean().log_marginal(params, data) + self.slope * z


class Wrong(Disturbed):
    """Integrals that are refined twice until they are exact."""

    between: float = eqx.field(static=True, default=0.0)

    def refined(self):
        return Between(slope=self.between)

    def yardstick(self):
        return Disturbed("none")


@pytest.mark.parametrize(("left", "needed"), [(0.0, 1), (0.01, 1), (0.02, 2)])
def test_integrals_are_refined_no_further_than_their_errors_ask_for(left, needed):
    """A model between the wrong one and its yardstick is enough if half the error is allowed."""
    q = infer(NormalMean(), DATA).q
    wrong = Wrong("slope", between=left)
    assert refinements_needed(jax.random.key(1), wrong, DATA, q, costly=False) == needed


class Noisy(Between):
    """A mean over draws, whose error of ``slope`` sds is halved by every refinement."""

    smallest: float = eqx.field(static=True, default=0.0)

    def is_drawn(self, data):
        return True

    def refined(self):
        return Noisy(slope=self.slope / 2, smallest=self.smallest)

    @property
    def integration_is_affordable(self):
        return self.slope >= self.smallest


@pytest.mark.parametrize(("smallest", "needed"), [(0.0, 4), (0.2, 2)])
def test_means_over_draws_skip_refinements_that_would_be_in_vain(smallest, needed):
    """Errors of .5 become .25, .125, .06, and .03, of which half is small enough; if .2 is the
    least that is affordable, .125 is not."""
    q = infer(NormalMean(), DATA).q
    noisy = Noisy(slope=0.5, smallest=smallest)
    assert refinements_needed(jax.random.key(1), noisy, DATA, q, costly=False) == needed


def test_a_model_says_itself_that_it_has_many_modes():
    assert not NormalMean().many_modes
    assert not MODEL.many_modes
    assert MixedModel(Perceptron(3, (3,)), Gaussian(), Priors(), (0,)).many_modes

    class ManyModes(NormalMean):
        @property
        def many_modes(self):
            return True

    found = infer(ManyModes(), DATA, steps=600)
    assert found.verdict.status is Status.SETTLED
    assert [name for name, _ in found.run.traces][:3] == ["climb 1", "climb 2", "climb 3"]


def test_wishart_degrees_must_exceed_the_dimension():
    model = MixedModel(Identity(3), Gaussian(), Priors(effects=WishartPrecision(1.0, 0.5)), (0, 1))
    with pytest.raises(ValueError, match="df"):
        infer(model, prepare(model, ROWS))


def test_few_points_have_the_moments_of_a_pool():
    # With independent draws the largest of five errors would exceed 0.15 in nine of ten cases.
    q = CholeskyGaussian.from_covariance_factor(jnp.zeros(5), jnp.eye(5))
    pool, rng = Pool.spread(q, np.random.default_rng(3)), np.random.default_rng(4)
    skewed = Pool.plain(np.exp(0.5 * rng.standard_normal((4000, 5))))
    for own in (pool, skewed):
        few = own.few(100, rng)
        assert len(few) == 10
        np.testing.assert_allclose(few.mean(axis=0), own.theta.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(np.cov(few.T, ddof=0), np.cov(own.theta.T, ddof=0), atol=1e-9)
    # Less than ten: the first of the even draws, or independent ones.
    np.testing.assert_array_equal(pool.few(8, rng), pool.theta[:8])
    assert len(skewed.few(8, rng)) == 8
