"""Judge a result by fresh draws: the gradient left there, with the step rule silenced.

The algorithm's own steps are taken with length zero, so nothing moves and, where the algorithm
is the one that ran, no second program is compiled.
"""

from typing import cast

import jax.numpy as jnp
import numpy as np

from nghvi._core.fit import fit
from nghvi._core.hybrid import HybridVI, Info
from nghvi._core.model import LatentModel
from nghvi._core.step_rules import ScaleState
from nghvi._core.variational import Variational
from nghvi._typing import Data, Key
from nghvi.recipes.run import Judge, Traces
from nghvi.recipes.verdict import TOLERANCE, Verdict, judge


def judge_by_fresh_draws(algorithm: HybridVI, remedy: str, chunk: int, most: int) -> Judge:
    """Judge by at most ``most`` estimates, fewer where their noise is small enough.

    The step rule of ``algorithm`` is one of those with a switch (:class:`ScaleState`).
    """

    def decide(key: Key, model: LatentModel, data: Data, q: Variational, traces: Traces) -> Verdict:
        estimates = fit(key, algorithm, model, data, q, num_steps=0, chunk=chunk)
        silent = ScaleState(jnp.zeros((), jnp.int32), jnp.zeros(()))
        estimates = estimates._replace(state=estimates.state._replace(rule=silent))
        number = 1
        while number < most:
            number = min(3 * number, most)
            estimates = fit(
                key, algorithm, model, data, q, num_steps=number, chunk=chunk, resume=estimates
            )
            trace = cast(Info, estimates.trace)
            mean, scale = np.asarray(trace.remaining.mean), np.asarray(trace.remaining.scale)
            spread = max(mean.std(axis=0).max(), scale.std(axis=0).max())
            # A spread of three values says little: hence two fewer degrees.
            if not spread / np.sqrt(number - 2) > TOLERANCE / 5:
                break
        return judge(mean, scale, remedy=remedy, bad_draws=int(trace.bad_draws.sum()))

    return decide
