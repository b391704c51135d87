"""Runs a recipe, and runs it again with finer integrals as long as its result asks for them."""

from typing import cast

from jaxtyping import Array

from nghvi._core.batches import Batches
from nghvi._core.model import LatentModel, MarginalModel, unraveller
from nghvi._core.variational import Variational
from nghvi._programs import Ahead, program
from nghvi._typing import Data, Key
from nghvi.families import CholeskyGaussian
from nghvi.recipes.by_surface import Found, first_refined, fitted_by_surface
from nghvi.recipes.plan import Plan
from nghvi.recipes.refinement import Known, is_affordable, refinements_needed
from nghvi.recipes.run import Keep, Position, Progress, Run, first_theta, run
from nghvi.recipes.smooth import laplace_start
from nghvi.recipes.verdict import Cause, Status, Verdict

GLANCE = 15
"""Number of steps after which a fit checks whether its integrals are exact enough."""


def refined_fit(
    key: Key,
    plan: Plan,
    model: LatentModel,
    data: Data,
    ahead: Ahead,
    progress: Progress | None,
    resume: Position | None,
    keep: Keep | None,
) -> tuple[LatentModel, Run, Found | None]:
    """Fit, and fit again with refined integrals as long as the result shows that it is needed."""
    if plan.costly:  # few nodes for the fit, more for its evaluation
        rough = cast(MarginalModel, model).approximate()
        model = rough if plan.drawn else _affordably_refined(rough)
    elif plan.by_newton and not plan.drawn and isinstance(model, MarginalModel):
        model = model.refinable()
    refinements = 0 if resume is None else resume.refinements
    model = _refined(model, refinements)
    example = Batches.example_of(data)
    begin: Variational | None = None
    if _is_drawn(model, data):
        model, begin = _begun(key, plan, cast(MarginalModel, model), data)
    elif plan.by_newton and not plan.drawn and model.looks_up(data):
        first = first_theta(key, model, data, plan.settings.begin)
        begin = laplace_start(cast(MarginalModel, model), data, first)
    quickly = resume is None and keep is None and plan.by_surface(model, data)
    if quickly:
        model, begin = _at_mode(key, plan, cast(MarginalModel, model), data, ahead)
    while True:
        if begin is not None:
            model = cast(MarginalModel, model).with_lookup(begin, data)
        needed = 0

        def settled(q: Variational, model: LatentModel = model, known: Known | None = None) -> bool:
            nonlocal needed
            refinable = plan.smooth and not plan.drawn
            asked = (key, model, data, q, plan.costly, known)
            needed = refinements_needed(*asked) if refinable else 0
            return needed == 0 or not is_affordable(_refined(model, needed), data)

        glance = GLANCE if plan.by_newton and not plan.costly else None

        def record(position: Position, ends: bool, refinements: int = refinements) -> None:
            if keep is not None:
                keep(position._replace(refinements=refinements), ends)

        found = None
        if quickly:
            at_mode = cast(CholeskyGaussian, begin)
            found = fitted_by_surface(key, cast(MarginalModel, model), data, at_mode, progress)
        if found is not None:
            done = found.run
            if done.verdict.status is Status.INTERRUPTED:
                return model, done, None  # since draws may be too few to evaluate it
            settled(done.q, known=found.known)
        else:
            recipe = plan.recipe(key, model, example, begin)
            recipe.make_ahead(ahead, key, model, data)
            done = run(recipe, key, model, data, progress, resume, record, settled, glance)
        if done.position is not None:
            # The returned model is already refined, unless the fit uses an approximation.
            left = done.position._replace(refinements=refinements if plan.costly else 0)
            return model, done._replace(position=left), None
        if needed == 0:
            return model, done, found
        better = _refined(model, needed)
        if not is_affordable(better, data):
            if done.verdict.status is not Status.FAILED:
                cause = Cause.DRAWS if _is_drawn(model, data) else Cause.UNAFFORDABLE
                done = done._replace(verdict=Verdict(Status.NOT_CONVERGED, cause))
            return model, done, found
        model, resume, refinements, begin = better, None, refinements + needed, done.q


def _is_drawn(model: LatentModel, data: Data) -> bool:
    return isinstance(model, MarginalModel) and model.is_drawn(data)


def _refined(model: LatentModel, times: int) -> LatentModel:
    for _ in range(times):
        model = cast(MarginalModel, model).refined()
    return model


def _begun(
    key: Key, plan: Plan, model: MarginalModel, data: Data
) -> tuple[MarginalModel, Variational]:
    """Return the model, its draws placed at the mode of an approximation, and that as start."""
    rough = model.approximate()
    begin = laplace_start(rough, data, first_theta(key, rough, data, plan.settings.begin))
    return _placed_at(model, data, begin.centre), begin


def _at_mode(
    key: Key, plan: Plan, model: MarginalModel, data: Data, ahead: Ahead
) -> tuple[MarginalModel, CholeskyGaussian]:
    """Return the Gaussian at the mode, and the model with integrals that suit it."""
    first = first_theta(key, model, data, plan.settings.begin)
    begin = laplace_start(_placed_at(model, data, first), data, first, roughly=True)
    return first_refined(_placed_at(model, data, begin.mean), data, begin), begin


@program
def _placed_at(model: MarginalModel, data: Data, theta: Array) -> MarginalModel:
    return model.placed(unraveller(model, data)(theta), data)


def for_evaluation(
    key: Key,
    plan: Plan,
    given: LatentModel,
    fitted: LatentModel,
    data: Data,
    q: Variational,
) -> LatentModel:
    """Return the model with integrals exact enough for the evaluation of the result."""
    model = fitted
    if plan.drawn and plan.smooth:
        while needed := refinements_needed(key, model, data, q, plan.costly):
            better = cast(MarginalModel, _refined(model, needed))
            if not better.integration_is_affordable:
                break
            model = better
    if not plan.costly:
        return model
    return given if plan.drawn else _affordably_refined(cast(MarginalModel, model))


def _affordably_refined(model: MarginalModel) -> MarginalModel:
    better = model.refined()
    return better if better.integration_is_affordable else model
