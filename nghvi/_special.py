"""Special functions, finite and fast: tails of normal and logistic, the cdf of t, log gamma.

The normal tails rest on ``erfcx(x) = exp(x^2) erfc(x)`` for ``x >= 0``: with
``e = erfcx(|x| / sqrt 2)`` and ``g = exp(-x^2 / 2)``::

    log Phi(x)  = log(e / 2) - x^2 / 2          (x <= 0),   log(1 - e g / 2)          (x > 0)
    phi / Phi   = sqrt(2 / pi) / e              (x <= 0),   g / sqrt(2 pi) / Phi(x)   (x > 0)

One evaluation of ``e`` serves the value and the derivative. Truncated normals solve
``log Phi(v) = log u + log Phi(eta)`` by Newton steps in logarithms, so they stay finite at
``|eta| = 40`` and far beyond, where the inverse of the distribution function gives NaN.

The compiler takes logarithms of doubles one by one, at 8 ns each (12 ns for log1p). Integrals over
effects need billions of them, so they are written out: with x = 2^k m and s = (m - 1) / (m + 1)::

    log x = k log 2 + 2 artanh s,     log(1 + e) = 2 artanh(e / (2 + e))

where artanh(s) / s is a polynomial in s^2. This takes 2 ns each.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float
from scipy import special

from nghvi._typing import Key


def _artanh_coefficients(largest: float, degree: int) -> tuple[float, ...]:
    """Return the coefficients of ``artanh(s) / s`` in powers of ``s^2``, for ``|s| <= largest``."""

    def ratio(square: np.ndarray) -> np.ndarray:
        s = np.sqrt(square)
        return np.where(s > 1e-4, np.arctanh(s) / np.maximum(s, 1e-4), 1 + square / 3)

    fitted = np.polynomial.Chebyshev.interpolate(ratio, degree, domain=[0, largest**2])
    return tuple(fitted.convert(kind=np.polynomial.Polynomial).coef.tolist())


_SQRT_2 = np.sqrt(2.0)
_OF_MANTISSA = _artanh_coefficients((_SQRT_2 - 1) / (_SQRT_2 + 1), 9)
_OF_FRACTION = _artanh_coefficients(1 / 3, 12)


def _twice_artanh(s: Array, coefficients: tuple[float, ...]) -> Array:
    square, total = s * s, jnp.full_like(s, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * square + coefficient
    return 2 * s * total


@jax.custom_jvp
def log(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the logarithm of numbers above 1e-300, to within 1e-15 (1 + abs(log x))."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int64)
    exponent = (bits - np.float64(0.5 * _SQRT_2).view(np.int64)) >> 52
    mantissa = jax.lax.bitcast_convert_type(bits - (exponent << 52), x.dtype)
    series = _twice_artanh((mantissa - 1) / (mantissa + 1), _OF_MANTISSA)
    # Infinity and NaN have a mantissa, too: they must not pass for finite numbers.
    return exponent.astype(x.dtype) * np.log(2) + series + 0 * x


@log.defjvp
def _log_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return log(x), dx / x


@jax.custom_jvp
def log_expit(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return ``-log(1 + exp(-x))``, the logarithm of the logistic distribution function."""
    small = jnp.exp(-jnp.abs(x))
    return jnp.minimum(x, 0.0) - _twice_artanh(small / (2 + small), _OF_FRACTION)


@log_expit.defjvp
def _log_expit_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return log_expit(x), jax.nn.sigmoid(-x) * dx


_PIVOT = 2.0


def _erfcx_coefficients(degree: int = 24) -> np.ndarray:
    """Return the polynomial of ``(1 + 2 x) erfcx(x)`` in t = (x - pivot) / (x + pivot)."""

    def weighted(t: np.ndarray) -> np.ndarray:
        x = _PIVOT * (1 + t) / (1 - t)
        return (1 + 2 * x) * special.erfcx(x)

    # In powers of t, which take half as many operations as Chebyshev's polynomials and lose nothing
    # here, since no coefficient exceeds 1.3.
    fitted = np.polynomial.Chebyshev.interpolate(weighted, degree)
    return np.asarray(fitted.convert(kind=np.polynomial.Polynomial).coef)


_ERFCX = tuple(float(c) for c in _erfcx_coefficients())


def erfcx(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return ``exp(x^2) erfc(x)`` for ``x >= 0``, with a relative error below 1e-14."""
    t = (x - _PIVOT) / (x + _PIVOT)
    total = jnp.full_like(x, _ERFCX[-1])
    for coefficient in _ERFCX[-2::-1]:
        total = total * t + coefficient
    return total / (1 + 2 * x)


@jax.jit  # so that its many operations are traced only once, however often a program uses it
def _log_ndtr_and_mills(x: Array) -> tuple[Array, Array]:
    e = erfcx(jnp.abs(x) * np.sqrt(0.5))
    g = jnp.exp(-0.5 * x * x)
    upper = 0.5 * e * g
    negative = x <= 0
    # Phi(x) without its Gaussian factor on the left, Phi(x) itself on the right: one logarithm.
    bounded = jnp.where(negative, 0.5 * e, 1 - upper)
    log_cdf = log(bounded) - jnp.where(negative, 0.5 * x * x, 0.0)
    ratio = jnp.where(negative, 1.0, g) / (np.sqrt(2 * np.pi) * bounded)
    return log_cdf, ratio


@jax.custom_jvp
def inverse_mills(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return ``phi(x) / Phi(x)``, the derivative of :func:`log_ndtr`."""
    return _log_ndtr_and_mills(x)[1]


@inverse_mills.defjvp
def _inverse_mills_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    ratio = inverse_mills(x)
    # The exact value is in (-1, 0); far to the left the product is rounding noise times x^2.
    return ratio, jnp.clip(-ratio * (x + ratio), -1.0, 0.0) * dx


@jax.custom_jvp
def log_ndtr(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the logarithm of the standard normal distribution function."""
    return _log_ndtr_and_mills(x)[0]


@log_ndtr.defjvp
def _log_ndtr_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    # The compiler lets both share one erfcx. Written like this, a second differentiation never
    # reaches the formula itself, whose absolute value has no slope at 0.
    return log_ndtr(x), inverse_mills(x) * dx


def positive_normal(key: Key, eta: Float[Array, "..."]) -> Float[Array, "..."]:
    """Draw from N(eta, 1) truncated to the positive half-line; finite for any ``eta``."""
    u = jax.random.uniform(key, eta.shape, eta.dtype, minval=1e-300, maxval=1.0)
    # eta - v is positive iff log Phi(v) < log Phi(eta); the cap keeps v off +infinity.
    target = jnp.minimum(jnp.log(u) + log_ndtr(eta), -1e-16)
    tail = -jnp.sqrt(jnp.maximum(-2 * target - np.log(2 * np.pi) - jnp.log(-2 * target), 1.0))
    v = jnp.where(target > -600.0, ndtri(jnp.exp(jnp.maximum(target, -600.0))), tail)
    for _ in range(3):
        log_cdf, ratio = _log_ndtr_and_mills(v)
        # Where Phi(v) is 1 to the last digit, the ratio vanishes and v is already exact.
        v = v - jnp.where(ratio > 1e-8, (log_cdf - target) / jnp.maximum(ratio, 1e-8), 0.0)
    return jnp.maximum(eta - v, 0.0)


def log_ndtr_between(low: Float[Array, "..."], high: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log(Phi(high) - Phi(low)), computed in the tail in which little cancels."""
    flip = low + high > 0
    low, high = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    upper = log_ndtr(high)
    return upper + jnp.log(-jnp.expm1(log_ndtr(low) - upper))


def slopes_between(
    low: Float[Array, "..."], high: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Return two derivatives of :func:`log_ndtr_between` in eta, for ends a - eta and b - eta.

    At eta = 0, with D = Phi(b) - Phi(a), they are s = (phi(a) - phi(b)) / D and
    (a phi(a) - b phi(b)) / D - s^2.
    """
    log_mass = log_ndtr_between(low, high)
    at_low, at_high = (
        jnp.exp(-0.5 * (end**2 + np.log(2 * np.pi)) - log_mass) for end in (low, high)
    )
    first = at_low - at_high
    return first, jnp.minimum(low * at_low - high * at_high - first**2, 0.0)


CELLS = 128
"""Cells of the table behind :func:`t_cdf`, enough for errors below 1e-7."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)


def t_cdf(x: Float[Array, "..."], degrees: Float[Array, ""]) -> Float[Array, "..."]:
    """Return the distribution function of Student's t, for one number of degrees >= 2.

    With x = sqrt(nu) tan(angle) the density in the angle is proportional to cos^(nu - 1). It is
    integrated once over a grid of angles and interpolated with matching values and slopes. The
    incomplete beta function, the alternative, takes a hundred times as long.
    """
    # For many degrees of freedom the limit is nine standard deviations of a normal.
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


SHIFT = 10
"""Arguments below this are raised by as much, to where the series are accurate to all digits."""
_OF_LOG_GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_OF_DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12)
_OF_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


_PAIRS = tuple(float(i * (SHIFT - 1 - i)) for i in range(SHIFT // 2))
"""The numbers i (9 - i) in (x + i)(x + 9 - i) = x (x + 9) + i (9 - i): steps in pairs."""


def _raised(x: Array) -> tuple[Array, Array, Array, list[Array]]:
    """Return the argument of a series, whether it was raised, u + v and the products u v.

    The steps u, v from x to x + 9 are taken in pairs with a common sum, which halves the operations
    and thereby the time to compile them.
    """
    low = x < SHIFT
    begin = jnp.where(low, x, 1.0)
    twice = 2 * begin + (SHIFT - 1)
    first = begin * (begin + (SHIFT - 1))
    return jnp.where(low, x + SHIFT, x), low, twice, [first + pair for pair in _PAIRS]


def _in_squares(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Return c_0 + c_1 / x^2 + c_2 / x^4 + ..."""
    square, total = 1 / (x * x), jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = total * square + coefficient
    return total


@jax.custom_jvp
def log_gamma(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log Gamma of positive numbers, in a tenth of the time that JAX's function takes."""
    z, low, _, pairs = _raised(x)
    below = pairs[0]
    for pair in pairs[1:]:
        below = below * pair
    series = (z - 0.5) * log(z) - z + 0.5 * np.log(2 * np.pi) + _in_squares(z, _OF_LOG_GAMMA) / z
    return series - jnp.where(low, log(below), 0.0)


@jax.custom_jvp
def digamma(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the derivative of :func:`log_gamma`."""
    z, low, twice, pairs = _raised(x)
    below = twice * sum(1 / pair for pair in pairs)
    series = log(z) - 0.5 / z + _in_squares(z, _OF_DIGAMMA) / (z * z)
    return series - jnp.where(low, below, 0.0)


def trigamma(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the derivative of :func:`digamma`."""
    z, low, twice, pairs = _raised(x)
    # 1 / u^2 + 1 / v^2 = ((u + v)^2 - 2 u v) / (u v)^2, in which little cancels.
    below = sum((twice * twice - 2 * pair) / (pair * pair) for pair in pairs)
    series = 1 / z + 0.5 / (z * z) + _in_squares(z, _OF_TRIGAMMA) / (z * z * z)
    return series + jnp.where(low, below, 0.0)


@log_gamma.defjvp
def _log_gamma_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return log_gamma(x), digamma(x) * dx


@digamma.defjvp
def _digamma_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return digamma(x), trigamma(x) * dx


SMALLEST_OF_SERIES = 100.0
"""Size from which on Stirling's series is accurate to all digits."""


def log_rising(y: Float[Array, "..."], size: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log Gamma(size + y) - log Gamma(size) - y log size, which is small for large size."""
    small = jnp.minimum(size, SMALLEST_OF_SERIES)
    above, below = log_gamma(small + y), log_gamma(small)
    direct = above - below - y * jnp.log(small)
    large = jnp.maximum(size, SMALLEST_OF_SERIES)
    total = large + y
    series = (total - 0.5) * jnp.log1p(y / large) - y
    series += (1 / total - 1 / large) / 12 - (total**-3 - large**-3) / 360
    return jnp.where(size < SMALLEST_OF_SERIES, direct, series)
