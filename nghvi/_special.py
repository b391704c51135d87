"""Tails of the normal distribution, finite and fast, and the distribution function of t.

Everything rests on ``erfcx(x) = exp(x^2) erfc(x)`` for ``x >= 0``: with
``e = erfcx(|x| / sqrt 2)`` and ``g = exp(-x^2 / 2)``::

    log Phi(x)  = log(e / 2) - x^2 / 2          (x <= 0),   log(1 - e g / 2)          (x > 0)
    phi / Phi   = sqrt(2 / pi) / e              (x <= 0),   g / sqrt(2 pi) / Phi(x)   (x > 0)

One evaluation of ``e`` serves the value and the derivative. Truncated normals solve
``log Phi(v) = log u + log Phi(eta)`` by Newton steps in logarithms, so they stay finite at
``|eta| = 40`` and far beyond, where the inverse of the distribution function gives NaN.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float
from scipy import special

from nghvi._typing import Key

_PIVOT = 2.0


def _erfcx_coefficients(degree: int = 24) -> np.ndarray:
    """Power coefficients in ``t = (x - pivot) / (x + pivot)`` of ``(1 + 2 x) erfcx(x)``."""

    def weighted(t: np.ndarray) -> np.ndarray:
        x = _PIVOT * (1 + t) / (1 - t)
        return (1 + 2 * x) * special.erfcx(x)

    return np.polynomial.chebyshev.chebinterpolate(weighted, degree)


_CHEBYSHEV = tuple(float(c) for c in _erfcx_coefficients())


def erfcx(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """``exp(x^2) erfc(x)`` for ``x >= 0``, relative error below 1e-14."""
    t = (x - _PIVOT) / (x + _PIVOT)
    ahead, current = jnp.zeros_like(x), jnp.zeros_like(x)
    for coefficient in _CHEBYSHEV[:0:-1]:
        ahead, current = current, 2 * t * current - ahead + coefficient
    return (t * current - ahead + _CHEBYSHEV[0]) / (1 + 2 * x)


def _log_ndtr_and_mills(x: Array) -> tuple[Array, Array]:
    e = erfcx(jnp.abs(x) * np.sqrt(0.5))
    g = jnp.exp(-0.5 * x * x)
    upper = 0.5 * e * g
    negative = x <= 0
    # Phi(x) without its Gaussian factor on the left, Phi(x) itself on the right: one logarithm.
    bounded = jnp.where(negative, 0.5 * e, 1 - upper)
    log_cdf = jnp.log(bounded) - jnp.where(negative, 0.5 * x * x, 0.0)
    ratio = jnp.where(negative, 1.0, g) / (np.sqrt(2 * np.pi) * bounded)
    return log_cdf, ratio


@jax.custom_jvp
def inverse_mills(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """``phi(x) / Phi(x)``, the derivative of :func:`log_ndtr`."""
    return _log_ndtr_and_mills(x)[1]


@inverse_mills.defjvp
def _inverse_mills_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    ratio = inverse_mills(x)
    # In (-1, 0) exactly; far out on the left the product is rounding noise times x^2.
    return ratio, jnp.clip(-ratio * (x + ratio), -1.0, 0.0) * dx


@jax.custom_jvp
def log_ndtr(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Logarithm of the standard normal distribution function."""
    return _log_ndtr_and_mills(x)[0]


@log_ndtr.defjvp
def _log_ndtr_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    # The primal and the ratio share one erfcx; higher derivatives go through inverse_mills.
    return _log_ndtr_and_mills(x)[0], inverse_mills(x) * dx


def positive_normal(key: Key, eta: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Draw from N(eta, 1) truncated to the positive half line, finite for any ``eta``."""
    u = jax.random.uniform(key, eta.shape, eta.dtype, minval=1e-300, maxval=1.0)
    # eta - v is positive iff log Phi(v) < log Phi(eta); the cap keeps v off +infinity.
    target = jnp.minimum(jnp.log(u) + log_ndtr(eta), -1e-16)
    tail = -jnp.sqrt(jnp.maximum(-2 * target - np.log(2 * np.pi) - jnp.log(-2 * target), 1.0))
    v = jnp.where(target > -600.0, ndtri(jnp.exp(jnp.maximum(target, -600.0))), tail)
    for _ in range(3):
        log_cdf, ratio = _log_ndtr_and_mills(v)
        # Where Phi(v) is 1 to the last digit the ratio vanishes and v is exact already.
        v = v - jnp.where(ratio > 1e-8, (log_cdf - target) / jnp.maximum(ratio, 1e-8), 0.0)
    return jnp.maximum(eta - v, 0.0)


CELLS = 128
"""Of the table behind :func:`t_cdf`: its error stays below 1e-7."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)


def t_cdf(x: Float[Array, "*n"], degrees: Float[Array, ""]) -> Float[Array, "*n"]:
    """Distribution function of Student's t for one number of degrees of freedom >= 2.

    With x = sqrt(nu) tan(angle) its density in the angle is prop. to cos^(nu - 1): integrated
    once over a grid of angles and interpolated, values and slopes matched. The incomplete beta
    function, the alternative, takes a hundred times as long.
    """
    # Nine standard deviations of a normal are the limit for many degrees.
    last = jnp.minimum(0.5 * np.pi, 9 / jnp.sqrt(degrees))
    width = last / CELLS
    knots = width * np.arange(CELLS + 1)

    def density(angle: Array) -> Array:
        return jnp.maximum(jnp.cos(angle), 0.0) ** (degrees - 1)

    inside = density(knots[:-1, None] + 0.5 * width * (1 + _NODES)) @ (0.5 * _WEIGHTS)
    area = jnp.concatenate([jnp.zeros(1), jnp.cumsum(inside)])
    total, slope = area[-1], density(knots)
    place = jnp.minimum(jnp.arctan(jnp.abs(x) / jnp.sqrt(degrees)) / width, CELLS)
    cell = jnp.minimum(place.astype(int), CELLS - 1)
    s = place - cell
    between = area[cell] + s * (
        slope[cell]
        + s * (3 * inside[cell] - 2 * slope[cell] - slope[cell + 1])
        + s**2 * (slope[cell] + slope[cell + 1] - 2 * inside[cell])
    )
    return 0.5 * (1 + jnp.sign(x) * between / total)
