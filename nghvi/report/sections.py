"""The parts of the page, each from the fitted estimator and the rows that were given."""

import platform
from importlib import metadata
from typing import Any

from sklearn.utils import resample

from nghvi import plots
from nghvi.estimators.formula import SAID_BY_FORMULA
from nghvi.formula import parse
from nghvi.plots.checks import draw_calibration, draw_residuals
from nghvi.report import words
from nghvi.report.html import Html, element, facts, join, paragraph, section, table
from nghvi.report.results import groups, parameters, priors, profiles
from nghvi.report.subject import Subject

MOST_ROWS = 5000
LIBRARIES = ("nghvi", "jax", "numpy", "scipy", "scikit-learn", "arviz-stats", "matplotlib")


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
            ("Groups", f"{len(estimator.groups_):,} of {_group_name(estimator)}"),
            ("Coefficients that vary by group", _listed(list(effects))),
        ]
    if hasattr(estimator, "classes_"):
        first, second = estimator.classes_
        pairs.append(("Classes", f"{first} (0) and {second} (1)"))
    if not words.is_linear(estimator):
        pairs.append(("Network", f"{len(posterior.inference.q.centre):,} parameters"))
    formula = [] if estimator.formula is None else [_code(estimator.formula)]
    return section("What was fitted", *formula, facts(pairs))


def _code(content: str) -> Html:
    return element("pre", element("code", content))


def _group_name(estimator: Any) -> str:
    return estimator.group_ if isinstance(estimator.group_, str) else f"column {estimator.group_}"


def _listed(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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
    ]
    if words.is_linear(estimator):  # that of a network belongs to one mode and means nothing
        pairs.append(("Log evidence", words.number(estimator.log_evidence_, 0.1)))
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


def _call(estimator: Any, changed: dict[str, Any]) -> list[str]:
    """The lines that fit it again and write the page."""
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
    """All parts in the order of the page."""
    model = (verdict, fitted, parameters, priors, groups, profiles)
    parts = (*model, predictions, optimisation, reproduction)
    return join(found for part in parts if (found := part(subject)) is not None)
