"""Conditional draws of variances and of the effects' precision, one rule for each prior.

With S = sum_k alpha_k alpha_k' over K groups, W = Omega^-1, and v one variance with m
squares that sum to s (the noise: residuals; an independent effect j: m = K, s = S_jj)::

    InverseGamma(a, b)      v | s      ~ IG(a + m/2, b + s/2)
    HalfT(d, A)             c | v      ~ IG((d + 1)/2, d/v + A^-2)
                            v | c, s   ~ IG((d + m)/2, d/c + s/2)
    WishartPrecision(t, d)  W | S      ~ Wishart(d + K, (I/t + S)^-1)
    HuangWand(d, A)         c_j | W    ~ IG((d + r)/2, d W_jj + A^-2)
                            W | c, S   ~ Wishart(d + r - 1 + K, (2 d diag(1/c) + S)^-1)

IG(a, b) has density prop. to v^-(a+1) exp(-b/v). The auxiliary c is drawn afresh from the
present v or W each time, so it is no part of a sampler's state.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi._typing import Key, Scalar
from nghvi.priors import HalfT, HuangWand, InverseGamma, WishartPrecision


def inverse_gamma(
    key: Key, shape: float | Scalar, scale: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """One draw of IG(shape, scale) for each scale."""
    return scale / jax.random.gamma(key, shape, scale.shape)


def draw_variances(
    key: Key,
    prior: InverseGamma | HalfT,
    current: Float[Array, "*batch"],
    squares: Float[Array, "*batch"],
    count: int,
) -> Float[Array, "*batch"]:
    """Variances given the sums of ``count`` squares of centred normals with those variances."""
    if isinstance(prior, InverseGamma):
        return inverse_gamma(key, prior.shape + 0.5 * count, prior.scale + 0.5 * squares)
    key_auxiliary, key_variance = jax.random.split(key)
    auxiliary = inverse_gamma(
        key_auxiliary, 0.5 * (prior.df + 1), prior.df / current + prior.scale**-2
    )
    return inverse_gamma(
        key_variance, 0.5 * (prior.df + count), prior.df / auxiliary + 0.5 * squares
    )


def wishart_root(key: Key, df: float, rate: Float[Array, "r r"]) -> Float[Array, "r r"]:
    """Lower triangular L with L L' ~ Wishart(df, rate^-1), by Bartlett's decomposition."""
    r = rate.shape[0]
    key_diagonal, key_below = jax.random.split(key)
    # chi^2 with df, df - 1, ... degrees of freedom.
    squares = 2 * jax.random.gamma(key_diagonal, 0.5 * (df - jnp.arange(r)))
    below = jnp.tril(jax.random.normal(key_below, (r, r)), -1)
    standard = below + jnp.diag(jnp.sqrt(squares))
    # rate = U U' with U upper triangular (a Cholesky factor with rows and columns reversed):
    # then rate^-1 = U^-T U^-1 has a lower triangular root, and so has the draw. Inverting the
    # rate, or squaring the draw to factorise it again, would lose half the digits.
    upper = jnp.linalg.cholesky(rate[::-1, ::-1])[::-1, ::-1]
    return solve_triangular(upper, standard, lower=False, trans=1)


def draw_precision_factor(
    key: Key,
    prior: InverseGamma | HalfT | WishartPrecision | HuangWand,
    current: Float[Array, "r r"],
    effects: Float[Array, "k r"],
) -> Float[Array, "r r"]:
    """Lower triangular L with Omega^-1 = L L', given the effects and the present L."""
    num_groups, r = effects.shape
    if isinstance(prior, InverseGamma | HalfT):
        present = jnp.diagonal(current) ** -2
        squares = jnp.sum(effects**2, axis=0)
        return jnp.diag(draw_variances(key, prior, present, squares, num_groups) ** -0.5)
    scatter = effects.T @ effects
    if isinstance(prior, WishartPrecision):
        df = r + 1 if prior.df is None else prior.df
        return wishart_root(key, df + num_groups, jnp.eye(r) / prior.scale + scatter)
    key_auxiliary, key_wishart = jax.random.split(key)
    diagonal = jnp.sum(current**2, axis=1)
    auxiliary = inverse_gamma(
        key_auxiliary, 0.5 * (prior.df + r), prior.df * diagonal + prior.scale**-2
    )
    rate = jnp.diag(2 * prior.df / auxiliary) + scatter
    return wishart_root(key_wishart, prior.df + r - 1 + num_groups, rate)
