"""A fit of few gradients: the best Gaussian for a polynomial through log densities.

1. Draws of the Gaussian at the mode, with densities and gradients, and a surface through them.
2. The best Gaussian for that surface, which costs no density.
3. Fresh draws of it, which judge it; if they find an error, a surface through all of them, and 2.

Natural gradient steps need as many gradients each as step 1 has, and use them once. The judge looks
at what the surface misses at fresh draws: with gradients s of the log density and s' of the surface
at theta = mean + C z, the means of C'(s - s') and C'(s - s') z' are by how much a further natural
gradient step would move the Gaussian. Nothing else has noise, so few draws tell. The last draws
give the ELBO as well, and all of them the surface behind the importance weights.
"""

import time
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.special import logsumexp, ndtri

from nghvi._core.evaluate import Evaluation, draw, log_targets, values_and_scores
from nghvi._core.hybrid import Info
from nghvi._core.model import MarginalModel
from nghvi._core.sobol import sobol
from nghvi._core.variational import RemainingError
from nghvi._linalg.tree import SolveInfo
from nghvi._typing import Data, Key
from nghvi.families import CholeskyGaussian
from nghvi.recipes.importance import smooth_weights
from nghvi.recipes.refinement import UNLIKE, Known
from nghvi.recipes.run import Interrupt, Progress, Run
from nghvi.recipes.surface import Surface, draws_for_surface, fitted_surface
from nghvi.recipes.verdict import Cause, Status, Verdict, judge

NAME = "surface"
"""Name of the stage in traces and messages."""
TURNS = 3
"""Most Gaussians that are tried."""
LEAST_DRAWS, MOST_DRAWS = 50, 150
"""Least number of draws of a Gaussian, and the number beyond which steps are cheaper."""
AT_ONCE = 10
"""Number of gradients between which Ctrl-C is heard."""
PAIRS = 10
"""Number of pairs of draws at which integrals are compared with more accurate ones."""
LOG2_POINTS = 9
"""Number of points, as a power of two, that stand for half of a Gaussian when a surface is
averaged."""
MOST_NEWTON, CLOSE = 30, 1e-3
"""Most steps towards the best Gaussian for a surface, and the relative change of the last one."""
LARGEST_SCALING = 4.0
"""Factor by which one of them may change a precision at most."""


class Found(NamedTuple):
    """The result of a fit by surfaces, with what its evaluation needs."""

    run: Run
    evaluation: Evaluation
    """Fresh draws of the result, with gradients."""
    surface: Surface | None
    """The surface through all draws; None if none fits, or if the fit was interrupted."""

    @property
    def known(self) -> Known:
        """Pairs of draws, as many as tell whether integrals are exact enough."""
        theta, values = self.evaluation.theta, self.evaluation.log_target
        some = np.concatenate([np.arange(PAIRS), len(theta) // 2 + np.arange(PAIRS)])
        q = cast(CholeskyGaussian, self.run.q)
        return Known(_Normal.of(q).white(theta[some]), theta[some], values[some])


class _Normal(NamedTuple):
    """A Gaussian N(mean, root root') on the host; the root is lower triangular."""

    mean: Float[np.ndarray, " m"]
    root: Float[np.ndarray, "m m"]

    @staticmethod
    def of(q: CholeskyGaussian) -> "_Normal":
        mean = np.asarray(q.mean)
        root = np.zeros((mean.size, mean.size))
        root[np.tril_indices(mean.size)] = np.asarray(q.packed_factor)
        return _Normal(mean, root)

    @property
    def q(self) -> CholeskyGaussian:
        packed = self.root[np.tril_indices(self.mean.size)]
        return CholeskyGaussian(jax.device_put(self.mean), jax.device_put(packed))

    def white(self, theta: Float[np.ndarray, "s m"]) -> Float[np.ndarray, "s m"]:
        """Return the standard normals that were carried to ``theta``."""
        return solve_triangular(self.root, (theta - self.mean).T, lower=True).T

    def log_density(self, theta: Float[np.ndarray, "s m"]) -> Float[np.ndarray, " s"]:
        """Return the log density, but for a constant that all Gaussians share."""
        log_det = np.sum(np.log(np.diag(self.root)))
        return -0.5 * np.sum(self.white(theta) ** 2, axis=1) - log_det


def draws_per_turn(m: int) -> int:
    """Return the number of draws of a Gaussian of m parameters by which it is judged."""
    return max(LEAST_DRAWS, draws_for_surface(m, with_scores=True))


def fitted_by_surface(
    key: Key,
    model: MarginalModel,
    data: Data,
    begin: CholeskyGaussian,
    progress: Progress | None = None,
) -> Found | None:
    """Return the best Gaussian, from one at the mode; None if surfaces do not lead to it."""
    begun, now = time.perf_counter(), _Normal.of(begin)
    number = draws_per_turn(now.mean.size)
    tried: list[_Normal] = []
    seen: list[Evaluation] = []
    traces: list[Info] = []
    surface: Surface | None = None
    with Interrupt() as interrupt:
        for turn in range(TURNS + 1):
            found = _evaluated(jax.random.fold_in(key, turn), now, model, data, number, interrupt)
            verdict, info = _judged(now, found, surface)
            traces.append(info)
            trace = jax.tree.map(lambda *each: np.stack(each), *traces)
            if progress is not None:
                progress(NAME, turn + 1, TURNS + 1, trace)
            tried, seen = [*tried, now], [*seen, found]
            if interrupt.agreed():
                facts = {"stage": NAME, "step": turn + 1, "steps": TURNS + 1}
                verdict, surface = Verdict(Status.INTERRUPTED, Cause.USER, facts), None
            else:
                ended = verdict.converged and turn > 0  # the first one was not fitted yet
                surface = _through(tried, seen)
            if interrupt.requested or ended:
                steps, seconds = turn + 1, time.perf_counter() - begun
                run = Run(now.q, verdict, ((NAME, trace),), steps, seconds, None)
                return Found(run, found, surface)
            if surface is None or (best := _best_gaussian(surface, now)) is None:
                return None
            now = best
    return None


def _evaluated(
    key: Key,
    q: _Normal,
    model: MarginalModel,
    data: Data,
    number: int,
    interrupt: Interrupt,
) -> Evaluation:
    """Return draws with densities and gradients, fewer of them if the user interrupts."""
    theta, log_q = draw(key, q.q, number)
    # Pairs of opposite draws are together, so that any first part of them is balanced.
    order = np.arange(len(theta)).reshape(2, -1).T.ravel()
    theta, log_q, parts = theta[order], log_q[order], []
    for start in range(0, len(theta), AT_ONCE):
        parts.append(values_and_scores(model, data, theta[start : start + AT_ONCE]))
        if interrupt.requested:
            break
    values, scores = map(np.concatenate, zip(*parts, strict=True))
    values = np.where(np.isfinite(values), values, -np.inf)
    halves = np.arange(len(values)).reshape(-1, 2).T.ravel()
    return Evaluation(theta[halves], values[halves], log_q[halves], scores[halves])


def _through(tried: list[_Normal], seen: list[Evaluation]) -> Surface | None:
    """Return the surface through all draws, each weighted as one of all Gaussians' mixture."""
    theta = np.concatenate([each.theta for each in seen])
    values = np.concatenate([each.log_target for each in seen])
    scores = np.concatenate([each.score for each in seen if each.score is not None])
    log_ratio = values - logsumexp([q.log_density(theta) for q in tried], axis=0)
    if not np.isfinite(log_ratio).any():
        return None
    weight, _ = smooth_weights(np.maximum(log_ratio, log_ratio.max() - 700))
    return fitted_surface(theta, values, weight, scores)


def _best_gaussian(surface: Surface, begin: _Normal) -> _Normal | None:
    """Return the Gaussian with the highest ELBO if the surface is the density; None if none is.

    Newton's method: the next precision is minus the mean second derivative, and the mean moves by
    the covariance times the mean gradient.
    """
    z = _balanced_points(begin.mean.size)
    unit = surface.root
    mean = solve_triangular(unit, begin.mean - surface.centre, lower=True)
    root = solve_triangular(unit, begin.root, lower=True)
    for _ in range(MOST_NEWTON):
        slope = surface.slopes(mean + z @ root.T)
        whitened = (root.T @ slope.T) @ z / len(z)
        precision, axes = np.linalg.eigh(-0.5 * (whitened + whitened.T))
        if not np.isfinite(precision).all():
            return None
        precision = np.clip(precision, 1 / LARGEST_SCALING, LARGEST_SCALING)
        step = axes @ ((axes.T @ root.T @ slope.mean(axis=0)) / precision)
        size = np.linalg.norm(step)
        mean = mean + root @ step / max(1.0, size)
        square = root @ (axes / np.sqrt(precision))
        try:
            root = np.linalg.cholesky(square @ square.T)
        except np.linalg.LinAlgError:  # the surface has no maximum, and the steps led far away
            return None
        if max(size, np.abs(precision - 1).max()) < CLOSE:
            return _Normal(surface.centre + unit @ mean, unit @ root)
    return None


def _balanced_points(m: int) -> Float[np.ndarray, "s m"]:
    """Return opposite pairs of evenly spread normals, whose covariance is exactly one."""
    even = np.clip(sobol(m, LOG2_POINTS, np.random.default_rng(0)), 1e-12, 1 - 1e-12)
    half = ndtri(even)
    half = solve_triangular(np.linalg.cholesky(half.T @ half / len(half)), half.T, lower=True).T
    return np.concatenate([half, -half])


def _judged(q: _Normal, found: Evaluation, surface: Surface | None) -> tuple[Verdict, Info]:
    """Return the verdict on a Gaussian that is the best one for a surface, and what to record.

    If ``surface`` is None, its own log density is the surface.
    """
    z, scores = q.white(found.theta), found.score
    assert scores is not None
    known = -z @ np.linalg.inv(q.root) if surface is None else surface.scores(found.theta)
    missed = (scores - known) @ q.root
    good = np.isfinite(found.log_target) & np.isfinite(missed).all(axis=1)
    missed = np.where(good[:, None], missed, 0.0) if good.any() else missed
    pairs = missed.reshape(2, -1, z.shape[1])
    outer = np.einsum("pki,pkj->kij", pairs, z.reshape(pairs.shape)) / 2
    change = q.root @ (0.5 * (outer + np.swapaxes(outer, 1, 2))) @ q.root.T
    sd = np.linalg.norm(q.root, axis=1)
    means = pairs.mean(axis=0) @ q.root.T / sd
    scales = 0.5 * np.diagonal(change, axis1=1, axis2=2) / sd**2
    verdict = judge(means, scales, cause=Cause.SHAPE, bad_draws=int(np.sum(~good)))
    error = RemainingError(means.mean(axis=0), scales.mean(axis=0))
    figures: dict[str, Any] = dict(
        log_target=np.mean(found.log_target[good]),
        log_q=np.mean(found.log_q[good]),
        bad_draws=np.sum(~good),
        rejected=False,
        gradient_norm=np.linalg.norm(np.mean(scores[good], axis=0)),
        direction_norm=np.linalg.norm(error.mean * sd),
        remaining=error,
        solve=SolveInfo(cast(Any, 0), cast(Any, 0.0)),
    )
    return verdict, Info(**figures)


def first_refined(model: MarginalModel, data: Data, q: CholeskyGaussian) -> MarginalModel:
    """Return the model with integrals that are exact enough at the centre of q.

    If they are too rough there, a fit would be made in vain; elsewhere its result will show.
    """
    centre = np.asarray(q.mean)[None]
    right = log_targets(model.yardstick(), data, centre)[0]
    while abs(log_targets(model, data, centre)[0] - right) > UNLIKE:
        better = model.refined()
        if better is model or not better.integration_is_affordable:
            break
        model = better
    return model
