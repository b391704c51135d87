"""Textbook data with default settings, compared with lme4.

Run: python -m benchmarks.textbook [--data DIR]

Residual sd, standard deviations of the effects and fixed effects of classical data sets, each
fitted by ``nghvi.mixed(formula, data)`` and nothing else, in four units: as they are,
y * 1000, y / 1000, and with every number among the inputs moved by 1000. Required of every fit: the
posterior median of the residual sd is within 10 % of lme4's REML estimate, and no 95 % interval
excludes lme4's estimate. Estimates of zero (lme4's boundary) are inside no interval of an sd and
are not counted. With very few groups a posterior of an sd is skewed and its mean well above REML's
estimate: medians are compared.

Data and REML fits come from R in the same run (packages lme4 and nlme). Without R the stored fits
of DIR (``reference_fits/*.json`` with ``grouped/*.csv``; some by maximum likelihood) are used, and
from statsmodels, if installed, its Grunfeld data with its own REML fit.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import nghvi
from nghvi.paper.studies.facts import about

CLASSICS = {
    "Oxboys": "height ~ age + (1 + age | Subject)",
    "Machines": "score ~ Machine + (1 + Machine | Worker)",
    "Rail": "travel ~ 1 + (1 | Rail)",
    "BodyWeight": "weight ~ Time * Diet + (1 + Time | Rat)",
    "Pastes": "strength ~ 1 + (1 | sample)",
    "Orthodont": "distance ~ age * Sex + (1 + age | Subject)",
    "Pixel": "pixel ~ day + (1 | Dog)",
    "ergoStool": "effort ~ Type + (1 | Subject)",
    "Dyestuff": "Yield ~ 1 + (1 | Batch)",
    "Penicillin": "diameter ~ 1 + (1 | sample)",
    "sleepstudy": "Reaction ~ Days + (1 + Days | Subject)",
    "Oats": "yield ~ nitro + (1 | Block)",
    "ChickWeight": "weight ~ Time + (1 + Time | Chick)",
    "Orange": "circumference ~ age + (1 | Tree)",
    "CO2": "uptake ~ conc + Type + (1 | Plant)",
    "RatPupWeight": "weight ~ sex + Treatment + Lsize + (1 | Litter)",
    "MathAchieve": "MathAch ~ SES + (1 + SES | School)",
    "Dialyzer": "rate ~ pressure + (1 | Subject)",
}
STORED = {
    "Exam": "Exam_slope_ML",
    "radon_mn": "radon_mn_intercept_ML",
    "sleepstudy": "sleepstudy_slope_REML",
    "Orthodont": "Orthodont_intercept_ML",
}
"""Fits of DIR by data set: all of them without R; with R, Exam and radon are fitted again."""
SHIFT = 1000.0
CLOSE = 0.10

R_PROGRAM = """
args <- commandArgs(TRUE); suppressMessages({library(nlme); library(lme4)})
jobs <- read.csv(file.path(args[1], "jobs.csv"), colClasses="character")
for (i in seq_len(nrow(jobs))) {
  name <- jobs$name[i]; formula <- as.formula(jobs$formula[i])
  if (jobs$file[i] != "") data <- read.csv(jobs$file[i]) else {
    data <- as.data.frame(get(name)); data <- data[all.vars(formula)]
    for (j in seq_along(data)) if (is.factor(data[[j]])) data[[j]] <- paste0("l", data[[j]])
  }
  data <- na.omit(data[all.vars(formula)])
  fit <- suppressMessages(suppressWarnings(lmer(formula, data)))
  parts <- as.data.frame(VarCorr(fit)); sds <- parts[is.na(parts$var2) & !is.na(parts$var1), ]
  found <- rbind(
    data.frame(kind="fixed", name=names(fixef(fit)), estimate=fixef(fit)),
    data.frame(kind="effects", name=sds$var1, estimate=sds$sdcor),
    data.frame(kind="residual", name="residual", estimate=sigma(fit)))
  write.csv(data, file.path(args[1], paste0(name, ".data.csv")), row.names=FALSE)
  write.csv(found, file.path(args[1], paste0(name, ".fit.csv")), row.names=FALSE)
}
cat("lme4", as.character(packageVersion("lme4")), R.version.string)
"""


class Case(NamedTuple):
    """A data set with a reference fit."""

    name: str
    formula: str
    data: pd.DataFrame
    fit: pd.DataFrame
    """Rows kind (fixed, effects, residual), name, estimate; in the order of the model's terms."""
    software: str

    @property
    def response(self) -> str:
        return self.formula.split("~")[0].strip()

    def in_other_units(self) -> Iterator[tuple[str, "Case"]]:
        """The same facts in four units; intercepts are left out where they are moved."""
        yield "as they are", self
        for label, factor in (("y * 1000", 1000.0), ("y / 1000", 0.001)):
            data = self.data.assign(**{self.response: factor * self.data[self.response]})
            yield (
                label,
                self._replace(
                    data=data, fit=self.fit.assign(estimate=factor * self.fit["estimate"])
                ),
            )
        group = self.formula.split("|")[1].strip(" )")
        numbers = [
            c
            for c in self.data.select_dtypes("number").columns
            if c not in (self.response, group) and c in self.formula
        ]
        # A moved factor of a product changes the other factor's coefficient too.
        if numbers and "*" not in self.formula:
            moved = self.data.assign(**{c: self.data[c] + SHIFT for c in numbers})
            stays = ~self.fit["name"].isin(["(Intercept)", "Intercept"])
            yield f"x + {SHIFT:g}", self._replace(data=moved, fit=self.fit[stays])


def from_r(directory: pathlib.Path | None) -> Iterator[Case]:
    """Data sets of R's packages and of the directory, with REML fits of this run."""
    jobs = [(name, formula, "") for name, formula in CLASSICS.items()]
    if directory is not None:
        for name in ("Exam", "radon_mn"):
            stored = json.loads((directory / "reference_fits" / f"{STORED[name]}.json").read_text())
            jobs.append((name, stored["formula"], str(directory / "grouped" / f"{name}.csv")))
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        (folder / "fit.R").write_text(R_PROGRAM)
        columns = ["name", "formula", "file"]
        pd.DataFrame(jobs, columns=columns).to_csv(folder / "jobs.csv", index=False)
        command = ["Rscript", str(folder / "fit.R"), place]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"R failed, are lme4 and nlme installed?\n{done.stderr[-2000:]}")
        for name, formula, _ in jobs:
            data, fit = (pd.read_csv(folder / f"{name}.{kind}.csv") for kind in ("data", "fit"))
            yield Case(name, formula, data, fit, done.stdout.strip())


def from_files(directory: pathlib.Path) -> Iterator[Case]:
    """Stored fits."""
    for name, stem in STORED.items():
        stored = json.loads((directory / "reference_fits" / f"{stem}.json").read_text())
        data = pd.read_csv(directory / "grouped" / f"{name}.csv")
        if name == "Orthodont":
            data["Sex"] = pd.Categorical(data["Sex"], ["Male", "Female"])
        sds = [c for c in stored["variance_components"] if c["var1"] and not c["var2"]]
        rows = [
            *(("fixed", each["term"], each["estimate"]) for each in stored["fixed"]),
            *(("effects", each["var1"], each["sdcor"]) for each in sds),
            ("residual", "residual", stored["sigma"]),
        ]
        fit = pd.DataFrame(rows, columns=["kind", "name", "estimate"])
        yield Case(name, stored["formula"], data, fit, f"{stored['software']}, {stored['method']}")


def from_statsmodels() -> Iterator[Case]:
    """Grunfeld's investment data, which statsmodels brings along."""
    try:
        import statsmodels
        import statsmodels.formula.api as api
        from statsmodels.datasets import grunfeld
    except ImportError:
        print("statsmodels is not installed: its data are left out")
        return
    data = grunfeld.load_pandas().data
    fixed = "invest ~ value + capital"
    fit = api.mixedlm(fixed, data, groups=data["firm"]).fit(reml=True)
    rows = [
        *(("fixed", name, value) for name, value in fit.fe_params.items()),
        ("effects", "Intercept", float(np.sqrt(fit.cov_re.iloc[0, 0]))),
        ("residual", "residual", float(np.sqrt(fit.scale))),
    ]
    table = pd.DataFrame(rows, columns=["kind", "name", "estimate"])
    software = f"statsmodels {statsmodels.__version__}"
    yield Case("Grunfeld", f"{fixed} + (1 | firm)", data, table, software)


def compare(case: Case) -> list[dict[str, Any]]:
    """One row per unit: residual sd, and how many intervals exclude the reference."""
    whole, rows = case.fit, []
    for unit, variant in case.in_other_units():
        begun = time.perf_counter()
        model = nghvi.mixed(variant.formula, variant.data)
        seconds = time.perf_counter() - begun
        draws = model.posterior_draws(8000)
        sds = np.sqrt(np.einsum("saa->sa", draws["effects_cov"]))
        noise = np.sqrt(draws["noise_var"])[:, None]
        values = dict(
            zip(whole.index, np.concatenate([draws["coef"], sds, noise], axis=1).T, strict=True)
        )
        parameters = []
        for index, reference in variant.fit.iterrows():
            low, middle, high = np.quantile(values[index], [0.025, 0.5, 0.975])
            estimate = float(reference["estimate"])
            parameters.append(
                {
                    "kind": reference["kind"],
                    "name": reference["name"],
                    "reference": estimate,
                    "median": middle,
                    "low": low,
                    "high": high,
                    "boundary": bool(reference["kind"] == "effects" and estimate == 0),
                    "inside": bool(low <= estimate <= high),
                }
            )
        residual = parameters[-1]
        excluded = [p["name"] for p in parameters if not p["inside"] and not p["boundary"]]
        ratio = residual["median"] / residual["reference"]
        rows.append(
            {
                "data": case.name,
                "unit": unit,
                "software": case.software,
                "groups": len(model.groups_),
                "rows": len(variant.data),
                "residual_reference": residual["reference"],
                "residual_median": residual["median"],
                "ratio": ratio,
                "parameters": parameters,
                "excluded": excluded,
                "converged": bool(model.converged_),
                "seconds": seconds,
                "ok": bool(abs(ratio - 1) <= CLOSE and not excluded),
            }
        )
    return rows


def cases(directory: pathlib.Path | None) -> Iterator[Case]:
    """All cases that are available here."""
    if shutil.which("Rscript"):
        yield from from_r(directory)
    else:
        print("R is not installed: its data sets are left out (r-base-core, r-cran-lme4, -nlme)")
        if directory:
            yield from from_files(directory)
    yield from from_statsmodels()


def main() -> int:
    """Run all; exit code 1 if a fit is out of bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default="../shared/data")
    parser.add_argument("--only", nargs="+", default=None, help="names of data sets")
    chosen = parser.parse_args()
    directory = chosen.data if chosen.data.is_dir() else None
    if directory is None:
        print(f"no data in {chosen.data}: give --data DIR for stored fits")
    rows: list[dict[str, Any]] = []
    print(f"{'data':13s}{'unit':13s}{'groups':>7s}{'rows':>6s}{'residual':>12s}{'REML':>12s} ratio")
    for case in cases(directory):
        if chosen.only and case.name not in chosen.only:
            continue
        for row in compare(case):
            rows.append(row)
            said = "" if row["ok"] else f"  <-- {', '.join(row['excluded']) or 'residual sd'}"
            said += "" if row["converged"] else "  (not converged)"
            print(
                f"{row['data']:13s}{row['unit']:13s}{row['groups']:7d}{row['rows']:6d}"
                f"{row['residual_median']:12.5g}{row['residual_reference']:12.5g}"
                f" {row['ratio']:.3f}{said}",
                flush=True,
            )
    good = sum(row["ok"] for row in rows)
    names = len({row["data"] for row in rows})
    print(f"{good} of {len(rows)} fits of {names} data sets within bounds")
    if not chosen.only:
        results = pathlib.Path(__file__).parent / "results" / "textbook.json"
        results.write_text(json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    return int(good < len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
