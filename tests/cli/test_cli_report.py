"""``nghvi report``: it reads the table of the fit again, if that is still the same."""

import pytest

import nghvi
from nghvi.cli import main
from nghvi.cli.rundir import fingerprint, write

ASKED = {"formula": None, "target": "y", "data": "data.csv"}


@pytest.fixture
def run(fitted, panel, tmp_path):
    """A run as ``nghvi fit --target y --group g`` leaves it, with its table beside it."""
    panel.to_csv(tmp_path / "data.csv", index=False)
    run = tmp_path / "run"
    run.mkdir()
    asked = ASKED | {"sha256": fingerprint(tmp_path / "data.csv")}
    write(run, fitted, asked, tmp_path / "data.csv")
    return run


def page(run):
    return (run / "report.html").read_text()


def test_the_table_of_the_fit_is_read_again(run, capsys):
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().err == ""
    assert "247 rows of the fit, each predicted from all the others" in page(run)
    assert "Report of a mixed regression: y" in page(run)
    assert main(["report", str(run)]) == 2
    assert "--force" in capsys.readouterr().err


def test_a_table_that_changed_or_went_is_not_used(run, capsys):
    data = run.parent / "data.csv"
    with data.open("a") as file:
        file.write("0,1,1,1\n")
    for said in ("the table has changed since the fit", "the table of the fit cannot be read"):
        assert main(["report", str(run), "--force"]) == 0
        printed = capsys.readouterr().err
        assert said in printed
        assert "--data" in printed
        assert printed.count("\n") == 1
        assert "This part is left out" in page(run)
        data.unlink(missing_ok=True)


def test_other_rows_are_given_by_data(run, panel, capsys):
    panel.head(50).assign(y=lambda rows: rows["y"] + 0.1).to_csv(
        run.parent / "new.csv", index=False
    )
    arguments = ["report", str(run), "--force", "--data"]
    assert main([*arguments, str(run.parent / "new.csv")]) == 0
    assert "this is a test on new data" in page(run)
    panel.drop(columns="y").to_csv(run.parent / "new.csv", index=False)
    assert main([*arguments, str(run.parent / "new.csv")]) == 2
    assert "there is no column 'y' (a column of the model)" in capsys.readouterr().err


def test_a_formula_says_what_the_response_is(panel, tmp_path, capsys):
    frame = panel.assign(kind=panel["g"].map(lambda g: "odd" if g % 2 else "even"))
    frame.to_csv(tmp_path / "data.csv", index=False)
    with pytest.warns(nghvi.DataWarning, match="learns"):
        model = nghvi.mixed("y ~ a + kind + (. | g)", frame, hidden=(2,), steps=20, n_starts=1)
    run = tmp_path / "run"
    run.mkdir()
    model.save(run / "model.nghvi")  # without settings: made in Python
    assert main(["report", str(run), "--data", str(tmp_path / "data.csv")]) == 0
    found = page(run)
    assert "Report of a mixed regression: y" in found
    assert "nghvi.mixed(&#x27;y ~ a + kind + (. | g)&#x27;, data, " in found
    assert "Not shown: kind[T.odd]." in found
    top = found[: found.index("What was fitted")]
    assert "Not settled" in top
    assert "Do not use the numbers below" in top
