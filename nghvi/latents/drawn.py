"""Effects drawn for any response, and coordinates in which the score of theta has little noise.

Independence Metropolis draws the effects with a t proposal for each group. The proposal
t_5(centre, covariance) takes its moments from quadrature if there is one, otherwise from the
conditional mode and curvature. Conditionals are close to their proposals, so most candidates are
accepted. All groups move at once.

Fisher's identity holds in any coordinates u of the effects, ``alpha = A(theta)' u``. Holding the
effects themselves fixed (A constant) suits groups that tell much about their effects. Holding them
fixed in units of their prior (A = L^-1, Omega^-1 = L L') suits groups that tell little, for which
the other choice gives a score of Omega that is nearly all noise. For each effect, the prior's share
w of what is known mixes the two::

    A = diag(w) L^-1 + (1 - diag(w)) L_0^-1,    L_0: L where the effects were drawn
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._linalg import small
from nghvi._typing import Key, Scalar
from nghvi.latents import integrate
from nghvi.latents.rows import RowProblem, conditional_mode

DEGREES = 5.0
"""Degrees of freedom of the proposals."""
CENTRE_TOLERANCE = 0.1
"""Distance from the mode, in conditional sds, that is close enough for the centre of a proposal."""


class Proposal(NamedTuple):
    """The proposals of all groups: centre + root t, where t is standard multivariate t."""

    centre: Float[Array, "r k"]
    root: Float[Array, "r r k"]


def make_proposal(problem: RowProblem, num_nodes: int) -> Proposal:
    """Return proposals with moments from quadrature, or Laplace's if ``num_nodes`` is 1.

    Quadrature sees the skewness of groups in which all responses are of one class.
    """
    if num_nodes > 1:
        centre, covariance = integrate.moments(problem, num_nodes)
    else:
        centre = conditional_mode(problem, CENTRE_TOLERANCE).effects
        covariance = small.inverse(small.cholesky(problem.curvature(centre)))
    return Proposal(centre, small.cholesky(covariance))


def sample(
    key: Key,
    problem: RowProblem,
    proposal: Proposal,
    steps: int,
    start: Float[Array, "r k"] | None = None,
) -> Float[Array, "r k"]:
    """Return whitened effects after ``steps`` moves from ``start``, or from a draw of the proposal.

    Moves from a draw of the conditional leave its distribution invariant; after a fresh start
    traces of the proposal remain, which fade with the steps.
    """
    centre, root = proposal
    r = centre.shape[0]

    def log_weight(effects: Array, standard: Array) -> Array:
        tail = jnp.log1p(jnp.sum(standard**2, axis=0) / DEGREES)
        return problem.log_prob(effects) + 0.5 * (DEGREES + r) * tail

    def propose(key: Key) -> tuple[Array, Array]:
        key_normal, key_scale = jax.random.split(key)
        normal = flat_normal(key_normal, centre.shape)
        # chi^2_5 / 5 from five normals: cheaper on CPU than a gamma sampler.
        squares = flat_normal(key_scale, (int(DEGREES), centre.shape[1])) ** 2
        standard = normal / jnp.sqrt(jnp.mean(squares, axis=0))
        effects = centre + jnp.einsum("abk,bk->ak", root, standard)
        return effects, log_weight(effects, standard)

    def move(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        effects, weight = carry
        key_proposal, key_accept = jax.random.split(jax.random.fold_in(key, i))
        candidate, candidate_weight = propose(key_proposal)
        log_u = jnp.log(jax.random.uniform(key_accept, weight.shape, minval=1e-300))
        accept = log_u < candidate_weight - weight
        return jnp.where(accept, candidate, effects), jnp.where(accept, candidate_weight, weight)

    if start is None:
        first = propose(jax.random.fold_in(key, steps))
    else:
        first = start, log_weight(start, small.solve_lower(root, start - centre))
    return jax.lax.fori_loop(0, steps, move, first)[0]


def prior_share(problem: RowProblem) -> Float[Array, " r"]:
    """Return the mean over groups of prior over posterior precision, for each whitened effect.

    It is evaluated at effects of zero: if it depended on the draw, the score would be biased.
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
    """Return effects in the moving coordinates, and the log Jacobian of u -> alpha per group.

    ``drawn_at``: L where the effects were drawn; ``lower``: L at the current theta; ``share``: w.
    """
    inverse, fixed = small.inverse_lower(lower), small.inverse_lower(drawn_at)
    moving = share[:, None] * inverse + (1 - share)[:, None] * fixed
    return effects @ drawn_at @ moving, jnp.sum(jnp.log(jnp.diagonal(moving)))
