"""Tables as people have them on the command line: signs, empty cells, sizes, two fits at once."""

import json
import os

import numpy as np
import pandas as pd
import pytest

from nghvi.cli import UsageError, main, rundir, table_files

FORMULA = ["--formula", "y ~ a + b + (1 | g)", "--quiet"]


@pytest.fixture(scope="module")
def place(panel, tmp_path_factory):
    place = tmp_path_factory.mktemp("tables")
    panel.to_csv(place / "data.csv", index=False, float_format="%.17g")
    panel.to_csv(place / "semicolon.csv", index=False, float_format="%.17g", sep=";", decimal=",")
    holes = panel.astype({"g": float})
    holes.loc[3, "a"] = holes.loc[3, "b"] = holes.loc[7, "g"] = np.nan
    holes.assign(unused=np.nan).to_csv(place / "holes.csv", index=False, float_format="%.17g")
    panel.drop([3, 7]).to_csv(place / "complete.csv", index=False, float_format="%.17g")
    panel.to_parquet(place / "data.parquet")
    return place


def fitted(place, data, run, *arguments):
    code = main(["fit", str(place / data), "--out", str(place / run), *FORMULA, *arguments])
    return code, (place / run / "summary.csv").read_text() if code == 0 else ""


def test_other_signs_and_dropped_rows_give_the_fit_of_the_same_numbers(place, capsys):
    code, expected = fitted(place, "data.csv", "plain")
    assert code == 0
    signs = ["--sep", ";", "--decimal", ","]
    assert fitted(place, "semicolon.csv", "signs", *signs) == (0, expected)
    code, expected = fitted(place, "complete.csv", "complete")
    capsys.readouterr()
    assert fitted(place, "holes.csv", "dropped", "--missing", "drop") == (0, expected)
    said = capsys.readouterr().err
    assert "2 of" in said
    assert "'a' 1, 'g' 1, 'b' 1" in said.replace("'b' 1, 'g' 1", "'g' 1, 'b' 1")
    assert json.loads((place / "dropped" / "settings.json").read_text())["asked"]["missing"]
    # The report reads the table as the fit did.
    assert main(["report", str(place / "dropped")]) == 0
    assert main(["report", str(place / "signs")]) == 0
    arguments = ["predict", str(place / "dropped"), str(place / "holes.csv")]
    assert main(arguments) == 2
    assert "line 5: column 'a' has no value" in capsys.readouterr().err
    for out in ("p.csv", "p.parquet"):
        assert main([*arguments, "--missing", "drop", "-o", str(place / out)]) == 0
    found = pd.read_csv(place / "p.csv")
    assert found["row"].tolist()[:7] == [1, 2, 3, 5, 6, 7, 9]
    pd.testing.assert_frame_equal(found, pd.read_parquet(place / "p.parquet"), rtol=1e-9)


def test_gaps_and_categories_are_told_and_predictions_remember(place, panel, capsys):
    rows = panel.assign(kind=np.where(panel["b"] > 0, "u", "v"))
    rows.loc[3, "a"] = rows.loc[5, "a"] = np.nan
    rows.to_csv(place / "gaps.csv", index=False, float_format="%.17g")
    formula = ["--formula", "y ~ a + b + kind + (1 | g)"]
    for run, said in {
        "by-formula": formula,
        "by-target": ["--target", "y", "--group", "g"],
    }.items():
        asked = [*said, "--missing", "indicator", "--quiet", "--out", str(place / run)]
        assert main(["fit", str(place / "gaps.csv"), *asked]) == 0
        assert main(["predict", str(place / run), str(place / "gaps.csv")]) == 0
        assert len(capsys.readouterr().out.splitlines()) > len(panel)
    found = [(place / run / "summary.csv").read_text() for run in ("by-formula", "by-target")]
    assert found[0] == found[1]
    assert "missing(a)" in found[0]
    assert "kind[T.v]" in found[0]
    rows.assign(b=rows["b"].where(rows.index != 9)).to_csv(place / "later.csv", index=False)
    assert main(["predict", str(place / "by-target"), str(place / "later.csv")]) == 2
    assert "line 11: column 'b' has no value there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("y;x\n1,5;2\n3;4,5\n", [], "line 1: columns are separated by semicolons; give --sep ';'"),
        ("y,x\n1,2\n3,4\n", ["--decimal", ","], "they must differ"),
        ("y,x\n,2\n3,\n", ["--missing", "drop"], "every row has an empty cell"),
        ("y,x\n1,2\n3,\n", [], "leave such rows out with --missing drop"),
        ("y,x\n1,2.5\n2,3.5\n3,4.5\n4," + "a" * 200_000, [], "line 5: 'aaa"),
        ("y,x\n1,2\n2,3\n", ["--memory", "1e-9"], "or give a larger --memory"),
        ("y,x\n1,2\n2,3\n", ["--memory", "-1"], "--memory -1: give a positive"),
    ],
)
def test_refused_with_place_and_remedy(content, arguments, said, tmp_path, capsys):
    (tmp_path / "d.csv").write_text(content)
    fit = ["fit", str(tmp_path / "d.csv"), "--formula", "y ~ x", "--out", str(tmp_path / "o")]
    code = main([*fit, *arguments])
    printed = capsys.readouterr()
    assert code == 2
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert len(printed.err) < 500


def test_signs_are_one_character(capsys):
    for sign in ("ab", "a", "-", ""):
        with pytest.raises(SystemExit):
            main(["fit", "d.csv", "--formula", "y ~ x", "--out", "o", "--sep", sign])
        assert "give a single character" in capsys.readouterr().err


def test_a_table_without_room_in_memory_stays_on_disk(place, capsys):
    few = ["--memory", "1e-6", "--quiet"]
    data, target = str(place / "data.parquet"), ["--target", "y", "--group", "g"]
    assert main(["fit", data, *target, *few, "--out", str(place / "disk")]) == 0
    said = capsys.readouterr().err
    assert "of memory, and 1e-06 GB may be used (--memory): its rows are read from disk" in said
    assert (place / "disk" / rundir.ROWS).is_dir()
    for arguments in (FORMULA, ["--target", "y"], [*target, "--missing", "drop"]):
        assert main(["fit", data, *arguments, *few[:2], "--out", str(place / "none")]) == 2
        assert "save it as Parquet and give --target and --group" in capsys.readouterr().err
    # What was begun on disk goes on there, whatever memory there is now.
    again = ["fit", data, *target, "--out", str(place / "disk"), "--resume", "--quiet"]
    assert main(again) == 0


def test_memory_is_told_from_metadata(place, panel):
    whole = table_files.memory_needed(place / "data.parquet")
    assert whole >= table_files.COPIES * 8 * panel.size
    assert table_files.memory_needed(place / "data.parquet", ["y", "a"]) < whole
    assert table_files.memory_needed(place / "data.csv") == 4 * os.path.getsize(place / "data.csv")
    assert table_files.memory_budget(None) > 1e6
    assert table_files.memory_budget(2.5) == 2.5e9


def test_two_fits_into_one_directory_do_not_meet(place, capsys):
    out = place / "claimed"
    with rundir.claimed(out, occupied=False):
        arguments = ["fit", str(place / "data.csv"), *FORMULA, "--out", str(out)]
        for more in ([], ["--force"]):
            assert main([*arguments, *more]) == 2
            assert "another fit is writing there now" in capsys.readouterr().err
    with rundir.claimed(out, occupied=False):  # nothing is left behind
        pass


def test_names_of_many_columns_are_checked_at_once(tmp_path):
    """Quadratic time would be hours."""
    names = [f"c{i}" for i in range(300_000)]
    (tmp_path / "wide.csv").write_text(",".join([*names, "c7"]) + "\n")
    with pytest.raises(UsageError, match="'c7' occurs twice"):
        table_files.read_table(tmp_path / "wide.csv")


def test_values_that_a_response_cannot_take_are_named_by_their_line(place, panel, capsys):
    rows = panel.assign(y=1.0).astype({"a": float})
    rows.loc[0, "y"], rows.loc[3, "a"], rows.loc[6, "y"] = 2.0, np.nan, -1.0
    rows.to_csv(place / "counts.csv", index=False)
    rows.to_parquet(place / "counts.parquet")
    more = ["--response", "poisson", "--missing", "drop", "--out", str(place / "counts")]
    for data, said in [("counts.csv", "y holds -1 in line 8:"), ("counts.parquet", "-1 in row 7:")]:
        assert main(["fit", str(place / data), *FORMULA, *more]) == 2
        assert said in capsys.readouterr().err


def test_ordered_categories_of_parquet_are_ordered_classes(place, panel, capsys):
    codes = np.digitize(panel["y"], panel["y"].quantile([0.5, 0.8]))
    labels = pd.Categorical.from_codes(codes, list("cab"))
    rows = panel.assign(y=labels.as_ordered(), z=labels.rename_categories([3, 1, 2]).as_ordered())
    rows.to_parquet(place / "ordered.parquet")
    for name, cuts in [("y", ["cut[c|a]", "cut[a|b]"]), ("z", ["cut[1|2]", "cut[2|3]"])]:
        more = ["--formula", f"{name} ~ a", "--out", str(place / name), "--quiet"]
        assert main(["fit", str(place / "ordered.parquet"), *more, "--json"]) == 0
        said = capsys.readouterr()
        assert [row for row in json.loads(said.out)["summary"] if "cut" in row] == cuts
        assert f"the column '{name}' is an ordered category" in said.err
        # The order of numbers is lost in the file.
        assert ("it is assumed to be 1 < 2 < 3" in said.err) == (name == "z")
    settings = json.loads((place / "y" / "settings.json").read_text())
    assert settings["asked"]["response"] == "ordered-probit"
