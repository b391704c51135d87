"""The posterior of a fitted mixed model, on the scale of the user's data.

Draws of theta come from the weighted pool; given theta, effects are drawn from their exact
conditional distribution. For a linear model everything is mapped back to the raw columns; for a
network the inputs stay standardised and only the response is mapped back.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import block_diag

from nghvi._core.errors import DataError
from nghvi._core.model import unraveller
from nghvi._linalg.small import one_thread
from nghvi._programs import program
from nghvi._typing import Data
from nghvi.data import Rows
from nghvi.data.factors import FactorRows
from nghvi.data.labels import encode_groups, examples, joined
from nghvi.data.scaling import Scaling
from nghvi.data.source import Groups
from nghvi.data.working_copy import StreamedRows
from nghvi.inference import Inference, unravel_draws
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.models.several_factors import WithFactors
from nghvi.models.smallest_form import prepare
from nghvi.posterior.effects import average_moments, effects_of
from nghvi.recipes.importance import PER_PARAMETER

FEW, ENOUGH, MANY = 100, 250, 2000
"""How many draws of theta moments of effects are averaged over: if each of them is expensive; if
they have the mean and covariance of all draws; and otherwise."""


class GroupingFactor(NamedTuple):
    """The names of one of several grouping factors, of its effects and of its levels."""

    name: str
    effects: tuple[str, ...]
    levels: np.ndarray


class Named(NamedTuple):
    """The names of a model's features, effects and groups."""

    features: tuple[str, ...]
    effects: tuple[str, ...]
    """Names of the effects; with several factors those of all, such as ``intercept | month``."""
    groups: np.ndarray
    """Labels of the groups; empty if there are several factors, each of which has its own."""
    factors: tuple[GroupingFactor, ...] = ()

    @staticmethod
    def of_factors(
        features: tuple[str, ...], effects: list[tuple[str, ...]], levels: Mapping[str, np.ndarray]
    ) -> "Named":
        """Return the names of a model with several factors.

        ``effects`` and ``levels`` list the factors in the same order.
        """
        each = zip(levels.items(), effects, strict=True)
        factors = tuple(GroupingFactor(name, own, labels) for (name, labels), own in each)
        flat = tuple(f"{effect} | {f.name}" for f in factors for effect in f.effects)
        return Named(features, flat, np.array([]), factors)

    @property
    def labels(self) -> Groups:
        """Labels of all groups; a dictionary by factor if there are several factors."""
        return {factor.name: factor.levels for factor in self.factors} or self.groups

    @property
    def blocks(self) -> list[slice]:
        """The positions of every factor's effects among all effects."""
        sizes = [len(factor.effects) for factor in self.factors] or [len(self.effects)]
        return [slice(a, b) for a, b in itertools.pairwise((0, *itertools.accumulate(sizes)))]

    @property
    def correlations(self) -> dict[str, tuple[int, int]]:
        """The positions of every pair of effects of a factor, by the name of their correlation."""
        found = {}
        for f, block in enumerate(self.blocks):
            own = self.factors[f].effects if self.factors else self.effects
            for j in range(block.start, block.stop):
                for i in range(block.start, j):
                    first = own[i - block.start]
                    found[f"effects_corr[{first},{self.effects[j]}]"] = (i, j)
        return found


class MixedPosterior(NamedTuple):
    """The posterior of a fitted mixed model, with scales and names to report it in."""

    inference: Inference
    scaling: Scaling
    names: Named
    added: tuple[Data, ...] = ()
    """Data of groups that were added after the fit, in that order.

    With several factors, levels of one share those of the others, so that their data are not apart:
    one entry holds all rows, those of the fit included.
    """

    @property
    def parts(self) -> tuple[Data, ...]:
        """The data of all known groups: those of the fit, then those added since."""
        if self.names.factors and self.added:
            return self.added
        return (self.data, *self.added)

    @property
    def model(self) -> MixedModel:
        """The fitted model, which works on the fitted scale."""
        return cast(MixedModel, self.inference.model)

    @property
    def data(self) -> Data:
        """The training data in the form that the model reads."""
        return self.inference.data

    def log_units(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return by how much log densities on the fitted scale exceed those on the raw scale."""
        return np.log(self.scaling.y_scale) * self.model.response_at(x).has_density(y)

    def maps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the matrices that map fitted coefficients and effects to the raw scale."""
        q, random = len(self.names.features), self.model.random
        if not self.model.trunk.linear:
            return self.scaling.y_scale * np.eye(q), self.scaling.y_scale * np.eye(len(random))
        own = [self.scaling.back(random[block]) for block in self.names.blocks]
        return self.scaling.back(tuple(range(q))), block_diag(*own)

    def with_groups(
        self, x: np.ndarray, y: np.ndarray, labels: Any, column: Any
    ) -> tuple["MixedPosterior", np.ndarray]:
        """Return the posterior conditioned on rows of new groups as well, and these rows' codes.

        ``x`` and ``y`` are on the fitted scale; ``column`` is the name of the group column, which
        messages mention.
        """
        if labels is None:
            raise DataError("the model has no group column, so there are no groups to add.")
        if isinstance(labels, tuple):
            return self._with_levels(x, y, labels)
        levels, codes = np.unique(labels, return_inverse=True)
        before = self.names.groups
        known = levels[encode_groups(levels, before) >= 0]
        if known.size:
            raise DataError(
                f"group {examples(known[:1])} is already known: add_groups takes only new groups, "
                "so leave its rows out or refit with them."
            )
        names = self.names._replace(groups=joined(before, levels, column))
        part = prepare(self.model, Rows.from_arrays(x, y, codes, len(levels)))
        return self._replace(names=names, added=(*self.added, part)), codes + len(before)

    def _with_levels(
        self, x: np.ndarray, y: np.ndarray, labels: tuple[np.ndarray, ...]
    ) -> tuple["MixedPosterior", np.ndarray]:
        """Return the same as :meth:`with_groups` for several factors.

        Effects of known levels are conditioned on the new rows, too.
        """
        factors, columns = [], []
        for factor, own in zip(self.names.factors, labels, strict=True):
            codes, number = encode_groups(own, factor.levels), len(factor.levels)
            new = codes < 0
            if new.any():
                levels, index = np.unique(own[new], return_inverse=True)
                codes[new] = number + index
                levels = joined(factor.levels, levels, factor.name)
                factor = factor._replace(levels=levels)
            factors.append(factor)
            columns.append(codes)
        codes = np.column_stack(columns)
        known = (codes < [len(factor.levels) for factor in self.names.factors]).all(axis=1)
        if known.any():
            row = int(np.argmax(known))
            of_row = " and ".join(
                f"{factor.name!r} {own[row]!s}" for factor, own in zip(factors, labels, strict=True)
            )
            raise DataError(
                f"row {row}: {of_row} are already known: add_groups takes only rows with a new "
                "level of at least one factor, so leave the row out or refit with it."
            )
        model = cast(WithFactors, self.model)
        rows = FactorRows(x, y, codes, None, tuple(len(each.levels) for each in factors))
        part = self.parts[0].with_rows(rows, model.by_factor)
        if self.data.plan.dense and not part.plan.dense:
            raise DataError(
                f"with these levels all factors but the largest have {part.plan.num_rest:,} "
                "effects, more than the fit was set up for; refit with the new rows."
            )
        names = self.names._replace(factors=tuple(factors))
        return self._replace(names=names, added=(part,)), codes

    def check(self) -> None:
        """Raise an error if the parts are inconsistent, as those of an altered file may be.

        Only shapes are traced through later computations; no numbers are computed.
        """
        pool, scaling, names = self.inference.pool, self.scaling, self.names
        numbers = (pool.theta, pool.weight, scaling.centre, scaling.scale, scaling.y_centre)
        if not all(np.isfinite(np.asarray(each, float)).all() for each in numbers):
            raise DataError("draws or scales are not finite")
        if not (np.all(scaling.scale) and np.isfinite(scaling.y_scale) and scaling.y_scale > 0):
            raise DataError("a scale is 0 or not finite")
        if pool.theta.shape != (len(pool.weight), np.asarray(self.inference.q.centre).size):
            raise DataError("draws, weights and the variational distribution differ in size")
        if len(names.effects) != len(self.model.random):
            raise DataError("the number of effects differs from the number of their names")
        if names.factors:
            labels = [len(factor.levels) for factor in names.factors]
            if labels != list(self.parts[0].num_levels):
                raise DataError("the number of levels differs from the number of their labels")
        elif names.effects and len(names.groups) != sum(part.num_groups for part in self.parts):
            raise DataError("the number of groups differs from the number of their labels")
        key, theta = jax.random.split(jax.random.key(0), 1), jax.device_put(pool.theta[:1])
        params = eqx.filter_eval_shape(unravel_draws, self.model, self.data, theta)
        if params.coef.shape[-1] != len(names.features):
            raise DataError("the number of coefficients differs from the number of their names")
        eqx.filter_eval_shape(precision_factors, self.model, params)
        for part in self.parts:
            if names.effects and not isinstance(part, StreamedRows):
                settings = key, theta, self._effects_maps()
                eqx.filter_eval_shape(_average_moments, self.model, part, *settings)

    def features_are_constant(self) -> bool:
        """Return whether the network gives every row the same features, at the centre of q.

        About a thousand rows from all over the data are compared, since neighbours may have the
        same inputs.
        """
        if self.model.trunk.linear:
            return False
        spread = np.asarray(self.data.x)[:: max(1, len(self.data.x) // 1000)]
        centre, spread = self.inference.q.centre, jax.device_put(spread)
        features = np.asarray(_features(self.model, self.data, centre, spread))
        return bool(np.ptp(features, axis=0).max() < 1e-12)

    def globals_at(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return coef, effects_cov and the response's own parameters, raw, for rows of theta."""
        return self.globals_of(unravel_draws(self.model, self.data, theta))

    @np.errstate(over="ignore", invalid="ignore")  # a fit that failed may hold anything
    def globals_of(self, params: MixedParams) -> dict[str, np.ndarray]:
        """Return the same as :meth:`globals_at` for draws of named parameters."""
        coef_map, effects_map = self.maps()
        coef = np.asarray(_coefs(self.model, params)) @ coef_map.T
        coef[:, 0] += self.scaling.y_centre  # 0 unless the first feature is the intercept
        lower = np.array(precision_factors(self.model, params))
        # A precision that has underflowed has no inverse, which NaN makes visible.
        lower[(np.diagonal(lower, axis1=1, axis2=2) == 0).any(axis=1)] = np.nan
        root = effects_map @ np.linalg.inv(lower).transpose(0, 2, 1)
        reported = self.model.response.reported(
            _dispersions(self.model, params), self.scaling.y_scale, coef[:, 0]
        )
        return {
            "coef": coef,
            **{name: np.asarray(values) for name, values in reported.items()},
            "effects_cov": root @ root.transpose(0, 2, 1),
        }

    @one_thread
    def joint(self, number: int, seed: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return joint draws of theta, (S, m), and of every factor's effects, (S, K, r).

        Both are on the fitted scale.
        """
        if isinstance(self.data, StreamedRows):
            raise DataError(
                f"draws of the effects of {self.data.num_groups} groups on disk would not fit into "
                "memory; use group_effects(), or predict the rows you need."
            )
        theta = self.inference.pool.resample(number, np.random.default_rng(seed))
        keys = jax.random.split(jax.random.key(seed), (len(self.parts), number))
        drawn = [
            _draw_effects(self.model, part, key, jax.device_put(theta))
            for part, key in zip(self.parts, keys, strict=True)
        ]
        return theta, tuple(np.concatenate(own, axis=1) for own in zip(*drawn, strict=True))

    def at(self, theta: np.ndarray, effects: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
        """Return globals and effects of joint draws on the raw scale, by name.

        With several factors the names are of the form ``effects[month]``.
        """
        found, to_raw = self.globals_at(theta), self.maps()[1]
        if not self.names.factors:
            return {**found, "effects": effects[0] @ to_raw.T}
        covariance = found.pop("effects_cov")
        parts = zip(self.names.factors, self.names.blocks, effects, strict=True)
        for factor, block, own in parts:
            found[f"effects_cov[{factor.name}]"] = covariance[:, block, block]
            found[f"effects[{factor.name}]"] = own @ to_raw[block, block].T
        return found

    def draws(self, number: int, seed: int) -> dict[str, np.ndarray]:
        """Return joint draws of globals and effects on the raw scale, by name."""
        return self.at(*self.joint(number, seed))

    @one_thread
    def effect_moments(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return posterior mean and sd of every factor's effects, (K, r) each, on the raw scale.

        Where conditional moments given theta are known exactly, the draws of theta over which they
        are averaged are the only source of noise.
        """
        number, pool, rng = self._affordable(), self.inference.pool, np.random.default_rng(0)
        enough = max(ENOUGH, PER_PARAMETER * pool.theta.shape[1])
        if number <= FEW:
            theta = pool.few(FEW, rng)
        elif self.model.many_modes or enough > MANY or not self.model.marginal_is_exact:
            theta = pool.resample(min(MANY, number), rng)
        else:
            theta = pool.matched(min(enough, number), rng)
        keys = jax.random.split(jax.random.key(0), len(theta))
        settings = keys, jax.device_put(theta), self._effects_maps()

        def average(part: Data) -> tuple:
            if isinstance(part, StreamedRows):
                return (
                    part.by_group(lambda piece: _average_moments(self.model, piece, *settings)[0]),
                )
            return _average_moments(self.model, part, *settings)

        found = []
        for of_factor in zip(*map(average, self.parts), strict=True):
            mean, square = (np.concatenate(each) for each in zip(*of_factor, strict=True))
            found.append((mean, np.sqrt(np.maximum(square - mean**2, 0.0))))
        return found

    def _effects_maps(self) -> tuple[Array, ...]:
        to_raw = self.maps()[1]
        return tuple(jax.device_put(to_raw[block, block]) for block in self.names.blocks)

    def _affordable(self) -> int:
        size = sum(self.model.evaluation_size(part) for part in self.parts)
        return max(FEW, int(4e8 // (size + 1)))


@program
def _dispersions(model: MixedModel, params: MixedParams) -> Array:
    return jax.vmap(model.dispersion)(params)


@program
def _coefs(model: MixedModel, params: MixedParams) -> Array:
    return jax.vmap(model.coef)(params)


@program
def precision_factors(model: MixedModel, params: MixedParams) -> Float[Array, "s r r"]:
    """Return Cholesky factors of the effects' precision for parameters with a leading axis."""
    return jax.vmap(model.precision_factor)(params)


@program
def _features(model: MixedModel, data: Data, theta: Array, x: Array) -> Array:
    return model.features(params_at(model, data, theta), x)


def params_at(model: MixedModel, data: Data, theta: Array) -> MixedParams:
    """Return the named parameters that one vector theta holds."""
    return unraveller(model, data)(theta)


@program
def _draw_effects(model: MixedModel, data: Data, keys: Array, theta: Array) -> tuple[Array, ...]:
    def one(draw: tuple[Array, Array]) -> tuple[Array, ...]:
        return effects_of(model).draw(draw[0], params_at(model, data, draw[1]), data)

    return jax.lax.map(one, (keys, theta))


@program
def _average_moments(
    model: MixedModel, data: Data, keys: Array, theta: Array, to_raw: tuple[Array, ...]
) -> tuple[tuple[Array, Array], ...]:
    params = jax.vmap(unraveller(model, data))(theta)
    return average_moments(effects_of(model), data, keys, params, to_raw)
