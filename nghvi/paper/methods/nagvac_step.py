"""One iteration of NAGVAC, and its parts.

**The iteration.** With S draws ``theta = mu + b e1 + c e2`` and ``h = grad log p(y, theta)`` the
gradient of the ELBO is::

    mean of (h, e1 h, e2 h) + (0, P b, c diag P),   P = (b b' + C^2)^-1

and ``n = F^-1 gradient`` with the exact Fisher information or its diagonal blocks. The first
iteration only takes n for the average; iteration t > 1 moves::

    average <- 0.6 average + 0.4 min(1, 50 / |n|) n
    lambda  <- lambda + 0.1 min(1, 100 / t) average

A step that did not lower the validation loss stands, but its part of the average is taken back.

**The gradient of log p(y | theta)**, by Fisher's identity and importance sampling. With draws
``alpha_kj ~ r_k`` and weights ``w_kj`` prop. to ``p(y_k, alpha_kj | theta) / r_k`` that sum to one
over j::

    grad log p(y | theta) ~ sum_k sum_j w_kj grad log p(y_k, alpha_kj | theta)

The bias is O(1 / N). The proposal r_k is Laplace's, the exact conditional for a Gaussian
response, or the effects' prior, as published for binary responses. Draws are points of a Sobol
sequence under a random shift modulo 1, the coordinates of a draw in its row.

**The program's mistakes**, repeated by ``mistakes``: it takes the coordinates of a draw from
consecutive points of one dimension, which makes them dependent, and ``program_solve`` is not the
inverse of the Fisher information.

**The one-factor Gaussian** q = N(mu, b b' + C^2), C = diag(c). With ``k = sum (b_i / c_i)^2`` and
``a = 1 / (1 + k)`` the diagonal blocks of the Fisher information have closed inverses::

    mu   (b b' + C^2) g
    b    (1 + k) / (2 k) (b b' + C^2) g               (the published block, 2 (1 - a) P)
    c    F = 2 (diag(v) + w w'),   v = c^-2 - 2 a b^2 c^-4,   w = a b^2 c^-3

v is negative where one coordinate has more than half of the leverage ``u_i = a (b_i / c_i)^2``,
whose sum is below one. That coordinate alone is eliminated first, so nothing is divided by v_i.

**The prior.** Weights and coefficients other than biases are N(0, 1/gamma), one gamma for each of
the two; biases, intercept and log noise variance are flat; variances of effects are
Exponential(0.1)::

    log p(theta) = -sum_g gamma_g |theta_g|^2 / 2 + sum_j (t_j - 0.1 exp(t_j)),   t = log variance

Every few iterations gamma_g becomes ``d_g / E_q |theta_g|^2``, which maximises E_q[log p].
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import logsumexp, ndtri
from jaxtyping import Array, Float, Int
from scipy.stats.qmc import Sobol

from nghvi._core.hybrid import Info
from nghvi._core.model import parameter_dimension, unraveller
from nghvi._linalg import small
from nghvi._linalg.lowrank import factor_precision
from nghvi._linalg.tree import SolveOptions, exact_solve, materialise, tree_norm, tree_where
from nghvi._typing import Key, Scalar
from nghvi.data import Rows
from nghvi.families.factor import FactorGaussian
from nghvi.latents import conjugate
from nghvi.latents.rows import RowProblem, conditional_mode
from nghvi.models.mixed import MixedModel
from nghvi.networks import Perceptron

CLOSE_ENOUGH = 0.1
"""The last Newton step towards the mode of a proposal, in prior sds: weights do the rest."""


@functools.lru_cache(maxsize=32)
def _sobol(number: int, dim: int) -> np.ndarray:
    points = Sobol(dim, rng=np.random.default_rng(0)).random_base2((number - 1).bit_length())
    return points[:number]


def sobol_normals(key: Key, number: int, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """``number`` normals in ``shape[0]`` dimensions, with a new shift along the other axes."""
    points = _sobol(number, shape[0]).reshape(number, shape[0], *(1,) * (len(shape) - 1))
    uniform = jnp.mod(points + jax.random.uniform(key, shape), 1.0)
    return materialise(ndtri(jnp.clip(uniform, 1e-12, 1 - 1e-12)))


def dependent_normals(key: Key, number: int, shape: tuple[int, int]) -> Float[Array, "j r k"]:
    """As in the published program: the coordinates of a draw are points of one dimension.

    Successive points of a sequence lie in different strata. Their binary digits are scrambled by a
    triangular matrix and a shift, new ones for every draw and group.
    """
    r, groups = shape
    digits = (r - 1).bit_length()
    values = 2 ** np.arange(digits)[::-1]
    visited = (2**digits * Sobol(1, scramble=False).random(2**digits)[:r]).astype(int)
    of_point = (visited.T & values[:, None]) > 0
    key_matrix, key_shift, key_within = jax.random.split(key, 3)
    random = jax.random.bernoulli(key_matrix, 0.5, (digits, digits, number, groups))
    matrix = random * np.tri(digits, k=-1)[..., None, None] + np.eye(digits)[..., None, None]
    shift = jax.random.bernoulli(key_shift, 0.5, (digits, number, 1, groups))
    scrambled = (jnp.einsum("edjk,di->ejik", matrix, of_point.astype(float)) + shift) % 2
    stratum = jnp.einsum("e,ejik->jik", values.astype(float), scrambled)
    uniform = (stratum + jax.random.uniform(key_within, (number, r, groups))) / 2**digits
    return materialise(ndtri(jnp.clip(uniform, 1e-12, 1 - 1e-12)))


def likelihood_score(
    key: Key,
    theta: Float[Array, " m"],
    model: MixedModel,
    rows: Rows,
    number: int,
    from_prior: bool,
    mistakes: bool = False,
) -> tuple[Scalar, Float[Array, " m"]]:
    """Estimates of log p(y | theta) and its gradient from ``number`` draws of each effect.

    The gradient of the mean weight with the draws held fixed is the one of Fisher's identity.
    """
    unravel = unraveller(model, rows)
    problem, lower = model.row_problem(unravel(theta), rows), model.precision_factor(unravel(theta))
    drawn = dependent_normals if mistakes else sobol_normals
    noise = drawn(key, number, (model.num_effects, rows.num_groups))
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


SOLVE = SolveOptions(tolerance=1e-10, max_iterations=300)
DAMPING = 1.0
"""The whole matrix is singular where b has one entry: b_i and c_i then do the same. Undamped (and
with 0.1) runs on small linear and logit models diverge, whichever way the system is solved."""

Metric = Callable[[FactorGaussian, FactorGaussian], FactorGaussian]


def entropy_gradient(q: FactorGaussian) -> FactorGaussian:
    """Gradient of -E[log q] in (mu, b, c): (0, P b, c diag P)."""
    precision = factor_precision(q.loadings, q.scale)
    loadings, scale = precision.projected[:, 0], q.scale * precision.diagonal()
    return _tangent(q, jnp.zeros_like(q.mean), loadings, scale)


def block_diagonal(q: FactorGaussian, gradient: FactorGaussian) -> FactorGaussian:
    """Solve with the diagonal blocks of the Fisher information, O(m)."""
    b, c = q.packed_loadings, q.scale
    k = jnp.sum((b / c) ** 2)

    def covariance_times(g: Array) -> Array:
        return (b @ g) * b + c**2 * g

    return _tangent(
        q,
        covariance_times(gradient.mean),
        (1 + k) / (2 * k) * covariance_times(gradient.packed_loadings),
        _solve_scale_block(b, c, gradient.scale),
    )


def _solve_scale_block(
    b: Float[Array, " m"], c: Float[Array, " m"], right: Float[Array, " m"]
) -> Float[Array, " m"]:
    """``(2 (diag(v) + w w'))^-1 right``, in units of c, where v = 1 - 2 u and w = u."""
    square = (b / c) ** 2
    u = square / (1 + jnp.sum(square))
    g = 0.5 * c * right
    first = jnp.argmax(u)
    others = jnp.arange(u.size) != first
    v = jnp.where(others, 1 - 2 * u, 1.0)
    p = jnp.sum(jnp.where(others, u * g / v, 0.0))
    q = 1 + jnp.sum(jnp.where(others, u**2 / v, 0.0))
    x = (g[first] - u[first] * p / q) / (1 - 2 * u[first] + u[first] ** 2 / q)
    product = (p + u[first] * x) / q  # w'x
    return c * jnp.where(others, (g - u * product) / v, x)


def exact(q: FactorGaussian, gradient: FactorGaussian, damping: float = DAMPING) -> FactorGaussian:
    """Solve with the whole Fisher information, ``damping`` times its diagonal added."""
    return q.natural_gradient(gradient, damping, "exact", SOLVE)[0]


def program_solve(q: FactorGaussian, gradient: FactorGaussian) -> FactorGaussian:
    """What the published program takes for the solution with the whole Fisher information.

    The inverse of the block of b has a wrong coefficient, and the block between b and c, with b in
    its rows, is used as if c were.
    """
    b, c = q.packed_loadings, q.scale
    covariance = jnp.outer(b, b) + jnp.diag(c**2)
    precision = jnp.linalg.inv(covariance)
    pb, a = precision @ b, 1 / (1 + jnp.sum((b / c) ** 2))
    cross, of_scale = 2 * precision * (c * pb), 2 * jnp.outer(c, c) * precision**2
    inverse = (jnp.diag(c**2) + (1 - 1 / (b @ b + 1 - a)) * jnp.outer(b, b)) / (1 - a)
    left = gradient.scale - cross @ inverse @ gradient.packed_loadings
    scale = jnp.linalg.solve(of_scale - cross @ inverse @ cross.T, left)
    loadings = inverse @ (gradient.packed_loadings - cross.T @ scale)
    return _tangent(q, covariance @ gradient.mean, loadings, scale)


def _tangent(q: FactorGaussian, mean: Array, loadings: Array, scale: Array) -> FactorGaussian:
    return dataclasses.replace(q, mean=mean, packed_loadings=loadings, scale=scale)


METRICS: dict[str, Metric] = {"blockdiag": block_diagonal, "exact": exact}

FIRST_PRECISION = 50.0
RATE = 0.1
SMALL = 0.01
"""Spread of everything at the start but the layers' weights."""


class Ridge(eqx.Module):
    """Which coordinates of theta are shrunk, and which are log variances of effects."""

    shrunk: Float[Array, "2 m"]
    """1 for the weights (first row) and the coefficients (second row) that are not biases."""
    variances: Float[Array, " m"]
    """1 for the log variances of the effects."""

    @staticmethod
    def of(model: MixedModel, rows: Rows) -> "Ridge":
        """The prior for this model's parameters."""
        nothing = unraveller(model, rows)(jnp.zeros(parameter_dimension(model, rows)))
        biased = isinstance(model.trunk, Perceptron)

        def slopes(w: Array) -> Array:
            if w.ndim < 2:  # a bias of a network of the user's
                return w
            return jnp.ones_like(w).at[:, 0].set(0.0) if biased else jnp.ones_like(w)

        intercept = not model.trunk.linear or np.ptp(rows.x[:, 0]) == 0
        coef = jnp.ones_like(nothing.coef).at[0].add(-float(intercept))
        weights = nothing._replace(weights=jax.tree.map(slopes, nothing.weights))
        variances = nothing._replace(effects=jnp.ones_like(nothing.effects))
        flat = [ravel_pytree(p)[0] for p in (weights, nothing._replace(coef=coef), variances)]
        return Ridge(jnp.stack(flat[:2]), flat[2])

    def log_prior(self, theta: Float[Array, " m"], precisions: Float[Array, " 2"]) -> Scalar:
        """log p(theta) without constants, Jacobians of the variances included."""
        square = 0.5 * (precisions @ self.shrunk) @ theta**2
        # exp only where it counts: a weight is not a log variance and may be large.
        exponential = jnp.sum(self.variances * (theta - RATE * jnp.exp(theta * self.variances)))
        return exponential - square

    def adapt(self, q: FactorGaussian) -> Float[Array, " 2"]:
        """gamma_g = d_g / E_q |theta_g|^2."""
        square = self.shrunk @ (q.mean**2 + q.standard_deviation() ** 2)
        return jnp.sum(self.shrunk, axis=1) / jnp.where(square > 0, square, 1.0)


def start(key: Key, model: MixedModel, rows: Rows) -> FactorGaussian:
    """Layers uniform up to sqrt(6) / (n_in + n_out), biases too; all else near zero."""
    keys = jax.random.split(key, 4)
    nothing = unraveller(model, rows)(jnp.zeros(parameter_dimension(model, rows)))
    leaves, structure = jax.tree.flatten(nothing.weights)

    def layer(key: Key, w: Array, neurons: int) -> Array:
        bound = np.sqrt(6) / max(neurons, 1)
        return jax.random.uniform(key, w.shape, minval=-bound, maxval=bound)

    layers = [
        layer(jax.random.fold_in(keys[0], i), w, sum(w.shape) - 1) for i, w in enumerate(leaves)
    ]
    small = SMALL * jax.random.normal(keys[1], (ravel_pytree(nothing)[0].size,))
    params = unraveller(model, rows)(small)._replace(
        weights=jax.tree.unflatten(structure, layers),
        coef=layer(keys[2], nothing.coef, nothing.coef.size),
    )
    mean = ravel_pytree(params)[0]
    loadings = SMALL * jax.random.normal(keys[3], mean.shape)
    return FactorGaussian(mean, loadings, jnp.full_like(mean, SMALL), 1, signed_scale=True)


DRAWS, EFFECT_DRAWS = 10, 20
LONGEST, MOMENTUM = 50.0, 0.6
HOLD = 100
"""Iteration from which the step length falls like 1 / t."""
ADAPT_EVERY = 4


class Iterate(NamedTuple):
    """What the next iteration needs."""

    q: FactorGaussian
    average: FactorGaussian
    """Running average of natural gradients."""
    precisions: Float[Array, " 2"]
    loss: Scalar
    best: FactorGaussian
    best_loss: Scalar
    stale: Int[Array, ""]
    """Iterations since the best."""
    step: Int[Array, ""]
    length: Scalar
    """Step length at first; 0 leaves q where it is."""


class Nagvac(eqx.Module):
    """One iteration; ``watched`` are the rows on which the loss is read."""

    ridge: Ridge
    from_prior: bool = eqx.field(static=True)
    fisher: str = eqx.field(static=True)
    validated: bool = eqx.field(static=True)
    mistakes: bool = eqx.field(static=True, default=False)

    def gradient(
        self, key: Key, q: FactorGaussian, precisions: Array, model: MixedModel, rows: Rows
    ) -> tuple[FactorGaussian, tuple[Array, Array, Array]]:
        """Gradient of the ELBO; mean log target and log q, and the number of bad draws."""
        key_theta, key_effects = jax.random.split(key)
        noise = sobol_normals(key_theta, DRAWS, (q.noise_dim,))

        def score(draw: tuple[Key, Array]) -> tuple[Array, Array]:
            value, slope = likelihood_score(
                *draw, model, rows, EFFECT_DRAWS, self.from_prior, self.mistakes
            )
            prior, pull = jax.value_and_grad(self.ridge.log_prior)(draw[1], precisions)
            return value + prior, slope + pull

        theta = jax.vmap(q.transport)(noise)
        target, slope = jax.lax.map(score, (jax.random.split(key_effects, DRAWS), theta))
        good = jnp.isfinite(target) & jnp.all(jnp.isfinite(slope), axis=1)
        pulled = q.pull_back(noise, jnp.where(good[:, None], slope, 0.0))
        gradient = jax.tree.map(jnp.add, pulled, entropy_gradient(q))
        mean = jnp.sum(jnp.where(good, target, 0.0)) / jnp.maximum(jnp.sum(good), 1)
        return gradient, (mean, jnp.mean(jax.vmap(q.log_density)(theta)), jnp.sum(~good))

    def step(
        self, key: Key, now: Iterate, model: MixedModel, rows: Rows, watched: Rows
    ) -> tuple[Iterate, Info]:
        """One iteration, numbered from 1."""
        step = now.step + 1
        gradient, draws = self.gradient(key, now.q, now.precisions, model, rows)
        solve = program_solve if self.mistakes else METRICS[self.fisher]
        direction = solve(now.q, gradient)
        norm = tree_norm(direction)
        first = step == 1
        share = jnp.where(first, 1.0, (1 - MOMENTUM) * jnp.minimum(1.0, LONGEST / norm))
        average = jax.tree.map(lambda a, b: MOMENTUM * a + share * b, now.average, direction)
        length = jnp.where(first, 0.0, now.length * jnp.minimum(1.0, HOLD / step))
        moved = now.q.retract(jax.tree.map(lambda x: length * x, average))
        good = jnp.isfinite(tree_norm((moved, average)))
        q = tree_where(good, moved, now.q)
        loss = predictive_loss(q.mean, model, rows, watched)
        adapted = jnp.where(step % ADAPT_EVERY == 0, self.ridge.adapt(q), now.precisions)
        better = loss < now.best_loss if self.validated else jnp.asarray(True)
        rose = (loss >= now.loss) & self.validated
        following = Iterate(
            q,
            tree_where(good & ~rose, average, now.average),
            adapted,
            loss,
            tree_where(better, q, now.best),
            jnp.where(better, loss, now.best_loss),
            jnp.where(better, 0, now.stale + 1),
            step,
            now.length,
        )
        error = now.q.remaining_error(gradient)
        return following, Info(*draws, ~good, tree_norm(gradient), norm, error, exact_solve())


def predictive_loss(
    theta: Float[Array, " m"], model: MixedModel, rows: Rows, watched: Rows
) -> Scalar:
    """Mean -log p(y) of the watched rows, effects at their mode given ``rows``."""
    params = unraveller(model, rows)(theta)
    mode = conditional_mode(model.row_problem(params, rows)).effects
    effects = conjugate.colour(mode, model.precision_factor(params))
    known = rows.in_original_order(effects)[jnp.argsort(watched.original_order)]
    h = watched.features(lambda x: model.features(params, x))
    eta = h @ params.coef + jnp.sum(model.design(h) * watched.expand(known), axis=1)
    log_prob = model.response.log_prob(watched.y, eta, params.dispersion)
    return -watched.total(log_prob) / watched.num_rows
