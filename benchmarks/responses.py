"""Counts, shares and classes compared with glmmTMB and NUTS: ``python -m benchmarks.responses``.

Owls and epil (negative binomial), wine (ordered classes; there R has ``ordinal::clmm``) and cbpp
(binomial) come with long MCMC posteriors (``--reference DIR``), to which errors refer. A Poisson
model of 100,000 rows in 5,000 groups is simulated, and so are binary data in which most persons
have only zeros or only ones (``benchmarks.longitudinal``, whose stored NUTS posterior is the
reference): Laplace's approximation, on which glmmTMB rests, fails there.

Every method runs in its own process. *first*: the first fit, compilation included (no cache
of compiled programs); *warm*: the same fit once more (R compiles nothing). CPU seconds are
recorded as well. *mean error*: the largest |mean - reference mean| / reference sd over
coefficients, cutpoints, sds of effects and dispersion, with estimates for R; *sd ratio*: that of
coefficients and cutpoints, with standard errors for R. If there is no long posterior, errors refer
to the draws of NUTS in this run. A case that is run replaces its row in ``results/responses.json``.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

RESULTS = pathlib.Path(__file__).parent / "results" / "responses.json"
REAL = ("owls_negbin", "epil_negbin", "wine_ordered_logit", "cbpp_binomial")
ROWS, GROUPS = 100_000, 5_000
POISSON, BINARY = "poisson_5000_groups", ("logit", "medium", 1)
FAMILIES = {"negative-binomial": "nbinom2", "poisson": "poisson", "binomial": "binomial"}
"""What glmmTMB calls them."""

R_PROGRAM = """
args <- commandArgs(TRUE)
case <- jsonlite::fromJSON(file.path(args[1], "case.json"))
rows <- read.csv(file.path(args[1], "rows.csv"))
rows[[case$factor]] <- factor(rows[[case$factor]])
formula <- as.formula(case$formula)
ordered <- case$response == "ordered-logit"
package <- if (ordered) "ordinal" else "glmmTMB"
suppressMessages(library(package, character.only = TRUE))
if (ordered) rows[[case$y]] <- factor(rows[[case$y]], ordered = TRUE)
fit <- function() if (ordered) clmm(formula, data = rows, nAGQ = case$nodes) else
  glmmTMB(formula, data = rows, family = case$family)
first <- system.time(m <- fit()); warm <- system.time(m <- fit())
if (ordered) {
  table <- summary(m)$coefficients
  cuts <- grepl("|", rownames(table), fixed = TRUE)
  names <- c(paste0("cutpoint_", seq_len(sum(cuts))), rownames(table)[!cuts])
  found <- setNames(lapply(seq_along(names), function(i) table[i, 1:2]), names)
  sds <- list(c(sqrt(as.numeric(VarCorr(m)[[1]][1, 1])), NA))
  names(sds) <- paste0("sd(", case$factor, ")"); found <- c(found, sds)
} else {
  table <- summary(m)$coefficients$cond
  names <- sub("(Intercept)", "Intercept", rownames(table), fixed = TRUE)
  found <- setNames(lapply(seq_along(names), function(i) table[i, 1:2]), names)
  cov <- VarCorr(m)$cond[[1]]; sds <- attr(cov, "stddev")
  terms <- sub("(Intercept)", "Intercept", names(sds), fixed = TRUE)
  label <- if (length(sds) == 1) case$factor else paste0(case$factor, ":", terms)
  for (i in seq_along(sds)) found[[paste0("sd(", label[i], ")")]] <- c(sds[[i]], NA)
  if (case$response == "negative-binomial") found[["1/sqrt(size)"]] <- c(1 / sqrt(sigma(m)), NA)
}
seconds <- function(t) t[["elapsed"]]
cpu <- function(t) t[["user.self"]] + t[["sys.self"]]
cat(jsonlite::toJSON(list(
  software = paste(package, packageVersion(package)), first = seconds(first), warm = seconds(warm),
  first_cpu = cpu(first), warm_cpu = cpu(warm), parameters = lapply(found, unname)),
  auto_unbox = TRUE, digits = 10))
"""


class Case(NamedTuple):
    """A data set with a model, and its posterior where that is known."""

    facts: dict
    """As those of the references."""
    rows: pd.DataFrame
    posterior: dict[str, tuple[float, float]] | None
    sampled: dict | None = None
    """What a kept NUTS run took, where none is made."""
    centred: bool = False

    def stated(self) -> dict[str, Any]:
        """What the programs of the other methods read."""
        facts = self.facts
        (term,) = facts["random"]
        return {
            "formula": facts["formula"],
            "response": facts["response"],
            "family": FAMILIES.get(facts["response"]),
            "y": facts["y"],
            "design_columns": facts["design_columns"],
            "factor": term["factor"],
            "groups": int(self.rows[term["factor"]].nunique()),
            "classes": int(self.rows[facts["y"]].nunique()),
            "offset": facts.get("offset_column"),
            "trials": facts.get("trials_column"),
            "centred": self.centred,
            "nodes": 10,
        }


def references(folder: pathlib.Path) -> Iterator[Case]:
    """Real data with long MCMC posteriors."""
    for name in REAL:
        facts = json.loads((folder / f"{name}.json").read_text())
        rows = pd.read_csv(folder / facts["design_file"])
        if facts["response"] == "ordered-logit":
            facts["formula"] = facts["formula"].replace("1 |", "1|")
        known = pd.read_csv(folder / f"{name}.csv").set_index("parameter")
        yield Case(facts, rows, {n: (r["mean"], r["sd"]) for n, r in known.iterrows()})


def simulated_poisson() -> Case:
    """Twenty rows per group, 1.6 events on average."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(GROUPS), ROWS // GROUPS)
    rows = pd.DataFrame({"x1": rng.standard_normal(ROWS), "x2": rng.standard_normal(GROUPS)[group]})
    effects = 0.6 * rng.standard_normal(GROUPS)[group]
    rows["y"] = rng.poisson(np.exp(0.5 + 0.3 * rows["x1"] - 0.2 * rows["x2"] + effects))
    facts = {
        "name": POISSON,
        "response": "poisson",
        "link": "log",
        "formula": "y ~ x1 + x2 + (1 | group)",
        "y": "y",
        "design_columns": ["Intercept", "x1", "x2"],
        "random": [{"factor": "group", "coefficients": ["Intercept"]}],
    }
    return Case(facts, rows.assign(group=group), None, centred=True)


def binary() -> Case:
    """Persons with large correlated effects of intercept and time, and their kept posterior."""
    from benchmarks import longitudinal, longitudinal_reference

    problem = longitudinal.simulate(*BINARY)
    kept = longitudinal_reference.load_or_run(problem, longitudinal.PRIORS)
    found = {n: (p["mean"], p["sd"]) for n, p in kept["parameters"].items()}
    terms = {"intercept": "Intercept", "x1": "x1", "x2": "x2", "x3": "x3"}
    posterior = {name: found[f"coef {own}"] for own, name in terms.items()}
    posterior |= {f"sd(g:{terms[own]})": found[f"sd {own}"] for own in ("intercept", "x2")}
    posterior["cor(g:Intercept,x2)"] = found["correlation"]
    facts = {
        "name": "binary_" + "_".join(map(str, BINARY)),
        "response": "binomial",
        "link": BINARY[0],
        "formula": "y ~ x1 + x2 + x3 + (1 + x2 | g)",
        "y": "y",
        "design_columns": list(terms.values()),
        "random": [{"factor": "g", "coefficients": ["Intercept", "x2"]}],
    }
    rows = problem.frame().assign(y=problem.y)
    parts = {k: kept[k] for k in ("seconds", "chains", "draws", "warmup")}
    return Case(facts, rows, posterior, parts)


def by_nghvi(folder: pathlib.Path) -> None:
    """Two default fits with the stated priors; one line of JSON."""
    import nghvi
    from benchmarks.response_calibration import reference_name, response_of
    from nghvi.priors import HalfT, HuangWand, Priors

    facts = json.loads((folder / "facts.json").read_text())
    rows = pd.read_csv(folder / "rows.csv")
    correlated = len(facts["random"][0]["coefficients"]) > 1
    priors = Priors(coef_sd=10.0, effects=HuangWand() if correlated else HalfT())
    taken = []
    for seed in (0, 1):
        begun, busy = time.perf_counter(), time.process_time()
        model = nghvi.mixed(
            facts["formula"],
            rows,
            response=response_of(facts),
            priors=priors,
            standardize=False,
            random_state=seed,
        )
        summary = model.summary()
        taken.append((time.perf_counter() - begun, time.process_time() - busy))
    moments = zip(summary.index, summary["mean"], summary["sd"], strict=True)
    said = {
        "first": taken[0][0],
        "first_cpu": taken[0][1],
        "warm": taken[1][0],
        "warm_cpu": taken[1][1],
        "converged": bool(model.converged_),
        "k_hat": float(model.k_hat_),
        "parameters": {reference_name(facts, n): (m, s) for n, m, s in moments},
    }
    print(json.dumps(said))


def compared(found: dict, posterior: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Errors of one method, and what it took."""
    errors, ratios = {}, {}
    for name, (mean, sd) in found["parameters"].items():
        if name not in posterior:
            continue
        centre, spread = posterior[name]
        errors[name] = round((mean - centre) / spread, 4)
        if isinstance(sd, float) and not name.startswith(("sd(", "cor(", "1/sqrt")):
            ratios[name] = round(sd / spread, 4)
    worst = max(errors, key=lambda name: abs(errors[name]))
    times = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in found.items()
        if name != "parameters"
    }
    sds = {n: m / posterior[n][0] for n, (m, _) in found["parameters"].items() if "sd(" in n}
    return {
        **times,
        "mean_error": abs(errors[worst]),
        "worst": worst,
        "sd_ratio": [min(ratios.values()), max(ratios.values())],
        "effects_sd_ratio": {name: round(value, 3) for name, value in sds.items()},
        "mean_errors": errors,
    }


def measured(case: Case) -> dict[str, Any]:
    """One row: all methods on a case."""
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        case.rows.to_csv(folder / "rows.csv", index=False)
        (folder / "case.json").write_text(json.dumps(case.stated()))
        (folder / "facts.json").write_text(json.dumps(case.facts))
        (folder / "fit.R").write_text(R_PROGRAM)
        commands = {
            "nghvi": [sys.executable, "-m", "benchmarks.responses", "--fit", place],
            "R": ["Rscript", str(folder / "fit.R"), place],
            "NUTS": [sys.executable, "-m", "benchmarks.response_nuts", place],
        }
        if case.sampled is not None:
            del commands["NUTS"]
        for method, command in commands.items():
            cold = {**os.environ, "NGHVI_CACHE": "off"}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=cold)
            if done.returncode:
                raise SystemExit(f"{method} failed on {case.facts['name']}:\n{done.stderr[-2000:]}")
            found[method] = json.loads(done.stdout)
            print(f"{case.facts['name']} {method}: {found[method]['warm']:.2f} s", flush=True)
    posterior = case.posterior or found["NUTS"]["parameters"]
    row = {method: compared(result, posterior) for method, result in found.items()}
    if case.sampled is not None:
        row["NUTS"] = case.sampled
    return {"case": case.facts["name"], "rows": len(case.rows), **row}


def cases(folder: pathlib.Path) -> Iterator[Case]:
    """All of them; real data only where they are."""
    if folder.is_dir():
        yield from references(folder)
    else:
        print(f"no reference posteriors in {folder}: give --reference DIR")
    yield simulated_poisson()
    yield binary()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reference", type=pathlib.Path, default="../shared/data/mcmc_reference")
    parser.add_argument("--only", default="", help="the cases whose name contains this")
    parser.add_argument("--fit", type=pathlib.Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.fit is not None:
        by_nghvi(chosen.fit)
        return
    from nghvi.paper.studies.facts import about

    for case in cases(chosen.reference):
        if chosen.only in case.facts["name"]:
            facts, row = about(), measured(case)
            held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
            rows = {row["case"]: row for row in held["rows"]} | {
                row["case"]: row | {"about": facts}
            }
            RESULTS.write_text(json.dumps({"rows": list(rows.values())}, indent=1) + "\n")


if __name__ == "__main__":
    main()
