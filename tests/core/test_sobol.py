"""Evenly spread points: SciPy's sequence is the oracle."""

import numpy as np
import pytest
from scipy.stats.qmc import Sobol

from nghvi._core.sobol import STARTS, sobol


@pytest.mark.parametrize("dim", [1, 2, 5, len(STARTS) + 1, len(STARTS) + 2])
@pytest.mark.parametrize("log2_points", [0, 1, 9])
def test_the_points_are_those_of_scipy(dim, log2_points):
    expected = Sobol(dim, rng=np.random.default_rng(3)).random_base2(log2_points)
    found = sobol(dim, log2_points, np.random.default_rng(3))
    np.testing.assert_array_equal(found, expected)


def test_the_generator_is_left_where_scipy_leaves_it():
    one, other = (np.random.default_rng(1) for _ in range(2))
    sobol(4, 3, one), Sobol(4, rng=other).random_base2(3)
    assert one.random() == other.random()
