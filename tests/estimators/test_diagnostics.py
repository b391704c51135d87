"""Leave-one-out, comparison of models and ArviZ trees, checked by independent computations."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import invgamma, norm

import nghvi
from nghvi.data.fingerprint import Fingerprint
from nghvi.estimators.tables import Draws, k_hat_meaning
from nghvi.posterior import left_out, pointwise
from nghvi.posterior.arviz import psis_loo
from nghvi.priors import InverseGamma, Priors

COLUMNS = ["g", "a", "b"]
PRIORS = Priors(coef_sd=3.0, noise=InverseGamma(3.0, 2.0), effects=InverseGamma(3.0, 1.0))


class Exact(NamedTuple):
    """Leave-one-out by refitting: log density, mean and distribution function of each row."""

    elpd: np.ndarray
    mean: np.ndarray
    cdf: np.ndarray


@pytest.fixture(scope="module")
def tiny():
    """Return six groups of four rows with a random intercept: given two variances, all Gaussian."""
    rng = np.random.default_rng(5)
    group = np.repeat(np.arange(6), 4)
    x = rng.normal(size=24)
    y = 1 + 0.5 * x + rng.normal(size=6)[group] + 0.8 * rng.normal(size=24)
    return pd.DataFrame({"g": group, "x": x}), y


def exact_loo(inputs: pd.DataFrame, y: np.ndarray) -> Exact:
    """Leave each row out of the model, with variances on a grid and the rest integrated out."""
    x = np.column_stack([np.ones(len(y)), inputs["x"]])
    same = (inputs["g"].to_numpy()[:, None] == inputs["g"].to_numpy()) * 1.0
    log_v, log_t = (
        a.ravel() for a in np.meshgrid(np.linspace(-2.5, 2, 45), np.linspace(-4, 4, 45))
    )
    v, t = np.exp(log_v), np.exp(log_t)
    log_prior = invgamma.logpdf(v, 3, scale=2) + log_v + invgamma.logpdf(t, 3, scale=1) + log_t
    cov = v[:, None, None] * np.eye(len(y)) + t[:, None, None] * same + 9 * x @ x.T
    rows = []
    for i in range(len(y)):
        keep = np.arange(len(y)) != i
        rest, across = cov[:, keep][:, :, keep], cov[:, keep, i]
        solved = np.linalg.solve(rest, np.stack(np.broadcast_arrays(y[keep], across), axis=-1))
        log_density = -0.5 * (y[keep] @ solved[:, :, 0].T + np.linalg.slogdet(rest)[1])
        log_weight = log_density + log_prior
        weight = np.exp(log_weight - logsumexp(log_weight))
        mean = np.sum(across * solved[:, :, 0], axis=1)
        sd = np.sqrt(cov[:, i, i] - np.sum(across * solved[:, :, 1], axis=1))
        density = weight @ norm.pdf(y[i], mean, sd)
        rows.append((np.log(density), weight @ mean, weight @ norm.cdf(y[i], mean, sd)))
    return Exact(*np.array(rows).T)


@pytest.fixture(scope="module")
def tiny_fit(tiny):
    return nghvi.MixedRegressor("g", priors=PRIORS, standardize=False).fit(*tiny)


def test_leave_one_out_is_that_of_refits(tiny, tiny_fit):
    """Over eight seeds the sum was off by 0.02 +- 0.04, a row by up to 0.05; 5 sds are allowed."""
    exact = exact_loo(*tiny)
    found = tiny_fit.loo(*tiny, draws=2000)
    assert found.elpd == pytest.approx(exact.elpd.sum(), abs=0.2)
    np.testing.assert_allclose(found.elpd_i, exact.elpd, atol=0.1)
    assert found.se == pytest.approx(np.sqrt(24 * exact.elpd.var()), rel=0.1)
    in_sample = tiny_fit.log_densities(*tiny, draws=2000)
    assert found.p == pytest.approx(in_sample.sum() - exact.elpd.sum(), abs=0.3)
    checked = tiny_fit.check_rows(*tiny, draws=2000)
    np.testing.assert_allclose(checked["predicted"], exact.mean, atol=0.1)
    np.testing.assert_allclose(checked["pit"], exact.cdf, atol=0.02)


def test_rows_that_were_not_fitted_are_predicted_as_they_are(tiny, tiny_fit):
    X, y = tiny
    y = y + 0.01
    some = tiny_fit.check_rows(X[:20], y[:20], draws=200)
    mean, sd = tiny_fit.predict(X[:20], return_std=True)
    np.testing.assert_allclose(some["predicted"], mean)
    np.testing.assert_allclose(some["sd"], sd)
    assert some["k_hat"].isna().all()
    drawn = tiny_fit.sample_predictive(X[:20], 20_000)
    # 5 standard errors of a share of 20,000 draws, in addition to the noise of 200 thetas.
    np.testing.assert_allclose(some["pit"], (drawn < y[:20]).mean(axis=0), atol=0.05)
    new = tiny_fit.check_rows(X.assign(g=99), y)
    assert new["k_hat"].isna().all()


@pytest.mark.parametrize("name", ["linear", "classes", "deep", "without groups"])
def test_rows_of_the_fit_are_known_by_their_values(name, fitted_case, tmp_path):
    """Equally many rows of the same groups are other rows; the same in another order are not."""
    estimator, X, y = fitted_case(name)
    X, y = pd.DataFrame(X).reset_index(drop=True), np.asarray(y)
    moved = X.assign(a=X["a"] + 1e-9)
    order = np.random.default_rng(0).permutation(len(X))
    estimator.save(tmp_path / "model")
    for fitted in (estimator, nghvi.load(tmp_path / "model")):
        shuffled = fitted.check_rows(X.iloc[order], y[order], draws=50)
        assert shuffled["k_hat"].notna().all()
        assert shuffled.attrs["rows"] == "of the fit"
        new = fitted.check_rows(moved, y, draws=50)
        assert new["k_hat"].isna().all()
        assert new.attrs["rows"] == "new"
        with pytest.raises(nghvi.DataError, match="other values than the rows of the fit"):
            fitted.loo(moved, y, draws=100)


def test_other_responses_of_the_same_inputs_are_new_rows(fitted, panel):
    swapped = np.r_[panel["y"][1:], panel["y"][:1]]
    assert fitted.check_rows(panel[COLUMNS], swapped, draws=50).attrs["rows"] == "new"


def test_a_part_of_the_rows_of_the_fit_is_pointed_at(fitted, panel, tmp_path):
    X, y = panel[COLUMNS], panel["y"]
    with pytest.warns(nghvi.DataWarning, match="most of these rows are rows of the fit"):
        checked = fitted.check_rows(X[:90], y[:90], draws=50)
    assert checked["k_hat"].isna().all()
    with pytest.warns(nghvi.DataWarning, match="most of these rows"):
        fitted.report(tmp_path / "page.html", X[:90], y[:90])
    assert "so the results look better than they are" in (tmp_path / "page.html").read_text()
    with pytest.warns(nghvi.DataWarning, match=r"check_rows\(X, y\)"):
        fitted.pit(X, y)


def test_the_report_says_that_rows_were_held_out(panel, tmp_path):
    train, test = panel[::2], panel[1::2]
    fitted = nghvi.MixedRegressor("g").fit(train[COLUMNS], train["y"])
    fitted.report(tmp_path / "page.html", test[COLUMNS][: len(train)], test["y"][: len(train)])
    assert "this is a test on new data" in (tmp_path / "page.html").read_text()


def test_fingerprints_add_up_and_ignore_the_order():
    rng = np.random.default_rng(0)
    x, y, codes = rng.normal(size=(9000, 2)), rng.normal(size=9000), rng.integers(0, 9, 9000)
    rows = np.arange(9000)

    def of(chosen, weight=None):
        return Fingerprint.of(x[chosen], y[chosen], codes[chosen], weight)

    whole = of(rows)
    assert whole.same(Fingerprint.joined([of(rows[:4000]), of(rows[4000:])]))
    assert whole.same(of(rng.permutation(rows)))
    assert whole.overlaps(of(rows[:3000]))
    assert not whole.same(of(rows[:-1]))
    assert not of(rows[::2]).overlaps(of(rows[1::2]))
    assert of(rows[:3], np.array([1.0, 0.0, 2.0])).same(of([0, 2, 2]))
    assert not of(rows[:2], np.array([0.5, 1.5])).same(of(rows[:2]))
    # Rows that occur several times may well occur again by chance.
    assert not of(np.repeat(rows[:50], 4)).overlaps(of(rows[:50]))


def test_some_rows_at_random_are_rows_of_all(tiny, tiny_fit):
    few, everything = (tiny_fit.check_rows(*tiny, draws=2000, most=most) for most in (7, None))
    assert len(few) == 7
    pd.testing.assert_frame_equal(few, everything.loc[few.index])


def test_a_few_rows_of_more_groups_are_checked(tiny, tiny_fit, monkeypatch):
    """Fewer draws are taken if rows or tables of effects are large, also if the tables are."""
    monkeypatch.setattr(left_out, "NUMBERS_AT_ALL", 600)
    assert len(tiny_fit.check_rows(*tiny, draws=2000, most=3)) == 3


def test_pieces_make_no_difference(tiny, tiny_fit, monkeypatch):
    whole = tiny_fit.loo(*tiny, draws=2000)
    monkeypatch.setattr(left_out, "NUMBERS_AT_ONCE", 7 * 2000)
    np.testing.assert_allclose(tiny_fit.loo(*tiny, draws=2000).elpd_i, whole.elpd_i)


def test_classes_have_uniform_transforms(fitted_binary, binary_panel):
    """Kolmogorov's distance of n = 240 rows exceeds 0.126 with probability 0.001."""
    checked = fitted_binary.check_rows(binary_panel[COLUMNS], binary_panel["y"])
    assert set(checked["observed"]) == {0.0, 1.0}
    assert checked["predicted"].between(0, 1).all()
    ranks = np.sort(checked["pit"]) - (np.arange(len(checked)) + 0.5) / len(checked)
    assert np.abs(ranks).max() < 0.126


@pytest.fixture(scope="module")
def intercepts(panel):
    return nghvi.MixedRegressor("g").fit(panel[["g", "a"]], panel["y"])


def test_compare_finds_the_slope_that_is_there(fitted, intercepts, panel):
    """The data have a random slope and an effect of b; each model reads its own columns."""
    wide = panel.assign(unused=1.0)
    table = nghvi.compare({"neither": intercepts, "both": fitted}, wide, panel["y"], draws=1000)
    assert list(table.index) == ["both", "neither"]
    assert table["elpd_diff"]["both"] == 0
    assert table["elpd_diff"]["neither"] < -5 * table["diff_se"]["neither"]
    assert table["reading"]["neither"].startswith("worse")
    loos = [
        intercepts.loo(panel[["g", "a"]], panel["y"], draws=1000),
        fitted.loo(panel[COLUMNS], panel["y"], draws=1000),
    ]
    again = nghvi.compare(loos)
    assert list(again.index) == ["model 2", "model 1"]
    np.testing.assert_array_equal(again["elpd"], table["elpd"])
    pair = np.subtract(loos[0].elpd_i, loos[1].elpd_i)
    assert again["diff_se"]["model 1"] == pytest.approx(np.std(pair) * np.sqrt(len(pair)))
    same = nghvi.compare([loos[1], loos[1]])
    assert same["reading"].iloc[1].startswith("as good as the best")


def alone(log_density):
    """Return densities of draws that have seen all rows."""
    return pointwise.Densities(log_density, log_density)


TWO_SCALES = ("y ~ a + (1 | g)", "log( y ) ~ a + (1 | g)")


def test_comparisons_that_make_no_sense_are_refused(fitted, panel):
    X, y = panel[COLUMNS], panel["y"]
    loo = fitted.loo(X, y, draws=100)
    logarithms = [SimpleNamespace(formula_=SimpleNamespace(formula=text)) for text in TWO_SCALES]
    shorter = psis_loo([alone(np.random.default_rng(0).normal(size=(100, 5)))])
    for call, said in (
        (lambda: nghvi.compare({}), "one fitted model"),
        (lambda: nghvi.compare({"a": fitted}), "need X and y"),
        (lambda: nghvi.compare({"a": 3}), "'a' is a int"),
        (lambda: nghvi.compare([loo, shorter]), "different numbers of rows"),
        (lambda: nghvi.compare(logarithms), r"different responses \(y, log\(y\)\)"),
        (lambda: fitted.loo(X[:9], y[:9]), "the fit had 2"),
        (lambda: fitted.loo(X.assign(g=X["g"] + 1), y), "groups that the fit did not have"),
        (lambda: fitted.loo(X, y, draws=20), "100 draws"),
        (lambda: fitted.to_arviz(X=X[:9], y=y[:9]), "rows of the fit"),
    ):
        with pytest.raises(nghvi.DataError, match=said):
            call()


def test_influential_rows_are_pointed_at():
    """Likelihoods u^2 of a uniform u make weights whose Pareto shape is 2."""
    rng = np.random.default_rng(1)
    well_behaved, wild = rng.normal(-1, 0.1, (2000, 4)), 2 * np.log(rng.random((2000, 1)))
    found = psis_loo([alone(well_behaved), alone(wild)])
    assert found.num_unreliable == 1
    assert "1 of 5 rows" in found.meaning
    assert found.meaning in str(found)
    assert "is reliable" in psis_loo([alone(well_behaved)]).meaning
    astray = psis_loo([alone(1e6 * wild)])
    assert astray.num_unreliable == 1
    assert np.isfinite(astray.elpd)
    constant = psis_loo([alone(np.full((200, 3), -0.5))])
    assert constant.elpd == pytest.approx(-1.5)
    assert constant.num_unreliable == 0


@pytest.mark.parametrize(
    ("k_hat", "corrected", "said"),
    [
        (0.2, False, "describes the posterior well."),
        (0.6, False, "means and sds are close"),
        (0.9, False, "with care"),
        (0.9, True, "corrected by importance weights"),
        (np.nan, False, "was not computed"),
    ],
)
def test_k_hat_in_words(k_hat, corrected, said):
    assert said in k_hat_meaning(Draws(k_hat, 0.5, corrected, 1000, network=False))


@pytest.fixture(scope="module")
def tree(fitted, panel):
    return fitted.to_arviz(draws=1000, X=panel[COLUMNS], y=panel["y"])


def test_log_likelihood_is_that_of_the_draws_beside_it(tree, panel):
    posterior = tree["posterior"].dataset.isel(chain=0)
    x = np.column_stack([np.ones(len(panel)), panel[["a", "b"]]])
    effects = posterior["effects"].sel(group=panel["g"].to_numpy()).to_numpy()
    eta = posterior["coef"].to_numpy() @ x.T + np.sum(x[:, :2] * effects, axis=2)
    sd = np.sqrt(posterior["noise_var"].to_numpy())[:, None]
    expected = norm.logpdf(panel["y"].to_numpy(), eta, sd)
    np.testing.assert_allclose(tree["log_likelihood"]["y"][0], expected, rtol=1e-9)
    np.testing.assert_allclose(tree["observed_data"]["y"], panel["y"])
    # Standard normals: their mean and mean square over 1000 x 247 draws, 5 standard errors.
    noise = (tree["posterior_predictive"]["y"].to_numpy()[0] - eta) / sd
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert abs(np.mean(noise**2) - 1) < 5 * np.sqrt(2 / noise.size)
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "row")
    assert np.isfinite(tree["sample_stats"]["lp"]).all()
    assert np.isfinite(tree["sample_stats"]["log_q"]).all()


def test_the_tree_tells_the_elbo_of_the_raw_data(tree, fitted):
    assert tree["posterior"].attrs["elbo"] == pytest.approx(fitted.elbo_, rel=1e-12)


def test_classes_have_trees_too(fitted_binary, binary_panel):
    tree = fitted_binary.to_arviz(draws=1000, X=binary_panel[COLUMNS], y=binary_panel["y"])
    assert "noise_var" not in tree["posterior"]
    assert set(np.unique(tree["posterior_predictive"]["y"])) == {0.0, 1.0}
    assert (tree["log_likelihood"]["y"] < 0).all()


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_arviz_stats_reads_the_tree(fitted_binary, binary_panel):
    """Runs only if the xarray interface is installed. Effects are drawn by both."""
    pytest.importorskip("xarray_einstats")
    from arviz_stats import loo

    rows = binary_panel[COLUMNS], binary_panel["y"]
    own, tree = fitted_binary.loo(*rows, draws=1000), fitted_binary.to_arviz(1000, *rows)
    theirs = loo(tree, reff=1.0, pointwise=True)
    assert own.elpd == pytest.approx(theirs.elpd)
    np.testing.assert_allclose(own.pareto_k, theirs.pareto_k)


def test_the_tree_outlives_a_file(tree, tmp_path):
    pytest.importorskip("h5py")
    import xarray

    tree.to_netcdf(tmp_path / "tree.nc")
    with xarray.open_datatree(tmp_path / "tree.nc") as again:
        assert set(again.children) == set(tree.children)
        np.testing.assert_array_equal(again["log_likelihood"]["y"], tree["log_likelihood"]["y"])
        assert again["posterior"].attrs["verdict"] == tree["posterior"].attrs["verdict"]
