"""The asset pricing study on a small synthetic panel, and its standard errors."""

import io

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from nghvi import cli, scores
from nghvi.paper import studies
from nghvi.paper.finance import synthetic_panel
from nghvi.paper.finance.stock_panel import block_bootstrap, mean_se, r2_se
from nghvi.paper.studies import asset_pricing, asset_pricing_views, controls, printed_values
from nghvi.paper.studies.study import Options

DRAWS = 20_000
"""Relative error of a bootstrap sd is 1 / sqrt(2 draws) = 0.5 %: 3 % is six of these."""


@pytest.mark.parametrize("block", [1, 4])
def test_bootstrap_se_of_a_mean_is_that_of_its_blocks(block):
    """In closed form: a drawn mean is one of T / L independent means of circular blocks."""
    values = np.random.default_rng(3).normal(size=40).cumsum()
    around = np.concatenate([values, values])
    blocks = [around[i : i + block].mean() for i in range(40)]
    expected = np.std(blocks) / np.sqrt(40 / block)
    assert mean_se(values, block=block, draws=DRAWS) == pytest.approx(expected, rel=0.03)


def test_bootstrap_se_of_r2():
    """Against drawing months in a loop, R2 from their rows; false alarm rate below 1e-6."""
    rng = np.random.default_rng(4)
    y = rng.normal(size=(30, 50)) * rng.uniform(0.5, 2, (30, 1))
    predicted = y - rng.normal(size=(30, 50))
    monthly = ((y - predicted) ** 2).mean(axis=1), y.mean(axis=1), (y**2).mean(axis=1)
    drawn = []
    for _ in range(4000):
        months = rng.integers(0, 30, 30)
        drawn.append(scores.r2(y[months].ravel(), predicted[months].ravel()))
    assert r2_se(*monthly, block=1, draws=DRAWS) == pytest.approx(np.std(drawn), rel=0.08)


def test_a_short_series_is_one_block():
    assert block_bootstrap(np.ones((3, 1)), lambda means: means[:, 0], block=6) == 0


def test_synthetic_panel_has_the_structure_of_the_real_one():
    panel = synthetic_panel(5, num_firms=40, num_groups=8)
    assert (len(panel.train), len(panel.test)) == (40 * 120, 40 * 60)
    assert panel.fingerprint() == synthetic_panel(5, num_firms=40, num_groups=8).fingerprint()
    assert panel.fingerprint() != synthetic_panel(6, num_firms=40, num_groups=8).fingerprint()
    sizes = panel.group_sizes()
    assert sizes.sum() == 40
    assert len(sizes) == 8
    assert sizes.is_monotonic_decreasing
    assert set(panel.moments.index) == {"ret", *asset_pricing.FF3, *asset_pricing.FF5}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A few cells of the study, from the rows to the report."""
    folder = tmp_path_factory.mktemp("finance")
    small = synthetic_panel(1, num_firms=24, num_groups=6), "synthetic"
    models = (asset_pricing.LINEAR, asset_pricing.COEFFICIENTS, asset_pricing.DEEP_LARGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asset_pricing, "panel_of", lambda *chosen: small)
        patch.setattr(asset_pricing, "NETWORK_STEPS", {"gaussian": 300, "student-t": 300})
        patch.setattr(asset_pricing, "PAPER", models)
        patch.setattr(asset_pricing, "ABLATIONS", ())
        patch.setattr(asset_pricing, "FACTOR_SETS", {"FF3": asset_pricing.FF3})
        console = Console(file=io.StringIO())
        rows = studies.reproduce(asset_pricing.STUDY, folder, Options(quick=True), console)
    return folder, rows, small[0], console.file.getvalue()


def test_rows_hold_what_the_report_resamples(done):
    _, rows, panel, said = done
    assert "SYNTHETIC" in said
    by_name = {row["model"]: row for row in rows}
    row = by_name["Linear"]
    assert np.mean(row["log_scores_test"]) == pytest.approx(row["log_score_test"], abs=1e-6)
    assert len(row["months_test"]) == 60
    X = np.column_stack([np.ones(len(panel.train)), panel.train[list(asset_pricing.FF3)]])
    y = panel.train["ret"].to_numpy()
    coef, (squares,), *_ = np.linalg.lstsq(X, y)
    assert row["r2_train"] == pytest.approx(scores.r2(y, X @ coef), abs=1e-4)
    assert row["log_noise_var"] == pytest.approx(np.log(squares / len(y)), abs=2e-3)
    assert row["log_noise_var_sd"] == pytest.approx(row["usual_sd"], rel=0.1)
    assert row["converged"]
    assert abs(np.mean(row["coverage_train"]["0.9"]) - 0.9) < 0.05
    gain, se = asset_pricing_views.difference(by_name["Random Coefficients"], row)
    assert (
        0
        < gain
        == pytest.approx(
            by_name["Random Coefficients"]["log_score_test"] - row["log_score_test"], abs=1e-5
        )
    )
    assert 0 < se < gain


def test_premia_are_on_the_scale_of_the_data(done):
    """A model with the coefficients of each industry predicts what the estimator does."""
    _, rows, panel, _ = done
    row = next(r for r in rows if "premia" in r)
    found = row["premia"]
    train = panel.train[panel.train["group"] == found["groups"][0]]
    expected = found["alpha"]["mean"][0] + sum(
        found[name]["mean"][0] * panel.percent(name, train[name]) for name in asset_pricing.FF3
    )
    observed = panel.percent("ret", train["ret"])
    slope = np.polyfit(expected, observed, 1)[0]
    assert slope == pytest.approx(1, abs=0.4)
    assert expected.mean() == pytest.approx(observed.mean(), abs=1.0)


def test_report_has_every_table_and_picture(done):
    folder, rows, panel, _ = done
    models = pd.read_csv(folder / "finance_models.csv", dtype=str).set_index("model")
    assert models.index.tolist() == ["Linear", "Random Coefficients", "DMM [32, 16, 8]"]
    assert "(" not in models.loc["Linear", "LS test"]  # the paper's figure is of real returns
    assert models.loc["Random Coefficients", "over linear"] == "-"
    assert "±" in models.loc["Linear", "over linear"]
    assert not (folder / "finance_changes.csv").exists()
    largest = pd.read_csv(folder / "finance_industries.csv", dtype=str)
    assert largest["SIC"].tolist() == panel.group_sizes().index.tolist()
    for name in ("lek_FF3", "premia_FF3", "calibration"):
        assert (folder / f"finance_{name}.png").read_bytes()[:4] == b"\x89PNG"
    lek = next(row for row in rows if "lek" in row)["lek"]
    assert [(e["volatility"], e["factor"]) for e in lek][:4] == [
        ("low", "mkt_rf"), ("low", "smb"), ("low", "hml"), ("moderate", "mkt_rf"),
    ]  # fmt: skip
    assert {len(curve) for curve in lek[0]["mean"].values()} == {19}


def test_a_changed_setting_stands_below_the_usual_one(done, tmp_path):
    rows = done[1]
    usual = rows[1]
    better = [score + 0.25 for score in usual["log_scores_test"]]
    changed = {**usual, "covariance": "diagonal", "log_scores_test": better}
    real = [{**row, "data": "data 12345678"} for row in (*rows, changed)]
    asset_pricing.STUDY.report(real, tmp_path)
    models = pd.read_csv(tmp_path / "finance_models.csv").set_index("model")
    assert models.loc["Linear", "LS test"].endswith("(-1.2502)")
    changes = pd.read_csv(tmp_path / "finance_changes.csv")
    assert changes["model"].tolist() == ["Random Coefficients"] * 2
    assert changes["covariance"].tolist() == ["full", "diagonal"]
    assert changes["difference"].tolist() == ["-", "0.2500 ± 0.0000"]


def test_every_model_of_the_paper_is_run():
    names = {model.name for model in asset_pricing.PAPER}
    assert {(f, n) for f in asset_pricing.FACTOR_SETS for n in names} == set(printed_values.FINANCE)


def test_bad_data_are_explained(tmp_path, capsys):
    assert cli.main(["reproduce", "finance", "--data", str(tmp_path / "none")]) == 2
    assert "no such file or folder" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["reproduce", "finance", "--data", str(tmp_path)]) == 2
    assert "one file of returns is needed" in " ".join(capsys.readouterr().out.split())


def test_the_published_rules_run_on_the_panel(monkeypatch, tmp_path):
    small = synthetic_panel(1, num_firms=24, num_groups=6), "data of a test"
    monkeypatch.setattr(asset_pricing, "panel_of", lambda *chosen: small)
    monkeypatch.setattr(controls, "PANEL_STEPS", 200)
    options = Options(quick=True, data=tmp_path)
    cells = [cell for cell in controls.cells(options) if cell["example"] == controls.PANEL]
    kinds = {(c["model"], c["rule"], c["factors"], c["seed"]) for c in cells}
    assert len(kinds) == len(cells) == 2 * 2 * 3 * 2 + 2
    assert not any(c["example"] == controls.PANEL for c in controls.cells(Options(quick=True)))
    row = {**cells[0], **controls.run(cells[0], options)}
    assert row["steps"] == 20
    assert np.isfinite([row["elbo"], row["log_score_test"], row["r2_test"]]).all()
    (table,) = controls.tables([row])
    assert table.frame["method, seed"].tolist() == ["ng-hvi, 1"]
    assert table.frame["over linear"].tolist() == ["-"]
    by_month = [{"log_scores_test": s} for s in ([1.0, 2.0, 6.0], [0.0, 1.0, 2.0])]
    deep, linear = ({**row, **scores} for scores in by_month)
    linear |= {"model": controls.BESIDE.name, "rule": controls.OURS}
    gain = controls.compared_on_panel(deep, [deep, linear])
    assert (gain.mean, gain.low, gain.high) == pytest.approx((2.0, 1.0, 2.5))
