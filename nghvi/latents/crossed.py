"""Any response, several grouping factors: effects integrated out by quadrature and draws.

Given the effects v of all other factors, the levels of the factor that is eliminated first are
independent, and adaptive quadrature integrates each. v itself is drawn from Laplace's
approximation, whose factor L L' = M is that of :mod:`nghvi.latents.schur` with the rows'
information in place of 1 / noise::

    v_s = mode + L^-T e_s,     log p(y) = log mean_s exp( log p(y | v_s) + log p(v_s) - log q(v_s) )
    log p(y | v) = sum_k log sum_j w_j p(y_k | u_kj, v) N(u_kj; 0, I) / q(u_kj | v)

The noise e_s is the same for every theta and comes in pairs of opposite sign, so that the result is
smooth in theta; its error falls with the number of draws, and is nothing where the response is
Gaussian. Mode, factor and draws are differentiated, hence the gradient is that of the number
itself and has no noise of its own.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int

from nghvi._linalg import small
from nghvi._linalg.tree import map_in_parts, tree_where
from nghvi._typing import Key, Scalar
from nghvi.data.elimination import Elimination, pairs_of
from nghvi.data.factors import CrossedRows
from nghvi.latents import integrate, metropolis, schur
from nghvi.latents.rows import (
    CERTAIN,
    CLOSE,
    FOUND,
    LEAST_GAIN,
    LONGEST_NEWTON_STEP,
    NEWTON_TOLERANCE,
    RowProblem,
)

MOST_STEPS = 100
SIDE_BY_SIDE = 1_000_000
"""Rows times nodes of draws that are evaluated together: memory is bounded by it."""

Whitened = tuple[Float[Array, "r k"], ...]
"""Effects of every factor in units of their prior, in the order of elimination."""


class CrossedProblem(NamedTuple):
    """y ~ response(offset + sum_f design_f u_f), u ~ N(0, I) whitened effects."""

    first: RowProblem
    """Of the factor that is eliminated first, the others' effects being 0."""
    later: tuple[Float[Array, "n r"], ...]
    """Designs of the other factors."""
    data: CrossedRows

    def given(self, later: Whitened) -> RowProblem:
        """The problem of the first factor, given effects of the others."""
        offset = self.first.offset
        for design, effects, level in zip(self.later, later, self.data.later, strict=True):
            offset = offset + jnp.sum(design * effects.T[level], axis=1)
        return self.first._replace(offset=offset)

    def log_prob(self, effects: Whitened) -> Scalar:
        """log p(y | u) + log N(u; 0, I) without the latter's constant."""
        squares = sum(jnp.sum(each**2) for each in effects[1:])
        return jnp.sum(self.given(effects[1:]).log_prob(effects[0])) - 0.5 * squares

    def system(self, effects: Whitened, close: bool) -> schur.System:
        """Minus the Hessian of :meth:`log_prob`, and its gradient.

        Where the response is not log-concave, rows have their safe information, or if the mode is
        ``close`` their own, as far as it is positive: no system is ever indefinite.
        """
        problem, data, plan = self.given(effects[1:]), self.data.rows, self.data.plan
        eta = problem.predictor(effects[0])
        slope, second = problem.slopes(eta)
        information = -second
        if close and not problem.response.log_concave:
            own = problem.response.curvature(data.y, data.at_observations(eta), problem.dispersion)
            information = jnp.maximum(data.by_row(own), 0.0)
        designs = (problem.design, *self.later)
        weighted = [data.weighted(z * information[:, None]) for z in designs]

        def block(f: int, g: int, place: Int[Array, " n"], number: int) -> Float[Array, "r s c"]:
            products = weighted[f][:, :, None] * designs[g][:, None, :]
            return jnp.moveaxis(jax.ops.segment_sum(products, place, number), 0, -1)

        places = range(len(designs))
        diagonal, right = (
            [problem.with_prior(information)],
            [data.sum(problem.design * slope[:, None]).T],
        )
        for f, level in enumerate(self.data.later, start=1):
            eye = jnp.eye(plan.effects[f])[:, :, None]
            diagonal.append(eye + block(f, f, level, plan.levels[f]))
            slopes = data.weighted(designs[f] * slope[:, None])
            right.append(jax.ops.segment_sum(slopes, level, plan.levels[f]).T)
        cells = tuple(
            tuple(
                block(e, f, self.data.places[e][f - e - 1], step.cells[f - e - 1].first.size)
                for f in places[e + 1 :]
            )
            for e, step in enumerate(plan.steps)
        )
        rest = zip(pairs_of(plan.rest), self.data.rest_places, plan.rest_cells, strict=True)
        return schur.System(
            tuple(diagonal),
            cells,
            tuple(block(*pair, place, where.first.size) for pair, place, where in rest),
            tuple(b - u for b, u in zip(right, effects, strict=True)),
        )


class Step(NamedTuple):
    """The way from effects towards their joint mode."""

    step: Whitened
    distance: Scalar
    """In conditional sds, of all effects together."""
    share: Scalar
    """Of the step that is not too long."""


def newton_step(problem: CrossedProblem, effects: Whitened, close: bool) -> Step:
    """One Newton step of all effects."""
    plan = problem.data.plan
    conditional = schur.condition(schur.reduce(problem.system(effects, close), plan))
    step = schur.mean(conditional, plan)
    square = sum(jnp.sum(each.forward**2) for each in conditional.eliminated)
    square += jnp.sum(conditional.forward**2)
    longest = functools.reduce(jnp.maximum, [jnp.max(jnp.abs(each)) for each in step])
    share = jnp.minimum(1.0, LONGEST_NEWTON_STEP / jnp.maximum(longest, 1e-12))
    return Step(step, jnp.sqrt(square), share)


class Mode(NamedTuple):
    """Where the search for the joint mode ended."""

    effects: Whitened
    distance: Scalar

    @property
    def found(self) -> Bool[Array, ""]:
        """Whether the search came close; not a number is not close."""
        return self.distance <= FOUND


def joint_mode(problem: CrossedProblem) -> Mode:
    """Mode of p(u | theta, y); not differentiated through."""
    problem = jax.lax.stop_gradient(problem)
    plan = problem.data.plan
    start = tuple(jnp.zeros((r, k)) for r, k in zip(plan.effects, plan.levels, strict=True))
    if problem.first.response.log_concave:
        return _climb(problem, start, NEWTON_TOLERANCE, close=False)
    near = _climb(problem, start, CLOSE, close=False)
    return _climb(problem, near.effects, NEWTON_TOLERANCE, close=True)


class _Ascent(NamedTuple):
    """A damped Newton search under way."""

    effects: Whitened
    height: Scalar
    newton: Step
    share: Scalar
    """Of the step, that is tried next."""
    tries: Int[Array, ""]


def _climb(problem: CrossedProblem, start: Whitened, tolerance: float, close: bool) -> Mode:
    """Newton steps, each halved until it gains."""

    def look(effects: Whitened) -> tuple[Scalar, Step, Scalar]:
        newton = newton_step(problem, effects, close)
        return problem.log_prob(effects), newton, newton.share

    def unfinished(at: _Ascent) -> Array:
        return ~(at.newton.distance <= tolerance) & (at.tries < MOST_STEPS)

    def move(at: _Ascent) -> _Ascent:
        effects = jax.tree.map(lambda u, d: u + at.share * d, at.effects, at.newton.step)
        height, newton, share = look(effects)
        promised = LEAST_GAIN * at.share * at.newton.distance**2
        gains = (height >= at.height + promised) | (at.newton.distance < CERTAIN)
        moved = _Ascent(effects, height, newton, share, at.tries + 1)
        stayed = at._replace(share=0.5 * at.share, tries=at.tries + 1)
        return tree_where(gains, moved, stayed)

    first = _Ascent(start, *look(start), jnp.zeros((), jnp.int32))
    end = jax.lax.while_loop(unfinished, move, first)
    return Mode(end.effects, end.newton.distance)


class Proposal(NamedTuple):
    """Laplace's approximation: N(centre, M^-1)."""

    centre: Whitened
    conditional: schur.Conditional
    """Of deviations from the centre."""
    found: Bool[Array, ""]

    @property
    def log_det_later(self) -> Scalar:
        """Half the log determinant of the precision of all factors but the first."""
        total = jnp.sum(jnp.log(jnp.diagonal(self.conditional.root)))
        for each in self.conditional.eliminated[1:]:
            total += jnp.sum(small.half_log_det(each.root))
        return total

    def draw(self, noise: Float[Array, " m"], plan: Elimination) -> Whitened:
        """Effects of later factors from standard normals, and the first one's mean given them."""
        own = [jnp.zeros_like(self.conditional.eliminated[0].forward)]
        start = 0
        for e in range(1, plan.first_rest):
            own.append(noise[start : start + plan.columns[e]].reshape(plan.effects[e], -1))
            start += plan.columns[e]
        deviation = schur.backwards(self.conditional, plan, own, noise[start:])
        return tuple(c + d for c, d in zip(self.centre, deviation, strict=True))


def laplace(problem: CrossedProblem) -> Proposal:
    """At the joint mode, as a function of what the problem depends on."""
    mode, plan = joint_mode(problem), problem.data.plan
    # A step from the mode is zero, and its derivative that of the mode.
    step = newton_step(problem, jax.lax.stop_gradient(mode.effects), close=True).step
    centre = tuple(u + d for u, d in zip(mode.effects, step, strict=True))
    system = problem.system(centre, close=True)
    still = system._replace(right=tuple(map(jnp.zeros_like, system.right)))
    return Proposal(centre, schur.condition(schur.reduce(still, plan)), mode.found)


def common_noise(pairs: int, plan: Elimination) -> Float[Array, "s m"]:
    """Standard normals for effects of all factors but the first; the same in every call."""
    return jnp.asarray(_noise(pairs, sum(plan.columns[1:])))


@functools.lru_cache(maxsize=8)
def _noise(pairs: int, size: int) -> Float[np.ndarray, "s m"]:
    noise = np.random.default_rng(18).standard_normal((pairs, size))
    # Laplace's scale is somewhat off, and the weights' spread is mostly that of the squares: with
    # these as they are expected, the error of 8 pairs falls from .054 to .021 (two classes), from
    # .022 to .007 (Student-t).
    return noise / np.sqrt(np.mean(noise**2, axis=0))


class Weighed(NamedTuple):
    """A draw of the later factors' effects and the quadrature of the first factor given them."""

    log_weight: Scalar
    later: Whitened
    nodes: Float[Array, "j r k"]
    shares: Float[Array, "j k"]
    """Of the nodes, which add to 1 in a level."""


def weigh(
    problem: CrossedProblem, proposal: Proposal, num_nodes: int, noise: Float[Array, " m"]
) -> Weighed:
    """The draw that is made of this noise; its weights' mean is p(y)."""
    centre, *later = proposal.draw(noise, problem.data.plan)
    inner, root = problem.given(tuple(later)), proposal.conditional.eliminated[0].root
    points, log_weights = integrate.rule(num_nodes, len(centre)).of_groups(centre.shape[1])

    def place(shift: Array) -> Array:
        return centre + small.solve_lower(root, shift, transpose=True)

    nodes = jax.vmap(place)(points)
    terms = jax.vmap(inner.log_prob)(nodes) + log_weights + 0.5 * jnp.sum(points**2, axis=1)
    each = logsumexp(terms, axis=0)
    squares = jnp.sum(noise**2) - sum(jnp.sum(v**2) for v in later)
    log_weight = jnp.sum(each - small.half_log_det(root)) + 0.5 * squares - proposal.log_det_later
    return Weighed(log_weight, tuple(later), nodes, jnp.exp(terms - each))


def log_marginal(problem: CrossedProblem, pairs: int, num_nodes: int) -> Scalar:
    """log p(y | theta) by so many pairs of draws; with none, Laplace's approximation.

    Not a number where the mode was not found.
    """
    proposal, plan = laplace(problem), problem.data.plan
    if pairs == 0:
        log_det = jnp.sum(small.half_log_det(proposal.conditional.eliminated[0].root))
        value = problem.log_prob(proposal.centre) - log_det - proposal.log_det_later
    else:
        half = common_noise(pairs, plan)

        def one(noise: Array) -> Scalar:
            return weigh(problem, proposal, num_nodes, noise).log_weight

        each = integrate.num_points(num_nodes, plan.effects[0]) * len(problem.data.rows.y)
        together = max(1, SIDE_BY_SIDE // each)
        # Parts are computed again by the gradient, which would keep all of them else.
        of = one if 2 * pairs <= together else eqx.filter_checkpoint(one)
        found = map_in_parts(of, jnp.concatenate([half, -half]), together)
        value = logsumexp(found) - np.log(2 * pairs)
    return jnp.where(proposal.found, value, jnp.nan)


def moments(
    key: Key, problem: CrossedProblem, pairs: int, num_nodes: int
) -> tuple[tuple[Float[Array, "r k"], Float[Array, "r r k"]], ...]:
    """Conditional means and covariances of all effects, by draws of their own."""
    proposal, plan = laplace(problem), problem.data.plan
    half = jax.random.normal(key, (pairs, sum(plan.columns[1:])))

    def one(noise: Array) -> tuple[Scalar, tuple]:
        found = weigh(problem, proposal, num_nodes, noise)
        nodes, shares = found.nodes, found.shares
        first = (
            jnp.einsum("jk,jak->ak", shares, nodes),
            jnp.einsum("jk,jak,jbk->abk", shares, nodes, nodes),
        )
        later = [(v, v[:, None] * v[None]) for v in found.later]
        return found.log_weight, (first, *later)

    log_weight, sums = jax.lax.map(one, jnp.concatenate([half, -half]))
    weight = jax.nn.softmax(log_weight)
    averaged = jax.tree.map(lambda each: jnp.tensordot(weight, each, 1), sums)
    return tuple((mean, square - mean[:, None] * mean[None]) for mean, square in averaged)


def sample(key: Key, problem: CrossedProblem, pairs: int, num_nodes: int, moves: int) -> Whitened:
    """A draw of all effects: one of many by its weight, then the first factor's given the others.

    What the choice among so many leaves of Laplace's approximation fades with their number.
    """
    proposal, plan = laplace(problem), problem.data.plan
    key_noise, key_choice, key_first = jax.random.split(key, 3)
    half = jax.random.normal(key_noise, (pairs, sum(plan.columns[1:])))
    noise = jnp.concatenate([half, -half])
    log_weight = jax.lax.map(
        lambda each: weigh(problem, proposal, num_nodes, each).log_weight, noise
    )
    chosen = noise[jax.random.categorical(key_choice, log_weight)]
    _, *later = proposal.draw(chosen, plan)
    inner = problem.given(tuple(later))
    first = metropolis.sample(key_first, inner, metropolis.make_proposal(inner, num_nodes), moves)
    return first, *later
