"""Default fits of small models with several factors against long chains, on simulated data.

Run: python -m benchmarks.factor_designs [--only NAME] [--seeds 1,2]

Designs, data and references are those of ``benchmarks.factor_chains``; every fit has their priors
and no other setting. Compared are coefficients, the spread of negative binomial counts, and log sds
of effects: |mean - reference mean| / reference sd, and the ratio of sds. Every fit is a line of
``results/factor_designs.jsonl``.
"""

import argparse
import json
import pathlib
import time

import numpy as np

import nghvi
from benchmarks.factor_chains import DESIGNS, OUT, table
from nghvi.paper.studies.facts import about
from nghvi.priors import HalfT, Priors

RESULTS = pathlib.Path(__file__).parent / "results" / "factor_designs.jsonl"
PRIORS = Priors(coef_sd=10.0, effects=HalfT())
MEAN, SDS, EFFECTS_SDS = 0.1, (0.95, 1.05), (0.93, 1.07)


def check(name: str, seed: int, known: dict[str, dict[str, float]]) -> dict:
    """Fit one data set and compare."""
    design, rows = DESIGNS[name], table(name, seed)[0]
    begun = time.process_time()
    fitted = nghvi.mixed(
        design.formula, rows, response=design.response, priors=PRIORS, standardize=False
    )
    seconds = time.process_time() - begun
    posterior = fitted.posterior_
    pool, factors = posterior.inference.pool, posterior.names.factors
    at = posterior.globals_at(pool.theta)
    ours = {"intercept": at["coef"][:, 0], "x": at["coef"][:, 1]}
    if "log spread" in known:
        ours["log spread"] = np.log(at["1/sqrt(size)"])
    for j, factor in enumerate(factors):
        own = factor.name.split(":")[-1]  # of "b:a", which is a within b
        # A draw without weight may have a variance that is zero to all digits.
        ours[f"log sd {own}"] = 0.5 * np.log(np.maximum(at["effects_cov"][:, j, j], 1e-300))
    errors, inside = {}, bool(fitted.converged_)
    for parameter, exact in known.items():
        mean = pool.weight @ ours[parameter]
        sd = np.sqrt(pool.weight @ (ours[parameter] - mean) ** 2)
        off, ratio = float((mean - exact["mean"]) / exact["sd"]), float(sd / exact["sd"])
        errors[parameter] = [round(off, 4), round(ratio, 4)]
        low, high = EFFECTS_SDS if parameter.startswith("log sd") else SDS
        inside &= abs(off) <= MEAN and low <= ratio <= high
    return {
        "design": name,
        "seed": seed,
        "errors": errors,
        "status": posterior.inference.verdict.status.value,
        "k_hat": round(float(fitted.k_hat_), 3),
        "effective": round(pool.effective),
        "cpu_seconds": round(seconds, 1),
        "ok": inside,
    }


def main() -> int:
    """Run the chosen data sets; exit code 1 if one is out of bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="designs whose name contains this")
    parser.add_argument("--seeds", default="", help="all that have references if none are given")
    given = parser.parse_args()
    failed = 0
    for name, by_seed in json.loads(OUT.read_text()).items():
        for seed, found in by_seed.items():
            wanted = not given.seeds or seed in given.seeds.split(",")
            if given.only not in name or not wanted:
                continue
            row = check(name, int(seed), found["parameters"])
            failed += not row["ok"]
            print(json.dumps(row), flush=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row | {"about": about()}) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
