"""Rows on disk are indexed and sorted as by pandas, and fitted and predicted as in memory."""

import errno
import os
import shutil

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi import GroupedDataset
from nghvi._core.errors import InputError
from nghvi.data import Rows, parquet
from nghvi.data.pieces import StackedPieces
from nghvi.data.scaling import Scaling
from nghvi.data.working_copy import StreamedRows
from nghvi.estimators.checks import why_not_of_the_fit
from nghvi.storage.checkpoints import checkpoint_files

INPUTS = ["a", "b"]
NETWORK = {"hidden": (3,), "steps": 24, "n_starts": 1, "batch_groups": 10}


@pytest.fixture(scope="module")
def frame():
    """Return unequal groups with text labels, rows in random order."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 12, 40)
    group = rng.permutation(np.repeat(np.arange(40), sizes))
    x = rng.normal(size=(group.size, 2)) * [1.0, 5.0] + [0.0, 100.0]
    y = 3 + np.maximum(x[:, 0], 0) + rng.normal(size=40)[group] + 0.3 * rng.normal(size=group.size)
    labels = np.array([f"firm {g}" for g in range(40)])[group]
    return pd.DataFrame({"a": x[:, 0], "firm": labels, "b": x[:, 1], "y": y})


@pytest.fixture(scope="module")
def folder(frame, tmp_path_factory):
    """Write the rows to three files."""
    place = tmp_path_factory.mktemp("large") / "firms"
    place.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
        frame.iloc[part].to_parquet(place / f"part{i}.parquet")
    return place


@pytest.fixture(scope="module")
def copy(folder, tmp_path_factory):
    return copied(folder, tmp_path_factory.mktemp("copy") / "rows")


def copied(folder, directory, groups=10):
    chosen = parquet.Selection(tuple(INPUTS), "firm", "y")
    return parquet.make_copy(parquet.files_of(folder), chosen, directory, groups, 0)


@pytest.fixture(scope="module")
def on_disk(folder):
    return nghvi.MixedRegressor("firm", **NETWORK).fit(GroupedDataset(folder), "y")


@pytest.fixture(scope="module")
def in_memory(frame):
    return nghvi.MixedRegressor("firm", **NETWORK).fit(frame[["a", "firm", "b"]], frame["y"])


def test_the_index_is_what_pandas_finds(frame, folder, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS_AT_ONCE", 7)  # many small batches, merged as they are read
    chosen = parquet.Selection(tuple(INPUTS), "firm", "y")
    found = parquet.index(parquet.files_of(folder), chosen)
    sizes = frame.groupby("firm").size()
    assert list(found.levels) == list(sizes.index)
    np.testing.assert_array_equal(found.sizes, sizes)
    np.testing.assert_allclose(found.mean, frame[["a", "b", "y"]].mean(), rtol=1e-12)
    np.testing.assert_allclose(found.variance, frame[["a", "b", "y"]].var(ddof=0), rtol=1e-12)
    assert found.num_rows == len(frame)


def test_two_classes_have_the_order_of_their_category(frame, tmp_path):
    high = frame["y"].to_numpy() > 3
    labels = pd.Categorical.from_codes(high.astype(int), ["yes", "no", "?"], ordered=True)
    frame.assign(y=labels).to_parquet(tmp_path / "ordered.parquet")
    chosen = parquet.Selection(tuple(INPUTS), "firm", "y", True)
    copy = parquet.make_copy([tmp_path / "ordered.parquet"], chosen, tmp_path / "rows", 10, 0)
    assert list(copy.learnt.classes) == ["yes", "no"]
    records, _ = copy.rows_of(np.arange(40))
    assert records[:, 2].sum() == high.sum()


def test_the_response_of_every_row_is_checked(frame, tmp_path):
    counts = frame.assign(y=np.arange(len(frame)) % 5)
    labels = np.unique(counts["firm"])
    for label in labels[[0, 13, 39]]:  # whichever piece it is in
        wrong = counts.copy()
        wrong.loc[wrong.index[wrong["firm"] == label][0], "y"] = -7
        wrong.to_parquet(tmp_path / "wrong.parquet")
        dataset = GroupedDataset(tmp_path / "wrong.parquet")
        with pytest.raises(InputError, match=r"y holds -7.*poisson response takes"):
            nghvi.MixedRegressor("firm", response="poisson", batch_groups=5).fit(dataset, "y")


def test_rows_are_sorted_by_group_in_the_order_of_the_files(frame, copy):
    asked = np.array([31, 4])
    records, which = copy.rows_of(asked)
    for i, label in enumerate(copy.learnt.levels[asked]):
        expected = frame.loc[frame["firm"] == label, ["a", "b", "y"]].to_numpy()
        np.testing.assert_array_equal(records[which == i, :-1], expected)
    assert (records[:, -1] == 1).all()


def test_sorting_by_buckets_gives_the_same_copy(folder, copy, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BUCKET_BYTES", 1)  # one piece per bucket
    monkeypatch.setattr(parquet, "ROWS_AT_ONCE", 16)
    other = copied(folder, tmp_path / "rows")
    names = sorted(p.name for p in other.directory.iterdir())
    assert names == sorted(p.name for p in copy.directory.iterdir())
    for name in set(names) - {
        "mean.npy",
        "variance.npy",
    }:  # sums over other batches round differently
        assert (other.directory / name).read_bytes() == (copy.directory / name).read_bytes()


def test_pieces_on_disk_are_those_in_memory_bit_for_bit(frame, copy):
    centre, scale = np.array([0.5, 99.0]), np.array([2.0, 3.0])
    streamed = StreamedRows(
        str(copy.directory),
        copy.identity,
        intercept=False,
        scaling=Scaling(centre, scale, 1.0, 2.0),
        num_rows=float(len(frame)),
        num_groups=40,
        variance=float(frame["y"].var(ddof=0)) / 4,
    )
    codes = np.unique(frame["firm"], return_inverse=True)[1]
    x, y = (frame[INPUTS].to_numpy() - centre) / scale, (frame["y"].to_numpy() - 1) / 2
    stacked = StackedPieces(Rows.from_arrays(x, y, codes, 40), 10, 0)
    assert streamed.num_pieces == stacked.num_pieces == 4
    for number in range(4):
        one, other = streamed.piece(number), stacked.piece(number)
        assert one.blocks == other.blocks
        for name in ("weight", "present", "num_rows"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        real = one.weight > 0
        np.testing.assert_array_equal(one.x[real], other.x[real])
        np.testing.assert_array_equal(one.y[real], other.y[real])


def test_a_fit_from_disk_goes_on_from_its_checkpoints(folder, tmp_path):
    """Without the newest checkpoint, the fit continues from an older one, to the same bits."""

    def fitted():
        model = nghvi.MixedRegressor("firm", **NETWORK, random_state=0)
        return model.fit(GroupedDataset(folder), "y", checkpoint=tmp_path, every=0)

    whole = fitted()
    for path in checkpoint_files(tmp_path)[1:]:
        path.unlink()
    resumed = fitted()
    np.testing.assert_array_equal(
        resumed.posterior_.inference.pool.theta, whole.posterior_.inference.pool.theta
    )
    pd.testing.assert_frame_equal(resumed.trace_, whole.trace_, check_exact=True)
    assert resumed.elbo_ == whole.elbo_


def test_a_fit_from_disk_is_the_fit_in_memory(on_disk, in_memory, frame, folder):
    assert on_disk.elbo_ == pytest.approx(in_memory.elbo_, abs=1e-8)
    assert on_disk.verdict_ == in_memory.verdict_
    pd.testing.assert_frame_equal(on_disk.summary(), in_memory.summary(), rtol=1e-8)
    pd.testing.assert_frame_equal(on_disk.group_effects(), in_memory.group_effects(), atol=1e-8)
    assert GroupedDataset(folder).directory == folder.with_name("firms.nghvi")
    posterior, fit = on_disk.posterior_, on_disk._rows
    backwards = frame[["a", "firm", "b"]][::-1], frame["y"][::-1]
    request, values = on_disk.reader_.observed(posterior, *backwards)
    assert why_not_of_the_fit(posterior, fit, request, values) is None
    assert "other values" in why_not_of_the_fit(posterior, fit, request, values + 1e-9)


@pytest.mark.parametrize("which", ["known", "population", "zero"])
def test_predictions_read_the_groups_they_need(on_disk, in_memory, frame, which):
    new = frame[["a", "firm", "b"]].iloc[:50].copy()
    new.loc[new.index[:5], "firm"] = "never seen"
    for one, other in zip(
        on_disk.predict(new, return_std=True, which=which),
        in_memory.predict(new, return_std=True, which=which),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-8)
    if which == "known":
        ends = on_disk.predict_interval(new)
        np.testing.assert_allclose(ends, in_memory.predict_interval(new), rtol=1e-6)


def test_a_model_file_holds_no_rows_and_says_where_they_are(on_disk, frame, tmp_path, folder):
    on_disk.save(tmp_path / "m.nghvi")
    new = frame[["a", "firm", "b"]].iloc[:50]
    loaded = nghvi.load(tmp_path / "m.nghvi")
    np.testing.assert_array_equal(loaded.predict(new), on_disk.predict(new))
    place = GroupedDataset(folder).directory
    moved = place.rename(place.with_name("away"))
    loaded = nghvi.load(tmp_path / "m.nghvi")
    with pytest.raises(nghvi.DataError, match="working copy of the fit is no longer there"):
        loaded.predict(new)
    population = loaded.predict(new, which="population")
    moved.rename(place)
    np.testing.assert_allclose(population, on_disk.predict(new, which="population"), rtol=1e-12)
    with pytest.raises(nghvi.DataError, match="would not fit into memory"):
        on_disk.posterior_draws()


def test_a_copy_is_used_again_until_the_files_change(frame, tmp_path):
    file = tmp_path / "t.parquet"
    frame.to_parquet(file)
    dataset = GroupedDataset(file, workdir=tmp_path / "mine")
    linear = nghvi.MixedRegressor("firm").fit(dataset, "y")
    made = (tmp_path / "mine" / "records.bin").stat().st_mtime_ns
    nghvi.MixedRegressor("firm").fit(dataset, "y")
    assert (tmp_path / "mine" / "records.bin").stat().st_mtime_ns == made
    # A linear model needs only sums by group and keeps them: the result is that in memory.
    whole = nghvi.MixedRegressor("firm").fit(frame[["a", "firm", "b"]], frame["y"])
    pd.testing.assert_frame_equal(linear.summary(), whole.summary(), rtol=1e-6)
    frame.assign(y=2 * frame["y"]).to_parquet(file)
    again = nghvi.MixedRegressor("firm").fit(dataset, "y")
    assert again.summary().loc["a", "mean"] == pytest.approx(2 * linear.summary().loc["a", "mean"])
    dataset.remove()
    assert not (tmp_path / "mine").exists()
    assert linear.predict(frame[["a", "firm", "b"]]).shape == (len(frame),)


def with_gap(frame, column):
    out = frame.copy()
    out.loc[out.index[6], column] = None
    return out


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda f: f.rename(columns={"firm": "form"}), r"no column 'firm'.*Did you mean 'form'\?"),
        (lambda f: f.drop(columns="y"), "no column 'y'"),
        (lambda f: with_gap(f, "firm"), r"t\.parquet, row 7: column 'firm' has no group"),
        (lambda f: with_gap(f, "b"), r"t\.parquet, row 7: column 'b' has no finite value"),
        (lambda f: with_gap(f, "y"), r"t\.parquet, row 7: column 'y' has no finite value"),
        (lambda f: f.assign(b="tall"), r"t\.parquet: column 'b' is not numeric \("),
        (lambda f: f.assign(y="tall"), r"t\.parquet: column 'y' is not numeric \("),
        (lambda f: f.iloc[:0], "no rows"),
        (lambda f: f.assign(firm="one"), "only one level"),
    ],
)
def test_bad_columns_are_named(frame, make, said, tmp_path):
    make(frame).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(nghvi.DataError, match=said):
        nghvi.MixedRegressor("firm", **NETWORK).fit(GroupedDataset(tmp_path / "t.parquet"), "y")
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_bad_places_are_named(frame, folder, tmp_path, monkeypatch):
    def fit(path, kind=nghvi.MixedRegressor, **where):
        return kind("firm", hidden=(3,)).fit(GroupedDataset(path, **where), "y")

    (tmp_path / "empty").mkdir()
    (tmp_path / "t.parquet").write_text("no Parquet")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("")
    for path, where, said in (
        (tmp_path / "empty", {}, "holds no Parquet file"),
        (tmp_path / "none.parquet", {}, "no such file or folder"),
        (tmp_path / "t.parquet", {}, "cannot be read as Parquet"),
        (folder, {"workdir": tmp_path / "taken"}, "holds something other"),
        (folder, {"workdir": tmp_path / "file" / "rows"}, "cannot be written"),
        (folder, {"columns": ("a", "height")}, "no column 'height'"),
    ):
        with pytest.raises(nghvi.DataError, match=said):
            fit(path, **where)
    assert (tmp_path / "taken" / "thesis.tex").exists()
    with pytest.raises(nghvi.DataError, match="needs exactly two"):
        fit(folder, nghvi.MixedClassifier, workdir=tmp_path / "w")
    free = shutil.disk_usage(tmp_path)._replace(free=10)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: free)
        with pytest.raises(nghvi.DataError, match="GB are free"):
            fit(folder, workdir=tmp_path / "w")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(nghvi.DataError, match="the disk is full"):
            fit(folder, workdir=tmp_path / "w")
    with monkeypatch.context() as patch:
        times = iter(range(100))
        patch.setattr(parquet, "fingerprint", lambda files: next(times))
        with pytest.raises(nghvi.DataError, match="changed while they were being read"):
            fit(folder, workdir=tmp_path / "w")
    assert not (tmp_path / "w").exists()


def full_disk(number):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_needs_a_table_in_memory_is_refused(folder, frame):
    rows = GroupedDataset(folder)
    for settings, arguments, said in (
        ({}, (frame["y"],), "name of the response column"),
        ({"group": None}, ("y",), "name one group column"),
        ({"formula": "y ~ a + (1 | firm)"}, ("y",), "formula"),
        ({}, ("y", np.ones(3)), "counts"),
        ({"method": "ng-hvi"}, ("y",), "method='auto'"),
    ):
        with pytest.raises(nghvi.DataError, match=said):
            nghvi.MixedRegressor(**{"group": "firm", **settings}).fit(rows, *arguments)
