"""Checkpoints: a killed fit continues bit for bit, a damaged or foreign file is never used."""

import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi.cli import main
from nghvi.recipes.run import Position
from nghvi.storage import StorageError
from nghvi.storage.checkpoints import KEPT, Checkpoints, CheckpointWarning, checkpoint_files
from nghvi.storage.codec import encode
from tests.storage.kill_worker import STEPS, fit

KILLS = 3


@pytest.fixture(scope="module")
def whole():
    """The fit that nothing disturbed."""
    return fit()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What is left of a fit that was killed at random moments, again and again."""
    place, rng = tmp_path_factory.mktemp("killed"), np.random.default_rng(8)
    reached = []
    for _ in range(KILLS):
        before = newest(place)
        command = [sys.executable, "-m", "tests.storage.kill_worker", str(place)]
        worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        aim = before + int(rng.integers(1, 8))
        while newest(place) < aim:
            assert worker.poll() is None, worker.communicate()[1]
            time.sleep(0.001)
        time.sleep(0.02 * rng.random())
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate()
        reached.append(newest(place))
    assert len(checkpoint_files(place)) <= KEPT + 1  # killed between writing and pruning
    assert 0 < reached[0] < reached[-1] < STEPS // 100
    return place


@pytest.fixture
def place(killed, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(killed, tmp_path / "kept")


def newest(place):
    return max((int(path.stem) for path in checkpoint_files(place)), default=0)


def assert_same_result(found, whole):
    for ours, expected in zip(
        jax.tree.leaves(found.posterior_.inference.q),
        jax.tree.leaves(whole.posterior_.inference.q),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, expected)
    pd.testing.assert_frame_equal(found.trace_, whole.trace_, check_exact=True)
    assert found.elbo_ == whole.elbo_
    assert found.verdict_ == whole.verdict_


def test_a_fit_killed_at_random_moments_ends_as_if_it_had_not_been(place, whole):
    found = fit(place)
    assert_same_result(found, whole)
    assert len(checkpoint_files(place)) == KEPT
    assert not list(place.glob(".*"))  # nothing half written is left


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("spoil", [truncate, flip_a_bit, empty])
def test_of_a_damaged_checkpoint_the_one_before_is_used(spoil, place):
    checkpoints = opened(place)
    files = checkpoint_files(place)
    spoil(files[-1])
    with pytest.warns(CheckpointWarning, match=rf"{files[-1].name}.* An earlier one is used"):
        found = checkpoints.newest()
    assert found.current.step == 100 * (newest(place) - 1)
    for path in files[:-1]:
        spoil(path)
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(StorageError, match=f"none of {len(files)} checkpoints can be read"),
    ):
        checkpoints.newest()


@pytest.mark.filterwarnings("ignore::nghvi.storage.checkpoints.CheckpointWarning")
def test_no_altered_byte_goes_unnoticed(place):
    """Bytes of a zip that mean nothing, such as dates, may change; the state may not."""
    *older, path = checkpoint_files(place)
    checkpoints, content = opened(place), path.read_bytes()
    expected = jax.tree.leaves(checkpoints.newest())
    for file in older:
        file.unlink()
    noticed, places = 0, np.random.default_rng(0).integers(len(content), size=40)
    for i in places:
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        try:
            found = jax.tree.leaves(checkpoints.newest())
        except StorageError:
            noticed += 1
            continue
        for ours, kept in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, kept)
    assert noticed > 0.9 * len(places)


def opened(place):
    """The checkpoints as the fit would open them."""
    file = nghvi.storage.file.read(checkpoint_files(place)[0])
    return Checkpoints(place, file.model["facts"], 0)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"steps": STEPS + 1}, f"steps was {STEPS}, now {STEPS + 1}"),
        ({"random_state": 4}, "random_state was 3, now 4"),
        ({"priors": nghvi.priors.Priors(coef_sd=3.0)}, "priors was None, now Priors"),
        ({"hidden": (2,)}, "hidden was .*sha256 of data"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused_and_the_difference_named(changed, named, place):
    with pytest.raises(StorageError, match=named):
        fit(place, **changed)


def test_what_cannot_be_kept_is_refused_at_once(tmp_path):
    with pytest.raises(nghvi.DataError, match="does not support"):
        fit(tmp_path, method="davi")
    with pytest.raises(nghvi.DataError, match="must be an integer"):
        fit(tmp_path, random_state=np.random.RandomState(0))
    with pytest.raises(nghvi.DataError, match="every=-1"):
        nghvi.MixedRegressor().fit([[1.0]], [1.0], checkpoint=tmp_path, every=-1)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot keep checkpoints there"):
        fit(tmp_path / "file")


def test_checkpoints_are_made_when_due_and_at_an_end(tmp_path):
    checkpoints = Checkpoints(tmp_path, {}, every=1000)
    position = Position(0, None, ())
    checkpoints.offer(position, False)
    assert newest(tmp_path) == 0
    refined = position._replace(refinements=2)
    checkpoints.offer(refined, True)
    assert Checkpoints(tmp_path, {}, 0).newest() == refined
    for _ in range(KEPT + 1):
        checkpoints.offer(position, True)
    assert len(checkpoint_files(tmp_path)) == KEPT


def test_a_checkpoint_with_refinements_beside_the_position_is_read(tmp_path):
    """As earlier versions wrote it."""
    position = Position(1, None, ())
    described, arrays = encode({"position": position, "refinements": 2})
    content = {"facts": {}, "checkpoint": described}
    nghvi.storage.file.write(tmp_path / "00000001.checkpoint", content, arrays)
    assert Checkpoints(tmp_path, {}, 0).newest() == position._replace(refinements=2)


def test_the_command_goes_on_only_if_asked_to(place, panel, tmp_path, capsys):
    panel.to_csv(tmp_path / "data.csv", index=False, float_format="%.17g")
    command = [
        *("fit", str(tmp_path / "data.csv"), "--target", "y", "--group", "g", "--quiet"),
        *("--method", "sg-hvi", "--steps", "300"),
        *("--out", str(tmp_path / "run"), "--checkpoint", str(place)),
    ]
    assert main(command) == 2
    assert "--resume to continue it, or --force to start again" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 2
    assert "the checkpoint is of another fit" in capsys.readouterr().err
    assert main([*command, "--force", "--every", "0"]) == 3
    assert 0 < newest(place) < 10  # the old ones are gone
    summary = (tmp_path / "run" / "summary.csv").read_text()
    assert main([*command, "--resume"]) == 3
    assert (tmp_path / "run" / "summary.csv").read_text() == summary
