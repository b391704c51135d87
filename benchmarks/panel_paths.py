"""A deep mixed model on a panel of returns: sums by group and month, and every row for itself.

Both ways compute the same density, so with the same draws they end at the same posterior; what
differs is the time.

Run: python -m benchmarks.panel_paths --data DIR [--steps 500] [--factors FF3]
"""

import argparse
import json
import pathlib
import time

import jax
import numpy as np
import pandas as pd

from nghvi.data import Rows
from nghvi.families import family_of
from nghvi.inference import infer
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Perceptron
from nghvi.paper.finance import load_panel
from nghvi.paper.finance.stock_panel import GROUP, RETURN
from nghvi.paper.studies.asset_pricing import DEEP_LARGE, FACTOR_SETS
from nghvi.paper.studies.facts import about
from nghvi.priors import InverseGamma, Priors
from nghvi.responses import Gaussian


def main() -> int:
    """Fit both ways, compare, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--factors", choices=FACTOR_SETS, default="FF3")
    chosen = parser.parse_args()
    train = load_panel(chosen.data).train
    names = list(FACTOR_SETS[chosen.factors])
    codes, groups = pd.factorize(train[GROUP])
    x, y = train[names].to_numpy(), train[RETURN].to_numpy()
    hidden = DEEP_LARGE.hidden
    trunk = Perceptron(len(names), hidden)
    model = MixedModel(
        trunk, Gaussian(), Priors(noise=InverseGamma()), tuple(range(hidden[-1] + 1))
    )
    rows = Rows.from_arrays(x, y, codes, len(groups))
    fits, seconds = {}, {}
    for name, data in (("collapsed", prepare(model, rows)), ("plain", rows)):
        begun = time.perf_counter()
        fits[name] = infer(
            model, data, seed=1, family=family_of(DEEP_LARGE.rank), steps=chosen.steps, n_starts=1
        )
        jax.block_until_ready(fits[name].q.centre)
        seconds[name] = round(time.perf_counter() - begun, 1)
    collapsed, plain = fits["collapsed"], fits["plain"]
    sd = np.asarray(plain.q.standard_deviation())
    found = {
        "rows": len(train),
        "factors": chosen.factors,
        "steps": plain.run.steps,
        "parameters": sd.size,
        "seconds": seconds,
        "elbo": {name: fit.elbo for name, fit in fits.items()},
        "largest_difference_of_means_in_sds": float(
            np.max(np.abs(collapsed.q.centre - plain.q.centre) / sd)
        ),
        "largest_relative_difference_of_sds": float(
            np.max(np.abs(collapsed.q.standard_deviation() / sd - 1))
        ),
    }
    print(json.dumps(found, indent=1))
    results = pathlib.Path(__file__).parent / "results" / f"panel_paths-{chosen.factors}.json"
    results.write_text(json.dumps({"about": about(), **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
