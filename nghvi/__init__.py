"""Natural gradient hybrid variational inference and deep mixed models.

Importing the package switches JAX to double precision, which the variational algebra needs, and
lets it keep compiled programs for the next process (``NGHVI_CACHE=off`` does not). A public name is
loaded when it is first used: a program that only asks for help does not wait for scikit-learn.
"""

import ast
import functools
import importlib
import pathlib
from typing import Any

import jax

from nghvi._compiled import keep_compiled

jax.config.update("jax_enable_x64", True)
keep_compiled()

__version__ = "0.2.0.dev0"


@functools.cache
def _homes() -> dict[str, str]:
    """The module of every public name, as the stub beside this file says it for type checkers."""
    stub = ast.parse(pathlib.Path(__file__).with_suffix(".pyi").read_text())
    imports = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    return {name.name: str(line.module) for line in imports for name in line.names}


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _homes()[name]
    if home == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
