"""Formula fits compared with stored maximum likelihood fits of the same formulas.

    python -m benchmarks.formula_reference --data DIRECTORY [--gibbs] [FIT ...]

The directory holds ``grouped/*.csv`` and ``reference_fits/*.json`` (fixed effects with standard
errors, variance components). Priors are weak; what is left between a posterior mean and a
maximum is given in standard errors of the reference, and for variance components in posterior
sds of the component.

A posterior mean is not a maximum: where variances are uncertain they differ. ``--gibbs`` tells
that difference from an error of the fit: it adds the mean of fixed effects over long chains of the
exact posterior under the same priors (``exact``), their Monte Carlo error and our distance from
them, both in standard errors of the reference. There is no such sampler for logit.
"""

import argparse
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pandas as pd
from arviz_stats.base import array_stats

import nghvi
from nghvi.data import Rows
from nghvi.formula import response_of
from nghvi.paper.methods.gibbs import gibbs
from nghvi.priors import HuangWand, InverseGamma, Priors

FITS = (
    *("sleepstudy_intercept_ML", "sleepstudy_slope_ML", "sleepstudy_uncorr_ML"),
    *("radon_mn_intercept_ML", "radon_mn_slope_ML", "Exam_intercept_ML", "Exam_slope_ML"),
    *("Orthodont_intercept_ML", "Orthodont_slope_REML"),
    *("Contraception_intercept_probit_AGQ15", "Contraception_intercept_logit_AGQ15"),
    *("Contraception_slope_probit_Laplace",),
)
LEVELS = {"Sex": ["Male", "Female"]}
"""Orders of categories that a CSV does not keep."""
DRAWS, CHAINS = 20_000, 4
WEAK = Priors(coef_sd=100.0, noise=InverseGamma(1e-3, 1e-3), effects=HuangWand(scale=25.0))


def compare(directory: pathlib.Path, name: str, with_gibbs: bool) -> pd.DataFrame:
    """One row per parameter of one reference fit."""
    reference = json.loads((directory / "reference_fits" / f"{name}.json").read_text())
    data = pd.read_csv(directory / "grouped" / f"{reference['dataset']}.csv")
    for column in data.columns.intersection(list(LEVELS)):
        data[column] = pd.Categorical(data[column], LEVELS[column])
    response = "gaussian" if reference["family"] == "gaussian" else reference["link"]
    model = nghvi.mixed(reference["formula"], data, response, priors=WEAK)
    found = model.summary()
    rows = []
    fixed = found.iloc[: len(reference["fixed"])]
    for (parameter, ours), theirs in zip(fixed.iterrows(), reference["fixed"], strict=True):
        rows.append((parameter, theirs["term"], ours["mean"], theirs["estimate"], theirs["se"]))
    effects = found[found.index.str.startswith("effects_sd")]
    sds = [c for c in reference["variance_components"] if c["var1"] and not c["var2"]]
    for (parameter, ours), theirs in zip(effects.iterrows(), sds, strict=True):
        rows.append((parameter, theirs["var1"], ours["q50"], theirs["sdcor"], ours["sd"]))
    if reference["sigma"]:
        noise, sigma = found.T["noise_var"], reference["sigma"]
        spread = noise["sd"] / (2 * sigma)
        rows.append(("noise_sd", "sigma", np.sqrt(noise["q50"]), sigma, spread))
    columns = ["parameter", "term", "ours", "reference", "unit"]
    table = pd.DataFrame(rows, columns=columns).assign(fit=name, converged=model.converged_)
    table["distance"] = (table["ours"] - table["reference"]) / table["unit"]
    if with_gibbs and response != "logit":
        exact = _exact(model, data, response_of(reference["formula"], data))
        table = table.join(exact)
        table["mcse"] /= table["unit"]
        table["from_exact"] = (table["ours"] - table["exact"]) / table["unit"]
    return table


def _exact(model: Any, data: pd.DataFrame, y: np.ndarray) -> pd.DataFrame:
    """Posterior mean of every fixed effect by Gibbs sampling, and its Monte Carlo error."""
    posterior, observed = model.posterior_, model._rows_of_the_fit(data, y)
    chains = gibbs(
        jax.random.key(0),
        posterior.model,
        Rows.from_arrays(observed.x, observed.y, observed.codes, len(model.groups_)),
        draws=DRAWS,
        burn_in=DRAWS // 10,
        chains=CHAINS,
        keep_effects=False,
    )
    coef = np.asarray(chains.coef) @ posterior.maps()[0].T
    coef[..., 0] += posterior.scaling.y_centre
    error = array_stats.mcse(coef, chain_axis=0, draw_axis=1, method="mean")
    return pd.DataFrame({"exact": coef.mean(axis=(0, 1)), "mcse": error})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--gibbs", action="store_true")
    parser.add_argument("names", nargs="*", default=FITS, metavar="fit")
    chosen = parser.parse_args()
    for name in chosen.names:
        print(compare(chosen.data, name, chosen.gibbs).round(4).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
