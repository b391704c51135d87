"""Mini-batches of groups: unbiased, independent of chunks, and close to a fit of all groups."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi._core.batches import Anchor, Batches
from nghvi._core.direction import ScaledGradient
from nghvi._core.draws import IndependentDraws
from nghvi._core.evaluate import log_targets
from nghvi._core.hybrid import HybridVI
from nghvi._core.loop import fit
from nghvi._core.model import initial_theta, unraveller
from nghvi._core.score import Integrated, Sampled
from nghvi._core.step_rules import Adam
from nghvi.data import LinearStatistics, Rows
from nghvi.data.pieces import ROWS_PER_PIECE, StackedPieces
from nghvi.estimators.choices import choose_batch_groups
from nghvi.families import FactorGaussian
from nghvi.inference import infer
from nghvi.models.mixed import MixedModel
from nghvi.networks import Identity, Perceptron
from nghvi.priors import Priors
from nghvi.responses import Gaussian, Probit

KEY = jax.random.key(0)
DIM = 12
"""Parameters of the network below with a Gaussian response."""


def kinked(num_groups, size, seed=0):
    """Rows in random order: groups of unequal size, two kinks, an intercept per group."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(num_groups), rng.integers(1, 2 * size, num_groups)))
    x = rng.normal(size=(group.size, 2))
    y = np.maximum(x[:, 0], 0) - np.maximum(x[:, 1], 0) + 0.5 * rng.normal(size=num_groups)[group]
    return x, y + 0.5 * rng.normal(size=group.size), group


def network(response=None):
    return MixedModel(Perceptron(2, (2,)), response or Gaussian(), Priors(), (0,))


@pytest.fixture(scope="module")
def rows():
    x, y, group = kinked(23, 6)
    return Rows.from_arrays(x, y, group, 23, weight=1.0 + (group % 3))


def batched(model, rows, groups=5, seed=0):
    return Batches.of(StackedPieces(rows, groups, seed), seed, model)


@pytest.mark.parametrize("response", [Gaussian(), Probit()], ids=["gaussian", "probit"])
def test_the_mean_over_all_pieces_is_the_whole(rows, response):
    rows = rows if response.conjugate else dataclasses.replace(rows, y=1.0 * (rows.y > 0))
    model = network(response)
    piece_model, batches = batched(model, rows)
    rng = np.random.default_rng(1)
    unravel = unraveller(model, rows)
    theta = initial_theta(KEY, model, rows)
    theta = theta + 0.3 * rng.normal(size=theta.size)
    slope = rng.normal(size=(batches.pieces.num_pieces, theta.size))
    value = rng.normal(size=len(slope))
    anchor = Anchor(rng.normal(size=theta.size), value - value.mean(), slope - slope.mean(axis=0))

    def compiled(density):
        return eqx.filter_jit(
            lambda t, data: jax.value_and_grad(lambda t: density(unravel(t), data))(t)
        )

    expected, of = compiled(model.log_marginal)(theta, rows), compiled(piece_model.log_marginal)
    if not response.conjugate:  # effects at rest, and their prior with them
        _, rest = compiled(model.log_at_rest)(theta, rows)
        at_rest = compiled(piece_model.log_at_rest)
        found = [at_rest(theta, piece)[1] for piece in batches.each()]
        np.testing.assert_allclose(np.mean(found, axis=0), rest, rtol=1e-8, atol=1e-8)
    for some in (batches, dataclasses.replace(batches, anchor=anchor)):
        found = [of(theta, piece) for piece in some.each()]
        assert len(found) == 5
        np.testing.assert_allclose(np.mean([f[0] for f in found]), expected[0], rtol=1e-10)
        mean = np.mean([f[1] for f in found], axis=0)
        np.testing.assert_allclose(mean, expected[1], rtol=1e-8, atol=1e-8)
        each = log_targets(piece_model, some, np.asarray(theta)[None])
        np.testing.assert_allclose(each, expected[0], rtol=1e-10)


def test_drawn_latents_of_all_pieces_are_those_of_the_whole(rows):
    """log g at the same effects: a sum over groups, absent ones left out."""
    model = network()
    piece_model, batches = batched(model, rows)
    params = model.init_params(KEY, rows)
    effects = np.random.default_rng(0).normal(size=(23, 1))
    in_memory = effects[np.argsort(rows.original_order)]
    expected = eqx.filter_jit(model.log_joint)(params, in_memory, rows)
    members = batches.pieces.members
    log_joint = eqx.filter_jit(piece_model.log_joint)
    found = [
        log_joint(params, effects[codes], piece)
        for codes, piece in zip(members, batches.each(), strict=True)
    ]
    np.testing.assert_allclose(np.mean(found), expected, rtol=1e-10)
    assert sorted(members[members >= 0]) == list(range(23))
    assert (members < 0).any()  # 23 groups do not divide evenly


def test_every_pass_visits_every_piece_in_an_order_of_its_own(rows):
    _, batches = batched(network(), rows)
    order = batches.which(0, 50).reshape(10, 5)
    assert (np.sort(order, axis=1) == np.arange(5)).all()
    assert len(np.unique(order, axis=0)) > 5
    np.testing.assert_array_equal(batches.which(7, 23), order.ravel()[7:23])
    other = dataclasses.replace(batches, seed=1)
    assert (other.which(0, 50) != order.ravel()).any()


def steps(score, num_steps=12):
    scaled = ScaledGradient(0.1 * jnp.ones(DIM), 1.0)
    return HybridVI(IndependentDraws(1), score, scaled, Adam(0.02, num_steps, 0.2))


@pytest.mark.parametrize("score", [Integrated(), Sampled()], ids=["integrated", "sampled"])
def test_chunks_and_interruptions_change_nothing(rows, score):
    model = network()
    piece_model, batches = batched(model, rows)
    q = FactorGaussian.start(initial_theta(KEY, model, rows), 0.1 * jnp.ones(DIM), 1)

    def run(chunk, monitor=lambda step, *_: False, resume=None):
        return fit(KEY, steps(score), piece_model, batches, q, num_steps=12, chunk=chunk,
                   average_last=3, monitor=monitor, resume=resume)  # fmt: skip

    whole = run(5)
    part = run(5, monitor=lambda step, *_: step == 5)
    assert part.step == 5
    assert part.stopped
    for other in (run(5, resume=part), run(4)):
        np.testing.assert_array_equal(other.q.mean, whole.q.mean)
        np.testing.assert_array_equal(other.trace.log_target, whole.trace.log_target)


def test_an_anchor_takes_the_noise_of_the_batches_away(rows):
    """Near the anchor the noise of a value falls from its own size to that of curvatures."""
    model = network()
    piece_model, batches = batched(model, rows)
    theta = initial_theta(KEY, model, rows)
    anchored = batches.anchored(KEY, piece_model, Integrated(), theta)
    unravel = unraveller(model, rows)
    near = theta + 0.01 * np.random.default_rng(0).normal(size=theta.size)

    @jax.jit
    def slope(piece):
        return jax.grad(lambda t: piece_model.log_marginal(unravel(t), piece))(near)

    def spread(some):
        slopes = [slope(piece) for piece in some.each()]
        return np.std(slopes, axis=0).max()

    assert spread(anchored) < 0.1 * spread(batches)


def test_batches_agree_with_all_groups_from_the_same_start():
    """With the same start and the same draws of theta, only the noise of the batches is left.

    The data determine every weight of this network. Where units are hardly determined a few
    coordinates differ by more (``benchmarks.batch_agreement`` counts them).
    """
    x, y, group = kinked(3000, 6, seed=2)
    rows = Rows.from_arrays(x, y, group, 3000)
    model = network()
    began = infer(model, rows, steps=400, n_starts=1).q
    piece_model, batches = batched(model, rows, groups=600)
    anchored = batches.anchored(KEY, piece_model, Integrated(), began.centre)
    scaled = ScaledGradient(jnp.ones(DIM), 1.0)
    rule = HybridVI(IndependentDraws(1), Integrated(), scaled, Adam(0.02, 300, 0.2))
    settings = {"num_steps": 300, "chunk": 50, "average_last": 30}
    full = fit(KEY, rule, model, rows, began, **settings).q
    some = fit(KEY, rule, piece_model, anchored, began, **settings).q
    sd = np.asarray(full.standard_deviation())
    assert (np.abs(some.centre - full.centre) / sd).max() < 0.2
    ratio = some.standard_deviation() / sd
    assert ratio.min() > 0.9
    assert ratio.max() < 1.1


def test_what_cannot_be_divided_is_refused(rows):
    model = network()
    for given, settings, said in (
        (model, {"method": "ng-hvi"}, "published rules see all groups"),
        (model, {"family": "full"}, "family='full'"),
        (dataclasses.replace(model, gibbs=2), {}, "Gibbs"),
        (model, {"devices": 1}, "devices=1"),
    ):
        with pytest.raises(ValueError, match=said):
            infer(given, rows, batch_groups=5, **settings)
    linear = MixedModel(Identity(2), Gaussian(), Priors(), (0,))
    sums = LinearStatistics.from_rows(rows, (0,))
    with pytest.raises(ValueError, match="LinearStatistics"):
        infer(linear, sums, batch_groups=5)


def test_batches_are_chosen_by_the_number_of_rows():
    def many(num_rows, repeated=False):
        x = np.zeros((num_rows, 1)) if repeated else np.arange(num_rows)[:, None]
        group = np.arange(num_rows) % 1000
        return Rows.from_arrays(x, np.zeros(num_rows), group, 1000)

    small, large = many(4 * ROWS_PER_PIECE // 2), many(10 * ROWS_PER_PIECE)
    assert choose_batch_groups("auto", small, "auto", False) is None
    assert choose_batch_groups("auto", large, "auto", False) == 100
    assert choose_batch_groups("auto", many(10 * ROWS_PER_PIECE, True), "auto", False) is None
    assert choose_batch_groups("auto", large, "ng-hvi", False) is None
    assert choose_batch_groups(50, small, "auto", False) == 50
    assert choose_batch_groups(50, small, "auto", True) is None  # sums over rows suffice
    assert choose_batch_groups(1000, small, "auto", False) is None
    assert choose_batch_groups(None, large, "auto", False) is None


@pytest.mark.parametrize("wrong", [{"batch_groups": 0}, {"batch_groups": 2.5},
                                   {"batch_groups": "many"},
                                   {"batch_groups": 10, "method": "ng-hvi"}])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(panel, wrong):
    estimator = nghvi.MixedRegressor("g", **wrong)
    with pytest.raises(nghvi.DataError, match="batch_groups"):
        estimator.fit(panel[["g", "a", "b"]], panel["y"])


@pytest.mark.slow
def test_a_classifier_learns_from_batches_of_groups():
    x, y, group = kinked(60, 6)
    table = pd.DataFrame(x, columns=["a", "b"]).assign(g=group)
    fitted = nghvi.MixedClassifier("g", batch_groups=20, steps=400).fit(table, y > 0.5)
    whole = nghvi.MixedClassifier("g").fit(table, y > 0.5)
    assert np.isfinite([fitted.elbo_, fitted.elbo_se_]).all()
    # A bound by a Gaussian of low rank: below the evidence, and not by much.
    assert -1 < fitted.elbo_ - whole.log_evidence_ < 3 * fitted.elbo_se_
    gap = fitted.predict_proba(table)[:, 1] - whole.predict_proba(table)[:, 1]
    assert np.abs(gap).max() < 0.1


def test_draws_are_evaluated_one_by_one_or_together(rows):
    """Any number of draws gives the same; those of large data are never padded to a batch."""
    model = network()
    start = np.asarray(initial_theta(KEY, model, rows))
    theta = start + 0.1 * np.random.default_rng(0).normal(size=(17, start.size))
    together = log_targets(model, rows, theta)
    np.testing.assert_allclose(log_targets(model, rows, theta, 1), together, rtol=1e-12)
