"""Pareto smoothed weights against arviz-stats, and a polynomial in place of a log density."""

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.special import gammaln

from nghvi.recipes import importance
from nghvi.recipes.importance import Pool, pareto_smoothed, smooth_weights
from nghvi.recipes.surface import (
    BULK,
    PENALTIES,
    Surface,
    _best_ridge,
    _polynomials,
    _slopes,
    _terms,
    fitted_surface,
)


@pytest.mark.parametrize("draws", [30, 225, 1000])
def test_weights_and_shapes_are_those_of_arviz(draws):
    rng = np.random.default_rng(draws)
    log_ratio = np.linspace(0.01, 4, 12)[:, None] * rng.standard_t(3, size=(12, draws))
    log_weight, shape = pareto_smoothed(log_ratio)
    expected, expected_shape = array_stats.psislw(-log_ratio)
    np.testing.assert_allclose(log_weight, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(shape, expected_shape, rtol=0, atol=1e-12)


def test_the_shape_is_that_of_the_tail():
    """Exponentials of exponential variables with mean k have Pareto tails of shape k, which 948
    weights tell with sds of (1 + k) / sqrt(948): three are allowed."""
    rng = np.random.default_rng(0)
    k = np.array([0.2, 0.5, 0.9])
    _, shape = pareto_smoothed(k[:, None] * rng.exponential(size=(3, 100_000)))
    np.testing.assert_array_less(np.abs(shape - k), 3 * (1 + k) / np.sqrt(948))


def test_weights_without_a_tail_stay():
    equal, astray = np.full(100, -3.0), np.where(np.arange(100) == 7, 0.0, -1e6)
    log_weight, shape = pareto_smoothed(np.stack([equal, astray]))
    np.testing.assert_allclose(np.exp(log_weight), [np.full(100, 0.01), astray == 0], atol=1e-12)
    np.testing.assert_array_equal(shape, [0, np.inf])
    with pytest.raises(ValueError, match="24 draws have no tail"):
        pareto_smoothed(np.arange(24.0))


def test_matched_draws_have_the_moments_of_all():
    rng = np.random.default_rng(0)
    theta = rng.gamma(2.0, size=(4096, 3)) @ rng.normal(size=(3, 3))
    weight = rng.random(4096)
    pool = Pool(theta, weight / weight.sum(), 0.0, True)
    few = pool.matched(50, rng)
    mean = pool.weight @ theta
    covariance = (pool.weight * (theta - mean).T) @ (theta - mean)
    np.testing.assert_allclose(few.mean(axis=0), mean, rtol=1e-12)
    np.testing.assert_allclose(np.cov(few.T, bias=True), covariance, rtol=1e-10)
    fewer = pool.matched(10, np.random.default_rng(1))
    np.testing.assert_array_equal(fewer, pool.resample(10, np.random.default_rng(1)))
    alike = Pool.plain(np.ones((64, 3)))
    np.testing.assert_array_equal(alike.matched(50, rng), np.ones((50, 3)))


def _draws(m: int, size: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    heavy = np.sqrt(rng.chisquare(7, size=(size, 1)) / 7)
    return rng.normal(size=(size, m)) / heavy


def _log_t(x: np.ndarray) -> np.ndarray:
    m = x.shape[1]
    return gammaln((7 + m) / 2) - (7 + m) / 2 * np.log1p(np.sum(x**2, axis=1) / 7)


def _weights(x: np.ndarray, log_density: np.ndarray) -> np.ndarray:
    return smooth_weights(log_density - _log_t(x))[0]


def test_a_quartic_is_found_exactly() -> None:
    def log_density(x: np.ndarray) -> np.ndarray:
        a, b, c = x.T
        odd = 0.1 * a * b * c + 0.05 * a**3 - 0.02 * b**2 * c**2
        return 300 - 0.5 * np.sum(x**2, axis=1) + 0.3 * a * b + odd - 0.01 * a**4

    x = _draws(3, 400, 1)
    surface = fitted_surface(x, log_density(x), _weights(x, log_density(x)))
    assert surface is not None
    fresh = _draws(3, 200, 2)
    inside = surface.holds(fresh)
    assert 0.8 < inside.mean() < 1
    # The smallest penalty is not zero.
    np.testing.assert_allclose(surface(fresh)[inside], log_density(fresh)[inside], atol=1e-3)


@pytest.mark.parametrize("m", [2, 5])
def test_means_and_sds_of_a_skewed_posterior(m: int) -> None:
    """For log-gamma variables, compared with weights by the density itself at the same points."""

    def log_density(x: np.ndarray) -> np.ndarray:
        return np.sum(8 * x / np.sqrt(8) - 8 * np.exp(x / np.sqrt(8)), axis=1)

    x = _draws(m, 512, 3)
    surface = fitted_surface(x, log_density(x), _weights(x, log_density(x)))
    assert surface is not None
    fresh = _draws(m, 2048, 4)
    exact = log_density(fresh)
    mixed = np.where(surface.holds(fresh), surface(fresh), exact)
    pools = [Pool(fresh, _weights(fresh, each), 0.0, True) for each in (exact, mixed)]
    means = [pool.weight @ pool.theta for pool in pools]
    sds = [
        np.sqrt(pool.weight @ (fresh - mean) ** 2) for pool, mean in zip(pools, means, strict=True)
    ]
    assert np.abs(means[1] - means[0]).max() < 0.01 * sds[0].min()
    np.testing.assert_allclose(sds[1], sds[0], rtol=0.01)


@pytest.mark.parametrize("together", [1, 3])
def test_the_best_ridge_is_the_one_that_leaving_draws_out_finds(together: int) -> None:
    """Whole draws are left out, each with a value and perhaps a gradient; values are predicted."""
    rng = np.random.default_rng(7)
    rows, wanted = rng.normal(size=(40, together, 9)), rng.normal(size=(40, together))
    held = np.arange(9) > 2

    def fitted(penalty: float, kept: np.ndarray) -> np.ndarray:
        flat, target = rows[kept].reshape(-1, 9), wanted[kept].ravel()
        return np.linalg.solve(flat.T @ flat + penalty * np.diag(held), flat.T @ target)

    def missed(penalty: float) -> float:
        others = ~np.eye(40, dtype=bool)
        left = [wanted[i, 0] - rows[i, 0] @ fitted(penalty, others[i]) for i in range(40)]
        return float(np.linalg.norm(left))

    best = min(PENALTIES, key=missed)
    error, coefficients = _best_ridge(rows, wanted, held)
    assert error == pytest.approx(missed(best), rel=1e-6)
    np.testing.assert_allclose(coefficients, fitted(best, np.full(40, True)), rtol=1e-9)


def test_slopes_of_a_surface_are_its_central_differences() -> None:
    x, terms, width = _draws(3, 5, 8), _terms(3, 4), 1e-5
    for column, step in enumerate(width * np.eye(3)):
        by_step = (_polynomials(x + step, terms) - _polynomials(x - step, terms)) / (2 * width)
        found = _slopes(_polynomials(x, terms), terms, 3)[:, column]
        np.testing.assert_allclose(found, by_step, rtol=1e-6, atol=1e-6)


def test_gradients_make_a_surface_of_a_fifth_of_the_draws() -> None:
    """Its error at fresh points is below that of a surface through five times as many densities."""

    def log_density(x: np.ndarray) -> np.ndarray:
        return np.sum(8 * x / np.sqrt(8) - 8 * np.exp(x / np.sqrt(8)), axis=1)

    rng, m = np.random.default_rng(9), 5
    few, many, fresh = (rng.normal(size=(size, m)) for size in (60, 300, 1000))
    score = 8 / np.sqrt(8) * (1 - np.exp(few / np.sqrt(8)))
    found = [
        fitted_surface(few, log_density(few), np.full(60, 1 / 60), score),
        fitted_surface(many, log_density(many), np.full(300, 1 / 300)),
    ]
    errors = [
        float(np.std((each(fresh) - log_density(fresh))[each.holds(fresh)]))
        for each in found
        if isinstance(each, Surface)
    ]
    assert errors[0] < errors[1] < 0.15


def test_what_is_no_polynomial_is_not_taken_for_one() -> None:
    x = _draws(2, 512, 5)
    log_density = -0.5 * np.sum(x**2, axis=1) + 2 * np.sin(6 * x[:, 0])
    assert fitted_surface(x, log_density, _weights(x, log_density)) is None


def test_few_points_make_no_surface() -> None:
    x = _draws(6, 20, 6)
    log_density = -0.5 * np.sum(x**2, axis=1) - np.sum(np.cosh(x), axis=1)
    assert fitted_surface(x, log_density, np.full(20, 1 / 20)) is None


def log_gammas(x: np.ndarray) -> np.ndarray:
    """The log density of log-gamma variables of shape 8, with sds near 1."""
    return np.sum(8 * x / np.sqrt(8) - 8 * np.exp(x / np.sqrt(8)), axis=1)


def test_a_surface_moves_the_proposal_without_densities() -> None:
    """Moments of half a million exact draws; those by 4,096 even draws miss them by less than .03,
    and sds by the 1 % of the probability that is left out, and by chance by .03."""
    x = _draws(3, 512, 1)
    surface = fitted_surface(x, log_gammas(x), _weights(x, log_gammas(x)))
    assert surface is not None
    off = 0.5 + 0.6 * _draws(3, 100, 2)
    rough = Pool(off, np.full(100, 0.01), 0.0, False)
    moved = importance._moved(rough, surface, 12, np.random.default_rng(0))
    mean = moved.weight @ moved.theta
    exact = np.sqrt(8) * np.log(np.random.default_rng(1).gamma(8, 1 / 8, (500_000, 3)))
    np.testing.assert_allclose(mean, exact.mean(axis=0), atol=0.05)
    sd = np.sqrt(moved.weight @ (moved.theta - mean) ** 2)
    np.testing.assert_allclose(sd / exact.std(axis=0), 0.97, atol=0.04)


@pytest.mark.parametrize("kink", [0.0, 3.0, -30.0])
def test_in_the_tails_a_surface_is_used_only_if_it_predicts(kink, monkeypatch) -> None:
    """Beyond the region of the fit, the density may have a step that the surface cannot know, up or
    down to nothing."""
    x = _draws(3, 512, 1)
    surface = fitted_surface(x, log_gammas(x), _weights(x, log_gammas(x)))
    assert surface is not None

    def log_density(x: np.ndarray) -> np.ndarray:
        return log_gammas(x) + kink * ~surface.holds(x)

    asked = []

    def counted(model, data, theta, batch):
        asked.append(len(theta))
        return log_density(theta)

    monkeypatch.setattr(importance, "log_targets", counted)
    fresh = _draws(3, 4096, 4)
    found = importance._by_surface(surface, None, None, fresh, _log_t(fresh), None)
    far = int(np.sum(~surface.holds(fresh, BULK)))
    # All of them, or those very far out and twice thirty-two others.
    assert (sum(asked) == far) == (kink != 0)
    weights = [_weights(fresh, each) for each in (log_density(fresh), found)]
    np.testing.assert_allclose(weights[0] @ fresh, weights[1] @ fresh, atol=0.01)
