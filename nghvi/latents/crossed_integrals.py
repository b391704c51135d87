"""Any response, several grouping factors: effects integrated out by quadrature and draws.

Given the effects v of all other factors, the levels of the factor that is eliminated first are
independent, and adaptive quadrature integrates each. The factors in which it is nested are
integrated one around the other, since their levels are independent, too. What is left, v, is drawn
from Laplace's approximation, whose factor L L' = M is that of :mod:`nghvi.latents.schur` with the
rows' information in place of 1 / noise::

    v_s = mode + L^-T e_s,     log p(y) = log mean_s exp( log p(y | v_s) + log p(v_s) - log q(v_s) )
    p(y | v) = prod_l sum_i w_i N(t_li; 0, I) / q(t_li | v) prod_{k in l} p(y_k | t_li, v)
    p(y_k | t, v) = sum_j w_j p(y_k | u_kj, t, v) N(u_kj; 0, I) / q(u_kj | t, v)

with levels k of the first factor inside levels l of the next. Nested factors leave no v. The noise
e_s is the same for every theta and comes in pairs of opposite sign, so that the result is smooth in
theta; its error falls with the number of draws, and is nothing where the response is Gaussian.
Mode, factor and draws are differentiated, hence the gradient is that of the number itself and has
no noise of its own.
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
from nghvi.latents import integrate, schur
from nghvi.latents.crossed import CrossedProblem, Proposal, Whitened, laplace

SIDE_BY_SIDE = 1_000_000
"""Rows times nodes of draws that are evaluated together: memory is bounded by it."""
MOST_POINTS = 3_000
"""Quadrature points per row beyond which a factor is drawn although another is nested in it."""
NEWTON_STEPS, PROBES, CURVATURES = 2, 16, (0.25, 4.0)
"""Of the drawn effects' own density: steps to its mode, pairs of slopes that tell its curvatures,
and between which bounds these are believed."""


def num_integrated(plan: Elimination, num_nodes: int) -> int:
    """How many factors quadrature takes: the first, and while it is affordable those around it."""
    points = np.cumprod([integrate.num_points(num_nodes, r) for r in plan.effects])
    return max(1, int(np.sum(points[: plan.first_rest] <= MOST_POINTS)))


def num_points(plan: Elimination, num_nodes: int) -> int:
    """Quadrature points per row."""
    return _points(plan.effects[: num_integrated(plan, num_nodes)], num_nodes)


def _points(effects: tuple[int, ...], num_nodes: int) -> int:
    return math.prod(integrate.num_points(num_nodes, r) for r in effects)


def num_drawn(plan: Elimination, num_nodes: int) -> int:
    """Effects that are drawn."""
    return sum(plan.columns[num_integrated(plan, num_nodes) :])


def common_noise(pairs: int, size: int) -> Float[Array, "s m"]:
    """Standard normals for the effects that are drawn; the same in every call."""
    return jnp.asarray(_noise(pairs, size))


@functools.lru_cache(maxsize=8)
def _noise(pairs: int, size: int) -> Float[np.ndarray, "s m"]:
    noise = np.random.default_rng(18).standard_normal((pairs, size))
    # Laplace's scale is somewhat off, and the weights' spread is mostly that of the squares: with
    # these as they are expected, the error of 8 pairs falls from .054 to .021 (two classes), from
    # .022 to .007 (Student-t).
    return noise / np.sqrt(np.mean(noise**2, axis=0))


class Moments(NamedTuple):
    """Of the effects of one factor."""

    mean: Float[Array, "r k"]
    square: Float[Array, "r r k"]

    @staticmethod
    def of(effects: Float[Array, "r k"]) -> "Moments":
        """Of effects that are known."""
        return Moments(effects, effects[:, None] * effects[None])


class Integral(NamedTuple):
    """Quadrature of the factors up to one, given all later ones."""

    log_values: Float[Array, " k"]
    """Of the levels of that factor."""
    moments: tuple[Moments, ...]


def integrated(
    problem: CrossedProblem, proposal: Proposal, num_nodes: int, e: int, later: Whitened
) -> Integral:
    """Factor e and those nested in it integrated out; ``later``: deviations of the others."""
    own, plan = proposal.conditional.eliminated[e], problem.data.plan
    coupled = schur.coupled(own, plan.steps[e], list(later))
    points, log_weights = integrate.rule(num_nodes, plan.effects[e]).of_groups(plan.levels[e])

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
        outer = plan.steps[e - 1].cells[0].second  # every level inside has one
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
    """A draw of the effects that are drawn, and the quadrature of the others given them."""

    log_weight: Scalar
    moments: tuple[Moments, ...]
    """Of all factors."""


def weigh(
    problem: CrossedProblem, proposal: Proposal, num_nodes: int, noise: Float[Array, " m"]
) -> Weighed:
    """The draw that is made of this noise; its weights' mean is p(y)."""
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

    The mode of all effects is not that of the drawn ones alone, nor is their curvature there:
    integrating 316 persons moves 24 items by one sd in all. In these units the difference hardly
    depends on theta, so that it is held fixed.
    """

    shift: Float[Array, " m"]
    scale: Float[Array, " m"]


def best_place(problem: CrossedProblem, num_nodes: int) -> Place:
    """The mode and the curvature of the drawn effects' own density."""
    proposal = laplace(problem)
    size = num_drawn(problem.data.plan, num_nodes)

    @jax.grad
    def slope(at: Array) -> Scalar:
        return weigh(problem, proposal, num_nodes, at).log_weight - 0.5 * jnp.sum(at**2)

    # Curvatures are near 1, so that the slope is a Newton step.
    shift = jax.lax.fori_loop(0, NEWTON_STEPS, lambda i, at: at + slope(at), jnp.zeros(size))
    signs = jnp.where(np.random.default_rng(18).random((PROBES, size)) < 0.5, -1.0, 1.0)

    def diagonal(signs: Array) -> Array:
        return 0.5 * signs * (slope(shift - signs) - slope(shift + signs))

    curvature = jnp.mean(jax.lax.map(diagonal, signs), axis=0)
    return Place(shift, jnp.clip(curvature, *CURVATURES) ** -0.5)


def log_marginal(
    problem: CrossedProblem, pairs: int, num_nodes: int, place: Place | None = None
) -> Scalar:
    """log p(y | theta) by so many pairs of draws; with none, Laplace's approximation.

    Not a number where the mode was not found.
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
    """The same by pairs of draws of its own, and its standard error."""
    noise = flat_normal(key, (pairs, num_drawn(problem.data.plan, num_nodes)))
    log_weights = weights_of(problem, laplace(problem), num_nodes, both_signs(noise), place)
    each = logsumexp(log_weights.reshape(2, pairs), axis=0) - np.log(2)
    value = logsumexp(each) - np.log(pairs)
    return value, jnp.std(jnp.exp(each - value)) / np.sqrt(pairs)


def both_signs(noise: Float[Array, "s m"]) -> Float[Array, "s m"]:
    """Every draw and its opposite; where there is nothing to draw, one draw of nothing."""
    return jnp.concatenate([noise, -noise]) if noise.shape[1] else noise[:1]


def weights_of(
    problem: CrossedProblem,
    proposal: Proposal,
    num_nodes: int,
    noise: Float[Array, "s m"],
    place: Place | None,
) -> Float[Array, " s"]:
    """Log weights of draws."""

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
    """``of`` every entry, of which each touches so many numbers."""
    together = max(1, SIDE_BY_SIDE // each)
    # Parts are computed again by the gradient, which would keep all of them else.
    return map_in_parts(
        of if len(leading) <= together else eqx.filter_checkpoint(of), leading, together
    )


def moments(
    key: Key, problem: CrossedProblem, pairs: int, num_nodes: int
) -> tuple[tuple[Float[Array, "r k"], Float[Array, "r r k"]], ...]:
    """Conditional means and covariances of all effects, by draws of their own."""
    proposal = laplace(problem)
    noise = flat_normal(key, (pairs, num_drawn(problem.data.plan, num_nodes)))
    found = jax.lax.map(lambda each: weigh(problem, proposal, num_nodes, each), both_signs(noise))
    weight = jax.nn.softmax(found.log_weight)
    averaged = jax.tree.map(lambda each: jnp.tensordot(weight, each, 1), found.moments)
    return tuple((mean, square - mean[:, None] * mean[None]) for mean, square in averaged)
