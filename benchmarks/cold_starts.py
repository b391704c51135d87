"""What a user waits for: fresh processes, folds of a search, and memory over many fits.

* starts: a fit in a process with an empty folder of programs, in the next process, and again in
  that one, import included; beside statsmodels and GPBoost where they are installed, and lme4 and
  glmmTMB where R has them.
* folds: GridSearchCV with five folds of groups and six settings on 7,000 rows, twice.
* memory: resident memory over 200 fits of 60 shapes in one process.

Run: python -m benchmarks.cold_starts [starts] [folds] [memory]
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
import pandas as pd

from nghvi.paper.studies.exhibits import markdown
from nghvi.paper.studies.facts import about

RESULTS = pathlib.Path(__file__).parent / "results" / "cold_starts.json"
CASES = {
    "LMM": ("y ~ x + (1 | g)", {}),
    "LMM3": ("y ~ x + z + (1 + x + z | g)", {}),
    "probit": ("b ~ x + (1 | g)", {"response": "probit"}),
    "logit with slope": ("b ~ x + (1 + x | g)", {"response": "logit"}),
    "deep [5, 5]": ("y ~ x + z + (1 | g)", {"hidden": (5, 5)}),
}
R_FITS = {
    ("lme4", "LMM"): "lmer(y ~ x + (1 | g), d)",
    ("lme4", "LMM3"): "lmer(y ~ x + z + (1 + x + z | g), d)",
    ("lme4", "probit"): "glmer(b ~ x + (1 | g), d, binomial('probit'))",
    ("lme4", "logit with slope"): "glmer(b ~ x + (1 + x | g), d, binomial)",
    ("glmmTMB", "LMM"): "glmmTMB(y ~ x + (1 | g), d)",
    ("glmmTMB", "probit"): "glmmTMB(b ~ x + (1 | g), d, binomial('probit'))",
    ("glmmTMB", "logit with slope"): "glmmTMB(b ~ x + (1 + x | g), d, binomial)",
}
OURS = """
import time; begun = time.perf_counter()
import pandas as pd, nghvi
table = pd.read_csv({path!r})
def fit():
    started = time.perf_counter()
    model = nghvi.mixed({formula!r}, table, **{settings!r})
    return time.perf_counter() - started, model.status_
first, status = fit()
whole = time.perf_counter() - begun
print(whole, first, min(fit()[0] for _ in range(3)), status)
"""
STATSMODELS = """
import time; begun = time.perf_counter()
import pandas as pd, statsmodels.formula.api as smf
table = pd.read_csv({path!r})
def fit():
    started = time.perf_counter()
    smf.mixedlm({formula!r}, table, groups="g", re_formula={effects!r}).fit()
    return time.perf_counter() - started
first = fit(); whole = time.perf_counter() - begun
print(whole, first, min(fit() for _ in range(3)), "ok")
"""
GPBOOST = """
import time; begun = time.perf_counter()
import numpy as np, pandas as pd, gpboost as gpb
table = pd.read_csv({path!r})
X = np.column_stack([np.ones(len(table)), table[{columns!r}]])
def fit():
    started = time.perf_counter()
    slopes = {slopes!r}
    more = dict(group_rand_coef_data=table[slopes].to_numpy(),
                ind_effect_group_rand_coef=[1] * len(slopes)) if slopes else {{}}
    model = gpb.GPModel(group_data=table["g"].to_numpy(), likelihood={likelihood!r}, **more)
    model.fit(y=table[{target!r}].to_numpy(float), X=X)
    return time.perf_counter() - started
first = fit(); whole = time.perf_counter() - begun
print(whole, first, min(fit() for _ in range(3)), "ok")
"""


def table(groups: int = 1000, size: int = 10) -> pd.DataFrame:
    """Rows with a number y and a class b, of intercepts and slopes by group."""
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(groups), size)
    x, z = rng.normal(size=(2, g.size))
    effects = rng.normal(size=(groups, 3)) * [1.0, 0.5, 0.5]
    eta = 0.5 + x - z + effects[g, 0] + effects[g, 1] * x + effects[g, 2] * z
    y = eta + rng.normal(size=g.size)
    return pd.DataFrame({"g": g, "x": x, "z": z, "y": y, "b": (y > 0).astype(int)})


def in_new_process(program: str, cache: str) -> dict:
    """Seconds of the whole program up to its first fit, of that fit, and of another."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"NGHVI_CACHE": cache}
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200]}
    whole, first, again, status = done.stdout.split()[-4:]
    return {
        "seconds": float(whole),
        "first_fit": float(first),
        "again": float(again),
        "status": status,
        "process": time.perf_counter() - begun,
    }


def starts() -> list[dict]:
    """Every case in fresh processes, each method in turn."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "table.csv")
        table().to_csv(path, index=False)
        for case, (formula, settings) in CASES.items():
            cache = str(pathlib.Path(folder) / case.replace(" ", "_"))
            ours = OURS.format(path=path, formula=formula, settings=settings)
            for turn in ("first ever", "second process", "third process"):
                rows.append({"case": case, "method": f"nghvi, {turn}"})
                rows[-1] |= in_new_process(ours, cache)
                print(rows[-1], flush=True)
            for method, program in peers(case, path).items():
                rows.append({"case": case, "method": method} | in_new_process(program, "off"))
                print(rows[-1], flush=True)
            for method in ("lme4", "glmmTMB"):
                if (method, case) in R_FITS and shutil.which("Rscript"):
                    rows.append({"case": case, "method": method} | _by_r(method, case, path))
                    print(rows[-1], flush=True)
    return rows


def peers(case: str, path: str) -> dict[str, str]:
    """Programs of peers in Python that can fit the case."""
    found = {}
    if case.startswith("LMM"):
        many = case == "LMM3"
        formula, effects = ("y ~ x + z", "~ x + z") if many else ("y ~ x", "~ 1")
        found["statsmodels"] = STATSMODELS.format(path=path, formula=formula, effects=effects)
    if not case.startswith("deep"):
        likelihood = "bernoulli_probit" if case == "probit" else "bernoulli_logit"
        columns = ["x", "z"] if case == "LMM3" else ["x"]
        slopes = {"LMM3": ["x", "z"], "logit with slope": ["x"]}.get(case, [])
        gaussian = case.startswith("LMM")
        found["GPBoost"] = GPBOOST.format(
            path=path,
            columns=columns,
            slopes=slopes,
            likelihood="gaussian" if gaussian else likelihood,
            target="y" if gaussian else "b",
        )
    return found


def _by_r(method: str, case: str, path: str) -> dict:
    fit = R_FITS[method, case]
    program = (
        f"t0 <- Sys.time(); library({method}); d <- read.csv('{path}'); d$g <- factor(d$g); "
        f"t1 <- Sys.time(); f <- {fit}; t2 <- Sys.time(); f <- {fit}; t3 <- Sys.time(); "
        "cat(as.numeric(t2 - t0, units='secs'), as.numeric(t2 - t1, units='secs'), "
        "as.numeric(t3 - t2, units='secs'))"
    )
    begun = time.perf_counter()
    done = subprocess.run(["Rscript", "-e", program], capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200]}
    whole, first, again = map(float, done.stdout.split()[-3:])
    spent = time.perf_counter() - begun
    return {"seconds": whole, "first_fit": first, "again": again, "process": spent}


FOLDS = """
import sys, time; begun = time.perf_counter()
import pandas as pd, nghvi
from sklearn.model_selection import GridSearchCV, GroupKFold
from benchmarks.cold_starts import table
rows = table(700)
X, y = rows[["g", "x", "z"]], rows["y"]
grid = {"random": ["intercept", ["intercept", "x"]], "covariance": ["full", "diagonal", "auto"]}
search = GridSearchCV(nghvi.MixedRegressor("g"), grid, cv=GroupKFold(5), refit=False)
started = time.perf_counter(); search.fit(X, y, groups=rows["g"])
print(time.perf_counter() - begun, time.perf_counter() - started, 0.0, "ok")
"""


def folds() -> list[dict]:
    """The search with an empty folder of programs, and in a second process."""
    with tempfile.TemporaryDirectory() as cache:
        rows = [
            {"case": "GroupKFold(5) x 6 settings, 7,000 rows", "method": turn}
            | in_new_process(FOLDS, cache)
            for turn in ("first ever", "second process")
        ]
    print(*rows, sep="\n", flush=True)
    return rows


def memory(fits: int = 200) -> list[dict]:
    """Resident memory of this process, in MB, over fits of 60 shapes."""
    import nghvi

    rng = np.random.default_rng(0)
    shapes = [(p, s, k) for p in range(1, 6) for s in (0, 1) for k in (12, 40, 100, 200, 400, 800)]
    rows = []
    for number in range(fits):
        inputs, slopes, groups = shapes[number % len(shapes)]
        names = [f"x{j}" for j in range(inputs)]
        frame = pd.DataFrame(rng.normal(size=(5 * groups, inputs)), columns=names)
        frame["g"] = np.arange(len(frame)) % groups
        frame["y"] = rng.normal(size=groups)[frame["g"]] + rng.normal(size=len(frame))
        effects = " + ".join(["1", *names[:slopes]])
        nghvi.mixed(f"y ~ {' + '.join(names)} + ({effects} | g)", frame)
        if number % 20 == 19:
            rows.append({"fits": number + 1, "megabytes": _resident()})
            print(rows[-1], flush=True)
    return rows


def _resident() -> int:
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS"))


def waiting() -> dict[str, str]:
    """The numbers of this section of the page of measurements, from the recorded rows."""
    from benchmarks.measured_page import when

    held = json.loads(RESULTS.read_text())
    lines = [
        [
            row["case"],
            row["method"],
            *(f"{row[key]:.2f}" for key in ("seconds", "first_fit", "again")),
        ]
        for row in held["starts"]["rows"]
        if "failed" not in row
    ]
    first, second = held["folds"]["rows"]
    resident = held["memory"]["rows"]
    sizes = [row["megabytes"] for row in resident]
    return {
        "when": when(held["starts"]["about"]),
        "table": markdown(("model", "by", "until the first result", "first fit", "again"), lines),
        "folds_when": when(held["folds"]["about"]),
        "folds_first": f"{first['first_fit']:.0f}",
        "folds_second": f"{second['first_fit']:.0f}",
        "memory_when": when(held["memory"]["about"]),
        "fits": f"{resident[-1]['fits']}",
        "least": f"{min(sizes)}",
        "most": f"{max(sizes)}",
        "last": f"{sizes[-1]}",
    }


PARTS = {"starts": starts, "folds": folds, "memory": memory}


def main() -> int:
    """Run the parts that were asked for, and keep the others' rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS))
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in parser.parse_args().parts:
        facts = about()
        kept[part] = {"about": facts, "rows": PARTS[part]()}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
