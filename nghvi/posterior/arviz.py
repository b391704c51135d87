"""Results for ArviZ: the posterior as a labelled DataTree, and leave-one-out cross-validation.

Leave-one-out estimates the log predictive density of every row given all other rows, with the
weights of :mod:`nghvi.posterior.left_out`.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from arviz_stats import ELPDData
from arviz_stats.base import array_stats
from jaxtyping import Float, Int
from xarray import DataArray

from nghvi._core.evaluate import log_targets, side_by_side
from nghvi.posterior.mixed_posterior import MixedPosterior
from nghvi.posterior.pointwise import (
    Densities,
    Observed,
    by_rows,
    raw_log_likelihood,
    replicate,
)
from nghvi.posterior.prior_influence import log_density
from nghvi.recipes.importance import RELIABLE, pareto_smoothed

DIMS = {
    "coef": ["feature"],
    "effects_cov": ["effect", "effect_other"],
    "effects": ["group", "effect"],
    "y": ["row"],
}


def to_datatree(
    posterior: MixedPosterior, draws: int, seed: int, observed: Observed | None = None
) -> Any:
    """Return one chain of equally weighted draws, with dimensions named after the data.

    The tree has the groups ``posterior`` and ``sample_stats`` and, with ``observed`` rows,
    ``posterior_predictive``, ``log_likelihood`` and ``observed_data``, all from the same joint
    draws.
    """
    from arviz_base import from_dict

    theta, effects = posterior.joint(draws, seed)
    # A DataTree reads a slash in a name as a path.
    values = {k.replace("1/", "inverse_"): v for k, v in posterior.at(theta, effects).items()}
    names = posterior.names
    if not names.effects:
        values = {k: v for k, v in values.items() if not k.startswith("effects")}
    groups = {"posterior": values, "sample_stats": _statistics(posterior, theta)}
    if observed is not None:
        groups |= _rows(posterior, theta, effects, observed, seed)
    content = {name: {k: v[None] for k, v in group.items()} for name, group in groups.items()}
    coords: dict[str, list] = {"feature": list(names.features)}
    dims = dict(DIMS)
    if names.factors:
        for factor in names.factors:
            own, other = f"{factor.name}_effect", f"{factor.name}_effect_other"
            coords |= {factor.name: list(factor.levels), own: list(factor.effects)}
            coords[other] = list(factor.effects)
            dims |= {f"effects[{factor.name}]": [factor.name, own]}
            dims |= {f"effects_cov[{factor.name}]": [own, other]}
    else:
        coords |= {"effect": list(names.effects), "effect_other": list(names.effects)}
        coords["group"] = list(names.groups)
    if observed is not None:
        content["observed_data"] = {"y": posterior.scaling.raw_response(observed.y)}
        coords["row"] = list(range(len(observed.y)))
    tree = from_dict(content, coords=coords, dims=dims)
    inference = posterior.inference
    tree["posterior"].attrs.update(
        inference_library="nghvi",
        elbo=inference.elbo - posterior.scaling.log_jacobian(posterior.data.num_rows),
        k_hat=inference.k_hat,
        converged=str(inference.converged),
        status=inference.verdict.status.value,
        verdict=inference.verdict.sentence,
        corrected=str(inference.pool.corrected),
    )
    return tree


def _statistics(posterior: MixedPosterior, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Return log q(theta) and log p(y, theta) on the fitted scale, where exact and cheap."""
    model, data = posterior.model, posterior.data
    found = {}
    if posterior.inference.drawn_from_q:
        found["log_q"] = np.asarray(log_density(posterior.inference.q, jnp.asarray(theta)))
    if model.marginal_is_exact and model.integration_is_cheap:
        batch = side_by_side(model, data)
        found["lp"] = log_targets(model, data, theta, batch)
    return found


def _rows(
    posterior: MixedPosterior,
    theta: np.ndarray,
    effects: tuple[np.ndarray, ...],
    observed: Observed,
    seed: int,
) -> dict[str, dict[str, np.ndarray]]:
    drawn = theta, effects, observed, seed
    replicates = np.concatenate([*by_rows(posterior, replicate, *drawn)], axis=1)
    return {
        "posterior_predictive": {"y": posterior.scaling.raw_response(replicates)},
        "log_likelihood": {"y": np.concatenate([*raw_log_likelihood(posterior, *drawn)], axis=1)},
    }


@dataclasses.dataclass(repr=False)
class Loo(ELPDData):
    """The leave-one-out result of arviz-stats, with a sentence on what its k-hats mean."""

    @property
    def num_unreliable(self) -> int:
        """The number of rows whose k-hat is too large."""
        return int(np.sum(np.asarray(self.pareto_k) > self.good_k))

    def in_order(self, order: Int[np.ndarray, " n"]) -> "Loo":
        """Return the same with the rows in another order."""
        return dataclasses.replace(self, elpd_i=self.elpd_i[order], pareto_k=self.pareto_k[order])

    @property
    def meaning(self) -> str:
        """Whether the estimate can be trusted, and what to do if not."""
        largest, rows = float(np.max(self.pareto_k)), self.n_data_points
        if not self.num_unreliable:
            return (
                f"k-hat is below {self.good_k:.2f} in all {rows} rows (largest {largest:.2f}): the "
                "estimate is reliable."
            )
        return (
            f"k-hat is above {self.good_k:.2f} in {self.num_unreliable} of {rows} rows (largest "
            f"{largest:.2f}): these rows are so influential that the draws cannot tell what a fit "
            "without them would say, and the sum is likely too high. Score held-out rows instead "
            "(log_score after K fits), or refit without these rows."
        )

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.meaning}"


def psis_loo(pieces: Iterable[Densities]) -> Loo:
    """Estimate leave-one-out from log densities, all draws of a piece of rows at a time."""
    found = []
    for piece in pieces:
        draws = len(piece.without)
        log_weight, shape = pareto_smoothed(-piece.without.T)
        expected = _log_sum(log_weight.T + piece.without)
        within = _log_sum(piece.given_all) - np.log(draws)
        found.append((expected, shape, within - expected))
    elpd, k_hat, complexity = (np.concatenate(part) for part in zip(*found, strict=True))
    total, error, p_loo, _ = array_stats.loo_summary(elpd, complexity)
    good_k = min(1 - 1 / np.log10(draws), RELIABLE)
    return Loo(
        kind="loo",
        elpd=float(total),
        se=float(error),
        p=float(p_loo),
        n_samples=draws,
        n_data_points=len(elpd),
        scale="log",
        warning=bool((k_hat > good_k).any()),
        good_k=float(good_k),
        elpd_i=DataArray(elpd, dims=["row"]),
        pareto_k=DataArray(k_hat, dims=["row"]),
    )


def _log_sum(values: Float[np.ndarray, "s n"]) -> Float[np.ndarray, " n"]:
    """Return the logarithm of summed exponentials over draws, in a third of SciPy's time."""
    largest = values.max(axis=0)
    return largest + np.log(np.sum(np.exp(values - largest), axis=0))
