"""Which recipe: from what the caller asked for and what the model can do."""

from typing import NamedTuple, cast

from jaxtyping import Array

from nghvi._core.errors import InputError
from nghvi._core.model import LatentModel, MarginalModel, initial_theta, parameter_dimension
from nghvi._core.score import Integrated, Sampled, Score
from nghvi._core.variational import Variational
from nghvi._typing import Data, Key
from nghvi.methods import PUBLISHED, Method, published
from nghvi.recipes.deep import RANK, deep_recipe
from nghvi.recipes.published import published_recipe
from nghvi.recipes.run import Recipe
from nghvi.recipes.smooth import smooth_recipe

METHODS = ("auto", *PUBLISHED)
LARGEST_FULL = 300
"""Parameters up to which a smooth posterior gets a full covariance."""


class Plan(NamedTuple):
    """What the caller asked for."""

    rank: int | str
    method: Method
    steps: int | None
    n_starts: int | str
    latents: str
    smooth: bool
    start: Array | None
    start_scale: float
    batch: int
    costly: bool
    network: bool
    """Whether the posterior has many modes."""
    begin: Variational | None = None
    """Where a smooth fit begins; None is at the mode."""

    def recipe(self, key: Key, model: LatentModel, data: Data) -> Recipe:
        """The recipe for this model."""
        rank, method = self.rank, published(self.method)
        if method is None and self.method != "auto":
            known = ", ".join(map(repr, METHODS))
            raise InputError(
                f"method={self.method!r}: choose one of {known}, or an object of nghvi.methods."
            )
        if isinstance(rank, bool) or not (
            (isinstance(rank, int) and rank >= 0) or rank in ("auto", "full")
        ):
            raise InputError(f"rank={rank!r}: give a number of factors >= 0, 'full' or 'auto'.")
        number = None if isinstance(rank, str) else int(rank)
        exact = isinstance(model, MarginalModel) and (
            model.marginal_is_exact or self.latents == "integrate"
        )
        score: Score = Integrated() if exact and self.latents != "sample" else Sampled()
        if method is not None:
            theta = initial_theta(key, model, data) if self.start is None else self.start
            drawn = Integrated() if self.latents == "integrate" else Sampled(moving=False)
            rank = RANK if number is None else number
            return published_recipe(
                method,
                theta,
                rank,
                self.steps or method.steps,
                scale=self.start_scale,
                score=drawn,
                integrable=exact and cast(MarginalModel, model).integration_is_cheap,
            )
        dim = parameter_dimension(model, data)
        if self.smooth and dim <= LARGEST_FULL:
            return smooth_recipe(model, score, number, self.batch, self.costly, self.begin)
        if rank == "full":
            raise InputError(
                f"rank='full' with a network or {dim} parameters: give a number of factors."
            )
        if isinstance(model, MarginalModel) and not model.integration_is_cheap:
            score = score if self.latents == "integrate" else Sampled()
        starts = None if isinstance(self.n_starts, str) else self.n_starts
        return deep_recipe(
            model,
            data,
            score,
            number,
            self.steps,
            starts,
            network=self.network,
            batch=self.batch,
        )
