"""The parts of the page about the posterior: parameters, groups, profiles."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from nghvi import interpret, plots
from nghvi.posterior.sensitivity import THRESHOLD
from nghvi.report import words
from nghvi.report.figures import SMALL, TALL
from nghvi.report.html import Html, element, paragraph, section, table
from nghvi.report.subject import Subject

MOST_PARAMETERS, MOST_EFFECTS, MOST_INPUTS = 16, 4, 4


def parameters(subject: Subject) -> Html:
    """Coefficients, variance components and their densities."""
    estimator = subject.estimator
    summary = estimator.summary()
    features = list(estimator.posterior_.names.features)
    content: list[object] = []
    if not estimator.converged_:
        content.append(paragraph("Provisional: the fit is not finished.", class_="flag"))
    if hasattr(estimator, "classes_"):
        content.append(paragraph(words.scale(estimator)))
    if words.is_linear(estimator):
        rows = [[n, *_numbers(summary.loc[n]), words.sign(summary.loc[n])] for n in features]
        heads = ["coefficient", "mean", "sd", "5 %", "95 %", "reading"]
        content.append(
            table("Population coefficients, 90 % intervals", heads, rows, kind="reading")
        )
    else:
        content.append(
            paragraph(
                "The coefficients of a network belong to features that it has learnt (h1, h2, ...) "
                "and mean nothing one by one; the profiles below say what it does."
            )
        )
    spread = [name for name in summary.index if name not in features]
    if not words.is_linear(estimator):
        spread = [name for name in spread if not name.startswith("effects_corr")]
    if spread:
        rows = [[_component(n), *_numbers(summary.loc[n])] for n in spread[:MOST_PARAMETERS]]
        heads = ["component", "mean", "sd", "5 %", "95 %"]
        content.append(table("Variance components" + _cut(spread), heads, rows))
    shown = list(summary.index) if words.is_linear(estimator) else spread
    densities = [
        picture
        for name in shown[:MOST_PARAMETERS]
        for picture in subject.gallery.picture(partial(_density, estimator, name), "", size=SMALL)
    ]
    caption = "Posterior densities with 90 % intervals (bars)" + _cut(shown)
    content += [
        paragraph(f"{caption}.", class_="soft"),
        element("div", *densities, class_="figures small"),
    ]
    return section("Parameters", *content)


def priors(subject: Subject) -> Html | None:
    """The parameters whose posterior depends on the priors; nothing where none does."""
    estimator = subject.estimator
    if not words.is_linear(estimator):  # priors of learnt features always matter
        return None
    found = estimator.prior_sensitivity()
    found = found[found["prior"] >= THRESHOLD]
    if found.empty:
        return None
    ranges = estimator.prior_summary()
    rows = [
        [
            _component(name),
            f"{row['prior']:.2f}",
            f"{row['likelihood']:.2f}",
            ranges["prior"].get(name, "-"),
            row["diagnosis"],
        ]
        for name, row in found.iloc[:MOST_PARAMETERS].iterrows()
    ]
    said = (
        f"The posterior of these parameters changes with the priors by {THRESHOLD} or more: by "
        "about a quarter of its sd or more if the priors were squared. Where the data say little, "
        "that is to be expected: look at prior_summary() and choose priors that you stand for."
    )
    heads = ["parameter", "prior", "data", "stated prior", "reading"]
    title = "Sensitivity to priors and data" + _cut(list(found.index))
    return section("Priors that matter", paragraph(said), table(title, heads, rows, kind="text"))


def _density(estimator: Any, name: str, ax: Any) -> None:
    plots.posterior(estimator, name, ax)
    ax.set_title(_component(name), fontsize=9)
    ax.xaxis.set_major_locator(MaxNLocator(3))


def _numbers(row: pd.Series) -> list[str]:
    return [words.number(row[each], row["sd"]) for each in ("mean", "sd", "q5", "q95")]


def _component(name: str) -> str:
    """The parameter's name in plain words."""
    kind, _, inside = name.partition("[")
    inside = inside.removesuffix("]")
    plain = {
        "noise_var": "noise variance",
        "effects_sd": f"sd between groups: {inside}",
        "effects_corr": f"correlation: {inside.replace(',', ', ')}",
    }
    return plain.get(kind, name)


def _cut(names: list) -> str:
    more = len(names) - MOST_PARAMETERS
    return f" (first {MOST_PARAMETERS}; {more} more in summary())" if more > 0 else ""


def groups(subject: Subject) -> Html | None:
    """Caterpillar plots."""
    estimator = subject.estimator
    effects = estimator.posterior_.names.effects
    if not effects:
        return None
    said = "Dots: a group's difference from the population; bars: 90 % intervals."
    if not words.is_linear(estimator):
        said += " The intercept is the response where all learnt features are zero."
    shown = effects[:MOST_EFFECTS] if words.is_linear(estimator) else effects[:1]
    pictures = [
        picture
        for effect in shown
        for picture in subject.gallery.picture(
            lambda ax, effect=effect: plots.caterpillar(estimator, effect, ax), "", size=TALL
        )
    ]
    return section("Groups", paragraph(said), element("div", *pictures, class_="figures"))


def profiles(subject: Subject) -> Html | None:
    """Lek profiles of the inputs that move a network's prediction most."""
    estimator = subject.estimator
    if words.is_linear(estimator):
        return None
    # Names that the table of curves uses itself cannot be profiled.
    inputs = interpret.followed(estimator)
    names = [n for n in inputs if n not in interpret.CURVE_COLUMNS]
    curves = {n: interpret.lek_profile(estimator, n, draws=50) for n in names}
    strongest = sorted(names, key=lambda n: -np.ptp(curves[n]["mean"]))[:MOST_INPUTS]
    if not strongest:
        return None
    chosen = ["population", *_typical_groups(estimator, strongest[0])]
    pictures = [
        picture
        for name in strongest
        for picture in subject.gallery.picture(
            lambda ax, name=name: plots.lek(estimator, name, chosen, ax=ax), ""
        )
    ]
    said = "What the network has learnt: the expected response along its strongest inputs"
    if len(chosen) > 1:
        said += ", for the population and for groups with a low, a middling and a high response"
    content = element("div", *pictures, class_="figures")
    said += ". All other inputs are at their medians; bands are 90 % for the expected response."
    if len(names) < len(estimator._inputs):
        said += f" Not shown: {', '.join(n for n in estimator._inputs if n not in names)}."
    return section("Profiles", paragraph(said), content)


def _typical_groups(estimator: Any, name: str, among: int = 50) -> list:
    """Groups whose profiles are lowest, in the middle and highest, of some of them."""
    labels = estimator.groups_
    if not len(labels):
        return []
    some = labels[np.unique(np.linspace(0, len(labels) - 1, among).astype(int))].tolist()
    curves = interpret.lek_profile(estimator, name, some, n_grid=5, draws=50)
    order = curves.groupby("group")["mean"].mean().sort_values().index.tolist()
    return list(dict.fromkeys([order[0], order[len(order) // 2], order[-1]]))
