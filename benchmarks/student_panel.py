"""Student-t noise with effects by industry on a panel of returns: the fit and a long MCMC run.

Run: python -m benchmarks.student_panel --data DIR [--draws 2000] [--factors FF3]
"""

import argparse
import json
import pathlib
import time

import jax
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from nghvi.data import Rows
from nghvi.inference import infer, unravel_draws
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity
from nghvi.paper.finance import load_panel
from nghvi.paper.finance.stock_panel import GROUP, RETURN
from nghvi.paper.methods.gibbs import gibbs
from nghvi.paper.studies.asset_pricing import FACTOR_SETS
from nghvi.paper.studies.facts import about
from nghvi.priors import InverseGamma, Priors
from nghvi.responses import StudentT

BATCHES = 40
"""Of draws, whose means tell the Monte Carlo error."""


def quantities(
    coef: Float[Array, "s q"],
    scale: Float[Array, " s"],
    degrees: Float[Array, " s"],
    covariance: Float[Array | np.ndarray, "s r r"],
) -> dict[str, np.ndarray]:
    """Draws of what people read, by name."""
    sd = np.sqrt(np.einsum("saa->sa", covariance))
    corr = np.asarray(covariance) / sd[:, :, None] / sd[:, None, :]
    r = sd.shape[1]
    return (
        {f"coef[{i}]": np.asarray(coef)[:, i] for i in range(coef.shape[1])}
        | {"noise_scale": np.asarray(scale), "degrees": np.asarray(degrees)}
        | {f"effects_sd[{i}]": sd[:, i] for i in range(r)}
        | {f"effects_corr[{i},{j}]": corr[:, i, j] for i in range(r) for j in range(i)}
    )


def main() -> int:
    """Fit, draw, compare, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--draws", type=int, default=2000, help="of each of two chains")
    parser.add_argument("--factors", choices=FACTOR_SETS, default="FF3")
    chosen = parser.parse_args()
    train = load_panel(chosen.data).train
    inputs = train[list(FACTOR_SETS[chosen.factors])].to_numpy()
    x = np.column_stack([np.ones(len(train)), inputs])
    codes, groups = pd.factorize(train[GROUP])
    columns = x.shape[1]
    model = MixedModel(
        Identity(columns), StudentT(), Priors(noise=InverseGamma()), tuple(range(columns))
    )
    rows = Rows.from_arrays(x, train[RETURN].to_numpy(), codes, len(groups))
    begun = time.perf_counter()
    fitted = infer(model, prepare(model, rows), seed=1)
    seconds = {"fit": round(time.perf_counter() - begun, 1)}
    params = unravel_draws(fitted.model, fitted.data, fitted.pool.theta)
    reported = model.response.reported(params.dispersion, 1.0)
    inverse = np.linalg.inv(np.asarray(jax.vmap(model.precision_factor)(params)))
    ours = quantities(
        params.coef,
        reported["noise_scale"],
        reported["degrees"],
        inverse.transpose(0, 2, 1) @ inverse,
    )
    begun = time.perf_counter()
    drawn = gibbs(
        jax.random.key(1),
        model,
        rows,
        draws=chosen.draws,
        burn_in=300,
        chains=2,
        keep_effects=False,
    )
    chains = [
        quantities(drawn.coef[c], drawn.noise_var[c] ** 0.5, drawn.degrees[c], drawn.effects_cov[c])
        for c in range(2)
    ]
    seconds["gibbs"] = round(time.perf_counter() - begun, 1)
    table = []
    for name, values in ours.items():
        both = np.concatenate([chain[name] for chain in chains])
        means = [part.mean() for part in np.array_split(both, BATCHES)]
        mean = fitted.pool.weight @ values
        sd = np.sqrt(fitted.pool.weight @ (values - mean) ** 2)
        table.append(
            {
                "name": name,
                "mean": mean,
                "sd": sd,
                "mean_error_in_sds": (mean - both.mean()) / both.std(),
                "its_monte_carlo_error": np.std(means, ddof=1) / np.sqrt(BATCHES) / both.std(),
                "sd_ratio": sd / both.std(),
            }
        )
    print(str(fitted.verdict), seconds)
    print(pd.DataFrame(table).round(4).to_string(index=False))
    results = pathlib.Path(__file__).parent / "results" / f"student_panel-{chosen.factors}.json"
    found = {"about": about(), "rows": len(train), "verdict": str(fitted.verdict)}
    found |= {"seconds": seconds, "draws": 2 * chosen.draws, "table": table}
    results.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
