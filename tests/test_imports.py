"""What is loaded, and when: a process waits only for the libraries that it uses."""

import ast
import pathlib
import subprocess
import sys

import pytest

import nghvi

PICTURES = {"matplotlib", "xarray", "arviz_base", "arviz_stats"}
TABLES = {"sklearn", "scipy.stats", "pandas", "formulaic", "pyarrow"}
COMPUTING = {"equinox", "optax", "scipy.optimize"}
SAVED = pathlib.Path(__file__).parent / "files" / "correlated_slopes.nghvi"


def loaded_by(program):
    """Return the names of the modules that a new process has loaded when it ends."""
    told = f"{program}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, check=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        (
            "import nghvi.cli\ntry: nghvi.cli.main(['--help'])\nexcept SystemExit: pass",
            PICTURES | TABLES | COMPUTING,
        ),
        ("from nghvi import infer", PICTURES | TABLES),
        (
            "from nghvi import MixedRegressor, load, mixed\n"
            "import nghvi.cli.fit, nghvi.cli.predict\n"
            f"load({str(SAVED)!r})",
            PICTURES,
        ),
    ],
)
def test_libraries_are_loaded_when_they_are_used(program, absent):
    assert loaded_by(program).isdisjoint(absent)


def test_public_names_are_those_of_the_stub():
    stub = pathlib.Path(nghvi.__file__).with_suffix(".pyi")
    lines = [line for line in ast.parse(stub.read_text()).body if isinstance(line, ast.ImportFrom)]
    names = {alias.asname for line in lines for alias in line.names}
    assert {"MixedRegressor", "infer", "load", "priors"} <= names <= set(dir(nghvi))
    for name in names:
        assert getattr(nghvi, name).__name__.rpartition(".")[2] == name
    assert callable(nghvi.infer)
    with pytest.raises(AttributeError, match="no attribute 'MixedRegresor'"):
        print(nghvi.MixedRegresor)
