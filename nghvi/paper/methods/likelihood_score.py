"""The gradient of log p(y | theta) by Fisher's identity and importance sampling.

With draws ``alpha_kj ~ r_k`` and weights ``w_kj`` prop. to ``p(y_k, alpha_kj | theta) / r_k``
that sum to one over j::

    grad log p(y | theta) ~ sum_k sum_j w_kj grad log p(y_k, alpha_kj | theta)

The bias is O(1 / N). The proposal r_k is Laplace's, the exact conditional for a Gaussian
response, or the effects' prior, as published for binary responses. Draws are points of a Sobol
sequence under a random shift modulo 1, the coordinates of a draw in its row (the published
program takes them from consecutive points, which makes them dependent).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, ndtri
from jaxtyping import Array, Float
from scipy.stats.qmc import Sobol

from nghvi._core.model import unraveller
from nghvi._linalg import small
from nghvi._linalg.tree import materialise
from nghvi._typing import Key, Scalar
from nghvi.data import Rows
from nghvi.latents import conjugate
from nghvi.latents.rows import RowProblem, conditional_mode
from nghvi.models.mixed import MixedModel

CLOSE_ENOUGH = 0.1
"""The last Newton step towards the mode of a proposal, in prior sds: weights do the rest."""


@functools.lru_cache(maxsize=32)
def _sobol(number: int, dim: int) -> np.ndarray:
    points = Sobol(dim, rng=np.random.default_rng(0)).random_base2((number - 1).bit_length())
    return points[:number]


def sobol_normals(key: Key, number: int, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """``number`` standard normals in ``shape[0]`` dimensions, shifted anew along the other axes."""
    points = _sobol(number, shape[0]).reshape(number, shape[0], *(1,) * (len(shape) - 1))
    uniform = jnp.mod(points + jax.random.uniform(key, shape), 1.0)
    return materialise(ndtri(jnp.clip(uniform, 1e-12, 1 - 1e-12)))


def likelihood_score(
    key: Key,
    theta: Float[Array, " m"],
    model: MixedModel,
    rows: Rows,
    number: int,
    from_prior: bool,
) -> tuple[Scalar, Float[Array, " m"]]:
    """Estimates of log p(y | theta) and its gradient from ``number`` draws of each effect.

    The gradient of the mean weight with the draws held fixed is the one of Fisher's identity.
    """
    unravel = unraveller(model, rows)
    problem, lower = model.row_problem(unravel(theta), rows), model.precision_factor(unravel(theta))
    noise = sobol_normals(key, number, (model.num_effects, rows.num_groups))
    whitened, log_proposal = _propose(problem, noise, from_prior)
    effects = jnp.swapaxes(jax.vmap(lambda u: conjugate.colour(u, lower))(whitened), 0, 1)
    log_det_there = jnp.sum(jnp.log(jnp.diagonal(lower)))

    def log_mean_weight(theta: Array) -> Scalar:
        params = unravel(theta)
        h, lower = (
            rows.features(lambda x: model.features(params, x)),
            model.precision_factor(params),
        )
        random = jnp.sum(model.design(h)[:, None] * rows.expand(effects), axis=-1)
        eta = (h @ params.coef)[:, None] + random
        fit = rows.sum(model.response.log_prob(rows.y[:, None], eta, params.dispersion))
        log_det = jnp.sum(jnp.log(jnp.diagonal(lower))) - log_det_there
        prior = log_det - 0.5 * jnp.sum((effects @ lower) ** 2, axis=-1)
        each = logsumexp(fit + prior - log_proposal.T, axis=1)
        return jnp.sum(each) - rows.num_groups * np.log(number)

    return jax.value_and_grad(log_mean_weight)(theta)


def _propose(
    problem: RowProblem, noise: Float[Array, "j r k"], from_prior: bool
) -> tuple[Float[Array, "j r k"], Float[Array, "j k"]]:
    """Whitened effects and their log density under the proposal, but for (2 pi)^(-r/2)."""
    log_normal = -0.5 * jnp.sum(noise**2, axis=1)
    if from_prior:
        return noise, log_normal
    mode = conditional_mode(problem, CLOSE_ENOUGH).effects
    root = small.cholesky(problem.derivatives(mode)[1])
    spread = jax.vmap(lambda e: small.solve_lower(root, e, transpose=True))(noise)
    return mode + spread, log_normal + small.half_log_det(root)
