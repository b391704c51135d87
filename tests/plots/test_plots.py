"""Pictures: every kind of estimator has them, and they show what was computed."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

import nghvi
from nghvi import plots
from nghvi._core.response import Support
from nghvi.plots.row_checks import draw_calibration, draw_residuals

KINDS = ["linear", "classes", "deep", "classes without groups"]


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def test_importing_plots_leaves_the_backend_to_the_user():
    """In a process of its own: here it has been chosen."""
    chosen = "dict.__getitem__(matplotlib.rcParams, 'backend')"
    code = (
        f"import matplotlib; before = {chosen}; import nghvi.plots, nghvi.report; "
        f"assert {chosen} is before"
    )
    clean = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    subprocess.run([sys.executable, "-c", code], env=clean, check=True)


@pytest.fixture(params=KINDS)
def case(request, fitted_case):
    return fitted_case(request.param)


def test_every_kind_of_estimator_has_every_picture(case):
    estimator, X, y = case
    binary = hasattr(estimator, "classes_")
    _, ax = plt.subplots()
    checked = estimator.check_rows(X, y)
    assert plots.trace(estimator, ax) is ax
    pictures = [
        plots.posterior(estimator, estimator.summary().index[0]),
        plots.lek(estimator, estimator.reader_.inputs[0], draws=10),
        plots.predictive_check(estimator, X, y, draws=10),
        draw_residuals(estimator, checked),
    ]
    assert all(isinstance(each, Axes) and each.get_title() for each in pictures)
    pair = draw_calibration(estimator, checked)
    assert [each.get_title() for each in pair] == (
        ["Calibration", "Predicted probabilities"]
        if binary
        else ["PIT: flat if calibrated", "Coverage"]
    )
    assert all(each.get_xlabel() and each.get_ylabel() for each in (*pictures[1:], *pair))
    if len(estimator.groups_):
        assert plots.caterpillar(estimator).get_ylabel() == "30 groups"
    else:
        with pytest.raises(nghvi.DataError, match="no group effects"):
            plots.caterpillar(estimator)


def test_pictures_of_rows_take_the_estimator_and_its_rows(fitted_case):
    estimator, X, y = fitted_case("linear")
    _, axes = plt.subplots(1, 2)
    drawn = plots.calibration(estimator, X, y, axes)
    assert drawn is axes
    pit = estimator.check_rows(X, y)["pit"]
    (point,) = [line for line in drawn[1].lines if line.get_marker() == "o"]
    assert point.get_ydata()[0] == pytest.approx(np.mean(np.abs(pit - 0.5) <= 0.45))
    left = plots.residuals(estimator, X, y)
    cloud = [line for line in left.lines if len(line.get_xdata()) == len(y)]
    assert len(cloud) == 1
    with pytest.raises(ValueError, match="2 panels"):
        plots.calibration(estimator, X, y, axes[:1])


def test_densities_of_replicates_are_densities(fitted_case):
    ax = plots.predictive_check(*fitted_case("linear"), draws=5)
    assert len(ax.lines) == 6
    for line in ax.lines:
        x, density = line.get_data()
        # Up to the two thousandths of the responses that are off the picture.
        assert np.sum(density) * (x[1] - x[0]) == pytest.approx(1, abs=0.02)


def test_groups_are_in_order_and_not_too_many(fitted):
    means = np.sort(fitted.group_effects()["a_mean"])
    every = plots.caterpillar(fitted, "a")
    np.testing.assert_allclose(every.lines[0].get_xdata(), means)
    assert len(every.get_yticklabels()) == 30
    few = plots.caterpillar(fitted, "a", most=5)
    shown = few.lines[0].get_xdata()
    assert len(shown) == 5
    assert [shown[0], shown[-1]] == [means[0], means[-1]]
    assert few.get_ylabel() == "5 of 30 groups, by rank"
    with pytest.raises(nghvi.DataError, match="the model has 'intercept', 'a'"):
        plots.caterpillar(fitted, "b")


def test_posterior_makes_a_grid_of_all_main_parameters(fitted):
    names = list(fitted.summary().index)
    axes = plots.posterior(fitted, truth={"a": 1.0})
    shown = [ax for ax in axes.ravel() if ax.get_visible()]
    assert [ax.get_title() for ax in shown] == names
    assert len(shown[1].lines) == len(shown[0].lines) + 1
    x, density = shown[0].lines[0].get_data()
    assert np.trapezoid(density, x) == pytest.approx(1, abs=0.02)
    with pytest.raises(nghvi.DataError, match="no parameter 'nothing'"):
        plots.posterior(fitted, "nothing")


def test_estimates_without_uncertainty_or_trace(panel):
    model = nghvi.MixedRegressor(method="least-squares").fit(panel[["a", "b"]], panel["y"])
    assert plots.posterior(model, "a").get_title() == "a"
    with pytest.raises(nghvi.DataError, match="keeps no trace"):
        plots.trace(model)
    loo = model.loo(panel[["a", "b"]], panel["y"], draws=100)
    assert loo.p == pytest.approx(0, abs=1e-9)


def test_overview_has_a_panel_for_everything(fitted):
    figure = plots.overview(fitted, {"a": 1.0})
    titles = [ax.get_title() for ax in figure.axes if ax.get_visible()]
    assert titles[:3] == ["Optimisation", "Group effects: intercept", "intercept"]


@pytest.mark.parametrize(
    ("sd", "low", "logarithmic"), [(2.0, 0, True), (0.4, 0, False), (2.0, -np.inf, False)]
)
def test_responses_of_several_orders_of_magnitude_have_a_logarithmic_axis(sd, low, logarithmic):
    y, simulated = np.exp(sd * np.random.default_rng(0).standard_normal((2, 8, 300)))
    response = SimpleNamespace(support=Support(low))
    estimator = SimpleNamespace(
        posterior_=SimpleNamespace(model=SimpleNamespace(response=response)),
        reader_=SimpleNamespace(values=lambda y: y),
        sample_predictive=lambda X, draws, seed: simulated,
    )
    ax = plots.predictive_check(estimator, None, y[0])
    assert ("logarithmic" in ax.get_xlabel()) == logarithmic
    shown = ax.lines[-1].get_xdata()
    ends = np.quantile(y[0], [0.01, 0.99])
    ends = np.log10(ends) if logarithmic else ends
    assert shown[0] < ends[0] < ends[1] < shown[-1]
    assert shown[-1] - shown[0] < 5 * np.ptp(ends)
    if logarithmic:
        assert ax.xaxis.get_major_formatter()(3, 0) == "1000"
