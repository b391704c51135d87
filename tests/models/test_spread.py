"""Groups on several devices and processes give the same fit as on one."""

import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nghvi
from nghvi._core import hosts
from nghvi._core.score import Integrated
from nghvi.cli import main
from nghvi.cli.reproduce import quick_to_compile
from nghvi.models.divided import mesh_of, shard
from tests.models import spread_worker

FOUR = "--xla_force_host_platform_device_count=4"


def start(*arguments, flags="", module="tests.models.spread_worker"):
    """A worker; it must not inherit a number of devices."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**quick_to_compile(flags), "JAX_PLATFORMS": "cpu"},
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(worker):
    _, errors = worker.communicate(timeout=300)
    assert worker.returncode == 0, errors
    return errors


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def one():
    return spread_worker.fit(None)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    out = tmp_path_factory.mktemp("four") / "found.npz"
    finished(start(out, flags=FOUR))
    return np.load(out)


def assert_same_fit(found, one, devices):
    assert found["devices"] == devices
    assert found["trace"].shape == one["trace"].shape
    np.testing.assert_allclose(found["trace"], one["trace"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found["elbo"], one["elbo"], rtol=1e-10)


def test_four_devices_go_the_way_of_one(four, one):
    assert_same_fit(four, one, 4)


def test_two_processes_go_the_way_of_one(one, tmp_path):
    out, coordinator = tmp_path / "found.npz", f"127.0.0.1:{free_port()}"
    workers = [start(out, coordinator, i, 2) for i in range(2)]
    for worker in workers:
        finished(worker)
    assert_same_fit(np.load(out), one, 2)


def test_effects_drawn_on_four_devices_give_the_score_of_theta(four):
    """Fisher's identity: 2000 scores by drawn effects have the exact score as their mean. Five
    standard errors in four coordinates alarm falsely once in 400,000."""
    score = Integrated()
    exact = jax.jit(
        lambda t: score(jax.random.key(0), t, (), spread_worker.MODEL, spread_worker.rows())[1]
    )(jnp.asarray(spread_worker.THETA))
    drawn = four["drawn"]
    error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    assert (error > 0).all()
    assert (np.abs(drawn.mean(axis=0) - exact) < 5 * error).all()


def test_a_fit_with_effects_drawn_on_four_devices_is_that_of_one(four):
    """Other draws, the same posterior: each fit stops within about 0.03 sd of it."""
    alone = spread_worker.fit_with_drawn_effects(None)
    np.testing.assert_array_less(np.abs(four["mean"] - alone["mean"]) / alone["sd"], 0.15)
    np.testing.assert_array_less(np.abs(four["sd"] / alone["sd"] - 1), 0.15)
    assert not np.array_equal(four["mean"], alone["mean"])


def test_a_process_says_why_it_ends_when_the_runtime_aborts_it():
    """This also works from a thread, while Python holds its lock."""
    begin = "import os, ctypes; from nghvi._core.hosts import _outlive_aborts as o; o(1, 2); "
    thread = "import threading; threading.Thread(target=os.abort).start(); sum(range(10**12))"
    for code in ("os.abort()", thread, "ctypes.PyDLL(None).abort()"):
        ended = subprocess.run(
            [sys.executable, "-c", begin + code], capture_output=True, text=True, check=False
        )
        assert ended.returncode == hosts.LOST
        assert "process 1 of 2 cannot continue, since another one was lost" in ended.stderr
        assert "Warning" not in ended.stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [("raise SystemExit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getppid(), 15)", 5)],
)
def test_other_endings_of_a_process_are_its_own(ending, code):
    begin = "import os, sys, signal, time; from nghvi._core.hosts import _outlive_aborts as o; "
    handler = "signal.signal(15, lambda *a: os._exit(5)); "
    ended = subprocess.run(
        [sys.executable, "-c", begin + "o(0, 2); " + handler + ending + "; time.sleep(60)"],
        check=False,
    )
    assert ended.returncode == code


def test_a_process_ends_with_the_one_that_watches_it():
    code = (
        "import os, time; from nghvi._core.hosts import _outlive_aborts as o; o(0, 2); "
        "print(os.getppid(), flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert int(watching.stdout.readline()) == watching.pid
        watching.kill()
        # The pipe closes when the last process that has it ends.
        assert watching.stdout.read() == ""


def test_devices_that_are_not_there_are_refused():
    there = len(jax.devices())
    with pytest.raises(hosts.DeviceError, match=f"there are {there} "):
        mesh_of(there + 1)
    for wrong in (0, -1, "some", True, 1.5):
        with pytest.raises(hosts.DeviceError, match="give a number >= 1"):
            mesh_of(wrong)


def test_every_device_needs_a_group():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1] * 14), ("groups",))
    with pytest.raises(hosts.DeviceError, match="only 13 groups"):
        shard(spread_worker.rows(), mesh)


def test_a_model_that_states_no_prior_is_refused():
    class Own(nghvi.MarginalModel):
        init_params = init_latents = sample_latents = log_joint = log_marginal = lambda *a: None

    with pytest.raises(hosts.DeviceError, match="Own states no log_prior"):
        nghvi.infer(Own(), spread_worker.rows(), devices=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--coordinator", "here:1"], "go together"),
        (["--coordinator", "here", "--process-id", "0", "--num-processes", "2"], "host:port"),
        (["--coordinator", "h:1", "--process-id", "2", "--num-processes", "2"], "from 0 to 1"),
    ],
)
def test_processes_are_named_in_full(arguments, message, tmp_path, capsys):
    code = main(["fit", "x.csv", "--target", "y", "--out", str(tmp_path / "run"), *arguments])
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_refused():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(hosts.DeviceError, match=f"port {port} cannot be used"):
            hosts.join(f"127.0.0.1:{port}", 0, 2)


def test_a_coordinator_that_does_not_answer_is_named():
    port = free_port()
    with pytest.raises(hosts.DeviceError, match=f"127.0.0.1:{port}: nobody answers"):
        hosts.join(f"127.0.0.1:{port}", 1, 2, patience=0)
