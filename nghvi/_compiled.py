"""Compiled programs are kept on disk, so that the next process does not wait for a compiler.

``NGHVI_CACHE`` names the folder; ``NGHVI_CACHE=off`` keeps nothing. Without it programs are kept in
the user's cache folder. ``NGHVI_CACHE_MB`` bounds its size. A folder that was chosen for JAX
(``JAX_COMPILATION_CACHE_DIR``) is left as it is. Programs of another version of JAX, or for another
processor, have folders of their own.

Only the user may access the folder, since what it holds is executed.
"""

import contextlib
import copyreg
import hashlib
import importlib
import os
import pathlib
import platform
import sys
import threading
from typing import Any

import jax
from jax.experimental import serialize_executable

OFF = ("", "0", "off", "no", "false")
"""Values of ``NGHVI_CACHE`` that switch the cache off."""
WORTH_KEEPING = 0.0
"""Seconds of compilation from which on a program is kept. All are kept: a fit also has some twenty
tiny ones, each of which costs a second process several times what reading it takes."""
MOST_MEGABYTES = 500
"""Size of the folder, unless ``NGHVI_CACHE_MB`` states another, beyond which the least recently
used programs are deleted."""

FORMAT = 2
"""Of compiled programs in files. Those of format 1 had copies of generators."""
GENERATORS = ("threefry_prng_impl", "rbg_prng_impl", "unsafe_rbg_prng_impl")
"""JAX's generators of random numbers, as ``jax.extend.random`` names them."""

programs_folder: pathlib.Path | None = None
"""The folder in which this process keeps programs; None if it keeps none."""


def keep_compiled() -> pathlib.Path | None:
    """Let JAX keep its programs, and return the folder; None if they are not kept in ours."""
    global programs_folder
    chosen = os.environ.get("NGHVI_CACHE")
    by_user = getattr(jax.config, "jax_compilation_cache_dir", None)
    if by_user or (chosen is not None and chosen.lower() in OFF):
        return None
    root = _users_caches() / "nghvi" if chosen is None else pathlib.Path(chosen).expanduser()
    kept = root / f"jax-{jax.__version__}-{_processor()}"
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        _forget_the_oldest(root)
    except OSError:  # no home, no room, no permission: compile as if there were no folder
        return None
    if not os.access(kept, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(kept))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    programs_folder = kept
    return kept


def _users_caches() -> pathlib.Path:
    if sys.platform == "win32":
        return pathlib.Path(os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData/Local")
    if sys.platform == "darwin":
        return pathlib.Path.home() / "Library/Caches"
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")


def _processor() -> str:
    """Return a hash of the processor's features: machines that share a home may differ in them."""
    told = f"{platform.machine()} {platform.processor()}"
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        told += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _forget_the_oldest(root: pathlib.Path) -> None:
    """Delete the least recently used programs; another process may be doing the same."""
    files = [(path, path.stat()) for path in root.rglob("*") if path.is_file()]
    stated = os.environ.get("NGHVI_CACHE_MB", "")
    most = 10**6 * (int(stated) if stated.isdecimal() else MOST_MEGABYTES)
    spare = sum(facts.st_size for _, facts in files) - most
    for path, facts in sorted(files, key=lambda each: each[1].st_mtime):
        if spare <= 0:
            return
        path.unlink(missing_ok=True)
        spare -= facts.st_size


_writing = threading.Lock()


def serialized(compiled: jax.stages.Compiled) -> bytes:
    """Return a program as bytes, which name the generators of its random keys.

    A copy of a generator is equal to the original, so that JAX's caches hand it on to other
    programs, but not identical, for which ``jax.random.poisson`` refuses it.
    """
    random = importlib.import_module("jax.extend.random")  # takes a hundredth of a second
    names = {getattr(random, name): name for name in GENERATORS}
    kind = type(random.threefry_prng_impl)
    with _writing:
        copyreg.pickle(kind, lambda each: (_generator, (names[each],)))
        try:
            return serialize_executable.serialize(compiled)[0]
        finally:
            del copyreg.dispatch_table[kind]


def _generator(name: str) -> Any:
    return getattr(importlib.import_module("jax.extend.random"), name)
