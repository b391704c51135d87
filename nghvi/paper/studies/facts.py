"""Where and with what a result was obtained: versions, machine, commit. No names, no paths."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable

PACKAGES = (
    "nghvi",
    "jax",
    "jaxlib",
    "equinox",
    "optax",
    "numpy",
    "scipy",
    "pandas",
    "statsmodels",
    "numpyro",
    "gpboost",
    "bossanova",
    "polars",
)


RESULTS = (":!benchmarks/results", ":!experiments/results")
"""Where runs write."""


def about() -> dict[str, object]:
    """Facts recorded with every result."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "HEAD"),
        # Results are written during the run, so they do not count as changes.
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", *RESULTS)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "versions": versions(PACKAGES),
    }


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Installed versions; null where a package is missing."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
