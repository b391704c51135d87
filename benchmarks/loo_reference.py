"""``nghvi.compare`` and leave-one-out of long MCMC runs, on Goldstein's exam scores.

    python -m benchmarks.loo_reference --data DIRECTORY

Random intercepts against random intercepts and slopes, same data, same priors. The reference
takes Gibbs draws of parameters and effects, the normal log density of every row at each of them,
and arviz-stats' Pareto smoothing. The directory holds ``grouped/Exam.csv``.
"""

import argparse
import pathlib
from typing import Any

import jax
import numpy as np
import pandas as pd
from arviz_stats.base import array_stats
from scipy.special import logsumexp
from scipy.stats import norm

import nghvi
from nghvi.data import Rows
from nghvi.paper.methods.gibbs import gibbs
from nghvi.priors import InverseGamma, Priors

FORMULAS = {
    "intercepts": "normexam ~ standLRT + sex + (1 | school)",
    "slopes": "normexam ~ standLRT + sex + (1 + standLRT | school)",
}
PRIORS = Priors(noise=InverseGamma())
DRAWS, CHAINS, KEPT = 10_000, 4, 1000
"""Draws of a chain, chains, and draws of a chain that are used."""


def left_out(model: Any, data: pd.DataFrame) -> np.ndarray:
    """Expected log predictive density of every row without itself, by MCMC."""
    x, codes, y = model._rows_of_the_fit(data, data["normexam"])
    rows = Rows.from_arrays(x, y, codes, len(model.groups_))
    own = model.posterior_.model
    chains = gibbs(jax.random.key(1), own, rows, draws=DRAWS, burn_in=DRAWS // 10, chains=CHAINS)
    assert chains.effects is not None
    coef, noise_var, effects = (
        np.asarray(each)[:, :: DRAWS // KEPT].reshape(CHAINS * KEPT, *each.shape[2:])
        for each in (chains.coef, chains.noise_var, chains.effects)
    )
    eta = coef @ x.T
    for j, column in enumerate(own.random):
        eta += effects[:, codes, j] * x[:, column]
    density = norm.logpdf(y, eta, np.sqrt(noise_var)[:, None])
    log_weight, _ = array_stats.psislw(density.T)  # it takes the negative of the log weights
    return logsumexp(log_weight + density.T, axis=1) - np.log(model.posterior_.scaling.y_scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    data = pd.read_csv(parser.parse_args().data / "grouped" / "Exam.csv")
    models = {name: nghvi.mixed(formula, data, priors=PRIORS) for name, formula in FORMULAS.items()}
    print(nghvi.compare(models, data, data["normexam"]).to_string(), flush=True)
    found = {name: left_out(model, data) for name, model in models.items()}
    for name, each in found.items():
        print(f"MCMC {name}: elpd {each.sum():.2f}, se {np.sqrt(len(each)) * each.std():.2f}")
    difference = found["slopes"] - found["intercepts"]
    se = np.sqrt(len(difference)) * difference.std()
    print(f"MCMC slopes - intercepts: {difference.sum():.2f}, se {se:.2f}")


if __name__ == "__main__":
    main()
