"""Several grouping factors and a response that is not Gaussian, such as counts or classes.

Effects are integrated out by :mod:`nghvi.latents.crossed_integrals` to any accuracy: a ``refined``
model has more draws and nodes, and one without draws is Laplace's approximation.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._typing import Key, Scalar
from nghvi.data import LinearStatistics
from nghvi.data.factors import CrossedRows
from nghvi.data.grouped import select
from nghvi.latents import crossed, crossed_integrals, rules
from nghvi.latents.rows import RowProblem, log_likelihood, whiten_design
from nghvi.models import parameters
from nghvi.models.joint_mode import Levels
from nghvi.models.mixed import MOVES
from nghvi.models.parameters import MixedParams, Spread
from nghvi.models.several_factors import Effects, WithFactors

PAIRS, MORE, FRESH = 8, 4, 128
"""Numbers of pairs of draws: the first number, the factor by which a refinement increases it, and
the number that determines the level of the marginal in the end."""
FINER = {1: 14, 2: 7}
"""Quadrature nodes per dimension of a refined model, by number of random effects."""
LARGEST_GRID = 16_000
"""Number of points per row, draws times nodes, up to which integrals are affordable."""


class GeneralFactors(WithFactors):
    """Several factors with any response.

    ``num_pairs``: number of pairs of draws of the effects that quadrature does not integrate.
    """

    num_pairs: int = eqx.field(static=True, default=PAIRS)
    place: crossed_integrals.Place | None = None
    """Where effects are drawn; None stands for Laplace's approximation."""

    @property
    def nodes(self) -> int:
        few = rules.first_nodes(max(self.effects))
        return few if self.num_pairs <= PAIRS else FINER.get(max(self.effects), few)

    @property
    def marginal_is_exact(self) -> bool:
        return self.num_pairs > 0

    @property
    def _num_points(self) -> int:
        return 2 * self.num_pairs * rules.num_points(self.nodes, max(self.effects))

    @property
    def integration_is_affordable(self) -> bool:
        return self._num_points <= LARGEST_GRID

    def refined(self) -> "GeneralFactors":
        return dataclasses.replace(self, num_pairs=max(PAIRS, MORE * self.num_pairs))

    def approximate(self) -> "GeneralFactors":
        return dataclasses.replace(self, num_pairs=0)

    def evaluation_size(self, data: CrossedRows) -> int:
        points = self._draws(data) * crossed_integrals.num_points(data.plan, self.nodes)
        return len(data.rows.y) * max(points, 1) + data.plan.size

    def _draws(self, data: CrossedRows) -> int:
        return min(self.num_pairs, 1) if self.is_quadrature(data) else 2 * self.num_pairs

    def is_quadrature(self, data: CrossedRows) -> bool:
        """Return whether nothing is left to draw, as with nested factors."""
        return crossed_integrals.num_drawn(data.plan, self.nodes) == 0

    def suited(self, data: CrossedRows) -> "GeneralFactors":
        factors = [
            LinearStatistics.from_rows(rows, random, known=self.known_coef)
            for rows, random in zip(data.by_factor(self._inputs), self.by_factor, strict=True)
        ]
        mean = float(data.rows.total(data.rows.y) / data.num_rows)
        noise = self.response.noise(mean, float(data.variance))
        if noise is None:
            noise = min(map(parameters.noise_within, factors))
        units = [parameters.effects_units(factor, noise) for factor in factors]
        spread = None
        if not self.relative_coef:
            spread = Spread.about_mode(self, data.rows, self._levels(data))
        return dataclasses.replace(self, effects_unit=jnp.concatenate(units), spread=spread)

    def _levels(self, data: CrossedRows) -> list[Levels]:
        """Return every row's level of each factor, in the order in which factors were given."""
        found = data.plan.in_given_order((data.rows.group_of_rows(), *np.asarray(data.later)))
        each = zip(found, data.num_levels, self.by_factor, strict=True)
        return [Levels(np.asarray(level), number, random) for level, number, random in each]

    def problem(self, params: MixedParams, data: CrossedRows) -> crossed.CrossedProblem:
        """Return the problem of the whitened effects of all factors."""
        h, lower = self.features(params, data.rows.x), self.precision_factors(params)
        first, *later = (
            whiten_design(select(h, self.by_factor[f]), lower[f]) for f in data.plan.order
        )
        own = RowProblem(
            self.response_of(data.rows),
            self.dispersion(params),
            data.rows,
            h @ self.all_coef(params),
            first,
        )
        return crossed.CrossedProblem(own, tuple(later), data)

    def log_marginal(self, params: MixedParams, data: CrossedRows) -> Scalar:
        problem = self.problem(params, data)
        fit = crossed_integrals.log_marginal(problem, self.num_pairs, self.nodes, self.place)
        return fit + self.log_prior(params)

    def is_drawn(self, data: CrossedRows) -> bool:
        return self.num_pairs > 0 and not self.is_quadrature(data)

    def placed(self, params: MixedParams, data: CrossedRows) -> "GeneralFactors":
        place = crossed_integrals.best_place(self.problem(params, data), self.nodes)
        return dataclasses.replace(self, place=place)

    def log_marginal_afresh(
        self, key: Key, params: MixedParams, data: CrossedRows
    ) -> tuple[Scalar, Scalar]:
        problem = self.problem(params, data)
        value, error = crossed_integrals.log_marginal_afresh(
            key, problem, FRESH, self.nodes, self.place
        )
        return value + self.log_prior(params), error

    def log_joint(self, params: MixedParams, latents: Effects, data: CrossedRows) -> Scalar:
        lower = self.precision_factors(params)
        whitened = tuple((effects @ root).T for effects, root in zip(latents, lower, strict=True))
        problem = self.problem(params, data)
        fit = problem.log_prob(tuple(whitened[f] for f in data.plan.order))
        constants = (
            len(effects) * jnp.sum(jnp.log(jnp.diagonal(root)) - 0.5 * jnp.log(2 * jnp.pi))
            for effects, root in zip(latents, lower, strict=True)
        )
        return fit + sum(constants) + self.log_prior(params)

    def log_conditional(self, params: MixedParams, latents: Effects, data: CrossedRows) -> None:
        return None

    def log_at_rest(self, params: MixedParams, data: CrossedRows) -> Scalar:
        eta = self.features(params, data.rows.x) @ self.all_coef(params)
        fit = log_likelihood(self.response_of(data.rows), self.dispersion(params), data.rows, eta)
        return fit + self.log_prior_at_rest(params)

    def draw_effects(self, key: Key, params: MixedParams, data: CrossedRows) -> Effects:
        problem = self.problem(params, data)
        whitened = crossed.sample(key, problem, MOVES)
        return self.coloured(whitened, params, data.plan)

    def moments_by_factor(
        self, key: Key, params: MixedParams, data: CrossedRows
    ) -> tuple[tuple[Float[Array, "k r"], Float[Array, "r r k"]], ...]:
        problem = self.problem(params, data)
        found = crossed_integrals.moments(key, problem, max(self.num_pairs, PAIRS), self.nodes)
        means, covariances = zip(*found, strict=True)
        return self.coloured_moments(means, covariances, params, data.plan)
