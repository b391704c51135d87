"""The report: a valid page that loads nothing, says what is wrong and escapes what it is given."""

import os
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import nghvi
from nghvi.estimators.tables import Drawn, effects_table, effects_tables
from nghvi.posterior.mixed_posterior import Named
from nghvi.report import sections, words

VOID = {"meta", "br", "hr", "img", "link", "input"}
NASTY = '<script>alert("1")</script> & $x'


class Page(HTMLParser):
    """Elements, identifiers and references of a page; complains about tags that do not match."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(content)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> occurs twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    def all(self, *names: str) -> list[dict]:
        return [attrs for tag, attrs in self.tags if tag in names]

    def headings(self) -> list[str]:
        return [attrs["id"] for attrs in self.all("h2")]


def checked_page(path) -> Page:
    """The page, if it is valid, accessible and needs nothing from elsewhere."""
    content = path.read_text(encoding="utf-8")
    page = Page(content)
    assert content.startswith("<!DOCTYPE html>")
    assert path.stat().st_size < 3e6
    assert not page.all("script", "link", "iframe", "img", "image", "object")
    assert not re.search(r"https?:|@import|\bfile:", content)
    identifiers = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(identifiers)) == len(identifiers)
    used = {attrs["href"] for attrs in page.all("use")}
    used |= {f"#{attrs['aria-labelledby']}" for attrs in page.all("section")}
    used |= set(re.findall(r"url\((#[^)]*)\)", content))
    assert used <= {f"#{each}" for each in identifiers}
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all(
        "meta"
    )
    assert all(each["role"] == "img" and each["aria-label"] for each in page.all("svg"))
    assert all(each["scope"] in ("row", "col") for each in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert len(page.all("h1")) == len(page.all("title")) == 1
    assert "prefers-color-scheme: dark" in content
    assert "@media print" in content
    # No ink or colour of the drawing is left: all come from the page.
    assert not re.search(r"#010203|#2a6f97(?=[^;]*\")", content.split("</style>")[1])
    return page


@pytest.mark.parametrize("name", ["linear", "classes", "deep"])
def test_every_kind_of_estimator_has_a_report(name, fitted_case, tmp_path):
    estimator, X, y = fitted_case(name)
    path = tmp_path / "report.html"
    assert estimator.report(path, X, y) == path
    page = checked_page(path)
    expected = ["verdict", "what-was-fitted", "parameters"]
    expected += ["groups"] * bool(len(estimator.groups_)) + ["profiles"] * (name == "deep")
    assert page.headings() == [
        *expected,
        *("predictions-against-data", "optimisation", "how-to-reproduce-this"),
    ]
    assert f"nghvi.{type(estimator).__name__}(" in page.text
    assert "leave-one-out" in page.text
    # Sixty steps of a network tell nothing.
    assert ("Not settled" in page.text) == (name == "deep")
    assert ("more probable class" in page.text) == (name == "classes")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_converged_fit_is_said_to_be_usable(fitted, panel, tmp_path):
    fitted.report(tmp_path / "r.html")
    page = checked_page(tmp_path / "r.html")
    assert "The results below can be used." in page.text
    assert "What to do" not in page.text
    assert "because a fitted model does not keep its rows." in page.text
    row = fitted.summary().loc["b"]
    assert words.number(row["mean"], row["sd"]) in page.text
    assert "sd between groups: a" in page.text


def test_an_unconverged_fit_opens_with_what_to_do(fitted_case, tmp_path):
    estimator, X, y = fitted_case("classes without groups")
    assert not estimator.converged_
    estimator.report(tmp_path / "r.html", X, y)
    page = checked_page(tmp_path / "r.html")
    first = page.text[: page.text.index("What was fitted")]
    for said in ("Not converged", "What to do", 'method="auto"', "Do not use the numbers below"):
        assert said in first
    assert "Provisional" in page.text
    assert page.all("section")[0]["class"] == "verdict bad"


def test_names_are_escaped(panel, tmp_path):
    labels = [f"<{k}&'\"" for k in panel["g"]]
    X = pd.DataFrame({"gr\u00fcn<\u5e74>&": labels, NASTY: panel["a"], "b": panel["b"]})
    y = pd.Series(panel["y"].to_numpy(), name="<i>y</i>")
    model = nghvi.MixedRegressor(X.columns[0], random=["intercept", NASTY]).fit(X, y)
    model.report(tmp_path / "r.html", X, y)
    page = checked_page(tmp_path / "r.html")
    assert page.text.count(NASTY) > 2
    assert "<0&'\"" in page.text
    assert "Report of a mixed regression: <i>y</i>" in page.text
    assert "gr\u00fcn<\u5e74>&" in page.text


def test_many_rows_are_not_all_drawn(fitted, panel, tmp_path, monkeypatch):
    for module in ("page", "sections"):
        monkeypatch.setattr(f"nghvi.report.{module}.MOST_ROWS", 245)
    fitted.report(tmp_path / "r.html", panel[["g", "a", "b"]], panel["y"])
    page = checked_page(tmp_path / "r.html")
    assert "245 of 247 rows, drawn at random" in page.text


def test_places_that_cannot_be_written_are_named(fitted, panel, tmp_path):
    with pytest.raises(ValueError, match="there is no directory"):
        fitted.report(tmp_path / "missing" / "r.html")
    with pytest.raises(ValueError, match="this is a directory"):
        fitted.report(tmp_path)
    with pytest.raises(nghvi.DataError, match="both X and y"):
        fitted.report(tmp_path / "r.html", panel[["g", "a", "b"]])
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("value", "sd", "shown"),
    [
        (251.4051, 8.42, "251.4"),
        (-0.123456, 0.0123, "\N{MINUS SIGN}0.123"),
        (15237.2, 6256.0, "15,237"),
        (1.5e-9, 1e-9, "1.5e-09"),
        (0.0, 0.0, "0"),
        (np.nan, 1.0, "-"),
        (27.9512, np.nan, "27.95"),
    ],
)
def test_numbers_have_the_digits_that_mean_something(value, sd, shown):
    assert words.number(value, sd) == shown


def test_words_about_coverage_and_rows():
    def rows(pit, k_hat=np.nan):
        found = pd.DataFrame({"pit": pit, "k_hat": k_hat})
        found.attrs["rows"] = "new" if np.isnan(k_hat) else "of the fit"
        return found

    flat = (np.arange(1000) + 0.5) / 1000
    assert words.coverage(rows(flat)).count("as they should") == 2
    assert words.coverage(rows(0.5 + (flat - 0.5) / 2)).count("too wide") == 2
    ends = np.where(flat < 0.5, flat / 4, 1 - (1 - flat) / 4)
    assert words.coverage(rows(ends)).count("too narrow") == 2
    assert "a test on new data" in words.rows_checked(rows(flat), 1000)
    assert "For 1000 very influential rows" in words.rows_checked(rows(flat, 0.9), 1000)


def test_a_full_disk_is_named(fitted, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(nghvi.InputError, match=r"report.html: .*No space left.*free some space"):
        fitted.report(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_long_names_are_broken_above_small_pictures():
    values = {"effects_sd[intercept | student]": np.linspace(0.5, 1.5, 50)}
    row = {"mean": 1.0, "sd": 0.3, "q5": 0.6, "q95": 1.4}
    drawn = Drawn(values, np.full(50, 0.02), pd.DataFrame([row], index=list(values)))
    ax = Figure().add_subplot()
    sections._density(drawn, next(iter(values)), ax)
    assert ax.get_title() == "sd between groups: intercept\n| student"


def test_effects_of_all_factors_are_computed_once():
    asked = []

    class Posterior:
        names = Named.of_factors(
            ("intercept",),
            [("intercept",), ("intercept", "x")],
            {"firm": np.array(["a", "b"]), "month": np.array([1, 2, 3])},
        )

        def effect_moments(self):
            asked.append(1)
            return [(np.full((k, r), 0.5), np.ones((k, r))) for k, r in ((2, 1), (3, 2))]

    found = effects_tables(Posterior())
    assert len(asked) == 1
    assert {name: table.shape for name, table in found.items()} == {"firm": (2, 2), "month": (3, 4)}
    pd.testing.assert_frame_equal(effects_table(Posterior(), "month"), found["month"])
