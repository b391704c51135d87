"""Recipe for networks and other posteriors without one clear mode.

    climb     Adam to a mode, from several random starts; the highest is continued. With a skip
              connection it begins as a *search*, in which the prior counts a tenth
    explore   Adam on the factor Gaussian in fixed units from small variances: leaves poor modes
    polish    Adam in units of the current posterior sd, with decaying steps

Each ends with an average of its last tenth. Another family replaces the factor Gaussian if it is
asked for. If the model moves naturally (a network with a skip connection, effects integrated out)
one stage replaces the last two:

    natural   natural gradients of a diagonal Gaussian in its own units, with decaying steps; every
              start takes the first part of it (a *trial*), and the best ELBO is continued
    second    the same for the second best start; the result is the mixture of both

If all groups are seen at once, the coefficients of such a network are integrated out with the
effects (:mod:`nghvi.models.collapsed`, :mod:`nghvi.models.bounded`), which leaves a Gaussian of
weights and variances only.

A Gaussian started away from a mode stays with a network too simple for the data, since noisy
weights make complexity look costly; one that is only polished stays at the first mode. A climb
from random weights that explain nothing yet goes down the prior to no network at all, unless the
data come first for a while; what they do not support is given up later. The verdict says "settled":
such a posterior has many modes, and the result describes one or two of them. What settled means is
in :mod:`nghvi.recipes.settling`.
"""

import dataclasses
import itertools
from typing import NamedTuple, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.batches import Batches
from nghvi._core.direction import ScaledGradient
from nghvi._core.draws import IndependentDraws
from nghvi._core.evaluate import evaluation_size
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.loop import Fit
from nghvi._core.model import DividedModel, LatentModel, MarginalModel, unraveller
from nghvi._core.score import AtRest, Emphasised, Faint, Integrated, Score
from nghvi._core.step_rules import Adam, NaturalSteps
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Data, Key, Params
from nghvi.families import Factor, Mixture, Point
from nghvi.recipes.run import Begin, Ended, Recipe, Stage, carry_on, first_theta
from nghvi.recipes.settings import Settings
from nghvi.recipes.settling import (
    LAST,
    MOST_LOST,
    End,
    Ratios,
    judge_settling,
    last_end,
    last_quarter,
    noisy_elbo,
)
from nghvi.recipes.verdict import Cause

STEPS, SAMPLED_STEPS = 2100, 5400
"""Number of steps of one start; more if latents are drawn, since that is noisier."""
SHARES = {"climb": 4 / 24, "explore": 11 / 24, "polish": LAST}
"""Shares of the steps by stage."""
STARTS, STARTS_AT_REST = 3, 6
"""Number of climbs. With latents at rest they cost little, so there are more, twice as long."""
ENCORES, LONGER = (0.5, 0.25, 0.125, 0.125), (1, 1, 2, 2)
"""Factors on the lengths of natural steps and on their number in further stages, which are run
while the ELBO still moves."""
ROWS_PER_WEIGHT = 4
"""Number of rows per weight from which on the data count once in any model."""
PRIOR_IN_SEARCH = 0.1
"""Weight of the prior in the first half of a climb with a skip connection."""
NATURAL_LENGTH, WIDENING = 0.1, 0.01
"""Lengths of natural gradient steps: of the mean in posterior sds, and of log variances."""
KEPT = ("natural", "second")
"""Names of the stages that continue the best starts, in the order of their ELBOs."""
BEHIND = 0.05
"""Nats per row by which the ELBO of the second start may be lower if it is to be mixed in."""
LARGEST_TO_MIX = 20_000_000
"""Numbers touched by one evaluation beyond which only the best start is continued."""
HOLD, TRIAL = 0.3, 0.2
"""Share of a natural stage in which these are constant, and the share that every start takes."""
CHUNK = 50
"""Number of steps per compiled call."""


class Lengths(NamedTuple):
    """Number of steps of each stage."""

    climb: int
    explore: int
    polish: int

    @staticmethod
    def of(steps: int) -> "Lengths":
        """Divide a number of steps; every stage gets at least one."""
        return Lengths(*(max(1, round(share * steps)) for share in SHARES.values()))


def starting_sd(params: Params) -> Float[Array, " m"]:
    """Return 0.125 / sqrt(fan-in) for weight matrices and 0.05 for all else; shapes suffice."""

    def leaf_sd(leaf: Array) -> np.ndarray:
        return np.full(leaf.size, 0.125 / np.sqrt(leaf.shape[-1]) if leaf.ndim > 1 else 0.05)

    return jax.device_put(np.concatenate([leaf_sd(leaf) for leaf in jax.tree.leaves(params)]))


def emphasised(score: Score, params: Params, rows: float, most: float) -> Score:
    """Return the score with the data counted up to ``most`` times for the entries of matrices."""
    weights = sum(leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1)
    times = min(most, ROWS_PER_WEIGHT * weights / rows)
    if times <= 1:
        return score
    each = [np.full(leaf.size, times if leaf.ndim > 1 else 1) for leaf in jax.tree.leaves(params)]
    return Emphasised(score, jax.device_put(np.concatenate(each).astype(float)))


def deep_recipe(
    model: LatentModel,
    data: Data,
    score: Score,
    settings: Settings,
    *,
    batch: int | None = None,
) -> Recipe:
    """Return the recipe for this model.

    Unless the settings give a number of steps, it polishes again until the ELBO has settled.
    ``batch``: draws evaluated side by side by the judge.
    """
    steps, start = settings.steps, settings.begin
    natural = settings.of_family is None and isinstance(score, Integrated)
    natural = natural and isinstance(model, MarginalModel) and model.moves_naturally
    family = Factor(rank=0) if natural else settings.of_family or Factor()
    lengths = Lengths.of(steps or (STEPS if isinstance(score, Integrated) else SAMPLED_STEPS))
    params = eqx.filter_eval_shape(model.init_params, jax.random.key(0), data)
    rows = model.num_observations(data)
    if natural:
        score = Integrated(roughly=True)  # since noisy steps need few digits
    unit, climb_score = starting_sd(params), score
    if natural:
        score = emphasised(score, params, rows, cast(MarginalModel, model).emphasis)
    at_rest = eqx.filter_eval_shape(model.log_at_rest, params, data) is not None
    if at_rest:
        climb_score, lengths = AtRest(), lengths._replace(climb=2 * lengths.climb)
    num_starts = STARTS_AT_REST if at_rest else STARTS
    if not isinstance(settings.n_starts, str):
        num_starts = settings.n_starts
    elif start is not None:
        num_starts = 1

    def stage(
        name: str, begin: Begin, score: Score, scaled: ScaledGradient, length: float, hold: float
    ) -> Stage:
        num_steps = getattr(lengths, name)
        algorithm = HybridVI(IndependentDraws(1), score, scaled, Adam(length, num_steps, hold))
        return Stage(name, begin, algorithm, num_steps, CHUNK, max(1, num_steps // 10))

    def climb_from(
        key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]
    ) -> Variational:
        return Point(first_theta(key, model, data, start))

    def widen(q: Variational) -> Variational:
        """Turn a point into a narrow distribution."""
        if not isinstance(q, Point):
            return q
        return family.at(q.mean, unit)

    def widened(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        return widen(done[-1].fit.q)

    def finish(model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        """Mix the starts that were continued, or return the last state of an interrupted run."""
        members = tuple(end.after.q for end in kept(model, data, done))
        if len(members) > 1:
            return Mixture(members)
        return members[0] if members else widen(done[-1].fit.q)

    def from_best(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        return widen(max((stage.fit for stage in done), key=_height).q)

    def from_trial(place: int) -> Begin:
        """Start from the best trial (0) or the next one (1)."""

        def begin(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
            trials = (stage.fit for stage in done if stage.name.startswith("trial"))
            return sorted(trials, key=_reached, reverse=True)[place].q

        return begin

    # Adam moves a coordinate by about length x unit per step, and log scales by the length itself.
    # A step of the exploration is a multiple of the posterior sd, which falls with the root of n.
    wide = min(10.0, 550 / np.sqrt(rows)) * unit
    climb = stage("climb", climb_from, climb_score, ScaledGradient(20 * unit), 0.05, 0.0)
    explore = stage("explore", from_best, score, ScaledGradient(wide), 0.05, 0.3)
    polish = stage("polish", carry_on, score, ScaledGradient(unit, 1.0), 0.02, 0.2)
    polish = polish._replace(anchored=True)

    natural_steps = lengths.explore + lengths.polish
    tried = max(1, round(TRIAL * natural_steps))

    def natural_stage(
        name: str, begin: Begin, share: float, num_steps: int = natural_steps, hold: float = HOLD
    ) -> Stage:
        rule = NaturalSteps(share * NATURAL_LENGTH, share * WIDENING, num_steps, hold)
        algorithm = HybridVI(IndependentDraws(1), score, ScaledGradient(unit, 1.0), rule)
        last = max(1, num_steps // 10)
        return Stage(name, begin, algorithm, num_steps, CHUNK, last, anchored=True, family=family)

    about, settled = {"starts": float(num_starts)}, Cause.OWN_FAMILY
    if isinstance(family, Factor):
        about, settled = about | {"rank": float(family.rank)}, Cause.FEW_FACTORS
    if model.many_modes:
        settled = Cause.ONE_OF_MANY_MODES
    climbs = searching(climb) if natural and start is None else (climb,)
    if natural:
        climbs = (*climbs, natural_stage("trial", widened, 1.0, tried, 1.0))
    stages = [
        part._replace(name=f"{part.name} {n + 1}") for n in range(num_starts) for part in climbs
    ]
    encores = () if steps else tuple(zip(range(2, 2 + len(ENCORES)), ENCORES, LONGER, strict=True))
    if not natural:
        stages += [explore, *in_two(polish)]
        for n, *_ in encores:
            stages += in_two(polish._replace(name=f"polish {n}", encore=True))
        judge = judge_settling(batch, settled, last_end, Ratios(), **about)
        return Recipe("deep", tuple(stages), judge, finish)
    left, rest = (HOLD - TRIAL) / (1 - TRIAL), max(1, natural_steps - tried)
    again = [
        (n, natural_stage("", carry_on, share, times * natural_steps)._replace(encore=True))
        for n, share, times in encores
    ]
    one = isinstance(model, DividedModel) or evaluation_size(model, data) > LARGEST_TO_MIX
    for place, name in enumerate(KEPT[: 1 if one else num_starts]):
        further = natural_stage(name, from_trial(place), 1.0, rest, left)
        stages += in_two(further._replace(optional=place > 0))
        stages += [encore._replace(name=f"{name} {n}") for n, encore in again]
    ratios = Ratios()
    judge, moving = (
        judge_settling(batch, settled, ends, ratios, **about) for ends in (kept, last_start)
    )
    return Recipe("deep", tuple(stages), judge, finish, is_used, moving)


def is_used(model: LatentModel, data: Data, q: Variational) -> bool:
    """Return whether the network contributes anything; if it does not, it need not settle."""
    example = Batches.example_of(data)
    return not cast(MarginalModel, model).given_up(_params_at(model, example, q.centre))


def kept(model: LatentModel, data: Data, done: tuple[Ended, ...]) -> list[End]:
    """Return the ends of the starts that belong in the result, the best first.

    A further stage begins with longer steps than those with which the one before has ended. It is
    compared with that end as a whole, since within it the ELBO rises as steps become shorter.
    """
    ends: dict[str, End] = {}
    for before, after in itertools.pairwise(done):
        name, _, number = after.name.partition(" ")
        if name in KEPT and before.name == after.name:
            ends[name] = last_quarter(before.fit, after.fit)
        elif name in KEPT and number:
            steps = after.fit.step
            ends[name] = End(ends[name].after, after.fit, steps, max(1, steps // 4))
    found = [ends[name] for name in KEPT if name in ends]
    if len(found) < 2:
        return found
    least = _reached(found[0].after) - BEHIND * model.num_observations(data)
    return found[:1] + [
        end
        for end in found[1:]
        if _reached(end.after) > least and is_used(model, data, end.after.q)
    ]


def last_start(model: LatentModel, data: Data, done: tuple[Ended, ...]) -> list[End]:
    """Return the end of the start that was followed last, if it belongs in the result.

    Another start that has not settled is no reason to follow this one further.
    """
    return [end for end in kept(model, data, done) if end.after is done[-1].fit]


@program
def _params_at(model: LatentModel, data: Data, theta: Float[Array, " m"]) -> Params:
    return unraveller(model, data)(theta)


def searching(climb: Stage) -> tuple[Stage, Stage]:
    """Return a climb in two halves, the first with a fainter prior; both share one program."""

    def half(name: str, begin: Begin, share: float) -> Stage:
        score = Faint(climb.algorithm.score, jax.device_put(np.asarray(share)))
        steps = max(1, climb.num_steps // 2)
        rule = dataclasses.replace(climb.algorithm.step_rule, num_steps=steps)
        algorithm = dataclasses.replace(climb.algorithm, score=score, step_rule=rule)
        return climb._replace(
            name=name,
            begin=begin,
            algorithm=algorithm,
            num_steps=steps,
            average_last=max(1, steps // 10),
        )

    return half("search", climb.begin, PRIOR_IN_SEARCH), half("climb", carry_on, 1.0)


def in_two(stage: Stage) -> tuple[Stage, Stage]:
    """Return the same steps, at least two, as two stages, to see what the last quarter did."""
    stage = stage._replace(num_steps=max(2, stage.num_steps))
    first = stage._replace(num_steps=stage.num_steps - max(1, stage.num_steps // 4))
    return first, stage._replace(optional=False, encore=False, continues=True)


def _height(climb: Fit) -> float:
    """Return the objective that a climb has reached, averaged over its last tenth."""
    trace = cast(Info, climb.trace)
    return _average(np.asarray(trace.log_target), trace, 10)


def _reached(trial: Fit) -> float:
    """Return the noisy ELBO of a trial, averaged over its last quarter."""
    trace = cast(Info, trial.trace)
    return _average(noisy_elbo(trace), trace, 4)


def _average(values: Float[np.ndarray, " t"], trace: Info, part: int) -> float:
    """Return the mean over the last ``part``th of the steps, -inf if most of them lost a draw."""
    last = max(1, values.size // part)
    good = np.asarray(trace.bad_draws)[-last:] == 0
    if np.mean(~good) > MOST_LOST:
        return -np.inf
    reached = float(np.mean(values[-last:][good]))
    return reached if np.isfinite(reached) else -np.inf
