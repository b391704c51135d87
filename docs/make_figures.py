"""Draws the site's own pictures: ``python docs/make_figures.py`` writes them to docs/figures."""

import io
import pathlib
import re
import sys
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import nghvi
from nghvi import plots
from nghvi.datasets import simulate_schools
from nghvi.storage.file import replaced

FIGURES = pathlib.Path(__file__).parent / "figures"


def schools() -> Figure:
    """Fit the built-in schools; slopes by school, group effects, two densities with the truth."""
    data = simulate_schools()
    model = nghvi.mixed("score ~ intake + hours + girl + (1 + intake | school)", data.frame)
    ordered = model.group_effects().sort_values("intake_mean").index
    figure, grid = plt.subplots(2, 2, figsize=(10, 6.2))
    axes = grid.ravel()
    plots.lek(model, "intake", groups=[ordered[0], "population", ordered[-1]], ax=axes[0])
    axes[0].set_title("Score of two schools and of all")
    plots.caterpillar(model, "intake", ax=axes[1])
    plots.posterior(model, ["effects_sd[intake]", "intake"], axes[2:], data.truth)
    axes[2].set_title("Sd of the slopes (dashed: truth)")
    axes[3].set_title("Average slope (dashed: truth)")
    return figure


def responses() -> Figure:
    """A predictive check for each kind of response, of data that a model of that kind has made."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(20), 12)
    x = rng.normal(size=group.size)
    eta = 0.6 * x + 0.6 * rng.normal(size=20)[group]
    rows = pd.DataFrame({"x": x, "group": group, "size": 10})
    rows["calls"] = rng.poisson(np.exp(0.5 + eta) * rng.gamma(3, size=x.size) / 3)
    rows["sick"] = rng.binomial(rows["size"], 1 / (1 + np.exp(1 - eta)))
    answers = ["bad", "fair", "good", "best"]
    places = np.digitize(eta + rng.logistic(size=x.size), [-1, 0.5, 2])
    rows["answer"] = pd.Categorical.from_codes(places, answers, ordered=True)
    rows["stay"] = np.minimum(3 + eta + rng.normal(size=x.size), 4)
    kinds = {
        "calls": ("calls", "negative-binomial", "Calls per nest"),
        "sick": ("sick | trials(size)", "binomial", "Sick cows of ten"),
        "answer": ("answer", "ordered-logit", "Answers"),
        "stay": ("censored(stay, -inf, 4)", "tobit", "Log stays, seen up to 4"),
    }
    figure, grid = plt.subplots(2, 2, figsize=(10, 6.2))
    for (column, (left, response, title)), ax in zip(kinds.items(), grid.ravel(), strict=True):
        model = nghvi.mixed(f"{left} ~ x + (1 | group)", rows, response=response)
        plots.predictive_check(model, rows, rows[column], ax=ax)
        ax.set_title(f"{title}: {response}")
    return figure


def counts() -> Figure:
    """Predictive checks of the two models of the page on counts: its own code, run here."""
    page = _run("howto/counts.md")
    rows, figure = page["rows"], plt.figure(figsize=(10, 3.4))
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (name, model) in zip(axes, page["fits"].items(), strict=True):
        plots.predictive_check(model, rows, rows["times"], ax=ax)
        ax.set_title(f"Repetitions: {name}")
    return figure


def proportions() -> Figure:
    """The predictive check of the model of the page on proportions."""
    title = "Cattle of a herd that fall ill in a quarter"
    return _checked("howto/proportions.md", "cows", "sick", title)


def ordered() -> Figure:
    """The predictive check of the model of the page on ordered classes."""
    return _checked("howto/ordered.md", "wine", "bitter", "Bitterness of wine, 1 to 5")


def _checked(name: str, rows: str, response: str, title: str) -> Figure:
    """The predictive check of a page's model."""
    page = _run(name)
    figure, ax = plt.subplots(figsize=(6, 3.2))
    plots.predictive_check(page["model"], page[rows], page[rows][response], ax=ax)
    ax.set_title(title)
    return figure


def positive() -> Figure:
    """What the model of the page on positive numbers predicts for each girl."""
    page = _run("howto/positive.md", 1)
    girls, model = page["girls"], page["model"]
    lower, upper = model.predict_interval(girls)
    figure, ax = plt.subplots(figsize=(7, 3.2))
    for number, (_, rows) in enumerate(girls.groupby("girl")):
        at, colour = rows["age"] + 0.1 * (number - 5), f"C{number % 10}"
        ax.vlines(at, lower[rows.index], upper[rows.index], color=colour, alpha=0.4, lw=2)
        ax.plot(at, rows["distance"], ".", color=colour)
    ax.set(xlabel="age", ylabel="distance, mm", xticks=[8, 10, 12, 14])
    ax.set_title("Eleven girls: distances and 90 % intervals")
    return figure


def _run(page: str, blocks: int | None = None) -> dict[str, Any]:
    """The names that the code of a page has made; ``blocks``: so many of its first blocks."""
    text = (FIGURES.parent / page).read_text()
    made: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[:blocks]:
        exec(code, made)
    return made


def corrected() -> Figure:
    """What the page on the corrected method computes: its own code, run here."""
    page = _run("corrected.md", 2)
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True)
    for ax, (name, (damping, length)) in zip(axes, page["RULES"].items(), strict=True):
        for printed, style in ((False, "-"), (True, "--")):
            missing = page["best"] - page["climb"](printed, damping, length)
            label = "printed" if printed else "it is"
            ax.semilogy(np.maximum(missing, 1e-6), style, label=f"F22 as {label}")
        ax.axhline(0.01, color="0.7", lw=0.8)
        last = max(page["needed"][name, printed] for printed in (False, True))
        ax.set(title=name, xlabel="step", xlim=(0, 1.6 * last), ylim=(1e-4, 2))
    axes[0].set_ylabel("what the bound lacks, nats")
    axes[0].legend(frameon=False)
    return figure


def main() -> None:
    """Every picture; or those that the command line names."""
    pictures = {
        "schools": schools,
        "responses": responses,
        "counts": counts,
        "proportions": proportions,
        "ordered": ordered,
        "positive": positive,
        "corrected": corrected,
    }
    for name in sys.argv[1:] or pictures:
        figure = pictures[name]()
        figure.tight_layout()
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=130, metadata={"Software": None})
        with replaced(FIGURES / f"{name}.png") as file:
            file.write(drawn.getvalue())


if __name__ == "__main__":
    main()
