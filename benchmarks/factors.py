"""Several grouping factors: InstEval compared with peers, and time by rows in simulations.

InstEval (73,421 ratings, 2,972 students, 1,128 lecturers, 28 departments by kind of service) comes
from R with lme4, which fits it in the same run by maximum likelihood, with two crossed factors and
with three. In simulated designs every student rates 10 lecturers at random, and a lecturer has 100
ratings on average. *first*: a fit in a fresh process, compilation included; *second*: the same fit
once more. Seconds are those of the clock, and of the processor (user and system), which a busy
machine does not change much.

Run: python -m benchmarks.factors [--rows 10000 100000 1000000] [--no-insteval] [--gpboost PYTHON]

``--gpboost``: an interpreter that has GPBoost, which then fits the same tables, too. Rows of
designs that are not asked for stay as they are in the results.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any, cast

import numpy as np
import pandas as pd

from nghvi.paper.studies.facts import about

RESULTS = pathlib.Path(__file__).parent / "results" / "factors.json"
FACTORS = {"insteval": ("s", "d"), "insteval_three": ("s", "d", "dept_service")}
FEW_ROWS = 5
RATINGS, RATINGS_A_LECTURER = 10, 100
LME4 = """
suppressMessages(library(lme4))
data(InstEval)
rows <- with(InstEval, data.frame(y = y, service = as.integer(service) - 1,
                                  s = as.integer(as.character(s)), d = as.integer(as.character(d)),
                                  dept_service = paste(dept, service, sep = ":")))
write.csv(rows, "{path}", row.names = FALSE)
for (formula in c({formulas})) {{
  seconds <- system.time(m <- lmer(as.formula(formula), rows, REML = FALSE))
  sds <- as.data.frame(VarCorr(m))
  sds <- sds[sds$grp != "Residual", ]
  each <- paste(sprintf(', "%s": %.8f', sds$grp, sds$sdcor), collapse = "")
  form <- '{{"seconds": %f, "processor": %f, "intercept": %.8f, "service": %.8f%s}}\n'
  cat(sprintf(form, seconds[["elapsed"]], seconds[["user.self"]] + seconds[["sys.self"]],
              fixef(m)[1], fixef(m)[2], each))
}}
"""
GPBOOST = """
import json, resource, sys, time
import gpboost, numpy, pandas
table = pandas.read_csv(sys.argv[1])
fixed = numpy.column_stack([numpy.ones(len(table)), table["service"]])
begun, used = time.perf_counter(), time.process_time()
model = gpboost.GPModel(group_data=table[sys.argv[2].split(",")], likelihood="gaussian")
model.fit(y=table["y"].to_numpy(float), X=fixed)
seconds, processor = time.perf_counter() - begun, time.process_time() - used
found = numpy.asarray(model.get_cov_pars(), float)
print(json.dumps({"seconds": seconds, "processor": processor,
                  "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2,
                  "variances": found.ravel().tolist(),
                  "coef": numpy.ravel(numpy.asarray(model.get_coef())).tolist()}))
"""


def simulated(rows: int) -> pd.DataFrame:
    """Ratings of random lecturers, as many of each on average whatever the number of rows."""
    rng = np.random.default_rng(0)
    students, lecturers = rows // RATINGS, max(20, rows // RATINGS_A_LECTURER)
    s, d = np.repeat(np.arange(students), RATINGS), rng.integers(0, lecturers, rows)
    service = rng.integers(0, 2, rows)
    y = 3 - 0.1 * service + 0.3 * rng.normal(size=students)[s] + 0.5 * rng.normal(size=lecturers)[d]
    return pd.DataFrame({"y": y + rng.normal(size=rows), "service": service, "s": s, "d": d})


def formula_of(factors: tuple[str, ...]) -> str:
    return " + ".join(["y ~ service", *(f"(1 | {factor})" for factor in factors)])


def measured(table: pd.DataFrame, factors: tuple[str, ...]) -> dict[str, Any]:
    """Two default fits in this process, and what is asked for after a fit."""
    import nghvi

    seconds, processor = [], []
    for _ in range(2):
        begun, used = time.perf_counter(), time.process_time()
        model = nghvi.mixed(formula_of(factors), table)
        seconds.append(time.perf_counter() - begun)
        processor.append(time.process_time() - used)
    summary = model.summary()
    used = time.process_time()
    model.group_effects("d")
    effects_processor = time.process_time() - used
    predicted = []
    for _ in range(2):
        used = time.process_time()
        model.predict(table.head(FEW_ROWS))
        predicted.append(time.process_time() - used)
    return {
        "rows": len(table),
        "levels": [len(levels) for levels in cast(dict, model.groups_).values()],
        "first": seconds[0],
        "second": seconds[1],
        "first_processor": processor[0],
        "second_processor": processor[1],
        "group_effects_processor": effects_processor,
        "predict_few_processor": predicted[1],
        "elbo_se": model.elbo_se_,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2,
        "status": model.status_,
        "mean": summary["mean"].to_dict(),
        "sd": summary["sd"].to_dict(),
    }


def apart(path: pathlib.Path, factors: tuple[str, ...]) -> dict[str, Any]:
    """The same in its own process, which finds no compiled programs."""
    command = [sys.executable, "-m", "benchmarks.factors", "--table", str(path)]
    command += ["--factors", *factors]
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"NGHVI_CACHE": empty}
        found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(found.stdout)


def by_gpboost(python: str, path: pathlib.Path, factors: tuple[str, ...]) -> dict[str, Any]:
    command = [python, "-c", GPBOOST, str(path), ",".join(factors)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def insteval(directory: pathlib.Path, gpboost: str | None) -> dict[str, Any]:
    """Both models of InstEval by every program."""
    path = directory / "insteval.csv"
    formulas = ", ".join(f'"{formula_of(factors)}"' for factors in FACTORS.values())
    script = LME4.format(path=path, formulas=formulas)
    found = subprocess.run(["Rscript", "-e", script], check=True, capture_output=True, text=True)
    rows = {}
    for line, (name, factors) in zip(found.stdout.splitlines(), FACTORS.items(), strict=True):
        rows[name] = {"about": about(), "lme4": json.loads(line), "nghvi": apart(path, factors)}
        if gpboost:
            rows[name]["gpboost"] = by_gpboost(gpboost, path, factors)
        print(json.dumps(rows[name]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--no-insteval", action="store_true")
    parser.add_argument("--gpboost", help="an interpreter that has GPBoost")
    parser.add_argument("--table", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--factors", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.table is not None:
        print(json.dumps(measured(pd.read_csv(chosen.table), tuple(chosen.factors))))
        return
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found["about"] = about()
    with tempfile.TemporaryDirectory() as directory:
        if not chosen.no_insteval:
            found |= insteval(pathlib.Path(directory), chosen.gpboost)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        before = found.get("simulated", [])
        kept = {row["rows"]: row for row in before if "second_processor" in row}
        for rows in chosen.rows:
            path = pathlib.Path(directory) / f"{rows}.csv"
            simulated(rows).to_csv(path, index=False)
            kept[rows] = {"about": about(), **apart(path, ("s", "d"))}
            if chosen.gpboost:
                kept[rows]["gpboost"] = by_gpboost(chosen.gpboost, path, ("s", "d"))
            print(json.dumps(kept[rows]), flush=True)
            found["simulated"] = [kept[number] for number in sorted(kept)]
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
