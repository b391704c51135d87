"""Crossed factors against long MCMC runs.

Run: python -m benchmarks.factor_references --reference DIR

A case is a formula with several grouping factors, a table of rows, and posterior moments under
stated priors. Every case is fitted by its formula with these priors and no other setting, for
several seeds. Compared are coefficients, log sds of effects, the log noise scale and the degrees of
freedom: the largest |mean - reference mean| / reference sd, and the smallest and largest ratio of
sds. Every fit is a line of ``results/factor_references.jsonl``.
"""

import json
import pathlib
import time
from collections.abc import Iterator

import numpy as np
import pandas as pd

import nghvi
from benchmarks.calibration import arguments
from benchmarks.response_calibration import response_of
from nghvi.estimators._base import MixedEstimator
from nghvi.paper.studies.facts import about
from nghvi.priors import HalfT, Priors
from nghvi.responses import RESPONSES

RESULTS = pathlib.Path(__file__).parent / "results" / "factor_references.jsonl"
MEAN, SDS = 0.1, (0.95, 1.05)
PRIORS = Priors(coef_sd=10.0, effects=HalfT(), noise=HalfT(2.0, 2.5))


def cases(folder: pathlib.Path) -> Iterator[dict]:
    """Those with several factors and a response of the library, smallest first."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    for facts in sorted(found, key=lambda facts: facts["n"]):
        if response_of(facts) in RESPONSES and len(facts["random"]) > 1:
            yield facts


def parameters(fitted: MixedEstimator) -> pd.DataFrame:
    """Posterior mean and sd of the parameters, by the names of the references."""
    posterior = fitted.posterior_
    pool, names = posterior.inference.pool, posterior.names
    at = posterior.globals_at(pool.theta)
    values = {
        "Intercept" if name == "intercept" else name: at["coef"][:, j]
        for j, name in enumerate(names.features)
    }
    for j, factor in enumerate(names.factors):
        values[f"log_sd({factor.name})"] = 0.5 * np.log(at["effects_cov"][:, j, j])
    if "noise_var" in at:
        values["log_sigma"] = 0.5 * np.log(at["noise_var"])
    if "degrees" in at:
        values["log_sigma"] = np.log(at["noise_scale"])
        values["log_nu_minus_2"] = np.log(at["degrees"] - 2)
    table, weight = pd.DataFrame(values), pool.weight / np.sum(pool.weight)
    mean = weight @ table
    return pd.DataFrame({"mean": mean, "sd": np.sqrt(weight @ (table - mean) ** 2)})


def check(folder: pathlib.Path, facts: dict, seed: int) -> dict:
    """Fit one case and compare."""
    rows = pd.read_csv(folder / facts["design_file"])
    reference = pd.read_csv(folder / f"{facts['name']}.csv").set_index("parameter")
    begun = time.perf_counter()
    fitted = nghvi.mixed(
        facts["formula"],
        rows,
        response=response_of(facts),
        priors=PRIORS,
        standardize=False,
        random_state=seed,
    )
    seconds = time.perf_counter() - begun
    ours = parameters(fitted)
    known = reference.loc[ours.index]
    away, ratio = (ours["mean"] - known["mean"]).abs() / known["sd"], ours["sd"] / known["sd"]
    inside = SDS[0] <= ratio.min() and ratio.max() <= SDS[1]
    return {
        "case": facts["name"],
        "seed": seed,
        "mean": float(away.max()),
        "sds": (float(ratio.min()), float(ratio.max())),
        "parameters": len(ours),
        "converged": bool(fitted.converged_),
        "k_hat": float(fitted.k_hat_),
        "seconds": seconds,
        "ok": bool(fitted.converged_ and away.max() <= MEAN and inside),
    }


def main() -> int:
    """Run all cases; exit code 1 if one is out of bounds."""
    chosen = arguments(__doc__, "mcmc_reference")
    if chosen is None:
        return 0
    failed = 0
    for facts in cases(chosen.reference):
        if chosen.only not in facts["name"]:
            continue
        for seed in range(chosen.seeds):
            row = check(chosen.reference, facts, seed)
            failed += not row["ok"]
            print(json.dumps(row), flush=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row | {"about": about()}) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
