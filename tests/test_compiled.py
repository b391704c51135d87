"""Compiled programs that outlive their process."""

import collections
import functools
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from nghvi import _compiled, _programs

ASK = "import jax, nghvi; print(jax.config.jax_compilation_cache_dir)"


def folder_of(**environment):
    """Where a new process keeps its programs."""
    kept = {name: v for name, v in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=kept | environment, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


@pytest.fixture(autouse=True)
def config(monkeypatch):
    """A record of what JAX would be told; this process is left as it is."""
    told = {}
    fake = SimpleNamespace(jax_compilation_cache_dir=None, update=told.__setitem__)
    forget = functools.partial(told.__setitem__, "forgotten", True)
    jax_of_test = SimpleNamespace(config=fake, __version__="1.2.3")
    monkeypatch.setattr(_compiled, "jax", jax_of_test)
    monkeypatch.setattr(_compiled, "programs_folder", None)
    monkeypatch.setattr(_programs, "forget_programs", forget)
    return told


def test_a_new_process_keeps_programs_where_it_is_told(tmp_path):
    assert folder_of(NGHVI_CACHE=str(tmp_path)).startswith(str(tmp_path / f"jax-{jax.__version__}"))
    own = str(tmp_path / "own")
    assert folder_of(NGHVI_CACHE=str(tmp_path), JAX_COMPILATION_CACHE_DIR=own) == own


@pytest.mark.parametrize("word", ["off", "0", ""])
def test_it_can_be_switched_off(monkeypatch, config, word):
    monkeypatch.setenv("NGHVI_CACHE", word)
    assert _compiled.keep_compiled() is None
    assert config == {}


def test_where_nothing_can_be_written_nothing_is_kept(monkeypatch, config, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NGHVI_CACHE", str(tmp_path / "file"))
    assert _compiled.keep_compiled() is None


def test_the_oldest_programs_go_first(monkeypatch, config, tmp_path):
    monkeypatch.setenv("NGHVI_CACHE", str(tmp_path))
    monkeypatch.setenv("NGHVI_CACHE_MB", "1")
    for age in range(5):
        path = tmp_path / f"program{age}"
        path.write_bytes(bytes(400_000))
        os.utime(path, (1e9 - age, 1e9 - age))
    assert config == {}
    folder = _compiled.keep_compiled()
    assert config["jax_compilation_cache_dir"] == str(folder)
    assert sorted(path.name for path in tmp_path.glob("program*")) == ["program0", "program1"]


@pytest.mark.parametrize(("maps", "forgotten"), [(5, {}), (50, {"forgotten": True})])
def test_programs_are_forgotten_before_a_process_has_too_many(
    monkeypatch, config, tmp_path, maps, forgotten
):
    """XLA ends a process with more memory maps than Linux allows."""
    monkeypatch.setattr(_programs, "MAPS", tmp_path / "maps")
    monkeypatch.setattr(_programs, "MOST_MAPS", 10)
    _programs.forget_programs_if_many()  # no such file on this machine
    (tmp_path / "maps").write_text("a map\n" * maps)
    _programs.forget_programs_if_many()
    assert config == forgotten


def test_programs_used_longest_ago_are_released_first(monkeypatch, tmp_path):
    maps = tmp_path / "maps"
    monkeypatch.setattr(_programs, "MAPS", maps)
    monkeypatch.setattr(_programs, "MOST_MAPS", 8)
    monkeypatch.setattr(_programs, "_recent", held := collections.OrderedDict())

    class Owner:
        def forget(self, asked):
            maps.write_text("a map\n" * len(held))

    owner = Owner()
    held.update({(owner, asked): None for asked in range(12)})
    held.move_to_end((owner, 0))
    maps.write_text("a map\n" * 12)
    _programs.forget_programs_if_many()
    assert [asked for _, asked in held] == [7, 8, 9, 10, 11, 0]


@pytest.mark.skipif(not _programs.MAPS.exists(), reason="only Linux tells what a process holds")
def test_what_forgotten_programs_held_is_given_back():
    """This runs in a process of its own, whose programs nobody misses."""
    program = """
import re, jax, nghvi
from nghvi import _programs
def facts():
    return len(_programs.MAPS.read_bytes().splitlines()), int(
        re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]
    )
for size in range(1, 25):
    jax.jit(lambda x: jax.numpy.linalg.eigh(jax.numpy.sin(x @ x.T)))(jax.numpy.ones((size, size)))
before = facts()
_programs.MOST_MAPS = 0
_programs.forget_programs_if_many()
print(*before, *facts())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    maps, memory, maps_after, memory_after = map(int, done.stdout.split())
    assert maps_after < maps - 24
    assert memory_after < memory
