"""The parts of the page, each from the fitted estimator and the rows that were given."""

import platform
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils import resample

from nghvi import interpret, plots
from nghvi.plots.checks import draw_calibration, draw_residuals
from nghvi.plots.fit import main_parameters
from nghvi.report import words
from nghvi.report.figures import SMALL, TALL, Gallery
from nghvi.report.html import Html, element, facts, join, paragraph, section, table

MOST_ROWS, MOST_PARAMETERS, MOST_EFFECTS, MOST_INPUTS = 5000, 16, 4, 4
LIBRARIES = ("nghvi", "jax", "numpy", "scipy", "scikit-learn", "arviz-stats", "matplotlib")


class Subject(NamedTuple):
    """What the page is about."""

    estimator: Any
    X: Any
    y: Any
    checked: pd.DataFrame | None
    """Rows beside their predictions; None where no rows were given."""
    gallery: Gallery

    @property
    def response(self) -> str:
        """The name of the response, as far as it is known."""
        return str(getattr(self.y, "name", None) or "response")


def verdict(subject: Subject) -> Html:
    """Can this be used? And if not, what to do."""
    found = words.judgement(subject.estimator)
    content = [element("h2", found.heading, id="verdict"), paragraph(element("strong", found.use))]
    content.append(paragraph(found.sentence))
    if found.advice:
        steps = element("ol", *(element("li", each) for each in found.advice))
        content += [paragraph(element("strong", "What to do")), steps]
    kind = f"verdict {found.kind}"
    return element("section", *content, class_=kind, aria_labelledby="verdict")


def fitted(subject: Subject) -> Html:
    """Data, columns and kind of model."""
    estimator = subject.estimator
    posterior = estimator.posterior_
    names, effects = list(estimator._inputs), posterior.names.effects
    rows = sum(part.num_rows for part in posterior.parts)
    kind = "linear" if words.is_linear(estimator) else "neural network"
    pairs: list[tuple[str, object]] = [
        ("Response", f"{subject.response} ({posterior.model.response.name})"),
        ("Rows", f"{rows:,.0f}"),
        ("Kind of model", kind),
        (f"Inputs ({len(names)})", _listed(names)),
    ]
    if effects:
        pairs += [
            ("Groups", f"{len(estimator.groups_):,} of {_group_name(estimator)}"),
            ("Coefficients that vary by group", _listed(list(effects))),
        ]
    if hasattr(estimator, "classes_"):
        first, second = estimator.classes_
        pairs.append(("Classes", f"{first} (0) and {second} (1)"))
    if not words.is_linear(estimator):
        pairs.append(("Network", f"{len(posterior.inference.q.centre):,} parameters"))
    return section("What was fitted", facts(pairs))


def _group_name(estimator: Any) -> str:
    return estimator.group if isinstance(estimator.group, str) else f"column {estimator.group}"


def _listed(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def parameters(subject: Subject) -> Html:
    """Coefficients, variance components and their densities."""
    estimator = subject.estimator
    summary = estimator.summary().loc[main_parameters(estimator)]
    features = list(estimator.posterior_.names.features)
    content: list[object] = []
    if not estimator.converged_:
        content.append(paragraph("Provisional: the fit is not finished.", class_="flag"))
    if words.is_linear(estimator):
        rows = [[n, *_numbers(summary.loc[n]), words.sign(summary.loc[n])] for n in features]
        heads = ["coefficient", "mean", "sd", "5 %", "95 %", "reading"]
        content.append(table("Population coefficients, 90 % intervals", heads, rows, kind="text"))
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


def _density(estimator: Any, name: str, ax: Any) -> None:
    plots.posterior(estimator, name, ax)
    ax.set_title(_component(name), fontsize=9)


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
    names = [n for n in estimator._inputs if n not in interpret.CURVE_COLUMNS]
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


def predictions(subject: Subject) -> Html:
    """Predictive check, calibration and residuals, or why there are none."""
    estimator, checked = subject.estimator, subject.checked
    title = "Predictions against data"
    if checked is None:
        said = (
            "Left out: a fitted model does not keep its rows. Call report(path, X, y) with the "
            "rows of the fit, or with new ones, for predictive checks, calibration and residuals."
        )
        return section(title, paragraph(said))
    draw, binary = subject.gallery.picture, hasattr(estimator, "classes_")
    X, y = subject.X, subject.y
    if len(checked) < len(y):
        X, y = resample(X, y, replace=False, n_samples=MOST_ROWS, random_state=0)
    pictures = [
        *draw(
            lambda ax: plots.predictive_check(estimator, X, y, ax),
            "Data that the fitted model would produce look like the data if it fits.",
        ),
        *draw(
            lambda ax: draw_residuals(estimator, checked, ax),
            "Averages should stay near zero all along.",
        ),
        *draw(
            lambda axes: draw_calibration(estimator, checked, axes),
            "Grey: as far as chance alone would go.",
            "How sure the model is of its predictions."
            if binary
            else "On the diagonal if calibrated; below it if intervals are too narrow.",
        ),
    ]
    sentences = [words.rows_checked(checked, len(subject.y)), words.accuracy(estimator, checked)]
    if not binary:
        sentences.append(words.coverage(checked))
    return section(title, *map(paragraph, sentences), element("div", *pictures, class_="figures"))


def optimisation(subject: Subject) -> Html:
    """How the fit went."""
    estimator = subject.estimator
    pairs = [
        ("Steps", f"{estimator.n_iter_:,}"),
        ("Time", f"{estimator.seconds_:.1f} s"),
        ("ELBO", words.number(estimator.elbo_, 0.1)),
        ("Log evidence", words.number(estimator.log_evidence_, 0.1)),
    ]
    known = [pair for pair in pairs if pair[1] != "-"]
    content: list[object] = [facts(known), paragraph(estimator.k_hat_meaning_)]
    if estimator.trace_.empty:
        content.append(paragraph(f"The method {estimator.method!r} keeps no trace."))
    else:
        caption = "The last stage: noisy, but it should not rise any more at the end."
        pictures = subject.gallery.picture(lambda ax: plots.trace(estimator, ax), caption)
        content.append(element("div", *pictures, class_="figures"))
    return section("Optimisation", *content)


def reproduction(subject: Subject) -> Html:
    """Code, settings and versions."""
    estimator = subject.estimator
    settings = estimator.get_params()
    usual = type(estimator)().get_params()
    changed = {k: v for k, v in settings.items() if repr(v) != repr(usual[k])}
    arguments = ", ".join(f"{name}={value!r}" for name, value in changed.items())
    name = type(estimator).__name__
    lines = [
        "import nghvi",
        *(["from nghvi.priors import *"] if "priors" in changed else []),
        "",
        f"model = nghvi.{name}({arguments}).fit(X, y)",
        'model.report("report.html", X, y)',
    ]
    versions = [(each, metadata.version(each)) for each in LIBRARIES]
    versions.append(("Python", platform.python_version()))
    rows = [[key, repr(value)] for key, value in settings.items()]
    return section(
        "How to reproduce this",
        element("pre", element("code", "\n".join(lines))),
        facts(versions),
        element(
            "details",
            element("summary", "All settings"),
            table("Settings of the estimator", ["setting", "value"], rows, kind="text"),
        ),
    )


def page_sections(subject: Subject) -> Html:
    """All parts in the order of the page."""
    parts = (verdict, fitted, parameters, groups, profiles, predictions, optimisation, reproduction)
    return join(found for part in parts if (found := part(subject)) is not None)
