"""Programs that a later process finds ready."""

import os
import pickle
import subprocess
import sys
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nghvi
from nghvi import _compiled, _programs, interpret
from nghvi._programs import program

traced = []


class Pair(eqx.Module):
    value: jax.Array
    name: str = eqx.field(static=True)


def _scaled(pair, factor, extra=None):
    traced.append(pair.name)
    return Pair(pair.value * factor, pair.name.upper()), {"factor": factor, "extra": extra}


@pytest.fixture
def known(monkeypatch, tmp_path):
    """Functions of this file count as the package's, whose programs are kept in a folder."""
    monkeypatch.setattr(_compiled, "programs_folder", tmp_path)
    monkeypatch.setattr(_programs, "KNOWN", {*_programs.KNOWN, "tests"})
    traced.clear()
    return tmp_path


@pytest.fixture
def two_cores():
    """Every worker of the suite has one core only."""
    with mock.patch("os.sched_getaffinity", return_value={0, 1}, create=True):
        yield


def test_a_program_returns_what_the_function_returns_and_is_traced_once_per_shape(known):
    scaled = program(_scaled)
    for _ in range(2):
        pair, rest = scaled(Pair(jnp.arange(3.0), "a"), 2.0, extra=np.ones(2))
        np.testing.assert_array_equal(pair.value, [0, 2, 4])
        assert pair.name == "A"
        assert rest["factor"] == 2.0
        np.testing.assert_array_equal(rest["extra"], [1, 1])
    assert traced == ["a"]
    assert isinstance(scaled(Pair(jnp.arange(3), "a"), 2)[1]["factor"], int)
    assert isinstance(scaled(Pair(jnp.arange(3), "a"), 2.0)[1]["factor"], float)
    assert scaled(Pair(jnp.arange(4.0), "b"), 2.0)[0].name == "B"


def test_a_compiler_that_does_not_know_our_options_takes_its_own(known, monkeypatch):
    monkeypatch.setattr(_programs, "OPTIONS", {"xla_option_of_no_version": True})
    _programs._options.cache_clear()
    pair, _ = program(_scaled)(Pair(jnp.arange(5.0), "a"), 2.0)
    _programs._options.cache_clear()
    np.testing.assert_array_equal(pair.value, [0, 2, 4, 6, 8])
    assert traced == ["a"]


def test_a_program_made_ahead_from_shapes_is_the_one_that_is_called(known, two_cores):
    scaled, number = program(_scaled), jax.ShapeDtypeStruct((3,), float)
    with _programs.Ahead() as ahead:
        ahead.make(scaled, Pair(number, "a"), 2.0)
        pair, _ = scaled(Pair(jnp.arange(3.0), "a"), 2.0)
    np.testing.assert_array_equal(pair.value, [0, 2, 4])
    assert traced == ["a"]


def test_what_fails_ahead_fails_where_it_is_called(known, two_cores):
    def fails(x):
        traced.append("fails")
        raise ValueError("no such thing")

    failing = program(fails)
    with _programs.Ahead() as ahead:
        ahead.make(failing, np.ones(2))
        for _ in range(2):
            with pytest.raises(ValueError, match="no such thing"):
                failing(np.ones(2))
    assert len(traced) >= 2


def test_a_fit_calls_every_program_that_it_made_ahead(panel, fitted, two_cores):
    made, called, make, call = [], [], _programs._Program.make, _programs._Program.__call__

    def making(self, maker, arguments):
        made.append((self, _programs._asked(arguments)[0]))
        make(self, maker, arguments)

    def calling(self, *args, **kwargs):
        called.append((self, _programs._asked((args, kwargs))[0]))
        return call(self, *args, **kwargs)

    watched = mock.patch.multiple(_programs._Program, make=making, __call__=calling)
    X = panel[["g", "a", "b"]]
    with watched, mock.patch.object(_programs, "_foreseen", set()):
        again = nghvi.MixedRegressor("g", random=["intercept", "a"]).fit(X, panel["y"])
    assert len(made) >= 4
    assert all(each in called for each in made)
    assert again.elbo_ == fitted.elbo_
    assert again.summary().equals(fitted.summary())


def test_nothing_is_made_ahead_on_a_single_core():
    with mock.patch("os.sched_getaffinity", return_value={0}, create=True):
        assert not _programs.Ahead().possible


LAYOUTS = """
import numpy as np
import jax.numpy as jnp
from nghvi import _programs
from nghvi.data.grouped import Rows

@_programs.program
def predicted(rows, z, effects, offset):
    return offset + z.T[0] * rows.expand(effects[0]) + z.T[1] * rows.expand(effects[1])

rng = np.random.default_rng(1)
for blocks in ((9, 4), (5, 30)), ((34, 98), (34, 10), (32, 113)), ((29, 22), (24, 45), (7, 93)):
    counts, sizes = np.array(blocks).T
    group = np.repeat(np.arange(counts.sum()), np.repeat(sizes, counts))
    rows = Rows(None, None, None, None, np.arange(counts.sum()), blocks, float(len(group)))
    z, effects = rng.normal(size=(len(group), 2)), rng.normal(size=(2, counts.sum()))
    offset = rng.normal(size=len(group))
    for plain in True, False:
        _programs._is_plain = lambda: plain
        found = predicted(rows, *map(jnp.asarray, (z, effects, offset)))
        expected = offset + (z * effects.T[group]).sum(1)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)
"""


def test_rows_of_groups_of_three_sizes_get_the_effects_of_their_groups():
    # XLA's newer kernels read numbers from elsewhere, and may end the process. They do so only
    # when they are optimised, so this needs a process without the flags of the other tests.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", LAYOUTS], env=environment, check=True)


def test_inside_another_program_it_is_part_of_that(known):
    scaled = program(_scaled)
    slope = jax.grad(lambda x: jnp.sum(scaled(Pair(x, "a"), 3.0)[0].value))(jnp.ones(2))
    np.testing.assert_array_equal(slope, [3, 3])


def test_what_is_on_disk_is_not_traced(known):
    program(_scaled)(Pair(jnp.arange(3.0), "a"), 2.0)
    assert sorted(path.suffix for path in known.iterdir()) == [".compiled", ".traced"]
    pair, rest = program(_scaled)(Pair(jnp.ones(3), "a"), 2.0)
    np.testing.assert_array_equal(pair.value, [2, 2, 2])
    assert (pair.name, rest) == ("A", {"factor": 2.0, "extra": None})
    assert traced == ["a"]


@pytest.mark.parametrize("suffix", [".compiled", ".traced"])
def test_a_damaged_file_is_replaced(known, suffix):
    program(_scaled)(Pair(jnp.arange(3.0), "a"), 2.0)
    (path,) = known.glob(f"*{suffix}")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    pair, _ = program(_scaled)(Pair(jnp.ones(3), "a"), 2.0)
    np.testing.assert_array_equal(pair.value, [2, 2, 2])
    assert traced == ["a", "a"]
    assert _programs._read(path) is not None


@pytest.mark.parametrize(
    ("constant", "value"),
    [("nghvi.recipes.deep.ENCORES", (1.0,)), ("nghvi.models.general_factors.PAIRS", 9)],
)
def test_another_constant_is_another_program(known, monkeypatch, constant, value):
    program(_scaled)(Pair(jnp.arange(3.0), "a"), 2.0)
    monkeypatch.setattr(constant, value)
    program(_scaled)(Pair(jnp.arange(3.0), "a"), 2.0)
    assert traced == ["a", "a"]


def test_constants_of_an_edge_matter_to_its_own_programs_alone(monkeypatch):
    before = _programs._constants("models"), _programs._constants("interpret")
    monkeypatch.setattr(interpret, "ENDS", (0.1, 0.9))
    assert _programs._constants("models") == before[0]
    assert _programs._constants("interpret") != before[1]


def test_nothing_is_kept_of_functions_from_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr(_compiled, "programs_folder", tmp_path)
    pair, _ = program(_scaled)(Pair(jnp.arange(3.0), "a"), 2.0)
    np.testing.assert_array_equal(pair.value, [0, 2, 4])
    assert not list(tmp_path.iterdir())


def test_functions_are_told_apart_by_what_they_close_over(known):
    def times(factor):
        return lambda x: factor * x

    told = [_programs._told(f) for f in (times(2.0), times(3.0), times(2.0))]
    assert told[0] == told[2] != told[1]
    with pytest.raises(pickle.PicklingError):
        _programs._told(subprocess.run)


FIT = """
import numpy as np, pandas as pd, nghvi
rng = np.random.default_rng(1)
g = np.repeat(np.arange(12), 5)
frame = pd.DataFrame({"g": g, "x": rng.normal(size=60)})
frame["y"] = frame.x + rng.normal(size=12)[g] + rng.normal(size=60)
fit = nghvi.mixed("y ~ x + (1 | g)", frame)
print(fit.elbo_.hex(), *(v.hex() for v in fit.predict(frame)))
"""


DRAWN = """
import jax, jax.numpy as jnp
from nghvi._core.draws import AntitheticDraws
from nghvi.families import Full
from nghvi.recipes.refinement import _noise_and_draws
key = jax.random.key(0)
q = Full().at(jnp.zeros(2), jnp.ones(2))
print(_noise_and_draws(AntitheticDraws(2), key, q)[1])
counts = lambda keys: jax.lax.map(lambda key: jax.random.poisson(key, 2.0, (3,)), keys)
print(jax.jit(counts)(jax.random.split(key, 2)))
"""


def test_keys_of_programs_on_disk_are_not_handed_on_to_others(tmp_path):
    """Copies of JAX's generator would be: the counts of the second process need the original."""
    environment = {**os.environ, "NGHVI_CACHE": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", DRAWN], env=environment, capture_output=True)
        for _ in range(2)
    )
    assert second.stdout == first.stdout
    assert second.stdout.count(b"]") >= 4
    assert len(list(tmp_path.rglob("*.compiled"))) == 1


def test_a_second_process_gives_the_same_numbers(tmp_path):
    def told(folder):
        given = {**os.environ, "NGHVI_CACHE": str(folder)}
        run = [sys.executable, "-c", FIT]
        return subprocess.run(run, env=given, capture_output=True, check=True).stdout

    first, second = told(tmp_path), told(tmp_path)
    assert first == second
    assert len(list(tmp_path.rglob("*.compiled"))) >= 5
