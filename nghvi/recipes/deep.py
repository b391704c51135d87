"""Recipe for networks and other posteriors without one clear mode.

    climb     Adam to a mode, from several random starts; the best goes on
    explore   Adam on the factor Gaussian in fixed units from small variances: leaves poor modes
    polish    Adam in units of the current posterior sd, with decaying steps

each ending with an average of its last tenth. A Gaussian started away from a mode stays with a
network too simple for the data, since noisy weights make complexity look costly; one that is
only polished stays at the first mode. The verdict says "settled": such a posterior has many
modes, and the result describes one of them.
"""

from typing import NamedTuple, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.direction import ScaledGradient
from nghvi._core.draws import IndependentDraws
from nghvi._core.fit import Fit
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.model import LatentModel, initial_theta
from nghvi._core.score import AtRest, Integrated, Score
from nghvi._core.step_rules import Adam
from nghvi._core.variational import Variational
from nghvi._typing import Data, Key, Params
from nghvi.recipes.run import Begin, Ended, Judge, Recipe, Stage, Traces, carry_on
from nghvi.recipes.verdict import Verdict
from nghvi.variational.factor import FactorGaussian
from nghvi.variational.point import Point

STEPS, SAMPLED_STEPS = 2100, 5400
"""Steps of one start; more where latents are drawn, since that is noisier."""
SHARES = {"climb": 4 / 24, "explore": 11 / 24, "polish": 9 / 24}
STARTS, STARTS_AT_REST = 3, 6
"""Climbs; where latents are at rest they cost little, so there are more, twice as long."""
RANK = 3
ENCORES = 2
"""Further polishing where the ELBO still rises."""
CHUNK = 50
LEAST_TO_JUDGE = 100
"""Steps of the last stage: in fewer, any rise of the ELBO is lost in its noise."""


class Lengths(NamedTuple):
    """Steps of each stage."""

    climb: int
    explore: int
    polish: int

    @staticmethod
    def of(steps: int) -> "Lengths":
        """Divide a budget; every stage gets a step."""
        return Lengths(*(max(1, round(share * steps)) for share in SHARES.values()))


def starting_sd(params: Params) -> Float[Array, " m"]:
    """0.125 / sqrt(fan-in) for weight matrices, 0.05 for everything else; shapes suffice."""

    def leaf_sd(leaf: Array) -> np.ndarray:
        return np.full(leaf.size, 0.125 / np.sqrt(leaf.shape[-1]) if leaf.ndim > 1 else 0.05)

    return jax.device_put(np.concatenate([leaf_sd(leaf) for leaf in jax.tree.leaves(params)]))


def deep_recipe(
    model: LatentModel,
    data: Data,
    score: Score,
    rank: int,
    steps: int | None = None,
    num_starts: int | None = None,
) -> Recipe:
    """The recipe for this model.

    ``steps`` of one start in all; None polishes again until the ELBO has settled.
    """
    lengths = Lengths.of(steps or (STEPS if isinstance(score, Integrated) else SAMPLED_STEPS))
    params = eqx.filter_eval_shape(model.init_params, jax.random.key(0), data)
    unit, climb_score = starting_sd(params), score
    at_rest = eqx.filter_eval_shape(model.log_at_rest, params, data) is not None
    if at_rest:
        climb_score, lengths = AtRest(), lengths._replace(climb=2 * lengths.climb)
    num_starts = num_starts or (STARTS_AT_REST if at_rest else STARTS)

    def stage(
        name: str, begin: Begin, score: Score, scaled: ScaledGradient, length: float, hold: float
    ) -> Stage:
        num_steps = getattr(lengths, name)
        algorithm = HybridVI(IndependentDraws(1), score, scaled, Adam(length, num_steps, hold))
        return Stage(name, begin, algorithm, num_steps, CHUNK, max(1, num_steps // 10))

    def widen(q: Variational) -> Variational:
        """A point becomes a narrow Gaussian."""
        if not isinstance(q, Point):
            return q
        return _narrow(q.mean, unit, rank)

    def from_best(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        return widen(max((stage.fit for stage in done), key=_height).q)

    # Adam moves a coordinate by about length x unit a step; log scales by the length itself. A
    # step of the exploration is a multiple of the posterior sd, which falls with the root of n.
    wide = min(10.0, 550 / np.sqrt(model.num_observations(data))) * unit
    climb = stage("climb", _random, climb_score, ScaledGradient(20 * unit), 0.05, 0.0)
    explore = stage("explore", from_best, score, ScaledGradient(wide), 0.05, 0.3)
    polish = stage("polish", carry_on, score, ScaledGradient(unit, 1.0), 0.02, 0.2)
    polish = polish._replace(anchored=True)
    stages = [climb._replace(name=f"climb {n + 1}") for n in range(num_starts)]
    stages += [explore, polish]
    if steps is None:
        again = polish._replace(needed=lambda traces: not _settled(traces[-1][1], unit.size))
        stages += [again._replace(name=f"polish {n}") for n in range(2, 2 + ENCORES)]
    return Recipe("deep", tuple(stages), judge_settled(num_starts), widen)


def _random(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
    return Point(initial_theta(key, model, data))


@eqx.filter_jit
def _narrow(mean: Array, unit: Array, rank: int) -> FactorGaussian:
    return FactorGaussian.start(mean, unit, rank, 0.01 * unit[:, None])


def _height(climb: Fit) -> float:
    """What a climb has reached: its objective, mean over the last tenth."""
    reached = np.asarray(cast(Info, climb.trace).log_target)
    height = float(np.mean(reached[-max(1, reached.size // 10) :]))
    return height if np.isfinite(height) else -np.inf


def judge_settled(num_starts: int) -> Judge:
    """Settled: the noisy ELBO of the last stage no longer moves by more than its noise."""

    def decide(key: Key, model: LatentModel, data: Data, q: Variational, traces: Traces) -> Verdict:
        name, last = traces[-1]
        elbo = np.asarray(last.log_target) - np.asarray(last.log_q)
        rejected = int(sum(np.sum(trace.rejected) for _, trace in traces))
        if not np.isfinite(elbo).all() or np.asarray(last.rejected)[-10:].any():
            return Verdict(
                False,
                f"Failed: {rejected} steps led to numbers that are not finite and were not taken; "
                "the result is the last good state. Standardise the inputs, look for outliers, or "
                "use fewer layers.",
            )
        if elbo.size < LEAST_TO_JUDGE:
            enough = int(np.ceil(LEAST_TO_JUDGE / SHARES["polish"]))
            return Verdict(
                False,
                f"Not settled: {elbo.size} steps of stage '{name}' are too few to tell whether the "
                f"ELBO still rises; take more, steps={enough} at least.",
            )
        change, noise = _change(last)
        if noise > _most_noise(q.dim):
            return Verdict(
                False,
                f"Not settled as far as can be seen: the ELBO of stage '{name}' is known to "
                f"+-{noise:.0f} nats only, which hides whether it still rises; take more steps "
                "(steps=) or more groups at a step (batch_groups=).",
            )
        if not _settled(last, q.dim):
            return Verdict(
                False,
                f"Not settled: the ELBO still rose by {change:.1f} nats in the last quarter of "
                f"stage '{name}'; take more steps (steps=).",
            )
        return Verdict(
            True,
            f"Settled: the ELBO moved by {change:.1f} nats in the last quarter. A network's "
            f"posterior has many modes; this is the best of {num_starts} starts.",
        )

    return decide


def _settled(trace: Info, dim: int) -> bool:
    change, noise = _change(trace)
    return change <= 2 * noise + 0.01 * dim and noise <= _most_noise(dim)


def _most_noise(dim: int) -> float:
    """Nats of noise beyond which a trace says nothing about the change that is left."""
    return 5 + 0.1 * dim


def _change(trace: Info) -> tuple[float, float]:
    """Rise of the noisy ELBO from the third to the last quarter of a stage, and its noise."""
    elbo = np.asarray(trace.log_target) - np.asarray(trace.log_q)
    third, quarter = np.array_split(elbo, 4)[2:]
    return float(quarter.mean() - third.mean()), float(np.hypot(_se(third), _se(quarter)))


def _se(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
