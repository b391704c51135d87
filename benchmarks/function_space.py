"""Networks in function space: the same answer from other starts, and the answer of long NUTS runs.

Weights of a network are not identified, so posteriors are compared by what they say about the
expected response f at given inputs: its posterior mean and sd, for known groups (effects included)
and for new groups.

*Seeds*: the default fit with five random states; the spread of the means of f over them, in units
of the posterior sd of f, averaged over held-out rows, and log scores. *NUTS*: small networks,
effects integrated out by the library's own exact density, chains from independent draws of the
start (not from the fit); the fit's mean in units of NUTS' sd, and the ratio of the sds.

Run: python -m benchmarks.function_space [--part seeds|nuts] [--tables waves,steps] [--data DIR]
(NUTS needs numpyro.) Rows in results/function_space.json, pictures beside the documentation's.
"""

import argparse
import copy
import dataclasses
import json
import pathlib
import time
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import nghvi
from benchmarks.tables import divide, load
from nghvi._core.model import initial_theta, unraveller
from nghvi.networks import Skip
from nghvi.paper.studies.facts import about
from nghvi.posterior.predictive import predictor_draws
from nghvi.recipes.importance import Pool

ROOT = pathlib.Path(__file__).parent.parent
OUT = ROOT / "benchmarks/results/function_space.json"
SEEDS, DRAWS, POINTS = 5, 2000, 300
TABLES = "friedman,network,slopes,waves,steps,intercepts,diabetes"
CHAINS, WARMUP, KEPT, DEPTH = 4, 1000, 1500, 9
SLICE, NEW = 61, 1000
"""Points of a picture, and what is added to the label of a group to make it a new one."""
PICTURE = ROOT / "docs/figures/network_nuts.png"


def functions(estimator: Any, table: pd.DataFrame, draws: int = DRAWS) -> np.ndarray:
    """Draws of the expected response in every row, (draws, rows), in units of the data."""
    with warnings.catch_warnings():  # groups are new on purpose
        warnings.simplefilter("ignore")
        request = estimator.reader_.request(
            estimator.posterior_, table.drop(columns="y"), draws=draws
        )
    scaled = predictor_draws(estimator.posterior_, request)
    return estimator.posterior_.scaling.raw_response(scaled)


def seeds(name: str, split: int, data: pathlib.Path | None) -> dict | None:
    """Spread of the posterior means of f over random states, in posterior sds, and log scores."""
    table = load(name, split, data)
    if table is None:
        return None
    parts = divide(table, split)
    train = parts["train"].drop(columns="y"), parts["train"]["y"].to_numpy()
    found: dict[str, list] = {"known": [], "new": []}
    scores: dict[str, list] = {"known": [], "new": []}
    verdicts, begun = [], time.process_time()
    for seed in range(1, SEEDS + 1):
        model = nghvi.MixedRegressor("group", hidden=(32, 16), random_state=seed).fit(*train)
        verdicts.append(model.verdict_)
        for which, each in found.items():
            rows = parts[which]
            draws = functions(model, rows.iloc[:POINTS])
            each.append((draws.mean(axis=0), draws.std(axis=0)))
            with warnings.catch_warnings():  # groups are new on purpose
                warnings.simplefilter("ignore")
                score = model.log_score(rows.drop(columns="y"), rows["y"].to_numpy())
            scores[which].append(float(score))
    row: dict[str, Any] = {"table": name, "split": split}
    row |= {"cpu seconds": time.process_time() - begun, "verdicts": verdicts}
    for which, pairs in found.items():
        means, sds = (np.array(each) for each in zip(*pairs, strict=True))
        spread = means.std(axis=0, ddof=1) / np.sqrt(np.mean(sds**2, axis=0))
        row[which] = {
            "mean": float(spread.mean()),
            "q90": float(np.quantile(spread, 0.9)),
            "log scores": scores[which],
        }
    return row


def lines(rows: list[dict]) -> list[str]:
    """The table of decision 30: NUTS compared with the default fit."""
    said = [
        "| truth, units | groups | means within .2 sd | largest error | sds within [.8, 1.25] "
        "| R-hat |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for which in ("known", "new"):
            found = row[which]
            said.append(
                f"| {row['problem']}, {row['hidden']} | {which} "
                f"| {found['mean within .2 sd']:.2f} "
                f"| {found['error of a mean 50, 95, 100 %'][2]:.2f} | "
                f"{found['sd ratio in [.8, 1.25]']:.2f} | {found['rhat of f 50, 95 %'][1]:.3f} |"
            )
    return said


def curve(x: np.ndarray, kind: str) -> np.ndarray:
    """Truths of the small problems."""
    if kind == "wave":
        return np.sin(2 * x[:, 0]) + 0.5 * x[:, 1]
    if kind == "product":
        return x[:, 0] * x[:, 1]
    if kind == "hill":
        return 2 * np.exp(-(x[:, 0] ** 2)) + x[:, 1] / 2
    return np.maximum(x[:, 0], 0) * 2 - x[:, 1] / 2


def small(kind: str, groups: int = 25, size: int = 10, seed: int = 0) -> pd.DataFrame:
    """A small table with intercepts by group."""
    rng = np.random.default_rng([seed, *kind.encode()])
    x = rng.normal(size=(groups * size, 2))
    group = np.repeat(np.arange(groups), size)
    y = curve(x, kind) + 0.5 * rng.normal(size=groups)[group] + 0.5 * rng.normal(size=len(x))
    return pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "group": group, "y": y})


def nuts(estimator: Any, seed: int) -> np.ndarray:
    """Draws of theta from the library's density with the effects integrated out, by chain."""
    from numpyro.infer import MCMC, NUTS

    inference = estimator.posterior_.inference
    model, data = inference.model, inference.data
    keys = jax.random.split(jax.random.key(seed), CHAINS)
    starts, unravel = [initial_theta(key, model, data) for key in keys], unraveller(model, data)

    def potential(theta: jax.Array) -> jax.Array:
        return -model.log_marginal(unravel(theta), data)

    kernel = NUTS(
        potential_fn=potential, target_accept_prob=0.9, dense_mass=True, max_tree_depth=DEPTH
    )
    chains = MCMC(
        kernel,
        num_warmup=WARMUP,
        num_samples=KEPT,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    chains.run(jax.random.key(seed + 1), init_params=jnp.stack(starts))
    return np.asarray(chains.get_samples(group_by_chain=True))


class Moments(NamedTuple):
    """Posterior means and sds of f at some points."""

    mean: np.ndarray
    sd: np.ndarray

    @staticmethod
    def of(estimator: Any, table: pd.DataFrame) -> "Moments":
        """As an estimator has them."""
        drawn = functions(estimator, table, 2 * DRAWS)
        return Moments(drawn.mean(axis=0), drawn.std(axis=0))


def with_draws(estimator: Any, theta: np.ndarray) -> Any:
    """The same model with other draws of theta, such as those of a chain."""
    other, posterior = copy.copy(estimator), estimator.posterior_
    inference = dataclasses.replace(posterior.inference, pool=Pool.plain(theta))
    other.posterior_ = posterior._replace(inference=inference)
    return other


def slice_of(group: int) -> pd.DataFrame:
    """Points along the first input, the second at zero."""
    x = np.linspace(-2, 2, SLICE)
    return pd.DataFrame({"x0": x, "x1": 0.0, "group": group, "y": 0.0})


def kept_nuts(
    estimator: Any, seed: int, path: pathlib.Path | None
) -> tuple[np.ndarray, float | None]:
    """Draws that were kept, or new ones and their CPU seconds: no fit has a part in the density."""
    if path is not None and path.exists():
        return np.load(path), None
    begun = time.process_time()
    theta = nuts(estimator, seed)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, theta)
    return theta, time.process_time() - begun


def beside_nuts(kind: str, hidden: tuple[int, ...], seed: int, draws: pathlib.Path | None) -> dict:
    """A small network compared with NUTS, whose draws are kept in the folder ``draws``."""
    table = small(kind, seed=seed)
    grid = small(kind, seed=seed + 100)
    train = table.drop(columns="y"), table["y"].to_numpy()
    begun = time.process_time()
    model = nghvi.MixedRegressor("group", hidden=hidden, random_state=seed).fit(*train)
    row: dict[str, Any] = {"problem": kind, "hidden": list(hidden), "seed": seed}
    row |= {"verdict": model.verdict_, "cpu seconds": time.process_time() - begun}
    if not isinstance(model.posterior_.model.trunk, Skip):
        return row  # the network was given up: there is no density of one to sample
    name = f"{kind}-{'-'.join(map(str, hidden))}-{seed}.npy"
    theta, row["nuts cpu seconds"] = kept_nuts(model, seed, draws and draws / name)
    chains = [with_draws(model, each) for each in theta]
    whole = with_draws(model, theta.reshape(-1, theta.shape[-1]))
    for which, away in {"known": 0, "new": NEW}.items():
        rows = grid.assign(group=grid["group"] + away)
        ours, theirs = Moments.of(model, rows), Moments.of(whole, rows)
        each = [Moments.of(chain, rows) for chain in chains]
        within = np.mean([chain.sd**2 for chain in each], axis=0)
        between = np.var([chain.mean for chain in each], axis=0, ddof=1)
        off, ratio = np.abs(ours.mean - theirs.mean) / theirs.sd, ours.sd / theirs.sd
        line = slice_of(away)
        row[which] = {
            "mean within .2 sd": float(np.mean(off < 0.2)),
            "sd ratio in [.8, 1.25]": float(np.mean((ratio > 0.8) & (ratio < 1.25))),
            "error of a mean 50, 95, 100 %": np.quantile(off, [0.5, 0.95, 1]).tolist(),
            "sd ratio 5, 50, 95 %": np.quantile(ratio, [0.05, 0.5, 0.95]).tolist(),
            "rhat of f 50, 95 %": np.quantile(np.sqrt(1 + between / within), [0.5, 0.95]).tolist(),
            "slice": {
                name: [part.round(4).tolist() for part in Moments.of(source, line)]
                for name, source in (("nghvi", model), ("nuts", whole))
            },
        }
    return row


def picture(rows: list[dict], path: pathlib.Path) -> None:
    """f along the first input with bands of two sds, ours and NUTS', known and new groups."""
    import matplotlib.pyplot as plt

    shown = [row for row in rows if "known" in row]
    figure, axes = plt.subplots(
        2, len(shown), figsize=(2.6 * len(shown), 4.6), sharex=True, squeeze=False
    )
    x = np.linspace(-2, 2, SLICE)
    for column, row in zip(axes.T, shown, strict=True):
        for axis, which in zip(column, ("known", "new"), strict=True):
            mean, sd = map(np.array, row[which]["slice"]["nuts"])
            axis.fill_between(x, mean - 2 * sd, mean + 2 * sd, color="0.85", label="NUTS")
            axis.plot(x, mean, color="0.55")
            mean, sd = map(np.array, row[which]["slice"]["nghvi"])
            axis.plot(x, mean, color="C0", label="nghvi")
            axis.plot(x, np.transpose([mean - 2 * sd, mean + 2 * sd]), color="C0", ls="--", lw=0.9)
        units = ", ".join(map(str, row["hidden"]))
        column[0].set_title(f"{row['problem']}, {units} units", fontsize=9)
        column[1].set_xlabel("x0 (x1 = 0)")
    axes[0, 0].set_ylabel("f, a known group")
    axes[1, 0].set_ylabel("f, a new group")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


PROBLEMS = (
    ("wave", (4,), 1),
    ("product", (4,), 1),
    ("hinge", (4,), 1),
    ("hill", (8,), 2),
    ("product", (5, 5), 3),
)
"""Truth, units and seed; the last two had no part in choosing how a fit is done."""


def main() -> int:
    """Run the parts asked for, and print every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("seeds", "nuts"))
    parser.add_argument("--tables", default=TABLES)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--split", type=int, default=3)
    parser.add_argument("--draws", type=pathlib.Path, help="folder in which NUTS' draws are kept")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    chosen = parser.parse_args()
    kept = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    if chosen.part != "nuts":
        rows = kept.setdefault("seeds", [])
        done = {(row["table"], row["split"]) for row in rows}
        for name in chosen.tables.split(","):
            if (name, chosen.split) in done:
                continue
            if (row := seeds(name, chosen.split, chosen.data)) is not None:
                rows.append(row | {"about": about()})
                print(row, flush=True)
                chosen.out.write_text(json.dumps(kept, indent=1) + "\n")
    if chosen.part != "seeds":
        compared = kept.setdefault("nuts", [])
        for kind, hidden, seed in PROBLEMS:
            if any((row["problem"], tuple(row["hidden"])) == (kind, hidden) for row in compared):
                continue
            row = beside_nuts(kind, hidden, seed, chosen.draws)
            compared.append(row | {"about": about()})
            print(row, flush=True)
            chosen.out.write_text(json.dumps(kept, indent=1) + "\n")
        picture(compared, PICTURE)
        print(*lines(compared), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
