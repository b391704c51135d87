"""Priors, each with the parametrisation it is stated in and the Jacobian that goes with it.

Variances are handled as ``t = log v`` and covariance matrices as the log-Cholesky factor of
their inverse: ``Omega^-1 = L L'``, free entries of L row by row, diagonal in logarithms. All
densities below are densities of those unconstrained numbers, constants included, because the
ELBO and the evidence are compared between models.

The numbers refer to the scale on which the model is fitted: with ``standardize=True`` (the
default of the estimators) to standardised columns, otherwise to the raw ones.
"""

import dataclasses
import math
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammaln, multigammaln

from nghvi._core.errors import InputError
from nghvi._linalg.packed import log_cholesky_diagonal, packed_size, unpack_log_cholesky
from nghvi._typing import PyTree, Scalar


class PriorError(InputError):
    """A prior's parameter is out of range."""


def _require_positive(owner: object, **values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, int | float | np.number) or not math.isfinite(value) or value <= 0:
            raise PriorError(
                f"{type(owner).__name__}({name}={value!r}): {name} must be a positive number."
            )


class EffectsPrior(Protocol):
    """A prior for the covariance Omega of the random effects, with its own coordinates."""

    def size(self, r: int) -> int:
        """Number of free parameters for r effects."""

    def start(self, variances: Float[Array, " r"]) -> Float[Array, " free"]:
        """Coordinates of a diagonal Omega with these variances."""

    def precision_factor(self, free: Float[Array, " free"], r: int) -> Float[Array, "r r"]:
        """Lower triangular L with Omega^-1 = L L'."""

    def log_density(self, free: Float[Array, " free"], r: int) -> Scalar:
        """Log density of the free parameters, Jacobian included."""


class _Diagonal:
    """Coordinates of independent effects: log variances."""

    def size(self, r: int) -> int:
        return r

    def start(self, variances: Array) -> Array:
        return jnp.log(variances)

    def precision_factor(self, free: Array, r: int) -> Array:
        return jnp.diag(jnp.exp(-0.5 * free))


class _Correlated:
    """Coordinates of correlated effects: log-Cholesky factor of the precision."""

    def size(self, r: int) -> int:
        return packed_size(r, r)

    def start(self, variances: Array) -> Array:
        r = variances.size
        rows, columns = np.tril_indices(r)
        return jnp.where(rows == columns, -0.5 * jnp.log(variances)[rows], 0.0)

    def precision_factor(self, free: Array, r: int) -> Array:
        return unpack_log_cholesky(free, r)


@dataclasses.dataclass(frozen=True)
class InverseGamma(_Diagonal):
    """Variance ~ InverseGamma(shape, scale): density prop. to v^-(shape+1) exp(-scale / v).

    As the prior of the effects it makes Omega diagonal, each variance with this density.
    """

    shape: float = 1.01
    scale: float = 1.01

    def __post_init__(self) -> None:
        _require_positive(self, shape=self.shape, scale=self.scale)

    def log_density(self, free: Array, r: int = 1) -> Scalar:
        a, b = self.shape, self.scale
        constant = a * math.log(b) - float(gammaln(a))
        return jnp.sum(constant - a * free - b * jnp.exp(-free))


@dataclasses.dataclass(frozen=True)
class HalfT(_Diagonal):
    """Standard deviation ~ half-t(df, scale): flat near zero, so small variances stay small.

    As the prior of the effects it makes Omega diagonal.
    """

    df: float = 2.0
    scale: float = 2.5

    def __post_init__(self) -> None:
        _require_positive(self, df=self.df, scale=self.scale)

    def log_density(self, free: Array, r: int = 1) -> Scalar:
        nu, a = self.df, self.scale
        constant = (
            float(gammaln((nu + 1) / 2) - gammaln(nu / 2))
            - 0.5 * math.log(nu * math.pi)
            - math.log(a)
        )
        tail = -0.5 * (nu + 1) * jnp.log1p(jnp.exp(free) / (nu * a**2))
        # sd = exp(t / 2): the half gives a factor 2, the Jacobian sd / 2.
        return jnp.sum(constant + tail + 0.5 * free)


@dataclasses.dataclass(frozen=True)
class WishartPrecision(_Correlated):
    """Omega^-1 = W ~ Wishart(scale I, df).

    The density is proportional to ``|W|^((df-r-1)/2) exp(-tr(W) / (2 scale))``.

    ``df=None`` means r + 1. The paper's choice is scale 0.01, which is very informative on
    standardised data: it holds every variance near 100 / (K + r).
    """

    scale: float
    df: float | None = None

    def __post_init__(self) -> None:
        _require_positive(self, scale=self.scale)
        if self.df is not None:
            _require_positive(self, df=self.df)

    def log_density(self, free: Array, r: int) -> Scalar:
        df = r + 1 if self.df is None else self.df
        if df <= r - 1:
            raise PriorError(
                f"WishartPrecision(df={df}): with {r} random effects df must exceed {r - 1}."
            )
        lower = self.precision_factor(free, r)
        log_diagonal = log_cholesky_diagonal(free, r)
        constant = -0.5 * df * r * math.log(2 * self.scale) - float(multigammaln(df / 2, r))
        density = (df - r - 1) * jnp.sum(log_diagonal) - 0.5 * jnp.sum(lower**2) / self.scale
        return constant + density + _log_jacobian(log_diagonal)


@dataclasses.dataclass(frozen=True)
class HuangWand(_Correlated):
    """Omega with half-t(df, scale) standard deviations and, at df = 2, uniform correlations.

    Huang and Wand (2013), their auxiliary variables integrated out: with W = Omega^-1
    the density of W is proportional to
    ``|W|^((df-2)/2) prod_j (df W_jj + scale^-2)^-((df+r)/2)``. The default of the library: it
    does not pull small variances up, as inverse Wishart priors do.
    """

    df: float = 2.0
    scale: float = 2.5

    def __post_init__(self) -> None:
        _require_positive(self, df=self.df, scale=self.scale)

    def log_density(self, free: Array, r: int) -> Scalar:
        nu, a = self.df, self.scale
        lower = self.precision_factor(free, r)
        log_diagonal = log_cholesky_diagonal(free, r)
        degrees = nu + r - 1
        constant = (
            0.5 * r * degrees * math.log(nu)
            - float(multigammaln(degrees / 2, r))
            + r * (float(gammaln((nu + r) / 2)) - math.log(a) - 0.5 * math.log(math.pi))
        )
        tails = -0.5 * (nu + r) * jnp.sum(jnp.log(nu * jnp.sum(lower**2, axis=1) + a**-2))
        return constant + (nu - 2) * jnp.sum(log_diagonal) + tails + _log_jacobian(log_diagonal)


def _log_jacobian(log_diagonal: Array) -> Scalar:
    """log |d vech(L L') / d free| = r log 2 + sum_i (r - i + 2) log L_ii, i = 1..r."""
    r = log_diagonal.size
    return r * math.log(2) + jnp.sum((r + 1 - jnp.arange(r)) * log_diagonal)


@dataclasses.dataclass(frozen=True)
class Gamma:
    """A positive number with density prop. to x^(shape-1) exp(-rate x)."""

    shape: float = 2.0
    rate: float = 0.1

    def __post_init__(self) -> None:
        _require_positive(self, shape=self.shape, rate=self.rate)

    def log_density(self, value: Array) -> Scalar:
        """Of the number itself: its transform's Jacobian is the caller's."""
        constant = self.shape * math.log(self.rate) - float(gammaln(self.shape))
        return constant + (self.shape - 1) * jnp.log(value) - self.rate * value


def normal_log_density(values: Array, sd: float) -> Scalar:
    """Sum of N(0, sd^2) log densities."""
    return jnp.sum(-0.5 * (values / sd) ** 2) - values.size * (
        math.log(sd) + 0.5 * math.log(2 * math.pi)
    )


@dataclasses.dataclass(frozen=True)
class Priors:
    """The priors of a mixed model.

    ``coef_sd``: sd of every fixed coefficient, intercept included. ``noise``: the noise variance.
    ``effects``: Omega. ``weight_sd``: sd of the weights of hidden layers; None learns it layer by
    layer, ``N(0, exp(2 s) / fan-in)`` with ``s ~ N(0, 1)``: a broad fixed prior pays for switching
    units off and predicts worse. Of a Student-t response ``noise`` is the prior of the squared
    scale and ``degrees`` that of the degrees of freedom less 2.
    """

    coef_sd: float = 10.0
    noise: InverseGamma | HalfT = InverseGamma()
    effects: InverseGamma | HalfT | WishartPrecision | HuangWand = HuangWand()
    weight_sd: float | None = None
    degrees: Gamma = Gamma()

    def __post_init__(self) -> None:
        _require_positive(self, coef_sd=self.coef_sd)
        if self.weight_sd is not None:
            _require_positive(self, weight_sd=self.weight_sd)
        if not isinstance(self.noise, InverseGamma | HalfT):
            raise PriorError(
                f"Priors(noise={self.noise!r}): give InverseGamma(shape, scale) or "
                "HalfT(df, scale)."
            )
        if not isinstance(self.degrees, Gamma):
            raise PriorError(f"Priors(degrees={self.degrees!r}): give Gamma(shape, rate).")
        if not isinstance(self.effects, InverseGamma | HalfT | WishartPrecision | HuangWand):
            raise PriorError(
                f"Priors(effects={self.effects!r}): give InverseGamma, HalfT (both: independent "
                "effects), WishartPrecision or HuangWand."
            )

    def log_weights(
        self, weights: PyTree, log_scale: Float[Array | np.ndarray, " layers"]
    ) -> Scalar:
        """Log density of the weights of all layers, and of their scales where those are learnt."""
        layers = jax.tree.leaves(weights)
        if self.weight_sd is not None:
            return sum((normal_log_density(w, self.weight_sd) for w in layers), jnp.zeros(()))
        total = normal_log_density(jnp.asarray(log_scale), 1.0)
        for w, s in zip(layers, log_scale, strict=True):
            unit = math.sqrt(w.shape[0] / w.size) if w.ndim > 1 else 1.0
            total += normal_log_density(w * jnp.exp(-s), unit) - w.size * s
        return total

    @staticmethod
    def paper() -> "Priors":
        """The paper's: N(0, 100), InverseGamma(1.01, 1.01), Wishart(0.01 I, r + 1)."""
        return Priors(10.0, InverseGamma(1.01, 1.01), WishartPrecision(0.01), 10.0)
