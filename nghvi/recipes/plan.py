"""The choice of a recipe, from what the caller asked for and what the model can do.

The recipe for the paper's algorithms (:mod:`nghvi.methods`), a single stage of their steps, is here
as well.
"""

from typing import NamedTuple, cast

import jax.numpy as jnp
from jaxtyping import Array, Float

from nghvi._core.batches import Batches
from nghvi._core.direction import OrdinaryGradient
from nghvi._core.draws import AntitheticDraws, IndependentDraws
from nghvi._core.errors import InputError
from nghvi._core.evaluate import evaluation_size, side_by_side
from nghvi._core.hybrid import HybridVI
from nghvi._core.model import LatentModel, MarginalModel, parameter_dimension
from nghvi._core.score import Integrated, Sampled, Score
from nghvi._core.step_rules import robbins_monro
from nghvi._core.variational import Start, Variational
from nghvi._typing import Data, Key
from nghvi.data import Panel, Rows
from nghvi.data.grouped import CellRows
from nghvi.families import Factor, FactorGaussian, Full
from nghvi.methods import GradientMethod, published
from nghvi.models.bounded import Bounded
from nghvi.models.collapsed import Collapsed
from nghvi.models.divided import mesh_of
from nghvi.models.mixed import MixedModel
from nghvi.recipes.deep import deep_recipe
from nghvi.recipes.run import Ended, Recipe, Stage, first_theta
from nghvi.recipes.settings import Settings
from nghvi.recipes.smooth import any_family_recipe, judge_by_fresh_draws, smooth_recipe
from nghvi.recipes.verdict import Cause

LARGEST_FULL = 300
"""Number of parameters up to which a smooth posterior gets a full covariance."""
HUGE = 10_000_000
"""Numbers touched by an evaluation beyond which it takes seconds."""
SLOW = 4_000
"""Numbers touched by an evaluation beyond which a fit should need few of them."""
MOST_BY_SURFACE = 12
"""Number of parameters up to which a surface of degree three has few enough terms."""
COLLAPSIBLE = (Rows, CellRows, Panel)
"""Forms of the data with sums from which coefficients can be integrated out."""
MOST_ESTIMATES = 81
"""Most estimates, from 64 draws each, by which the result of a published rule is judged."""


class Plan(NamedTuple):
    """What the caller asked for, together with what the model and the form of its data allow."""

    settings: Settings
    smooth: bool
    """Whether the posterior has one mode and is smooth near it."""
    by_newton: bool
    """Whether all the data are seen at once, so that Newton-like steps are possible."""
    costly: bool
    """Whether integrals take so long that the fit uses few points, and its evaluation more."""

    @staticmethod
    def of(settings: Settings, model: LatentModel, data: Data) -> "Plan":
        """Return the plan for a model and its data, which may have been divided."""
        smooth = not model.many_modes
        by_newton = smooth and not isinstance(data, Batches)
        costly = by_newton and settings.latents != "integrate"
        return Plan(settings, smooth, by_newton, costly and integrals_are_costly(model, data))

    @property
    def drawn(self) -> bool:
        """Whether steps draw the latents, so that integrals are needed only for the evaluation."""
        return self.settings.latents == "sample" or self.settings.method != "auto"

    @property
    def explicit(self) -> bool:
        """Whether the caller chose a method or a special family, whose draws are not corrected."""
        family = self.settings.of_family
        return self.settings.method != "auto" or not (family is None or isinstance(family, Full))

    def by_surface(self, model: LatentModel, data: Data) -> bool:
        """Return whether few log densities, each of which takes long, should lead to the result."""
        if not (self.by_newton and isinstance(model, MarginalModel) and model.one_by_one):
            return False
        if self.drawn or self.explicit or self.costly or model.is_drawn(data):
            return False
        size, dim = evaluation_size(model, data), parameter_dimension(model, data)
        return not model.looks_up(data) and SLOW < size <= HUGE and dim <= MOST_BY_SURFACE

    def recipe(self, key: Key, model: LatentModel, data: Data, begin: Variational | None) -> Recipe:
        """Return the recipe for this model.

        ``begin``: where a smooth fit starts; None stands for the mode.
        """
        settings, latents = self.settings, self.settings.latents
        integrable = isinstance(model, MarginalModel) and (
            model.marginal_is_exact or latents == "integrate"
        )
        score: Score = Integrated() if integrable and latents != "sample" else Sampled()
        family = settings.of_family
        if (method := published(settings.method)) is not None:
            if family is not None and not family.gaussian:
                raise InputError(
                    f"family={family!r} with method={settings.method!r}: the published rules move "
                    "a Gaussian; use method='auto'."
                )
            theta = first_theta(key, model, data, settings.begin)
            cheap = integrable and cast(MarginalModel, model).integration_is_cheap
            return published_recipe(method, settings, theta, integrable=cheap)
        dim, batch = parameter_dimension(model, data), side_by_side(model, data)
        own_score = score
        if isinstance(model, MarginalModel) and not model.integration_is_cheap:
            own_score = score if latents == "integrate" else Sampled()  # since steps are many
        if self.by_newton and dim <= LARGEST_FULL:
            gaussian = smooth_recipe(
                model, score, settings, batch=batch, costly=self.costly, begin_at=begin
            )
            if family is None or family.gaussian:
                return gaussian
            return any_family_recipe(
                gaussian, own_score, family, dim, settings.steps, batch=batch, begin_at=begin
            )
        if isinstance(family, Full):
            raise InputError(
                f"family='full' (rank='full') with a network or {dim} parameters: give a number of "
                "factors, family=nghvi.families.Factor(rank)."
            )
        return deep_recipe(model, data, own_score, settings, batch=batch)


def collapsed_if_possible(model: LatentModel, data: Data, settings: Settings) -> LatentModel:
    """Return the model without coefficients if a network is fitted by the library's own method.

    Groups must be seen all at once: what the data say about parameters that have no coefficients
    to refer to is not a sum over groups.
    """
    if not (isinstance(model, MixedModel) and model.moves_naturally and type(data) in COLLAPSIBLE):
        return model
    whole = settings.batch_groups is None and mesh_of(settings.devices) is None
    ours = settings.method == "auto" and settings.of_family is None and settings.begin is None
    if not (whole and ours) or model.known_coef or settings.latents == "sample":
        return model
    if model.response.conjugate:
        return model if model.num_facts else Collapsed(model)
    return Bounded(model) if model.response.log_concave else model


def integrals_are_costly(model: LatentModel, data: Data) -> bool:
    """Return whether one evaluation of the exact marginal takes seconds."""
    return (
        isinstance(model, MarginalModel)
        and not model.integration_is_cheap
        and evaluation_size(model, data) > HUGE
    )


def published_recipe(
    method: GradientMethod, settings: Settings, theta: Float[Array, " m"], *, integrable: bool
) -> Recipe:
    """Return the recipe of a published algorithm that starts at ``theta``.

    The number of steps is that of the settings, or the method's own. ``integrable``: whether its
    result can be judged without the noise of drawn latents.
    """
    score: Score = Integrated() if settings.latents == "integrate" else Sampled(moving=False)
    family = settings.of_family or Factor()
    num_steps = settings.steps or method.steps
    start = settings.begin or Start(theta)
    scale = jnp.broadcast_to(jnp.asarray(start.scale, theta.dtype), theta.shape)
    draws = IndependentDraws(method.draws)
    algorithm = HybridVI(draws, score, method.direction, method.step_rule)

    def begin(key: Key, model: LatentModel, data: Data, done: tuple[Ended, ...]) -> Variational:
        if isinstance(family, Factor):
            return FactorGaussian.start(theta, scale, family.rank, signed_scale=True)
        return family.at(theta, scale)

    stage = Stage(method.name, begin, algorithm, num_steps, 100, min(100, num_steps))
    fresh = HybridVI(
        AntitheticDraws(32),
        Integrated() if integrable else score,
        OrdinaryGradient(),
        robbins_monro(0),
        every_error=True,
    )
    return Recipe(
        "published", (stage,), judge_by_fresh_draws(fresh, Cause.STEPS, 10, MOST_ESTIMATES)
    )
