"""Any response, several grouping factors: the mode of all effects and draws around it.

Laplace's approximation N(mode, M^-1) is centred at the joint mode of the whitened effects u of all
factors. Its factor L L' = M is that of :mod:`nghvi.latents.schur` with the rows' information in
place of 1 / noise. Mode and factor are differentiated. Draws from the exact conditional start from
draws of the approximation; integrals are in :mod:`nghvi.latents.crossed_integrals`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from nghvi._core.draws import flat_normal
from nghvi._linalg import small
from nghvi._linalg.tree import tree_where
from nghvi._typing import Key, Scalar
from nghvi.data.elimination import Elimination, pairs_of
from nghvi.data.factors import CrossedRows
from nghvi.latents import schur
from nghvi.latents.rows import (
    CERTAIN,
    CLOSE,
    FOUND,
    LEAST_GAIN,
    LONGEST_NEWTON_STEP,
    RowProblem,
)

MOST_STEPS = 100
"""Number of tried steps after which the search for the mode ends."""
NEWTON_TOLERANCE = 1e-6
"""Distance from the mode, in conditional sds, at which the search for it ends."""
TURN, TURNS = np.pi / 8, 4
"""Angle by which one step of a trajectory rotates effects and their velocity, and the number of
steps: after a quarter of a circle the start is forgotten."""

Whitened = tuple[Float[Array, "r k"], ...]
"""Effects of every factor in units of their prior, in the order of elimination."""


class CrossedProblem(NamedTuple):
    """The model y ~ response(offset + sum_f design_f u_f) with whitened effects u ~ N(0, I)."""

    first: RowProblem
    """The problem of the factor that is eliminated first, if the effects of the others are 0."""
    later: tuple[Float[Array, "n r"], ...]
    """Designs of the other factors."""
    data: CrossedRows

    def given(self, later: Whitened) -> RowProblem:
        """Return the problem of the first factor, given effects of the others."""
        offset = self.first.offset
        for design, effects, level in zip(self.later, later, self.data.later, strict=True):
            offset = offset + jnp.sum(design * effects.T[level], axis=1)
        return self.first._replace(offset=offset)

    def log_prob(self, effects: Whitened) -> Scalar:
        """Return log p(y | u) + log N(u; 0, I), without the latter's constant."""
        squares = sum(jnp.sum(each**2) for each in effects[1:])
        return jnp.sum(self.given(effects[1:]).log_prob(effects[0])) - 0.5 * squares

    def system(self, effects: Whitened, close: bool) -> schur.System:
        """Return minus the Hessian of :meth:`log_prob`, and its gradient, as a linear system.

        If the response is not log-concave, rows have their safe information, or if the mode is
        ``close`` their own where it is positive, so that no system is ever indefinite.
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
    """A step from effects towards their joint mode."""

    step: Whitened
    distance: Scalar
    """Distance to the mode, in conditional sds of all effects together."""
    share: Scalar
    """The share of the step that is not too long to be tried."""


def newton_step(problem: CrossedProblem, effects: Whitened, close: bool) -> Step:
    """Return one Newton step of all effects."""
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
        """Whether the search came close to the mode; a distance of NaN is not close."""
        return self.distance <= FOUND


def joint_mode(problem: CrossedProblem) -> Mode:
    """Return the mode of p(u | theta, y), held fixed in derivatives."""
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
    """The share of the step that is tried next."""
    tries: Int[Array, ""]


def _climb(problem: CrossedProblem, start: Whitened, tolerance: float, close: bool) -> Mode:
    """Take Newton steps, each halved until it gains, until the mode is within the tolerance."""

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

    # The first move goes nowhere and only evaluates: the start needs no code of its own.
    nowhere = Step(jax.tree.map(jnp.zeros_like, start), jnp.array(1e100), jnp.zeros(()))
    low, no_tries = jnp.array(-jnp.inf), jnp.zeros((), jnp.int32)
    first = _Ascent(start, low, nowhere, nowhere.share, no_tries)
    end = jax.lax.while_loop(unfinished, move, first)
    return Mode(end.effects, end.newton.distance)


class Proposal(NamedTuple):
    """Laplace's approximation N(centre, M^-1)."""

    centre: Whitened
    conditional: schur.Conditional
    """The distribution of deviations from the centre."""
    found: Bool[Array, ""]

    def log_det(self, first: int) -> Scalar:
        """Return half the log determinant of the precision of all factors from ``first`` on."""
        total = jnp.sum(jnp.log(jnp.diagonal(self.conditional.root)))
        for each in self.conditional.eliminated[first:]:
            total += jnp.sum(small.half_log_det(each.root))
        return total

    def draw(self, noise: Float[Array, " m"], plan: Elimination, first: int) -> Whitened:
        """Return the deviations of all factors from ``first`` on that standard normals give."""
        own = [jnp.zeros_like(each.forward) for each in self.conditional.eliminated]
        start = 0
        for e in range(first, plan.first_rest):
            own[e] = noise[start : start + plan.columns[e]].reshape(plan.effects[e], -1)
            start += plan.columns[e]
        return schur.backwards(self.conditional, plan, own, noise[start:])[first:]

    def around(self, deviations: Whitened) -> Whitened:
        """Return the effects of the last factors, given their deviations."""
        last = self.centre[len(self.centre) - len(deviations) :]
        return tuple(c + d for c, d in zip(last, deviations, strict=True))


def laplace(problem: CrossedProblem) -> Proposal:
    """Return Laplace's approximation at the joint mode, differentiable in the problem."""
    mode, plan = joint_mode(problem), problem.data.plan
    # A Newton step from the mode is zero, and its derivative is that of the mode: that of the
    # gradient, divided by the curvature.
    at_mode = problem.system(jax.lax.stop_gradient(mode.effects), close=True)
    still = jax.lax.stop_gradient(at_mode)._replace(right=at_mode.right)
    step = schur.mean(schur.condition(schur.reduce(still, plan)), plan)
    centre = tuple(u + d for u, d in zip(mode.effects, step, strict=True))
    system = problem.system(centre, close=True)
    still = system._replace(right=tuple(map(jnp.zeros_like, system.right)))
    return Proposal(centre, schur.condition(schur.reduce(still, plan)), mode.found)


def sample(key: Key, problem: CrossedProblem, moves: int) -> Whitened:
    """Return a draw of all effects, by Hamiltonian moves from a draw of Laplace's approximation.

    In units of that approximation the density of the effects e is exp(r(e)) N(e; 0, I) with a small
    r. A trajectory rotates e and its velocity into each other, which is exact for the normal part,
    and is pushed by the slope of r. Traces of the approximation fade with the number of moves.
    """
    proposal, plan = laplace(problem), problem.data.plan
    size = sum(plan.columns)

    def effects_of(noise: Array) -> Whitened:
        return proposal.around(proposal.draw(noise, plan, 0))

    @jax.value_and_grad
    def remainder(noise: Array) -> Scalar:
        return problem.log_prob(effects_of(noise)) + 0.5 * jnp.sum(noise**2)

    def turn(i: Array, at: tuple) -> tuple:
        noise, velocity, _, slope = at
        velocity = velocity + 0.5 * TURN * slope
        noise, velocity = (
            np.cos(TURN) * noise + np.sin(TURN) * velocity,
            np.cos(TURN) * velocity - np.sin(TURN) * noise,
        )
        value, slope = remainder(noise)
        return noise, velocity + 0.5 * TURN * slope, value, slope

    def energy(noise: Array, velocity: Array, value: Scalar) -> Scalar:
        return 0.5 * jnp.sum(noise**2 + velocity**2) - value

    def move(i: Array, at: tuple) -> tuple:
        key_velocity, key_accept = jax.random.split(jax.random.fold_in(key, i))
        noise, value, slope = at
        velocity = flat_normal(key_velocity, (size,))
        end = jax.lax.fori_loop(0, TURNS, turn, (noise, velocity, value, slope))
        gain = energy(noise, velocity, value) - energy(*end[:3])
        accepted = jnp.log(jax.random.uniform(key_accept, minval=1e-300)) < gain
        return tree_where(accepted, (end[0], *end[2:]), at)

    start = flat_normal(jax.random.fold_in(key, moves), (size,))
    return effects_of(jax.lax.fori_loop(0, moves, move, (start, *remainder(start)))[0])
