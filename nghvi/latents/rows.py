"""The random effects of a non-Gaussian response: what its kernels and integrals may see."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._core.response import Response
from nghvi._linalg import small
from nghvi._typing import Key, Scalar
from nghvi.data.grouped import Rows

MOST_NEWTON_STEPS = 30
NEWTON_TOLERANCE = 1e-6
LONGEST_NEWTON_STEP = 5.0


class RowProblem(NamedTuple):
    """y ~ response(offset + design u_group), u_k ~ N(0, I) whitened effects."""

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
        """From a design for alpha = L^-T u."""
        white = whiten_design(design, precision_factor)
        return RowProblem(response, dispersion, data, offset, white)

    def predictor(self, effects: Float[Array, "r k"]) -> Float[Array, " n"]:
        """eta at these whitened effects."""
        return self.offset + jnp.sum(self.design * self.data.expand(effects.T), axis=1)

    def log_prob(self, effects: Float[Array, "r k"]) -> Float[Array, " k"]:
        """log p(y_k | u_k) + log N(u_k; 0, I) without the latter's constant, each group."""
        eta = self.data.at_observations(self.predictor(effects))
        fit = self.data.by_row(self.response.log_prob(self.data.y, eta, self.dispersion))
        return self.data.sum(fit) - 0.5 * jnp.sum(effects**2, axis=0)

    def slopes(self, eta: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """First and second derivative of the log likelihood in each row's predictor."""
        data = self.data
        found = self.response.slopes(data.y, data.at_observations(eta), self.dispersion)
        return data.by_row(found[0]), data.by_row(found[1])

    def derivatives(
        self, effects: Float[Array, "r k"]
    ) -> tuple[Float[Array, "r k"], Float[Array, "r r k"]]:
        """Gradient and negative Hessian of :meth:`log_prob` in each group's effects."""
        first, second = self.slopes(self.predictor(effects))
        gradient = self.data.sum(self.design * first[:, None]).T - effects
        curvature = self.data.gram(self.design, -second)
        return gradient, jnp.eye(effects.shape[0])[:, :, None] + curvature


def log_likelihood(response: Response, dispersion: Array, data: Rows, eta: Array) -> Scalar:
    """Of all observations, at the predictors of their rows."""
    return data.total(response.log_prob(data.y, data.at_observations(eta), dispersion))


def whiten_design(
    design: Float[Array, "n r"], precision_factor: Float[Array, "r r"]
) -> Float[Array, "n r"]:
    """Z L^-T: the design for effects in units in which their prior is N(0, I).

    The inverse is taken first: solving for n right-hand sides makes XLA store features column by
    column, which slows everything else on them down.
    """
    return design @ small.inverse_lower(precision_factor).T


def newton_step(
    problem: RowProblem, effects: Float[Array, "r k"]
) -> tuple[Float[Array, "r k"], Float[Array, " k"]]:
    """One Newton step towards each group's conditional mode, bounded in length.

    Also its length, had it not been bounded, in conditional sds.
    """
    gradient, curvature = problem.derivatives(effects)
    root = small.cholesky(curvature)
    forward = small.solve_lower(root, gradient)
    step = small.solve_lower(root, forward, transpose=True)
    # The floor keeps the root differentiable at a step of zero.
    length = jnp.sqrt(jnp.maximum(jnp.sum(step**2, axis=0), 1e-24))
    moved = effects + step * jnp.minimum(1.0, LONGEST_NEWTON_STEP / length)
    return moved, jnp.sqrt(jnp.sum(forward**2, axis=0))


def draw_gaussian(
    key: Key, precision_root: Float[Array, "r r k"], right: Float[Array, "r k"]
) -> Float[Array, "r k"]:
    """A draw of N(Q^-1 b, Q^-1) for every group, from the Cholesky factor of Q and from b."""
    forward = small.solve_lower(precision_root, right)
    noise = flat_normal(key, right.shape)
    return small.solve_lower(precision_root, forward + noise, transpose=True)


def draw_given_precision(
    key: Key,
    problem: RowProblem,
    precision: Float[Array, " n"],
    right: Float[Array, " n"],
) -> Float[Array, "r k"]:
    """A draw of N(Q^-1 b, Q^-1), Q_k = I + Z_k' diag(precision) Z_k and b_k = Z_k' right."""
    data, design = problem.data, problem.design
    information = data.gram(design, precision)
    root = small.cholesky(jnp.eye(design.shape[1])[:, :, None] + information)
    return draw_gaussian(key, root, data.sum(design * right[:, None]).T)


def conditional_mode(
    problem: RowProblem, tolerance: float = NEWTON_TOLERANCE
) -> Float[Array, "r k"]:
    """Mode of p(u_k | theta, y_k) for every group; not differentiated through.

    Newton steps until none is longer than the tolerance, in conditional sds: a group of many rows
    knows its effects well. The next step would square the error.
    """
    problem = jax.lax.stop_gradient(problem)
    start = jnp.zeros((problem.design.shape[1], problem.data.num_groups))

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        _, change, steps = carry
        return (change > tolerance) & (steps < MOST_NEWTON_STEPS)

    def move(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        effects, _, steps = carry
        moved, lengths = newton_step(problem, effects)
        return moved, jnp.max(lengths), steps + 1

    first = (start, jnp.full((), jnp.inf), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, move, first)[0]
