"""From an assembled model to its inference, as the settings of an estimator ask for it."""

import dataclasses
from typing import Any

from nghvi._core.hosts import is_first
from nghvi.data import Rows
from nghvi.data.scaling import Scaling
from nghvi.estimators import tables
from nghvi.estimators.choices import choose_seed
from nghvi.estimators.fit_checkpoints import Kept, with_checkpoints
from nghvi.estimators.linear_instead import size_if_nothing, told_of_nothing
from nghvi.estimators.progress import FitProgress
from nghvi.families import family_of
from nghvi.inference import Inference, infer
from nghvi.models.mixed import MixedModel
from nghvi.paper.methods import BASELINES
from nghvi.paper.methods.published_start import published_start
from nghvi.posterior.mixed_posterior import MixedPosterior
from nghvi.recipes.run import Position
from nghvi.recipes.verdict import Cause, Status, Verdict


def inferred(
    settings: Any,
    model: MixedModel,
    data: Any,
    scaling: Scaling,
    batch_groups: int | None,
    *,
    resume: Position | None = None,
    held_out: Rows | None = None,
    kept: Kept | None = None,
) -> Inference:
    """By the method of an estimator's ``settings``.

    ``batch_groups``: groups per step, None for all; ``resume``: where an interrupted run goes on;
    ``held_out``: rows that a stopping rule watches; ``kept``: where checkpoints go.
    """
    seed = choose_seed(settings.random_state)
    if settings.method in BASELINES:
        given = {"steps": settings.steps, "validation": held_out}
        chosen = {name: value for name, value in given.items() if value is not None}
        return BASELINES[settings.method](model, data, seed=seed, **chosen)
    asked: dict[str, Any] = {
        "seed": seed,
        "family": family_of(settings.rank),
        "method": settings.method,
        "steps": settings.steps,
        "n_starts": settings.n_starts,
        "latents": settings.latents,
        "importance": settings.importance,
        "resume": resume,
        "batch_groups": batch_groups,
        "devices": settings.devices,
    }
    if kept is not None:
        asked |= with_checkpoints(kept, settings, model, data)
    if settings.method != "auto":
        asked["start"] = published_start(model, data, seed)
    if not (settings.verbose and is_first()):
        return infer(model, data, **asked)
    with FitProgress(scaling.log_jacobian(data.num_rows)) as progress:
        return infer(model, data, progress=progress, **asked)


def judged(posterior: MixedPosterior) -> MixedPosterior:
    """With a verdict that also knows what the optimiser does not see."""
    if (cause := _why_unusable(posterior)) is not None:
        verdict = Verdict(Status.FAILED, cause)
        inference = dataclasses.replace(posterior.inference, verdict=verdict)
        posterior = posterior._replace(inference=inference)
    size = size_if_nothing(posterior)
    return posterior if size is None else told_of_nothing(posterior, size)


def _why_unusable(posterior: MixedPosterior) -> Cause | None:
    """What makes a result useless although the optimiser is satisfied."""
    if posterior.features_are_constant():
        return Cause.CONSTANT_FEATURES
    good = posterior.inference.converged
    return Cause.NOT_FINITE if good and not tables.is_finite(posterior) else None
