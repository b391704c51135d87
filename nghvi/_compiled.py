"""Compiled programs are kept on disk, so that the second process does not wait for a compiler.

``NGHVI_CACHE`` names the folder; ``NGHVI_CACHE=off`` keeps nothing. Without it programs are in the
user's folder for caches. A folder of JAX's own choice (``JAX_COMPILATION_CACHE_DIR``) is left as it
is. Programs of another version of JAX or for another processor lie in folders of their own.

Within a process programs pile up with every new shape of the data: those of a linear model hold 40
MB and a thousand memory maps, of which Linux allows a process 65,530; beyond, the compiler ends the
process. All are forgotten when there are many: JAX does not tell which were used longest ago.
"""

import contextlib
import ctypes
import gc
import hashlib
import os
import pathlib
import platform
import sys

import jax

OFF = ("", "0", "off", "no", "false")
WORTH_KEEPING = 0.05
"""Seconds of compilation from which a program is kept."""
MAPS = pathlib.Path("/proc/self/maps")
MOST_MAPS = 16_000
"""Beyond, all programs of the process are forgotten, some 600 MB; those on disk come back soon."""
MOST_BYTES = 500_000_000
"""Beyond, the programs that were used longest ago are deleted."""


def keep_compiled() -> pathlib.Path | None:
    """Let JAX keep its programs; returns the folder, None if they are not kept there."""
    chosen = os.environ.get("NGHVI_CACHE")
    by_user = getattr(jax.config, "jax_compilation_cache_dir", None)
    if by_user or (chosen is not None and chosen.lower() in OFF):
        return None
    root = _users_caches() / "nghvi" if chosen is None else pathlib.Path(chosen).expanduser()
    folder = root / f"jax-{jax.__version__}-{_processor()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _forget_the_oldest(root)
    except OSError:  # no home, no room, no permission: compile as if there were no folder
        return None
    if not os.access(folder, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _users_caches() -> pathlib.Path:
    if sys.platform == "win32":
        return pathlib.Path(os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData/Local")
    if sys.platform == "darwin":
        return pathlib.Path.home() / "Library/Caches"
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")


def _processor() -> str:
    """What tells processors apart for which programs differ: a home may be shared by several."""
    told = f"{platform.machine()} {platform.processor()}"
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        told += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _forget_the_oldest(root: pathlib.Path) -> None:
    """Delete what was used longest ago; another process may be doing the same."""
    files = [(path, path.stat()) for path in root.rglob("*") if path.is_file()]
    spare = sum(facts.st_size for _, facts in files) - MOST_BYTES
    for path, facts in sorted(files, key=lambda each: each[1].st_mtime):
        if spare <= 0:
            return
        path.unlink(missing_ok=True)
        spare -= facts.st_size


def forget_programs_if_many() -> None:
    """Make room for further programs; called before a fit, whose own programs stay."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux, not the GNU C library
        if MAPS.read_bytes().count(b"\n") > MOST_MAPS:
            jax.clear_caches()
            gc.collect()
            # What is freed stays with the process otherwise: small pieces between others.
            ctypes.CDLL(None).malloc_trim(0)
