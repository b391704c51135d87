"""What priors mean: their draws, their units, and that the default does no harm."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import nghvi
from nghvi._core.errors import DataWarning
from nghvi.posterior.prior_influence import draw_prior
from nghvi.priors import Gamma, HalfT, HuangWand, InverseGamma, PriorError, Priors, WishartPrecision
from nghvi.responses import StudentT
from nghvi.responses.student_t import NoiseLaw
from tests.registry import EFFECTS_PRIORS, SCALAR_PRIORS

NUMBER = 4000


@pytest.mark.parametrize("prior", SCALAR_PRIORS.values(), ids=SCALAR_PRIORS)
def test_draws_of_a_variance_have_the_density(prior):
    grid = np.arange(-150.0, 150.0, 0.05)
    with np.errstate(over="ignore"):
        density = np.exp(jax.vmap(lambda t: prior.log_density(t[None], 1))(grid))
    drawn = prior.sample(np.random.default_rng(0), NUMBER)[:, 0]
    below = np.interp(drawn, grid, 0.05 * (np.cumsum(density) - 0.5 * density))
    assert stats.kstest(below, "uniform").pvalue > 0.01


def covariances(prior, r, seed=0):
    free = jnp.asarray(prior.sample(np.random.default_rng(seed), NUMBER, r))
    factors = np.asarray(jax.vmap(lambda f: prior.precision_factor(f, r))(free))
    return np.linalg.inv(factors @ factors.transpose(0, 2, 1))


def test_draws_of_huang_wand_have_half_t_sds_and_uniform_correlations():
    omega = covariances(HuangWand(2.0, (2.5, 0.1, 40.0)), 3)
    sds = np.sqrt(np.einsum("saa->sa", omega))
    for j, scale in enumerate((2.5, 0.1, 40.0)):
        assert stats.kstest(2 * stats.t(2).cdf(sds[:, j] / scale) - 1, "uniform").pvalue > 0.01
    for i, j in ((0, 1), (0, 2), (1, 2)):
        correlation = omega[:, i, j] / sds[:, i] / sds[:, j]
        assert stats.kstest((1 + correlation) / 2, "uniform").pvalue > 0.01


def test_draws_of_the_wishart_have_its_mean():
    precision = np.linalg.inv(covariances(WishartPrecision(0.3, 7.5), 2))
    np.testing.assert_allclose(precision.mean(axis=0), 7.5 * 0.3 * np.eye(2), atol=0.06)


def test_draws_of_student_t_noise_have_their_priors():
    priors = Priors(noise=HalfT(3.0, 1.5), degrees=Gamma(3.0, 0.2))
    drawn = StudentT().sample_prior(np.random.default_rng(0), NUMBER, priors)
    variance, degrees = map(np.asarray, NoiseLaw.of(jnp.asarray(drawn)))
    sd = 2 * stats.t(3).cdf(np.sqrt(variance) / 1.5) - 1
    assert stats.kstest(sd, "uniform").pvalue > 0.01
    assert stats.kstest(degrees - 2, stats.gamma(3, scale=5).cdf).pvalue > 0.01


def log_volume_by_autodiff(stated, free):
    return np.linalg.slogdet(np.asarray(jax.jacobian(stated)(free)))[1]


@pytest.mark.parametrize("prior", EFFECTS_PRIORS.values(), ids=EFFECTS_PRIORS)
def test_the_volume_is_the_jacobian_of_what_the_prior_is_stated_for(prior):
    """Densities are known up to a constant, so differences between two points are compared."""
    r, rows, columns = 3, *np.tril_indices(3)

    def stated(free):
        lower = prior.precision_factor(free, r)
        if isinstance(prior, WishartPrecision):
            return (lower @ lower.T)[rows, columns]
        omega = jnp.linalg.inv(lower @ lower.T)
        sds = jnp.sqrt(jnp.diagonal(omega))
        if not isinstance(prior, HuangWand):
            return sds**2 if isinstance(prior, InverseGamma) else sds
        correlations = omega / sds[:, None] / sds
        return jnp.concatenate([sds, correlations[np.tril_indices(r, -1)]])

    points = jnp.asarray(0.5 * np.random.default_rng(3).normal(size=(2, prior.size(r))))
    ours, exact = (
        np.diff([function(point) for point in points])
        for function in (
            lambda p: prior.log_volume(p, r),
            lambda p: log_volume_by_autodiff(stated, p),
        )
    )
    np.testing.assert_allclose(ours, exact, rtol=1e-9)


def test_the_volume_of_student_t_noise_is_its_jacobian():
    def stated(dispersion):
        variance, nu = NoiseLaw.of(dispersion)
        return jnp.stack([jnp.sqrt(variance), nu])

    points = jnp.array([[0.3, 1.2], [-1.0, 2.5]])
    ours = np.diff([StudentT().log_volume(p, Priors()) for p in points])
    exact = np.diff([log_volume_by_autodiff(stated, p) for p in points])
    np.testing.assert_allclose(ours, exact, rtol=1e-9)


@pytest.mark.parametrize("kind", [HalfT, HuangWand])
def test_a_scale_for_each_effect_is_the_same_prior_in_other_units(kind):
    scales, r = np.array([2.5, 0.4, 7.0]), 3
    free = jnp.asarray(0.6 * np.random.default_rng(5).normal(size=kind().size(r)))
    # Omega = D Omega_0 D: L_0 = D L, with row i of L scaled by D_i.
    rows, columns = np.tril_indices(r)
    if kind is HalfT:
        plain, jacobian = free - 2 * jnp.log(scales), 0.0
    else:
        entries = jnp.where(rows == columns, free + jnp.log(scales)[rows], free * scales[rows])
        plain, jacobian = entries, np.sum(np.log(scales)[rows[rows > columns]])
    ours = kind(2.0, tuple(scales.tolist())).log_density(free, r)
    np.testing.assert_allclose(ours, kind(2.0, 1.0).log_density(plain, r) + jacobian, rtol=1e-12)


def test_scales_that_do_not_fit_the_effects_are_refused():
    with pytest.raises(PriorError, match=r"HuangWand.*2 scales were given for 3"):
        HuangWand(2.0, (1.0, 2.0)).log_density(jnp.zeros(6), 3)
    with pytest.raises(PriorError, match=r"HalfT\(scale=-1"):
        HalfT(2.0, (1.0, -1.0))
    with pytest.raises(PriorError, match=r"InverseGamma\(scale="):
        InverseGamma(2.0, (1.0, 1.0))


# fits


def panel(noise_sd, groups=8, rows=6, seed=3):
    """Return data with steep slopes by group and hardly any noise."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rows)
    x = np.tile(np.linspace(-1.5, 1.5, rows), groups)
    y = 3 + 2 * x + rng.normal(size=groups)[group] + noise_sd * rng.normal(size=len(x))
    return pd.DataFrame({"g": group, "x": x, "y": y})


def sd_of_noise(model):
    return np.quantile(np.sqrt(model.posterior_draws(4000)["noise_var"]), [0.025, 0.5, 0.975])


FORMULA = "y ~ x + (1 | g)"


@pytest.fixture(scope="module")
def quiet():
    """Noise is 0.02 % of the variance of the response."""
    return nghvi.mixed(FORMULA, panel(0.03))


def test_the_default_leaves_small_noise_small(quiet):
    low, middle, high = sd_of_noise(quiet)
    assert low < 0.03 < high
    assert abs(middle / 0.03 - 1) < 0.2
    # The result with the inverse gamma prior of the paper.
    paper = Priors(noise=InverseGamma())
    assert sd_of_noise(nghvi.mixed(FORMULA, panel(0.03), priors=paper))[0] > 0.2


@pytest.mark.parametrize("unit", [1e3, 1e-3])
def test_the_default_follows_the_units_of_the_data(quiet, unit):
    data = panel(0.03).assign(y=lambda d: unit * d["y"])
    for standardize in (True, False):
        found = nghvi.mixed(FORMULA, data, standardize=standardize).summary()
        expected = quiet.summary()
        np.testing.assert_allclose(found.loc["x", "mean"], unit * expected.loc["x", "mean"], 1e-3)
        scaled = unit**2 * expected.loc["noise_var", "q50"]
        np.testing.assert_allclose(found.loc["noise_var", "q50"], scaled, 0.03)


def test_a_column_far_from_zero_that_cannot_be_centred_keeps_its_slope():
    """With independent slopes a column is not centred, and the prior allows a distant intercept."""
    data = panel(0.5).assign(x=lambda d: d["x"] + 2000)
    found = nghvi.mixed("y ~ x + (1 + x || g)", data).summary()
    least_squares = np.polyfit(data["x"], data["y"], 1)
    assert abs(found.loc["x", "mean"] - least_squares[0]) < 0.1
    assert abs(found.loc["intercept", "mean"] / least_squares[1] - 1) < 0.1


def test_units_of_one_leave_the_default_alone():
    ones = np.ones(3) + 1e-12
    assert Priors().in_units(ones, ones[:2], 1.0) == Priors()
    assert Priors().in_units(np.array([1.0, 900.0]), ones[:0], 250.0) == Priors(
        coef_sd=(10.0, 10240.0), noise=HalfT(2.0, 640.0, 0.0256)
    )


# what a prior means in raw units


def test_prior_summary_in_raw_units(quiet):
    found, scaling = quiet.prior_summary(), quiet.posterior_.scaling
    assert list(found.index) == ["intercept", "x", "noise_var", "effects_sd[intercept]"]
    assert (found["scale"] == "standardised data").all()
    reach = stats.norm.ppf(0.975) * 10 * scaling.y_scale
    np.testing.assert_allclose(found.loc["x", "q97.5"], reach / scaling.scale[1], rtol=0.02)
    np.testing.assert_allclose(found.loc["intercept", "q50"], scaling.y_centre, atol=0.02 * reach)
    half_t = 2.5 * scaling.y_scale * stats.t(2).ppf([0.5125, 0.75, 0.9875])
    quantiles = ["q2.5", "q50", "q97.5"]
    row = found.loc["effects_sd[intercept]", quantiles].astype(float)
    np.testing.assert_allclose(row, half_t, rtol=0.08)  # 1,600 draws are below the first
    row = found.loc["noise_var", quantiles].astype(float)
    np.testing.assert_allclose(row, half_t**2, rtol=0.16)
    assert found.loc["noise_var", "prior"] == "sd ~ half-t(2, 2.5)"
    assert found.loc["x", "prior"] == "N(0, 10^2)"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"response": "student-t", "skip": False},
            {
                "weights[layer 1]": "N(0, s^2 / 2), log s ~ N(0, 1)",
                "degrees": "degrees - 2 ~ Gamma(2, 0.1)",
                "effects_corr[intercept,h1]": "correlation ~ uniform(-1, 1)",
            },
        ),
        (
            {"response": "student-t"},
            {"weights[layer 1]": "N(0, 1 / 2)", "size of the network": "N(0, 1)"},
        ),
        ({}, {"weights[layer 1]": "N(0, 1 / 2)", "size of the network": "N(0, 1)"}),
    ],
)
def test_prior_summary_of_a_network(settings, said):
    """A network without the inputs beside it learns a scale per layer, others their size."""
    data = panel(0.5)
    deep = nghvi.MixedRegressor("g", hidden=(2,), steps=40, n_starts=1, **settings)
    found = deep.fit(data[["g", "x"]], data["y"]).prior_summary()
    assert {name: found.loc[name, "prior"] for name in said} == said
    assert np.isfinite(found[["q2.5", "q50", "q97.5"]].to_numpy(float)).all()
    drawn = draw_prior(deep.posterior_, 10, 0)
    assert drawn.weight_scale.shape == (10, settings.get("skip") is False)
    assert {w.shape[0] for w in jax.tree.leaves(drawn.weights)} == {10}


def test_prior_summary_of_classes():
    data = panel(0.5)
    binary = nghvi.MixedClassifier(priors=Priors(coef_sd=(3.0, 5.0)))
    found = binary.fit(data[["x"]], data["y"] > 3).prior_summary()
    assert list(found["prior"]) == ["N(0, 3^2)", "N(0, 5^2)"]


def test_a_response_without_noise_has_a_posterior():
    """The noise ends at the floor of its prior, not at minus infinity."""
    data = panel(0.0)
    found = nghvi.mixed(FORMULA, data)
    assert found.converged_
    assert sd_of_noise(found)[2] < 1e-3
    assert abs(found.summary().loc["x", "mean"] - 2) < 1e-4


def test_noise_is_kept_from_zero_where_rows_hardly_outnumber_coefficients():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(12, 11))).add_prefix("c")
    y = 2 * x["c0"] + rng.normal(size=12)
    model = nghvi.MixedRegressor().fit(x, y)
    assert model.posterior_.model.priors.noise == HalfT(floor=0.3)
    row = model.summary().loc["c0"]
    assert row["q5"] < 2 < row["q95"]


def test_raw_columns_far_from_zero_with_correlated_effects_are_named():
    data = panel(0.5).assign(x=lambda d: d["x"] + 2000)
    model = nghvi.MixedRegressor("g", random="all", standardize=False)
    with pytest.warns(DataWarning, match="'x' is far from zero"):
        model.fit(data[["g", "x"]], data["y"])
