"""Conditional draws of variances and of the effects' precision, one rule for each prior.

With S = sum_k alpha_k alpha_k' over K groups, W = Omega^-1, and v one variance with m
squares that sum to s (the noise: residuals; an independent effect j: m = K, s = S_jj)::

    InverseGamma(a, b)      v | s      ~ IG(a + m/2, b + s/2)
    HalfT(d, A, floor f)    c | v      ~ IG((d + 1)/2, d/v + A^-2)
                            v | c, s   ~ IG((d + m)/2, d/c + s/2 + f^2)
    WishartPrecision(t, d)  W | S      ~ Wishart(d + K, (I/t + S)^-1)
    HuangWand(d, A)         c_j | W    ~ IG((d + r)/2, d W_jj + A^-2)
                            W | c, S   ~ Wishart(d + r - 1 + K, (2 d diag(1/c) + S)^-1)

IG(a, b) has density prop. to v^-(a+1) exp(-b/v). The auxiliary c is drawn afresh from the
present v or W each time, so it is not part of a sampler's state.

All randomness but a few normals is gamma variates of unit scale whose shapes are known
beforehand: b / gamma_a is IG(a, b), and Bartlett's decomposition of a Wishart matrix has roots
of chi^2 = 2 gamma variates on its diagonal. The caller draws them all in one call, because
every call of the rejection sampler adds about as much to compile as the rest of a sweep.
"""

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from nghvi.priors import HalfT, HuangWand, InverseGamma, WishartPrecision


def variance_shapes(
    prior: InverseGamma | HalfT, size: int, count: float | Float[Array, ""]
) -> Float[Array, "s size"]:
    """Shapes of the gamma variates for ``size`` variances with ``count`` squares each."""
    if isinstance(prior, InverseGamma):
        return jnp.full((1, size), prior.shape + 0.5 * count)
    halves = 0.5 * (prior.df + jnp.array([1.0, count]))
    return jnp.broadcast_to(halves[:, None], (2, size))


def draw_variances(
    gammas: Float[Array, "s size"],
    prior: InverseGamma | HalfT,
    current: Float[Array, " size"],
    squares: Float[Array, " size"],
) -> Float[Array, " size"]:
    """Variances given the sums of squares of centred normals with those variances."""
    if isinstance(prior, InverseGamma):
        return (prior.scale + 0.5 * squares) / gammas[0]
    auxiliary = (prior.df / current + jnp.asarray(prior.scale) ** -2.0) / gammas[0]
    return (prior.df / auxiliary + 0.5 * squares + prior.floor**2) / gammas[1]


def precision_shapes(
    prior: InverseGamma | HalfT | WishartPrecision | HuangWand, r: int, num_groups: int
) -> Float[Array, "s r"]:
    """Shapes of the gamma variates for the precision of r effects."""
    if isinstance(prior, InverseGamma | HalfT):
        return variance_shapes(prior, r, num_groups)
    if isinstance(prior, WishartPrecision):
        df = r + 1 if prior.df is None else prior.df
        return _bartlett_shapes(df + num_groups, r)[None]
    auxiliary = jnp.full(r, 0.5 * (prior.df + r))
    return jnp.stack([auxiliary, _bartlett_shapes(prior.df + r - 1 + num_groups, r)])


def draw_precision_factor(
    gammas: Float[Array, "s r"],
    normals: Float[Array, "r r"],
    prior: InverseGamma | HalfT | WishartPrecision | HuangWand,
    current: Float[Array, "r r"],
    effects: Float[Array, "k r"],
) -> Float[Array, "r r"]:
    """Lower triangular L with Omega^-1 = L L', given the effects and the present L."""
    if isinstance(prior, InverseGamma | HalfT):
        present = jnp.diagonal(current) ** -2
        variances = draw_variances(gammas, prior, present, jnp.sum(effects**2, axis=0))
        return jnp.diag(variances**-0.5)
    scatter = effects.T @ effects
    if isinstance(prior, WishartPrecision):
        return _wishart_root(gammas[0], normals, jnp.eye(len(scatter)) / prior.scale + scatter)
    diagonal = jnp.sum(current**2, axis=1)
    auxiliary = (prior.df * diagonal + jnp.asarray(prior.scale) ** -2.0) / gammas[0]
    return _wishart_root(gammas[1], normals, jnp.diag(2 * prior.df / auxiliary) + scatter)


def _bartlett_shapes(df: float, r: int) -> Float[Array, " r"]:
    """Half the degrees of freedom df, df - 1, ... on the diagonal."""
    return 0.5 * (df - jnp.arange(r))


def _wishart_root(
    gammas: Float[Array, " r"], normals: Float[Array, "r r"], rate: Float[Array, "r r"]
) -> Float[Array, "r r"]:
    """Lower triangular L with L L' ~ Wishart(df, rate^-1), df set by the gammas' shapes."""
    standard = jnp.tril(normals, -1) + jnp.diag(jnp.sqrt(2 * gammas))
    # rate = U U' with U upper triangular (a Cholesky factor with rows and columns reversed):
    # then rate^-1 = U^-T U^-1 has a lower triangular root, and so has the draw. Inverting the
    # rate, or squaring the draw to factorise it again, would lose half the digits.
    upper = jnp.linalg.cholesky(rate[::-1, ::-1])[::-1, ::-1]
    return solve_triangular(upper, standard, lower=False, trans=1)
