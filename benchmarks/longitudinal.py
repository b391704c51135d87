"""Longitudinal binary data with large correlated effects, compared with NUTS.

Run: python -m benchmarks.longitudinal [--only NAME] [--references] [--grid] [--limit 150]

Persons are seen at some of seven visits; a logit or probit model has a correlated random
intercept and slope on standardised time, with sds so large that most persons are all 0 or all 1:
the likelihood of a person is far from a Gaussian, and the posterior of the sds is skewed. Three
sizes, three seeds, both links. The default recipe has no setting but the model and the priors; it
is fitted twice in one process, and the second fit is timed.

Compared with NUTS (``results/longitudinal_nuts.json``, computed where it is missing):
coefficients, the effects' sds and their correlation as they are reported, and the log sds, since
raw sds have heavy tails. Required: means within 0.1 posterior sd, sds within a factor of
[0.93, 1.07], "Converged", and less than 30 s. A fit that needs more CPU seconds than ``--limit`` is
stopped, and its row says so.
"""

import argparse
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import nghvi
from benchmarks import longitudinal_reference as reference
from benchmarks.problems import Problem
from nghvi.paper.studies.facts import about
from nghvi.priors import HuangWand, Priors

PRIORS = Priors(coef_sd=10.0, effects=HuangWand(df=2.0, scale=2.5))

MEANS, RATIOS, SECONDS = 0.1, (0.93, 1.07), 30.0

SIZES = {"small": (50, (3, 6)), "medium": (150, (5, 7)), "large": (294, (6, 7))}
"""Persons, and the fewest and most visits of a person."""
LINKS = {"logit": 1.0, "probit": 0.6}
"""What the effects of the logit model are multiplied by."""
SEEDS = (1, 2, 3)
SPREADS = ((5.0, 4.0, -0.3), (6.0, 4.5, 0.1), (7.0, 5.0, 0.4))
"""Sds of intercept and slope and their correlation, by seed."""
COEF = np.array([-6.0, -0.5, -1.5, -0.8])
"""Intercept, treatment, time, treatment x time."""
MONTHS = np.array([0.0, 1.0, 2.0, 3.0, 6.0, 9.0, 12.0])


def simulate(response: str, size: str, seed: int) -> Problem:
    """A data set; its name, size and seed determine every number."""
    rng = np.random.default_rng([seed, list(LINKS).index(response), list(SIZES).index(size)])
    persons, (fewest, most) = SIZES[size]
    visits = rng.integers(fewest, most + 1, persons)
    seen = [np.sort(rng.choice(len(MONTHS), v, replace=False)) for v in visits]
    group = np.repeat(np.arange(persons), visits)
    time_ = ((MONTHS - MONTHS.mean()) / MONTHS.std())[np.concatenate(seen)]
    treatment = (np.arange(persons) % 2.0)[group]
    x = np.column_stack([treatment, time_, treatment * time_])
    first, second, rho = SPREADS[(seed - 1) % len(SPREADS)]
    omega = np.array([[first**2, rho * first * second], [rho * first * second, second**2]])
    effects = rng.standard_normal((persons, 2)) @ np.linalg.cholesky(omega).T
    eta = COEF[0] + x @ COEF[1:] + effects[group, 0] + effects[group, 1] * time_
    noise = (
        rng.logistic(size=len(group)) if response == "logit" else rng.standard_normal(len(group))
    )
    y = (noise < LINKS[response] * eta).astype(float)
    return Problem(f"{response} {size} {seed}", response, x, y, group, (0, 2))


def share_constant(problem: Problem) -> float:
    """Share of persons that are all 0 or all 1."""
    mean = np.bincount(problem.group, problem.y) / np.bincount(problem.group)
    return float(np.mean((mean == 0) | (mean == 1)))


class OutOfTimeError(Exception):
    """A fit was stopped."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop what takes more CPU seconds than these."""

    def stop(*_: Any) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Fit(NamedTuple):
    model: nghvi.MixedClassifier
    seconds: float
    cpu: float


def fit(problem: Problem, seed: int, limit: float) -> Fit:
    """The fitted model and what it took."""
    model = nghvi.MixedClassifier(
        "g",
        random=problem.random_terms,
        response=problem.response,
        priors=PRIORS,
        standardize=False,
        random_state=seed,
    )
    frame = problem.frame()
    begun, busy = time.perf_counter(), time.process_time()
    with at_most(limit):
        model.fit(frame, problem.y)
    return Fit(model, time.perf_counter() - begun, time.process_time() - busy)


def moments(problem: Problem, model: nghvi.MixedClassifier) -> dict[str, tuple[float, float]]:
    """Posterior mean and sd of every quantity, from the weighted draws behind every report."""
    pool = model.posterior_.inference.pool
    drawn = model.posterior_.globals_at(pool.theta)
    cov = drawn["effects_cov"]
    log_sd = 0.5 * np.log(cov.diagonal(axis1=1, axis2=2))
    fisher = np.arctanh(cov[:, 0, 1] / np.exp(log_sd.sum(axis=1)))
    found = {}
    for name, values in reference.quantities(problem, drawn["coef"], log_sd, fisher).items():
        mean = pool.weight @ values
        found[name] = (float(mean), float(np.sqrt(pool.weight @ (values - mean) ** 2)))
    return found


def check(problem: Problem, posterior: dict, limit: float) -> dict:
    """One row: the second fit compared with NUTS."""
    row = {
        "problem": problem.name,
        "rows": len(problem.y),
        "all_0_or_1": round(share_constant(problem), 3),
    }
    try:
        cold, warm = fit(problem, 1, limit), fit(problem, 2, limit)
    except OutOfTimeError:
        return row | {"stopped": f"after {limit:g} CPU seconds", "ok": False}
    return row | compare(problem, posterior, cold, warm)


def compare(problem: Problem, posterior: dict, cold: Fit, warm: Fit) -> dict:
    """Errors of the second fit, its verdict, and the times."""
    model = warm.model
    errors, ratios = {}, {}
    for name, (mean, sd) in moments(problem, model).items():
        stated = posterior["parameters"][name]
        errors[name] = round((mean - stated["mean"]) / stated["sd"], 4)
        ratios[name] = round(sd / stated["sd"], 4)
    # Reported, but not judged: a transform of the correlation that is.
    judged = [name for name in errors if name != "atanh correlation"]
    worst = max(judged, key=lambda n: abs(errors[n]))
    low, high = min(ratios[n] for n in judged), max(ratios[n] for n in judged)
    agrees = abs(errors[worst]) <= MEANS and RATIOS[0] <= low and high <= RATIOS[1]
    return {
        "mean_error": abs(errors[worst]),
        "worst": worst,
        "sd_ratio_min": low,
        "sd_ratio_max": high,
        "converged": bool(model.converged_),
        "verdict": str(model.verdict_),
        "k_hat": round(float(model.k_hat_), 3),
        "corrected": bool(model.posterior_.inference.pool.corrected),
        "seconds_cold": round(cold.seconds, 2),
        "seconds_warm": round(warm.seconds, 2),
        "cpu_seconds_warm": round(warm.cpu, 2),
        "seconds_nuts": posterior["seconds"],
        "mean_errors": errors,
        "sd_ratios": ratios,
        "ok": bool(agrees and model.converged_ and warm.seconds < SECONDS),
    }


HEAD = (
    f"{'problem':16s} {'rows':>5s} {'0 or 1':>6s}  mean/sd {'':22s} sd ratio        "
    "conv   k-hat  cold s  warm s   (CPU)  NUTS s"
)


def line(row: dict) -> str:
    data = f"{row['problem']:16s} {row['rows']:5d} {100 * row['all_0_or_1']:5.0f}%  "
    if "stopped" in row:
        return f"{data}stopped {row['stopped']}  <-- out of bounds"
    return (
        f"{data}"
        f"{row['mean_error']:.3f} {row['worst']:24s} "
        f"[{row['sd_ratio_min']:.3f}, {row['sd_ratio_max']:.3f}]  {row['converged']!s:5s}  "
        f"{row['k_hat']:5.2f}  {row['seconds_cold']:6.1f}  {row['seconds_warm']:6.1f}  "
        f"{row['cpu_seconds_warm']:6.1f}  "
        f"{row['seconds_nuts']:6.1f}{'' if row['ok'] else '  <-- out of bounds'}"
    )


def quality(problem: Problem, posterior: dict) -> str:
    """A line about a reference."""
    rows = posterior["parameters"].values()
    ess, r_hat = min(r["ess_bulk"] for r in rows), max(r["r_hat"] for r in rows)
    said = (
        f"{problem.name:16s} NUTS: {posterior['chains']} x {posterior['draws']} draws, least bulk "
        f"ESS {ess:.0f}, R-hat {r_hat:.4f}, {posterior['divergent_draws']} divergent, "
        f"{posterior['seconds']:.0f} s, all 0 or 1: {share_constant(problem):.2f}"
    )
    if "grid" in posterior:
        other = posterior["grid"]["parameters"]
        pairs = [(other[n], stated) for n, stated in posterior["parameters"].items()]
        away = max(abs(o["mean"] - s["mean"]) / s["sd"] for o, s in pairs)
        ratio = [o["sd"] / s["sd"] for o, s in pairs]
        said += f"; by a grid: means {away:.3f} sd away, sds [{min(ratio):.3f}, {max(ratio):.3f}]"
    return said


def main() -> int:
    """Compare all problems; exit code 1 if one is out of bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="the problems whose name contains this")
    parser.add_argument("--references", action="store_true", help="only the NUTS runs")
    parser.add_argument("--grid", action="store_true", help="check NUTS by a second method")
    parser.add_argument("--limit", type=float, default=150.0, help="CPU seconds of a fit")
    chosen = parser.parse_args()
    cells = [(link, size, seed) for size in SIZES for seed in SEEDS for link in LINKS]
    rows = []
    if not chosen.references:
        print(HEAD)
    for link, size, seed in cells:
        problem = simulate(link, size, seed)
        if chosen.only not in problem.name:
            continue
        posterior = reference.load_or_run(problem, PRIORS, grid=chosen.grid)
        if chosen.references:
            print(quality(problem, posterior), flush=True)
            continue
        rows.append(check(problem, posterior, chosen.limit))
        print(line(rows[-1]), flush=True)
    if chosen.references:
        return 0
    if not chosen.only:
        report = {"about": about(), "limits": [MEANS, *RATIOS, SECONDS], "rows": rows}
        path = Path(__file__).parent / "results" / "longitudinal.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
    bad = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - bad} of {len(rows)} fits within bounds")
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
