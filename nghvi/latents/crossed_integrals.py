"""Any response, several grouping factors: effects integrated out by quadrature and draws.

Given the effects v of all other factors, the levels of the factor that is eliminated first are
independent, and adaptive quadrature integrates over each. The factors in which it is nested are
integrated around it, one by one, since their levels are independent as well. What is left, v, is
drawn from Laplace's approximation, whose factor L L' = M is that of :mod:`nghvi.latents.schur` with
the rows' information in place of 1 / noise::

    v_s = mode + L^-T e_s,     log p(y) = log mean_s exp( log p(y | v_s) + log p(v_s) - log q(v_s) )
    p(y | v) = prod_l sum_i w_i N(t_li; 0, I) / q(t_li | v) prod_{k in l} p(y_k | t_li, v)
    p(y_k | t, v) = sum_j w_j p(y_k | u_kj, t, v) N(u_kj; 0, I) / q(u_kj | t, v)

with levels k of the first factor inside levels l of the next. Nested factors leave no v. The noise
e_s is the same for every theta and comes in pairs of opposite sign, so the result is smooth in
theta. Its error falls with the number of draws and is zero if the response is Gaussian. Mode,
factor and draws are differentiated, hence the gradient is that of the computed number and has no
noise of its own.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._linalg import small
from nghvi._linalg.tree import map_in_parts
from nghvi._typing import Key, PyTree, Scalar
from nghvi.data.elimination import Elimination
from nghvi.latents import rules, schur
from nghvi.latents.crossed import CrossedProblem, Proposal, Whitened, laplace

SIDE_BY_SIDE = 1_000_000
"""Rows times nodes, over all draws evaluated together; this bounds memory."""
MOST_POINTS = 3_000
"""Quadrature points per row beyond which a factor is drawn even if another is nested in it."""
NEWTON_STEPS, PROBES, CURVATURES = 2, 16, (0.25, 4.0)
"""For the density of the drawn effects alone: number of steps to its mode, number of pairs of
slopes from which its curvatures are estimated, and bounds on these estimates."""


def num_integrated(plan: Elimination, num_nodes: int) -> int:
    """Return how many factors quadrature integrates: the first, and affordable ones around it."""
    points = np.cumprod([rules.num_points(num_nodes, r) for r in plan.effects])
    return max(1, int(np.sum(points[: plan.first_rest] <= MOST_POINTS)))


def num_points(plan: Elimination, num_nodes: int) -> int:
    """Return the number of quadrature points per row."""
    return _points(plan.effects[: num_integrated(plan, num_nodes)], num_nodes)


def _points(effects: tuple[int, ...], num_nodes: int) -> int:
    return math.prod(rules.num_points(num_nodes, r) for r in effects)


def num_drawn(plan: Elimination, num_nodes: int) -> int:
    """Return the number of effects that are drawn."""
    return sum(plan.columns[num_integrated(plan, num_nodes) :])


def common_noise(pairs: int, size: int) -> Float[Array, "s m"]:
    """Return standard normals for the effects that are drawn, the same in every call."""
    return jnp.asarray(_noise(pairs, size))


@functools.lru_cache(maxsize=8)
def _noise(pairs: int, size: int) -> Float[np.ndarray, "s m"]:
    noise = np.random.default_rng(18).standard_normal((pairs, size))
    # Laplace's scale is somewhat off, and the spread of the weights is mostly that of the squares:
    # with squares fixed at their expectation, the error of 8 pairs falls from .054 to .021 (two
    # classes), and from .022 to .007 (Student-t).
    return noise / np.sqrt(np.mean(noise**2, axis=0))


class Moments(NamedTuple):
    """First and second moments of the effects of one factor."""

    mean: Float[Array, "r k"]
    square: Float[Array, "r r k"]

    @staticmethod
    def of(effects: Float[Array, "r k"]) -> "Moments":
        """Return the moments of known effects."""
        return Moments(effects, effects[:, None] * effects[None])


class Integral(NamedTuple):
    """The result of integrating one factor and those nested in it, given all later ones."""

    log_values: Float[Array, " k"]
    """Log integral of each level of that factor."""
    moments: tuple[Moments, ...]


def integrated(
    problem: CrossedProblem, proposal: Proposal, num_nodes: int, e: int, later: Whitened
) -> Integral:
    """Integrate factor e and those nested in it; ``later``: deviations of all later factors."""
    own, plan = proposal.conditional.eliminated[e], problem.data.plan
    coupled = schur.coupled(own, plan.steps[e], list(later))
    points, log_weights = rules.rule(num_nodes, plan.effects[e]).of_groups(plan.levels[e])

    def place(shift: Array) -> Array:
        return small.solve_lower(own.root, shift - coupled, transpose=True)

    deviations = jax.vmap(place)(points)
    nodes, inside = proposal.centre[e] + deviations, ()
    if e == 0:
        log_values = jax.vmap(problem.given(proposal.around(later)).log_prob)(nodes)
    else:

        def below(deviation: Array) -> Integral:
            return integrated(problem, proposal, num_nodes, e - 1, (deviation, *later))

        size = len(problem.data.rows.y) * _points(plan.effects[:e], num_nodes)
        log_inner, inside = _in_parts(below, deviations, size)
        outer = plan.steps[e - 1].cells[0].second  # every nested level is inside one level
        log_values = jax.vmap(lambda v: jax.ops.segment_sum(v, outer, plan.levels[e]))(log_inner)
        log_values -= 0.5 * jnp.sum(nodes**2, axis=1)
    terms = log_values + log_weights + 0.5 * jnp.sum(points**2, axis=1)
    each = logsumexp(terms, axis=0)
    shares = jnp.exp(terms - each)

    def averaged(f: int, values: Array) -> Array:
        level = plan.steps[f].cells[e - f - 1].second if f < e else slice(None)
        return jnp.einsum("jk,j...k->...k", shares[:, level], values)

    found = [
        Moments(*(averaged(f, each) for each in moments))
        for f, moments in enumerate((*inside, jax.vmap(Moments.of)(nodes)))
    ]
    return Integral(each - small.half_log_det(own.root), tuple(found))


class Weighed(NamedTuple):
    """One draw of the drawn effects, with the quadrature of the others given it."""

    log_weight: Scalar
    moments: tuple[Moments, ...]
    """Moments of the effects of all factors."""


def weigh(
    problem: CrossedProblem, proposal: Proposal, num_nodes: int, noise: Float[Array, " m"]
) -> Weighed:
    """Return the draw that this noise gives; the mean of the weights of draws is p(y)."""
    plan = problem.data.plan
    number = num_integrated(plan, num_nodes)
    deviations = proposal.draw(noise, plan, number)
    inside = integrated(problem, proposal, num_nodes, number - 1, deviations)
    drawn = proposal.around(deviations)
    squares = jnp.sum(noise**2) - sum(jnp.sum(v**2) for v in drawn)
    log_weight = jnp.sum(inside.log_values) + 0.5 * squares - proposal.log_det(number)
    return Weighed(log_weight, (*inside.moments, *map(Moments.of, drawn)))


class Place(NamedTuple):
    """Where effects are drawn, in units of Laplace's approximation around its mode.

    The joint mode of all effects is not the mode of the drawn ones alone, and neither is the
    curvature there: integrating over 316 persons moves 24 items by one sd in all. In these units
    the difference hardly depends on theta, so it is held fixed.
    """

    shift: Float[Array, " m"]
    scale: Float[Array, " m"]


def best_place(problem: CrossedProblem, num_nodes: int) -> Place:
    """Return the place given by mode and curvature of the density of the drawn effects alone."""
    proposal = laplace(problem)
    size = num_drawn(problem.data.plan, num_nodes)

    @jax.grad
    def slope(at: Array) -> Scalar:
        return weigh(problem, proposal, num_nodes, at).log_weight - 0.5 * jnp.sum(at**2)

    # Curvatures are near 1, so the slope is nearly a Newton step.
    shift = jax.lax.fori_loop(0, NEWTON_STEPS, lambda i, at: at + slope(at), jnp.zeros(size))
    signs = jnp.where(np.random.default_rng(18).random((PROBES, size)) < 0.5, -1.0, 1.0)

    def diagonal(signs: Array) -> Array:
        return 0.5 * signs * (slope(shift - signs) - slope(shift + signs))

    curvature = jnp.mean(jax.lax.map(diagonal, signs), axis=0)
    return Place(shift, jnp.clip(curvature, *CURVATURES) ** -0.5)


def log_marginal(
    problem: CrossedProblem, pairs: int, num_nodes: int, place: Place | None = None
) -> Scalar:
    """Return log p(y | theta) from so many pairs of draws, or Laplace's approximation for none.

    It is NaN if the mode was not found.
    """
    proposal, plan = laplace(problem), problem.data.plan
    if pairs == 0:
        value = problem.log_prob(proposal.centre) - proposal.log_det(0)
    else:
        noise = both_signs(common_noise(pairs, num_drawn(plan, num_nodes)))
        log_weights = weights_of(problem, proposal, num_nodes, noise, place)
        value = logsumexp(log_weights) - np.log(len(log_weights))
    return jnp.where(proposal.found, value, jnp.nan)


def log_marginal_afresh(
    key: Key, problem: CrossedProblem, pairs: int, num_nodes: int, place: Place | None
) -> tuple[Scalar, Scalar]:
    """Return :func:`log_marginal` from fresh pairs of draws, and its standard error."""
    noise = flat_normal(key, (pairs, num_drawn(problem.data.plan, num_nodes)))
    log_weights = weights_of(problem, laplace(problem), num_nodes, both_signs(noise), place)
    each = logsumexp(log_weights.reshape(2, pairs), axis=0) - np.log(2)
    value = logsumexp(each) - np.log(pairs)
    return value, jnp.std(jnp.exp(each - value)) / np.sqrt(pairs)


def both_signs(noise: Float[Array, "s m"]) -> Float[Array, "s m"]:
    """Return every draw and its opposite; if there is nothing to draw, a single empty draw."""
    return jnp.concatenate([noise, -noise]) if noise.shape[1] else noise[:1]


def weights_of(
    problem: CrossedProblem,
    proposal: Proposal,
    num_nodes: int,
    noise: Float[Array, "s m"],
    place: Place | None,
) -> Float[Array, " s"]:
    """Return the log weights of draws."""

    def one(noise: Array) -> Scalar:
        if place is None:
            return weigh(problem, proposal, num_nodes, noise).log_weight
        at = place.shift + place.scale * noise
        weight = weigh(problem, proposal, num_nodes, at).log_weight
        squares = jnp.sum(noise**2) - jnp.sum(at**2)
        return weight + 0.5 * squares + jnp.sum(jnp.log(place.scale))

    return _in_parts(
        one, noise, num_points(problem.data.plan, num_nodes) * len(problem.data.rows.y)
    )


def _in_parts(of: Callable, leading: Array, each: int) -> PyTree:
    """Apply ``of`` to every entry, in parts; ``each``: the numbers that one entry touches."""
    together = max(1, SIDE_BY_SIDE // each)
    # The gradient computes parts again, since it would otherwise keep all of them in memory.
    return map_in_parts(
        of if len(leading) <= together else eqx.filter_checkpoint(of), leading, together
    )


def moments(
    key: Key, problem: CrossedProblem, pairs: int, num_nodes: int
) -> tuple[tuple[Float[Array, "r k"], Float[Array, "r r k"]], ...]:
    """Return conditional means and covariances of all effects, from fresh draws."""
    proposal = laplace(problem)
    noise = flat_normal(key, (pairs, num_drawn(problem.data.plan, num_nodes)))
    found = jax.lax.map(lambda each: weigh(problem, proposal, num_nodes, each), both_signs(noise))
    weight = jax.nn.softmax(found.log_weight)
    averaged = jax.tree.map(lambda each: jnp.tensordot(weight, each, 1), found.moments)
    return tuple((mean, square - mean[:, None] * mean[None]) for mean, square in averaged)
