"""Fits an assembled model: inference, progress, checkpoints, and the final verdict.

A checkpoint is used only by a fit with the same data, model, settings and version of the library.

If a network adds nothing, the linear mixed model takes its place, with a verdict that says so.
The features of a network with a skip connection are ``(1, x, size h(x) / sqrt(width))``. A size
near zero leaves a linear model, which its own recipe fits better: with a full covariance, draws
corrected by importance weights, and coefficients of the columns themselves.
"""

import dataclasses
import hashlib
import numbers
import time
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from nghvi._core.hosts import is_first
from nghvi._core.hybrid import Info
from nghvi._sklearn import Estimator, copied
from nghvi._typing import Data, Place
from nghvi.data import Rows
from nghvi.data.frame import DataError, Tabular, Vector, columns_of
from nghvi.data.scaling import Scaling
from nghvi.data.source import GroupedDataset
from nghvi.data.working_copy import StreamedRows
from nghvi.estimators import tables
from nghvi.estimators.choices import choose_seed
from nghvi.estimators.grouping import random_of
from nghvi.estimators.tables import verdict_sentence
from nghvi.families import family_of
from nghvi.inference import Inference, infer
from nghvi.methods import published_start
from nghvi.models.divided import mesh_of
from nghvi.models.mixed import MixedModel
from nghvi.paper.methods import BASELINES
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at
from nghvi.recipes.run import Position
from nghvi.recipes.verdict import Cause, Status, Verdict
from nghvi.storage.checkpoints import Checkpoints
from nghvi.storage.file import library_version

if TYPE_CHECKING:
    from rich.progress import TaskID

    from nghvi.estimators._base import MixedEstimator


NO_MATTER = ("verbose", "devices")
"""Settings that a checkpoint may differ in; the number of devices is compared separately."""
EVERY = 300.0
"""Default number of seconds between checkpoints."""
WORTH_SLOPES = 2.0
"""The advantage in log evidence, in nats, that slopes must have: in a close call, fewer effects
predict new groups better."""


class Kept(NamedTuple):
    """Where and how often a fit saves checkpoints."""

    directory: Place
    every: float

    @staticmethod
    def of(checkpoint: Place | None, every: float) -> "Kept | None":
        """Return what the caller of ``fit`` asked for, None if no checkpoints."""
        if isinstance(every, bool) or not isinstance(every, numbers.Real) or not every >= 0:
            raise DataError(
                f"every={every!r}: it must be the seconds between checkpoints, 0 or more."
            )
        return None if checkpoint is None else Kept(checkpoint, float(every))


def inferred(
    settings: "MixedEstimator",
    model: MixedModel,
    data: Any,
    scaling: Scaling,
    batch_groups: int | None,
    *,
    resume: Position | None = None,
    held_out: Rows | None = None,
    kept: Kept | None = None,
) -> Inference:
    """Fit a model by the method that an estimator's ``settings`` name.

    ``batch_groups`` is the number of groups per step, None for all. ``resume`` is the position of
    an interrupted run to continue from, ``held_out`` the rows of a stopping rule, and ``kept`` says
    where to save checkpoints.
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
        checkpoints = _checkpoints_of(kept, settings, model, data)
        asked |= {"keep": checkpoints.offer, "resume": checkpoints.newest()}
    if settings.method != "auto":
        asked["start"] = published_start(model, data, seed)
    if not (settings.verbose and is_first()):
        return infer(model, data, **asked)
    with FitProgress(scaling.log_jacobian(data.num_rows)) as progress:
        return infer(model, data, progress=progress, **asked)


def judged(posterior: MixedPosterior) -> MixedPosterior:
    """Extend the verdict by what the optimiser cannot see."""
    cause = None
    if posterior.features_are_constant():
        cause = Cause.CONSTANT_FEATURES
    elif posterior.inference.converged and not tables.is_finite(posterior):
        cause = Cause.NOT_FINITE
    if cause is not None:
        verdict = Verdict(Status.FAILED, cause)
        inference = dataclasses.replace(posterior.inference, verdict=verdict)
        posterior = posterior._replace(inference=inference)
    size = size_if_nothing(posterior)
    return posterior if size is None else told_of_nothing(posterior, size)


def _checkpoints_of(kept: Kept, estimator: Estimator, model: MixedModel, data: Data) -> Checkpoints:
    settings = estimator.get_params(deep=False)
    state = settings["random_state"]
    if state is not None and not isinstance(state, numbers.Integral):
        raise DataError(
            f"random_state={state!r}: with checkpoint it must be an integer, which a later process "
            "can repeat."
        )
    facts = {name: repr(value) for name, value in settings.items() if name not in NO_MATTER}
    mesh = mesh_of(settings["devices"])
    seen = data.facts if isinstance(data, StreamedRows) else data
    return Checkpoints(
        kept.directory,
        {
            "estimator": type(estimator).__name__,
            **facts,
            "devices": str(1 if mesh is None else mesh.size),
            "number of rows": str(float(data.num_rows)),
            "number of groups": str(data.num_groups),
            "sha256 of data and model": _fingerprint((seen, model)),
            "nghvi version": library_version(),
        },
        kept.every,
    )


def _fingerprint(tree: Any) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class FitProgress:
    """Shows one line per stage on stderr: steps done, noisy ELBO, steps per second, time.

    ``jacobian`` is by how much the ELBO on the fitted scale exceeds that of the raw data.
    """

    def __init__(self, jacobian: float = 0.0) -> None:
        # Slow to load, and few fits show a bar.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._jacobian = jacobian
        self._bar = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            TextColumn("{task.completed:>5}/{task.total} steps"),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, "TaskID"] = {}
        self._first: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> "FitProgress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for task in self._tasks.values():
            # A stage that stopped early has reached its goal and is shown as finished.
            self._bar.update(task, total=self._bar.tasks[task].completed)
        self._bar.stop()

    def __call__(self, stage: str, step: int, num_steps: int, trace: Info) -> None:
        """Show the progress of a stage."""
        now = time.perf_counter()
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=num_steps, state="")
            # Time before the first report was spent on compiling, or before an interruption.
            self._first[stage] = (step, now)
        recent = np.asarray(trace.log_target[-10:]) - np.asarray(trace.log_q[-10:])
        state = f"noisy ELBO {recent.mean() - self._jacobian:.2f}"
        first_step, first_time = self._first[stage]
        if step > first_step:
            state += f", {(step - first_step) / (now - first_time):.0f} steps/s"
        self._bar.update(self._tasks[stage], completed=step, state=state)


def size_if_nothing(posterior: MixedPosterior) -> float | None:
    """Return the size of a network that adds nothing, None if it adds something or has no size."""
    found = params_at(posterior.model, posterior.data, posterior.inference.q.centre)
    return posterior.model.trunk.size_of(found.weights) if posterior.model.given_up(found) else None


def adopt_linear(
    estimator: "MixedEstimator",
    size: float,
    X: Tabular | GroupedDataset,
    y: Vector | None,
    counts: Vector | None,
) -> None:
    """Replace the estimator's result by the best linear model that the network contains.

    It has intercepts by group, and slopes as well if the log evidence is clearly for them. If no
    linear model converges, the network stays.
    """
    found = []
    with warnings.catch_warnings():  # the network's fit has issued these warnings already
        warnings.simplefilter("ignore")
        for settings in _candidates(estimator):
            linear = copied(estimator).set_params(hidden=(), trunk=None, verbose=False, **settings)
            linear.set_params(group=estimator.group_)  # with categories that the network pools
            found.append(linear.fit(X, y, counts))
    usable = [linear for linear in found if linear.converged_]
    if not usable:
        return
    best = clearly_best(usable)
    ours = estimator.get_params(deep=False)
    for name, value in vars(best).items():
        if name not in ours:
            setattr(estimator, name, value)
    effects = len(best.posterior_.names.effects)
    estimator.posterior_ = told_of_nothing(best.posterior_, size, effects=effects)
    estimator.verdict_ = verdict_sentence(estimator.posterior_)


def _candidates(estimator: "MixedEstimator") -> Iterator[dict[str, Any]]:
    """Yield the settings of the linear models to try."""
    priors, random = estimator.priors, estimator.random
    scales = () if priors is None else (priors.coef_sd, getattr(priors.effects, "scale", 1.0))
    if any(isinstance(scale, tuple) for scale in scales):  # one per feature of the network
        return
    if estimator.formula is not None:
        yield {}
        return
    names, known = estimator.posterior_.names, ("intercept", *estimator.reader_.inputs)
    diagonal = estimator.covariance == "auto" and priors is None
    independent = {"covariance": "diagonal"} if diagonal else {}
    if names.factors:
        slopes = {f.name: [name for name in f.effects if name in known] for f in names.factors}
        group = columns_of(estimator.group_)
        few = {
            name: ["intercept"]
            if "intercept" in own and isinstance(random_of(random, group, name), str)
            else own
            for name, own in slopes.items()
        }
        for chosen in (few, slopes) if few != slopes else (few,):
            yield {"random": {name: own or "auto" for name, own in chosen.items()}} | independent
        return
    columns = [name for name in names.effects if name in known]
    if not columns:
        yield {"random": "auto"}
        return
    if "intercept" in columns and (isinstance(random, str) or len(columns) == 1):
        yield {"random": "intercept"}
    if columns != ["intercept"]:
        yield {"random": columns} | independent


def clearly_best(models: list[Any]) -> Any:
    """Return the first of the models, unless the evidence is clearly for another."""

    def support(linear: Any) -> float:
        evidence = float(np.nan_to_num(linear.log_evidence_, nan=-np.inf))
        return evidence if linear is models[0] else evidence - WORTH_SLOPES

    return max(models, key=support)


def told_of_nothing(posterior: MixedPosterior, size: float, **facts: float) -> MixedPosterior:
    """Add to the verdict that the network adds nothing."""
    verdict = posterior.inference.verdict
    verdict = verdict._replace(facts={**verdict.facts, "network_size": size, **facts})
    return posterior._replace(inference=dataclasses.replace(posterior.inference, verdict=verdict))
