"""The loop: chunking, resuming and interrupting change nothing."""

import signal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nghvi import MarginalModel
from nghvi._core.direction import NaturalGradient
from nghvi._core.draws import IndependentDraws, OrthogonalDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.loop import _run_chunk, fit
from nghvi._core.score import Integrated, Sampled
from nghvi._core.step_rules import robbins_monro
from nghvi.families import CholeskyGaussian, FactorGaussian
from nghvi.methods import PUBLISHED
from nghvi.recipes.run import UNJUDGED, Recipe, Stage, carry_on, run
from nghvi.recipes.settings import Settings
from nghvi.recipes.smooth import smooth_recipe
from nghvi.recipes.verdict import Cause, Status, Verdict


class NormalMean(MarginalModel):
    """The model z ~ N(theta, I), y ~ N(z, I), in which everything has a closed form."""

    def init_params(self, key, data):
        return jnp.zeros(data.shape[0])

    def init_latents(self, key, params, data):
        return jnp.zeros_like(data)

    def log_joint(self, params, latents, data):
        prior = -0.5 * jnp.sum(params**2) / 4
        return (
            -0.5 * jnp.sum((data - latents) ** 2) - 0.5 * jnp.sum((latents - params) ** 2) + prior
        )

    def sample_latents(self, key, params, latents, data):
        return 0.5 * (data + params) + jnp.sqrt(0.5) * jax.random.normal(key, data.shape)

    def log_marginal(self, params, data):
        return -0.25 * jnp.sum((data - params) ** 2) - 0.5 * jnp.sum(params**2) / 4


def rule_of(name):
    return PUBLISHED[name].direction, PUBLISHED[name].step_rule


DATA = jnp.array([1.0, -2.0, 0.5, 3.0])
START = FactorGaussian.start(jnp.zeros(4), jnp.ones(4), 2, signed_scale=True)
ALGORITHMS = {
    "ng-hvi": HybridVI(IndependentDraws(), Sampled(), *rule_of("ng-hvi")),
    "ng-hvi-printed": HybridVI(IndependentDraws(), Sampled(), *rule_of("ng-hvi-printed")),
    "sg-hvi": HybridVI(IndependentDraws(2), Integrated(), *rule_of("sg-hvi")),
}


def same(a, b):
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_chunk_length_changes_no_bit(name, key):
    runs = [
        fit(key, ALGORITHMS[name], NormalMean(), DATA, START, num_steps=23, chunk=c, average_last=7)
        for c in (23, 5)
    ]
    assert same(runs[0].q, runs[1].q)
    assert same(runs[0].trace, runs[1].trace)


@pytest.mark.parametrize("cut", [5, 10, 20])
def test_resuming_after_any_chunk_changes_no_bit(cut, key):
    algorithm = ALGORITHMS["ng-hvi"]
    settings = {"num_steps": 23, "chunk": 5, "average_last": 7}
    whole = fit(key, algorithm, NormalMean(), DATA, START, **settings)
    part = fit(
        key, algorithm, NormalMean(), DATA, START, monitor=lambda step, *_: step >= cut, **settings
    )
    assert part.step == cut
    assert part.stopped
    rest = fit(key, algorithm, NormalMean(), DATA, START, resume=part, **settings)
    assert same(whole.q, rest.q)
    assert same(whole.state, rest.state)
    assert same(whole.trace, rest.trace)


def test_one_program_serves_every_chunk_and_seed():
    algorithm = ALGORITHMS["ng-hvi-printed"]
    traced = []

    class Counting(NormalMean):
        def log_joint(self, params, latents, data):
            traced.append(1)
            return super().log_joint(params, latents, data)

    counts = []
    for seed, steps in [(0, 12), (1, 12), (2, 17)]:
        fit(jax.random.key(seed), algorithm, Counting(), DATA, START, num_steps=steps, chunk=6)
        counts.append(len(traced))
    assert counts[0] == counts[1] == counts[2]
    assert _run_chunk is not None


def test_average_is_the_mean_of_the_last_iterates(key):
    algorithm = ALGORITHMS["sg-hvi"]
    kept = []
    for steps in (8, 9, 10):
        kept.append(fit(key, algorithm, NormalMean(), DATA, START, num_steps=steps, chunk=10).q)
    averaged = fit(
        key, algorithm, NormalMean(), DATA, START, num_steps=10, chunk=10, average_last=3
    ).q
    expected = jax.tree.map(lambda *x: sum(x) / 3, *kept)
    for a, b in zip(jax.tree.leaves(averaged), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_draws_in_batches_give_the_same_gradient(key):
    q = CholeskyGaussian.from_covariance_factor(jnp.zeros(4), jnp.eye(4))
    base = HybridVI(OrthogonalDraws(), Integrated(), NaturalGradient(0.0), robbins_monro(3))
    batched = eqx.tree_at(lambda a: a.draws, base, base.draws)
    batched = HybridVI(base.draws, base.score, base.direction, base.step_rule, batch=3)
    for a, b in zip(
        jax.tree.leaves(base.gradient(key, q, jnp.zeros((16, 0)), NormalMean(), DATA)[0]),
        jax.tree.leaves(batched.gradient(key, q, jnp.zeros((16, 0)), NormalMean(), DATA)[0]),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-13)


def test_a_draw_with_non_finite_density_is_left_out_and_counted(key):
    class Cliff(NormalMean):
        def log_marginal(self, params, data):
            inside = params[0] < 0.5
            return jnp.where(inside, super().log_marginal(params, data), jnp.nan)

    q = CholeskyGaussian.from_covariance_factor(jnp.zeros(4), jnp.eye(4))
    algorithm = HybridVI(OrthogonalDraws(), Integrated(), NaturalGradient(0.0), robbins_monro(3))
    done = fit(key, algorithm, Cliff(), DATA, q, num_steps=2, chunk=2)
    assert done.trace.bad_draws.sum() > 0
    # The gradient and both densities are means over the draws that are left.
    noise = algorithm.draws(jax.random.split(key)[0], 4)
    gradient, _, (target, log_q, bad) = algorithm.gradient(
        key, q, jnp.zeros((16, 0)), Cliff(), DATA
    )
    good = np.asarray(noise)[:, 0] < 0.5
    each = [NormalMean().log_marginal(theta, DATA) for theta in noise[good]]
    np.testing.assert_allclose(target, np.mean(each), rtol=1e-12)
    np.testing.assert_allclose(log_q, np.mean(jax.vmap(q.log_density)(noise[good])), rtol=1e-12)
    scores = jax.vmap(jax.grad(lambda t: q.log_density(t) - NormalMean().log_marginal(t, DATA)))
    np.testing.assert_allclose(gradient.mean, scores(noise[good]).mean(axis=0), rtol=1e-10)
    assert bad == 16 - good.sum()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(done.q))


def test_the_recipe_finds_a_gaussian_posterior_exactly(key):
    model = NormalMean()
    done = run(smooth_recipe(model, Integrated(), Settings()), key, model, DATA)
    # Precision 1/2 from the data and 1/4 from the prior.
    np.testing.assert_allclose(done.q.mean, DATA * (0.5 / 0.75), atol=1e-8)
    np.testing.assert_allclose(done.q.covariance(), np.eye(4) / 0.75, atol=1e-8)
    assert done.verdict.converged


@pytest.mark.parametrize("after", [1, 2, 4])
def test_an_interrupted_recipe_resumes_to_the_same_bits(after, key):
    model = NormalMean()
    recipe = smooth_recipe(model, Sampled(), Settings())
    whole = run(recipe, key, model, DATA)
    calls = []

    def interrupt(stage, step, total, trace):
        calls.append(stage)
        if len(calls) == after:
            signal.raise_signal(signal.SIGINT)

    part = run(recipe, key, model, DATA, progress=interrupt)
    assert part.position is not None
    assert not part.verdict.converged
    assert part.verdict.resumable
    rest = run(recipe, key, model, DATA, resume=part.position)
    assert same(whole.q, rest.q)
    assert whole.steps == rest.steps


def judged_by_steps(enough):
    """Return a judge that is content after so many steps, and a list of when it was asked."""
    asked = []

    def judge(key, model, data, done):
        steps = sum(len(stage.fit.trace.log_q) for stage in done)
        asked.append(steps)
        status = Status.CONVERGED if steps >= enough else Status.NOT_CONVERGED
        return Verdict(status, Cause.EARLIER_VERSION)

    return judge, asked


@pytest.mark.parametrize(("enough", "taken"), [(1, 10), (11, 20), (40, 40), (99, 40)])
def test_encores_are_run_while_the_judge_is_not_content(enough, taken, key):
    judge, asked = judged_by_steps(enough)
    first = Stage("first", lambda *_: START, ALGORITHMS["sg-hvi"], 10, 5)
    stages = [first, first._replace(num_steps=20, encore=True, continues=True)]
    again = first._replace(begin=carry_on, name="again", encore=True)
    stages += [again, again._replace(num_steps=20, encore=False, continues=True)]
    done = run(Recipe("own", tuple(stages), judge), key, NormalMean(), DATA)
    assert done.steps == taken
    assert len(asked) == len(set(asked))
    assert done.verdict.converged == (enough <= 40)


def test_a_result_that_is_not_worth_judging_gets_no_encore(key):
    judge, asked = judged_by_steps(99)
    first = Stage("first", lambda *_: START, ALGORITHMS["sg-hvi"], 10, 5)
    stages = (first, first._replace(begin=carry_on, encore=True))
    recipe = Recipe("own", stages, judge)
    done = run(recipe, key, NormalMean(), DATA, worth_judging=lambda q: False)
    assert (done.verdict, done.steps, asked) == (UNJUDGED, 10, [])


@pytest.mark.parametrize(("worth", "taken"), [(True, 20), (False, 10)])
def test_a_stage_that_leads_nowhere_ends_at_the_first_glance(worth, taken, key):
    judge, _ = judged_by_steps(1)
    stage = Stage("only", lambda *_: START, ALGORITHMS["sg-hvi"], 20, 5)
    recipe = Recipe("own", (stage,), judge)
    done = run(recipe, key, NormalMean(), DATA, worth_judging=lambda q: worth, glance=10)
    assert (done.verdict is UNJUDGED, done.steps) == (not worth, taken)


def test_a_stage_in_two_takes_the_same_steps_as_in_one(key):
    """The result is then the average over the last stage's own window."""
    algorithm, judge = ALGORITHMS["ng-hvi"], judged_by_steps(1)[0]
    whole = Stage("whole", lambda *_: START, algorithm, 20, 7, 4)
    halves = (whole._replace(num_steps=13), whole._replace(continues=True))
    results = [
        run(Recipe("own", stages, judge), key, NormalMean(), DATA) for stages in ((whole,), halves)
    ]
    assert same(results[0].q, results[1].q)
    assert results[0].steps == results[1].steps == 20


def test_a_second_interrupt_is_not_held_back(key):
    model, before = NormalMean(), signal.getsignal(signal.SIGINT)

    def impatient(stage, step, total, trace):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(smooth_recipe(model, Sampled(), Settings()), key, model, DATA, progress=impatient)
    assert signal.getsignal(signal.SIGINT) is before
