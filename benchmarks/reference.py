"""The long MCMC run every method is compared with, computed once and kept.

Gibbs sampling, 4 chains of 5,000 draws after 1,000 of burn-in, same priors. The file carries a
fingerprint of the data and the priors; where that no longer fits, the run is repeated.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks import problems
from benchmarks.problems import Problem
from nghvi.paper.studies import facts

CHAINS, DRAWS, BURN_IN = 4, 5000, 1000

FOLDER = Path(__file__).parent / "results"


def load_or_run(name: str, size: str, seed: int) -> dict:
    """The kept reference, or a new one if there is none for these very data."""
    problem = problems.simulate(name, size, seed)
    path = FOLDER / f"reference-{name}-{size}-{seed}.json"
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["fingerprint"] == problem.fingerprint:
            return kept
    print(f"{name}: long MCMC reference ...", file=sys.stderr, flush=True)
    fresh = run(problem, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fresh, indent=1) + "\n")
    return fresh


def run(
    problem: Problem, seed: int, *, chains: int = CHAINS, draws: int = DRAWS, burn_in: int = BURN_IN
) -> dict:
    """Means, sds and their Monte Carlo quality."""
    from arviz_stats.base import array_stats

    begun = time.perf_counter()
    values = _gibbs(problem, seed, chains, draws, burn_in)
    effective = [array_stats.ess(values[..., i]) for i in range(values.shape[-1])]
    r_hat = [array_stats.rhat(values[..., i]) for i in range(values.shape[-1])]
    flat = values.reshape(-1, values.shape[-1])
    return {
        "fingerprint": problem.fingerprint,
        "problem": problem.name,
        "chains": chains,
        "draws": draws,
        "burn_in": burn_in,
        "seconds": time.perf_counter() - begun,
        "parameters": problem.parameters,
        "mean": flat.mean(axis=0).tolist(),
        "sd": flat.std(axis=0, ddof=1).tolist(),
        "effective_draws": np.round(np.array(effective, float), 1).tolist(),
        "r_hat": np.round(np.array(r_hat, float), 4).tolist(),
        "about": facts.about(),
    }


def _gibbs(problem: Problem, seed: int, chains: int, draws: int, burn_in: int) -> np.ndarray:
    """Draws (chains, draws, parameters) in the order of ``problem.parameters``."""
    # Imported here: the parent of the timed processes needs none of it to read a kept file.
    import jax

    from benchmarks.methods.nghvi_default import priors
    from nghvi.data.grouped import Rows
    from nghvi.models.mixed import MixedModel
    from nghvi.networks import Identity
    from nghvi.paper.methods.gibbs import gibbs
    from nghvi.responses import Gaussian, Probit

    prior, design = priors(problem), problem.design
    gaussian = problem.response == "gaussian"
    response = Gaussian() if gaussian else Probit()
    model = MixedModel(Identity(design.shape[1]), response, prior, problem.random)
    rows = Rows.from_arrays(design, problem.y, problem.group, problem.num_groups)
    # A seed of its own, so that no fit shares random numbers with what judges it.
    key = jax.random.fold_in(jax.random.key(seed), 2**16)
    out = gibbs(key, model, rows, draws=draws, burn_in=burn_in, chains=chains, keep_effects=False)
    variances = np.asarray(out.effects_cov).diagonal(axis1=2, axis2=3)
    parts = [np.asarray(out.coef), np.log(variances)]
    if gaussian:
        parts.append(np.log(np.asarray(out.noise_var))[..., None])
    return np.concatenate(parts, axis=2)


def compare(row: dict, posterior: dict) -> dict:
    """A row's errors in units of the reference; parameters a method lacks are left out."""
    reference_mean, reference_sd = np.array(posterior["mean"]), np.array(posterior["sd"])
    mean, sd = np.array(row["mean"], float), np.array(row["sd"], float)
    difference, ratio = (mean - reference_mean) / reference_sd, sd / reference_sd
    is_coef = np.array([p.startswith("coef") for p in posterior["parameters"]])
    known = difference[np.isfinite(difference)]
    return {
        "mean_error": float(np.abs(known).max()) if known.size else None,
        "sd_ratio_coef": _extent(ratio[is_coef]),
        "sd_ratio_variances": _extent(ratio[~is_coef]),
        "mean_difference": [_or_null(v) for v in difference],
        "sd_ratio": [_or_null(v) for v in ratio],
    }


def _extent(ratio: np.ndarray) -> list[float] | None:
    known = ratio[np.isfinite(ratio)]
    return [float(known.min()), float(known.max())] if known.size else None


def _or_null(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None
