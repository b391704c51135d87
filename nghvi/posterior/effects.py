"""The effects of known and new groups at rows, for one grouping factor or several.

A row's predictor is h'beta + sum_f z_f' alpha_f, with one level of every factor f. Given theta, the
effects of known levels have their exact conditional distribution; those of levels never seen are
independent of it, N(0, Omega_f). The posterior asks for a model's effects through the methods of
:class:`EffectsAtRows`; a model with other effects registers its own class with :func:`effects_of`.
"""

import functools
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi._core.draws import flat_normal
from nghvi._typing import Data, Key, Scalar
from nghvi.data import Rows
from nghvi.data.elimination import Elimination
from nghvi.data.factors import CrossedRows, CrossedStatistics
from nghvi.data.panel import CrossedPanel
from nghvi.latents import conjugate, integrate, rules, schur
from nghvi.latents.rows import whiten_design
from nghvi.models.general_factors import GeneralFactors
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.models.several_factors import Effects, SeveralFactors, WithFactors
from nghvi.priors import EffectsPrior

ROWS_AT_ONCE = 20_000
"""How many rows look up their group's covariance at a time; bounds memory."""

Predictor = tuple[Float[Array, " n"], Float[Array, " n"]]
"""Mean and variance of a part of every row's predictor."""
Moments = tuple[tuple[Float[Array, "k r"], Float[Array, "r r k"]], ...]
"""Mean and covariance of the effects of every level, for every factor."""


class EffectsAtRows(eqx.Module):
    """The effects of a model with one grouping factor.

    In its methods, ``parts`` are the data of all known groups: those of the fit, then those that
    were added. ``codes`` hold the position of each row's group among the known groups; new groups
    have further numbers, one each. With several factors, ``codes`` have one column per factor.
    """

    model: MixedModel

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many effects each factor has."""
        return (self.model.num_effects,)

    @property
    def priors(self) -> tuple[EffectsPrior, ...]:
        """The prior of the effects' covariance Omega, one per factor."""
        return (self.model.effects_prior,)

    def num_known(self, parts: tuple[Data, ...]) -> Int[np.ndarray, "..."]:
        """Return how many levels are known: one number, or an array with one per factor."""
        return np.array(sum(part.num_groups for part in parts))

    def in_pairs(self, data: Data) -> bool:
        """Return whether draws that are averaged should come in pairs of opposite deviations."""
        return False

    def precision_factors(self, params: MixedParams) -> tuple[Float[Array, "r r"], ...]:
        """Return the Cholesky factor of the effects' precision, one per factor."""
        return (self.model.precision_factor(params),)

    def labelled(self, data: Data, tables: Effects) -> Effects:
        """Return tables of effects with their rows in the order of the levels' labels."""
        return (data.in_original_order(tables[0]),)

    def draw(self, key: Key, params: MixedParams, data: Data) -> Effects:
        """Draw the effects of all levels in some data; rows are in the order of their labels."""
        return self.labelled(data, (self.model.draw_effects(key, params, data),))

    def draw_all(self, key: Key, params: MixedParams, parts: tuple[Data, ...]) -> Effects:
        """Draw the effects of all known levels, including those that were added after the fit."""
        keys = jax.random.split(key, len(parts))
        drawn = [self.draw(k, params, part) for k, part in zip(keys, parts, strict=True)]
        return tuple(map(jnp.concatenate, zip(*drawn, strict=True)))

    def with_new(
        self, known: Effects, params: MixedParams, key: Key, number: tuple[int, ...]
    ) -> Effects:
        """Append to every factor's table ``number`` new levels, drawn from the population."""
        keys = [key] if len(known) == 1 else jax.random.split(key, len(known))
        parts = zip(known, keys, self.precision_factors(params), number, strict=True)
        return tuple(
            jnp.concatenate([table, conjugate.colour(flat_normal(k, (len(lower), new)), lower)])
            for table, k, lower, new in parts
        )

    def at_rows(
        self, design: Float[Array, "n r"], tables: Effects, codes: Int[Array, "n ..."]
    ) -> Float[Array, " n"]:
        """Return sum_f z_f' alpha_f for every row, from tables with a row for every code."""
        levels = codes.reshape(len(design), -1).T
        parts = zip(self._split(design), tables, levels, strict=True)
        found = (jnp.sum(z * table[at], axis=1) for z, table, at in parts)
        return sum(found, jnp.zeros(len(design)))

    def _split(self, design: Float[Array, "n r"]) -> list[Float[Array, "n r"]]:
        return jnp.split(design, list(itertools.accumulate(self.sizes))[:-1], axis=1)

    def predictor(
        self,
        draw: tuple[Key, MixedParams, Scalar],
        design: Float[Array, "n r"],
        codes: Int[Array, "n ..."],
        parts: tuple[Data, ...],
    ) -> Predictor:
        """Return mean and variance of the effects' part of every row's predictor given theta.

        ``draw`` is a key, the parameters, and a sign. If the effects of known levels cannot be
        integrated out they are drawn, with this sign of their deviation from the mean where that is
        known; the variance is then that of new levels alone.
        """
        key, params, sign = draw
        number = self.num_known(parts)
        rows = self._at_known(params, design, codes, number)
        if self.are_integrated(parts[0]):
            mean, variance = self._moments_at(params, rows, parts)
            return mean, variance + rows.population
        levels = zip(np.atleast_1d(number), self.sizes, strict=True)
        # Drawing is expensive, and predictions for the population need none.
        tables = jax.lax.cond(
            jnp.any(codes < number),
            lambda: self._draw_for_predictor(key, params, sign, parts),
            lambda: tuple(jnp.zeros((k, r)) for k, r in levels),
        )
        return self.at_rows(rows.design, tables, rows.position), rows.population

    def are_integrated(self, data: Data) -> bool:
        """Return whether effects are integrated out of predictions; they are normal given theta."""
        return self.model.response.conjugate

    @property
    def num_points(self) -> int:
        """The number of quadrature points of :meth:`at_points`; 0 if it is not available."""
        model = self.model
        if model.in_closed_form or not 1 <= model.num_effects <= rules.LARGEST_PRODUCT:
            return 0
        return rules.num_points(self._nodes, model.num_effects)

    @property
    def _nodes(self) -> int:
        return max(self.model.nodes, rules.first_nodes(self.model.num_effects))

    def at_points(
        self,
        params: MixedParams,
        design: Float[Array, "n r"],
        codes: Int[Array, " n"],
        parts: tuple[Data, ...],
    ) -> tuple[Float[Array, "j n"], Float[Array, "j n"]]:
        """Return the effects' part of the predictor at quadrature points, and their probabilities.

        Codes of rows that belong to new groups are read as that of some known group.
        """
        weighed = [
            integrate.weighed_nodes(self.model.row_problem(params, part), self._nodes)
            for part in parts
        ]
        order, first = [], 0
        for part in parts:
            order.append(first + part.original_order)
            first += part.num_groups
        at = jnp.concatenate(order)[jnp.minimum(codes, first - 1)]
        nodes = jnp.concatenate([each.nodes for each in weighed], axis=-1)[..., at]
        shares = jnp.exp(jnp.concatenate([each.log_share for each in weighed], axis=-1)[:, at])
        white = whiten_design(design, self.precision_factors(params)[0])
        return jnp.sum(white.T * nodes, axis=1), shares

    def population_at(
        self,
        params: MixedParams,
        design: Float[Array, "n r"],
        codes: Int[Array, "n ..."],
        parts: tuple[Data, ...],
    ) -> Float[Array, " n"]:
        """Return the variance that the effects of new levels add to every row's predictor."""
        return self._at_known(params, design, codes, self.num_known(parts)).population

    def _at_known(
        self, params: MixedParams, design: Float[Array, "n r"], codes: Array, number: np.ndarray
    ) -> "AtKnown":
        known = (codes < number).reshape(len(design), -1).T
        white, seen, population = [], [], jnp.zeros(len(design))
        lower = self.precision_factors(params)
        for z, root, k in zip(self._split(design), lower, known, strict=True):
            each = whiten_design(z, root)
            population += jnp.where(k, 0.0, jnp.sum(each**2, axis=1))
            white.append(jnp.where(k[:, None], each, 0.0))
            seen.append(jnp.where(k[:, None], z, 0.0))
        position = jnp.minimum(codes, number - 1)
        return AtKnown(jnp.concatenate(seen, axis=1), white, position, population)

    def _moments_at(
        self, params: MixedParams, rows: "AtKnown", parts: tuple[Data, ...]
    ) -> Predictor:
        mean, covariance = self._conditional(params, parts)

        def variance_of(row: tuple[Array, Array]) -> Array:
            return row[0] @ covariance[row[1]] @ row[0]

        at = (rows.design, rows.position)
        variance = jax.lax.map(variance_of, at, batch_size=ROWS_AT_ONCE)
        return self.at_rows(rows.design, (mean,), rows.position), variance

    def _draw_for_predictor(
        self, key: Key, params: MixedParams, sign: Scalar, parts: tuple[Data, ...]
    ) -> Effects:
        return self.draw_all(key, params, parts)

    def _conditional(
        self, params: MixedParams, parts: tuple[Data, ...]
    ) -> tuple[Float[Array, "k r"], Float[Array, "k r r"]]:
        """Return conditional means and covariances of all groups, in the order of their labels."""
        means, covariances = [], []
        for part in parts:
            mean, covariance = conjugate.moments(self.model.conditional(params, part))
            means.append(part.in_original_order(mean))
            covariances.append(part.in_original_order(jnp.moveaxis(covariance, -1, 0)))
        return jnp.concatenate(means), jnp.concatenate(covariances)

    def mean_squares(self, params: MixedParams, data: Data) -> Float[Array, " r"]:
        """Return the mean square of every column with effects, over the rows of the data."""
        coef, random = self.model.all_coef(params), self.model.random
        moments = data.moments(lambda x: self.model.features(params, x), coef, random)
        return jnp.diagonal(jnp.sum(moments.gram, axis=-1)) / moments.num_rows

    def moments(self, key: Key, params: MixedParams, data: Data) -> Moments:
        """Return means and covariances of the effects given theta, in the data's own order.

        Where they have no closed form, the means are one draw and the covariances are 0.
        """
        return (self.model.effect_moments(key, params, data),)


class AtKnown(NamedTuple):
    """The design of some rows for known levels, and the variance that new levels add."""

    design: Float[Array, "n r"]
    """Columns with effects; 0 where a row's level is new."""
    white: list[Float[Array, "n r"]]
    """The design for effects whitened by their covariance, one matrix per factor."""
    position: Int[Array, "n ..."]
    """Codes of the rows' levels; those of new levels are replaced by a valid one."""
    population: Float[Array, " n"]
    """Variance that the effects of new levels add to the predictor."""


class FactorsAtRows(EffectsAtRows):
    """The effects of several grouping factors."""

    model: WithFactors

    @property
    def num_points(self) -> int:
        return 0

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.model.effects

    @property
    def priors(self) -> tuple[EffectsPrior, ...]:
        return self.model.parts

    def num_known(self, parts: tuple[Data, ...]) -> Int[np.ndarray, "..."]:
        return np.array(parts[0].num_levels)

    def precision_factors(self, params: MixedParams) -> tuple[Float[Array, "r r"], ...]:
        return self.model.precision_factors(params)

    def labelled(self, data: CrossedStatistics | CrossedRows, tables: Effects) -> Effects:
        return data.labelled(tables)

    def draw(self, key: Key, params: MixedParams, data: Data) -> Effects:
        return self.labelled(data, self.model.draw_effects(key, params, data))

    def mean_squares(self, params: MixedParams, data: Data) -> Float[Array, " r"]:
        rows = data if isinstance(data, Rows) else data.rows
        design = self.model.design(self.model.features(params, rows.x))
        return jnp.sum(rows.weighted(design**2), axis=0) / rows.num_rows

    def moments(self, key: Key, params: MixedParams, data: Data) -> Moments:
        return self.model.moments_by_factor(key, params, data)


class SummedFactorsAtRows(FactorsAtRows):
    """The effects of several factors with a Gaussian response, where levels of a row correlate.

    If there are too many covariances to keep, effects are drawn instead, in pairs of opposite
    deviations from their mean, so that the average of a pair is exact.
    """

    model: SeveralFactors

    def in_pairs(self, data: CrossedStatistics | CrossedPanel) -> bool:
        return self.model.draws_for(data)

    def are_integrated(self, data: CrossedStatistics | CrossedPanel) -> bool:
        return not self.model.draws_for(data)

    def known_design(
        self,
        params: MixedParams,
        x: Float[Array, "n d"],
        codes: Int[Array, "n f"],
        data: CrossedStatistics,
    ) -> list[tuple[Float[Array, "n r"], Int[Array, " n"]]]:
        """Return each factor's columns, 0 at new levels, and the positions of its levels."""
        design = self.model.design(self.model.features(params, x))
        rows = self._at_known(params, design, codes, self.num_known((data,)))
        levels = data.in_memory(tuple(rows.position.T))
        return list(zip(self._split(rows.design), levels, strict=True))

    def _moments_at(self, params: MixedParams, rows: AtKnown, parts: tuple[Data, ...]) -> Predictor:
        model, data = self.model, parts[0]
        conditional = model.joint_conditional(params, data)
        means = model.coloured(schur.mean(conditional, data.plan), params, data.plan)
        memory = list(data.in_memory(tuple(rows.position.T)))
        covariance = schur.covariance(conditional, data.plan)
        variance = _row_variance(covariance, data.plan, rows.white, memory)
        return self.at_rows(rows.design, self.labelled(data, means), rows.position), variance

    def _draw_for_predictor(
        self, key: Key, params: MixedParams, sign: Scalar, parts: tuple[Data, ...]
    ) -> Effects:
        effects = self.model.draw_effects(key, params, parts[0], sign)
        return self.labelled(parts[0], effects)

    def mean_squares(self, params: MixedParams, data: Data) -> Float[Array, " r"]:
        if isinstance(data, Rows):
            return super().mean_squares(params, data)
        sums = self.model.sums(params, data)
        squares = [jnp.diagonal(jnp.sum(gram, axis=-1)) for gram in sums.gram]
        return jnp.concatenate(data.plan.in_given_order(tuple(squares))) / sums.num_rows


@functools.singledispatch
def effects_of(model: Any) -> EffectsAtRows:
    """Return the object through which the posterior asks for a model's effects."""
    return EffectsAtRows(model)


effects_of.register(SeveralFactors, SummedFactorsAtRows)
effects_of.register(GeneralFactors, FactorsAtRows)


def average_moments(
    effects: EffectsAtRows,
    data: Data,
    keys: Key,
    params: MixedParams,
    to_raw: tuple[Float[Array, "r r"], ...],
) -> tuple[tuple[Float[Array, "k r"], Float[Array, "k r"]], ...]:
    """Return E[alpha] and E[alpha^2] of every factor over draws of theta, storing no draws.

    ``to_raw`` has one matrix per factor, which maps its effects to the scale of the data.
    """

    def add(total: tuple, draw: tuple[Key, MixedParams]) -> tuple[tuple, None]:
        found = []
        moments = effects.moments(*draw, data)
        for (mean, cov), (first, second), back in zip(moments, total, to_raw, strict=True):
            raw = mean @ back.T
            variance = jnp.einsum("ia,abk,ib->ki", back, cov, back)
            found.append((first + raw, second + raw**2 + variance))
        return tuple(found), None

    levels = np.atleast_1d(effects.num_known((data,)))
    zero = tuple((jnp.zeros((k, r)),) * 2 for k, r in zip(levels, effects.sizes, strict=True))
    sums, _ = jax.lax.scan(add, zero, (keys, params))
    number = len(keys)
    means, squares = (tuple(each / number for each in half) for half in zip(*sums, strict=True))
    pairs = zip(effects.labelled(data, means), effects.labelled(data, squares), strict=True)
    return tuple(pairs)


def _row_variance(
    covariance: schur.Covariance,
    plan: Elimination,
    design: list[Float[Array, "n r"]],
    level: list[Int[Array, " n"]],
) -> Float[Array, " n"]:
    """Return z' Cov z of rows; ``design`` and ``level`` list the factors in their given order."""
    first = plan.order[0]
    own = covariance.own[level[first]]
    total = jnp.einsum("ni,nij,nj->n", design[first], own, design[first])
    columns, values, start = [], [], 0
    for f, r, k in zip(plan.order[1:], plan.effects[1:], plan.levels[1:], strict=True):
        columns += [start + level[f] * r + effect for effect in range(r)]
        values += list(design[f].T)
        start += k * r
    for i, (column, value) in enumerate(zip(columns, values, strict=True)):
        cross = jnp.sum(design[first] * covariance.cross[level[first], :, column], axis=1)
        total += 2 * value * cross
        for other, factor in zip(columns[: i + 1], values[: i + 1], strict=True):
            twice = 1 if other is column else 2
            total += twice * value * factor * covariance.others[column, other]
    return total
