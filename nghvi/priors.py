"""Priors, each with the parametrisation in which it is stated and the corresponding Jacobian.

Variances are handled as ``t = log v`` and covariance matrices as the log-Cholesky factor of
their inverse: ``Omega^-1 = L L'``, free entries of L row by row, diagonal in logarithms. All
densities below are densities of those unconstrained numbers, constants included, because the
ELBO and the evidence are compared between models.

The numbers refer to the scale on which the model is fitted: with ``standardize=True`` (the
default of the estimators) to standardised columns, otherwise to the raw ones. An estimator
without explicit priors uses the defaults in the units of its data (:meth:`Priors.in_units`), so
that they mean the same on either scale; ``docs/priors.md`` lists them in one table.
"""

import dataclasses
import functools
import math
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.integrate import quad
from scipy.special import gammaln, multigammaln

from nghvi._core.errors import InputError
from nghvi._linalg import small
from nghvi._linalg.lowrank import log_cholesky_diagonal, packed_size, unpack_log_cholesky
from nghvi._typing import PyTree, Scalar


class PriorError(InputError):
    """Raised if a parameter of a prior is out of range."""


Scales = float | tuple[float, ...]
"""One scale for all parameters, or one for each."""


def _require_positive(owner: object, **values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
            raise PriorError(
                f"{type(owner).__name__}({name}={value!r}): {name} must be a positive number."
            )


def _require_scales(owner: object, **values: object) -> None:
    for name, value in values.items():
        for scale in value if isinstance(value, tuple) and value else (value,):
            _require_positive(owner, **{name: scale})


def _each(scales: Scales, size: int, of: str) -> Float[np.ndarray, " size"]:
    """Return the scales of ``size`` parameters; ``of``: whose they are, for the error message."""
    if isinstance(scales, tuple) and len(scales) != size:
        raise PriorError(f"{of}: {len(scales)} scales were given for {size} parameters.")
    return np.broadcast_to(np.asarray(scales, float), size)


def _times(scales: Scales, units: np.ndarray) -> Scales:
    """Return scales in these units, rounded to powers of two so that data share programs."""
    found = tuple((np.asarray(scales) * 2.0 ** np.round(np.log2(units))).tolist())
    return found[0] if len(set(found)) == 1 else found


class EffectsPrior(Protocol):
    """A prior for the covariance Omega of the random effects, with its own coordinates."""

    correlated: bool
    """Whether Omega is not diagonal."""

    def size(self, r: int) -> int:
        """Return the number of free parameters for r effects."""

    def start(self, variances: Float[Array, " r"]) -> Float[Array, " free"]:
        """Return the coordinates of a diagonal Omega with these variances."""

    def precision_factor(self, free: Float[Array, " free"], r: int) -> Float[Array, "r r"]:
        """Return the lower triangular L with Omega^-1 = L L'."""

    def log_density(self, free: Float[Array, " free"], r: int) -> Scalar:
        """Return the log density of the free parameters, Jacobian included."""

    def log_volume(self, free: Float[Array, " free"], r: int) -> Scalar:
        """Return the log Jacobian, up to a constant, in :meth:`log_density`.

        Subtracting it leaves the density of what the prior is stated for, such as sds.
        """

    def sample(
        self, rng: np.random.Generator, number: int, r: int
    ) -> Float[np.ndarray, "number free"]:
        """Return draws of the free parameters."""

    def stated(self, effect: int | None) -> str:
        """Return the prior of an effect's sd, or of all correlations (None), in words."""


class _Diagonal:
    """The coordinates of independent effects: log variances."""

    correlated = False

    def size(self, r: int) -> int:
        return r

    def start(self, variances: Array) -> Array:
        return jnp.log(variances)

    def precision_factor(self, free: Array, r: int) -> Array:
        return jnp.diag(jnp.exp(-0.5 * free))


def _packed(lower: Float[np.ndarray, "s r r"]) -> Float[np.ndarray, "s free"]:
    """Return the log-Cholesky coordinates of many factors."""
    rows, columns = np.tril_indices(lower.shape[-1])
    entries = lower[:, rows, columns]
    on_diagonal = rows == columns
    entries[:, on_diagonal] = np.log(entries[:, on_diagonal])
    return entries


def _wishart_factors(
    rng: np.random.Generator, number: int, r: int, df: float
) -> Float[np.ndarray, "s r r"]:
    """Return lower L with L L' ~ Wishart(I, df), by Bartlett's decomposition."""
    lower = np.tril(rng.standard_normal((number, r, r)), -1)
    lower[:, np.arange(r), np.arange(r)] = np.sqrt(rng.chisquare(df - np.arange(r), (number, r)))
    return lower


class _Correlated:
    """The coordinates of correlated effects: the log-Cholesky factor of the precision."""

    correlated = True

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
    """Variance ~ InverseGamma(shape, scale): density proportional to v^-(shape+1) exp(-scale / v).

    As a prior of the effects it makes Omega diagonal, and each variance has this density.
    """

    shape: float = 1.01
    scale: float = 1.01

    def __post_init__(self) -> None:
        _require_positive(self, shape=self.shape, scale=self.scale)

    def log_density(self, free: Array, r: int = 1) -> Scalar:
        a, b = self.shape, self.scale
        constant = a * math.log(b) - float(gammaln(a))
        return jnp.sum(constant - a * free - b * jnp.exp(-free))

    def log_volume(self, free: Array, r: int = 1) -> Scalar:
        return jnp.sum(free)  # variances

    def sample(self, rng: np.random.Generator, number: int, r: int = 1) -> np.ndarray:
        return np.log(self.scale / rng.gamma(self.shape, size=(number, r)))

    def stated(self, effect: int | None = 0) -> str:
        return f"variance ~ InverseGamma({self.shape:.4g}, {self.scale:.4g})"


@dataclasses.dataclass(frozen=True)
class HalfT(_Diagonal):
    """Standard deviation ~ half-t(df, scale): flat near zero, so small variances stay small.

    As a prior of the effects it makes Omega diagonal; ``scale`` may then be a tuple with one
    number per effect. ``floor`` multiplies the density by ``exp(-floor^2 / sd^2)``, so that even
    data without any noise (a response computed from the inputs) have a posterior.
    """

    df: float = 2.0
    scale: Scales = 2.5
    floor: float = 0.0

    def __post_init__(self) -> None:
        _require_positive(self, df=self.df)
        _require_scales(self, scale=self.scale)
        if self.floor != 0:
            _require_positive(self, floor=self.floor)

    def __repr__(self) -> str:
        floor = f", floor={self.floor}" if self.floor else ""
        return f"HalfT(df={self.df}, scale={self.scale}{floor})"

    def log_density(self, free: Array, r: int = 1) -> Scalar:
        nu, a = self.df, _each(self.scale, free.size, "HalfT(scale=...)")
        constant = _log_t(0.0, nu) - np.log(a)
        tail = -0.5 * (nu + 1) * jnp.log1p(jnp.exp(free) / (nu * a**2))
        if self.floor:
            constant -= np.array([_log_mass(nu, float(self.floor / scale)) for scale in a])
            tail -= self.floor**2 * jnp.exp(-free)
        # sd = exp(t / 2): the half gives a factor 2, the Jacobian sd / 2.
        return jnp.sum(constant + tail + 0.5 * free)

    def log_volume(self, free: Array, r: int = 1) -> Scalar:
        return 0.5 * jnp.sum(free)  # sds

    def sample(self, rng: np.random.Generator, number: int, r: int = 1) -> np.ndarray:
        scale = _each(self.scale, r, "HalfT(scale=...)")
        sd, wanted = np.zeros((number, r)), np.full((number, r), True)
        while wanted.any():  # by rejection: nearly all are accepted at once
            drawn = np.abs(rng.standard_t(self.df, (number, r))) * scale
            accepted = wanted & (rng.random(sd.shape) < np.exp(-((self.floor / drawn) ** 2)))
            sd, wanted = np.where(accepted, drawn, sd), wanted & ~accepted
        return 2 * np.log(sd)

    def in_units(self, units: np.ndarray) -> "HalfT":
        """Return the same prior with its scales in these units."""
        unit = float(2.0 ** np.round(np.log2(units[0])))
        return HalfT(self.df, _times(self.scale, units), self.floor * unit)

    def stated(self, effect: int | None = 0) -> str:
        if effect is None:
            return "none: the effects are independent"
        scale = self.scale[effect] if isinstance(self.scale, tuple) else self.scale
        return f"sd ~ half-t({self.df:.4g}, {scale:.4g})"


@dataclasses.dataclass(frozen=True)
class WishartPrecision(_Correlated):
    """Omega^-1 = W ~ Wishart(scale I, df).

    The density is proportional to ``|W|^((df-r-1)/2) exp(-tr(W) / (2 scale))``.

    ``df=None`` means r + 1. The paper chooses scale 0.01, which is very informative on
    standardised data: it keeps every variance near 100 / (K + r).
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

    def log_volume(self, free: Array, r: int) -> Scalar:
        return _log_jacobian(log_cholesky_diagonal(free, r))  # the inverse of Omega

    def sample(self, rng: np.random.Generator, number: int, r: int) -> np.ndarray:
        df = r + 1 if self.df is None else self.df
        return _packed(math.sqrt(self.scale) * _wishart_factors(rng, number, r, df))

    def stated(self, effect: int | None = 0) -> str:
        df = "r + 1" if self.df is None else f"{self.df:.4g}"
        return f"inverse covariance ~ Wishart({self.scale:.4g} I, {df})"


@dataclasses.dataclass(frozen=True)
class HuangWand(_Correlated):
    """Omega with half-t(df, scale) standard deviations and, at df = 2, uniform correlations.

    This is the prior of Huang and Wand (2013) with their auxiliary variables integrated out: the
    density of W = Omega^-1 is proportional to
    ``|W|^((df-2)/2) prod_j (df W_jj + scale^-2)^-((df+r)/2)``. It is the default of the library,
    since it does not pull small variances up as inverse Wishart priors do. ``scale`` may be a tuple
    with one number per effect.
    """

    df: float = 2.0
    scale: Scales = 2.5

    def __post_init__(self) -> None:
        _require_positive(self, df=self.df)
        _require_scales(self, scale=self.scale)

    def log_density(self, free: Array, r: int) -> Scalar:
        nu, a = self.df, _each(self.scale, r, "HuangWand(scale=...)")
        lower = self.precision_factor(free, r)
        log_diagonal = log_cholesky_diagonal(free, r)
        degrees = nu + r - 1
        constant = (
            0.5 * r * degrees * math.log(nu)
            - float(multigammaln(degrees / 2, r))
            + r * (float(gammaln((nu + r) / 2)) - 0.5 * math.log(math.pi))
            - float(np.sum(np.log(a)))
        )
        tails = -0.5 * (nu + r) * jnp.sum(jnp.log(nu * jnp.sum(lower**2, axis=1) + a**-2))
        return constant + (nu - 2) * jnp.sum(log_diagonal) + tails + _log_jacobian(log_diagonal)

    def log_volume(self, free: Array, r: int) -> Scalar:
        # Sds s and correlations: W -> Omega has |W|^-(r+1), Omega -> (s, R) has prod s_j^-r.
        log_diagonal = log_cholesky_diagonal(free, r)
        inverse = small.inverse_lower(self.precision_factor(free, r))
        log_sds = 0.5 * jnp.log(jnp.sum(inverse**2, axis=0))
        to_omega = -2 * (r + 1) * jnp.sum(log_diagonal)
        return _log_jacobian(log_diagonal) + to_omega - r * jnp.sum(log_sds)

    def sample(self, rng: np.random.Generator, number: int, r: int) -> np.ndarray:
        # W given c is Wishart with scale matrix diag(c) / (2 df), c_j ~ IG(1/2, scale_j^-2).
        auxiliary = _each(self.scale, r, "HuangWand(scale=...)") ** -2 / rng.gamma(
            0.5, size=(number, r)
        )
        root = np.sqrt(auxiliary / (2 * self.df))
        return _packed(root[:, :, None] * _wishart_factors(rng, number, r, self.df + r - 1))

    def in_units(self, units: np.ndarray) -> "HuangWand":
        """Return the same prior with its scales in these units."""
        return HuangWand(self.df, _times(self.scale, units))

    def stated(self, effect: int | None = 0) -> str:
        if effect is None:
            return "correlation ~ uniform(-1, 1)" if self.df == 2 else f"Huang-Wand({self.df:.4g})"
        return HalfT(self.df, self.scale).stated(effect)


def _log_t(x: float, df: float) -> float:
    """Return the log density of Student's t."""
    constant = float(gammaln((df + 1) / 2) - gammaln(df / 2)) - 0.5 * math.log(df * math.pi)
    return constant - 0.5 * (df + 1) * math.log1p(x**2 / df)


@functools.lru_cache(maxsize=256)
def _log_mass(df: float, floor: float) -> float:
    """Return the log mean of exp(-floor^2 / sd^2) over half-t(df, 1): what a floor takes away."""

    def at(u: float) -> float:  # u = log sd
        return 2 * math.exp(_log_t(math.exp(u), df) - (floor * math.exp(-u)) ** 2 + u)

    return math.log(quad(at, math.log(floor) - 5, 60 / df, limit=500, points=[0.0])[0])


def _log_jacobian(log_diagonal: Array) -> Scalar:
    """Return log |d vech(L L') / d free| = r log 2 + sum_i (r - i + 2) log L_ii, i = 1..r."""
    r = log_diagonal.size
    return r * math.log(2) + jnp.sum((r + 1 - jnp.arange(r)) * log_diagonal)


@dataclasses.dataclass(frozen=True)
class Gamma:
    """A positive number with density proportional to x^(shape-1) exp(-rate x)."""

    shape: float = 2.0
    rate: float = 0.1

    def __post_init__(self) -> None:
        _require_positive(self, shape=self.shape, rate=self.rate)

    def log_density(self, value: Array) -> Scalar:
        """Return the log density of the number itself, without the Jacobian of a transform."""
        constant = self.shape * math.log(self.rate) - float(gammaln(self.shape))
        return constant + (self.shape - 1) * jnp.log(value) - self.rate * value

    def sample(self, rng: np.random.Generator, number: int) -> Float[np.ndarray, " number"]:
        """Return draws of the number itself."""
        return rng.gamma(self.shape, 1 / self.rate, number)


def normal_log_density(values: Array, sd: Scales) -> Scalar:
    """Return the sum of N(0, sd^2) log densities, with one sd for all values or one for each."""
    scale = _each(sd, values.size, "coef_sd") if isinstance(sd, tuple) else np.asarray(sd)
    constant = values.size * (float(np.mean(np.log(scale))) + 0.5 * math.log(2 * math.pi))
    return jnp.sum(-0.5 * (values / scale) ** 2) - constant


@dataclasses.dataclass(frozen=True)
class Priors:
    """The priors of a mixed model.

    ``coef_sd``: sd of every fixed coefficient, intercept included, or a tuple with an sd for each.
    ``noise``: prior of the noise sd or variance. ``effects``: prior of Omega. ``weight_sd``: sd of
    the weights of hidden layers; None learns it by layer, ``N(0, exp(2 s) / fan-in)`` with
    ``s ~ N(0, 1)``, since a broad fixed prior rewards switching units off and predicts worse. For a
    Student-t response ``noise`` is the prior of the scale, ``degrees`` that of the degrees less 2.
    """

    coef_sd: Scales = 10.0
    noise: InverseGamma | HalfT = HalfT(floor=1e-4)
    effects: InverseGamma | HalfT | WishartPrecision | HuangWand = HuangWand()
    weight_sd: float | None = None
    degrees: Gamma = Gamma()

    def __post_init__(self) -> None:
        _require_scales(self, coef_sd=self.coef_sd)
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
        """Return the log density of the weights of all layers, and of learnt scales, if any."""
        layers = jax.tree.leaves(weights)
        if self.weight_sd is not None:
            return sum((normal_log_density(w, self.weight_sd) for w in layers), jnp.zeros(()))
        total = normal_log_density(jnp.asarray(log_scale), 1.0)
        for w, s in zip(
            layers, log_scale if log_scale.size else np.zeros(len(layers)), strict=True
        ):
            unit = math.sqrt(w.shape[0] / w.size) if w.ndim > 1 else 1.0
            total += normal_log_density(w * jnp.exp(-s), unit) - w.size * s
        return total

    def in_units(self, coef: np.ndarray, effects: np.ndarray, response: float) -> "Priors":
        """Return the same priors with scales in units of the data, for half-t and normal priors.

        ``coef``, ``effects``: unit of each coefficient and effect; ``response``: unit of the noise.
        """
        if not isinstance(self.noise, HalfT) or not isinstance(self.effects, HalfT | HuangWand):
            raise PriorError(f"{self}: only half-t priors can be given in other units.")
        return dataclasses.replace(
            self,
            coef_sd=_times(self.coef_sd, coef),
            noise=self.noise.in_units(np.array([response])),
            effects=self.effects.in_units(effects) if effects.size else self.effects,
        )

    @staticmethod
    def paper() -> "Priors":
        """Return the priors of the paper: N(0, 100), InverseGamma(1.01, 1.01), Wishart(0.01 I)."""
        return Priors(10.0, InverseGamma(1.01, 1.01), WishartPrecision(0.01), 10.0)
