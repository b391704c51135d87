"""Long Markov chains for small models with several grouping factors, as references.

Run: python -m benchmarks.factor_chains [--only NAME] [--seeds 1,2] [--draws 200000]   (needs numba)

    y ~ response(c_0 + c_1 x + sum_f s_f u_{f, level of f})
    c ~ N(0, 10^2),   s_f ~ half-t(2, 2.5),   u ~ N(0, 1)
    1 / sqrt(size) ~ half-normal(1) for negative binomial counts

A move is a Hamiltonian trajectory of all coordinates (c, log s, u) in units of their covariance,
which five short runs estimate. Each is followed, factor by factor, by two exact moves given the
effects s u as they are: the intercept is exchanged with the common level of the effects, and s is
drawn anew from a slice. The first leaves no funnel where s may be near zero, the others none where
levels are few. Four chains start from independent draws. Nothing is shared with the library.

Means and sds of coefficients and log sds, with standard errors from 25 batches per chain, are
written to ``results/factor_chains.json``, with which ``benchmarks.factor_designs`` compares fits.
"""

import argparse
import json
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

OUT = pathlib.Path(__file__).parent / "results" / "factor_chains.json"
KINDS = ("logit", "probit", "poisson", "negative-binomial")
CHAINS, BATCHES, RUNS, WARMUP, LONGEST = 4, 25, (300, 800, 2000, 5000, 10000), 500, 8
"""Chains, batches of each, lengths of the runs that estimate the covariance, moves that are left
out, and the most steps of a trajectory."""


class Design(NamedTuple):
    """A model and the shape of its data."""

    response: str
    rows: int
    levels: dict[str, int]
    sds: dict[str, float]
    nested: bool = False
    """Whether each level of the second factor has its own levels of the first."""

    @property
    def formula(self) -> str:
        if self.nested:
            return f"y ~ x + (1|{'/'.join(reversed(self.levels))})"
        return "y ~ x + " + " + ".join(f"(1|{name})" for name in self.levels)


DESIGNS = {
    "logit crossed": Design("logit", 320, {"a": 30, "b": 10}, {"a": 0.8, "b": 0.5}),
    "logit three": Design("logit", 420, {"a": 25, "b": 15, "c": 6}, {"a": 0.7, "b": 0.5, "c": 0.5}),
    "logit nested": Design("logit", 360, {"a": 4, "b": 10}, {"a": 0.7, "b": 0.6}, True),
    "logit few": Design("logit", 300, {"a": 25, "b": 3}, {"a": 0.6, "b": 0.5}),
    "probit crossed": Design("probit", 320, {"a": 28, "b": 12}, {"a": 0.5, "b": 0.4}),
    "poisson few": Design("poisson", 220, {"a": 18, "b": 3}, {"a": 0.5, "b": 0.4}),
    "negbin crossed": Design("negative-binomial", 300, {"a": 25, "b": 9}, {"a": 0.6, "b": 0.4}),
    "negbin few": Design("negative-binomial", 260, {"a": 20, "b": 4}, {"a": 0.5, "b": 0.3}),
}


def table(name: str, seed: int) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Simulated rows, and every row's level of each factor."""
    response, n, levels, sds, nested = DESIGNS[name]
    rng = np.random.default_rng([seed, n, sum(map(ord, name))])
    rows = pd.DataFrame({"x": rng.normal(size=n)})
    eta = 0.6 * rows["x"].to_numpy() - 0.2
    if KINDS.index(response) > 1:
        eta = eta + 0.6
    if nested:
        b, a = rng.integers(0, levels["b"], n), rng.integers(0, levels["a"], n)
        codes = {"b": b, "a": b * levels["a"] + a}
        size = {"b": levels["b"], "a": levels["a"] * levels["b"]}
    else:
        size = levels
        codes = {f: rng.choice(k, n, p=rng.dirichlet(np.full(k, 3.0))) for f, k in levels.items()}
    for f, code in codes.items():
        eta += sds[f] * rng.normal(size=size[f])[code]
        rows[f] = [f"{f}{c}" for c in code]
    if response == "logit":
        y = (eta + rng.logistic(size=n) > 0).astype(int)
    elif response == "probit":
        y = (eta + rng.normal(size=n) > 0).astype(int)
    elif response == "poisson":
        y = rng.poisson(np.exp(eta))
    else:
        y = rng.poisson(np.exp(eta) * rng.gamma(2.0, 0.5, n))
    return rows.assign(y=y), codes


def log_posterior(
    q: np.ndarray,
    kind: int,
    x: np.ndarray,
    y: np.ndarray,
    codes: np.ndarray,
    first: np.ndarray,
    levels: np.ndarray,
    above: np.ndarray,
    slope: np.ndarray,
) -> float:
    """Up to a constant; its gradient is written to ``slope``.

    ``first``: the place of each factor's first effect among all; ``above``: numbers of responses
    above 0, 1, 2 and so on, for negative binomial counts.
    """
    factors, own = levels.size, 1 if kind == 3 else 0
    sd_at = 2 + own
    start = sd_at + factors
    slope[:] = 0.0
    value, size, by_size = 0.0, 0.0, 0.0
    for j in range(2):
        value -= q[j] ** 2 / 200.0
        slope[j] -= q[j] / 100.0
    sds = np.empty(factors)
    for f in range(factors):
        sds[f] = math.exp(min(q[sd_at + f], 50.0))
        ratio = sds[f] ** 2 / 12.5
        value += q[sd_at + f] - 1.5 * math.log1p(ratio)
        slope[sd_at + f] += 1 - 3 * ratio / (1 + ratio)
    for i in range(start, q.size):
        value -= 0.5 * q[i] ** 2
        slope[i] -= q[i]
    if own:
        spread = max(math.exp(min(q[2], 20.0)), 1e-5)
        value += q[2] - 0.5 * spread**2
        slope[2] += 1 - spread**2
        size = 1 / spread**2
        for j in range(above.size):
            value += above[j] * math.log(size + j)
            by_size += above[j] / (size + j)
    for i in range(y.size):
        eta = q[0] + q[1] * x[i]
        for f in range(factors):
            eta += sds[f] * q[start + first[f] + codes[f, i]]
        if kind == 0:
            small = math.exp(-abs(eta))
            value += y[i] * eta - max(eta, 0.0) - math.log1p(small)
            d = y[i] - (1 / (1 + small) if eta > 0 else small / (1 + small))
        elif kind == 1:
            sign = 2 * y[i] - 1
            z = sign * eta
            if z > -30:
                p = 0.5 * math.erfc(-z / math.sqrt(2.0))
                value += math.log(p)
                d = sign * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / p
            else:
                value += -0.5 * z * z - math.log(-z) - 0.5 * math.log(2 * math.pi)
                d = -sign * z
        elif kind == 2:
            rate = math.exp(eta)
            value += y[i] * eta - rate
            d = y[i] - rate
        else:
            rate = math.exp(eta)
            log_sum = math.log(size + rate)
            value += y[i] * eta - (y[i] + size) * log_sum + size * math.log(size)
            by_size += math.log(size) + 1 - log_sum - (y[i] + size) / (size + rate)
            d = y[i] - (y[i] + size) * rate / (size + rate)
        slope[0] += d
        slope[1] += d * x[i]
        for f in range(factors):
            at = start + first[f] + codes[f, i]
            slope[sd_at + f] += d * sds[f] * q[at]
            slope[at] += d * sds[f]
    if own:
        slope[2] -= 2 * size * by_size
    return value


def log_density_of_sd(log_sd: float, levels: int, square: float) -> float:
    """Of the log sd of effects whose squares add up to ``square``."""
    variance = math.exp(2 * log_sd)
    prior = log_sd - 1.5 * math.log1p(variance / 12.5)
    return prior - levels * log_sd - 0.5 * square / variance


def move_factor(rng: np.random.Generator, q: np.ndarray, sd_at: int, at: int, levels: int) -> None:
    """Exchange the intercept with the common level of the effects from ``at`` on; draw their sd."""
    log_sd, total = q[sd_at], 0.0
    sd = math.exp(log_sd)
    for i in range(at, at + levels):
        total += q[i]
    precision = 0.01 + levels / sd**2
    shift = (total / sd - 0.01 * q[0]) / precision + rng.standard_normal() / math.sqrt(precision)
    q[0] += shift
    square = 0.0
    for i in range(at, at + levels):
        q[i] -= shift / sd
        square += (q[i] * sd) ** 2
    floor = log_density_of_sd(log_sd, levels, square) + math.log(rng.random())
    low = log_sd - rng.random()
    high = low + 1.0
    while log_density_of_sd(low, levels, square) > floor:
        low -= 1.0
    while log_density_of_sd(high, levels, square) > floor:
        high += 1.0
    while True:
        drawn = low + (high - low) * rng.random()
        if log_density_of_sd(drawn, levels, square) > floor:
            break
        if drawn < log_sd:
            low = drawn
        else:
            high = drawn
    q[sd_at] = drawn
    for i in range(at, at + levels):
        q[i] *= math.exp(log_sd - drawn)


def chain(
    rng: np.random.Generator,
    q: np.ndarray,
    root: np.ndarray,
    length: float,
    longest: int,
    number: int,
    model: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Draws of everything but the effects; the end, mean and covariance; the share of moves taken.

    ``root``: of the covariance that gives the units; ``length``: of a step in these.
    """
    kind, x, y, codes, first, levels, above = model
    sd_at = 3 if kind == 3 else 2
    start = sd_at + levels.size
    slope, kept = np.empty(q.size), np.empty((number, start))
    mean, covariance, taken = np.zeros(q.size), np.zeros((q.size, q.size)), 0.0
    for move in range(number):
        velocity = rng.standard_normal(q.size)
        value = log_posterior(q, kind, x, y, codes, first, levels, above, slope)
        before = 0.5 * np.sum(velocity**2) - value
        end, step = q.copy(), length * (0.8 + 0.4 * rng.random())
        push = root.T @ slope
        for _ in range(1 + int(rng.random() * longest)):
            velocity += 0.5 * step * push
            end += step * (root @ velocity)
            value = log_posterior(end, kind, x, y, codes, first, levels, above, slope)
            push = root.T @ slope
            velocity += 0.5 * step * push
        gain = before - 0.5 * np.sum(velocity**2) + value
        accepted = 0.0 if math.isnan(gain) else math.exp(min(0.0, gain))
        taken += accepted
        if rng.random() < accepted:
            q = end
        for f in range(levels.size):
            move_factor(rng, q, sd_at + f, start + first[f], levels[f])
        kept[move] = q[:start]
        away = q - mean
        mean += away / (move + 1)
        covariance += np.outer(away, q - mean)
    return kept, q, mean, covariance / number, taken / number


def tuned(
    rng: np.random.Generator, q: np.ndarray, root: np.ndarray, length: float, model: Any
) -> tuple[np.ndarray, float]:
    """Where short runs ended, and the step length with which most of their moves were taken."""
    for _ in range(12):
        _, q, _, _, taken = chain(rng, q.copy(), root, length, LONGEST, 100, model)
        if not taken > 0.3:
            length *= 0.4
        elif taken < 0.8:
            length *= 0.8
        elif taken > 0.93:
            length *= 1.2
        else:
            break
    return q, length


def reference(name: str, seed: int, draws: int) -> dict:
    """Moments of one data set's posterior."""
    rows, given = table(name, seed)
    codes = [np.unique(code, return_inverse=True)[1] for code in given.values()]
    levels = np.array([code.max() + 1 for code in codes])
    kind, y = KINDS.index(DESIGNS[name].response), rows["y"].to_numpy(float)
    above = np.array([np.sum(y > j) for j in range(int(y.max()) if kind == 3 else 0)], float)
    first = np.concatenate([[0], np.cumsum(levels)[:-1]])
    model = kind, rows["x"].to_numpy(), y, np.stack(codes), first, levels, above
    own, rng = int(kind == 3), np.random.default_rng(seed)
    start = 2 + own + levels.size
    q = np.zeros(start + levels.sum())
    q[2 + own : start], q[2 : 2 + own] = np.log(0.5), -0.3
    length = 0.15
    root: np.ndarray = 0.3 * np.eye(q.size)
    for number in RUNS:
        q, length = tuned(rng, q, root, length, model)
        _, q, mean, covariance, _ = chain(rng, q.copy(), root, length, 10, number, model)
        shrunk = covariance * number / (number + 5) + 5e-4 / (number + 5) * np.eye(q.size)
        root = np.linalg.cholesky(shrunk)
        length = max(length, 0.8 * q.size**-0.25)
    q, length = tuned(rng, q, root, length, model)
    found = []
    for _ in range(CHAINS):
        begin, moves = mean + root @ rng.normal(size=q.size), draws // CHAINS + WARMUP
        kept = chain(rng, begin, root, length, LONGEST, moves, model)[0]
        found.append(kept[WARMUP:])
    names = ["intercept", "x", *["log spread"] * own, *(f"log sd {f}" for f in given)]
    each = zip(names, np.moveaxis(np.stack(found), -1, 0), strict=True)
    return {"draws": draws, "parameters": {name: moments(values) for name, values in each}}


def moments(values: np.ndarray) -> dict[str, float]:
    """Mean and sd of draws, one chain per row, with standard errors in sds and relative."""
    mean, sd = float(values.mean()), float(values.std())
    batches = values[:, : values.shape[1] // BATCHES * BATCHES].reshape(CHAINS * BATCHES, -1)
    squares = np.mean((batches - mean) ** 2, axis=1)
    root = np.sqrt(len(batches))
    return {
        "mean": mean,
        "sd": sd,
        "se_mean": float(batches.mean(axis=1).std(ddof=1) / root / sd),
        "se_sd": float(squares.std(ddof=1) / root / (2 * sd**2)),
    }


def compile_all() -> None:
    """Have numba compile the inner functions, which would take hours otherwise."""
    import numba

    for name in ("log_posterior", "log_density_of_sd", "move_factor", "chain"):
        globals()[name] = numba.njit(error_model="numpy")(globals()[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="designs whose name contains this")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--draws", type=int, default=200_000)
    given = parser.parse_args()
    compile_all()
    for name in DESIGNS:
        for seed in map(int, given.seeds.split(",")) if given.only in name else ():
            known = json.loads(OUT.read_text()) if OUT.exists() else {}
            known.setdefault(name, {})[str(seed)] = found = reference(name, seed, given.draws)
            OUT.write_text(json.dumps(known, indent=1) + "\n")
            print(name, seed)
            for parameter, each in found["parameters"].items():
                print(f"  {parameter:12s}", {key: round(value, 4) for key, value in each.items()})


if __name__ == "__main__":
    main()
