"""The subject of the page, and its sections, each made from the estimator and the given rows."""

import platform
import textwrap
import warnings
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from nghvi import interpret, plots
from nghvi.estimators import tables
from nghvi.estimators._base import MixedEstimator
from nghvi.estimators.spec import SAID_BY_FORMULA
from nghvi.formula import parse
from nghvi.plots.pictures import draw_caterpillar, draw_density
from nghvi.plots.row_checks import draw_calibration, draw_residuals
from nghvi.posterior.prior_influence import THRESHOLD
from nghvi.report import words
from nghvi.report.html import (
    SMALL,
    TALL,
    Gallery,
    Html,
    element,
    facts,
    join,
    paragraph,
    section,
    table,
)


class Subject(NamedTuple):
    """The fitted model that the page is about, and the rows that it is judged by."""

    estimator: MixedEstimator
    X: Any
    y: Any
    checked: pd.DataFrame | None
    """Rows beside their predictions; None where no rows were given."""
    gallery: Gallery

    @property
    def response(self) -> str:
        """The name of the response, as far as it is known."""
        formula = self.estimator.formula
        said = None if formula is None else parse(formula).response
        return str(said or getattr(self.y, "name", None) or "response")


MOST_ROWS = 5000
LIBRARIES = ("nghvi", "jax", "numpy", "scipy", "scikit-learn", "arviz-stats", "matplotlib")


def verdict(subject: Subject) -> Html:
    """Say whether the fit can be used, and if not, what to do."""
    found = words.judgement(subject.estimator)
    content = [element("h2", found.heading, id="verdict"), paragraph(element("strong", found.use))]
    content.append(paragraph(found.sentence))
    if found.advice:
        steps = element("ol", *(element("li", each) for each in found.advice))
        content += [paragraph(element("strong", "What to do")), steps]
    kind = f"verdict {found.kind}"
    return element("section", *content, class_=kind, aria_labelledby="verdict")


def fitted(subject: Subject) -> Html:
    """Say what was fitted: data, columns and kind of model."""
    estimator = subject.estimator
    posterior = estimator.posterior_
    names, effects = list(estimator.reader_.inputs), posterior.names.effects
    rows = sum(float(part.num_rows) for part in posterior.parts)
    kind = "linear" if words.is_linear(estimator) else "neural network"
    pairs: list[tuple[str, object]] = [
        ("Response", f"{subject.response} ({posterior.model.response.name})"),
        ("Rows", f"{rows:,.0f}"),
        ("Kind of model", kind),
        (f"Inputs ({len(names)})", _listed(names)),
    ]
    if effects:
        pairs += [
            ("Groups", _groups(estimator)),
            ("Coefficients that vary by group", _listed(list(effects))),
        ]
    if posterior.model.response.classes:
        named = [f"{label} ({code})" for code, label in enumerate(estimator.classes_)]
        pairs.append(("Classes", " and ".join(named) if len(named) == 2 else ", ".join(named)))
    if not words.is_linear(estimator):
        pairs.append(("Network", f"{len(posterior.inference.q.centre):,} parameters"))
    formula = [] if estimator.formula is None else [_code(estimator.formula)]
    return section("What was fitted", *formula, facts(pairs))


def _code(content: str) -> Html:
    return element("pre", element("code", content))


def _groups(estimator: MixedEstimator) -> str:
    if isinstance(estimator.groups_, dict):
        each = [f"{len(levels):,} of {name}" for name, levels in estimator.groups_.items()]
        return ", ".join(each)
    named = isinstance(estimator.group_, str)
    name = estimator.group_ if named else f"column {estimator.group_}"
    return f"{len(estimator.groups_):,} of {name}"


def _listed(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def predictions(subject: Subject) -> Html:
    """Show predictive check, calibration and residuals, or say why there are none."""
    estimator, checked = subject.estimator, subject.checked
    title = "Predictions against data"
    if checked is None:
        said = (
            "This part is left out because a fitted model does not keep its rows. For predictive "
            "checks, calibration and residuals, call report(path, X, y) with the rows of the fit "
            "or with new ones."
        )
        return section(title, paragraph(said))
    draw = subject.gallery.picture
    binary = estimator.posterior_.model.response.support.two_valued
    X, y = subject.X, subject.y
    if len(checked) < len(y):
        from sklearn.utils import resample  # slow to load, and rarely needed

        X, y = resample(X, y, replace=False, n_samples=MOST_ROWS, random_state=0)
    pictures = [
        *draw(
            lambda ax: plots.predictive_check(estimator, X, y, ax),
            "If the model fits, data simulated from it look like the observed data.",
        ),
        *draw(
            lambda ax: draw_residuals(estimator, checked, ax),
            "Averages should stay near zero throughout.",
        ),
        *draw(
            lambda axes: draw_calibration(estimator, checked, axes),
            "Grey: what chance alone would explain.",
            "How sure the model is of its predictions."
            if binary
            else "On the diagonal if calibrated; below it if intervals are too narrow.",
        ),
    ]
    sentences = [words.rows_checked(checked, len(subject.y)), words.accuracy(estimator, checked)]
    if not binary:
        sentences.append(words.coverage(checked))
    with warnings.catch_warnings():  # groups may be new
        warnings.simplefilter("ignore")
        distances = estimator.start_distances(X)
    if distances is not None:
        sentences.append(words.agreement(distances))
    return section(title, *map(paragraph, sentences), element("div", *pictures, class_="figures"))


def optimisation(subject: Subject) -> Html:
    """Show how the fit went."""
    estimator = subject.estimator
    pairs = [
        ("Steps", f"{estimator.n_iter_:,}"),
        ("Time", f"{estimator.seconds_:.1f} s"),
        ("ELBO", words.number(estimator.elbo_, 0.1)),
    ]
    if words.is_linear(estimator):  # that of a network belongs to one mode and means nothing
        pairs.append(("Log evidence", words.number(estimator.log_evidence_, 0.1)))
    known = [pair for pair in pairs if pair[1] != "-"]
    content: list[object] = [facts(known), paragraph(estimator.k_hat_meaning_)]
    if estimator.trace_.empty:
        content.append(paragraph(f"The method {estimator.method!r} keeps no trace."))
    else:
        caption = "The last stage: noisy, but it should no longer rise at the end."
        pictures = subject.gallery.picture(lambda ax: plots.trace(estimator, ax), caption)
        content.append(element("div", *pictures, class_="figures"))
    return section("Optimisation", *content)


def reproduction(subject: Subject) -> Html:
    """List code, settings and versions."""
    estimator = subject.estimator
    settings = estimator.get_params()
    usual = type(estimator)().get_params()
    changed = {k: v for k, v in settings.items() if repr(v) != repr(usual[k]) and k != "verbose"}
    lines = [
        "import nghvi",
        *(["from nghvi.priors import *"] if "priors" in changed else []),
        "",
        *_call(estimator, changed),
    ]
    versions = [(each, metadata.version(each)) for each in LIBRARIES]
    versions.append(("Python", platform.python_version()))
    rows = [[key, repr(value)] for key, value in settings.items()]
    return section(
        "How to reproduce this",
        _code("\n".join(lines)),
        facts(versions),
        element(
            "details",
            element("summary", "All settings"),
            table("Settings of the estimator", ["setting", "value"], rows, kind="text"),
        ),
    )


def _call(estimator: MixedEstimator, changed: dict[str, Any]) -> list[str]:
    """Return the lines of code that fit the model again and write the page."""
    if estimator.formula is None:
        name, arguments, rows = f"nghvi.{type(estimator).__name__}", [], "X, y"
    else:
        changed = {k: v for k, v in changed.items() if k not in SAID_BY_FORMULA}
        name, arguments = "nghvi.mixed", [repr(estimator.formula), "data"]
        rows = f"data, data[{parse(estimator.formula).response!r}]"
    given = ", ".join([*arguments, *(f"{key}={value!r}" for key, value in changed.items())])
    fit = "" if arguments else ".fit(X, y)"
    return [f"model = {name}({given}){fit}", f'model.report("report.html", {rows})']


def page_sections(subject: Subject) -> Html:
    """Return all sections in the order of the page."""
    model = (verdict, fitted, parameters, priors, groups, profiles)
    parts = (*model, predictions, optimisation, reproduction)
    return join(found for part in parts if (found := part(subject)) is not None)


RATIOS = ("q50", "q5", "q95")
MOST_PARAMETERS, MOST_EFFECTS, MOST_INPUTS = 16, 4, 4
MOST_IN_TITLE = 28
"""The most characters of a line above a small picture."""


def parameters(subject: Subject) -> Html:
    """Show coefficients, variance components and their densities."""
    estimator = subject.estimator
    drawn = tables.drawn_parameters(estimator.posterior_)
    summary: Any = drawn.summary
    features = list(tables.coefficient_names(estimator.posterior_))
    content: list[object] = []
    if not estimator.converged_:
        content.append(paragraph("Provisional: the fit is not finished.", class_="flag"))
    response = estimator.posterior_.model.response
    if response.link != "identity":
        content.append(paragraph(words.scale(estimator)))
    if words.is_linear(estimator):
        rows = [[n, *_numbers(summary.loc[n]), words.sign(summary.loc[n])] for n in features]
        heads = ["coefficient", "mean", "sd", "5 %", "95 %", "reading"]
        content.append(
            table("Population coefficients, 90 % intervals", heads, rows, kind="reading")
        )
        if response.ratio is not None:
            ratios = estimator.ratios()[[*RATIOS]].loc[features].astype(float)
            rows = [[row[0], *map(words.number, row[1:])] for row in ratios.itertuples()]
            said = f"{response.ratio.capitalize()}s: the factor when an input increases by 1"
            if "intercept" in features:
                said += "; the intercept's is the level where all inputs are 0"
            content.append(table(said, ["coefficient", "median", "5 %", "95 %"], rows))
    else:
        content.append(
            paragraph(
                "The coefficients of a network belong to learnt features (h1, h2, ...) and mean "
                "nothing on their own; the profiles below show what the network does."
            )
        )
    spread = [name for name in summary.index if name not in features]
    if not words.is_linear(estimator):
        spread = [name for name in spread if not name.startswith("effects_corr")]
    if spread:
        rows = [[_component(n), *_numbers(summary.loc[n])] for n in spread[:MOST_PARAMETERS]]
        heads = ["parameter", "mean", "sd", "5 %", "95 %"]
        only = all(name.startswith(("noise_", "effects_")) for name in spread)
        said = "Variance components" if only else "Variance components and other parameters"
        content.append(table(said + _cut(spread), heads, rows))
    shown = list(summary.index) if words.is_linear(estimator) else spread
    densities = [
        picture
        for name in shown[:MOST_PARAMETERS]
        for picture in subject.gallery.picture(partial(_density, drawn, name), "", size=SMALL)
    ]
    caption = "Posterior densities with 90 % intervals (bars)" + _cut(shown)
    content += [
        paragraph(f"{caption}.", class_="soft"),
        element("div", *densities, class_="figures small"),
    ]
    return section("Parameters", *content)


def priors(subject: Subject) -> Html | None:
    """List the parameters whose posterior depends on the priors; None if there are none."""
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
            _component(str(name)),
            f"{row['prior']:.2f}",
            f"{row['likelihood']:.2f}",
            ranges["prior"].get(name, "-"),
            row["diagnosis"],
        ]
        for name, row in found.iloc[:MOST_PARAMETERS].iterrows()
    ]
    said = (
        f"The posterior of these parameters depends on the priors (a sensitivity of {THRESHOLD} or "
        "more): if the priors were squared, it would move by about a quarter of its sd or more. "
        "That is to be expected where the data say little. Look at prior_summary() and choose "
        "priors that you can defend."
    )
    heads = ["parameter", "prior", "data", "stated prior", "reading"]
    title = "Sensitivity to priors and data" + _cut(list(found.index))
    return section("Priors that matter", paragraph(said), table(title, heads, rows, kind="texts"))


def _density(drawn: tables.Drawn, name: str, ax: Any) -> None:
    draw_density(drawn, name, ax)
    ax.set_title("\n".join(textwrap.wrap(_component(name), MOST_IN_TITLE)), fontsize=9)
    ax.xaxis.set_major_locator(MaxNLocator(3))


def _numbers(row: pd.Series) -> list[str]:
    return [words.number(row[each], row["sd"]) for each in ("mean", "sd", "q5", "q95")]


def _component(name: str) -> str:
    """Return a parameter's name in plain words."""
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
    """Show the effects of the groups in caterpillar plots; None without groups."""
    estimator = subject.estimator
    effects = estimator.posterior_.names.effects
    if not effects:
        return None
    said = "Dots are differences from the population; bars are 90 % intervals."
    if not words.is_linear(estimator):
        said += " The intercept is the response when all learnt features are zero."
    shown = effects[:MOST_EFFECTS] if words.is_linear(estimator) else effects[:1]
    factors = estimator.posterior_.names.factors
    found = tables.effects_tables(estimator.posterior_)  # all at once: none costs less

    def draw(ax: Any, effect: str) -> None:
        name, _, factor = effect.rpartition(" | ") if factors else (effect, "", "group")
        draw_caterpillar(found[factor], name, ax).set_title(f"Group effects: {effect}")

    pictures = [
        picture
        for effect in shown
        for picture in subject.gallery.picture(
            lambda ax, effect=effect: draw(ax, effect), "", size=TALL
        )
    ]
    return section("Groups", paragraph(said), element("div", *pictures, class_="figures"))


def profiles(subject: Subject) -> Html | None:
    """Show Lek profiles of the inputs that move a network's prediction most."""
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
        said += ", for the population and for groups with a low, a medium and a high response"
    content = element("div", *pictures, class_="figures")
    said += ". All other inputs are at their medians; bands are 90 % intervals of the expectation."
    inputs = estimator.reader_.inputs
    if len(names) < len(inputs):
        said += f" Not shown: {', '.join(n for n in inputs if n not in names)}."
    return section("Profiles", paragraph(said), content)


def _typical_groups(estimator: MixedEstimator, name: str, among: int = 50) -> list:
    """Return the groups with the lowest, a medium and the highest profile among some."""
    labels = estimator.groups_
    if isinstance(labels, dict) or not len(labels):
        return []
    some = labels[np.unique(np.linspace(0, len(labels) - 1, among).astype(int))].tolist()
    curves = interpret.lek_profile(estimator, name, some, n_grid=5, draws=50)
    order = curves.groupby("group")["mean"].mean().sort_values().index.tolist()
    return list(dict.fromkeys([order[0], order[len(order) // 2], order[-1]]))
