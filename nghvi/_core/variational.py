"""What a variational family q(theta) is to this library.

A member of a family is a frozen pytree whose leaves are exactly its free parameters lambda, so the
step, the optimiser and the averages treat every family alike. Its methods are written for a single
theta. Methods that are not abstract have a default that serves any family. A :class:`Family`, which
``family=`` takes, says where a member starts.
"""

import abc
from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.errors import InputError
from nghvi._linalg.tree import SolveInfo, SolveOptions
from nghvi._typing import Scalar


class RemainingError(NamedTuple):
    """How far q is from its optimum, coordinate by coordinate, in units a person understands.

    ``mean``: displacement of the mean that a full natural gradient step would make, in
    posterior sds. ``scale``: relative change of the sd. Both are NaN if a family cannot tell.
    """

    mean: Float[Array, " m"]
    scale: Float[Array, " m"]

    def largest(self) -> "RemainingError":
        """Return the same with each part reduced to its largest absolute value."""
        return RemainingError(jnp.max(jnp.abs(self.mean)), jnp.max(jnp.abs(self.scale)))


class Start(NamedTuple):
    """Where a search begins: a vector theta, and the sds around it."""

    theta: Float[Array, " m"]
    scale: float | Float[Array, " m"] = 1.0


class Variational(eqx.Module):
    """A distribution over theta that can be re-parametrised: theta = transport(noise).

    ``transport`` must be finite at zero noise, where it gives a theta near the centre.
    """

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Dimension m of theta."""

    @property
    @abc.abstractmethod
    def noise_dim(self) -> int:
        """Number of standard normals behind one draw."""

    @abc.abstractmethod
    def transport(self, noise: Float[Array, " e"]) -> Float[Array, " m"]:
        """Return theta = h(noise, lambda)."""

    @abc.abstractmethod
    def log_density(self, theta: Float[Array, " m"]) -> Scalar:
        """Return log q(theta)."""

    def pull_back(self, noise: Float[Array, "s e"], score: Float[Array, "s m"]) -> Self:
        """Return the mean over draws of (d theta / d lambda)' score, by autodiff."""

        def one(noise: Array, score: Array) -> Variational:
            _, pull = jax.vjp(lambda q: q.transport(noise), self)
            (gradient,) = pull(score)
            return gradient

        return jax.tree.map(lambda x: jnp.mean(x, axis=0), jax.vmap(one)(noise, score))

    def natural_gradient(
        self, gradient: Self, damping: float, fisher: str, options: SolveOptions
    ) -> tuple[Self, SolveInfo]:
        """Solve (F + damping diag F) x = gradient without forming F.

        ``fisher``: which Fisher information F is, "exact" or as "printed" in the paper;
        ``options``: when the solver stops.
        """
        raise InputError(
            f"{type(self).__name__} has no natural gradient: use method='auto' or a rule of "
            "ordinary gradients."
        )

    @abc.abstractmethod
    def retract(self, update: Self) -> Self:
        """Return the member of the family that ``update`` leads to from here."""

    @abc.abstractmethod
    def rescale(self, tangent: Self, unit: Float[Array, " m"]) -> Self:
        """Return ``tangent`` with location parts multiplied by ``unit``, and relative scales."""

    def remaining_error(self, gradient: Self) -> RemainingError | None:
        """Return the distance to the optimum that a gradient of the ELBO, or of -ELBO, implies.

        None means that the family cannot tell; the verdict is then "settled", judged by the ELBO.
        """
        return None

    def averaged(self, total: Self, count: int) -> Self:
        """Return the member that represents ``count`` iterates whose leaves add up to ``total``."""
        return jax.tree.map(lambda x: x / count, total)

    @property
    @abc.abstractmethod
    def centre(self) -> Float[Array, " m"]:
        """Mean of q, or the mean of its first member if q is a mixture: a mean over modes of a
        network would be typical of none."""

    @abc.abstractmethod
    def standard_deviation(self) -> Float[Array, " m"]:
        """Return the marginal standard deviations of q."""

    @abc.abstractmethod
    def covariance(self) -> Float[Array, "m m"]:
        """Return the dense covariance of q, for small m and for tests."""


class Family(abc.ABC):
    """A kind of variational distribution; its members are of class ``member``."""

    member: ClassVar[type[Variational]]
    gaussian: ClassVar[bool] = False
    """Whether the member :meth:`closest` to the best full Gaussian is taken to be the optimum.

    Otherwise steps in the family itself start from there.
    """

    @abc.abstractmethod
    def at(self, centre: Float[Array, " m"], scale: Float[Array, " m"]) -> Variational:
        """Return a member to start from, with about this centre and these sds."""

    def closest(self, q: Variational) -> Variational | None:
        """Return the member that about minimises KL(member || q), q a Gaussian; None if unknown."""
        return None

    def near(self, q: Variational) -> Variational:
        """Return the member from which steps start, given the best Gaussian ``q``."""
        found = self.closest(q)
        return self.at(q.centre, q.standard_deviation()) if found is None else found
