"""The page of measurements says what the recorded rows say."""

import re

import pytest

from benchmarks import measured_page, prose


def test_the_page_is_what_its_rows_make():
    """``make results-page`` writes it anew."""
    assert measured_page.PAGE.read_text() == measured_page.page()


@pytest.mark.parametrize("name", prose.NAMES)
def test_pages_of_prose_have_the_figures_of_their_rows(name):
    (place,) = (place for place in prose.pages() if place.name == name)
    assert place.read_text() == prose.pages()[place]


def test_a_changed_row_changes_the_page(monkeypatch):
    def read(name, usual=measured_page.read):
        held = usual(name)
        if name == "calibration":
            held["rows"][0] |= {"mean_error": 7.0, "converged": False}
        return held

    monkeypatch.setattr(measured_page, "read", read)
    page = measured_page.page()
    assert "47 of 48 default fits converge, and their means are within 7.000 (linear)" in page
    assert page != measured_page.PAGE.read_text()


@pytest.mark.parametrize("name", ["results.md", *prose.NAMES])
def test_tables_can_be_read(name):
    """At most eight columns."""
    text = (measured_page.PAGE.parent / name).read_text()
    heads = re.findall(r"^\| (?:--- \| ?)+$", text, re.MULTILINE)
    assert heads
    assert max(head.count("---") for head in heads) <= 8
