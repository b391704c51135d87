"""Responses against long MCMC runs: ``python -m benchmarks.response_calibration --reference DIR``.

A case is a formula with one grouping factor, a table of rows, and posterior moments under stated
priors. Every response that the library has is fitted by its formula with these priors and no other
setting, for several seeds. Printed for each fit: the largest |mean - reference mean| / reference
sd, the smallest and largest ratio of sds over coefficients (cutpoints among them) and over the
other parameters, and the share of levels whose effect's mean is within 0.1 sd. A run of all cases
is recorded in ``results/response_calibration.json``.
"""

import json
import pathlib
import time
from collections.abc import Iterator

import numpy as np
import pandas as pd

import nghvi
from benchmarks.calibration import arguments
from nghvi.estimators._base import MixedEstimator
from nghvi.paper.studies.facts import about
from nghvi.priors import HalfT, HuangWand, Priors
from nghvi.responses import RESPONSES

RESULTS = pathlib.Path(__file__).parent / "results" / "response_calibration.json"
MEAN, COEF_SDS, OTHER_SDS, EFFECTS = 0.1, (0.95, 1.05), (0.93, 1.07), 0.99


def response_of(facts: dict) -> str:
    """The library's name of a reference's response."""
    if facts["response"] == "binomial" and "trials_column" not in facts:
        return facts["link"]
    return {"zip": "zero-inflated-poisson"}.get(facts["response"], facts["response"])


def formula_of(facts: dict) -> str:
    """The library's formula of a case; a column of the references says which rows are censored."""
    left, _, right = facts["formula"].partition("~")
    return (
        f"censored({left.strip()}, 0) ~{right}" if "censored_column" in facts else facts["formula"]
    )


def cases(folder: pathlib.Path) -> Iterator[dict]:
    """Those with one factor and a response of the library, smallest first."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    for facts in sorted(found, key=lambda facts: facts["n"]):
        if response_of(facts) in RESPONSES and len(facts["random"]) == 1:
            yield facts


def reference_name(facts: dict, name: str) -> str:
    """What a reference calls a parameter of ours."""
    (term,) = facts["random"]
    kind, _, inside = name.partition("[")
    inside = inside.removesuffix("]").replace("intercept", "Intercept")
    many = len(term["coefficients"]) > 1
    if kind == "effects_sd":
        return f"sd({term['factor']}:{inside})" if many else f"sd({term['factor']})"
    if kind == "cut":
        return f"cutpoint_{int(inside.partition('|')[0]) + 1}"  # codes from 0
    if kind == "noise_sd":
        return "sigma"
    if kind == "effects_corr":
        return f"cor({term['factor']}:{inside})"
    return "Intercept" if name == "intercept" else name


def check(folder: pathlib.Path, facts: dict, seed: int) -> dict:
    """Fit one case and compare."""
    rows = pd.read_csv(folder / facts["design_file"])
    reference = pd.read_csv(folder / f"{facts['name']}.csv").set_index("parameter")
    correlated = len(facts["random"][0]["coefficients"]) > 1
    priors = Priors(
        coef_sd=10.0, effects=HuangWand() if correlated else HalfT(), noise=HalfT(2.0, 2.5)
    )
    begun = time.perf_counter()
    fitted = nghvi.mixed(
        formula_of(facts),
        rows,
        response=response_of(facts),
        priors=priors,
        standardize=False,
        random_state=seed,
    )
    seconds = time.perf_counter() - begun
    summary = fitted.summary()
    known = reference.loc[[reference_name(facts, name) for name in summary.index]]
    away = (np.abs(summary["mean"].to_numpy() - known["mean"]) / known["sd"]).to_numpy()
    ratio = (summary["sd"].to_numpy() / known["sd"]).to_numpy()
    coef = np.isin(summary.index, list(fitted.posterior_.names.features))
    coef |= summary.index.str.startswith("cut[")
    share = _effects_share(fitted, pd.read_csv(folder / f"{facts['name']}_effects.csv"))
    inside = _within(ratio[coef], COEF_SDS) and _within(ratio[~coef], OTHER_SDS)
    return {
        "case": facts["name"],
        "response": response_of(facts),
        "seed": seed,
        "mean": float(away.max()),
        "coef": (float(ratio[coef].min()), float(ratio[coef].max())),
        "other": (float(ratio[~coef].min()), float(ratio[~coef].max())),
        "effects": share,
        "converged": bool(fitted.converged_),
        "k_hat": float(fitted.k_hat_),
        "seconds": seconds,
        "ok": bool(fitted.converged_) and away.max() <= MEAN and inside and share >= EFFECTS,
    }


def _within(ratio: np.ndarray, limits: tuple[float, float]) -> bool:
    return bool(limits[0] <= ratio.min() and ratio.max() <= limits[1])


def _effects_share(fitted: MixedEstimator, effects: pd.DataFrame) -> float:
    table = fitted.group_effects()
    table.index = table.index.astype(str)
    close = []
    for name, part in effects.groupby("coefficient"):
        ours = "intercept" if name == "Intercept" else str(name)
        found = table[f"{ours}_mean"].loc[list(part["level"].astype(str))].to_numpy()
        close.append(np.abs(found - part["mean"]) <= MEAN * part["sd"])
    return float(np.mean(np.concatenate(close)))


def main() -> int:
    """Run all cases; exit code 1 if one is out of bounds."""
    chosen = arguments(__doc__, "mcmc_reference")
    if chosen is None:
        return 0
    facts_of_run, rows = about(), []
    print(f"{'case':28s} seed  mean/sd  coef sds      other sds     effects  k-hat  seconds")
    for facts in cases(chosen.reference):
        if chosen.only not in facts["name"]:
            continue
        for seed in range(chosen.seeds):
            row = check(chosen.reference, facts, seed)
            rows.append(row)
            sds = "  ".join(f"{low:.3f}-{high:.3f}" for low, high in (row["coef"], row["other"]))
            print(
                f"{facts['name']:28s} {seed:4d}  {row['mean']:7.3f}  {sds}  {row['effects']:7.3f}  "
                f"{row['k_hat']:5.2f}  {row['seconds']:7.1f}  {'' if row['ok'] else 'OUT'}",
                flush=True,
            )
    if not chosen.only:
        RESULTS.write_text(json.dumps({"about": facts_of_run, "rows": rows}, indent=1) + "\n")
    failed = sum(not row["ok"] for row in rows)
    print(f"{failed} of {len(rows)} out of bounds")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
