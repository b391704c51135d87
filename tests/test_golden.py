"""Numbers that moves and merges must not change, and models saved by an earlier state."""

import json

import numpy as np
import pytest

import nghvi
from tests import golden

KEPT = json.loads(golden.NUMBERS.read_text())


def differs(found, kept, rtol, where=""):
    """Places at which two trees of numbers and words are not the same."""
    if isinstance(kept, dict):
        assert list(found) == list(kept), where
        return [place for k in kept for place in differs(found[k], kept[k], rtol, f"{where}/{k}")]
    if isinstance(kept, str):
        return [] if found == kept else [f"{where}: {found} for {kept}"]
    # Numbers of one list share a scale, so those near zero need only be as close as the others.
    size = np.abs(kept).max()
    close = np.allclose(found, kept, rtol=rtol, atol=rtol * size, equal_nan=True)
    return [] if close else [f"{where}: {found} for {kept}"]


@pytest.mark.parametrize("name", golden.CASES)
def test_fit_has_the_numbers_that_were_kept(name):
    found = json.loads(json.dumps(golden.numbers(name)))
    assert differs(found, KEPT[name], golden.CASES[name].rtol) == []


@pytest.mark.parametrize("name", golden.SAVED)
def test_saved_model_loads_and_predicts_as_recorded(name):
    model = nghvi.load(golden.saved(name))
    assert model.status_ == KEPT[name]["status"]
    found = golden.predicted(model, golden.CASES[name].binary)
    assert differs(found, KEPT[name]["predicted"], golden.NEWTON) == []
    assert list(model.summary().index) == list(KEPT[name]["summary"])


def test_saved_models_are_small():
    assert sum(path.stat().st_size for path in golden.FILES.iterdir()) < 600_000
