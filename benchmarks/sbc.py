"""Simulation-based calibration of default fits.

Run: python -m benchmarks.sbc [--only NAME] [--replications 200] [--processes 2] [--report]

Parameters are drawn from the prior, data from the model, and the posterior is fitted with that
very prior and no other settings. If it is right, the rank of a true value among posterior draws
is uniform, whatever the model: for every coefficient, the noise, the effects' sds and
correlations, one group's effects and the log likelihood. ``rank_bands`` says how far from uniform
ranks may look. All replications of a model share groups and design, so that programs are compiled
once. Data that cannot be fitted (a class that is missing, counts that are all zero or above a
million) are drawn again: a condition on the data alone leaves posteriors calibrated.

A replication is a line of ``results/sbc.jsonl``. Lines that exist are not run again, so a run may
be interrupted (``--fresh`` starts over). ``--report`` writes ``docs/calibration.md`` and its
picture from the lines; without ``--replications`` it runs nothing.
"""

import argparse
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
from scipy.special import log_expit, log_ndtr

import nghvi
from benchmarks import sbc_page
from benchmarks.sbc_cells import CELLS, Cell, Factor
from benchmarks.sbc_responses import CUTS, SIMULATED, can_be_fitted
from nghvi.paper.studies.facts import about
from nghvi.priors import HalfT, HuangWand
from nghvi.responses import RESPONSES

ROWS = Path(__file__).parent / "results" / "sbc.jsonl"
DRAWS, REPLICATIONS = 399, 200

OWN = ("1/sqrt(size)", "zi_prob", "cv", "1/sqrt(phi)", "noise_sd", *CUTS)
"""Parameters of the simulated responses."""


def draw_half_t(rng: np.random.Generator, prior: HalfT) -> float:
    """A standard deviation."""
    return float(np.asarray(prior.scale) * abs(rng.standard_t(prior.df)))


def draw_huang_wand(rng: np.random.Generator, prior: HuangWand, r: int) -> np.ndarray:
    """Omega: inverse Wishart given scales that are inverse gamma (Huang and Wand, 2013)."""
    scales = 1 / rng.gamma(0.5, np.asarray(prior.scale) ** 2, r)
    spread = 2 * prior.df * np.diag(1 / scales)
    found = scipy.stats.invwishart.rvs(prior.df + r - 1, spread, random_state=rng)
    return np.asarray(found, float).reshape(r, r)


def draw_truth(rng: np.random.Generator, cell: Cell) -> dict[str, np.ndarray]:
    """All unknowns, from the prior; named and shaped as one of ``posterior_draws``."""
    priors = cell.priors
    assert isinstance(priors.noise, HalfT)
    assert isinstance(priors.effects, HuangWand)
    truth = {"coef": np.asarray(priors.coef_sd) * rng.standard_normal(cell.columns)}
    for factor in cell.factors:
        omega = draw_huang_wand(rng, priors.effects, factor.effects)
        truth[factor.covariance] = omega
        root = np.linalg.cholesky(omega)
        truth[factor.table] = rng.standard_normal((factor.levels, factor.effects)) @ root.T
    if cell.response == "gaussian":
        truth["noise_var"] = np.asarray(draw_half_t(rng, priors.noise) ** 2)
    if cell.response == "student-t":
        truth["noise_scale"] = np.asarray(draw_half_t(rng, priors.noise))
        degrees = priors.degrees
        truth["degrees"] = np.asarray(2 + rng.gamma(degrees.shape, 1 / degrees.rate))
    if cell.response in SIMULATED:
        truth |= SIMULATED[cell.response].own(rng)
    if CUTS[0] in truth:
        truth["coef"][0] = -truth[CUTS[0]]
    return truth


def linear_predictor(cell: Cell, drawn: dict[str, np.ndarray]) -> np.ndarray:
    """eta at one or many draws, rows last."""
    design = cell.design
    found = drawn["coef"] @ design.T
    for factor in cell.factors:
        effects = drawn[factor.table][..., factor.codes, :]
        found = found + np.sum(design[:, : factor.effects] * effects, axis=-1)
    return found


def draw_response(rng: np.random.Generator, cell: Cell, truth: dict[str, np.ndarray]) -> np.ndarray:
    eta = linear_predictor(cell, truth)
    if cell.response == "gaussian":
        return eta + np.sqrt(truth["noise_var"]) * rng.standard_normal(eta.shape)
    if cell.response == "student-t":
        return eta + truth["noise_scale"] * rng.standard_t(truth["degrees"], eta.shape)
    if cell.response in SIMULATED:
        return SIMULATED[cell.response].draw(rng, eta, truth).astype(float)
    logistic = cell.response == "logit"
    noise = rng.logistic(size=eta.shape) if logistic else rng.standard_normal(eta.shape)
    return (noise < eta).astype(float)


def log_likelihood(cell: Cell, drawn: dict[str, np.ndarray], y: np.ndarray) -> np.ndarray:
    """log p(y | parameters, effects) at one or many draws."""
    eta = linear_predictor(cell, drawn)
    if cell.response == "gaussian":
        by_row = scipy.stats.norm.logpdf(y, eta, np.sqrt(drawn["noise_var"])[..., None])
    elif cell.response == "student-t":
        degrees, scale = drawn["degrees"][..., None], drawn["noise_scale"][..., None]
        by_row = scipy.stats.t.logpdf(y, degrees, eta, scale)
    elif cell.response in SIMULATED:
        own = {name: values[..., None] for name, values in drawn.items() if name in OWN}
        by_row = SIMULATED[cell.response].log_density(y, eta, own)
    else:
        sign = 2 * y - 1
        by_row = (log_expit if cell.response == "logit" else log_ndtr)(sign * eta)
    return by_row.sum(axis=-1)


def effect_quantities(
    cell: Cell, factor: Factor, drawn: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Sds, correlations and the first level's effects of one factor."""
    cov, random, of = drawn[factor.covariance], cell.terms[: factor.effects], factor.suffix
    log_sd = 0.5 * np.log(cov.diagonal(axis1=-2, axis2=-1))
    found = {}
    for j, term in enumerate(random):
        found[f"log sd {term}{of}"] = log_sd[..., j]
        for i in range(j):
            found[f"correlation {random[i]}, {term}{of}"] = cov[..., i, j] / np.exp(
                log_sd[..., i] + log_sd[..., j]
            )
    for j, term in enumerate(random):
        found[f"first group's {term}{of}"] = drawn[factor.table][..., 0, j]
    return found


def quantities(cell: Cell, drawn: dict[str, np.ndarray], y: np.ndarray) -> dict[str, np.ndarray]:
    """What is ranked, by name, at one or many draws; scales as logarithms (ranks are the same)."""
    found = {f"coef {t}": drawn["coef"][..., j] for j, t in enumerate(cell.terms)}
    if CUTS[0] in drawn:
        del found["coef intercept"]
    if "noise_var" in drawn:
        found["log sd noise"] = 0.5 * np.log(drawn["noise_var"])
    if "noise_scale" in drawn:
        found["log scale noise"] = np.log(drawn["noise_scale"])
        found["log degrees"] = np.log(drawn["degrees"])
    found |= {name: drawn[name] for name in OWN if name in drawn}
    for factor in cell.factors:
        found |= effect_quantities(cell, factor, drawn)
    return found | {"log likelihood": log_likelihood(cell, drawn, y)}


def simulate(cell: Cell, replication: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """True parameters and a response."""
    seed = [replication, *cell.name.encode()]
    rng = np.random.default_rng(seed)
    while True:
        truth = draw_truth(rng, cell)
        y = draw_response(rng, cell, truth)
        fits = cell.response not in SIMULATED or can_be_fitted(cell.response, y)
        if np.ptp(y) > 0 and fits:
            return truth, y


def fit(cell: Cell, y: np.ndarray, seed: int) -> Any:
    """What a user gets who states the priors and nothing else."""
    classes = RESPONSES[cell.response].classes
    estimator = nghvi.MixedClassifier if classes else nghvi.MixedRegressor
    labels = {factor.name: factor.codes for factor in cell.factors}
    frame = pd.DataFrame(cell.design[:, 1:], columns=cell.terms[1:]).assign(**labels)
    model = estimator(
        list(labels),
        random={factor.name: cell.terms[: factor.effects] for factor in cell.factors},
        response=cell.response,
        priors=cell.priors,
        standardize=False,
        latents=cell.latents,
        random_state=seed,
        **(SIMULATED[cell.response].settings if cell.response in SIMULATED else {}),
    )
    return model.fit(frame, y.astype(int) if classes else y)


def rank(cell: Cell, truth: dict, y: np.ndarray, drawn: dict) -> dict[str, list[float]]:
    """Ranks of the truth among the draws, and its distance from their mean in their sds."""
    ours, true = quantities(cell, drawn, y), quantities(cell, truth, y)
    return {
        "ranks": [int(np.sum(values < true[name])) for name, values in ours.items()],
        "z": [
            round(float((true[name] - values.mean()) / values.std(ddof=1)), 3)
            for name, values in ours.items()
        ],
    }


def replicate(cell: Cell, replication: int) -> dict:
    """One line."""
    truth, y = simulate(cell, replication)
    begun, busy = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a legal but odd data set is part of the game
        model = fit(cell, y, replication)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
    return {
        "model": cell.name,
        "is": cell.fingerprint,
        "replication": replication,
        "converged": bool(model.converged_),
        "verdict": str(model.verdict_),
        "k_hat": round(float(model.k_hat_), 3),
        "corrected": bool(model.posterior_.inference.pool.corrected),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        **rank(cell, truth, y, model.posterior_draws(DRAWS, replication)),
    }


def names(cell: Cell) -> list[str]:
    """Of the quantities, in the order of the lines."""
    truth, y = simulate(cell, 0)
    return list(quantities(cell, truth, y))


def load(path: Path) -> dict[str, list[dict]]:
    """The lines of every model as it is defined now, in order."""
    kept: dict[str, dict[int, dict]] = {cell.name: {} for cell in CELLS}
    current = {cell.name: cell.fingerprint for cell in CELLS}
    for text in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(text)
        if "model" in row and current.get(row["model"]) == row["is"]:
            kept[row["model"]][row["replication"]] = row
    return {name: [rows[i] for i in sorted(rows)] for name, rows in kept.items()}


def append(path: Path, row: dict) -> None:
    """One write, so that lines of several processes do not mix."""
    with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), "wb", 0) as file:
        file.write((json.dumps(row) + "\n").encode())


def work(path: Path, chosen: Sequence[str], replications: int, share: int, shares: int) -> None:
    """The missing replications of one process."""
    commit = str(about()["commit"])[:7]
    for cell in CELLS:
        if cell.name not in chosen:
            continue
        there = {row["replication"] for row in load(path)[cell.name]}
        missing = [i for i in range(replications) if i not in there and i % shares == share]
        for replication in missing:
            row = replicate(cell, replication) | {"commit": commit}
            append(path, row)
            print(
                f"{cell.name:18s} {replication:4d}  {row['seconds']:6.1f} s  "
                f"k-hat {row['k_hat']:5.2f}  {row['verdict'][:60]}",
                flush=True,
            )


def summaries(path: Path, chosen: Collection[str]) -> list[sbc_page.Result]:
    """The ranks of the chosen models, as far as there are lines."""
    found = load(path)
    return [
        sbc_page.summarise(cell.name, cell.words, names(cell), found[cell.name], DRAWS)
        for cell in CELLS
        if cell.name in chosen and found[cell.name]
    ]


def main() -> int:
    """Run what is missing and print the table; exit code 1 if ranks are not uniform."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="the models whose name contains this")
    parser.add_argument("--replications", type=int, help="200 if --report is not given, else none")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=Path, default=ROWS, help="where the lines are")
    parser.add_argument("--fresh", action="store_true", help="forget the lines of these models")
    parser.add_argument("--report", action="store_true", help="write the page and its picture")
    given = parser.parse_args()
    chosen = [cell.name for cell in CELLS if given.only in cell.name]
    if given.fresh:
        others = [row for n, rows in load(given.rows).items() if n not in chosen for row in rows]
        given.rows.write_text("".join(json.dumps(row) + "\n" for row in others))
    wanted = given.replications
    if wanted is None:
        wanted = 0 if given.report else REPLICATIONS
    if wanted:
        append(given.rows, {"about": about(), "models": chosen, "replications": wanted})
    context = multiprocessing.get_context("spawn")
    jobs = [
        context.Process(target=work, args=(given.rows, chosen, wanted, share, given.processes))
        for share in range(given.processes if wanted else 0)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    results = summaries(given.rows, chosen)
    print(sbc_page.table(results))
    if given.report:
        sbc_page.write(results)
    failed = any(job.exitcode for job in jobs)
    return int(failed or any(result.alarms for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
