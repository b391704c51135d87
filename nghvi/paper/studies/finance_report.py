"""Tables of the asset pricing study; its pictures are in ``finance_figures``."""

import pathlib

import numpy as np
import pandas as pd

from nghvi.paper.finance.bootstrap import mean_se
from nghvi.paper.studies import paper
from nghvi.paper.studies.finance_figures import calibration, label, lek_profiles, premia
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.tables import beside, write_table

SETTINGS = {"response": "gaussian", "priors": "default", "covariance": "full"}
LINEAR = ("Linear", "Random Intercept", "Random Coefficients")
RANKS = {"DMM [8]": 3, "DMM [32, 16, 8]": 5}
"""The paper's factors of the posterior covariance."""


def report(rows: list[Row], folder: pathlib.Path) -> None:
    """Models, industries, one change at a time; profiles, premia and calibration."""
    facts = rows[0]["panel"]
    source = f"{rows[0]['data']}: {facts['firms']} firms in {facts['groups']} groups"
    models = [row for row in rows if _is_model(row)]
    caption = (
        f"Asset pricing ({source}), log score and R2: ours (paper's, on its data); standard "
        "errors by blocks of months; over linear: test log score minus that of the best linear "
        "model with the same noise; over Gaussian: minus that of the same model with Gaussian noise"
    )
    write_table(_models(models), folder, "finance_models", caption)
    write_table(_industries(rows[0]), folder, "finance_industries", f"Largest groups ({source})")
    caption = f"One setting changed, three factors ({source}); differences to the model's usual"
    changes = _changes([row for row in rows if row["factors"] == "FF3"])
    if len(changes):
        write_table(changes, folder, "finance_changes", caption)
    for row in models:
        if "lek" in row:
            lek_profiles(row, folder, f"finance_lek_{row['factors']}{_suffix(row)}")
        if "premia" in row:
            premia(row, folder, f"finance_premia_{row['factors']}{_suffix(row)}")
    calibration([row for row in models if row["factors"] == "FF3"], folder, "finance_calibration")


def difference(row: Row, other: Row) -> tuple[float, float]:
    """Test log score minus that of another model, and its standard error by paired months."""
    monthly = np.subtract(row["log_scores_test"], other["log_scores_test"])
    return float(monthly.mean()), mean_se(monthly)


def _suffix(row: Row) -> str:
    return "" if row["response"] == "gaussian" else f"_{row['response']}"


def _is_model(row: Row) -> bool:
    """A line of the main table: no setting changed but the response."""
    usual = {**SETTINGS, "response": row["response"]}
    rank = RANKS.get(row["model"], "auto")
    return row["rank"] == rank and all(row[k] == v for k, v in usual.items())


def _plus_minus(value: float, se: float, digits: int = 4) -> str:
    return f"{value:.{digits}f} ± {se:.{digits}f}"


def _models(rows: list[Row]) -> pd.DataFrame:
    found = []
    for row in rows:
        same = [r for r in rows if r["factors"] == row["factors"]]
        linear = [r for r in same if r["model"] in LINEAR and r["response"] == row["response"]]
        best = max(linear, key=lambda r: r["log_score_test"], default=None)
        printed: tuple = (None,) * 4
        if row["data"] != "synthetic":
            printed = paper.FINANCE.get((row["factors"], label(row)), printed)
        keys = ("log_score_train", "log_score_test", "r2_train", "r2_test")
        names = ("LS train", "LS test", "R2 train", "R2 test")
        line = {"model": label(row), "factors": row["factors"]}
        for key, name, there in zip(keys, names, printed, strict=True):
            line[name] = beside(row[key], there)
            line[f"se {name}"] = f"{row[f'{key}_se']:.4f}"
        twin = [r for r in same if r["model"] == row["model"] and r["response"] == "gaussian"]
        for name, other in (("over linear", best), ("over Gaussian", next(iter(twin), None))):
            line[name] = (
                "-" if other is None or other is row else _plus_minus(*difference(row, other))
            )
        found.append(line | _fit(row))
    return pd.DataFrame(found).set_index("model")


def _fit(row: Row) -> Row:
    """Whether the posterior is to be believed, and what it cost."""
    return {
        "log s2": f"{row['log_noise_var']:.4f}",
        "sd log s2": f"{row['log_noise_var_sd']:.4f}",
        "usual sd": f"{row['usual_sd']:.4f}",
        "df": f"{row['degrees']:.2f}" if "degrees" in row else "-",
        "ELBO": "-" if np.isnan(row["elbo"]) else f"{row['elbo']:.1f}",
        "converged": "yes" if row["converged"] else "no",
        "steps": row["steps"],
        "seconds": f"{row['seconds']:.1f}",
    }


def _industries(row: Row) -> pd.DataFrame:
    lines = []
    for code, firms in row["panel"]["largest"].items():
        name, there = paper.SIC_GROUPS.get(code, ("", None))
        lines.append({"SIC": code, "industry": name, "firms": beside(firms, there, 0)})
    return pd.DataFrame(lines).set_index("SIC")


def _changes(rows: list[Row]) -> pd.DataFrame:
    """Each changed model below its usual self."""
    found = []
    for usual in (row for row in rows if _is_model(row) and row["response"] == "gaussian"):
        same = [r for r in rows if r["model"] == usual["model"] and r["response"] == "gaussian"]
        for row in (usual, *(r for r in same if r is not usual)) if len(same) > 1 else ():
            gain = "-" if row is usual else _plus_minus(*difference(row, usual))
            line = {key: row[key] for key in ("model", "priors", "covariance", "rank")}
            for key, name in (("log_score_test", "LS test"), ("r2_test", "R2 test")):
                line[name] = _plus_minus(row[key], row[f"{key}_se"])
            found.append(line | {"difference": gain} | _fit(row))
    return pd.DataFrame(found).set_index("model") if found else pd.DataFrame()
