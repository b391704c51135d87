"""Networks in function space: the same answer from other starts, and the answer of long NUTS runs.

Weights of a network are not identified, so posteriors are compared by what they say about the
expected response f at given inputs: its posterior mean and sd, for known groups (effects included)
and for new groups.

*Seeds*: the default fit with five random states; the spread of the means of f over them, in units
of the posterior sd of f, averaged over held-out rows. *NUTS*: small networks, effects integrated
out by the library's own exact density, chains from independent draws of the start (not from the
fit); the fit's mean in units of NUTS' sd, and the ratio of the sds.

Run: python -m benchmarks.function_space [--part seeds|nuts] [--tables waves,steps] [--data DIR]
(NUTS needs numpyro.) Rows in results/function_space.json, pictures beside the documentation's.
"""

import argparse
import dataclasses
import json
import pathlib
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import nghvi
from benchmarks.tables import divide, load
from nghvi._core.model import initial_theta, unraveller
from nghvi.paper.studies.facts import about
from nghvi.posterior.predictive import predictor_draws
from nghvi.recipes.importance import Pool

ROOT = pathlib.Path(__file__).parent.parent
OUT = ROOT / "benchmarks/results/function_space.json"
SEEDS, DRAWS, POINTS = 5, 2000, 300
TABLES = "friedman,network,slopes,waves,steps,intercepts,diabetes"
CHAINS, WARMUP, KEPT = 4, 1000, 1000


def functions(estimator: Any, table: pd.DataFrame, draws: int = DRAWS) -> np.ndarray:
    """Draws of the expected response in every row, (draws, rows), in units of the data."""
    with warnings.catch_warnings():  # groups are new on purpose
        warnings.simplefilter("ignore")
        request = estimator.reader_.request(
            estimator.posterior_, table.drop(columns="y"), draws=draws
        )
    scaled = predictor_draws(estimator.posterior_, request)
    return estimator.posterior_.scaling.raw_response(scaled)


def seeds(name: str, data: pathlib.Path | None) -> dict | None:
    """Spread of the posterior means of f over random states, in posterior sds."""
    table = load(name, 1, data)
    if table is None:
        return None
    parts = divide(table, 1)
    found: dict[str, list] = {"known": [], "new": []}
    verdicts, begun = [], time.perf_counter()
    for seed in range(1, SEEDS + 1):
        model = nghvi.MixedRegressor("group", hidden=(32, 16), random_state=seed)
        model.fit(parts["train"].drop(columns="y"), parts["train"]["y"].to_numpy())
        verdicts.append(model.verdict_[:40])
        for which, each in found.items():
            draws = functions(model, parts[which].iloc[:POINTS])
            each.append((draws.mean(axis=0), draws.std(axis=0)))
    row: dict[str, Any] = {"table": name, "seconds": time.perf_counter() - begun}
    row["verdicts"] = verdicts
    for which, pairs in found.items():
        means, sds = (np.array(each) for each in zip(*pairs, strict=True))
        spread = means.std(axis=0, ddof=1) / np.sqrt(np.mean(sds**2, axis=0))
        row[which] = {"mean": float(spread.mean()), "q90": float(np.quantile(spread, 0.9))}
    return row


def curve(x: np.ndarray, kind: str) -> np.ndarray:
    """Truths of the small problems."""
    if kind == "wave":
        return np.sin(2 * x[:, 0]) + 0.5 * x[:, 1]
    if kind == "product":
        return x[:, 0] * x[:, 1]
    return np.maximum(x[:, 0], 0) * 2 - x[:, 1] / 2


def small(kind: str, groups: int = 25, size: int = 10, seed: int = 0) -> pd.DataFrame:
    """A small table with intercepts by group."""
    rng = np.random.default_rng([seed, *kind.encode()])
    x = rng.normal(size=(groups * size, 2))
    group = np.repeat(np.arange(groups), size)
    y = curve(x, kind) + 0.5 * rng.normal(size=groups)[group] + 0.5 * rng.normal(size=len(x))
    return pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "group": group, "y": y})


def nuts(estimator: Any, seed: int) -> tuple[np.ndarray, float]:
    """Draws of theta from the library's density with the effects integrated out; largest R-hat."""
    from arviz_stats.base import array_stats
    from numpyro.infer import MCMC, NUTS

    inference = estimator.posterior_.inference
    model, data = inference.model, inference.data
    keys = jax.random.split(jax.random.key(seed), CHAINS)
    starts, unravel = [initial_theta(key, model, data) for key in keys], unraveller(model, data)

    def potential(theta: jax.Array) -> jax.Array:
        return -model.log_marginal(unravel(theta), data)

    kernel = NUTS(potential_fn=potential, target_accept_prob=0.95, dense_mass=True)
    chains = MCMC(
        kernel,
        num_warmup=WARMUP,
        num_samples=KEPT,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    chains.run(jax.random.key(seed + 1), init_params=jnp.stack(starts))
    theta = np.asarray(chains.get_samples(group_by_chain=True))
    logs = np.asarray(jax.lax.map(jax.vmap(potential), jnp.asarray(theta)))
    return theta.reshape(-1, theta.shape[-1]), float(array_stats.rhat(logs))


def beside_nuts(kind: str, hidden: tuple[int, ...], seed: int) -> dict:
    """A small network beside NUTS."""
    table = small(kind, seed=seed)
    grid = small(kind, seed=seed + 100)
    train = table.drop(columns="y"), table["y"].to_numpy()
    begun = time.perf_counter()
    model = nghvi.MixedRegressor("group", hidden=hidden, random_state=seed).fit(*train)
    seconds = time.perf_counter() - begun
    row: dict[str, Any] = {"problem": kind, "hidden": list(hidden), "seed": seed}
    row |= {"verdict": model.verdict_, "seconds": seconds}
    begun = time.perf_counter()
    theta, rhat = nuts(model, seed)
    row |= {"nuts seconds": time.perf_counter() - begun, "rhat of log density": rhat}
    inference = dataclasses.replace(model.posterior_.inference, pool=Pool.plain(theta))
    posterior = model.posterior_
    for which, rows in {"known": grid, "new": grid.assign(group=grid["group"] + 1000)}.items():
        ours = functions(model, rows, 4 * DRAWS)
        model.posterior_ = posterior._replace(inference=inference)
        theirs = functions(model, rows, 4 * DRAWS)
        model.posterior_ = posterior
        off = np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) / theirs.std(axis=0)
        ratio = ours.std(axis=0) / theirs.std(axis=0)
        row[which] = {
            "mean within .2 sd": float(np.mean(off < 0.2)),
            "sd ratio in [.8, 1.25]": float(np.mean((ratio > 0.8) & (ratio < 1.25))),
            "largest error of a mean": float(off.max()),
            "sd ratio 5 % and 95 %": [float(each) for each in np.quantile(ratio, [0.05, 0.95])],
        }
    return row


PROBLEMS = [(kind, hidden) for kind in ("wave", "product", "hinge") for hidden in ((3,), (5,))]


def main() -> int:
    """Run the parts asked for, and print every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("seeds", "nuts"))
    parser.add_argument("--tables", default=TABLES)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    chosen = parser.parse_args()
    kept = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    if chosen.part != "nuts":
        kept["seeds"] = []
        for name in chosen.tables.split(","):
            if (row := seeds(name, chosen.data)) is not None:
                kept["seeds"].append(row | {"about": about()})
                print(row, flush=True)
                chosen.out.write_text(json.dumps(kept, indent=1) + "\n")
    if chosen.part != "seeds":
        kept["nuts"] = []
        for kind, hidden in PROBLEMS:
            row = beside_nuts(kind, hidden, 1)
            kept["nuts"].append(row | {"about": about()})
            print(row, flush=True)
            chosen.out.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
