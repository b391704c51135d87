"""A mixed model with several grouping factors, crossed or nested::

    y_i = h(x_i)' beta + sum_f h_f(x_i)' alpha_{f, level of f} + e_i,   alpha_{f,k} ~ N(0, Omega_f)

Effects are independent between factors and between levels. Theta holds the free parameters of all
Omega_f one after another. Here the response is Gaussian, and h may be the features of a network;
other responses are in :mod:`nghvi.models.general_factors`.
"""

import abc
import dataclasses
import functools
import itertools
from collections.abc import Iterator

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float

from nghvi._core.variational import Variational
from nghvi._linalg import small
from nghvi._typing import Data, Key, Scalar
from nghvi.data.elimination import Elimination
from nghvi.data.factors import CrossedStatistics, Sums
from nghvi.data.panel import CrossedPanel
from nghvi.latents import conjugate, krylov, schur
from nghvi.latents import selected_inverse as inverse
from nghvi.models import lookups, parameters
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import LinearStart, MixedParams, Spread
from nghvi.networks import Skip
from nghvi.priors import EffectsPrior

PROBES, MORE, FRESH = 4, 4, 16
"""Numbers of random probes for a rest that is not dense: the first number, the factor by which a
refinement increases it, and the number that determines the level of the marginal in the end."""
LARGEST_COVARIANCE = 500_000
"""Number of covariances of effects beyond which predictions draw the effects instead."""

Effects = tuple[Float[Array, "k r"], ...]
"""A table with one row per level for every factor, in the order in which factors were given."""
Summed = CrossedStatistics | CrossedPanel
"""Sums over rows; the second kind is for features of a network, which change with theta."""


@dataclasses.dataclass(frozen=True)
class ByFactor:
    """Independent priors of the covariances of several factors, as one for their block diagonal."""

    parts: tuple[EffectsPrior, ...]
    effects: tuple[int, ...]
    """Number of effects of each factor."""
    correlated = True

    def _split(self, values: Array, sizes: Iterator[int]) -> list[tuple[EffectsPrior, Array, int]]:
        ends = list(itertools.accumulate(sizes))
        pieces = [values[..., a:b] for a, b in itertools.pairwise((0, *ends))]
        return list(zip(self.parts, pieces, self.effects, strict=True))

    def each(self, free: Float[Array, " free"]) -> list[tuple[EffectsPrior, Array, int]]:
        """Return every prior with its part of the free parameters and its number of effects."""
        return self._split(free, (p.size(n) for p, n in zip(self.parts, self.effects, strict=True)))

    def size(self, r: int) -> int:
        return sum(p.size(n) for p, n in zip(self.parts, self.effects, strict=True))

    def start(self, variances: Float[Array, " r"]) -> Float[Array, " free"]:
        split = self._split(variances, iter(self.effects))
        return jnp.concatenate([prior.start(part) for prior, part, _ in split])

    def precision_factor(self, free: Float[Array, " free"], r: int) -> Float[Array, "r r"]:
        return block_diag(*(p.precision_factor(part, n) for p, part, n in self.each(free)))

    def log_density(self, free: Float[Array, " free"], r: int) -> Scalar:
        densities = (p.log_density(part, n) for p, part, n in self.each(free))
        return sum(densities, jnp.zeros(()))

    def log_volume(self, free: Float[Array, " free"], r: int) -> Scalar:
        return sum((p.log_volume(part, n) for p, part, n in self.each(free)), jnp.zeros(()))

    def sample(
        self, rng: np.random.Generator, number: int, r: int
    ) -> Float[np.ndarray, "number free"]:
        drawn = [p.sample(rng, number, n) for p, n in zip(self.parts, self.effects, strict=True)]
        return np.concatenate(drawn, axis=1)

    def stated(self, effect: int | None) -> str:
        """Return the prior of an effect in words; effects are numbered over all factors."""
        if effect is None:
            return self.parts[0].stated(None)
        for prior, number in zip(self.parts, self.effects, strict=True):
            if effect < number:
                return prior.stated(effect)
            effect -= number
        raise IndexError(effect)


class WithFactors(MixedModel):
    """A model with several factors, whatever the response: coordinates and priors of the effects.

    ``random``: the features with effects, listed factor by factor.
    """

    parts: tuple[EffectsPrior, ...] = eqx.field(static=True, default=())
    """The prior of the Omega of each factor."""
    effects: tuple[int, ...] = eqx.field(static=True, default=())
    """How many entries of ``random`` belong to each factor."""

    @property
    def effects_prior(self) -> ByFactor:
        return ByFactor(self.parts, self.effects)

    @property
    def by_factor(self) -> tuple[tuple[int, ...], ...]:
        """Features with effects, by factor."""
        ends = itertools.accumulate(self.effects)
        return tuple(self.random[a:b] for a, b in itertools.pairwise((0, *ends)))

    def _free_effects(self, params: MixedParams) -> tuple[Float[Array, " free"], Scalar]:
        if self.effects_unit is None:
            return params.effects, jnp.zeros(())
        found = [
            parameters.to_free(part, unit, prior.correlated)
            for (prior, part, _), unit in zip(
                self.effects_prior.each(params.effects), self._units, strict=True
            )
        ]
        free, log_jacobians = zip(*found, strict=True)
        return jnp.concatenate(free), sum(log_jacobians, jnp.zeros(()))

    def effects_from_free(self, free: Float[Array, " free"]) -> Float[Array, " free"]:
        if self.effects_unit is None:
            return free
        parts = zip(self.effects_prior.each(free), self._units, strict=True)
        return jnp.concatenate(
            [parameters.from_free(part, unit, prior.correlated) for (prior, part, _), unit in parts]
        )

    @property
    def _units(self) -> list[Float[Array, " r"]]:
        ends = itertools.accumulate(self.effects)
        assert self.effects_unit is not None
        return [self.effects_unit[a:b] for a, b in itertools.pairwise((0, *ends))]

    def precision_factors(self, params: MixedParams) -> tuple[Float[Array, "r r"], ...]:
        """Return L of every factor, in the order in which factors were given."""
        free, _ = self._free_effects(params)
        return tuple(p.precision_factor(part, n) for p, part, n in self.effects_prior.each(free))

    def coloured(
        self, whitened: tuple[Array, ...], params: MixedParams, plan: Elimination
    ) -> Effects:
        """Return effects in the order and units of the factors, given whitened ones."""
        lower = self.precision_factors(params)
        given = plan.in_given_order(whitened)
        return tuple(conjugate.colour(u, root) for u, root in zip(given, lower, strict=True))

    def coloured_moments(
        self, means: tuple[Array, ...], covariances: tuple, params: MixedParams, plan: Elimination
    ) -> tuple[tuple[Float[Array, "k r"], Float[Array, "r r k"]], ...]:
        """Return means and covariances of every level, converted as in :meth:`coloured`."""
        halves = map(small.inverse_lower, self.precision_factors(params))
        parts = zip(
            self.coloured(means, params, plan),
            plan.in_given_order(covariances),
            halves,
            strict=True,
        )
        return tuple((m, jnp.einsum("ai,abk,bj->ijk", half, c, half)) for m, c, half in parts)

    @abc.abstractmethod
    def moments_by_factor(
        self, key: Key, params: MixedParams, data: Data
    ) -> tuple[tuple[Float[Array, "k r"], Float[Array, "r r k"]], ...]:
        """Return the conditional mean and covariance of the effects of every factor."""

    def log_joint_moving(
        self, params: MixedParams, anchor: MixedParams, latents: Effects, data: Data
    ) -> Scalar:
        return self.log_joint(params, latents, data)

    def init_latents(self, key: Key, params: MixedParams, data: Data) -> Effects:
        return self.draw_effects(key, params, data)

    def sample_latents(
        self, key: Key, params: MixedParams, latents: Effects, data: Data
    ) -> Effects:
        return self.draw_effects(key, params, data)


class SeveralFactors(WithFactors):
    """Several factors with a Gaussian response, whose effects all integrate out exactly.

    ``num_probes``: number of random signs that estimate a determinant too large to compute; 0 if
    none is. ``lookup``: if given, it replaces most eliminations.
    """

    num_probes: int = eqx.field(static=True, default=0)
    lookup: lookups.Lookup | None = None

    def suited(self, data: Summed) -> "SeveralFactors":
        if isinstance(data, CrossedPanel):
            if not isinstance(self.trunk, Skip):
                return self
            return dataclasses.replace(self, start=LinearStart.of_factors(data, self.effects))
        noise = min(map(parameters.noise_within, data.factors))
        units = [parameters.effects_units(factor, noise) for factor in data.factors]
        levels = [factor.num_groups for factor in data.factors]
        each = np.repeat(levels, self.effects).tolist()
        spread = Spread.of(self, data.factors[0], each)
        return dataclasses.replace(
            self,
            effects_unit=jnp.concatenate(units),
            spread=spread,
            num_probes=0 if data.plan.dense else PROBES,
        )

    def evaluation_size(self, data: Summed) -> int:
        if self.lookup is not None:
            return self.lookup.coefficients.size
        rows = data.rows_read * self.trunk.num_features
        return rows + data.plan.size * max(self.num_probes, 1)

    def is_drawn(self, data: Summed) -> bool:
        return not data.plan.dense

    def refined(self) -> "SeveralFactors":
        if not self.num_probes:
            return self
        return dataclasses.replace(self, num_probes=MORE * self.num_probes, lookup=None)

    def looks_up(self, data: Summed) -> bool:
        return isinstance(data, CrossedStatistics) and lookups.is_worth_while(self, data)

    def with_lookup(self, q: Variational, data: Summed) -> "SeveralFactors":
        if not (isinstance(data, CrossedStatistics) and lookups.is_worth_while(self, data)):
            return self
        return dataclasses.replace(self, lookup=lookups.fitted(self, data, q))

    def deviations(self, params: MixedParams, data: Summed) -> Float[Array, " s"] | None:
        if self.lookup is None or not isinstance(data, CrossedStatistics):
            return None
        return lookups.deviations(params, self, data)

    def plain(self) -> "SeveralFactors":
        return dataclasses.replace(self, lookup=None)

    @property
    def one_by_one(self) -> bool:
        return self.lookup is not None  # since it is looked up or not

    def sums(self, params: MixedParams, data: Summed) -> Sums:
        """Return the sums over all rows at these parameters, in the order of elimination."""
        features = functools.partial(self.features, params)
        return data.sums(features, self.all_coef(params), self.by_factor)

    def system(self, params: MixedParams, data: Summed) -> schur.System:
        """Return the linear system that the whitened effects of all factors solve."""
        return self._whitened(self.sums(params, data), params, data.plan)

    def _whitened(self, sums: Sums, params: MixedParams, plan: Elimination) -> schur.System:
        lower = self.precision_factors(params)
        return schur.System.whiten(
            *(sums.gram, sums.cells, sums.rest_cells, sums.cross),
            jnp.exp(params.dispersion[0]),
            tuple(lower[f] for f in plan.order),
            plan,
        )

    def joint_conditional(self, params: MixedParams, data: Summed) -> schur.Conditional:
        """Return the exact conditional of the whitened effects of all factors."""
        return schur.condition(schur.reduce(self.system(params, data), data.plan))

    def probes(self, plan: Elimination) -> Float[Array, "s m"]:
        """Return the random signs that are common to all theta."""
        return krylov.common_signs(self.num_probes, plan.num_rest)

    def log_marginal(self, params: MixedParams, data: Summed) -> Scalar:
        if self.lookup is None:
            return self.computed_log_marginal(params, data)
        return lookups.log_marginal(params, self, data)

    def computed_log_marginal(self, params: MixedParams, data: Summed) -> Scalar:
        """Return :meth:`log_marginal` by eliminating the effects."""
        sums, plan = self.sums(params, data), data.plan
        system, noise_var = self._whitened(sums, params, plan), jnp.exp(params.dispersion[0])
        effects = inverse.log_evidence(system, plan, self.probes(plan))
        noise = inverse.log_noise(sums.square, sums.num_rows, noise_var)
        return noise + effects + self.log_prior(params)

    def log_marginal_afresh(
        self, key: Key, params: MixedParams, data: Summed
    ) -> tuple[Scalar, Scalar]:
        sums, plan = self.sums(params, data), data.plan
        system, noise_var = self._whitened(sums, params, plan), jnp.exp(params.dispersion[0])
        effects = inverse.solved(system, plan, krylov.signs(key, FRESH, plan.num_rest))
        noise = inverse.log_noise(sums.square, sums.num_rows, noise_var)
        return noise + effects.log_evidence + self.log_prior(params), effects.error

    def log_joint(self, params: MixedParams, latents: Effects, data: Summed) -> Scalar:
        return self.log_marginal(params, data) + self.log_conditional(params, latents, data)

    def log_conditional(self, params: MixedParams, latents: Effects, data: Summed) -> Scalar:
        lower, plan = self.precision_factors(params), data.plan
        whitened = [(effects @ root).T for effects, root in zip(latents, lower, strict=True)]
        in_order = tuple(whitened[f] for f in plan.order)
        log_dets = (
            len(effects) * jnp.sum(jnp.log(jnp.diagonal(root)))
            for effects, root in zip(latents, lower, strict=True)
        )
        density = inverse.log_density(self.system(params, data), plan, self.probes(plan), in_order)
        return density + sum(log_dets)

    def draw_effects(
        self, key: Key, params: MixedParams, data: Summed, sign: float | Scalar = 1.0
    ) -> Effects:
        """Return a draw of the effects; ``sign`` multiplies its deviation from the mean.

        The mean of two draws of opposite sign is exact.
        """
        system, plan = self.system(params, data), data.plan
        reduced = schur.reduce(system, plan)
        if plan.dense:
            drawn = schur.sample(key, schur.condition(reduced), plan, sign)
        else:
            drawn = krylov.draw(key, krylov.rest_of(system, reduced, plan), plan, sign)
        return self.coloured(drawn, params, plan)

    def draws_for(self, data: Summed) -> bool:
        """Return whether predictions draw effects because their covariances are too many."""
        first, *others = data.plan.columns
        return not data.plan.dense or max(first, sum(others)) * sum(others) > LARGEST_COVARIANCE

    def moments_by_factor(
        self, key: Key, params: MixedParams, data: Summed
    ) -> tuple[tuple[Float[Array, "k r"], Float[Array, "r r k"]], ...]:
        plan = data.plan
        probes = krylov.signs(key, self.num_probes, plan.num_rest)
        found = inverse.solved(self.system(params, data), plan, probes)
        return self.coloured_moments(found.mean, found.covariance.diagonal, params, plan)
