"""Pictures of the asset pricing study: Lek profiles, premia by industry, calibration by year."""

import pathlib
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from nghvi.studies import paper
from nghvi.studies.figures import save
from nghvi.studies.store import Row

NAMES = {
    "alpha": "intercept", "mkt_rf": "ERM", "smb": "SMB", "hml": "HML", "smb5": "SMB",
    "hml5": "HML", "rmw": "RMW", "cma": "CMA",
}  # fmt: skip
COLOURS = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]
NORMAL_90 = 1.645


def lek_profiles(row: Row, folder: pathlib.Path, name: str) -> None:
    """Expected return along each factor, one row of panels a reference month; 90 % bands."""
    months = list(dict.fromkeys(entry["volatility"] for entry in row["lek"]))
    factors = list(dict.fromkeys(entry["factor"] for entry in row["lek"]))
    size = (2.7 * len(factors) + 2.6, 2.4 * len(months) + 0.6)
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
    handles = [Patch(color=c, label=_industry(g)) for g, c in zip(groups, COLOURS, strict=False)]
    figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)
    title = f"{row['model']}, {row['factors']} ({row['data']}): profiles of the largest industries"
    figure.suptitle(title, fontsize=11)
    save(figure, folder, name)


def premia(row: Row, folder: pathlib.Path, name: str) -> None:
    """Coefficients of all industries in order of size with 90 % intervals; the largest named."""
    found, largest = row["premia"], list(row["panel"]["largest"])
    terms = [term for term in found if term != "groups"]
    size = (2.7 * len(terms) + 2.6, 5.6)
    figure, axes = plt.subplots(1, len(terms), figsize=size, layout="constrained")
    for axis, term in zip(axes, terms, strict=True):
        table = pd.DataFrame(found[term], index=found["groups"]).sort_values("mean")
        position = pd.Series(np.arange(len(table)), table.index)
        for groups, colours, width, zorder in (
            (table.index.difference(largest), None, 0.6, 1),
            (pd.Index(largest), COLOURS, 2.0, 2),
        ):
            colour: Any = "0.78" if colours is None else list(colours[: len(groups)])
            chosen, at = table.loc[groups], position[groups]
            reach = NORMAL_90 * chosen["sd"]
            ends = chosen["mean"] - reach, chosen["mean"] + reach
            axis.hlines(at, *ends, colors=colour, lw=width, zorder=zorder)
            size_of_dot = 2 if colours is None else 22
            dots = "0.45" if colours is None else colour
            axis.scatter(chosen["mean"], at, s=size_of_dot, color=dots, zorder=zorder + 1, lw=0)
        average = table["mean"].mean()
        axis.axvline(average, color="black", lw=0.7, ls="--")
        unit = "% a month" if term == "alpha" else f"% per % of {NAMES[term]}"
        axis.set(title=NAMES[term], xlabel=unit, yticks=[], ylim=(-2, len(table) + 1))
    axes[0].set_ylabel(f"{len(found['groups'])} industries, in order of their mean")
    handles = [Patch(color=c, label=_industry(g)) for g, c in zip(largest, COLOURS, strict=False)]
    figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)
    title = f"{row['model']}, {row['factors']} ({row['data']}): coefficients by industry, 90 %"
    figure.suptitle(title, fontsize=11)
    save(figure, folder, name)


def calibration(rows: list[Row], folder: pathlib.Path, name: str) -> None:
    """Share of returns inside their predictive intervals and mean log score, year by year."""
    shown = [row for row in rows if row["model"] in CALIBRATED]
    levels = list(shown[0]["coverage_test"]) if shown else []
    size = (3.6 * (len(levels) + 1), 3.6)
    figure, axes = plt.subplots(1, len(levels) + 1, figsize=size, layout="constrained")
    for row in shown:
        months = row["months_train"] + row["months_test"]
        years = pd.Index([int(month[:4]) for month in months], name="year")
        style = {"color": CALIBRATED[row["model"]], "lw": 1.3, "marker": "o", "ms": 2.5}
        style["ls"] = "-" if row["response"] == "gaussian" else "--"
        label = row["model"] + ("" if row["response"] == "gaussian" else f", {row['response']}")
        for axis, level in zip(axes, levels, strict=False):
            values = row["coverage_train"][level] + row["coverage_test"][level]
            axis.plot(pd.Series(values, years).groupby("year").mean(), label=label, **style)
        scores = row["log_scores_train"] + row["log_scores_test"]
        axes[-1].plot(pd.Series(scores, years).groupby("year").mean(), label=label, **style)
    for axis, level in zip(axes, levels, strict=False):
        axis.axhline(float(level), color="black", lw=0.8, ls=":")
        axis.set(title=f"{100 * float(level):g} % intervals", ylabel="share of returns inside")
    axes[-1].set(title="log score", ylabel="mean a year")
    for axis in axes if shown else ():
        first_test = int(shown[0]["months_test"][0][:4])
        axis.axvspan(first_test - 0.5, years[-1] + 0.5, color="0.94", zorder=0, lw=0)
        axis.set_xlim(years[0] - 0.5, years[-1] + 0.5)
        axis.set_xlabel("year (test years shaded)")
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(f"Predictive calibration by year, three factors ({rows[0]['data']})")
    save(figure, folder, name)


CALIBRATED = {
    "Linear": "0.45",
    "Random Coefficients": "tab:blue",
    "DMM [8]": "tab:orange",
    "DMM [32, 16, 8]": "tab:red",
}


def _industry(code: str) -> str:
    name = paper.SIC_GROUPS.get(code, ("", None))[0]
    return f"{code} {name}".strip()
