"""Which recipe: from what the caller asked for and what the model can do."""

from typing import NamedTuple, cast

from nghvi._core.batches import Batches
from nghvi._core.errors import InputError
from nghvi._core.evaluate import evaluation_size, side_by_side
from nghvi._core.model import LatentModel, MarginalModel, parameter_dimension
from nghvi._core.score import Integrated, Sampled, Score
from nghvi._core.variational import Variational
from nghvi._typing import Data, Key
from nghvi.families import Full
from nghvi.methods import published
from nghvi.recipes.any_family import any_family_recipe
from nghvi.recipes.deep import deep_recipe
from nghvi.recipes.published import published_recipe
from nghvi.recipes.run import Recipe
from nghvi.recipes.settings import Settings
from nghvi.recipes.smooth import smooth_recipe
from nghvi.recipes.start import first_theta

LARGEST_FULL = 300
"""Parameters up to which a smooth posterior gets a full covariance."""
HUGE = 10_000_000
"""Numbers touched by an evaluation that takes seconds."""


class Plan(NamedTuple):
    """What the caller asked for, beside what the model and the form of its data allow."""

    settings: Settings
    smooth: bool
    """Whether the posterior has one mode, near which it is smooth."""
    by_newton: bool
    """Whether all the data are seen at once, so that steps like Newton's are possible."""
    costly: bool
    """Whether integrals take so long that few points serve the fit and more its evaluation."""

    @staticmethod
    def of(settings: Settings, model: LatentModel, data: Data) -> "Plan":
        """For a model and its data as they are divided."""
        smooth = not model.many_modes
        by_newton = smooth and not isinstance(data, Batches)
        costly = by_newton and settings.latents != "integrate"
        return Plan(settings, smooth, by_newton, costly and integrals_are_costly(model, data))

    @property
    def drawn(self) -> bool:
        """Whether steps draw the latents, so that integrals serve the evaluation only."""
        return self.settings.latents == "sample" or self.settings.method != "auto"

    @property
    def explicit(self) -> bool:
        """Whether the caller chose what the result is, so that its draws stay as they are."""
        family = self.settings.of_family
        return self.settings.method != "auto" or not (family is None or isinstance(family, Full))

    def recipe(self, key: Key, model: LatentModel, data: Data, begin: Variational | None) -> Recipe:
        """The recipe for this model; ``begin``: where a smooth fit begins, None is at the mode."""
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
            own_score = score if latents == "integrate" else Sampled()  # for many noisy steps
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


def integrals_are_costly(model: LatentModel, data: Data) -> bool:
    """Whether an evaluation of the exact marginal takes seconds."""
    return (
        isinstance(model, MarginalModel)
        and not model.integration_is_cheap
        and evaluation_size(model, data) > HUGE
    )
