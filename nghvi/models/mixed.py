"""The mixed model: linear, generalised and deep are one class.

    y_i ~ response(eta_i),   eta_i = h(x_i)' beta + h_R(x_i)' alpha_k,   alpha_k ~ N(0, Omega)

for row i of group k, where h are the trunk's features and R those whose coefficients vary.
theta = (weights, beta, dispersion, free parameters of Omega), all unconstrained.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from nghvi._core.model import MarginalModel
from nghvi._core.response import Response
from nghvi._linalg import small
from nghvi._typing import Key, PyTree, Scalar
from nghvi.data import LinearStatistics, Moments, Panel, Rows
from nghvi.data.grouped import select
from nghvi.latents import conjugate, drawn, integrate, rules
from nghvi.latents.rows import RowProblem, conditional_mode, log_likelihood
from nghvi.models import parameters
from nghvi.models.joint_mode import Levels
from nghvi.models.parameters import LinearStart, MixedParams, Spread, draws_of_prior
from nghvi.networks import LEAST_SIZE, Skip, Trunk
from nghvi.priors import EffectsPrior, Priors, normal_log_density

MOVES = 5
"""Number of Metropolis moves from one draw of the effects to the next."""

GroupedData = Any
"""Rows, or LinearStatistics or a Panel if the model needs no more."""
Effects = Any
"""A table with one row per group; for several factors, one such table per factor."""


class MixedModel(MarginalModel):
    """A mixed model with one grouping factor.

    ``random``: indices of the features with group-specific coefficients. If their conditional is
    not known exactly, effects are drawn by independence Metropolis, or, with ``gibbs`` (the
    published way), by that many Gibbs sweeps from the last draw. ``known_coef``: fixed coefficients
    of the last features: 0 for a feature that only has effects, 1 for an offset. ``relative_coef``:
    whether theta holds the coefficients in units of :meth:`coef_unit`, in which the posterior of a
    response that attenuates them is less curved. ``spread``: if given, theta holds them as
    distances from a centre in its units. ``effects_unit``: if given, theta holds Omega
    in the coordinates of :mod:`nghvi.models.parameters` with these units. ``start``: where a
    network with a skip starts. ``num_facts``: how many of the last columns are not inputs but
    facts that the response knows about rows, such as trials. ``grid``: the quadrature as data, in
    place of ``num_nodes`` while a fit may refine it. ``near``: where searches for modes begin.
    """

    trunk: Trunk
    response: Response
    priors: Priors = eqx.field(static=True)
    random: tuple[int, ...] = eqx.field(static=True)
    gibbs: int | None = eqx.field(static=True, default=None)
    num_nodes: int | None = eqx.field(static=True, default=None)
    known_coef: tuple[float, ...] = eqx.field(static=True, default=())
    relative_coef: bool = eqx.field(static=True, default=False)
    effects_unit: Float[Array, " r"] | None = None
    start: LinearStart | None = None
    num_facts: int = eqx.field(static=True, default=0)
    grid: rules.Grid | None = None
    near: Float[Array, "r k"] | None = None
    spread: Spread | None = None

    @property
    def num_effects(self) -> int:
        return len(self.random)

    @property
    def effects_prior(self) -> EffectsPrior:
        return self.priors.effects

    @property
    def nodes(self) -> int:
        """Number of quadrature nodes per dimension, or radii; 1 is Laplace's approximation."""
        known = self.num_nodes if self.grid is None else int(self.grid.num_nodes)
        return rules.first_nodes(self.num_effects) if known is None else known

    @property
    def many_modes(self) -> bool:
        return not self.trunk.linear

    @property
    def in_closed_form(self) -> bool:
        """Whether the effects, if there are any, are integrated out by a formula."""
        return self.response.conjugate or self.num_effects == 0

    @property
    def marginal_is_exact(self) -> bool:
        return self.in_closed_form or self.grid is not None or self.nodes > 1

    def suited(self, data: GroupedData) -> "MixedModel":
        """Return the same model with coordinates of Omega, or a start, that suit the data."""
        if isinstance(self.trunk, Skip) and self.response.conjugate:
            known = isinstance(data, Rows | Panel)
            return dataclasses.replace(self, start=LinearStart.of(data)) if known else self
        if self.num_effects == 0 or not self.trunk.linear:
            return self
        noise = spread = None
        if isinstance(data, LinearStatistics):
            levels = [data.num_groups] * self.num_effects
            spread = Spread.of(self, data, levels)
        if isinstance(data, Rows):
            if not (self.relative_coef or self.response.conjugate):
                groups = Levels(data.group_of_rows(), data.num_groups, self.random)
                spread = Spread.about_mode(self, data, [groups])
            mean = data.total(data.y) / data.num_rows
            data = eqx.tree_at(lambda rows: rows.x, data, self._inputs(data.x))
            data = LinearStatistics.from_rows(data, self.random, known=self.known_coef)
            noise = self.response.noise(float(mean), float(data.variance))
        if not isinstance(data, LinearStatistics):
            return self
        unit = parameters.effects_units(data, noise)
        return dataclasses.replace(self, effects_unit=unit, spread=spread)

    def refined(self) -> "MixedModel":
        if self.in_closed_form:
            return self
        finer = rules.finer(self.nodes, self.num_effects)
        grid = None if self.grid is None else rules.Grid.roomy(finer, self.num_effects)
        return dataclasses.replace(self, num_nodes=finer if grid is None else None, grid=grid)

    def yardstick(self) -> "MixedModel":
        better = self.refined()  # two Gauss-Hermite rules may miss the same far part
        alike = not self.in_closed_form and rules.is_hermite(better.nodes, self.num_effects)
        return better.refined() if alike else better

    def refinable(self) -> "MixedModel":
        if self._num_points == 1:
            return self
        grid = rules.Grid.roomy(self.nodes, self.num_effects)
        return dataclasses.replace(self, num_nodes=None, grid=grid)

    def plain(self) -> "MixedModel":
        usual = self.nodes == rules.first_nodes(self.num_effects)
        nodes = None if usual else self.nodes
        plain: dict[str, Any] = {"num_nodes": nodes, "grid": None, "near": None}
        return self if self.grid is None else dataclasses.replace(self, **plain)

    def placed(self, params: MixedParams, data: GroupedData) -> "MixedModel":
        if self.grid is None:
            return self
        modes = conditional_mode(self.row_problem(params, data)).effects
        return dataclasses.replace(self, near=modes)

    def approximate(self) -> "MixedModel":
        if self.in_closed_form:
            return self
        return dataclasses.replace(self, num_nodes=1, grid=None, near=None)

    def in_few_digits(self) -> "MixedModel":
        return dataclasses.replace(self, trunk=self.trunk.rough())

    @property
    def moves_naturally(self) -> bool:
        return self.trunk.sized and self.integration_is_cheap

    def given_up(self, params: MixedParams) -> bool:
        return self.trunk.sized and self.trunk.size_of(params.weights) < LEAST_SIZE

    def num_observations(self, data: GroupedData) -> float:
        return float(data.num_rows)

    def evaluation_size(self, data: GroupedData) -> int:
        return data.size(self.num_effects, max(self._num_points, self.trunk.num_features))

    @property
    def one_by_one(self) -> bool:
        return self.grid is not None  # nodes are enough side by side

    @property
    def _num_points(self) -> int:
        return 1 if self.in_closed_form else rules.num_points(self.nodes, self.num_effects)

    @property
    def integration_is_cheap(self) -> bool:
        return self._num_points <= rules.CHEAP_GRID

    @property
    def integration_is_affordable(self) -> bool:
        return self._num_points <= rules.LARGEST_GRID

    def init_params(self, key: Key, data: GroupedData) -> MixedParams:
        return parameters.first_params(self, key, data)

    def _free_effects(self, params: MixedParams) -> tuple[Float[Array, " free"], Scalar]:
        """Return Omega in the coordinates of its prior, and the log Jacobian of the change."""
        if self.effects_unit is None:
            return params.effects, jnp.zeros(())
        return parameters.to_free(params.effects, self.effects_unit, self.effects_prior.correlated)

    def effects_from_free(self, free: Float[Array, " free"]) -> Float[Array, " free"]:
        """Return what theta holds for Omega, given the coordinates of its prior."""
        if self.effects_unit is None:
            return free
        return parameters.from_free(free, self.effects_unit, self.effects_prior.correlated)

    def log_prior(self, params: MixedParams) -> Scalar:
        total = self.priors.log_weights(params.weights, params.weight_scale)
        total += self.log_prior_of_coef(params)
        total += self.response.log_prior(self.dispersion(params), self.priors)
        if self.num_effects == 0:
            return total
        free, log_jacobian = self._free_effects(params)
        return total + self.effects_prior.log_density(free, self.num_effects) + log_jacobian

    def log_prior_of_coef(self, params: MixedParams) -> Scalar:
        """Return the log prior density of the coefficients, as theta holds them."""
        coef = self.coef(params)
        density = normal_log_density(coef, self.priors.coef_sd)
        found = self.response.intercept_prior(self.dispersion(params), self.priors)
        if found is not None:  # given the dispersion, in place of a coefficient's
            square = ((coef[0] - found[0]) / found[1]) ** 2 - (coef[0] / self.intercept_sd) ** 2
            density += -0.5 * square - np.log(found[1] / self.intercept_sd)
        return density + self._log_coef_volume(params)

    @property
    def intercept_sd(self) -> float:
        """Prior sd of the first coefficient, if it were not an intercept."""
        return float(np.ravel(np.asarray(self.priors.coef_sd))[0])

    def log_volume(self, params: MixedParams) -> Scalar:
        """Return the Jacobians in :meth:`log_prior`, absent from the density of stated numbers."""
        total = self.response.log_volume(self.dispersion(params), self.priors)
        if self.num_effects == 0:
            return total
        total += self._log_coef_volume(params)
        free, log_jacobian = self._free_effects(params)
        return total + self.effects_prior.log_volume(free, self.num_effects) + log_jacobian

    def sample_prior(
        self, rng: np.random.Generator, number: int, start: MixedParams
    ) -> MixedParams:
        """Draw all parameters but the weights, which are ``start``'s; leading axis ``number``."""
        return draws_of_prior(self, rng, number, start)

    def num_scales(self, weights: PyTree) -> int:
        learnt = self.priors.weight_sd is None and not self.trunk.sized
        return len(jax.tree.leaves(weights)) if learnt else 0

    def precision_factor(self, params: MixedParams) -> Float[Array, "r r"]:
        """Return the lower triangular L with Omega^-1 = L L'."""
        free, _ = self._free_effects(params)
        return self.effects_prior.precision_factor(free, self.num_effects)

    def features(self, params: MixedParams, x: Float[Array, "n d"]) -> Float[Array, "n q"]:
        """Return h(x)."""
        return self.trunk(params.weights, self._inputs(x))

    def _inputs(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return x[:, : x.shape[1] - self.num_facts]

    def response_at(self, x: Float[Array | np.ndarray, "n d"]) -> Response:
        """Return the response for rows with these inputs, which knows their facts."""
        return self.response.given(x[:, -self.num_facts :]) if self.num_facts else self.response

    def response_of(self, data: Rows) -> Response:
        """Return the response for all observations, which knows their facts."""
        if not self.num_facts:
            return self.response
        facts = data.features(lambda x: x[:, -self.num_facts :])
        return self.response.given(data.at_observations(facts))

    @property
    def coef_origin(self) -> Float[Array, " q"] | float:
        """Return beta where theta's coefficients are zero."""
        return 0.0 if self.spread is None else self.spread.centre

    def _log_coef_volume(self, params: MixedParams) -> Scalar:
        return params.coef.size * jnp.mean(jnp.log(self.coef_unit(params)))

    def coef_unit(self, params: MixedParams) -> Float[Array, "*q"]:
        """Return the factor from theta's coefficients to beta, which is 1 unless they are relative.

        It is one number for all of them, or an sd for each (``spread``). Averaged over effects of
        variance v, a coefficient of a binary response is attenuated to about beta / sqrt(1 + a v).
        The data determine this ratio; beta itself grows with v.
        """
        if self.spread is not None:
            noise_var = jnp.exp(params.dispersion[0]) if self.response.conjugate else jnp.ones(())
            return self.spread.sd(self.random, self.precision_factor(params), noise_var)
        if not self.relative_coef or self.num_effects == 0:
            return jnp.ones(())
        inverse = small.inverse_lower(self.precision_factor(params))
        return jnp.sqrt(1 + self.response.attenuation * jnp.sum(inverse**2))

    def coef(self, params: MixedParams) -> Float[Array, " q"]:
        """Return beta without the known coefficients."""
        return self.coef_origin + self.coef_unit(params) * params.coef

    def dispersion(self, params: MixedParams) -> Float[Array, " c"]:
        """Return the response's parameters; log gaps between cutpoints may be relative as well."""
        if not (self.relative_coef and self.response.takes_intercept):
            return params.dispersion
        return params.dispersion + jnp.log(self.coef_unit(params))

    def all_coef(self, params: MixedParams) -> Float[Array, " q"]:
        """Return beta with the known coefficients."""
        return jnp.concatenate([self.coef(params), jnp.array(self.known_coef)])

    def design(self, features: Float[Array, "n q"]) -> Float[Array, "n r"]:
        """Return the features with random coefficients."""
        return select(features, self.random)

    def row_problem(self, params: MixedParams, data: Rows) -> RowProblem:
        """Return the problem of the effects, for a response that is not conjugate."""
        h = data.features(lambda x: self.features(params, x))
        return RowProblem.whiten(
            self.response_of(data),
            self.dispersion(params),
            data,
            h @ self.all_coef(params),
            self.design(h),
            self.precision_factor(params),
        )

    def conditional(self, params: MixedParams, data: GroupedData) -> conjugate.Conditional:
        """Return the exact conditional of the effects under a Gaussian response."""
        moments, lower = self._moments(params, data), self.precision_factor(params)
        return conjugate.condition(*moments[:2], jnp.exp(params.dispersion[0]), lower)

    def _in_plain_units(self, params: MixedParams) -> tuple["MixedModel", MixedParams, Scalar]:
        """Return the model and parameters in plain coordinates, and the log Jacobian.

        Theta is translated once, not wherever it is read, which leaves less to compile.
        """
        free, log_jacobian = self._free_effects(params)
        model, params = dataclasses.replace(self, effects_unit=None), params._replace(effects=free)
        log_jacobian += model._log_coef_volume(params)
        params = params._replace(coef=model.coef(params), dispersion=model.dispersion(params))
        model = dataclasses.replace(model, relative_coef=False, spread=None)
        return model, params, log_jacobian

    def log_marginal(self, params: MixedParams, data: GroupedData) -> Scalar:
        if self.relative_coef or self.effects_unit is not None:
            model, params, log_jacobian = self._in_plain_units(params)
            return model.log_marginal(params, data) + log_jacobian
        if self.response.conjugate:
            moments, lower = self._moments(params, data), self.precision_factor(params)
            fit = conjugate.log_marginal(moments, jnp.exp(params.dispersion[0]), lower)
        elif self.num_effects == 0:
            eta = data.features(lambda x: self.features(params, x)) @ self.all_coef(params)
            fit = log_likelihood(self.response_of(data), self.dispersion(params), data, eta)
        else:
            problem, nodes = self.row_problem(params, data), self.grid or self.nodes
            fit = integrate.log_marginal(problem, nodes, self.near)
        return fit + self.log_prior(params)

    def log_joint(self, params: MixedParams, latents: Effects, data: GroupedData) -> Scalar:
        if isinstance(data, Panel):
            moments, noise_var = self._moments(params, data), jnp.exp(params.dispersion[0])
            fit = conjugate.log_likelihood(moments, latents, noise_var)
        else:
            h = data.features(lambda x: self.features(params, x))
            eta = h @ self.all_coef(params) + jnp.sum(self.design(h) * data.expand(latents), axis=1)
            fit = log_likelihood(self.response_of(data), self.dispersion(params), data, eta)
        lower = self.precision_factor(params)
        log_det = jnp.sum(jnp.log(jnp.diagonal(lower)))
        constant = log_det - 0.5 * self.num_effects * jnp.log(2 * jnp.pi)
        squares = data.over_groups(jnp.sum((latents @ lower) ** 2, axis=1))
        return fit + (data.num_present * constant - 0.5 * squares) + self.log_prior(params)

    def log_joint_moving(
        self, params: MixedParams, anchor: MixedParams, latents: Effects, data: GroupedData
    ) -> Scalar:
        if self.num_effects == 0:
            return self.log_joint(params, latents, data)
        problem = jax.lax.stop_gradient(self.row_problem(anchor, data))
        moved, log_det = drawn.recentre(
            latents,
            self.precision_factor(anchor),
            self.precision_factor(params),
            drawn.prior_share(problem),
        )
        return self.log_joint(params, moved, data) + data.num_present * log_det

    def log_conditional(
        self, params: MixedParams, latents: Effects, data: GroupedData
    ) -> Scalar | None:
        if not self.response.conjugate or self.num_effects == 0:
            return None
        return data.over_groups(conjugate.log_density(self.conditional(params, data), latents))

    def log_at_rest(self, params: MixedParams, data: GroupedData) -> Scalar | None:
        if self.response.conjugate or self.moves_naturally:
            return None  # integrating the effects costs little and shows more
        without = dataclasses.replace(self, random=())
        return without.log_marginal(params._replace(effects=jnp.zeros(0)), data)

    def log_prior_at_rest(self, params: MixedParams) -> Scalar:
        return dataclasses.replace(self, random=()).log_prior(params)

    def init_latents(self, key: Key, params: MixedParams, data: GroupedData) -> Effects:
        if self.gibbs is None or self.num_effects == 0:
            return self.draw_effects(key, params, data)
        # From the prior: sweeps soon forget a start, but Adam remembers one that is far too large.
        noise = jax.random.normal(key, (self.num_effects, data.num_groups))
        return conjugate.colour(noise, self.precision_factor(params))

    def sample_latents(
        self, key: Key, params: MixedParams, latents: Effects, data: GroupedData
    ) -> Effects:
        if self.in_closed_form:
            return self.draw_effects(key, params, data)
        lower, problem = self.precision_factor(params), self.row_problem(params, data)
        start = lower.T @ latents.T
        if self.gibbs is None:
            proposal = drawn.make_proposal(problem, self._proposal_nodes)
            whitened = drawn.sample(key, problem, proposal, MOVES, start)
        else:
            whitened = self.response.gibbs(key, problem, start, self.gibbs)
        return conjugate.colour(whitened, lower)

    def draw_effects(self, key: Key, params: MixedParams, data: GroupedData) -> Effects:
        """Return a draw of the effects that does not depend on an earlier one."""
        if self.num_effects == 0:
            return jnp.zeros((data.num_groups, 0))
        if self.response.conjugate:
            return conjugate.sample(key, self.conditional(params, data))
        lower, problem = self.precision_factor(params), self.row_problem(params, data)
        proposal = drawn.make_proposal(problem, self._proposal_nodes)
        moves = MOVES if self._proposal_nodes > 1 else 5 * MOVES  # Laplace's moments are rough
        return conjugate.colour(drawn.sample(key, problem, proposal, moves), lower)

    @property
    def _proposal_nodes(self) -> int:
        return self.nodes if self.num_effects <= rules.LARGEST_PRODUCT else 1

    def effect_moments(
        self, key: Key, params: MixedParams, data: GroupedData
    ) -> tuple[Float[Array, "k r"], Float[Array, "r r k"]]:
        """Return conditional mean and covariance of the effects; one draw and 0 if unknown."""
        r, lower = self.num_effects, self.precision_factor(params)
        if r > 0 and self.response.conjugate:
            return conjugate.moments(self.conditional(params, data))
        if r == 0 or self.nodes == 1:
            return self.draw_effects(key, params, data), jnp.zeros((r, r, data.num_groups))
        mean, cov = integrate.moments(self.row_problem(params, data), self.grid or self.nodes)
        inverse = small.inverse_lower(lower)
        return conjugate.colour(mean, lower), jnp.einsum("ai,abk,bj->ijk", inverse, cov, inverse)

    def _moments(self, params: MixedParams, data: GroupedData) -> Moments:
        return data.moments(lambda x: self.features(params, x), self.all_coef(params), self.random)
