"""What is passed as ``family=``: how a variational distribution of some kind begins."""

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
    """Whether the member :meth:`closest` to the best Gaussian of all is taken for the best one.

    Otherwise steps in the family itself begin there.
    """

    @abc.abstractmethod
    def at(self, centre: Float[Array, " m"], scale: Float[Array, " m"]) -> Variational:
        """A member with this centre and these sds, or nearly so, to begin with."""

    def closest(self, q: CholeskyGaussian) -> Variational | None:
        """The member that minimises KL(member || q), or about so; None where that is not known."""
        return None

    def near(self, q: CholeskyGaussian) -> Variational:
        """Where steps begin that have ``q`` to go by."""
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
