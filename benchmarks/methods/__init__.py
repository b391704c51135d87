"""The methods, one module each, and what every module has to offer.

    fit(problem, seed)            the fit; its time is the method's time
    summarise(problem, fitted)    posterior (or sampling) means and sds, timed separately

``fit`` raises NotImplementedError where the package has no such model; its message becomes the
row's remark. A module is imported in its own process, so that one method's imports,
threads and settings cannot help or hurt another's.
"""

import importlib
from types import ModuleType

METHODS = {
    "nghvi": "nghvi_default",
    "gpboost": "gpboost_laplace",
    "statsmodels": "statsmodels_mixed",
    "bossanova": "bossanova_mixed",
    "numpyro-svi": "numpyro_svi",
    "numpyro-nuts": "numpyro_nuts",
}
"""Module by the name used in tables; the first is the one the others are compared with."""

TIME_LIMITS = {("statsmodels", "probit"): 150.0}
"""Seconds a fit may take where that differs from the run's own limit."""


def load(name: str) -> ModuleType:
    """Import a method's module, and with it the package it wraps."""
    return importlib.import_module(f"benchmarks.methods.{METHODS[name]}")
