"""This library with its default recipe: no setting but the model and the priors."""

from typing import Any

import nghvi
from benchmarks import problems
from benchmarks.methods.base import DRAWS, Summary, from_draws
from benchmarks.problems import Problem
from nghvi.priors import InverseGamma, Priors, WishartPrecision


def priors(problem: Problem) -> Priors:
    """The problem's priors in this library's terms."""
    variance = InverseGamma(problems.VARIANCE_SHAPE, problems.VARIANCE_SCALE)
    several = WishartPrecision(problems.WISHART_SCALE)
    effects = variance if problem.num_effects == 1 else several
    return Priors(coef_sd=problems.COEF_SD, noise=variance, effects=effects)


def fit(problem: Problem, seed: int) -> Any:
    settings: dict[str, Any] = {
        "group": "g",
        "random": problem.random_terms,
        "priors": priors(problem),
        "standardize": False,
        "random_state": seed,
    }
    if problem.response == "gaussian":
        return nghvi.MixedRegressor(**settings).fit(problem.frame(), problem.y)
    classifier = nghvi.MixedClassifier(response="probit", **settings)
    return classifier.fit(problem.frame(), problem.y)


def summarise(problem: Problem, fitted: Any) -> Summary:
    draws = fitted.posterior_draws(draws=DRAWS, seed=0)
    return from_draws(
        problem,
        draws["coef"],
        draws["effects_cov"].diagonal(axis1=1, axis2=2),
        draws.get("noise_var"),
        facts={
            "converged": bool(fitted.converged_),
            "verdict": str(fitted.verdict_),
            "elbo": float(fitted.elbo_),
            "k_hat": float(fitted.k_hat_),
        },
    )
