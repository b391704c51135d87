"""A mixed model of any response without its coefficients: the best Gaussian takes their place.

Given psi = (weights, dispersion, Omega) and features h, coefficients and effects u = (beta, alpha)
have a Gaussian prior, and the likelihood is log-concave in ``eta_i = h_i' beta + h_iR' alpha_k``.
For every Gaussian r(u) = N(m, S)::

    log p(y | psi) >= B(psi, r) = sum_i E[ log p(y_i | eta_i) ] - KL( r || p(u | psi) )

with eta_i ~ N(m_i, s_i^2), so that each expectation is an integral over one number. At the best r
the mean slopes g_i and curvatures w_i of the rows make r the posterior of a weighted linear model
(:func:`nghvi.models.collapsed.eliminate`) with::

    S^-1 = prior precision + H' diag(w) H,   S^-1 m = prior part + H' (g + w m_eta)

which is iterated. Since B is stationary in r there, its gradient in psi is that with r held fixed.
A Gaussian q(psi) with u drawn from r has an ELBO of E[ B + log p(psi) - log q(psi) ], which is a
lower bound of the evidence.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int

from nghvi._core.draws import flat_normal
from nghvi._core.response import Response
from nghvi._typing import Key, Scalar
from nghvi.data import Rows
from nghvi.latents import rules
from nghvi.models.collapsed import Collapsed, Eliminated, Normal, eliminate
from nghvi.models.parameters import MixedParams

RULE = rules.rule(5, 1)
POINTS, WEIGHTS = RULE.points.ravel(), np.exp(RULE.log_weights.ravel())
"""The rule for means over the predictor of a row."""
CLOSE, LONGEST, MOST_STEPS = 0.05, 3.0, 50
"""Change of predictors after which a last step is taken, the largest change in one step, and the
number of steps after which the search for the best Gaussian ends."""
EMPHASIS = 2.0
"""How often discrete observations count for the weights of a network, at most."""


class Best(NamedTuple):
    """The Gaussian of beta and alpha_k = offset_k - slope_k beta + noise of root half_k."""

    coef: Float[Array, " q"]
    inverse_root: Float[Array, "q q"]
    """U^-1, where the precision of beta is U U'."""
    effects: Float[Array, "k r"]
    """Means of the effects."""
    slope: Float[Array, "k r q"]
    half: Float[Array, "k r r"]
    """Inverses of Cholesky factors of the effects' precisions given beta."""

    @staticmethod
    def of(found: Eliminated) -> "Best":
        """Return the Gaussian that is left when effects are eliminated."""
        beta, root = found.coefficients
        transposed = jnp.swapaxes(found.half, 1, 2)
        slope = transposed @ found.through
        effects = jnp.einsum("kij,kj->ki", transposed, found.forward) - slope @ beta
        inverse = solve_triangular(root, jnp.eye(len(root)), lower=True)
        return Best(beta, inverse, effects, slope, found.half)

    @property
    def half_log_det(self) -> Scalar:
        """Half the log determinant of the covariance of all coefficients and effects."""
        each = jnp.sum(jnp.log(jnp.diagonal(self.half, axis1=1, axis2=2)))
        return each + jnp.sum(jnp.log(jnp.diagonal(self.inverse_root)))


class Problem(NamedTuple):
    """What decides about the coefficients and effects, given psi."""

    response: Response
    dispersion: Float[Array, " c"]
    data: Rows
    features: Float[Array, "n q"]
    design: Float[Array, "n r"]
    lower: Float[Array, "r r"]
    """L with Omega^-1 = L L'."""
    centre: Float[Array, " q"]
    """Prior means of the coefficients."""
    sd: Float[Array, " q"]
    """Prior sds of the coefficients."""

    def predictors(self, best: Best) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Return means and variances of the rows' predictors."""
        data, design = self.data, self.design
        mean = self.features @ best.coef + jnp.sum(design * data.expand(best.effects), axis=1)
        left = self.features - jnp.einsum("nr,nrq->nq", design, data.expand(best.slope))
        own = jnp.einsum("nr,nsr->ns", design, data.expand(best.half))
        shared = left @ best.inverse_root.T
        return mean, jnp.sum(shared**2, axis=1) + jnp.sum(own**2, axis=1)

    def mean_slopes(
        self, mean: Float[Array, " n"], variance: Float[Array, " n"]
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Return mean slopes and curvatures of the rows' log likelihoods."""
        data = self.data
        centre, sd = (data.at_observations(v) for v in (mean, jnp.sqrt(variance)))
        slope = curvature = jnp.zeros_like(centre)
        for point, weight in zip(POINTS, WEIGHTS, strict=True):
            first, second = self.response.slopes(data.y, centre + sd * point, self.dispersion)
            slope += weight * first
            curvature -= weight * second
        return data.by_row(slope), data.by_row(curvature)

    def normal(self, mean: Float[Array, " n"], variance: Float[Array, " n"]) -> Normal:
        """Return the weighted linear model at these predictors."""
        h, z, data = self.features, self.design, self.data
        slope, curvature = self.mean_slopes(mean, variance)
        right, counted = slope + curvature * mean, h * curvature[:, None]
        precision = self.sd**-2.0
        return Normal(
            h.T @ data.weighted(counted) + jnp.diag(precision),
            data.sum(z[:, :, None] * counted[:, None, :]),
            jnp.moveaxis(data.gram(z, curvature), -1, 0) + self.lower @ self.lower.T,
            h.T @ data.weighted(right) + precision * self.centre,
            data.sum(z * right[:, None]),
        )

    def best(self) -> Best:
        """Return the Gaussian with the highest bound."""

        def moves(state: tuple) -> Bool[Array, ""]:
            return (state[0] < MOST_STEPS) & (state[1] > CLOSE)

        def step(state: tuple) -> tuple[Int[Array, ""], Scalar, Array, Array]:
            number, _, mean, variance = state
            towards, spread = self.predictors(Best.of(eliminate(self.normal(mean, variance))))
            change = jnp.max(jnp.abs(towards - mean))
            share = jnp.minimum(1.0, LONGEST / change)
            return number + 1, change, mean + share * (towards - mean), spread

        first = jnp.full(len(self.features), self.response.typical_predictor)
        zero, far = jnp.zeros((), int), jnp.asarray(jnp.inf)
        state = (zero, far, first, jnp.zeros_like(first))
        _, _, mean, variance = jax.lax.while_loop(moves, step, state)
        return Best.of(eliminate(self.normal(mean, variance)))

    def bound(self, best: Best) -> Scalar:
        """Return the lower bound of log p(y | psi) that this Gaussian gives."""
        data, (mean, variance) = self.data, self.predictors(best)
        centre, sd = (data.at_observations(v) for v in (mean, jnp.sqrt(variance)))
        fit = jnp.zeros_like(centre)
        for point, weight in zip(POINTS, WEIGHTS, strict=True):
            fit += weight * self.response.log_prob(data.y, centre + sd * point, self.dispersion)
        away = ((best.coef - self.centre) / self.sd) ** 2
        spread = jnp.sum(best.inverse_root**2, axis=0) / self.sd**2
        prior = -0.5 * jnp.sum(away + spread) - jnp.sum(jnp.log(self.sd))
        # The effects' second moments, whitened by their prior.
        through = jnp.einsum("krq,sq->ksr", best.slope, best.inverse_root)
        parts = jnp.concatenate([best.effects[:, None], best.half, through], axis=1)
        prior += data.num_present * jnp.sum(jnp.log(jnp.diagonal(self.lower)))
        prior -= 0.5 * data.over_groups(jnp.sum((parts @ self.lower) ** 2, axis=(1, 2)))
        number = best.coef.size + data.num_present * len(self.lower)
        return data.total(fit) + prior + best.half_log_det + 0.5 * number


class Bounded(Collapsed):
    """The distribution of psi in a mixed model with a log-concave response, by the bound."""

    def _problem(self, params: MixedParams, data: Rows) -> Problem:
        model = self.model
        dispersion = model.dispersion(params)
        features = data.features(lambda x: model.features(params, x))
        width = features.shape[1]
        centre = jnp.zeros(width)
        sd = jnp.broadcast_to(jnp.asarray(model.priors.coef_sd, float), width)
        found = model.response.intercept_prior(dispersion, model.priors)
        if found is not None:
            centre, sd = centre.at[0].set(found[0]), sd.at[0].set(found[1])
        design, lower = model.design(features), model.precision_factor(params)
        response = model.response_of(data)
        return Problem(response, dispersion, data, features, design, lower, centre, sd)

    def log_marginal(self, params: MixedParams, data: Rows) -> Scalar:
        problem = self._problem(params, data)
        best = jax.lax.stop_gradient(jax.lax.stop_gradient(problem).best())
        return problem.bound(best) + self.log_prior(params)

    def completed(self, key: Key, params: MixedParams, data: Rows) -> MixedParams:
        best = self._problem(params, data).best()
        noise = flat_normal(key, best.coef.shape)
        return params._replace(coef=best.coef + noise @ best.inverse_root)

    @property
    def emphasis(self) -> float:
        return EMPHASIS if self.model.response.support.discrete else 1.0

    def in_few_digits(self) -> "Bounded":
        return Bounded(self.model.in_few_digits())
