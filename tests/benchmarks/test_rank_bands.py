"""Bands of ranks, and the draws from priors that calibration by simulation begins with."""

import numpy as np
import pytest
import scipy.stats

from benchmarks import rank_bands, sbc, sbc_page
from benchmarks.sbc_cells import TwoFactors
from nghvi.priors import HalfT, HuangWand, Priors

DRAWS = 199


def calibrated_ranks(rng, sets, n, scale=1.0):
    """Ranks of standard normal truths among draws of N(0, scale^2)."""
    truth = rng.standard_normal((sets, n, 1))
    return np.sum(scale * rng.standard_normal((sets, n, DRAWS)) < truth, axis=2)


def test_uniform_ranks_stay_inside_at_the_stated_rate():
    limits = rank_bands.band(60, 0.95)
    assert 0.95 <= limits.probability < 0.953  # counts are discrete
    rng, sets = np.random.default_rng(1), 4000
    counts = np.array(
        [rank_bands.counts_below(r, DRAWS) for r in rng.integers(0, DRAWS + 1, (sets, 60))]
    )
    inside = np.all((counts >= limits.low) & (counts <= limits.high), axis=1).mean()
    error = np.sqrt(0.95 * 0.05 / sets)
    assert abs(inside - limits.probability) < 4 * error


def test_p_values_of_uniform_ranks_are_nearly_uniform_and_agree_with_the_band():
    rng = np.random.default_rng(2)
    ranks = rng.integers(0, DRAWS + 1, (400, 60))
    p_values = np.array([rank_bands.p_value(r, DRAWS) for r in ranks])
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 0.01
    limits = rank_bands.band(60, 0.95)
    counts = np.array([rank_bands.counts_below(r, DRAWS) for r in ranks])
    outside = np.any((counts < limits.low) | (counts > limits.high), axis=1)
    assert np.array_equal(outside, p_values <= 1 - limits.probability + 1e-9)


def test_a_posterior_that_is_too_narrow_is_caught():
    rng = np.random.default_rng(3)
    right, narrow = (calibrated_ranks(rng, 20, 200, scale) for scale in (1.0, 0.7))
    assert np.mean([rank_bands.p_value(r, DRAWS) < 0.05 for r in right]) <= 0.2
    assert all(rank_bands.p_value(r, DRAWS) < 0.01 for r in narrow)
    assert sbc_page.power(200, 0.7, 0.0) > 0.98


def test_holm_multiplies_the_smallest_by_all_and_never_reverses_the_order():
    np.testing.assert_allclose(rank_bands.holm(np.array([0.04, 0.01, 0.03])), [0.06, 0.03, 0.06])


def test_draws_that_do_not_fill_the_steps_are_refused():
    with pytest.raises(ValueError, match="multiple of 100"):
        rank_bands.counts_below(np.zeros(3, int), 150)


@pytest.mark.parametrize("r", [1, 2, 4])
def test_truths_come_from_the_prior_that_is_fitted(r):
    prior, rng = HuangWand(2.0, 0.7), np.random.default_rng(5)
    drawn = np.array([sbc.draw_huang_wand(rng, prior, r) for _ in range(3000)])
    sd = np.sqrt(drawn[:, 0, 0])
    signed = sd * rng.choice([-1, 1], sd.size)  # a half-t with a random sign is a t
    assert scipy.stats.kstest(signed, scipy.stats.t(2.0, scale=0.7).cdf).pvalue > 0.01
    if r > 1:
        rho = drawn[:, 0, 1] / sd / np.sqrt(drawn[:, 1, 1])
        assert scipy.stats.kstest(rho, scipy.stats.uniform(-1, 2).cdf).pvalue > 0.01


TINY = sbc.Cell(
    "tiny",
    "Gaussian, 10 groups",
    "gaussian",
    10,
    4,
    2,
    1,
    priors=Priors(coef_sd=1.0, noise=HalfT(3.0, 0.7), effects=HuangWand(2.0, 0.7)),
)


def test_default_fits_of_a_small_linear_model_are_calibrated():
    # Bonferroni over the quantities: exact posteriors fail this with a chance of at most 1 %, if
    # the seeds were not fixed.
    rows = [sbc.replicate(TINY, i) for i in range(30)]
    ranks = np.array([row["ranks"] for row in rows])
    p_values = [rank_bands.p_value(column, sbc.DRAWS) for column in ranks.T]
    assert min(p_values) > 0.01 / len(p_values), dict(zip(sbc.names(TINY), p_values, strict=True))
    assert np.mean([row["converged"] for row in rows]) > 0.9


@pytest.mark.parametrize("nested", [True, False])
def test_a_second_factor_adds_its_effects_and_quantities(nested):
    cell = TwoFactors("two", "", "gaussian", 12, 4, 3, 2, others=4, nested=nested)
    met = len(set(zip(cell.group, cell.other, strict=True)))
    assert met == 12 if nested else met > 24
    np.testing.assert_array_equal(np.bincount(cell.other), 12)
    truth, y = sbc.simulate(cell, 0)
    own = truth["effects[g]"][cell.group]
    expected = cell.design @ truth["coef"] + own[:, 0] + own[:, 1] * cell.design[:, 1]
    expected += truth["effects[h]"][cell.other, 0]
    np.testing.assert_allclose(sbc.linear_predictor(cell, truth), expected, rtol=1e-12)
    if nested:  # whose draws have the same names
        return
    drawn = sbc.fit(cell, y, 0).posterior_draws(5)
    assert {name: values.shape[1:] for name, values in drawn.items()} == {
        name: np.shape(value) for name, value in truth.items()
    }
    assert list(sbc.quantities(cell, drawn, y)) == sbc.names(cell)


def test_lines_of_another_model_or_a_double_one_are_not_counted(tmp_path):
    path, cell = tmp_path / "rows.jsonl", sbc.CELLS[0]
    line = {"model": cell.name, "is": cell.fingerprint, "replication": 1}
    for row in ({"about": {}}, line, {**line, "is": "old"}, {**line, "replication": 0}, line):
        sbc.append(path, row)
    assert [row["replication"] for row in sbc.load(path)[cell.name]] == [0, 1]


def test_the_page_says_what_the_lines_say():
    rng = np.random.default_rng(6)
    rows = [
        {
            "ranks": [int(a), int(b)],
            "z": [1.0, -1.0] if i else [3.0, 3.0],
            "converged": i > 0,
            "corrected": True,
            "k_hat": 0.5,
            "seconds": 1.0,
            "commit": "0123456",
        }
        for i, (a, b) in enumerate(
            zip(rng.integers(0, 200, 50), rng.integers(0, 40, 50), strict=True)
        )
    ]
    result = sbc_page.summarise("one", "one model", ["right", "wrong"], rows, DRAWS)
    assert result.alarms == ["wrong"]
    text = sbc_page.page([result])
    assert "| one model | 50 | 2 | 1 (0.1" in text
    assert "1 of 50 fits (2.0 %) did not get the verdict converged. Their mean z² is 9.00" in text
    assert "that of the others is 1.00" in text
    assert sbc_page.draw([result]).startswith(b"\x89PNG")


def test_the_kept_page_is_what_its_lines_make():
    """``python -m benchmarks.sbc --report`` writes it anew."""
    results = sbc.summaries(sbc.ROWS, [cell.name for cell in sbc.CELLS])
    assert sbc_page.PLACE.read_text() == sbc_page.page(results)
