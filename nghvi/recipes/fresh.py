"""Judge a result by fresh draws: the gradient left there, with the step rule silenced.

The algorithm's own steps are taken with length zero, so nothing moves and, where the algorithm
is the one that ran, no second program is compiled.
"""

from typing import cast

import jax.numpy as jnp
import numpy as np

from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.loop import fit
from nghvi._core.model import LatentModel
from nghvi._core.step_rules import ScaleState
from nghvi._typing import Data, Key
from nghvi.recipes.run import Ended, Judge
from nghvi.recipes.verdict import LOOKS, Cause, Verdict, judge

LOOKS_AT = tuple(3**power for power in range(1, LOOKS + 1))
"""Numbers of estimates after which to see whether they suffice."""
INDEPENDENT = 81
"""Estimates that are told apart. More are averaged one after the other: those of drawn latents,
which remember the ones before, are independent only from batch to batch."""


def judge_by_fresh_draws(algorithm: HybridVI, cause: Cause, chunk: int, most: int) -> Judge:
    """Judge by at most ``most`` estimates, fewer where these leave no doubt.

    ``cause``: why an error would be left. The step rule of ``algorithm`` is one of those with a
    switch (:class:`ScaleState`).
    """

    def decide(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Verdict:
        q = done[-1].fit.q
        estimates = fit(key, algorithm, model, data, q, num_steps=0, chunk=chunk)
        silent = ScaleState(jnp.zeros((), jnp.int32), jnp.zeros(()))
        estimates = estimates._replace(state=estimates.state._replace(rule=silent))
        for number in LOOKS_AT:
            estimates = fit(
                key, algorithm, model, data, q, num_steps=number, chunk=chunk, resume=estimates
            )
            trace = cast(Info, estimates.trace)
            mean, scale = (_batched(np.asarray(each)) for each in trace.remaining)
            verdict = judge(mean, scale, cause=cause, bad_draws=int(trace.bad_draws.sum()))
            if verdict.cause is not Cause.NOISE or 3 * number > most:
                break
        return verdict

    return decide


def _batched(errors: np.ndarray) -> np.ndarray:
    batches = min(len(errors), INDEPENDENT)
    return errors.reshape(batches, -1, errors.shape[1]).mean(axis=1)
