"""Importance weights by a polynomial through few log densities, against all densities themselves.

Simulated tables of several responses, intercepts alone and with a slope. The same draws of a fit,
with gradients, are corrected four times: by 8,192 evaluated densities (the reference), by the
default with no surface allowed, by the default, and by all densities at the draws of the default.
Shown are the largest error of a posterior mean in sds and the ratios of sds, and how many further
densities were evaluated. Errors against the reference hold the noise of the draws; those *alone*
compare the last two, and hold only what the surface misses.

Run: python -m benchmarks.surfaces [--seeds 2]
"""

import argparse
import json
import pathlib
import time
from typing import Any
from unittest import mock

import jax
import numpy as np
import pandas as pd

import nghvi
from nghvi._core.evaluate import evaluate
from nghvi._core.model import MarginalModel
from nghvi.paper.studies.facts import about
from nghvi.recipes import importance, surface

OUT = pathlib.Path(__file__).parent / "results/surfaces.jsonl"
REFERENCE, USUAL, DRAWS = 13, 12, 100
CASES = (
    ("logit", 700, 50, "1"),
    ("logit", 1500, 90, "1 + x0"),
    ("probit", 2000, 150, "1"),
    ("poisson", 900, 45, "1"),
    ("poisson", 500, 18, "1 + x0"),
    ("negative-binomial", 800, 60, "1"),
    ("ordered-logit", 600, 30, "1"),
    ("gamma", 700, 40, "1"),
    ("student-t", 1000, 70, "1"),
    ("logit", 260, 130, "1"),
)


def table(response: str, rows: int, groups: int, seed: int) -> pd.DataFrame:
    """Two columns, effects with sd .8 of the intercept and .4 of the first column."""
    rng = np.random.default_rng([seed, rows, groups])
    group, x = rng.integers(0, groups, rows), rng.normal(size=(rows, 2))
    effect = rng.normal(size=(groups, 2)) * [0.8, 0.4]
    eta = x @ [0.5, -0.3] + effect[group, 0] + effect[group, 1] * x[:, 0]
    y = {
        "logit": lambda: (eta + rng.logistic(size=rows) > 0).astype(int),
        "probit": lambda: (eta + rng.normal(size=rows) > 0).astype(int),
        "poisson": lambda: rng.poisson(np.exp(eta)),
        "negative-binomial": lambda: rng.poisson(np.exp(eta) * rng.gamma(2, 0.5, rows)),
        "ordered-logit": lambda: np.digitize(eta + rng.logistic(size=rows), [-1, 0.5]),
        "gamma": lambda: np.exp(eta) * rng.gamma(2, 0.5, rows),
        "student-t": lambda: eta + rng.standard_t(5, rows),
    }[response]()
    return pd.DataFrame({"y": y, "g": group, "x0": x[:, 0], "x1": x[:, 1]})


def compare(response: str, rows: int, groups: int, effects: str, seed: int) -> dict:
    """One fit, its draws corrected three times."""
    data = table(response, rows, groups, seed)
    model = nghvi.mixed(f"y ~ x0 + x1 + ({effects} | g)", data, response=response)
    fit = model.posterior_.inference
    assert isinstance(fit.model, MarginalModel)
    exact, number = fit.model.refinable(), max(DRAWS, surface.draws_for_surface(fit.q.dim, True))
    key = jax.random.key(seed)
    found = evaluate(key, fit.q, exact, fit.data, draws=number, with_scores=True)
    row: dict = {"response": response, "rows": rows, "groups": groups, "effects": effects}
    row |= {"seed": seed, "parameters": found.theta.shape[1], "status": fit.verdict.status.name}
    row |= {"gradients": len(found.theta)}
    moments = {}
    counted = mock.Mock(side_effect=importance.log_targets)
    for how, missed, log2_draws in (
        ("reference", 0.0, REFERENCE),
        ("densities", 0.0, USUAL),
        ("surface", surface.MISSED, USUAL),
        ("same draws", surface.MISSED, USUAL),
    ):
        counted.reset_mock()
        begun = time.process_time()
        by_surface = _all_densities if how == "same draws" else importance._by_surface
        with (
            mock.patch.object(surface, "MISSED", missed),
            mock.patch.object(importance, "log_targets", counted),
            mock.patch.object(importance, "_by_surface", by_surface),
        ):
            rng = np.random.default_rng([seed, log2_draws])
            pool = importance.importance_pool(found, exact, fit.data, rng, log2_draws=log2_draws)
        if pool is None:
            return row | {how: None}
        mean = pool.weight @ pool.theta
        moments[how] = mean, np.sqrt(pool.weight @ (pool.theta - mean) ** 2)
        row[how] = {
            "evaluated": sum(len(call.args[2]) for call in counted.call_args_list),
            "draws": len(pool.theta),
            "effective": pool.effective,
            "log_evidence": pool.log_evidence,
            **_errors(moments[how], moments["reference"]),
            "cpu_seconds": time.process_time() - begun,
        }
    row["alone"] = _errors(moments["surface"], moments["same draws"])
    return row


def _all_densities(
    fitted: surface.Surface,
    model: MarginalModel,
    data: Any,
    theta: np.ndarray,
    log_proposal: np.ndarray,
    batch: int | None,
) -> np.ndarray:
    return importance.log_targets(model, data, theta, batch)


Moments = tuple[np.ndarray, np.ndarray]


def _errors(found: Moments, known: Moments) -> dict[str, Any]:
    ratio = found[1] / known[1]
    return {
        "mean_error": float(np.abs((found[0] - known[0]) / known[1]).max()),
        "sd_ratios": [float(ratio.min()), float(ratio.max())],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    OUT.unlink(missing_ok=True)
    for seed in range(args.seeds):
        for case in CASES:
            row = compare(*case, seed)
            with OUT.open("a") as file:
                file.write(json.dumps(row | {"about": about()}) + "\n")
            print(" ".join(map(str, case)), seed, "parameters", row["parameters"], row["status"])
            for how in ("densities", "surface", "alone"):
                if row.get(how):
                    print("   ", how, {k: np.round(v, 3).tolist() for k, v in row[how].items()})


if __name__ == "__main__":
    main()
