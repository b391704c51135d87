"""Rows without themselves under responses that are not Gaussian, against dense integrals."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import norm, poisson

import nghvi
from nghvi.posterior import left_out, pointwise
from nghvi.posterior.mixed_posterior import params_at

DRAWS = 120


@pytest.fixture(scope="module")
def counts():
    """Groups of one to four counts, one of which is far from the other of its group."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(24), np.tile([1, 2, 3, 4], 6))
    x = rng.normal(size=group.size)
    y = rng.poisson(np.exp(0.4 + 0.3 * x + 0.8 * rng.normal(size=24)[group]))
    y[np.flatnonzero(group == 5)[0]], y[np.flatnonzero(group == 5)[1]] = 400, 1
    frame = pd.DataFrame({"g": group, "x": x, "y": y})
    return frame.sample(frac=1, random_state=0, ignore_index=True)


@pytest.fixture(scope="module")
def of_counts(counts):
    return nghvi.mixed("y ~ x + (1 | g)", counts, response="poisson")


def parts(model, frame):
    """Rows group by group, and draws of theta."""
    rows, _ = pointwise.Observed(*model._rows_of_the_fit(frame, frame["y"])).by_group()
    return rows, model.posterior_.inference.pool.resample(DRAWS, np.random.default_rng(0))


def at(model, theta):
    """Coefficients and the root of the covariance of the effects."""
    own = model.posterior_.model
    params = params_at(own, model.posterior_.data, theta)
    return np.asarray(own.coef(params)), np.linalg.inv(np.asarray(own.precision_factor(params))).T


def test_counts_without_themselves_are_those_of_a_dense_integral(of_counts, counts):
    rows, theta = parts(of_counts, counts)
    posterior, u = of_counts.posterior_, np.linspace(-13, 13, 5201)
    found, given = (
        next(left_out.at_nodes(posterior, value, rows, theta, 0))
        for value in (pointwise.densities, pointwise.judged)
    )
    for draw in (0, 50):
        coef, root = at(of_counts, theta[draw])
        fixed = rows.x[:, : len(coef)] @ coef
        rate = np.exp(fixed[:, None] + root[0, 0] * u)
        fit = poisson.logpmf(rows.y[:, None], rate)
        for i in range(len(rows.y)):
            own = np.flatnonzero(rows.codes == rows.codes[i])
            whole = norm.logpdf(u) + fit[own].sum(axis=0)
            rest = norm.logpdf(u) + fit[own[own != i]].sum(axis=0)
            density = logsumexp(whole) - logsumexp(rest)
            assert found.without[draw, i] == pytest.approx(density, abs=0.01)
            assert given.log_density[draw, i] == pytest.approx(density, abs=0.01)
            seen = logsumexp(whole + fit[i]) - logsumexp(whole)
            if seen > -20:  # of the whole fit only the average over draws counts
                assert found.given_all[draw, i] == pytest.approx(seen, abs=0.01)
            share = np.exp(rest - logsumexp(rest))
            assert given.up_to[draw, i] == pytest.approx(
                share @ poisson.cdf(rows.y[i], rate[i]), abs=0.002
            )
            assert given.below[draw, i] == pytest.approx(
                share @ poisson.cdf(rows.y[i] - 1, rate[i]), abs=0.002
            )
            mean = share @ rate[i]
            spread = share @ (rate[i] + (rate[i] - mean) ** 2)
            assert given.mean[draw, i] == pytest.approx(mean, rel=0.02)
            assert given.variance[draw, i] == pytest.approx(spread, rel=0.05)


def test_few_rows_need_nodes_of_their_own(of_counts, counts, monkeypatch):
    rows, theta = parts(of_counts, counts)
    asked, own = [], left_out._with_own_nodes

    def counted(*args):
        asked.append(len(args[-2].y))
        return own(*args)

    monkeypatch.setattr(left_out, "_with_own_nodes", counted)
    next(left_out.at_nodes(of_counts.posterior_, pointwise.densities, rows, theta, 0))
    assert 0 < sum(asked) <= 4


def test_slopes_without_themselves_are_those_of_a_dense_integral():
    rng = np.random.default_rng(4)
    group, x = np.repeat(np.arange(20), 5), rng.normal(size=100)
    effects = rng.normal(size=(20, 2)) * [1.0, 0.7]
    eta = effects[group, 0] + effects[group, 1] * x
    frame = pd.DataFrame({"g": group, "x": x, "y": (eta + rng.logistic(size=100) > 0).astype(int)})
    model = nghvi.mixed("y ~ x + (1 + x | g)", frame, response="logit")
    rows, theta = parts(model, frame)
    found, given = (
        next(left_out.at_nodes(model.posterior_, value, rows, theta, 0))
        for value in (pointwise.densities, pointwise.judged)
    )
    axis = np.linspace(-7, 7, 141)
    u = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    for draw in (3, 77):
        coef, root = at(model, theta[draw])
        design = rows.x[:, :2]
        sign = 2 * rows.y - 1
        fit = np.log(expit(sign[:, None] * ((design @ coef)[:, None] + design @ root @ u.T)))
        for i in range(0, 100, 7):
            own = np.flatnonzero(rows.codes == rows.codes[i])
            whole = norm.logpdf(u).sum(axis=1) + fit[own].sum(axis=0)
            density = logsumexp(whole) - logsumexp(whole - fit[i])
            assert found.without[draw, i] == pytest.approx(density, abs=0.01)
            # Seven nodes of the predictor stand for all of them.
            assert given.log_density[draw, i] == pytest.approx(density, abs=0.01)
            mean = np.exp(density) if rows.y[i] == 1 else 1 - np.exp(density)
            assert given.mean[draw, i] == pytest.approx(mean, abs=0.01)


def test_rows_come_back_in_their_order_whatever_the_pieces(of_counts, counts, monkeypatch):
    whole = of_counts.loo(counts, counts["y"], draws=DRAWS)
    checked = of_counts.check_rows(counts, counts["y"], draws=DRAWS)
    monkeypatch.setattr(left_out, "NUMBERS_AT_ONCE", 7 * DRAWS)
    again = of_counts.loo(counts, counts["y"], draws=DRAWS)
    # Groups of the same size take shifts of the nodes in turn.
    np.testing.assert_allclose(again.elpd_i, whole.elpd_i, atol=5e-3)
    np.testing.assert_array_equal(checked["observed"], counts["y"])
    # The count of 400 is the least expected.
    assert np.argmin(np.asarray(whole.elpd_i)) == counts["y"].argmax()
    assert whole.num_unreliable <= 2


def test_large_tables_take_fewer_draws(of_counts, counts, monkeypatch):
    monkeypatch.setattr(left_out, "NUMBERS_AT_ALL", 1)
    assert of_counts.loo(counts, counts["y"], draws=2000).n_samples == left_out.FEWEST_AT_NODES
