"""Tables of the asset pricing study, and its pictures: profiles, premia, calibration by year."""

import pathlib
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nghvi.paper.finance.stock_panel import mean_se
from nghvi.paper.studies import printed_values
from nghvi.paper.studies.exhibits import Table, beside, save
from nghvi.paper.studies.store import Row

SETTINGS = {"response": "gaussian", "priors": "default", "covariance": "full"}
LINEAR = ("Linear", "Random Intercept", "Random Coefficients")
RANKS = {"DMM [8]": 3, "DMM [32, 16, 8]": 5}
"""The paper's factors of the posterior covariance."""


def tables(rows: list[Row]) -> list[Table]:
    """Models, industries, one change at a time."""
    facts = rows[0]["panel"]
    source = f"{rows[0]['data']}: {facts['firms']} firms in {facts['groups']} groups"
    models = [row for row in rows if is_model(row)]
    caption = (
        f"Asset pricing ({source}), log score and R2: ours (paper's, on its data). Standard errors "
        "are by blocks of months. Over linear: the test log score minus that of the best linear "
        "model with the same noise. Over Gaussian: minus that of the same model with Gaussian noise"
    )
    found = [
        Table("finance_models", caption, _models(models)),
        Table("finance_industries", f"Largest groups ({source})", _industries(rows[0])),
        Table(
            "finance_sizes",
            f"Sizes and times of the deep models ({source}): the library's default recipe (paper: "
            "3,000 steps of NG-HVI on its panel). The machine did other work",
            _sizes(models),
        ),
    ]
    caption = f"One setting changed, three factors ({source}); differences from the usual setting"
    changes = _changes([row for row in rows if row["factors"] == "FF3"])
    return found + [Table("finance_changes", caption, changes)] * bool(len(changes))


def figures(rows: list[Row], folder: pathlib.Path) -> None:
    """Profiles, premia and calibration."""
    models = [row for row in rows if is_model(row)]
    for row in models:
        if "lek" in row:
            lek_profiles(row, folder, f"finance_lek_{row['factors']}{_suffix(row)}")
        if "premia" in row:
            premia(row, folder, f"finance_premia_{row['factors']}{_suffix(row)}")
    calibration([row for row in models if row["factors"] == "FF3"], folder, "finance_calibration")


class Gain(NamedTuple):
    """A test score minus that of another model, by months."""

    mean: float
    error: float
    """Standard error by paired months."""
    low: float
    high: float
    """The range of the mean if any one month is left out."""


def compared(row: Row, other: Row, kind: str = "log") -> Gain:
    """How much a model's test scores exceed another's."""
    monthly = np.subtract(row[f"{kind}_scores_test"], other[f"{kind}_scores_test"])
    without = (monthly.sum() - monthly) / (len(monthly) - 1)
    return Gain(float(monthly.mean()), mean_se(monthly), float(without.min()), float(without.max()))


def difference(row: Row, other: Row) -> tuple[float, float]:
    """Test log score minus that of another model, and its standard error by paired months."""
    return compared(row, other)[:2]


def without_a_month(row: Row, other: Row) -> tuple[str, float]:
    """The month without which that difference is another, and what it then is."""
    monthly = np.subtract(row["log_scores_test"], other["log_scores_test"])
    without = (monthly.sum() - monthly) / (len(monthly) - 1)
    most = int(np.argmax(np.abs(without - monthly.mean())))
    return row["months_test"][most], float(without[most])


def _suffix(row: Row) -> str:
    return "" if row["response"] == "gaussian" else f"_{row['response']}"


def is_model(row: Row) -> bool:
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
            printed = printed_values.FINANCE.get((row["factors"], label(row)), printed)
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
    """Whether the posterior can be trusted, and what it cost."""
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


def _sizes(rows: list[Row]) -> pd.DataFrame:
    """The paper's last table for the panel; a row knows the number of returns by its usual sd."""
    found = []
    for row in rows:
        there = printed_values.PANEL.get((row["factors"], label(row)))
        if there is not None:
            sizes = {
                "K": row["panel"]["groups"],
                "z": there["r"] * row["panel"]["groups"],
                "n": round(2 / row["usual_sd"] ** 2),
            }
            found.append(
                {"model": f"{label(row)}, {row['factors']}"}
                | {name: beside(size, there[name], 0) for name, size in sizes.items()}
                | {
                    "p": row["rank"],
                    "steps": row["steps"],
                    "s per step": beside(row["seconds"] / row["steps"], there["seconds_a_step"], 3),
                    "minutes": beside(row["seconds"] / 60, there["minutes"], 1),
                }
            )
    return pd.DataFrame(found, columns=SIZES).set_index("model")


SIZES = ["model", "K", "z", "n", "p", "steps", "s per step", "minutes"]


def _industries(row: Row) -> pd.DataFrame:
    lines = []
    for code, firms in row["panel"]["largest"].items():
        name, there = printed_values.SIC_GROUPS.get(code, ("", None))
        lines.append({"SIC": code, "industry": name, "firms": beside(firms, there, 0)})
    return pd.DataFrame(lines).set_index("SIC")


def _changes(rows: list[Row]) -> pd.DataFrame:
    """Each changed model below its usual self."""
    found = []
    for usual in (row for row in rows if is_model(row) and row["response"] == "gaussian"):
        same = [r for r in rows if r["model"] == usual["model"] and r["response"] == "gaussian"]
        for row in (usual, *(r for r in same if r is not usual)) if len(same) > 1 else ():
            gain = "-" if row is usual else _plus_minus(*difference(row, usual))
            line = {key: row[key] for key in ("model", "priors", "covariance", "rank")}
            for key, name in (("log_score_test", "LS test"), ("r2_test", "R2 test")):
                line[name] = _plus_minus(row[key], row[f"{key}_se"])
            found.append(line | {"difference": gain} | _fit(row))
    return pd.DataFrame(found).set_index("model") if found else pd.DataFrame()


NAMES = {
    "alpha": "intercept", "mkt_rf": "ERM", "smb": "SMB", "hml": "HML", "smb5": "SMB",
    "hml5": "HML", "rmw": "RMW", "cma": "CMA",
}  # fmt: skip
COLOURS = [f"C{j}" for j in range(10)]
NORMAL_90 = 1.645
CALIBRATED = {
    "Linear": "0.45",
    "Random Coefficients": "tab:blue",
    "DMM [8]": "tab:orange",
    "DMM [32, 16, 8]": "tab:red",
}


def lek_profiles(row: Row, folder: pathlib.Path, name: str) -> None:
    """Expected return along each factor, one row of panels per reference month; 90 % bands."""
    months = list(dict.fromkeys(entry["volatility"] for entry in row["lek"]))
    factors = list(dict.fromkeys(entry["factor"] for entry in row["lek"]))
    size = (2.7 * len(factors), 2.4 * len(months) + 1.4)
    figure, axes = plt.subplots(
        len(months), len(factors), figsize=size, sharex="col", layout="constrained"
    )
    groups = list(row["panel"]["largest"])
    for entry in row["lek"]:
        axis = axes[months.index(entry["volatility"]), factors.index(entry["factor"])]
        for group, colour in zip(groups, COLOURS, strict=False):
            band = entry["lower"][group], entry["upper"][group]
            axis.fill_between(entry["grid"], *band, color=colour, alpha=0.1, lw=0)
            axis.plot(entry["grid"], entry["mean"][group], color=colour, lw=1.3)
        if entry["grid"][0] <= entry["at"] <= entry["grid"][-1]:
            axis.axvline(entry["at"], color="0.6", lw=0.7, ls=":")
        axis.set_title(f"{NAMES[entry['factor']]} ({entry['volatility']})", fontsize=10)
        axis.tick_params(labelsize=8)
    for axis, factor in zip(axes[-1], factors, strict=True):
        axis.set_xlabel(f"{NAMES[factor]}, %", fontsize=9)
    for axis, volatility in zip(axes[:, 0], months, strict=True):
        month = next(e["month"] for e in row["lek"] if e["volatility"] == volatility)
        axis.set_ylabel(f"{month}\nexpected return, %", fontsize=9)
    _finish(figure, row, groups, "expected return in the largest industries, 90 % bands")
    save(figure, folder, name)


def premia(row: Row, folder: pathlib.Path, name: str) -> None:
    """Coefficients of all industries in order of size with 90 % intervals; the largest named."""
    found, largest = row["premia"], list(row["panel"]["largest"])
    terms = [term for term in found if term != "groups"]
    size = (2.5 * len(terms), 6.4)
    figure, axes = plt.subplots(1, len(terms), figsize=size, layout="constrained")
    for axis, term in zip(axes, terms, strict=True):
        table = pd.DataFrame(found[term], index=found["groups"]).sort_values("mean")
        position = pd.Series(np.arange(len(table)), table.index)
        others = table.index.difference(largest)
        colours = COLOURS[: len(largest)]
        _intervals(axis, table.loc[others], position[others], ("0.8", "0.4"), (0.6, 2))
        _intervals(axis, table.loc[largest], position[largest], (colours, colours), (2, 22))
        axis.axvline(table["mean"].mean(), color="black", lw=0.7, ls="--")
        unit = "% per month" if term == "alpha" else f"% per % of {NAMES[term]}"
        axis.set(title=NAMES[term], xlabel=unit, yticks=[], ylim=(-2, len(table) + 1))
    axes[0].set_ylabel(f"{len(found['groups'])} industries, in order of their mean")
    _finish(figure, row, largest, "coefficients by industry, 90 % intervals")
    save(figure, folder, name)


def calibration(rows: list[Row], folder: pathlib.Path, name: str) -> None:
    """Share of returns inside their predictive intervals and mean log score, year by year."""
    levels = list(rows[0]["coverage_test"])
    months = rows[0]["months_train"] + rows[0]["months_test"]
    years = pd.Index([int(month[:4]) for month in months], name="year")
    size = (3.4 * (len(levels) + 1), 3.8)
    figure, axes = plt.subplots(1, len(levels) + 1, figsize=size, layout="constrained")
    for row in (row for row in rows if row["model"] in CALIBRATED):
        style = {"color": CALIBRATED[row["model"]], "lw": 1.3, "marker": "o", "ms": 2.5}
        style["ls"] = "-" if row["response"] == "gaussian" else "--"
        shown = [row["coverage_train"][level] + row["coverage_test"][level] for level in levels]
        shown.append(row["log_scores_train"] + row["log_scores_test"])
        for axis, values in zip(axes, shown, strict=True):
            axis.plot(pd.Series(values, years).groupby("year").mean(), label=label(row), **style)
    for axis, level in zip(axes, levels, strict=False):
        axis.axhline(float(level), color="black", lw=0.8, ls=":")
        axis.set(title=f"{100 * float(level):g} % intervals", ylabel="share of returns inside")
    axes[-1].set(title="log score", ylabel="mean per year")
    first_test = int(rows[0]["months_test"][0][:4])
    for axis in axes:
        axis.axvspan(first_test - 0.5, years[-1] + 0.5, color="0.94", zorder=0, lw=0)
        axis.set(xlim=(years[0] - 0.5, years[-1] + 0.5), xlabel="year (test years shaded)")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(f"Predictive calibration by year, three factors ({_source(rows[0])})")
    save(figure, folder, name)


def _intervals(
    axis: Axes, table: pd.DataFrame, at: pd.Series, colours: Any, sizes: tuple[float, float]
) -> None:
    """One line and one dot per industry; colours and sizes of lines, then of dots."""
    reach = NORMAL_90 * table["sd"]
    axis.hlines(at, table["mean"] - reach, table["mean"] + reach, colors=colours[0], lw=sizes[0])
    axis.scatter(table["mean"], at, s=sizes[1], color=colours[1], lw=0, zorder=3)


def _finish(figure: Figure, row: Row, groups: list[str], what: str) -> None:
    """Names of the coloured groups, and what is shown."""
    pairs = zip(groups, COLOURS, strict=False)
    handles = [Line2D([], [], color=c, lw=2.5, label=_industry(g)) for g, c in pairs]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    title = f"{row['model']}, {row['factors']}: {what} ({_source(row)})"
    figure.suptitle(title, fontsize=11)


def label(row: Row) -> str:
    """A model, with its response where that is not the usual one."""
    return row["model"] + ("" if row["response"] == "gaussian" else f", {row['response']}")


def _source(row: Row) -> str:
    return "synthetic panel" if row["data"] == "synthetic" else f"{row['panel']['firms']} firms"


def _industry(code: str) -> str:
    name = printed_values.SIC_GROUPS.get(code, ("", None))[0]
    return f"{code} {name}".strip()
