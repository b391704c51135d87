"""Studies: cells are run once, rows survive, tables say what they should."""

import errno
import json
import os

import jax
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import nghvi
from nghvi import cli
from nghvi._core.evaluate import draw
from nghvi.cli.reproduce import run_side_by_side
from nghvi.paper import studies
from nghvi.paper.studies import example1, printed_values, problems
from nghvi.paper.studies.compared import fit, linear
from nghvi.paper.studies.exhibits import Table, beside, write_table
from nghvi.paper.studies.store import Store, StudyError
from nghvi.paper.studies.study import Options, Study


@pytest.fixture
def counted():
    """A study of three cells, and the list of the ones that were run."""
    ran, written = [], []

    def run(cell, options):
        ran.append(cell["method"])
        if cell["method"] == "bad" and not cell.get("fixed"):
            raise KeyboardInterrupt
        return {"value": len(ran)}

    def cells(options):
        return [{"method": m, "seed": options.seed} for m in ("a", "bad", "c")]

    study = Study("counted", "a test", cells, run, lambda rows: written.append(rows) or [])
    return study, ran, written


def quiet():
    return Console(quiet=True)


def test_finished_cells_are_kept_and_not_run_again(counted, tmp_path):
    study, ran, written = counted
    with pytest.raises(KeyboardInterrupt):
        studies.reproduce(study, tmp_path, Options(), quiet())
    assert ran == ["a", "bad"]
    again = study._replace(run=lambda cell, options: ran.append("again") or {"value": 0})
    rows = studies.reproduce(again, tmp_path, Options(), quiet())
    assert ran == ["a", "bad", "again", "again"]
    assert [row["method"] for row in rows] == ["a", "bad", "c"]
    assert len(written) == 1
    # Other seeds and quick runs are other cells, reported apart.
    other = studies.reproduce(again, tmp_path, Options(seed=2), quiet())
    assert {row["seed"] for row in other} == {2}
    assert len(studies.reproduce(again, tmp_path, Options(quick=True), quiet())) == 3


def test_rows_say_what_made_them(counted, tmp_path):
    study = counted[0]._replace(run=lambda cell, options: {"value": 1.0})
    row = studies.reproduce(study, tmp_path, Options(), quiet())[0]
    assert row["about"]["versions"]["jax"]
    assert row["about"]["commit"]
    assert row["cell_seconds"] >= 0
    stored = (tmp_path / "rows" / "counted.jsonl").read_text().splitlines()
    assert json.loads(stored[0]) == row


def test_rows_of_another_version_and_foreign_files_are_refused(tmp_path):
    Store(tmp_path, "x", "1.0").add({"method": "a"})
    assert Store(tmp_path, "x", "1.0").has({"method": "a"})
    with pytest.raises(StudyError, match=r"nghvi 1\.0 .* this is nghvi 2\.0.*--any-version"):
        Store(tmp_path, "x", "2.0")
    mixed = Store(tmp_path, "x", "2.0", any_version=True)
    mixed.add({"method": "b"})
    assert mixed.has({"method": "a"})
    assert [row["version"] for row in mixed.rows] == ["1.0", "2.0"]
    (tmp_path / "y.jsonl").write_text("not a row\n")
    with pytest.raises(StudyError, match="line 1"):
        Store(tmp_path, "y", "1.0")


def test_rows_of_two_processes_are_all_kept(tmp_path):
    first, second = Store(tmp_path, "x", "1.0"), Store(tmp_path, "x", "1.0")
    first.add({"method": "a"})
    second.add({"method": "b"})
    first.add({"method": "c"})
    assert [row["method"] for row in Store(tmp_path, "x", "1.0").rows] == ["a", "b", "c"]


def test_a_full_disk_keeps_the_rows_before(tmp_path, monkeypatch):
    store = Store(tmp_path, "x", "1.0")
    store.add({"method": "a"})

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StudyError, match="No space left on device; the 1 rows"):
            store.add({"method": "b"})
    assert [row["method"] for row in Store(tmp_path, "x", "1.0").rows] == ["a"]
    assert [file.name for file in tmp_path.iterdir()] == ["x.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "unknown study 'nothing'"),
        (["probit", "--replicates", "0"], "at least 1"),
        (["example2b", "--parameters", "missing.json"], "no such file"),
    ],
)
def test_bad_arguments_are_explained(arguments, said, capsys):
    assert cli.main(["reproduce", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().out.split())


def test_published_elbo_is_the_authors_formula():
    """Against its definition by draws: false alarm rate 6e-5 with a new seed."""
    problem = problems.example1(100, 1.0, 1)
    part = problems.Part(problem.train.inputs[:500], problem.train.y[:500])
    estimator = linear(0, method="ng-hvi", rank=1, steps=50)
    fit(estimator, part)
    inference = estimator.posterior_.inference
    q, model, data = inference.q, inference.model, inference.data
    centre = jax.tree.map(lambda x: x[0], example1.unravel_draws(model, data, q.mean[None]))
    log_q = draw(jax.random.key(0), q, 4000)[1]
    at_mean = model.log_marginal(centre, data)
    # The density of a variance is that of its logarithm divided by it.
    without_jacobian = -float(centre.effects[0] + centre.dispersion[0])
    values = float(at_mean) + without_jacobian - log_q
    error = values.std() / np.sqrt(values.size / 2)
    assert example1.published_elbo(inference) == pytest.approx(values.mean(), abs=4 * error)


def test_problems_are_the_papers():
    problem = problems.example2a(3)
    assert [len(part.y) for part in problem[:3]] == [6000, 2000, 2000]
    pd.testing.assert_frame_equal(problem.train.inputs, problems.example2a(3).train.inputs)
    assert not np.array_equal(problem.train.y, problems.example2a(4).train.y)
    correlation = problem.train.inputs.drop(columns=problems.GROUP).corr().to_numpy()
    np.testing.assert_allclose(correlation, problems.INPUT_CORRELATION, atol=0.06)
    noise = problem.test.y - problem.test_mean
    assert noise.var() == pytest.approx(20, rel=0.15)
    share = problems.example3(1, 0.1).train.y.mean()
    assert share == pytest.approx(0.77, abs=0.02)
    assert len(problems.example2b(1).test.y) == 10_000


def test_naive_predictions():
    frame = pd.DataFrame({problems.GROUP: [0, 0, 1]})
    train, part = problems.Part(frame, np.array([1.0, 0.0, 1.0])), problems.Part(frame, np.zeros(3))
    np.testing.assert_array_equal(problems.group_shares(train, part), [0.5, 0.5, 1.0])
    np.testing.assert_array_equal(problems.majority(train, part), [1, 1, 1])


def test_tables_in_three_forms(tmp_path):
    table = pd.DataFrame({"a_b": [beside(1.0, 2.0, 1), beside(np.nan, None)]}, index=["x", "y"])
    write_table(Table("t", "50 % of it", table.rename_axis("method")), tmp_path)
    assert "1.0 (2.0)" in (tmp_path / "t.txt").read_text()
    assert pd.read_csv(tmp_path / "t.csv")["a_b"].tolist() == ["1.0 (2.0)", "-"]
    assert r"a\_b" in (tmp_path / "t.tex").read_text()
    assert r"50 \% of it" in (tmp_path / "t.tex").read_text()


def test_the_papers_first_table_is_complete():
    settings = {(c["num_groups"], c["ratio"]) for c in example1.cells(Options())}
    assert settings == set(printed_values.TABLE_1)


def test_commands_side_by_side_speak_and_the_worst_exit_code_counts(capsys):
    commands = [["reproduce", "nothing"], ["--version"], ["reproduce", "all", "--replicates=0"]]
    assert run_side_by_side(commands, Console(width=200)) == 2
    said = capsys.readouterr().out
    for expected in ("unknown study 'nothing'", f"nghvi {nghvi.__version__}", "at least 1"):
        assert expected in said
