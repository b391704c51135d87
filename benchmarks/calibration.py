"""Posterior means and sds against long MCMC runs: ``python -m benchmarks.calibration``.

Every case of a reference folder (design, priors and posterior moments as JSON and CSV) is fitted
with the default recipe and no settings of its own, for several seeds. Printed for each: the
largest |mean - reference mean| / reference sd, the smallest and largest ratio of sds over
coefficients, log effect variances and log noise variance, and the share of group effects whose
mean is within 0.1 sd and whose sd ratio is within [0.95, 1.05].
"""

import argparse
import dataclasses
import json
import pathlib
import re
import time
from collections.abc import Iterator

import numpy as np
import pandas as pd

import nghvi
from nghvi.estimators._base import MixedEstimator
from nghvi.paper.studies.facts import about
from nghvi.priors import InverseGamma, Priors, WishartPrecision

LIMITS = {"gaussian": (0.08, 0.90, 1.05), "probit": (0.10, 0.93, 1.07)}


@dataclasses.dataclass
class Case:
    """One reference posterior and the data it belongs to."""

    name: str
    facts: dict
    x: pd.DataFrame
    y: np.ndarray
    reference: pd.DataFrame
    effects: pd.DataFrame

    @property
    def priors(self) -> Priors:
        """The priors named in the facts."""
        stated = self.facts["prior"]["Omega"]
        wishart = re.search(r"scale=([\d.]+)", stated)
        effects = WishartPrecision(float(wishart[1])) if wishart else InverseGamma(1.01, 1.01)
        return Priors(coef_sd=10.0, noise=InverseGamma(1.01, 1.01), effects=effects)


def load_cases(folder: pathlib.Path) -> Iterator[Case]:
    """All cases, smallest first."""
    finance = None
    found = [(json.loads(p.read_text()), p) for p in sorted(folder.glob("*.json"))]
    for facts, path in sorted(found, key=lambda pair: pair[0]["n"]):
        if facts["design"]:
            frame = pd.read_csv(folder / facts["design"])
        elif facts["name"].startswith("finance"):
            finance = _finance(folder.parent / "finance") if finance is None else finance
            frame = finance
        else:
            raw = pd.read_csv(folder.parent / "grouped" / "InstEval.csv")
            frame = raw.rename(columns={facts["group"]: "group"})
        fixed = [c for c in facts["fixed"] if c != "const"]
        stem = path.with_suffix("").name
        yield Case(
            stem,
            facts,
            frame[["group", *fixed]],
            frame["y"].to_numpy(),
            pd.read_csv(folder / f"{stem}.csv").set_index("parameter"),
            pd.read_csv(folder / f"{stem}_alpha.csv", dtype={"group": str}),
        )


def _finance(folder: pathlib.Path) -> pd.DataFrame:
    panel = pd.read_parquet(folder / "stock_panel_sic_2005_2019.parquet")
    factors = pd.read_csv(folder / "ff_factors_vix_monthly_2005_2019.csv")
    moments = json.loads((folder / "standardization.json").read_text())
    month = "month" if "month" in factors else factors.columns[0]
    panel["month"] = panel["month"].astype(str).str[:7]
    factors["month"] = factors[month].astype(str).str[:7]
    frame = panel.merge(factors, on="month")
    frame = frame[frame["month"] <= "2014-12"]
    out = {"group": frame["sic"].to_numpy()}
    for name, column, target in [
        ("mkt_rf", "mkt_rf", "z_mkt_rf"),
        ("smb", "smb", "z_smb"),
        ("hml", "hml", "z_hml"),
        ("ret", "ret", "y"),
    ]:
        centre, scale = moments["mean_sd"][name]
        out[target] = (frame[column].to_numpy() - centre) / scale
    return pd.DataFrame(out)


def check(case: Case, seed: int) -> dict:
    """Fit one case and compare."""
    random = ["intercept" if c == "const" else c for c in case.facts["random"]]
    kind = case.facts["family"]
    estimator = nghvi.MixedRegressor if kind == "gaussian" else nghvi.MixedClassifier
    begun = time.perf_counter()
    fitted = estimator(
        "group", random=random, priors=case.priors, standardize=False, random_state=seed
    ).fit(case.x, case.y)
    seconds = time.perf_counter() - begun
    drawn = fitted.posterior_draws(4000, seed)
    columns = {f"beta[{n}]": drawn["coef"][:, j] for j, n in enumerate(case.facts["fixed"])}
    for j, name in enumerate(case.facts["random"]):
        columns[f"log Omega[{name},{name}]"] = np.log(drawn["effects_cov"][:, j, j])
    if kind == "gaussian":
        columns["log sigma2_eps"] = np.log(drawn["noise_var"])
    reference = case.reference.loc[list(columns)]
    mean = np.array([v.mean() for v in columns.values()])
    sd = np.array([v.std(ddof=1) for v in columns.values()])
    away = np.abs(mean - reference["mean"]) / reference["sd"]
    ratio = sd / reference["sd"].to_numpy()
    limit, low, high = LIMITS[kind]
    effects_share = _effects_share(fitted, case)
    return {
        "case": case.name,
        "seed": seed,
        "mean_error": float(away.max()),
        "sd_ratio_min": float(ratio.min()),
        "sd_ratio_max": float(ratio.max()),
        "effects_ok": effects_share,
        "converged": bool(fitted.converged_),
        "k_hat": fitted.k_hat_,
        "seconds": seconds,
        "ok": bool(
            away.max() <= limit
            and low <= ratio.min()
            and ratio.max() <= high
            and fitted.converged_
            and effects_share >= 0.99
        ),
    }


def _effects_share(fitted: MixedEstimator, case: Case) -> float:
    """Share of groups whose effects' means and sds agree with the reference."""
    table = fitted.group_effects()
    table.index = table.index.astype(str)
    reference = case.effects.copy()
    reference.index = _group_labels(reference["group"], table.index)
    good = np.ones(len(reference), bool)
    for name in case.facts["random"]:
        ours = "intercept" if name == "const" else name
        found = table.loc[reference.index]
        away = np.abs(found[f"{ours}_mean"] - reference[f"mean_{name}"]) / reference[f"sd_{name}"]
        ratio = found[f"{ours}_sd"] / reference[f"sd_{name}"]
        good &= ((away <= 0.1) & (ratio >= 0.95) & (ratio <= 1.05)).to_numpy()
    return float(good.mean())


def _group_labels(labels: pd.Series, fitted: pd.Index) -> list[str]:
    """Designs number the groups in the order of the reference's labels."""
    own = labels.astype(str)
    return list(own) if set(own) <= set(fitted) else [str(k) for k in range(len(labels))]


def arguments(about_it: str, folder: str) -> argparse.Namespace | None:
    """What the command line chooses; None where there are no reference posteriors."""
    parser = argparse.ArgumentParser(description=about_it.splitlines()[0])
    parser.add_argument("--reference", type=pathlib.Path, default=f"../shared/data/{folder}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    chosen = parser.parse_args()
    if chosen.reference.is_dir():
        return chosen
    print(f"no reference posteriors in {chosen.reference}: give --reference DIR")
    return None


def main() -> int:
    """Run all cases; exit code 1 if one is out of bounds."""
    chosen = arguments(__doc__, "gibbs_reference")
    if chosen is None:
        return 0
    rows = []
    print(f"{'case':34s} seed  mean/sd   sd ratio      effects  conv   k-hat  seconds")
    for case in load_cases(chosen.reference):
        if chosen.only not in case.name:
            continue
        for seed in range(chosen.seeds):
            row = check(case, seed)
            rows.append(row)
            print(
                f"{row['case']:34s} {seed:3d}   {row['mean_error']:.3f}   "
                f"[{row['sd_ratio_min']:.3f}, {row['sd_ratio_max']:.3f}]  "
                f"{100 * row['effects_ok']:6.1f}%  {row['converged']!s:5s}  {row['k_hat']:.2f}  "
                f"{row['seconds']:6.2f}  {'' if row['ok'] else '<-- out of bounds'}",
                flush=True,
            )
    results = pathlib.Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    if not chosen.only:
        report = {"about": about(), "rows": rows}
        (results / "calibration.json").write_text(json.dumps(report, indent=1) + "\n")
    bad = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - bad} of {len(rows)} fits within bounds")
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
