"""The page as a whole, and its file."""

import datetime
import pathlib

from nghvi._core.errors import StorageError
from nghvi._typing import Place
from nghvi.data.frame import DataError, Tabular, Vector
from nghvi.estimators._base import MixedEstimator
from nghvi.report.html import CSS, Gallery, Html, element, paragraph
from nghvi.report.sections import MOST_ROWS, Subject, page_sections
from nghvi.storage.file import place_of, replaced

TITLES = {True: "Report of a mixed classification", False: "Report of a mixed regression"}


def write_report(
    estimator: MixedEstimator,
    path: Place,
    X: Tabular | None = None,
    y: Vector | None = None,
) -> pathlib.Path:
    """Write the page to ``path``; an existing file is replaced completely or not at all."""
    place = place_of(path)
    if (X is None) != (y is None):
        raise DataError("report: give both X and y, or neither.")
    checked = None if X is None or y is None else estimator.check_rows(X, y, most=MOST_ROWS)
    content = page(Subject(estimator, X, y, checked, Gallery()))
    try:
        with replaced(place) as file:
            file.write(content.encode())
    except OSError as error:
        raise StorageError(
            f"{path}: the report cannot be written ({error.strerror}); free some space or choose "
            "another place."
        ) from error
    return pathlib.Path(path)


def page(subject: Subject) -> str:
    """Return the document as text."""
    title = TITLES[subject.estimator.posterior_.model.response.classes]
    now = datetime.datetime.now().astimezone()
    when = element("time", f"{now:%d %B %Y, %H:%M}", datetime=now.isoformat(timespec="minutes"))
    head = element(
        "head",
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{title}: {subject.response}"),
        element("style", Html(CSS)),
    )
    body = element(
        "body",
        element(
            "header",
            element("h1", f"{title}: {subject.response}"),
            paragraph(f"{type(subject.estimator).__name__}, made by nghvi on ", when, "."),
        ),
        element("main", page_sections(subject)),
        element(
            "footer",
            "Intervals are 90 % credible intervals. This page is complete: it loads nothing.",
        ),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
