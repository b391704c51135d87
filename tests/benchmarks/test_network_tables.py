"""The tables of decisions 16, 25, 30 and 31 are those that the recorded rows make."""

import json
import pathlib

import pytest

from benchmarks import few_groups, fewer_rows, function_space, slopes_by_group

DECISIONS = pathlib.Path(__file__).parents[2] / "docs/decisions"


@pytest.mark.parametrize(
    ("module", "page"),
    [
        (few_groups, "0016-networks-beside-their-inputs.md"),
        (function_space, "0030-chains-from-the-draws-of-small-networks.md"),
        (slopes_by_group, "0031-slopes-by-evidence.md"),
        (fewer_rows, "0025-coefficients-integrated-out.md"),
    ],
)
def test_the_decision_has_the_rows(module, page):
    text = module.OUT.read_text()
    rows = (
        json.loads(text)["nuts"]
        if module is function_space
        else [json.loads(line) for line in text.splitlines()]
    )
    said = (DECISIONS / page).read_text()
    for line in module.lines(rows):
        assert line in said
