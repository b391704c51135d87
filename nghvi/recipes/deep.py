"""Recipe for networks and other posteriors without one clear mode.

    climb     Adam to a mode, from several random starts
    explore   Adam on the factor Gaussian in fixed units from small variances: leaves poor modes
    polish    Adam in units of the current posterior sd, with decaying steps

The best climb is explored (all are where latents are drawn), the best exploration polished;
each ending with an average of its last tenth. A Gaussian started away from a mode stays with a
network too simple for the data, since noisy weights make complexity look costly; one that is
only polished stays at the first mode. The verdict says "settled": such a posterior has many
modes, and the result describes one of them.
"""

from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from nghvi._core.direction import ScaledGradient
from nghvi._core.draws import IndependentDraws
from nghvi._core.fit import Fit
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.model import LatentModel, MarginalModel, initial_theta, unraveller
from nghvi._core.score import Integrated, Score
from nghvi._core.step_rules import Adam
from nghvi._core.variational import Variational
from nghvi._typing import Data, Key, Params, Scalar
from nghvi.recipes.run import Begin, Ended, Judge, Recipe, Stage, Traces, carry_on
from nghvi.recipes.verdict import Verdict
from nghvi.variational.factor import FactorGaussian
from nghvi.variational.point import Point

STEPS, SAMPLED_STEPS = 1800, 5400
"""Steps of one start; more where latents are drawn, since that is noisier."""
SHARES = {"climb": 300 / 1800, "explore": 800 / 1800, "polish": 700 / 1800}
STARTS = 3
RANK = 3
ENCORES = 2
"""Further polishing where the ELBO still rises."""
CHUNK = 50
ROUGH_DRAWS = 16
"""Draws that rank explorations: an error of a few nats, where these differ by tens."""


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
    """0.12 / sqrt(fan-in) for weight matrices, 0.05 for everything else."""

    def leaf_sd(leaf: Array) -> Array:
        return jnp.full(leaf.shape, 0.125 / np.sqrt(leaf.shape[-1]) if leaf.ndim > 1 else 0.05)

    return ravel_pytree(jax.tree.map(leaf_sd, params))[0]


def deep_recipe(
    score: Score, unit: Float[Array, " m"], rank: int, steps: int | None, num_starts: int
) -> Recipe:
    """The recipe with small starting standard deviations ``unit``.

    ``steps`` of one start in all; None polishes again until the ELBO has settled.
    """
    integrated = isinstance(score, Integrated)
    lengths = Lengths.of((STEPS if integrated else SAMPLED_STEPS) if steps is None else steps)

    def adam(direction: ScaledGradient, length: float, num_steps: int, hold: float) -> HybridVI:
        return HybridVI(IndependentDraws(1), score, direction, Adam(length, num_steps, hold))

    # Adam moves a coordinate by about length x unit a step; log scales by the length itself.
    climb = adam(ScaledGradient(20 * unit), 0.05, lengths.climb, 0.0)
    explore = adam(ScaledGradient(10 * unit), 0.05, lengths.explore, 0.3)
    polish = adam(ScaledGradient(unit, 1.0), 0.02, lengths.polish, 0.2)

    def widen(q: Variational) -> Variational:
        """A point becomes a narrow Gaussian."""
        if not isinstance(q, Point):
            return q
        return FactorGaussian.start(q.mean, unit, rank, 0.01 * unit[:, None])

    def from_climb(place: int) -> Begin:
        def begin(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
            ends = [stage.fit for stage in done if stage.name.startswith("climb")]
            ends.sort(key=lambda end: _height(key, end, model, data), reverse=True)
            return widen(ends[place].q)

        return begin

    def from_best_exploration(
        key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]
    ) -> Variational:
        ends = [stage.fit for stage in done if stage.name.startswith("explore")]
        return (
            max(ends, key=lambda end: _height(key, end, model, data)).q if ends[1:] else ends[0].q
        )

    def stage(name: str, first: Begin, algorithm: HybridVI, num_steps: int) -> Stage:
        return Stage(name, first, algorithm, num_steps, CHUNK, max(1, num_steps // 10))

    # The height of a climb tells which one ends best where gradients are exact, not where they
    # come from drawn latents.
    explored = 1 if integrated else num_starts
    stages = [
        *(stage(f"climb {n + 1}", _random, climb, lengths.climb) for n in range(num_starts)),
        *(
            stage(f"explore {n + 1}", from_climb(n), explore, lengths.explore)
            for n in range(explored)
        ),
        stage("polish", from_best_exploration, polish, lengths.polish),
    ]
    if steps is None:
        again = stages[-1]._replace(
            begin=carry_on, needed=lambda traces: not _settled(traces[-1][1], unit.size)
        )
        stages += [again._replace(name=f"polish {n}") for n in range(2, 2 + ENCORES)]
    return Recipe("deep", tuple(stages), judge_settled(num_starts), widen)


def _random(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
    return Point(initial_theta(key, model, data))


def _height(key: Key, end: Fit, model: LatentModel, data: Data) -> float:
    """ELBO of a stage's end, by few draws; of a point, log p(y, theta)."""
    if isinstance(model, MarginalModel):
        # Not the joint density with drawn latents: that grows without bound as they shrink.
        height = float(_rough_elbo(key, end.q, model, data))
    else:
        trace = cast(Info, end.trace)
        last = np.asarray(trace.log_target - trace.log_q)
        height = float(np.mean(last[-max(1, last.size // 10) :]))
    return height if np.isfinite(height) else -np.inf


@eqx.filter_jit
def _rough_elbo(key: Key, q: Variational, model: MarginalModel, data: Data) -> Scalar:
    unravel = unraveller(model, data)

    def log_ratio(noise: Float[Array, " e"]) -> Scalar:
        theta = q.transport(noise)
        return model.log_marginal(unravel(theta), data) - q.log_density(theta)

    noise = jax.random.normal(key, (ROUGH_DRAWS if q.noise_dim else 1, q.noise_dim))
    return jnp.mean(jax.lax.map(log_ratio, noise))


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
        change = _change(last)[0]
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
    return change <= 2 * noise + 0.01 * dim


def _change(trace: Info) -> tuple[float, float]:
    """Rise of the noisy ELBO from the third to the last quarter of a stage, and its noise."""
    elbo = np.asarray(trace.log_target) - np.asarray(trace.log_q)
    third, quarter = np.array_split(elbo, 4)[2:]
    if third.size < 2:
        return float("nan"), 0.0
    return float(quarter.mean() - third.mean()), float(np.hypot(_se(third), _se(quarter)))


def _se(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
