"""NAGVAC: small fits, their stopping rule and the rule by which they move."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nghvi.data.scaling import Scaling
from nghvi.models import MixedModel
from nghvi.networks import Identity, Perceptron
from nghvi.paper.methods.nagvac import Task, _advance, _begin, nagvac
from nghvi.paper.methods.nagvac_step import Nagvac, Ridge, predictive_loss, start
from nghvi.posterior.mixed_posterior import MixedPosterior, Named
from nghvi.posterior.predictive import predict
from nghvi.posterior.request import Request
from nghvi.priors import HuangWand, InverseGamma, Priors
from nghvi.recipes.verdict import Cause
from nghvi.responses import Logit
from nghvi.scores import pce
from tests.contracts.test_variational import flat
from tests.paper.test_nagvac_parts import DIAGONAL, SIZES, rows_of, simulate

X, Y, CODES = simulate(np.full(40, 12), seed=3)
TRAIN = np.random.default_rng(4).random(CODES.size) < 0.75
TRAINING, VALIDATION = rows_of(X, Y, CODES, TRAIN), rows_of(X, Y, CODES, ~TRAIN)
FITTED = MixedModel(Identity(3), Logit(), DIAGONAL, (0, 1))


@functools.cache
def fitted(**options):
    return nagvac(FITTED, TRAINING, validation=VALIDATION, **options)


@pytest.mark.parametrize("legacy", [False, True])
def test_the_loss_falls_and_the_result_is_finite(legacy):
    fit = fitted(legacy=legacy, steps=60, patience=60)
    assert not fit.stopped
    assert fit.losses.shape == fit.clock.shape == (60,)
    assert fit.losses.min() < fit.losses[0] - 0.02
    assert (np.diff(fit.clock) > 0).all()
    inference = fit.inference
    assert np.isfinite(flat(inference.q)).all()
    assert np.isfinite([inference.elbo, inference.k_hat]).all()
    assert inference.run.steps == len(inference.run.traces[0][1].log_q) == 60
    # The best iterate is returned, not the last one.
    at_best = predictive_loss(inference.q.mean, FITTED, TRAINING, VALIDATION)
    np.testing.assert_allclose(at_best, fit.losses.min(), rtol=1e-12)


def test_the_programs_mistakes_make_another_fit_of_finite_numbers():
    fit = fitted(legacy=True, mistakes=True, steps=60, patience=60)
    assert np.isfinite(flat(fit.inference.q)).all()
    assert not np.allclose(fit.losses, fitted(legacy=True, steps=60, patience=60).losses)


def test_the_stopping_rule_ends_the_run_after_so_many_iterations_without_a_new_minimum():
    fit = fitted(steps=300, patience=3)
    assert fit.stopped
    assert fit.inference.run.steps == fit.losses.size < 300
    assert fit.losses.size - 1 - fit.losses.argmin() == 4  # one more than the patience
    assert fit.inference.verdict.cause in (Cause.STOPPING_RULE, Cause.NOISE, Cause.OPTIMUM)


def test_the_same_seed_gives_the_same_fit_and_the_longer_run_begins_like_the_shorter():
    short, long = fitted(steps=15, patience=60), fitted(legacy=False, steps=60, patience=60)
    np.testing.assert_array_equal(short.losses, long.losses[:15])


WIDE = eqx.tree_at(
    lambda q: q.scale, start(jax.random.key(0), FITTED, TRAINING), jnp.full(5, 9.0, float)
)
"""So wide that its natural gradient is longer than the bound."""


def iterate(state, steps=1):
    """The compiled chunk of the fits above, from any state."""
    algorithm = Nagvac(Ridge.of(FITTED, TRAINING), False, "blockdiag", True)
    task = Task(algorithm, FITTED, TRAINING, VALIDATION)
    return _advance(task, jax.random.key(0), state, int(state.step) + steps, 100)


def test_the_first_iteration_only_takes_its_direction_unbounded():
    state, trace = iterate(_begin(WIDE, jnp.full(2, 50.0, float), 0.1))
    np.testing.assert_array_equal(flat(state.q), flat(WIDE))
    assert trace.info.direction_norm[0] > 100
    np.testing.assert_allclose(np.linalg.norm(flat(state.average)), trace.info.direction_norm[0])


def test_later_iterations_blend_in_a_bounded_direction_and_move_along_the_average():
    first = iterate(_begin(WIDE, jnp.full(2, 50.0, float), 0.1))[0]
    before = first._replace(step=first.step + 198)  # where the length has fallen to a half
    after, trace = iterate(before._replace(loss=jnp.asarray(1e9, float)))
    added = flat(after.average) - 0.6 * flat(before.average)
    assert trace.info.direction_norm[0] > 100
    np.testing.assert_allclose(np.linalg.norm(added), 0.4 * 50)
    moved = flat(after.q) - flat(before.q)
    np.testing.assert_allclose(moved, 0.05 * flat(after.average), rtol=1e-9)
    np.testing.assert_allclose(after.precisions, Ridge.of(FITTED, TRAINING).adapt(after.q))
    # The same step after a lower loss: it stands, but the average is taken back.
    returned, _ = iterate(before._replace(loss=jnp.asarray(-1e9, float)))
    np.testing.assert_array_equal(flat(returned.q), flat(after.q))
    np.testing.assert_array_equal(flat(returned.average), flat(before.average))


def test_predictions_work_with_the_result():
    """Effects come from their conditional: known groups are predicted better than the average."""
    inference = fitted(legacy=False, steps=60, patience=60).inference
    names = Named(("one", "a", "b"), ("one", "a"), np.arange(40))
    posterior = MixedPosterior(inference, Scaling.none(3), names)
    unseen = np.full(CODES.size, 40)
    known, population = (
        pce(Y, predict(posterior, Request(X, codes, True, 200, 0)).mean)
        for codes in (CODES, unseen)
    )
    assert known < population - 0.02


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (FITTED, {"fisher": "full"}, "'blockdiag', 'exact'"),
        (FITTED, {"steps": 0}, "at least one"),
        (FITTED, {"validation": rows_of(*simulate(SIZES))}, "40 groups.* 7"),
        (MixedModel(Identity(3), Logit(), DIAGONAL, ()), {}, "no random effects"),
        (MixedModel(Identity(3), Logit(), Priors(effects=HuangWand()), (0,)), {}, "diagonal"),
        (
            MixedModel(Perceptron(3, (2,)), Logit(), Priors(effects=InverseGamma()), (0,)),
            {},
            "weight_sd",
        ),
    ],
)
def test_what_is_not_supported_is_said(model, options, message):
    with pytest.raises(ValueError, match=message):
        nagvac(model, TRAINING, **options)
