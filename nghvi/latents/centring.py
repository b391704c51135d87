"""Coordinates of drawn effects in which the score of theta has little noise.

Fisher's identity holds in any coordinates u of the effects, ``alpha = A(theta)' u``. Effects held
fixed themselves (A constant) suit groups that tell much about them; held fixed in units of
their prior (A = L^-1, Omega^-1 = L L') groups that tell little, where the former's score of
Omega is nearly all noise. Per effect, the prior's share w of what is known mixes the two::

    A = diag(w) L^-1 + (1 - diag(w)) L_0^-1,    L_0: L where the effects were drawn
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._linalg import small
from nghvi._typing import Scalar
from nghvi.latents.rows import RowProblem


def prior_share(problem: RowProblem) -> Float[Array, " r"]:
    """Prior precision over posterior precision of each whitened effect, mean over groups.

    Read where the effects are zero: it must not depend on the draw, or the score is biased.
    """
    data = problem.data
    curvature = -problem.slopes(problem.offset)[1]
    information = data.sum(curvature[:, None] * problem.design**2)
    share = data.over_groups(1 / (1 + jnp.maximum(information, 0.0)))
    return share / jnp.maximum(data.num_present, 1)


def recentre(
    effects: Float[Array, "k r"],
    drawn_at: Float[Array, "r r"],
    lower: Float[Array, "r r"],
    share: Float[Array, " r"],
) -> tuple[Float[Array, "k r"], Scalar]:
    """Effects in the moving coordinates, and the log Jacobian of ``u -> alpha`` for a group."""
    inverse, fixed = small.inverse_lower(lower), small.inverse_lower(drawn_at)
    moving = share[:, None] * inverse + (1 - share)[:, None] * fixed
    return effects @ drawn_at @ moving, jnp.sum(jnp.log(jnp.diagonal(moving)))
