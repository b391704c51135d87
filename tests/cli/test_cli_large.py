"""``nghvi fit`` and ``predict`` on Parquet that stays on disk."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from nghvi.cli import main, predict

FIT = ["--target", "y", "--group", "g", "--hidden", "3", "--steps", "12", "--quiet"]


@pytest.fixture(scope="module")
def place(panel, tmp_path_factory):
    place = tmp_path_factory.mktemp("cli_large")
    (place / "many").mkdir()
    shuffled = panel.sample(frac=1, random_state=0)
    for i, part in enumerate(np.array_split(np.arange(len(shuffled)), 2)):
        shuffled.iloc[part].to_parquet(place / "many" / f"{i}.parquet")
    new = panel[["g", "a", "b"]].iloc[:30].assign(g=lambda t: t["g"].where(t.index != 3, 999))
    new.to_parquet(place / "new.parquet")
    new.to_csv(place / "new.csv", index=False, float_format="%.17g")
    code = main(
        ["fit", str(place / "many"), *FIT, "--batch-groups", "8", "--out", str(place / "r")]
    )
    assert code in (0, 3)
    # A run can be moved: its rows go with it.
    shutil.move(place / "r", place / "run")
    return place


def test_a_run_on_disk_keeps_its_rows_beside_the_model(place):
    names = sorted(p.name for p in (place / "run").iterdir())
    assert names == ["model.nghvi", "rows", "settings.json", "summary.csv"]
    asked = json.loads((place / "run" / "settings.json").read_text())["asked"]
    assert asked["batch_groups"] == 8


def test_predictions_streamed_are_those_of_the_table(place, monkeypatch):
    run, out = str(place / "run"), place / "p.parquet"
    assert main(["predict", run, str(place / "new.csv"), "-o", str(place / "p.csv")]) == 0
    expected = pd.read_csv(place / "p.csv")
    monkeypatch.setattr(predict, "ROWS_AT_ONCE", 13)
    assert main(["predict", run, str(place / "new.parquet"), "-o", str(out)]) == 0
    found = pd.read_parquet(out)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-6)
    assert found["group_known"].sum() == 29


def test_bad_input_is_named(place, capsys, tmp_path):
    run, out = str(place / "run"), str(tmp_path / "p.parquet")
    table = pd.read_parquet(place / "new.parquet").astype({"a": float})
    table.loc[table.index[4], "a"] = np.nan
    table.to_parquet(tmp_path / "gap.parquet")
    table.drop(columns="a").to_parquet(tmp_path / "less.parquet")
    folder = str(place / "many")
    for arguments, said in (
        (["predict", run, str(tmp_path / "gap.parquet"), "-o", out], "row 5: column 'a'"),
        (["predict", run, str(tmp_path / "less.parquet"), "-o", out], "no column 'a'"),
        (["predict", run, folder], "-o *.parquet"),
        (["fit", folder, "--formula", "y ~ a + (1 | g)", "--out", out], "--formula"),
        (["fit", folder, "--target", "z", "--group", "g", "--out", out], "no column 'z'"),
        (["fit", folder, "--target", "y", "--out", str(tmp_path / "o")], "name one group column"),
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "p.parquet").is_file()
