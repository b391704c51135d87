"""Where the score of theta comes from: z integrated out, or z drawn.

Both estimate ``grad_theta log p(y, theta)``. ``Sampled`` relies on Fisher's identity,
``grad log p(y, theta) = E[grad log g(theta, z) | theta, y]``: z is drawn outside the
differentiated function, so it is never re-parametrised.
"""

import abc

import equinox as eqx
import jax
from jaxtyping import Array, Float

from nghvi._core.model import LatentModel, MarginalModel, unraveller
from nghvi._typing import Data, Key, Latents, Scalar


class Score(eqx.Module):
    """A rule (key, theta, latents) -> (log target, its gradient, new latents) for one theta."""

    def init_latents(
        self, key: Key, theta: Float[Array, " m"], model: LatentModel, data: Data
    ) -> Latents:
        """Return the latents that the rule carries from step to step: none by default."""
        return ()

    @abc.abstractmethod
    def __call__(
        self,
        key: Key,
        theta: Float[Array, " m"],
        latents: Latents,
        model: LatentModel,
        data: Data,
    ) -> tuple[Scalar, Float[Array, " m"], Latents]:
        """Return the log target at one theta, its gradient, and the next latents."""


class Integrated(Score):
    """The score of log p(y, theta) with z integrated out, to fewer digits if ``roughly``."""

    roughly: bool = eqx.field(static=True, default=False)

    def __call__(
        self, key: Key, theta: Array, latents: Latents, model: LatentModel, data: Data
    ) -> tuple[Scalar, Array, Latents]:
        if not isinstance(model, MarginalModel):
            raise TypeError(
                f"{type(model).__name__} has no log_marginal, so z cannot be integrated out: "
                "derive it from MarginalModel, or use Sampled()."
            )
        model = model.in_few_digits() if self.roughly else model
        unravel = unraveller(model, data)
        return *jax.value_and_grad(lambda t: model.log_marginal(unravel(t), data))(theta), ()


class AtRest(Score):
    """The score of log p(y, theta | z) with z at the centre of its prior."""

    def __call__(
        self, key: Key, theta: Array, latents: Latents, model: LatentModel, data: Data
    ) -> tuple[Scalar, Array, Latents]:
        unravel = unraveller(model, data)
        return *jax.value_and_grad(lambda t: model.log_at_rest(unravel(t), data))(theta), ()


class Changed(Score):
    """Another score, in which some terms count more or less."""

    score: Score

    def init_latents(self, key: Key, theta: Array, model: LatentModel, data: Data) -> Latents:
        return self.score.init_latents(key, theta, model, data)


class Faint(Changed):
    """Another score in which the prior of theta counts only by a ``share``, so data come first."""

    share: Float[Array, ""]

    def __call__(
        self, key: Key, theta: Array, latents: Latents, model: LatentModel, data: Data
    ) -> tuple[Scalar, Array, Latents]:
        value, score, latents = self.score(key, theta, latents, model, data)
        unravel, left = unraveller(model, data), 1 - self.share
        prior, slope = jax.value_and_grad(lambda t: model.log_prior(unravel(t)))(theta)
        return value - left * prior, score - left * slope, latents


class Emphasised(Changed):
    """Another score in which what the data say counts several ``times`` at some coordinates.

    Where a Gaussian of independent coordinates rests on it, E log p(y | theta) - sum_j KL_j /
    times_j has its optimum: a coordinate pays only a share for what it tells beyond its prior.
    The value stays that of the density itself.
    """

    times: Float[Array, " m"]

    def __call__(
        self, key: Key, theta: Array, latents: Latents, model: LatentModel, data: Data
    ) -> tuple[Scalar, Array, Latents]:
        value, score, latents = self.score(key, theta, latents, model, data)
        unravel = unraveller(model, data)
        prior = jax.grad(lambda t: model.log_prior(unravel(t)))(theta)
        return value, prior + self.times * (score - prior), latents


class Sampled(Score):
    """The score of log g(theta, z) at one z drawn from p(z | theta, y).

    ``moving`` lets the model choose the coordinates of z (:meth:`LatentModel.log_joint_moving`),
    which the published algorithms do not do.
    """

    moving: bool = eqx.field(static=True, default=True)

    def init_latents(self, key: Key, theta: Array, model: LatentModel, data: Data) -> Latents:
        return model.init_latents(key, unraveller(model, data)(theta), data)

    def __call__(
        self, key: Key, theta: Array, latents: Latents, model: LatentModel, data: Data
    ) -> tuple[Scalar, Array, Latents]:
        unravel = unraveller(model, data)
        latents = model.sample_latents(key, unravel(theta), latents, data)

        def log_density(t: Array) -> Scalar:
            if self.moving:
                return model.log_joint_moving(unravel(t), unravel(theta), latents, data)
            return model.log_joint(unravel(t), latents, data)

        value, score = jax.value_and_grad(log_density)(theta)
        known = None if self.moving else model.log_conditional(unravel(theta), latents, data)
        return value if known is None else value - known, score, latents
