"""theta of a mixed model: its parts, its coordinates, draws of its prior, and where a fit starts.

theta = (weights, beta, dispersion, free parameters of Omega, log scales of the weights)

The covariance of the effects may be held in coordinates in which an sd of zero is an ordinary
point (:mod:`nghvi._core.near_zero`). Theta then holds u and kappa with::

    log sd_j = log c_j + u_j + log Phi(4 u_j)
    L_jk = D_j sinh kappa_jk  (j > k),  L_jj = D_j,  Omega^-1 = L L'

and D such that the sds are as stated. kappa is Fisher's z of a partial correlation, in which priors
of correlations are nearly normal, whatever the sds.

The unit c follows from the data. An effect of variance v adds v x_i^2 to the variances of group k,
whose information on it is I_k = sum_i x_i^2 / s^2 if the noise has variance s^2. At v = 0 the data
determine v to within an sd of ``sqrt(2 / sum_k I_k^2)``, and c is the root of this sd. The factor 4
and this unit minimise the Kullback-Leibler distance of the best Gaussian, on average over 8 to
3,000 groups and effects from none to strong: it is .01 nats (at most .04), compared with .10 (.28)
for log sd. A unit that is off by a factor of 2 costs .03.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core import near_zero
from nghvi._linalg import small
from nghvi._linalg.lowrank import diagonal, pack_lower, unpack_log_cholesky, unpack_lower
from nghvi._programs import program
from nghvi._typing import Data, Key, PyTree, Scalar
from nghvi.data import LinearStatistics, Moments, Panel, Rows
from nghvi.data.factors import CrossedStatistics
from nghvi.data.panel import CrossedPanel
from nghvi.models.joint_mode import Levels, joint_mode

if TYPE_CHECKING:
    from nghvi.models.mixed import MixedModel


FEW_GROUPS, MOST_COLUMNS = 6, 1000
"""Number of levels of a factor up to which coefficients are held in units of their spread whatever
the response, unless it attenuates them, and the number of effects from which the centre is found,
those of the smallest factors."""


class MixedParams(NamedTuple):
    """The global parameters of a mixed model, all unconstrained."""

    weights: PyTree
    coef: Float[Array, " q"]
    dispersion: Float[Array, " c"]
    effects: Float[Array, " free"]
    weight_scale: Float[Array | np.ndarray, " layers"] = np.zeros(0)
    """Log scale of each layer's weights; empty if their prior is fixed."""


def draws_of_prior(
    model: "MixedModel", rng: np.random.Generator, number: int, start: MixedParams
) -> MixedParams:
    """Draw all parameters but the weights, which are ``start``'s; leading axis ``number``."""
    coef = np.asarray(model.priors.coef_sd) * rng.standard_normal((number, start.coef.size))
    dispersion = jnp.asarray(model.response.sample_prior(rng, number, model.priors))
    if (found := model.response.intercept_prior(dispersion, model.priors)) is not None:
        coef[:, 0] = found[0] + coef[:, 0] * found[1] / model.intercept_sd
    effects = np.zeros((number, start.effects.size))
    if model.num_effects:
        free = jnp.asarray(model.effects_prior.sample(rng, number, model.num_effects))
        effects = np.asarray(jax.vmap(model.effects_from_free)(free))
    drawn = MixedParams(
        jax.tree.map(lambda w: np.broadcast_to(w, (number, *w.shape)), start.weights),
        jnp.asarray(coef),
        dispersion,
        jnp.asarray(effects),
        rng.standard_normal((number, np.asarray(start.weight_scale).size)),
    )
    # Priors are stated for plain numbers, but theta may hold them in units of the effects.
    plain = drawn._replace(weights=(), weight_scale=np.zeros((number, 0)))
    unit = jax.vmap(model.coef_unit)(plain).reshape(number, -1)
    own = dispersion - jnp.log(unit) if model.response.takes_intercept else dispersion
    return drawn._replace(coef=(drawn.coef - model.coef_origin) / unit, dispersion=own)


def first_params(model: "MixedModel", key: Key, data: Data) -> MixedParams:
    """Return where a fit starts: a least squares fit, or a constant predictor."""
    weights = model.trunk.init_weights(key)
    r, q = model.num_effects, model.trunk.num_features - len(model.known_coef)
    if isinstance(data, LinearStatistics | CrossedStatistics):
        coef = data.centre[:q] if model.spread is None else jnp.zeros(q)
        # A perfect fit (fewer rows than columns) would start from a noise variance of zero.
        floor = 0.01 * data.variance + 1e-300
        dispersion = jnp.log(jnp.maximum(data.square_total / data.num_rows, floor))[None]
        unit = jnp.exp(dispersion[0]) / jnp.maximum(data.effects_square, 1e-300)
    else:
        known = q - model.trunk.num_learnt
        coef = jnp.zeros(known).at[0].set(model.response.typical_predictor)
        coef = jnp.concatenate([coef, _first_learnt(model, key)])
        coef = coef if model.spread is None else jnp.zeros(q)
        dispersion = model.response.start(data.variance)
        unit = jnp.ones(r)
    # A network climbs with effects at rest (log_at_rest), and then needs only small ones.
    tiny = not (model.response.conjugate or model.trunk.linear or model.moves_naturally)
    variances = jnp.clip((0.01 if tiny else 0.2) * unit, 1e-8, 1e8)
    if (start := model.start) is not None:
        coef = jnp.concatenate([start.coef, _first_learnt(model, key)])
        dispersion = jnp.log(start.noise)[None]
        variances = jnp.where(np.array(model.random) == 0, start.between, 0.02 * start.noise)
    effects = model.effects_from_free(model.effects_prior.start(variances))
    scales = jnp.zeros(model.num_scales(weights))
    return MixedParams(weights, coef, dispersion, effects, scales)


def _first_learnt(model: "MixedModel", key: Key) -> Float[Array, " w"]:
    return 0.3 * jax.random.normal(jax.random.fold_in(key, 1), (model.trunk.num_learnt,))


class Spread(eqx.Module):
    """How uncertain the coefficients of a linear model remain, given the variances.

    An effect of K levels with variance w leaves its column's coefficient a variance of about w / K,
    and noise of variance v and a prior of precision p leave one of 1 / (p + sum_i x_i^2 / v). Few
    levels determine w only to within a factor, so the coefficient has long tails; its ratio to that
    sd does not.
    """

    centre: Float[Array, " q"]
    square: Float[Array, " q"]
    """Sum of squares of each column, each times its row's precision unless the rows share one."""
    levels: Float[Array, " r"]
    """Number of levels of each effect's factor."""
    precision: Float[Array, " q"]
    """Precision of each coefficient's prior."""

    @staticmethod
    def of(model: "MixedModel", data: LinearStatistics, levels: list[int]) -> "Spread":
        """Return the spread about a least squares fit; ``levels``: of each effect's factor."""
        fixed = slice(data.centre.size - len(model.known_coef))
        square = np.diagonal(data.gram_total)[fixed]
        precision = np.broadcast_to(np.asarray(model.priors.coef_sd, float), square.shape) ** -2.0
        each = data.centre[fixed], square, np.array(levels, float), precision
        return Spread(*map(jax.device_put, each))

    @staticmethod
    def about_mode(model: "MixedModel", data: Rows, factors: Sequence[Levels]) -> "Spread | None":
        """Return the spread about the mode of coefficients and effects, for any response.

        It is None if every factor has many levels. The rows' noise has variance 1 then, since their
        sums of squares say it already.
        """
        fewest = sorted(factors, key=lambda levels: levels.number)
        if fewest[0].number > FEW_GROUPS:
            return None
        columns = np.cumsum([levels.number * len(levels.random) for levels in fewest])
        near = fewest[: max(1, int(np.sum(columns <= MOST_COLUMNS)))]
        found = joint_mode(model, first_params(model, jax.random.key(0), data), data, near)
        levels = [float(each.number) for each in factors for _ in each.random]
        prior_sd = np.broadcast_to(np.asarray(model.priors.coef_sd, float), found.coef.shape)
        each = found.coef, found.information, np.array(levels), prior_sd**-2.0
        return Spread(*map(jax.device_put, each))

    def sd(
        self, random: tuple[int, ...], precision_factor: Float[Array, "r r"], noise_var: Scalar
    ) -> Float[Array, " q"]:
        """Return the sds; ``random``: the columns that have effects."""
        q = self.square.size
        between = jnp.sum(small.inverse_lower(precision_factor) ** 2, axis=0) / self.levels
        room = jnp.zeros(max(q, 1 + max(random)))
        within = 1 / (self.precision + self.square / noise_var)
        return jnp.sqrt(within + room.at[np.array(random)].add(between)[:q])


def effects_units(data: LinearStatistics, noise: float | None) -> Float[Array, " r"]:
    """Return the unit c of each effect's sd: the data hardly distinguish smaller ones from zero.

    ``noise``: the variance s^2 of a row, or None to take the variance within groups.
    """
    gram = np.moveaxis(np.asarray(data.effects_gram), -1, 0)
    square = np.einsum("kjj->kj", gram)
    noise = noise_within(data) if noise is None else noise
    information = np.sqrt(np.sum((square / noise) ** 2, axis=0))
    return jax.device_put(2**0.25 / np.sqrt(np.maximum(information, 1e-100)))


def noise_within(data: LinearStatistics) -> float:
    """Return the residual variance of y within groups, after regressions of each group alone."""
    gram = np.moveaxis(np.asarray(data.effects_gram), -1, 0)
    cross = np.asarray(data.effects_cross).T
    level = np.maximum(np.einsum("kjj->j", gram) / float(data.num_rows), 1e-300)
    ridge = 1e-3 * np.diag(level)
    explained = np.sum(cross * np.linalg.solve(gram + ridge, cross[..., None])[..., 0])
    taken = np.einsum("kij,kji->", np.linalg.inv(gram + ridge), gram)
    whole, rows = float(data.square_total), float(data.num_rows)
    within = (whole - explained) / max(rows - taken, 0.1 * rows)
    return max(within, 1e-6 * whole / rows, 1e-300)


def to_free(
    coordinates: Float[Array, " free"], unit: Float[Array, " r"], correlated: bool
) -> tuple[Float[Array, " free"], Scalar]:
    """Return the free parameters for which priors are stated, and the log Jacobian.

    ``coordinates``: u and kappa as theta holds them; ``unit``: c of every effect.
    """
    r = unit.size
    if not correlated:
        free = 2 * (jnp.log(unit) + near_zero.log_in_units(coordinates))
        return free, r * np.log(2) + jnp.sum(jnp.log(near_zero.slope(coordinates)))
    entries = unpack_lower(coordinates, r, r)
    u = diagonal(entries)
    shape = jnp.tril(jnp.sinh(entries), -1) + jnp.eye(r)
    # Omega = D^-1 A^-T A^-1 D^-1 with A this shape: sds are norms of the columns of A^-1 over D.
    norms = 0.5 * jnp.log(jnp.sum(small.inverse_lower(shape) ** 2, axis=0))
    log_d = norms - jnp.log(unit) - near_zero.log_in_units(u)
    lower = jnp.exp(log_d)[:, None] * shape
    free = pack_lower(jnp.tril(lower, -1) + jnp.diag(log_d))
    stretched = jnp.sum(jnp.log(jnp.cosh(jnp.tril(entries, -1)))) + jnp.arange(r) @ log_d
    return free, stretched + jnp.sum(jnp.log(near_zero.slope(u)))


def from_free(
    free: Float[Array, " free"], unit: Float[Array, " r"], correlated: bool
) -> Float[Array, " free"]:
    """Return what theta holds, given the free parameters: the inverse of :func:`to_free`."""
    if not correlated:
        return near_zero.coordinate(0.5 * free - jnp.log(unit))
    lower = unpack_log_cholesky(free, unit.size)
    log_sds = 0.5 * jnp.log(jnp.sum(small.inverse_lower(lower) ** 2, axis=0))
    kappa = jnp.arcsinh(jnp.tril(lower, -1) / diagonal(lower)[:, None])
    return pack_lower(kappa + jnp.diag(near_zero.coordinate(log_sds - jnp.log(unit))))


def multiplied(
    free: Float[Array, " free"], log_factor: Scalar, r: int, correlated: bool
) -> Float[Array, " free"]:
    """Return the free parameters of Omega times a factor."""
    if not correlated:
        return free + log_factor
    entries = unpack_lower(free, r, r)
    below = jnp.exp(-0.5 * log_factor) * jnp.tril(entries, -1)
    return pack_lower(below + jnp.diag(diagonal(entries) - 0.5 * log_factor))


class LinearStart(NamedTuple):
    """Where a network with a skip connection starts: least squares without the network."""

    coef: Float[Array, " q"]
    """Coefficients of the intercept and the inputs."""
    noise: Scalar
    """Variance within groups, by analysis of variance."""
    between: Scalar | Float[Array, " r"]
    """Variance of the groups' intercepts, by analysis of variance. For several factors there is one
    per effect, computed as if its factor were the only one."""

    @staticmethod
    @program
    def of(data: Rows | Panel) -> "LinearStart":
        """Return the start given by all rows."""
        q = data.x.shape[1] + 1
        sums = data.moments(_with_ones, jnp.zeros(q), tuple(range(q)))
        return LinearStart._of_moments(sums, data.variance)

    @staticmethod
    def of_factors(data: CrossedPanel, effects: tuple[int, ...]) -> "LinearStart":
        """Return the start for several factors; ``effects``: how many effects each factor has."""
        q = data.x.shape[1] + 1
        each = [
            LinearStart._of_moments(sums, data.variance)
            for sums in data.moments(_with_ones, jnp.zeros(q), tuple(range(q)))
        ]
        between = jnp.repeat(jnp.stack([start.between for start in each]), np.array(effects))
        noise = jnp.min(jnp.stack([start.noise for start in each]))
        return LinearStart(each[0].coef, noise, between)

    @staticmethod
    def _of_moments(sums: Moments, variance: Scalar) -> "LinearStart":
        """Return the start, given moments about zero of a column of ones and all inputs."""
        q = len(sums.cross)
        gram, cross = jnp.sum(sums.gram, axis=-1), jnp.sum(sums.cross, axis=-1)
        coef = jnp.linalg.solve(gram + 1e-6 * sums.num_rows * jnp.eye(q), cross)
        square = sums.square - 2 * coef @ cross + coef @ gram @ coef
        sizes, left = sums.gram[0, 0], sums.cross[0] - coef @ sums.gram[0]
        present = jnp.sum(sizes > 0)
        by_group = jnp.sum(left**2 / jnp.maximum(sizes, 1e-300))
        total, floor = square / sums.num_rows, 0.01 * variance + 1e-300
        noise = (square - by_group) / jnp.maximum(sums.num_rows - present, 1)
        noise = jnp.clip(noise, 0.05 * total, total)
        spare = sums.num_rows - jnp.sum(sizes**2) / sums.num_rows
        between = (by_group - (present - 1) * noise) / jnp.maximum(spare, 1e-300)
        return LinearStart(
            coef,
            jnp.maximum(noise, floor),
            jnp.clip(between, 0.02 * total + floor, total + floor),
        )


def _with_ones(x: Float[Array, "n d"]) -> Float[Array, "n q"]:
    return jnp.concatenate([jnp.ones((len(x), 1)), x], axis=1)
