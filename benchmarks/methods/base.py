"""What a method returns."""

from typing import Any, NamedTuple

import numpy as np

from benchmarks.problems import Problem

DRAWS = 2000
"""Draws from which an approximation is summarised."""


class Summary(NamedTuple):
    """Means and sds in the order of ``problem.parameters``; NaN where a method has none."""

    mean: np.ndarray
    sd: np.ndarray
    remark: str = ""
    facts: dict[str, object] = {}
    """Anything else the method says about its fit, such as a verdict."""


def from_draws(
    problem: Problem,
    coef: np.ndarray,
    effect_variances: np.ndarray,
    noise_variance: np.ndarray | None,
    **more: Any,
) -> Summary:
    """Summary of posterior draws, one per row; variances are compared as logarithms."""
    columns = [np.asarray(coef), np.log(np.asarray(effect_variances))]
    if problem.response == "gaussian":
        assert noise_variance is not None
        columns.append(np.log(np.asarray(noise_variance)).reshape(-1, 1))
    draws = np.concatenate(columns, axis=1).astype(float)
    return Summary(draws.mean(axis=0), draws.std(axis=0, ddof=1), **more)


def from_estimates(
    problem: Problem,
    coef: np.ndarray,
    coef_error: np.ndarray,
    variances: np.ndarray,
    variance_errors: np.ndarray,
    **more: Any,
) -> Summary:
    """Summary of point estimates and standard errors, by the delta method for log variances.

    ``variances``: those of the random effects, then that of the noise if there is one.
    """
    variances, variance_errors = np.asarray(variances, float), np.asarray(variance_errors, float)
    mean = np.concatenate([coef, np.log(variances)])
    sd = np.concatenate([coef_error, variance_errors / variances])
    assert len(mean) == len(sd) == len(problem.parameters)
    return Summary(mean, sd, **more)
