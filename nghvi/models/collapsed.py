"""A Gaussian mixed model without its coefficients: they are integrated out with the effects.

Given psi = (weights, noise variance v, Omega), features h and effects alpha_k on the columns R of
them, everything else is linear and Gaussian::

    y_k = H_k beta + H_kR alpha_k + e_k,   beta ~ N(0, D),   alpha_k ~ N(0, Omega),   e ~ N(0, v I)

With C_k = (Omega^-1 + H_kR'H_kR / v)^-1 the effects leave, for the coefficients,::

    Lambda = D^-1 + sum_k (H_k'H_k / v - H_k'H_kR C_k H_kR'H_k / v^2)
    b      =        sum_k (H_k'y_k / v - H_k'H_kR C_k H_kR'y_k / v^2)
    beta | psi, y ~ N(Lambda^-1 b, Lambda^-1)
    log p(y | psi) = log p(y | psi, beta = 0) + (b' Lambda^-1 b - log|Lambda| - log|D|) / 2

A distribution q(psi) with beta drawn from this conditional is a distribution of theta whose ELBO is
that of psi. The last layer of a network thus pays no price for a Gaussian of independent
coordinates, and the weights are learnt for the best coefficients, not for the present ones.

Groups with fewer rows than effects say the same row by row (:mod:`nghvi.models.by_rows`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi._core.draws import flat_normal
from nghvi._core.model import MarginalModel, unraveller
from nghvi._linalg import small
from nghvi._programs import program
from nghvi._typing import Key, Latents, Scalar
from nghvi.data import Rows
from nghvi.data.grouped import select
from nghvi.models.by_rows import Whitened, whitened
from nghvi.models.mixed import GroupedData, MixedModel
from nghvi.models.parameters import MixedParams


class Coefficients(NamedTuple):
    """The distribution beta | psi, y ~ N(mean, U^-T U^-1), where Lambda = U U'."""

    mean: Float[Array, " q"]
    root: Float[Array, "q q"]

    def draw(self, key: Key) -> Float[Array, " q"]:
        """Return a draw of the coefficients."""
        noise = flat_normal(key, self.mean.shape)
        return self.mean + solve_triangular(self.root, noise, lower=True, trans=1)


class Normal(NamedTuple):
    """The exponent -u'Qu / 2 + b'u of all coefficients u = (beta, alpha_1, ..., alpha_K).

    The precision Q has the blocks ``coef``, ``coupling`` (of each alpha_k with beta) and
    ``effects``; b has the parts ``coef_right`` and ``effects_right``.
    """

    coef: Float[Array, "q q"]
    coupling: Float[Array, "k r q"]
    effects: Float[Array, "k r r"]
    coef_right: Float[Array, " q"]
    effects_right: Float[Array, "k r"]

    @staticmethod
    def of_prior(sd: Float[np.ndarray, " q"], num_effects: int) -> "Normal":
        """Return the exponent of coefficients with these prior sds, before any group is seen."""
        q, r = sd.size, num_effects
        empty = jnp.zeros((0, r, q)), jnp.zeros((0, r, r))
        return Normal(jnp.diag(sd**-2.0), *empty, jnp.zeros(q), jnp.zeros((0, r)))


class Eliminated(NamedTuple):
    """What is left of a :class:`Normal` once the effects are integrated out."""

    half: Float[Array, "k r r"]
    """Inverses of Cholesky factors of the effects' precisions."""
    through: Float[Array, "k r q"]
    """These, times the coupling."""
    forward: Float[Array, "k r"]
    """These, times the effects' part of b."""
    root: Float[Array, "q q"]
    """Cholesky factor of Lambda."""
    coef_forward: Float[Array, " q"]

    @property
    def log_integral(self) -> Scalar:
        """The logarithm of the integral of the exponential, without powers of 2 pi."""
        squares = jnp.sum(self.forward**2) + jnp.sum(self.coef_forward**2)
        log_half = jnp.sum(jnp.log(jnp.diagonal(self.half, axis1=1, axis2=2)))
        return 0.5 * squares + log_half - jnp.sum(jnp.log(jnp.diagonal(self.root)))

    @property
    def coefficients(self) -> Coefficients:
        """The distribution of the coefficients."""
        mean = solve_triangular(self.root, self.coef_forward, lower=True, trans=1)
        return Coefficients(mean, self.root)


def eliminate(normal: Normal) -> Eliminated:
    """Integrate the effects out."""
    half = small.lapack_inverse_lower(small.lapack_cholesky(normal.effects))
    through = half @ normal.coupling
    forward = jnp.einsum("kij,kj->ki", half, normal.effects_right)
    flat = through.reshape(-1, through.shape[-1])
    root = jax.lax.linalg.cholesky(normal.coef - flat.T @ flat, symmetrize_input=False)
    right = normal.coef_right - flat.T @ forward.reshape(-1)
    return Eliminated(half, through, forward, root, solve_triangular(root, right, lower=True))


@jax.custom_jvp
def log_integral(normal: Normal) -> Scalar:
    """Return the logarithm of the Gaussian integral, without powers of 2 pi."""
    return eliminate(normal).log_integral


@log_integral.defjvp
def _log_integral_jvp(primals: tuple[Normal], tangents: tuple[Normal]) -> tuple[Scalar, Scalar]:
    # d = E[u]'db - E[u u'] : dQ / 2. Going back through the factorisations would cost far more.
    found, change = eliminate(primals[0]), tangents[0]
    beta, root = found.coefficients
    spread = small.lapack_inverse(root[None])[0]
    transposed = jnp.swapaxes(found.half, 1, 2)
    solved = transposed @ found.through
    alpha = jnp.einsum("kij,kj->ki", transposed, found.forward) - solved @ beta
    shared = solved @ spread
    second = transposed @ found.half + shared @ jnp.swapaxes(solved, 1, 2)
    second += alpha[:, :, None] * alpha[:, None, :]
    mixed = alpha[:, :, None] * beta - shared
    slope = (
        beta @ change.coef_right
        + jnp.sum(alpha * change.effects_right)
        - 0.5 * jnp.sum((spread + jnp.outer(beta, beta)) * change.coef)
        - 0.5 * jnp.sum(second * change.effects)
        - jnp.sum(mixed * change.coupling)
    )
    return found.log_integral, slope


class Collapsed(MarginalModel):
    """The distribution of psi in a mixed model with a Gaussian response.

    Its parameters are those of ``model`` without coefficients.
    """

    model: MixedModel

    def init_params(self, key: Key, data: GroupedData) -> MixedParams:
        return self.model.init_params(key, data)._replace(coef=jnp.zeros(0))

    def _normal(self, params: MixedParams, data: GroupedData) -> tuple[Normal, Scalar]:
        """Return the exponent of all coefficients, and log p(y, psi) less its integral.

        Effects of groups with few rows are integrated out of it already.
        """
        model, random = self.model, self.model.random
        noise_var, lower = jnp.exp(params.dispersion[0]), model.precision_factor(params)
        prior_sd = np.broadcast_to(
            np.asarray(model.priors.coef_sd, float), model.trunk.num_features
        )

        def features(x: Float[Array, "n d"]) -> Float[Array, "n q"]:
            return model.features(params, x)

        normal = Normal.of_prior(prior_sd, len(random))
        constant = -0.5 * data.num_rows * jnp.log(2 * jnp.pi * noise_var)
        constant += self.log_prior(params) - np.sum(np.log(prior_sd))
        if type(data) is Rows and random:
            (few, seen), (many, others) = data.cut(data.features(features), len(random))
            if few.blocks:
                found = _by_rows(few, seen, random, noise_var, lower)
                square = found.square[:-1, :-1]
                normal = normal._replace(
                    coef=normal.coef + square, coef_right=found.square[-1, :-1]
                )
                constant -= found.half_log_det + 0.5 * found.square[-1, -1]
            if not many.blocks:
                return normal, constant
            sums, number = many.feature_sums(lambda x: others, random), many.num_present
        else:
            sums, number = data.feature_sums(features, random), data.num_present
        chosen, coupling = np.array(random, int), jnp.moveaxis(sums.group_gram / noise_var, -1, 0)
        constant -= 0.5 * sums.square / noise_var
        constant += number * jnp.sum(jnp.log(jnp.diagonal(lower)))
        normal = Normal(
            normal.coef + sums.gram / noise_var,
            coupling,
            coupling[:, :, chosen] + lower @ lower.T,
            normal.coef_right + sums.cross / noise_var,
            sums.group_cross.T / noise_var,
        )
        return normal, constant

    def completed(self, key: Key, params: MixedParams, data: GroupedData) -> MixedParams:
        """Return the parameters of the whole model, with coefficients drawn given the others."""
        coefficients = eliminate(self._normal(params, data)[0]).coefficients
        return params._replace(coef=coefficients.draw(key))

    def log_prior(self, params: MixedParams) -> Scalar:
        without = params._replace(coef=jnp.zeros(self.model.trunk.num_features))
        return self.model.log_prior(without) - self.model.log_prior_of_coef(without)

    def log_marginal(self, params: MixedParams, data: GroupedData) -> Scalar:
        normal, constant = self._normal(params, data)
        return log_integral(normal) + constant

    def log_joint(self, params: MixedParams, latents: Latents, data: GroupedData) -> Scalar:
        return self.log_marginal(params, data)

    def init_latents(self, key: Key, params: MixedParams, data: GroupedData) -> Latents:
        return ()

    def sample_latents(
        self, key: Key, params: MixedParams, latents: Latents, data: GroupedData
    ) -> Latents:
        return ()

    @property
    def many_modes(self) -> bool:
        return self.model.many_modes

    @property
    def moves_naturally(self) -> bool:
        return self.model.moves_naturally

    def given_up(self, params: MixedParams) -> bool:
        return self.model.given_up(params)

    def num_observations(self, data: GroupedData) -> float:
        return self.model.num_observations(data)

    def evaluation_size(self, data: GroupedData) -> int:
        return self.model.evaluation_size(data)

    def in_few_digits(self) -> "Collapsed":
        return Collapsed(self.model.in_few_digits())


def _by_rows(
    data: Rows,
    features: Float[Array, "n q"],
    random: tuple[int, ...],
    noise_var: Scalar,
    lower: Float[Array, "r r"],
) -> Whitened:
    """Return what groups with few rows say about the coefficients."""
    # Not the root of a quotient, whose slope would not be finite where padding has no weight.
    unit = 1 / jnp.sqrt(noise_var)
    unit *= jnp.ones((1, 1)) if data.weight is None else jnp.sqrt(data.weight)[:, None]
    rows = jnp.concatenate([features, data.y[:, None]], axis=1) * unit
    design = select(features, random) @ small.inverse_lower(lower).T * unit
    each = [whitened(*block) for block in zip(data.split(rows), data.split(design), strict=True)]
    return Whitened(*(sum(parts) for parts in zip(*each, strict=True)))


@program
def completed(
    model: Collapsed, data: GroupedData, keys: Array, theta: Float[Array, "s m"]
) -> Float[Array, "s n"]:
    """Return draws of all parameters of the whole model, given draws of psi."""
    unravel = unraveller(model, data)

    def one(draw: tuple[Array, Array]) -> Array:
        return ravel_pytree(model.completed(draw[0], unravel(draw[1]), data))[0]

    return jax.lax.map(one, (keys, theta))
