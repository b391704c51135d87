"""Control runs: the effect of one change at a time, compared with that of chance.

* The factor Gaussian's Fisher matrix as printed and as it is, in NG-HVI on Examples 1 and 2(a).
* NAGVAC as published and with the mistakes of its program, on Example 3, with up to 3,000 steps;
  and on the Gaussian network of Example 2(a), where the paper says that it did not work well.
* NG-HVI and SG-HVI with the paper's priors on the asset pricing panel, beside the library's default
  with its own, over seeds, where ``--data`` gives one.
* What Table 1 prints, NG-HVI's value minus DAVI's, over data sets.
* How far log p(y) differs between data sets of Example 1, at the parameters that made them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

import nghvi
from nghvi.methods import PUBLISHED, GradientMethod, NaturalGradient
from nghvi.paper.studies import asset_pricing, example1, example2, example3, printed_values
from nghvi.paper.studies.asset_pricing_views import Gain, compared
from nghvi.paper.studies.compared import OURS, fit, linear, regression_scores, regressor, settings
from nghvi.paper.studies.exhibits import Table, beside, verdicts
from nghvi.paper.studies.problems import COEF_1, GROUP, Part, Problem
from nghvi.paper.studies.problems import example1 as simulate_linear
from nghvi.paper.studies.problems import example2a as simulate_network
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options, Study
from nghvi.priors import InverseGamma

RULES: dict[str, GradientMethod] = {
    "program": PUBLISHED["ng-hvi"],
    "printed, solved": NaturalGradient(fisher="printed"),
    "exact": PUBLISHED["ng-hvi-exact"],
}
"""NG-HVI: printed F22 and at most twenty steps of the solver; printed F22; the right one."""
SEEDS = 3
PANEL_MODELS = (asset_pricing.DEEP_SMALL, asset_pricing.DEEP_LARGE)
BESIDE = asset_pricing.COEFFICIENTS
"""The linear model that networks on the panel are compared with."""
PUBLISHED_ON_PANEL, PANEL_STEPS = ("ng-hvi", "sg-hvi"), 3000
DATA_SETS = 200
LINEAR, NETWORK, BINARY, PANEL, LEVELS = "example1", "example2a", "example3", "finance", "levels"
GAUSSIAN, ADVANTAGE = "nagvac", "advantage"
TABLE_1_SETS = 10
NAGVAC, NAGVAC_STEPS = ("nagvac-published", "nagvac-program"), 3000
NAGVAC_NO_RULE = tuple(f"{rule} no rule" for rule in NAGVAC)
"""On one data set: without its rule every run has all the steps."""


def cells(options: Options) -> list[Row]:
    """Every control; those of the panel only where there is one."""
    seeds = options.seeds(SEEDS)
    found: list[Row] = [
        {"example": example, "rule": rule, "seed": seed}
        for example in (LINEAR, NETWORK)
        for seed in seeds
        for rule in ((OURS, *RULES) if example == LINEAR else RULES)
    ]
    found += [
        {"example": BINARY, "rule": rule, "seed": seed, "steps": NAGVAC_STEPS}
        for chosen, of in ((NAGVAC, seeds), (NAGVAC_NO_RULE, seeds[:1]))
        for seed in of
        for rule in chosen
    ]
    rules = ("nagvac", example3.NO_RULE)
    found += [{"example": GAUSSIAN, "rule": rule, "seed": options.seed} for rule in rules]
    found += [
        {"example": LEVELS, "num_groups": k, "ratio": ratio, "seed": options.seed}
        for k in example1.GROUPS
        for ratio in example1.RATIOS
    ]
    found += [
        {"example": ADVANTAGE, "num_groups": k, "ratio": ratio, "seed": seed}
        for k in reversed(example1.GROUPS)
        for seed in options.seeds(TABLE_1_SETS)
        for ratio in example1.RATIOS
    ]
    if options.data is not None:
        _, name = asset_pricing.panel_of(options.data, options.quick)
        found += [
            {"example": PANEL, "rule": rule, "model": model.name, "seed": seed}
            | {"data": name, "factors": factors}
            for methods in (PUBLISHED_ON_PANEL, (OURS,))
            for seed in seeds
            for factors in asset_pricing.FACTOR_SETS
            for model in PANEL_MODELS
            for rule in methods
        ]
        found += [
            {"example": PANEL, "rule": OURS, "model": BESIDE.name, "seed": options.seed}
            | {"data": name, "factors": factors}
            for factors in asset_pricing.FACTOR_SETS
        ]
    return found


def run(cell: Row, options: Options) -> Row:
    """One control."""
    return RUNS[cell["example"]](cell, options)


def run_linear(cell: Row, options: Options) -> Row:
    """Example 1 in the setting of the paper's figures, three factors."""
    groups, ratio = example1.SHOWN
    rule = RULES.get(cell["rule"])
    chosen = {} if rule is None else _by(rule, options.steps(example1.STEPS)) | {"rank": 3}
    estimator = linear(cell["seed"], **chosen)
    found = fit(estimator, simulate_linear(groups, ratio, cell["seed"]).train)
    return found | {"log_evidence": float(estimator.log_evidence_)}


def run_network(cell: Row, options: Options) -> Row:
    """Example 2(a)."""
    problem = simulate_network(cell["seed"], options.groups())
    chosen = _by(RULES[cell["rule"]], options.steps(3000))
    estimator = regressor(cell["seed"], hidden=example2.SMALL, **chosen)
    return fit(estimator, problem.train) | regression_scores(estimator, problem)


def _by(rule: GradientMethod, steps: int) -> dict[str, Any]:
    return {"method": rule, "steps": steps}


def run_binary(cell: Row, options: Options) -> Row:
    """NAGVAC with its stopping rule or without, on the process of the authors' program."""
    first = {"process": "code", "method": cell["rule"], "seed": cell["seed"]}
    return example3.run({**first, **cell}, options)


def run_gaussian(cell: Row, options: Options) -> Row:
    """NAGVAC on Example 2(a), which has independent effects, with its stopping rule and without."""
    problem = simulate_network(cell["seed"], options.groups())
    estimator = regressor(
        cell["seed"],
        hidden=example2.SMALL,
        priors=dataclasses.replace(example3.PRIORS, noise=InverseGamma()),
        covariance="diagonal",
        **settings("nagvac", options.steps(example3.STEPS["nagvac"])),
    )
    watched = None if cell["rule"] == example3.NO_RULE else problem.validation
    found = fit(estimator, problem.train, watched)
    inputs, y = problem.test
    published = nghvi.scores.r2(y, estimator.predict(inputs, which="population"))
    return found | regression_scores(estimator, problem) | {"r2_test_published": published}


def run_panel(cell: Row, options: Options) -> Row:
    """The deep models as the paper estimates them, its priors included, or by default."""
    model = next(m for m in (*PANEL_MODELS, BESIDE) if m.name == cell["model"])
    published = cell["rule"] != OURS
    chosen = model._replace(method=cell["rule"], priors="paper") if published else model
    panel, _ = asset_pricing.panel_of(options.data, options.quick)
    columns = [*asset_pricing.FACTOR_SETS[cell["factors"]], GROUP]
    estimator = asset_pricing.regressor(chosen, cell["seed"], options)
    if published:
        estimator.set_params(steps=options.steps(PANEL_STEPS))
    part = Part(panel.train[columns], panel.train[asset_pricing.RETURN].to_numpy())
    found = fit(estimator, part) | asset_pricing.noise_posterior(estimator, len(part.y))
    return found | asset_pricing.scores(estimator, panel, columns)


def run_advantage(cell: Row, options: Options) -> Row:
    """NG-HVI and DAVI as published on one setting of Table 1, and the log evidence."""
    part = simulate_linear(cell["num_groups"], cell["ratio"], cell["seed"]).train
    steps = options.steps(example1.STEPS)
    legacy = fit(linear(cell["seed"], **settings("davi-published", steps)), part)
    estimator = linear(cell["seed"], **settings("ng-hvi", steps), rank=3)
    hybrid, exact = fit(estimator, part), linear(cell["seed"])
    fit(exact, part)
    return {
        "davi": legacy["elbo"],
        "hybrid": hybrid["elbo"],
        "published": example1.published_elbo(estimator.posterior_.inference),
        "log_evidence": float(exact.log_evidence_),
    }


def run_levels(cell: Row, options: Options) -> Row:
    """Log likelihood at the true parameters, over data sets; that of the study's own first."""
    number = options.steps(DATA_SETS)
    found = [
        log_likelihood(simulate_linear(cell["num_groups"], cell["ratio"], seed), cell["ratio"])
        for seed in range(cell["seed"], cell["seed"] + number)
    ]
    return {"sets": number, "mean": np.mean(found), "sd": np.std(found, ddof=1), "own": found[0]}


def log_likelihood(problem: Problem, ratio: float) -> float:
    """Log likelihood of Example 1's training rows at the truth, effects integrated out."""
    inputs, y = problem.train
    residual = y - COEF_1[0] - inputs.drop(columns=GROUP).to_numpy() @ COEF_1[1:]
    groups = pd.Series(residual).groupby(inputs[GROUP].to_numpy())
    size, total = groups.size().to_numpy(), groups.sum().to_numpy()
    spread = 1 + ratio * size
    squares = np.sum(residual**2) - np.sum(ratio * total**2 / spread)
    return float(-0.5 * (len(y) * np.log(2 * np.pi) + np.sum(np.log(spread)) + squares))


RUNS = {
    LINEAR: run_linear,
    NETWORK: run_network,
    BINARY: run_binary,
    GAUSSIAN: run_gaussian,
    PANEL: run_panel,
    ADVANTAGE: run_advantage,
    LEVELS: run_levels,
}


def tables(rows: list[Row]) -> list[Table]:
    """One per control that was run."""
    found = []
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row["example"], []).append(row)
    for name, make, caption in (
        (LINEAR, _linear, "NG-HVI by its Fisher matrix, Example 1 (K=1000, ratio 1, p=3)"),
        (NETWORK, _network, "NG-HVI by its Fisher matrix, Example 2(a)"),
        (BINARY, _binary, "NAGVAC, Example 3, effects of sd 0.1: ours (paper's); medians"),
        (GAUSSIAN, _gaussian, "NAGVAC on a Gaussian network, Example 2(a)"),
        (PANEL, _panel, "Deep mixed models as the paper estimates them: ours (paper's)"),
        (ADVANTAGE, _advantage, "Table 1 over data sets, as published: ours (paper's); medians"),
        (LEVELS, _levels, "Example 1: how much log p(y) varies between data sets"),
    ):
        if of.get(name):
            table = pd.DataFrame(make(of[name]))
            found.append(Table(f"controls_{name}", caption, table.set_index(table.columns[0])))
    return found


def gaps(rows: list[Row]) -> dict[str, list[float]]:
    """ELBO minus log evidence of every rule on Example 1, one value per data set."""
    evidence = {row["seed"]: row["log_evidence"] for row in rows if row["rule"] == OURS}
    return {
        rule: [row["elbo"] - evidence[row["seed"]] for row in rows if row["rule"] == rule]
        for rule in RULES
    }


def arrivals(rows: list[Row], below: float = 10.0) -> dict[str, list[int]]:
    """Steps until the noisy ELBO, over ten values, is within ``below`` nats of log p(y)."""
    evidence = {row["seed"]: row["log_evidence"] for row in rows if row["rule"] == OURS}
    found: dict[str, list[int]] = {rule: [] for rule in RULES}
    for row in rows:
        if row["rule"] in RULES:
            smooth = np.convolve(row["trace"], np.full(10, 0.1), "valid")
            near = smooth > evidence[row["seed"]] - below
            # Beyond the last step where the curve never is.
            first = int(np.argmax(near)) if near.any() else len(row["trace"])
            found[row["rule"]].append((first + 5) * row["trace_every"])
    return found


def _linear(rows: list[Row]) -> list[Row]:
    gap, steps = gaps(rows), arrivals(rows)
    return [
        {
            "Fisher matrix": rule,
            "ELBO minus log evidence": ", ".join(f"{value:.2f}" for value in gap[rule]),
            "steps to within 10 nats": ", ".join(map(str, steps[rule])),
            "verdicts": verdicts(row["verdict"] for row in rows if row["rule"] == rule),
        }
        for rule in RULES
    ]


def _network(rows: list[Row]) -> list[Row]:
    return [
        {"Fisher matrix": rule}
        | {
            label: ", ".join(f"{row[key]:.{digits}f}" for row in rows if row["rule"] == rule)
            for label, key, digits in (
                ("ELBO", "elbo", 0),
                ("R2 test", "r2_test", 4),
                ("log score", "log_score", 4),
            )
        }
        | {"verdicts": verdicts(row["verdict"] for row in rows if row["rule"] == rule)}
        for rule in RULES
    ]


def _binary(rows: list[Row]) -> list[Row]:
    found = []
    for rule, group in pd.DataFrame(rows).groupby("rule", sort=False):
        there = printed_nagvac(str(rule))
        low, high = group["pce_test"].min(), group["pce_test"].max()
        found.append(
            {
                "method": rule,
                "PCE train": beside(group["pce_train"].median(), there["pce_train"]),
                "PCE test": beside(group["pce_test"].median(), there["pce_test"]),
                "smallest to largest": f"{low:.4f} to {high:.4f}",
                "F1 test": beside(group["f1_test"].median(), there["f1_test"]),
                "steps": ", ".join(map(str, group["taken"])),
                "data sets": len(group),
                "verdicts": verdicts(group["verdict"]),
            }
        )
    return found


def printed_nagvac(rule: str) -> Mapping[str, float]:
    """The paper's figures for NAGVAC with its rule or without."""
    return printed_values.EXAMPLE_3[example3.NO_RULE if rule in NAGVAC_NO_RULE else "nagvac"]


def _gaussian(rows: list[Row]) -> list[Row]:
    return [
        {
            "method": row["rule"],
            "R2 train": f"{row['r2_train']:.4f}",
            "R2 test": f"{row['r2_test']:.4f}",
            "R2 test, effects from their prior": f"{row['r2_test_published']:.4f}",
            "steps": row["steps"],
            "minutes": f"{row['seconds'] / 60:.1f}",
            "verdict": verdicts([row["verdict"]]),
        }
        for row in rows
    ]


def _panel(rows: list[Row]) -> list[Row]:
    found = []
    for row in rows:
        there = printed_values.FINANCE[row["factors"], row["model"]]
        gain = compared_on_panel(row, rows)
        found.append(
            {
                "model": f"{row['model']}, {row['factors']}",
                "method, seed": f"{row['rule']}, {row['seed']}",
                "LS test": beside(row["log_score_test"], there[1]),
                "R2 test": beside(row["r2_test"], there[3]),
                "over linear": "-" if gain is None else f"{gain.mean:+.4f} ± {gain.error:.4f}",
                "without a month": "-" if gain is None else f"{gain.low:+.4f} to {gain.high:+.4f}",
                "sd log s2": f"{row['log_noise_var_sd']:.4f}",
                "verdict": verdicts([row["verdict"]]),
            }
        )
    return found


def compared_on_panel(row: Row, rows: list[Row]) -> Gain | None:
    """Test log score over that of linear random coefficients with the same factors."""
    base = linear_on_panel(row["factors"], rows)
    return None if base is None or base is row else compared(row, base)


def linear_on_panel(factors: str, rows: list[Row]) -> Row | None:
    """The linear model that networks with these factors are compared with."""
    linear = (r for r in rows if r["example"] == PANEL and r["model"] == BESIDE.name)
    return next((r for r in linear if r["factors"] == factors), None)


def _advantage(rows: list[Row]) -> list[Row]:
    found = []
    setting: Any
    for setting, group in pd.DataFrame(rows).groupby(["num_groups", "ratio"]):
        ours = group["published"] - group["davi"]
        found.append(
            {
                "K": setting[0],
                "ratio": setting[1],
                "published advantage": beside(
                    ours.median(), printed_values.TABLE_1[setting][-1], 1
                ),
                "smallest to largest": f"{ours.min():.1f} to {ours.max():.1f}",
                "accounting": f"{(group['published'] - group['hybrid']).median():.1f}",
                "DAVI below log p(y)": f"{(group['log_evidence'] - group['davi']).median():.1f}",
                "NG-HVI below": f"{(group['log_evidence'] - group['hybrid']).median():.2f}",
                "data sets": len(group),
            }
        )
    return found


def _levels(rows: list[Row]) -> list[Row]:
    return [
        {
            "K": row["num_groups"],
            "ratio": row["ratio"],
            "log p(y | truth), mean": f"{row['mean']:.1f}",
            "sd": f"{row['sd']:.1f}",
            "our first data set": f"{row['own']:.1f}",
            "data sets": row["sets"],
        }
        for row in rows
    ]


def describe(options: Options) -> str:
    """Whether the panel's controls are among them."""
    return "with the panel of --data" if options.data else "no --data: none on a panel of returns"


STUDY = Study(
    "controls",
    "one change at a time",
    cells,
    run,
    tables,
    describe=describe,
    needs="--data PATH",
)
