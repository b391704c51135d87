"""Several grouping factors through formulas, estimators, files and the command line."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import nghvi
from nghvi import interpret, plots
from nghvi._core.errors import DataWarning
from nghvi._programs import forget_programs
from nghvi.cli import main
from nghvi.data import elimination
from nghvi.estimators.grouping import Term, check_design
from nghvi.posterior.left_out import raw_densities

FORMULA = "y ~ x + (1 + x | firm) + (1 | month)"
FACTORS = ("firm", "month")


def panel(seed=0):
    rng = np.random.default_rng(seed)
    firm, month = (each.ravel() for each in np.meshgrid(range(15), range(8)))
    x = 1 + rng.standard_normal(120)
    effects = rng.standard_normal((15, 2)) * [1.0, 0.4]
    y = 2 + 0.5 * x + effects[firm, 0] + effects[firm, 1] * x
    y += 0.7 * rng.standard_normal(8)[month] + 0.3 * rng.standard_normal(120)
    return pd.DataFrame({"y": y, "x": x, "firm": firm + 100, "month": [f"m{k}" for k in month]})


@pytest.fixture(scope="module")
def rows():
    return panel()


@pytest.fixture(scope="module")
def fitted(rows):
    return nghvi.mixed(FORMULA, rows)


@pytest.fixture(scope="module")
def intercepts(rows):
    return nghvi.mixed("y ~ 1 + (1 | firm) + (1 | month)", rows)


def test_summary_names_sds_and_correlations_by_factor(fitted):
    assert fitted.status_ == "converged"
    assert list(fitted.summary().index) == [
        *("intercept", "x", "noise_var"),
        *("effects_sd[intercept | firm]", "effects_sd[x | firm]", "effects_sd[intercept | month]"),
        "effects_corr[intercept,x | firm]",
    ]
    assert list(fitted.prior_summary().index) == list(fitted.summary().index)
    covariances = fitted.effects_covariance()
    assert ("intercept | firm", "x | firm") in covariances.index
    assert len(covariances) == 4
    assert list(fitted.groups_) == ["firm", "month"]
    assert fitted.group_ == ("firm", "month")


def dense_prediction(estimator, rows, new, draws=200):
    """Return means and sds of new rows with known levels, by solving with all rows per theta."""
    drawn = estimator.posterior_draws(draws, 3)
    both = pd.concat([rows, new], ignore_index=True)
    z = np.column_stack([np.ones(len(both)), both["x"]])
    firm, month = (
        both[name].to_numpy()[:, None] == both[name].to_numpy() for name in ("firm", "month")
    )
    n, means, squares = len(rows), [], []
    for s in range(draws):
        total = firm * (z @ drawn["effects_cov[firm]"][s] @ z.T)
        total += month * drawn["effects_cov[month]"][s, 0, 0]
        fixed, noise = z @ drawn["coef"][s], drawn["noise_var"][s]
        gain = np.linalg.solve(total[:n, :n] + noise * np.eye(n), total[:n, n:])
        means.append(fixed[n:] + gain.T @ (rows["y"].to_numpy() - fixed[:n]))
        squares.append(np.diagonal(total[n:, n:] - total[n:, :n] @ gain) + noise)
    return np.mean(means, 0), np.sqrt(np.mean(squares, 0) + np.var(means, 0))


def test_rows_are_left_out_exactly_given_every_draw(fitted, rows):
    """Dense algebra: with K the inverse covariance of y, row i is N(y_i - (K r)_i / K_ii, 1 / K_ii)
    given all others."""
    draws = 100
    drawn, z = fitted.posterior_draws(draws, 3), np.column_stack([np.ones(len(rows)), rows["x"]])
    same = {name: rows[name].to_numpy()[:, None] == rows[name].to_numpy() for name in FACTORS}
    y, expected = rows["y"].to_numpy(), []
    for s in range(draws):
        total = drawn["noise_var"][s] * np.eye(len(y))
        total += same["firm"] * (z @ drawn["effects_cov[firm]"][s] @ z.T)
        total += same["month"] * drawn["effects_cov[month]"][s, 0, 0]
        inverse = np.linalg.inv(total)
        precision, solved = np.diagonal(inverse), inverse @ (y - z @ drawn["coef"][s])
        expected.append(norm.logpdf(solved / precision, scale=precision**-0.5))
    observed = fitted._rows_of_the_fit(rows, rows["y"])
    (found,) = raw_densities(fitted.posterior_, observed, draws, 3)
    np.testing.assert_allclose(found.without, expected, rtol=1e-8)
    assert fitted.loo(rows, rows["y"]).num_unreliable == 0


def test_predictions_of_known_and_new_levels_are_those_of_all_rows(fitted, rows):
    new = pd.DataFrame(
        {
            "x": [0.0, 2.0, 1.0, 1.0],
            "firm": [100, 105, 999, 998],
            "month": ["m1", "later", "m2", "later"],
        }
    )
    mean, sd = fitted.predict(new, return_std=True, draws=400)
    expected, spread = dense_prediction(fitted, rows, new)
    assert np.all(np.abs(mean - expected) < 0.1 * spread)
    np.testing.assert_allclose(sd, spread, rtol=0.1)
    lower, upper = fitted.predict_interval(new)
    assert np.all((lower < mean) & (mean < upper))
    drawn = fitted.sample_predictive(new, draws=2000)
    np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.15)
    # Rows that share a new month share its effect.
    assert np.corrcoef(drawn[:, 1], drawn[:, 3])[0, 1] > 0.1
    zero = fitted.predict(new[["x"]], which="zero")
    np.testing.assert_allclose(zero, fitted.predict(new, which="population"), atol=1e-9)


def test_effects_drawn_in_pairs_predict_the_same(fitted, rows, monkeypatch):
    exact = fitted.predict(rows, return_std=True, draws=400)
    monkeypatch.setattr("nghvi.models.several_factors.LARGEST_COVARIANCE", 0)
    forget_programs()
    drawn = fitted.predict(rows, return_std=True, draws=400)
    forget_programs()
    np.testing.assert_allclose(drawn[0], exact[0], atol=0.1 * exact[1].min())
    np.testing.assert_allclose(drawn[1], exact[1], rtol=0.15)


def answers(estimator):
    new = pd.DataFrame({"firm": [100, 100, 999], "month": ["m2", "new", "m2"]})
    effects = [estimator.group_effects(factor) for factor in ("firm", "month")]
    yield estimator.summary()["mean"], estimator.summary()["sd"]
    yield from ((each["intercept_mean"], each["intercept_sd"]) for each in effects)
    yield estimator.predict(new, return_std=True)


def test_a_fit_without_a_dense_matrix_says_the_same(intercepts, rows, monkeypatch):
    expected = list(answers(intercepts))
    monkeypatch.setattr(elimination, "MOST_COLUMNS", 4)
    large = nghvi.mixed("y ~ 1 + (1 | firm) + (1 | month)", rows)
    assert large.status_ == "converged"
    assert large.elbo_se_ > intercepts.elbo_se_
    assert abs(large.elbo_ - intercepts.elbo_) < 4 * large.elbo_se_ + 0.05
    for (mean, sd), (other, other_sd) in zip(answers(large), expected, strict=True):
        assert np.all(np.abs(mean - other) < 0.15 * other_sd)
        np.testing.assert_allclose(sd, other_sd, rtol=0.15)


def test_effects_of_a_factor(fitted, rows):
    months = fitted.group_effects("month")
    assert list(months.index) == sorted(rows["month"].unique())
    assert months.index.name == "month"
    draws = fitted.posterior_draws(4000)
    drawn = draws["effects[month]"][:, :, 0]
    np.testing.assert_allclose(months["intercept_mean"], drawn.mean(0), atol=0.1 * drawn.std())
    np.testing.assert_allclose(months["intercept_sd"], drawn.std(0), rtol=0.1)
    assert list(fitted.group_effects("firm").columns) == [
        *("intercept_mean", "intercept_sd", "x_mean", "x_sd")
    ]
    with pytest.raises(nghvi.InputError, match="name one of the grouping factors 'firm', 'month'"):
        fitted.group_effects()


def test_rows_of_the_fit_are_checked_without_themselves(fitted, rows):
    loo = fitted.loo(rows, rows["y"], draws=1000)
    in_sample = fitted.log_score(rows, rows["y"]) * len(rows)
    assert loo.elpd < in_sample
    assert fitted.check_rows(rows, rows["y"])["k_hat"].notna().all()
    tree = fitted.to_arviz(draws=50, X=rows, y=rows["y"])
    assert tree["posterior"]["effects[firm]"].dims == ("chain", "draw", "firm", "firm_effect")


def test_saved_fit_predicts_the_same(fitted, rows, tmp_path):
    fitted.save(tmp_path / "model")
    again = nghvi.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(rows), fitted.predict(rows))
    assert again.summary().equals(fitted.summary())
    assert again.group_effects("month").equals(fitted.group_effects("month"))


def test_estimator_says_the_same_as_the_formula(intercepts, rows):
    inputs = rows[["firm", "month"]]
    chosen = {"firm": "all", "month": "intercept"}
    other = nghvi.MixedRegressor(group=["firm", "month"], random=chosen).fit(inputs, rows["y"])
    assert other.summary().equals(intercepts.summary())
    assert np.array_equal(other.predict(inputs), intercepts.predict(rows))
    repeated = nghvi.MixedRegressor(["firm", "month"], formula=intercepts.formula)
    assert repeated.fit(rows).summary().equals(intercepts.summary())


def test_shares_of_variance(intercepts, fitted):
    shares = interpret.icc(intercepts)
    assert list(shares.index) == ["firm", "month", "noise"]
    np.testing.assert_allclose(shares["mean"].sum(), 1)
    draws = intercepts.posterior_draws(4000)
    firm, month = (draws[f"effects_cov[{name}]"][:, 0, 0] for name in ("firm", "month"))
    expected = np.mean(firm / (firm + month + draws["noise_var"]))
    np.testing.assert_allclose(shares.loc["firm", "mean"], expected, atol=0.02)
    features = interpret.variance_share(fitted)
    assert list(features.index) == list(fitted.posterior_.names.effects)
    np.testing.assert_allclose(features["mean"].sum(), 1)
    assert plots.caterpillar(fitted, "intercept | month").get_ylabel() == "8 groups"


def test_curves_and_sensitivity(fitted, rows):
    grid = [0.0, 1.0]
    profile = interpret.lek_profile(fitted, "x", grid=grid)
    slope = fitted.summary().loc["x", "mean"]
    np.testing.assert_allclose(np.diff(profile["mean"]), slope, atol=0.05)
    dependence = interpret.partial_dependence(fitted, "x", rows, grid=grid)
    expected = [fitted.predict(rows.assign(x=value)).mean() for value in grid]
    np.testing.assert_allclose(dependence["mean"], expected, atol=0.05)
    with pytest.raises(
        nghvi.InputError, match="curves of single groups need a model with one grouping factor"
    ):
        interpret.lek_profile(fitted, "x", groups=[100])
    sensitivity = fitted.prior_sensitivity()
    assert sensitivity.loc["noise_var", "likelihood"] > sensitivity.loc["noise_var", "prior"]


def test_checkpoints_do_not_change_the_fit(intercepts, rows, tmp_path):
    kept = nghvi.mixed(intercepts.formula, rows, checkpoint=tmp_path / "kept", every=0.0)
    assert kept.summary().equals(intercepts.summary())


def test_report_and_command_line(rows, tmp_path, capsys):
    table, out = tmp_path / "rows.csv", tmp_path / "run"
    rows.to_csv(table, index=False)
    formula = "y ~ 1 + (1 | firm) + (1 | month)"
    assert main(["fit", str(table), "--formula", formula, "--out", str(out), "--quiet"]) == 0
    assert main(["report", str(out), "--data", str(table), "-o", str(tmp_path / "r.html")]) == 0
    assert "15 of firm, 8 of month" in (tmp_path / "r.html").read_text()
    new = tmp_path / "new.csv"
    pd.DataFrame({"firm": [100, 7], "month": ["m1", "m1"]}).to_csv(new, index=False)
    capsys.readouterr()
    assert main(["predict", str(out), str(new), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["firm_known"] for row in found] == [True, False]
    assert [row["month_known"] for row in found] == [True, True]


def test_nested_factors_of_a_formula(rows):
    nested = nghvi.mixed("y ~ 1 + (1 | month/firm)", rows.assign(firm=rows["firm"] % 5))
    assert list(nested.groups_) == ["month", "month:firm"]
    assert nested.groups_["month:firm"][0] == "m0:0"
    assert nested.posterior_.data.plan.num_rest == 0
    assert nested.status_ == "converged"


def test_combinations_of_two_columns_are_one_factor(rows):
    few = rows.assign(firm=rows["firm"] % 5)
    found = nghvi.mixed("y ~ 1 + (1 | month:firm)", few)
    assert found.group_ == "month:firm"
    assert len(found.groups_) == 40
    joined = few.assign(both=few["month"] + ":" + few["firm"].astype(str))
    other = nghvi.mixed("y ~ 1 + (1 | both)", joined)
    np.testing.assert_array_equal(found.predict(few), other.predict(joined))


REFUSED = {
    "y ~ x + (1 | firm) + (1 | copy)": "'firm' and 'copy' divide the rows in the same way",
    "y ~ x + (1 | firm) + (1 | alone)": "only one level .'a'., .* leave out 'alone', and keep",
}


@pytest.mark.parametrize("formula", REFUSED)
def test_factors_that_cannot_be_told_apart(rows, formula):
    more = rows.assign(copy=rows["firm"].astype(str), alone="a")
    with pytest.raises(nghvi.InputError, match=REFUSED[formula]):
        nghvi.mixed(formula, more)


SETTINGS = {
    "latents='sample' with several": {"response": "student-t", "latents": "sample"},
    "method='ng-hvi' with several": {"method": "ng-hvi"},
    "batch_groups=3 with several": {"batch_groups": 3},
    "devices=1 with several": {"devices": 1},
    "'year' is not among the grouping factors": {"random": {"year": "all"}},
    "random={'month': 'each'}: choose 'auto'": {"random": {"month": "each"}},
    "names 'firm' twice": {"group": ["firm", "firm"]},
}


@pytest.mark.parametrize("said", SETTINGS)
def test_what_several_factors_do_not_go_with(rows, said):
    settings = {"group": ["firm", "month"]} | SETTINGS[said]
    with pytest.raises(nghvi.InputError, match=said):
        nghvi.MixedRegressor(**settings).fit(rows.drop(columns="y"), rows["y"])


TERMS = (Term("a", "auto", "auto"), Term("b", "auto", "auto"))


def check(a, b, noise=True):
    groups = {"a": np.unique(a), "b": np.unique(b)}
    check_design(np.column_stack([a, b]), TERMS, ((0,), (0,)), groups, noise=noise)


def test_parts_that_never_meet_are_named():
    a = np.tile(np.arange(6), 12)
    b = 3 * (a >= 3) + np.repeat(np.arange(3), 24)
    said = "'a' and 'b' fall into 2 parts that never meet .*a 0, 1, 2 with b 0, 1, 2; a 3, 4, 5"
    with pytest.warns(DataWarning, match=said):
        check(a, b)


def test_nested_and_connected_factors_are_not_suspicious():
    a = np.arange(60) // 5
    check(a, a // 4)
    check(np.arange(60) % 7, a)


def test_a_level_per_row_is_named():
    with pytest.warns(DataWarning, match="'b': every row is its own group"):
        check(np.arange(20) // 2, np.arange(20))
    check(np.arange(20) // 2, np.arange(20), noise=False)  # as for counts: overdispersion


def test_offset_counts_and_independent_effects(rows):
    shifted = rows.assign(z=np.linspace(0, 3, len(rows)))
    shifted["y"] += shifted["z"]
    formula = "y ~ x + (x || firm) + (1 | month) + offset(z)"
    found = nghvi.MixedRegressor(formula=formula).fit(shifted, counts=np.full(len(rows), 2))
    assert found.status_ == "converged"
    assert found.posterior_.data.num_rows == 240
    assert found.summary().loc["effects_corr[intercept,x | firm]", "sd"] == 0
    further = shifted.assign(z=shifted["z"] + 1)
    np.testing.assert_allclose(found.predict(further), found.predict(shifted) + 1)


@pytest.fixture(scope="module")
def counts():
    # Levels and rows as in docs/howto/factors.md, whose fits then use the same programs.
    rng = np.random.default_rng(4)
    firm, month = (each.ravel() for each in np.meshgrid(range(15), range(8)))
    x, level = rng.standard_normal(120), rng.standard_normal(15)
    shocks = 0.5 * rng.standard_normal(8)
    mean = np.exp(0.5 + 0.4 * x + 0.7 * level[firm] + shocks[month])
    named = {"firm": [f"f{k:02d}" for k in firm], "month": month}
    return pd.DataFrame({"y": rng.poisson(mean), "x": x, **named})


@pytest.fixture(scope="module")
def counted(counts):
    return nghvi.mixed("y ~ x + (1 | firm) + (1 | month)", counts, response="poisson")


def test_counts_of_two_factors(counted, counts):
    assert counted.status_ == "converged"
    summary = counted.summary(level=0.999)
    truth = {"x": 0.4, "effects_sd[intercept | firm]": 0.7, "effects_sd[intercept | month]": 0.5}
    for name, value in truth.items():
        low, high = summary.loc[name, ["q0.05", "q99.95"]]
        assert low < value < high, name
    firms, drawn = counted.group_effects("firm"), counted.posterior_draws(1000)["effects[firm]"]
    np.testing.assert_allclose(
        firms["intercept_mean"], drawn[:, :, 0].mean(axis=0), atol=0.2 * drawn.std(axis=0).min()
    )
    np.testing.assert_allclose(firms["intercept_sd"], drawn[:, :, 0].std(axis=0), rtol=0.15)
    fitted = counted.predict(counts, draws=200)
    assert np.corrcoef(fitted, counts["y"])[0, 1] > 0.8


def test_counts_of_known_and_new_levels(counted):
    new = pd.DataFrame({"x": 0.0, "firm": ["f03", "f03", "new", "new"], "month": [2, 9, 2, 9]})
    mean, sd = counted.predict(new, return_std=True, draws=1000)
    draws = counted.posterior_draws(2000)
    firm, month = (draws[f"effects_cov[{name}]"][:, 0, 0] for name in ("firm", "month"))
    known = draws["effects[firm]"][:, 3, 0], draws["effects[month]"][:, 2, 0]
    # The mean of a log-normal, draw by draw.
    parts = [known[0], known[0] + month / 2, firm / 2, firm / 2 + month / 2]
    parts = [p + known[1] if m == 2 else p for p, m in zip(parts, new["month"], strict=True)]
    expected = [np.mean(np.exp(draws["coef"][:, 0] + part)) for part in parts]
    np.testing.assert_allclose(mean, expected, rtol=0.15)
    assert sd[0] < sd[3]


def test_counts_are_kept_and_checked(counted, counts, tmp_path):
    counted.save(tmp_path / "model")
    again = nghvi.load(tmp_path / "model")
    few = counts.iloc[:10]
    np.testing.assert_array_equal(again.predict(few, draws=50), counted.predict(few, draws=50))
    loo = counted.loo(counts, counts["y"], draws=500)
    assert loo.elpd < counted.log_score(counts, counts["y"]) * len(counts)
    assert list(interpret.variance_share(counted).index) == [
        "intercept | firm",
        "intercept | month",
    ]
    with pytest.raises(nghvi.InputError, match="icc needs a linear model with a Gaussian response"):
        interpret.icc(counted)


def test_classes_of_nested_factors_with_trials(counts):
    rng = np.random.default_rng(0)
    rows = counts.assign(n=8, team=counts["month"] % 3)
    rows["y"] = rng.binomial(8, 1 / (1 + np.exp(-rows["x"])))
    found = nghvi.mixed("y | trials(n) ~ x + (1 | firm/team)", rows, response="binomial")
    assert found.status_ == "converged"
    assert found.posterior_.data.plan.num_rest == 0
    assert abs(found.summary().loc["x", "mean"] - 1) < 0.3
