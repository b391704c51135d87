"""The command line program, as a person would call it."""

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi import _compiled, cli
from nghvi.cli import main
from nghvi.datasets import simulate_schools


def test_demo_prints_a_table_and_writes_a_picture(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "Converged" in printed
    assert "effects_sd[intake]" in printed
    assert (tmp_path / "out" / "overview.png").read_bytes()[:4] == b"\x89PNG"
    assert "Converged" in (tmp_path / "out" / "report.html").read_text()
    assert "truth" in (tmp_path / "out" / "summary.csv").read_text()


def test_demo_says_where_it_could_not_write(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 1
    assert "choose another --out" in capsys.readouterr().out


def test_the_package_runs_as_a_program():
    called = [sys.executable, "-m", "nghvi", "--version"]
    done = subprocess.run(called, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == f"nghvi {nghvi.__version__}"


@pytest.mark.filterwarnings("always")
def test_a_warning_is_shown_once(monkeypatch, capsys):
    def run(chosen):
        for _ in range(2):
            warnings.warn("twice", nghvi.DataWarning, stacklevel=1)
        return 0

    monkeypatch.setitem(cli.COMMANDS, "warn", ("warn", "warn:add"))
    monkeypatch.setattr(
        cli.pkgutil, "resolve_name", lambda name: lambda parser: parser.set_defaults(run=run)
    )
    assert main(["warn"]) == 0
    assert capsys.readouterr().err == "nghvi warn: twice\n"


def test_unknown_command_is_refused():
    with pytest.raises(SystemExit):
        main(["bake"])


def test_the_built_in_data_are_what_they_say():
    data = simulate_schools()
    assert data.frame["school"].nunique() == 60
    assert np.isfinite(data.frame.drop(columns="school").to_numpy()).all()
    assert data.frame.equals(simulate_schools().frame)


def test_warm_compiles_what_a_fit_of_about_that_size_needs(monkeypatch, tmp_path, capsys):
    # A folder of its own: other workers write into the shared one at any time.
    monkeypatch.setattr(_compiled, "programs_folder", tmp_path)
    assert main(["warm", "--inputs", "1", "--slopes", "0", "--groups", "20"]) == 0
    assert "inputs 1, slopes 0, groups 20" in capsys.readouterr().err
    kept = set(tmp_path.glob("*.compiled"))
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"g": np.arange(81) % 27, "x": rng.normal(size=81)})
    nghvi.mixed("y ~ x + (1 | g)", frame.assign(y=rng.normal(size=81)))
    assert set(tmp_path.glob("*.compiled")) == kept


def test_warm_refuses_what_it_cannot_do(monkeypatch, capsys):
    assert main(["warm", "--groups", "0"]) == 2
    monkeypatch.setattr(_compiled, "programs_folder", None)
    assert main(["warm"]) == 2
    assert "NGHVI_CACHE" in capsys.readouterr().err
