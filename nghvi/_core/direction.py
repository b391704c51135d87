"""Which way to go: from a gradient of -ELBO in lambda to what the step rule receives.

``__call__`` maps a gradient at q into the coordinates in which the step rule works; ``push``
maps the rule's update back to a tangent vector at q. How far to go is up to the step rule.
"""

import abc
from typing import TypeVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.variational import Variational
from nghvi._linalg.tree import SolveInfo, SolveOptions, exact_solve

Q = TypeVar("Q", bound=Variational)


class Direction(eqx.Module):
    """A change of coordinates for gradients and updates."""

    @abc.abstractmethod
    def __call__(self, q: Q, gradient: Q) -> tuple[Q, SolveInfo]:
        """Return what the step rule sees, and how the linear solve for it went."""

    @abc.abstractmethod
    def push(self, q: Q, update: Q) -> Q:
        """Return the rule's update as a tangent vector at q."""


class OrdinaryGradient(Direction):
    """The gradient itself (SG-HVI)."""

    def __call__(self, q: Q, gradient: Q) -> tuple[Q, SolveInfo]:
        return gradient, exact_solve()

    def push(self, q: Q, update: Q) -> Q:
        return update


class NaturalGradient(Direction):
    """The damped natural gradient (NG-HVI): (F + damping diag F)^-1 gradient."""

    damping: float = eqx.field(static=True, default=10.0)
    fisher: str = eqx.field(static=True, default="exact")
    options: SolveOptions = eqx.field(static=True, default=SolveOptions())

    def __call__(self, q: Q, gradient: Q) -> tuple[Q, SolveInfo]:
        return q.natural_gradient(gradient, self.damping, self.fisher, self.options)

    def push(self, q: Q, update: Q) -> Q:
        return update


class ScaledGradient(Direction):
    """The gradient in coordinates (mean / s, loadings / s, log scale) of a factor family.

    s is ``unit``, or if ``follow`` is 1 the current sd of q, read anew at every step.
    """

    unit: Float[Array, " m"]
    follow: float | Array = eqx.field(converter=jnp.asarray, default=0.0)

    def __call__(self, q: Q, gradient: Q) -> tuple[Q, SolveInfo]:
        return self._rescale(q, gradient), exact_solve()

    def push(self, q: Q, update: Q) -> Q:
        return self._rescale(q, update)

    def _rescale(self, q: Q, x: Q) -> Q:
        unit = jnp.where(self.follow > 0, q.standard_deviation(), self.unit)
        return q.rescale(x, unit)
