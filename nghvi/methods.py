"""The paper's algorithms as objects whose fields say what a rule does.

A factor Gaussian, started at scale 1 with loadings 0.01 (:func:`published_start`), is moved for a
fixed number of steps, with one draw of theta and of z per step, and the average of the last 100
iterates is returned. Names such as ``method="ng-hvi"`` stand for the objects in :data:`PUBLISHED`;
to change a constant, make another object::

    from nghvi.methods import NaturalGradient

    MixedRegressor("firm", method=NaturalGradient(damping=1.0, steps=5000))
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from nghvi._core import direction
from nghvi._core.direction import Direction
from nghvi._core.errors import InputError
from nghvi._core.step_rules import published_rule
from nghvi._core.variational import Start
from nghvi._linalg.tree import SolveOptions
from nghvi.families.factor import FISHER
from nghvi.models.mixed import GroupedData, MixedModel


@dataclasses.dataclass(frozen=True)
class GradientMethod(abc.ABC):
    """What the rules have in common: how a direction becomes a step, and how many are taken.

    ``momentum``: decay of the running average of directions; 0 means no average.
    ``learning_rate``: the factor that multiplies a direction; None lets ADADELTA choose it, with
    its ``decay`` and ``epsilon``. ``draws``: number of draws of theta per step; ``steps``: number
    of steps.
    """

    name: ClassVar[str]
    momentum: float = 0.0
    learning_rate: float | None = None
    decay: float = 0.95
    epsilon: float = 1e-6
    draws: int = 1
    steps: int = 3000

    def __post_init__(self) -> None:
        for name in ("draws", "steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise _wrong(self, name, "give a whole number >= 1")
        for name in ("momentum", "decay"):
            if not 0 <= getattr(self, name) < 1:
                raise _wrong(self, name, "give a number from 0 to below 1")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise _wrong(self, "learning_rate", "give a positive number, or None for ADADELTA")

    @property
    @abc.abstractmethod
    def direction(self) -> Direction:
        """The direction of a step."""

    @property
    def step_rule(self) -> optax.GradientTransformation:
        """How far a step goes along its direction."""
        return published_rule(self.momentum, self.learning_rate, self.decay, self.epsilon)


@dataclasses.dataclass(frozen=True)
class OrdinaryGradient(GradientMethod):
    """SG-HVI: ADADELTA on the gradient itself."""

    name: ClassVar[str] = "SG-HVI"

    @property
    def direction(self) -> Direction:
        """The gradient."""
        return direction.OrdinaryGradient()


@dataclasses.dataclass(frozen=True)
class NaturalGradient(GradientMethod):
    """NG-HVI: steps along ``(F + damping diag F)^-1 g``.

    ``fisher``: the Fisher matrix of the factor Gaussian, ``"exact"`` or ``"printed"`` as in the
    paper, whose block for loadings and scales differs. ``clip``: the length to which longer
    directions are cut; None brings all of them to length 1. ``solver``: options of the conjugate
    gradients.
    """

    name: ClassVar[str] = "NG-HVI"
    momentum: float = 0.6
    damping: float = 10.0
    fisher: str = "exact"
    clip: float | None = 50.0
    solver: SolveOptions = SolveOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fisher not in FISHER:
            raise _wrong(self, "fisher", f"choose one of {', '.join(map(repr, FISHER))}")
        if not self.damping >= 0:
            raise _wrong(self, "damping", "give a number >= 0")
        if self.clip is not None and not self.clip > 0:
            raise _wrong(self, "clip", "give a positive length, or None for length 1")

    @property
    def direction(self) -> Direction:
        """The damped natural gradient."""
        return direction.NaturalGradient(self.damping, self.fisher, self.solver)

    @property
    def step_rule(self) -> optax.GradientTransformation:
        """How far a step goes along its direction, which is first cut to ``clip``."""
        longest = "normalise" if self.clip is None else self.clip
        return published_rule(
            self.momentum, self.learning_rate, self.decay, self.epsilon, longest=longest
        )


PUBLISHED: dict[str, GradientMethod] = {
    # As in the authors' program: twenty conjugate gradient steps without a preconditioner.
    "ng-hvi": NaturalGradient(fisher="printed", solver=SolveOptions.published()),
    # As printed in Algorithm 1 of the paper.
    "ng-hvi-printed": NaturalGradient(fisher="printed", clip=None),
    # The rule of the program with the exact Fisher matrix, and a converged solution.
    "ng-hvi-exact": NaturalGradient(),
    "sg-hvi": OrdinaryGradient(),
}
"""The published rules, by the name that ``method=`` accepts."""


Method = str | GradientMethod
"""A method as given in settings: a name, or an object with your own constants."""


def published(method: Any) -> GradientMethod | None:
    """Return the published rule that a method is, or that it names; None for other methods."""
    if isinstance(method, GradientMethod):
        return method
    return PUBLISHED.get(method) if isinstance(method, str) else None


def published_start(model: MixedModel, data: GroupedData, seed: int) -> Start:
    """The authors' start: random weights with zero biases, everything else 0.01, sds of 1.

    Their weights are uniform up to sqrt(6) / (n_in + n_out), not up to the root of the ratio. A
    network of binary rows starts at 0 with sds of 0.01 instead: with those of 1 the ordinary
    gradient's units die before they have learnt anything.
    """
    params = model.init_params(jax.random.key(seed), data)

    def narrow(w: Array) -> Array:
        fan_out, fan_in = w.shape[0], w.shape[1] - 1
        return w * jnp.sqrt(fan_in) / (fan_in + fan_out)

    binary_network = model.response.classes and not model.trunk.linear
    rest = jax.tree.map(lambda x: jnp.full_like(x, 0.0 if binary_network else 0.01), params)
    theta = ravel_pytree(rest._replace(weights=jax.tree.map(narrow, params.weights)))[0]
    return Start(theta, 0.01 if binary_network else 1.0)


def _wrong(method: GradientMethod, name: str, remedy: str) -> InputError:
    return InputError(f"{type(method).__name__}({name}={getattr(method, name)!r}): {remedy}.")
