"""``nghvi fit``, ``predict`` and ``summary`` end to end, as a person would call them."""

import json
import os
import shutil
import signal

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi.cli import main
from nghvi.estimators import fitting

FORMULA = "y ~ a + b + (1 + a | g)"


@pytest.fixture(scope="module")
def place(panel, tmp_path_factory):
    place = tmp_path_factory.mktemp("cli")
    panel.to_csv(place / "data.csv", index=False, float_format="%.17g")
    panel.to_parquet(place / "data.parquet")
    return place


@pytest.fixture(scope="module")
def whole(place):
    """A run of the formula that nothing disturbed."""
    code = main(["fit", str(place / "data.csv"), "--formula", FORMULA, *out(place / "whole")])
    return code, place / "whole"


def out(directory):
    return ["--out", str(directory), "--quiet"]


def test_fit_leaves_a_run_that_holds_what_was_asked(whole, fitted):
    code, run = whole
    assert code == 0
    assert sorted(p.name for p in run.iterdir()) == ["model.nghvi", "settings.json", "summary.csv"]
    summary = pd.read_csv(run / "summary.csv", index_col=0)
    pd.testing.assert_frame_equal(summary, pd.DataFrame(fitted.summary()))
    settings = json.loads((run / "settings.json").read_text())
    assert settings["asked"]["formula"] == FORMULA
    assert settings["asked"]["data"] == "data.csv"
    assert settings["versions"]["nghvi"] == nghvi.__version__


def test_target_and_parquet_give_the_same_run(whole, place, capsys):
    arguments = ["--target", "y", "--group", "g", "--random", "intercept,a", "--json"]
    code = main(["fit", str(place / "data.parquet"), *arguments, *out(place / "target")])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["converged"]
    assert not found["interrupted"]
    whole_summary = pd.read_csv(whole[1] / "summary.csv", index_col=0)
    assert found["summary"]["a"]["mean"] == whole_summary.loc["a", "mean"]


def test_summary_is_for_people_and_programs(whole, capsys):
    assert main(["summary", str(whole[1])]) == 0
    assert "effects_sd[a]" in capsys.readouterr().out
    assert main(["summary", str(whole[1]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"].startswith("Converged")
    assert main(["summary", str(whole[1]), "--level", "0.5"]) == 0
    assert "q25" in capsys.readouterr().out
    assert main(["summary", str(whole[1]), "--level", "5"]) == 2
    assert "level=5.0: it must be a probability" in capsys.readouterr().err


def test_predict_writes_mean_interval_and_whether_the_group_is_known(
    whole, place, panel, fitted, capsys
):
    new = panel[["b", "a", "g"]].head(6).assign(extra="text", g=[0, 0, 1, 2, 77, 77])
    new.to_csv(place / "new.csv", index=False, float_format="%.17g")
    target = place / "predicted.csv"
    arguments = ["predict", str(whole[1]), str(place / "new.csv"), "-o", str(target)]
    assert main(arguments) == 0
    found = pd.read_csv(target)
    expected = new[["g", "a", "b"]]
    np.testing.assert_allclose(found["mean"], fitted.predict(expected), rtol=1e-12)
    lower, upper = fitted.predict_interval(expected)
    np.testing.assert_allclose(found[["lower", "upper"]], np.c_[lower, upper], rtol=1e-12)
    assert found["group_known"].tolist() == [True] * 4 + [False] * 2
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[5]["group_known"] is False
    assert main(["predict", str(whole[1]), str(place / "new.csv"), "--level", "2"]) == 2


def test_classes_are_predicted_with_their_probability(fitted_binary, binary_panel, place, capsys):
    run = place / "binary"
    run.mkdir()
    fitted_binary.save(run / "model.nghvi")
    binary_panel.head(4).to_csv(place / "binary.csv", index=False)
    assert main(["predict", str(run), str(place / "binary.csv"), "--json"]) == 0
    found = pd.DataFrame(json.loads(capsys.readouterr().out))
    assert set(found["class"]) <= {0, 1}
    assert (found["lower"] < found["mean"]).all()
    assert (found["mean"] < found["upper"]).all()


def test_an_interrupted_fit_is_saved_and_resumes_to_the_same_run(whole, place, monkeypatch, capsys):
    class Interrupting(fitting.FitProgress):
        def __call__(self, *state):
            signal.raise_signal(signal.SIGINT)

    run = place / "interrupted"
    arguments = ["fit", str(place / "data.csv"), "--formula", FORMULA, "--out", str(run)]
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "FitProgress", Interrupting)
        assert main([*arguments, "--json"]) == 130
    printed = capsys.readouterr()
    assert json.loads(printed.out)["interrupted"]
    assert "--resume" in printed.err
    assert np.isfinite(
        nghvi.load(run / "model.nghvi").predict(pd.read_csv(place / "data.csv"))
    ).all()
    assert main([*arguments, "--resume", "--seed", "1"]) == 2
    assert "begun with seed 0, not 1" in capsys.readouterr().err
    for _ in range(2):  # a finished run has nothing left to do
        assert main([*arguments, "--resume", "--quiet"]) == 0
        assert (run / "summary.csv").read_bytes() == (whole[1] / "summary.csv").read_bytes()


def test_a_fit_that_has_not_converged_is_exit_code_3(whole, place):
    shutil.copytree(whole[1], place / "poor")
    model = nghvi.load(whole[1] / "model.nghvi")
    model.converged_ = False
    model.save(place / "poor" / "model.nghvi")
    arguments = ["fit", str(place / "data.csv"), "--formula", FORMULA, *out(place / "poor")]
    assert main([*arguments, "--resume"]) == 3


def test_an_existing_run_is_kept_unless_forced(whole, place, capsys):
    model = (whole[1] / "model.nghvi").read_bytes()
    arguments = ["fit", str(place / "data.csv"), "--formula", FORMULA, *out(whole[1])]
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert (whole[1] / "model.nghvi").read_bytes() == model


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--target", "n", "--group", "g", "--exposure", "t"], "exposure='t' holds 0 in line 3"),
        (["--target", "n", "--group", "g", "--exposure", "0"], "exposure=0.0 holds 0 in line 2"),
        (["--formula", "n ~ x + exposure(t) + (1 | g)"], "log(t) is not finite in 1 row (line 3)"),
    ],
)
def test_an_exposure_of_zero_is_refused_by_line(asked, said, tmp_path, capsys):
    rows = pd.DataFrame({"g": list("aabbc"), "x": range(5), "n": [2, 0, 1, 4, 2], "t": 1.5})
    rows.loc[1, "t"] = 0
    rows.to_csv(tmp_path / "counts.csv", index=False)
    arguments = ["fit", str(tmp_path / "counts.csv"), *asked, "--response", "poisson"]
    assert main([*arguments, *out(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert "leave out rows without exposure" in message


def test_a_response_that_is_also_the_group_is_refused(place, capsys):
    arguments = ["fit", str(place / "data.csv"), "--target", "y", "--group", "y"]
    assert main([*arguments, *out(place / "same")]) == 2
    assert "--target and --group both name the column 'y'" in capsys.readouterr().err


def test_ctrl_c_before_the_fit_is_exit_code_130(place, monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("nghvi.cli.fit.read_table", interrupted)
    assert main(["fit", "data.csv", "--formula", FORMULA, *out(place / "none")]) == 130
    assert "nothing was saved" in capsys.readouterr().err


FILES = {
    "ragged.csv": "y,x\n1,2\n3,4,5\n",
    "word.csv": "y,x\n" + "".join(f"{i},{i}\n" for i in range(40)) + "\n41,oops\n",
    "hole.csv": "y,x\n1,2\n3,\n",
    "empty.csv": "",
    "header.csv": "y,x\n",
    "text.csv": "y,x\nlow,1\nhigh,2\nlow,3\n",
    "good.csv": "y,x,g\n1,2,a\n2,3,a\n4,4,b\n5,6,b\n",
    "data.txt": "y,x\n1,2\n",
    "few.csv": "y,x\n1,2\n3,4\n5,6\n2,8\n4,9\n1,oops\n",
    "half.csv": "y,x\n1,0.5\n3,?\n5,1.5\n",
    "semicolon.csv": "y;x\n1;2\n3;4\n",
    "twice.csv": "y,x,x\n1,2,3\n2,3,4\n",
    "shifted.csv": "y,x\n1,2,3\n2,3,4\n",
    "infinite.csv": "y,x\n1,2\n3,inf\n",
    "quote.csv": 'y,x\n1,"2\n3,4\n',
    "latin.csv": "y,x\n1,2\n3,\xe9\n",
    "false.parquet": "no table",
    "one.csv": "y,x\n1,2\n",
    "noname.csv": "y,,x\n1,2,3\n2,3,4\n",
}
BAD = [
    ("ragged.csv", "y ~ x", "line 3 has 3 fields where the others have 2"),
    ("word.csv", "y ~ x", "word.csv, line 43: 'oops' in column 'x' is not a number"),
    ("hole.csv", "y ~ x", "hole.csv, line 3: column 'x' has no value there"),
    ("empty.csv", "y ~ x", "the file is empty"),
    ("header.csv", "y ~ x", "names but no rows"),
    ("text.csv", "y ~ x", "text.csv, line 2: the response 'y' holds 'low'"),
    ("absent.csv", "y ~ x", "there is no such file"),
    ("data.txt", "y ~ x", "ends in .csv or .parquet"),
    ("good.csv", "y ~ xx", "good.csv: there is no column 'xx' (--formula). Did you mean 'x'?"),
    ("good.csv", "", "a formula is a text, for example"),
    ("few.csv", "y ~ x", "few.csv, line 7: 'oops' in column 'x' is not a number"),
    ("half.csv", "y ~ x", "half.csv, line 3: '?' in column 'x' is not a number"),
    ("semicolon.csv", "y ~ x", "semicolon.csv, line 1: columns are separated by semicolons"),
    ("twice.csv", "y ~ x", "line 1: the name 'x' occurs twice"),
    ("shifted.csv", "y ~ x", "rows have more fields than line 1 has names"),
    ("infinite.csv", "y ~ x", "infinite.csv, line 3: column 'x' is infinite there"),
    ("quote.csv", "y ~ x", "a quote that opens in line 2 is not closed"),
    ("latin.csv", "y ~ x", "latin.csv, line 3: the text is not UTF-8"),
    ("false.parquet", "y ~ x", "false.parquet: the file cannot be read"),
    ("one.csv", "y ~ x", "one.csv: there is only one row"),
    ("good.csv", "y ~ x +* g", "at '+*' (character 7)"),
    ("good.csv", "y ~ (1 | g/g)", "'g' is nested in itself"),
    ("good.csv", "g ~ x", "the response 'g' holds 'a'"),
]


@pytest.mark.parametrize(("name", "formula", "said"), BAD)
def test_bad_input_is_one_line_with_place_and_remedy(name, formula, said, tmp_path, capsys):
    if name in FILES:
        (tmp_path / name).write_text(FILES[name], encoding="latin-1")
    code = main(["fit", str(tmp_path / name), "--formula", formula, *out(tmp_path / "run")])
    printed = capsys.readouterr()
    assert code == 2
    assert said in printed.err
    assert printed.err.startswith("nghvi fit: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "z"], "no column 'z' (--target)"),
        (["--target", "y", "--group", "gg"], "no column 'gg' (--group). Did you mean 'g'?"),
        (["--formula", "y ~ x", "--group", "g"], "the formula says both"),
        (["--formula", "y ~ x", "--method", "best"], "choose one of"),
        (["--formula", "y ~ x", "--resume"], "there is no run"),
    ],
)
def test_bad_arguments_are_one_line(arguments, said, tmp_path, capsys):
    (tmp_path / "good.csv").write_text(FILES["good.csv"])
    assert main(["fit", str(tmp_path / "good.csv"), *arguments, *out(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


def test_a_column_without_a_name_is_no_input(tmp_path, capsys):
    (tmp_path / "noname.csv").write_text(FILES["noname.csv"])
    arguments = ["fit", str(tmp_path / "noname.csv"), "--target", "y", *out(tmp_path / "run")]
    assert main(arguments) == 2
    assert "line 1: column 2 has no name" in capsys.readouterr().err


def test_places_that_cannot_be_written_or_read(tmp_path, capsys):
    (tmp_path / "good.csv").write_text(FILES["good.csv"])
    (tmp_path / "file").write_text("in the way")
    fit = ["fit", str(tmp_path / "good.csv"), "--formula", "y ~ x"]
    assert main([*fit, *out(tmp_path / "file")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    if os.geteuid():  # nothing is closed to root
        (tmp_path / "closed").mkdir(mode=0o500)
        assert main([*fit, *out(tmp_path / "closed")]) == 2
    assert main(["summary", str(tmp_path)]) == 2
    assert "there is no run" in capsys.readouterr().err


def test_usage_errors_and_help(capsys):
    fit = ["fit", "x.csv", "--out", "run"]
    hidden = "give layer widths, such as 32,16,8"
    for arguments, said in (
        ([], "--formula --target is required"),
        (["--target", "y", "--hidden", "32,a"], hidden),
        (["--target", "y", "--hidden", "0"], hidden),
        (["--target", "y", "--response", "weibull"], "'weibull' (choose from"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*fit, *arguments])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out
