"""Whether a network's ELBO still moves.

The ELBO gains what KL(q || p) loses. Two averages of q are compared on the same draws, which
cancels most of the noise: those before and after the last quarter of a stage or, once a stage has
been followed by another, the ends of both. A further stage begins with longer steps than those with
which the one before has ended, and within it the ELBO rises because steps become shorter; the ends
of both have steps of the same length. Where the ELBO cannot be evaluated, the noisy one of the
steps is compared.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Float

from nghvi._core.evaluate import evaluate, evaluation_size
from nghvi._core.hybrid import Info
from nghvi._core.loop import Fit
from nghvi._core.model import LatentModel, MarginalModel
from nghvi._typing import Data, Key
from nghvi.recipes.run import Ended, Judge
from nghvi.recipes.verdict import TOLERANCE, Bounds, Cause, Status, Verdict

LEAST_PAIRS, MOST_PAIRS, FEWER_PAIRS, MOST_COSTLY_PAIRS = 25, 1600, 400, 100
"""Numbers of pairs of draws behind a verdict: the least, and the most for evaluations that are
small, larger, and costly. Fewer are taken if they leave no doubt."""
SMALL_EVALUATION = 100_000
"""Numbers touched by one evaluation up to which ``MOST_PAIRS`` may be drawn."""
LARGEST_EVALUATION = 50_000_000
"""Numbers touched by one evaluation beyond which the judge does not evaluate the ELBO itself."""
LAST = 9 / 24
"""Share of the steps of a network that its last stage takes."""
LEAST_TO_JUDGE = 100
"""Least number of steps of the last stage; in fewer, noise would hide any rise of the ELBO."""


MOST_LOST = 0.5
"""Largest share of the steps of a stage that may have lost a draw: where most had no finite
gradient, q has not moved, which is no sign of having settled."""


class End(NamedTuple):
    """What a start has reached, and what it had reached some steps before."""

    before: Fit
    after: Fit
    steps: int
    compared: int
    """Number of last steps of both whose noisy ELBOs are comparable."""


def last_end(model: LatentModel, data: Data, done: tuple[Ended, ...]) -> list[End]:
    """Return the end of the last stage, and where it was before its last quarter."""
    before, after = (stage.fit for stage in done[-2:])
    return [last_quarter(before, after)]


def last_quarter(before: Fit, after: Fit) -> End:
    """Return the end of steps that were run as two stages."""
    steps = after.step - before.step
    return End(before, after, steps, steps)


def judge_settling(
    batch: int | None,
    settled: Cause,
    ends: Callable[[LatentModel, Data, tuple[Ended, ...]], list[End]] = last_end,
    ratios: "Ratios | None" = None,
    **about: float,
) -> Judge:
    """Return the judge of whether the ELBO still moved in the last quarter of the last stage.

    The averages of q before and after that quarter are compared on the same draws if the ELBO can
    be evaluated, and otherwise by the noisy ELBO of the steps. ``settled``: the cause of a verdict
    "settled"; ``ends``: which fits of the stages belong in the result, of which the one that moved
    most is told about; ``ratios``: a memory that several judges may share; ``about``: further facts
    for the verdict.
    """
    known: list[tuple[Fit, Verdict]] = []
    ratios = ratios or Ratios()

    def decide(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Verdict:
        verdicts = []
        for end in ends(model, data, done):
            found = [verdict for fit, verdict in known if fit is end.after]
            if not found:
                found = [of_end(key, model, data, done, end)]
                known.append((end.after, found[0]))
            verdicts += found
        if not verdicts:
            return Verdict(Status.SETTLED, settled, about)
        worst = max(verdicts, key=lambda each: each.facts.get("bound", np.inf))
        return worst._replace(facts={**worst.facts, "members": float(len(verdicts))})

    def of_end(
        key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...], end: End
    ) -> Verdict:
        before, after, steps, compared = end
        traces = [cast(Info, fit.trace) for fit in (before, after)]
        elbo = noisy_elbo(traces[-1])
        if not np.isfinite(elbo).all() or np.asarray(traces[-1].rejected)[-10:].any():
            rejected = sum(int(np.sum(cast(Info, stage.fit.trace).rejected)) for stage in done)
            return Verdict(Status.FAILED, Cause.REJECTED_STEPS, {"rejected": rejected})
        if np.mean(np.asarray(traces[-1].bad_draws) > 0) > MOST_LOST:
            return Verdict(Status.FAILED, Cause.GRADIENT)
        if after.step < LEAST_TO_JUDGE:
            enough = int(np.ceil(LEAST_TO_JUDGE / LAST))
            few = {"steps": after.step, "enough": enough}
            return Verdict(Status.NOT_SETTLED, Cause.STEPS, few)
        limit = most_movement(after.q.dim)
        last = [noisy_elbo(trace)[-compared:] for trace in traces]
        change, found = _traced_change(*last)
        if isinstance(model, MarginalModel) and is_affordable(model, data):
            change, found = _paired_change(ratios, before, after, key, model, data, batch, limit)
        facts = {
            "change": change,
            "bound": found.upper,
            "limit": limit,
            "steps": steps,
            **about,
        }
        if found.upper <= limit:
            return Verdict(Status.SETTLED, settled, facts)
        told = found.lower > limit
        return Verdict(Status.NOT_SETTLED, Cause.RISING if told else Cause.NOISE, facts)

    return decide


class Ratios:
    """Log ratios of fits on draws made from the same noise, computed once.

    The end of a stage is compared with the stage before and with the stage after.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Fit, dict[int, np.ndarray]]] = {}

    def __call__(
        self,
        fit: Fit,
        part: int,
        number: int,
        key: Key,
        model: MarginalModel,
        data: Data,
        batch: int | None,
    ) -> Float[np.ndarray, " s"]:
        """Return a ``number`` of log ratios; every ``part`` has noise of its own."""
        _, parts = self._known.setdefault(id(fit), (fit, {}))
        if part not in parts:
            own = jax.random.fold_in(key, part)
            made = evaluate(own, fit.q, model, data, draws=number, batch=batch)
            parts[part] = made.log_ratio
        return parts[part]


def most_movement(dim: int) -> float:
    """Return the nats by which the ELBO of a settled fit may still move.

    KL(q || p) falls by what the ELBO gains. A Gaussian whose sds are all wrong by a share e is
    about e^2 nats per parameter from the right one; one nat in all is little for any model.
    """
    return max(1.0, TOLERANCE**2 * dim)


def is_affordable(model: MarginalModel, data: Data) -> bool:
    """Return whether the ELBO can be evaluated a few hundred times."""
    return model.marginal_is_exact and evaluation_size(model, data) <= LARGEST_EVALUATION


def _paired_change(
    ratios: Ratios,
    before: Fit,
    after: Fit,
    key: Key,
    model: MarginalModel,
    data: Data,
    batch: int | None,
    limit: float,
) -> tuple[float, Bounds]:
    """Return the difference of two ELBOs on the same draws, which cancels most of the noise."""
    most = MOST_PAIRS if evaluation_size(model, data) <= SMALL_EVALUATION else FEWER_PAIRS
    most = most if model.integration_is_cheap else MOST_COSTLY_PAIRS
    pairs = np.zeros(0)
    while True:
        number = 2 * max(LEAST_PAIRS, 3 * pairs.size)
        later, earlier = (
            ratios(fit, pairs.size, number, key, model, data, batch) for fit in (after, before)
        )
        with np.errstate(invalid="ignore"):
            pairs = np.concatenate([pairs, (later - earlier).reshape(2, -1).mean(axis=0)])
        if not np.isfinite(pairs).all():
            return np.nan, Bounds(np.inf, 0.0, np.inf)
        found = Bounds.of(pairs[:, None])
        if found.upper <= limit or found.lower > limit or 4 * pairs.size > most:
            return float(pairs.mean()), found


def _traced_change(before: np.ndarray, after: np.ndarray) -> tuple[float, Bounds]:
    """Return the difference of the noisy ELBO between steps before and after."""
    change = float(after.mean() - before.mean())
    error = np.hypot(*(np.std(x, ddof=1) / np.sqrt(len(x)) for x in (before, after)))
    return change, Bounds.around(np.asarray(change), error, len(after) - 1)


def noisy_elbo(trace: Info) -> np.ndarray:
    """Return the noisy ELBO of every step."""
    return np.asarray(trace.log_target) - np.asarray(trace.log_q)
