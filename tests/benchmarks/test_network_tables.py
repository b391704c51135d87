"""The tables of decision 16 are those that the recorded rows make."""

import json
import pathlib

import pytest

from benchmarks import few_groups, function_space

PAGE = pathlib.Path(__file__).parents[2] / "docs/decisions/0016-networks-beside-their-inputs.md"


@pytest.mark.parametrize("module", [few_groups, function_space])
def test_the_decision_has_the_rows(module):
    text = module.OUT.read_text()
    rows = (
        json.loads(text)["nuts"]
        if module is function_space
        else [json.loads(line) for line in text.splitlines()]
    )
    page = PAGE.read_text()
    for line in module.lines(rows):
        assert line in page
