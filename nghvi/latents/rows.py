"""The random effects of a non-Gaussian response, as kernels and integrals see them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nghvi._core.draws import flat_normal
from nghvi._core.response import Response
from nghvi._linalg import small
from nghvi._linalg.tree import tree_where
from nghvi._typing import Key, Scalar
from nghvi.data.grouped import Rows

MOST_NEWTON_STEPS = 240
"""Number of tried steps after which the search for a mode ends. Ten are nearly always enough, but a
density with a ledge on the way to its mode takes many short ones."""
NEWTON_TOLERANCE = 1e-3
"""Distance from the mode, in conditional sds, from which a last full step is taken. It squares the
distance, and needs nothing that was not computed to learn the distance."""
LONGEST_NEWTON_STEP = 5.0
"""Bound on the length of a step in whitened effects."""
LEAST_GAIN = 0.1
"""Share of the gain promised by the slope that a step must achieve; otherwise it is halved."""
CERTAIN = 1e-3
"""Distance from the mode, in conditional sds, within which full steps are safe and gains are lost
in rounding."""
FOUND = 0.1
"""Distance from the mode, in conditional sds, beyond which the search for it has failed."""
CLOSE = 0.3
"""Distance from the mode, in conditional sds, within which Newton steps are always safe."""
FEW_COLUMNS = 3
"""Number of effects up to which sums over rows are taken one by one, which is faster than products
of thin matrices and takes less time to compile."""
FLATTEST = 0.25
"""Least curvature at a mode, relative to the safe one; a flatter conditional is far from Gaussian,
so the safe curvature replaces its own."""


class RowProblem(NamedTuple):
    """The model y ~ response(offset + design u_group) with whitened effects u_k ~ N(0, I)."""

    response: Response
    dispersion: Float[Array, " c"]
    data: Rows
    offset: Float[Array, " n"]
    design: Float[Array, "n r"]

    @staticmethod
    def whiten(
        response: Response,
        dispersion: Array,
        data: Rows,
        offset: Array,
        design: Array,
        precision_factor: Array,
    ) -> "RowProblem":
        """Return the problem for u, given the design for alpha = L^-T u."""
        white = whiten_design(design, precision_factor)
        return RowProblem(response, dispersion, data, offset, white)

    def predictor(self, effects: Float[Array, "r k"]) -> Float[Array, " n"]:
        """Return eta at these whitened effects."""
        # Column by column, since sums over so few are slow otherwise. This takes most of the time.
        columns = zip(self.design.T, effects, strict=True)
        return self.offset + sum(column * self.data.expand(each) for column, each in columns)

    def log_prob(self, effects: Float[Array, "r k"]) -> Float[Array, " k"]:
        """Return log p(y_k | u_k) + log N(u_k; 0, I), without its constant, of each group."""
        eta = self.data.at_observations(self.predictor(effects))
        fit = self.data.by_row(self.response.log_prob(self.data.y, eta, self.dispersion))
        return self.data.sum(fit) - 0.5 * jnp.sum(effects**2, axis=0)

    def slopes(self, eta: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Return the first two derivatives of the log likelihood in each row's predictor."""
        data = self.data
        found = self.response.slopes(data.y, data.at_observations(eta), self.dispersion)
        return data.by_row(found[0]), data.by_row(found[1])

    def derivatives(
        self, effects: Float[Array, "r k"]
    ) -> tuple[Float[Array, "r k"], Float[Array, "r r k"]]:
        """Return the gradient and negative Hessian of :meth:`log_prob` in each group's effects.

        For a response that is not log-concave the Hessian is replaced by a safe one.
        """
        first, second = self.slopes(self.predictor(effects))
        gradient = self.of_groups(first) - effects
        return gradient, self.with_prior(-second)

    def curvature(self, effects: Float[Array, "r k"]) -> Float[Array, "r r k"]:
        """Return the negative Hessian of :meth:`log_prob` at modes, or a safe one if too flat."""
        safe = self.derivatives(effects)[1]
        if self.response.log_concave:
            return safe
        data, eta = self.data, self.data.at_observations(self.predictor(effects))
        hessian = self.with_prior(
            data.by_row(self.response.curvature(data.y, eta, self.dispersion))
        )
        root = small.cholesky(jax.lax.stop_gradient(hessian - FLATTEST * safe))
        return jnp.where(jnp.all(jnp.isfinite(root), axis=(0, 1)), hessian, safe)

    def of_groups(self, values: Float[Array, " n"]) -> Float[Array, "r k"]:
        """Return Z_k' values_k of each group."""
        return jnp.stack([self.data.sum(column * values) for column in self.design.T])

    def with_prior(self, information: Float[Array, " n"]) -> Float[Array, "r r k"]:
        """Return I + Z_k' diag(information) Z_k of each group."""
        r = self.design.shape[1]
        eye = jnp.eye(r)[:, :, None]
        if r > FEW_COLUMNS:
            return eye + self.data.gram(self.design, information)
        rows = [self.of_groups(column * information) for column in self.design.T]
        return eye + jnp.stack(rows)


def log_likelihood(response: Response, dispersion: Array, data: Rows, eta: Array) -> Scalar:
    """Return the log likelihood of all observations, given the predictors of their rows."""
    return data.total(response.log_prob(data.y, data.at_observations(eta), dispersion))


def whiten_design(
    design: Float[Array, "n r"], precision_factor: Float[Array, "r r"]
) -> Float[Array, "n r"]:
    """Return Z L^-T, the design for effects in units in which their prior is N(0, I).

    The inverse is taken first: solving for n right-hand sides makes XLA store features column by
    column, which slows down everything else that reads them.
    """
    return design @ small.inverse_lower(precision_factor).T


class NewtonStep(NamedTuple):
    """A step from each group's effects towards its conditional mode."""

    step: Float[Array, "r k"]
    """The step, bounded in length."""
    distance: Float[Array, " k"]
    """Length of the step in conditional sds, had it not been bounded."""
    slope: Float[Array, " k"]
    """Gain in log density that the gradient promises for the step."""


def newton_step(
    problem: RowProblem, effects: Float[Array, "r k"], close: bool = False
) -> NewtonStep:
    """Return one Newton step for every group.

    ``close``: whether to use the true Hessian even if the response is not log-concave.
    """
    gradient, safe = problem.derivatives(effects)
    root = small.cholesky(problem.curvature(effects) if close else safe)
    forward = small.solve_lower(root, gradient)
    step = small.solve_lower(root, forward, transpose=True)
    # The floor keeps the root differentiable at a step of zero.
    length = jnp.sqrt(jnp.maximum(jnp.sum(step**2, axis=0), 1e-24))
    share = jnp.minimum(1.0, LONGEST_NEWTON_STEP / length)
    square = jnp.sum(forward**2, axis=0)
    return NewtonStep(share * step, jnp.sqrt(square), share * square)


def draw_gaussian(
    key: Key, precision_root: Float[Array, "r r k"], right: Float[Array, "r k"]
) -> Float[Array, "r k"]:
    """Draw from N(Q^-1 b, Q^-1) for every group, given the Cholesky factor of Q, and b."""
    forward = small.solve_lower(precision_root, right)
    noise = flat_normal(key, right.shape)
    return small.solve_lower(precision_root, forward + noise, transpose=True)


def draw_given_precision(
    key: Key,
    problem: RowProblem,
    precision: Float[Array, " n"],
    right: Float[Array, " n"],
) -> Float[Array, "r k"]:
    """Draw from N(Q^-1 b, Q^-1), Q_k = I + Z_k' diag(precision) Z_k and b_k = Z_k' right."""
    root = small.cholesky(problem.with_prior(precision))
    return draw_gaussian(key, root, problem.of_groups(right))


class Mode(NamedTuple):
    """Where the search for each group's conditional mode ended."""

    effects: Float[Array, "r k"]
    height: Float[Array, " k"]
    """The log density before the last step, a millionth of a nat below that at these effects."""
    distance: Float[Array, " k"]
    """The distance to the mode before the last step, in conditional sds."""

    @property
    def found(self) -> Bool[Array, " k"]:
        """Whether the search came close to the mode; a distance of NaN is not close."""
        return self.distance <= FOUND


def conditional_mode(
    problem: RowProblem,
    tolerance: float = NEWTON_TOLERANCE,
    start: Float[Array, "r k"] | None = None,
) -> Mode:
    """Return the mode of p(u_k | theta, y_k) for every group, held fixed in derivatives.

    The tolerance is in conditional sds, since a group of many rows knows its effects well.
    ``start``: where the search begins; None stands for the centre of the prior.
    """
    problem = jax.lax.stop_gradient(problem)
    certain = CERTAIN if start is None else max(CERTAIN, tolerance)
    if start is None:
        start = jnp.zeros((problem.design.shape[1], problem.data.num_groups))
    if problem.response.log_concave or tolerance >= CLOSE:
        return _climb(problem, start, tolerance, close=False, certain=certain)
    near = _climb(problem, start, CLOSE, close=False)
    return _climb(problem, near.effects, tolerance, close=True)


class _Ascent(NamedTuple):
    """A damped Newton search under way, each group at its own point."""

    effects: Float[Array, "r k"]
    height: Float[Array, " k"]
    newton: NewtonStep
    share: Float[Array, " k"]
    """The share of the step that is tried next."""
    tries: Int[Array, ""]


def _climb(
    problem: RowProblem,
    start: Float[Array, "r k"],
    tolerance: float,
    close: bool,
    certain: float = CERTAIN,
) -> Mode:
    """Take Newton steps, each halved until it gains, until all groups are within the tolerance.

    ``certain``: distance from which a last full step is taken.
    """

    def unfinished(at: _Ascent) -> Array:
        # Written so that a group whose distance is NaN continues.
        return ~jnp.all(at.newton.distance <= tolerance) & (at.tries < MOST_NEWTON_STEPS)

    def move(at: _Ascent) -> _Ascent:
        effects = at.effects + at.share * at.newton.step
        height, newton = problem.log_prob(effects), newton_step(problem, effects, close)
        promised = LEAST_GAIN * at.share * at.newton.slope
        gains = (height >= at.height + promised) | (at.newton.distance < CERTAIN)
        gains = gains | (at.tries < 0)
        moved = at._replace(effects=effects, height=height, newton=newton, share=whole)
        stayed = at._replace(share=0.5 * at.share)
        tries = at.tries + 1
        return tree_where(gains, moved, stayed)._replace(tries=tries)

    whole = jnp.ones(start.shape[1])
    # The loop also evaluates the start: the same code in front of it would be compiled twice.
    nowhere = NewtonStep(jnp.zeros_like(start), jnp.inf * whole, 0 * whole)
    first = _Ascent(start, -jnp.inf * whole, nowhere, whole, -jnp.ones((), jnp.int32))
    end = jax.lax.while_loop(unfinished, move, first)
    last = jnp.where(end.newton.distance <= certain, end.newton.step, 0.0)
    return Mode(end.effects + last, end.height, end.newton.distance)
