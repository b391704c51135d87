"""Whether a network has settled: what the judge reads from the traces of its stages."""

import types

import jax
import numpy as np
import pytest

from nghvi.recipes import deep
from nghvi.recipes.deep import _height, _reached, kept, last_start
from nghvi.recipes.run import Ended
from nghvi.recipes.settling import judge_settling
from nghvi.recipes.verdict import Cause, Status

STEPS = 400
JUDGE = judge_settling(None, Cause.ONE_OF_MANY_MODES, starts=3.0)


def ended(level=0.0, lost=0.0, seed=0, name="natural"):
    """A stage whose noisy ELBO has this level, in which a share of the steps lost their draw."""
    rng = np.random.default_rng(seed)
    bad = rng.permutation(STEPS) < lost * STEPS
    value = np.where(bad, 0.0, level + rng.normal(size=STEPS))  # as steps without draws record it
    trace = types.SimpleNamespace(
        log_target=value, log_q=np.zeros(STEPS), bad_draws=bad.astype(int), rejected=bad & False
    )
    q = types.SimpleNamespace(dim=3)
    return Ended(name, types.SimpleNamespace(q=q, step=STEPS, trace=trace))


@pytest.mark.parametrize(
    ("lost", "status", "cause"),
    [
        (0.0, Status.SETTLED, Cause.ONE_OF_MANY_MODES),
        (0.1, Status.SETTLED, Cause.ONE_OF_MANY_MODES),
        (0.9, Status.FAILED, Cause.GRADIENT),
        (1.0, Status.FAILED, Cause.GRADIENT),
    ],
)
def test_a_stage_without_gradients_has_failed_although_nothing_moves(lost, status, cause):
    done = (ended(lost=lost, seed=1), ended(lost=lost, seed=2))
    verdict = JUDGE(jax.random.key(0), None, None, done)
    assert (verdict.status, verdict.cause) == (status, cause)


@pytest.mark.parametrize("of", [_height, _reached])
def test_a_start_without_gradients_is_never_the_best(of):
    good, some, none = (of(ended(-2000.0, lost).fit) for lost in (0.0, 0.1, 1.0))
    np.testing.assert_allclose([good, some], -2000, atol=0.5)
    assert none == -np.inf


def test_a_start_is_followed_for_its_own_sake(monkeypatch):
    model = types.SimpleNamespace(num_observations=lambda data: 1000.0)
    monkeypatch.setattr(deep, "is_used", lambda model, data, q: True)
    first = (ended(), ended(), ended(name="natural 2"))
    for level, ends in ((0.0, 2), (-51.0, 1)):  # .05 nats per row behind is too far
        second = (ended(level, name="second"), ended(level, name="second"))
        done = (*first, *second)
        both, last = kept(model, None, done), last_start(model, None, done)
        assert [end.after for end in both] == [first[-1].fit, second[-1].fit][:ends]
        assert last == both[1:]
        judge = judge_settling(None, Cause.ONE_OF_MANY_MODES, last_start, starts=3.0)
        assert judge(jax.random.key(0), model, None, done).status is Status.SETTLED
    (alone,) = last_start(model, None, first)
    assert alone.after is first[-1].fit
