"""Where coefficients and effects are most probable together, if effects have a usual size.

    maximise  log p(y | H beta + Z alpha) - sum_j p_j beta_j^2 / 2 - sum_kj s_j alpha_kj^2 / 2

p are the prior precisions of the coefficients, and s the mean squares of the columns with effects,
so that effects have a standard deviation of 1 in the predictor. All columns of H and Z form one
sparse matrix, and damped Newton steps are regularised least squares.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import sparse

from nghvi._core.response import Response
from nghvi._programs import program
from nghvi._typing import Scalar
from nghvi.data import Rows
from nghvi.latents.rows import log_likelihood

if TYPE_CHECKING:
    from nghvi.models.mixed import MixedModel
    from nghvi.models.parameters import MixedParams

MOST_STEPS, HALVINGS, CLOSE = 30, 20, 1e-3
"""Largest numbers of steps and of halvings, and the gain in nats below which the search ends."""


class Levels(NamedTuple):
    """A grouping factor of the rows."""

    of_rows: Int[np.ndarray, " n"]
    number: int
    random: tuple[int, ...]
    """The features with effects."""


class JointMode(NamedTuple):
    """The mode and what rows say there."""

    coef: Float[np.ndarray, " q"]
    information: Float[np.ndarray, " q"]
    """Sum over rows of each column's square times the curvature of the row's log likelihood."""


def joint_mode(
    model: "MixedModel", params: "MixedParams", data: Rows, factors: Sequence[Levels]
) -> JointMode:
    """Return the mode, given the response's parameters; the search starts at ``params``."""
    response, dispersion = model.response_of(data), model.dispersion(params)
    h = np.asarray(data.features(lambda x: model.features(params, x)))
    q = h.shape[1] - len(model.known_coef)
    known = h[:, q:] @ np.array(model.known_coef)
    columns = [sparse.csr_array(h[:, :q])]
    precision = [np.broadcast_to(np.asarray(model.priors.coef_sd, float), q) ** -2.0]
    for levels in factors:
        starts, shape = np.arange(len(h) + 1), (len(h), levels.number)
        for j in levels.random:
            columns.append(sparse.csr_array((h[:, j], levels.of_rows, starts), shape=shape))
            square = float(jnp.sum(data.weighted(jnp.asarray(h[:, j] ** 2)))) / data.num_rows
            precision.append(np.full(levels.number, max(square, 1e-300)))
    x, held = sparse.hstack(columns, format="csr"), np.concatenate(precision)

    def look(at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        fit, *slopes = _look(response, dispersion, data, jnp.asarray(known + x @ at))
        return float(fit) - 0.5 * held @ at**2, *map(np.asarray, slopes)

    here = np.concatenate([np.asarray(params.coef), np.zeros(x.shape[1] - q)])
    height, first, second = look(here)
    for _ in range(MOST_STEPS):
        curvature = x.T @ (sparse.diags_array(second) @ x) + sparse.diags_array(held)
        step = np.linalg.solve(curvature.toarray(), x.T @ first - held * here)
        for halved in range(HALVINGS):
            there = here + 0.5**halved * step
            found = look(there)
            if found[0] > height:
                break
        else:
            break
        gain, here = found[0] - height, there
        height, first, second = found
        if gain < CLOSE:
            break
    return JointMode(here[:q], second @ h[:, :q] ** 2)


@program
def _look(
    response: Response, dispersion: Array, data: Rows, eta: Array
) -> tuple[Scalar, Float[Array, " n"], Float[Array, " n"]]:
    """Return the log likelihood, and each row's slope and curvature, times how often it occurs."""
    first, second = response.slopes(data.y, data.at_observations(eta), dispersion)
    fit = log_likelihood(response, dispersion, data, eta)
    return fit, data.weighted(data.by_row(first)), data.weighted(data.by_row(-second))
