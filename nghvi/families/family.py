"""What is passed as ``family=``: a kind of variational distribution, and where it starts."""

import abc
import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.variational import Variational
from nghvi.families.cholesky import CholeskyGaussian


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

    def closest(self, q: CholeskyGaussian) -> Variational | None:
        """Return the member that about minimises KL(member || q); None if that is not known."""
        return None

    def near(self, q: CholeskyGaussian) -> Variational:
        """Return the member from which steps start, given the best Gaussian ``q``."""
        found = self.closest(q)
        return self.at(q.mean, q.standard_deviation()) if found is None else found


@dataclasses.dataclass(frozen=True)
class Full(Family):
    """Gaussians with full covariance, for up to 300 parameters."""

    member = CholeskyGaussian
    gaussian = True

    def at(self, centre: Float[Array, " m"], scale: Float[Array, " m"]) -> CholeskyGaussian:
        return CholeskyGaussian.from_covariance_factor(centre, jnp.diag(scale))

    def closest(self, q: CholeskyGaussian) -> CholeskyGaussian:
        return q
