"""The documented example of an own model runs and gets it right."""

import importlib.util
import pathlib

import numpy as np
import pytest

import nghvi

EXAMPLE = pathlib.Path(__file__).parent.parent / "docs" / "extending" / "tobit.py"


@pytest.fixture(scope="module")
def tobit():
    spec = importlib.util.spec_from_file_location("tobit", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sampled_and_integrated_tobit_agree(tobit):
    data = tobit.simulate(300)
    sampled = nghvi.infer(tobit.Tobit(), data)
    integrated = nghvi.infer(tobit.IntegratedTobit(), data)
    assert sampled.converged
    assert integrated.converged
    ours, theirs = sampled.draws(4000), integrated.draws(4000)
    np.testing.assert_array_less(
        np.abs(ours.beta.mean(0) - theirs.beta.mean(0)) / theirs.beta.std(0), 0.12
    )
    np.testing.assert_allclose(ours.beta.std(0), theirs.beta.std(0), rtol=0.12)
    assert np.isnan(sampled.elbo)
    assert integrated.elbo <= integrated.log_evidence
