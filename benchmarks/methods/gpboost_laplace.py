"""GPBoost: maximum likelihood, Laplace's approximation where the response is binary.

Its random slopes are independent of the intercept, so on correlated effects it fits a smaller
model. Standard errors are computed on request, hence in ``summarise``.
"""

import gpboost
import numpy as np

from benchmarks.methods.base import Summary, from_estimates
from benchmarks.problems import Problem

LIKELIHOOD = {"gaussian": "gaussian", "probit": "bernoulli_probit"}


def fit(problem: Problem, seed: int) -> gpboost.GPModel:
    slopes = problem.random[1:]
    varying = {}
    if slopes:
        columns = problem.design[:, list(slopes)]
        varying = {
            "group_rand_coef_data": columns,
            "ind_effect_group_rand_coef": [1] * len(slopes),
        }
    model = gpboost.GPModel(
        group_data=problem.group, likelihood=LIKELIHOOD[problem.response], seed=seed, **varying
    )
    model.fit(y=problem.y, X=problem.design)
    return model


def summarise(problem: Problem, fitted: gpboost.GPModel) -> Summary:
    coef = np.asarray(fitted.get_coef(std_err=True, format_pandas=False), float)
    variances = np.asarray(fitted.get_cov_pars(std_err=True, format_pandas=False), float)
    coef, variances = coef.reshape(2, -1), variances.reshape(2, -1)
    if problem.response == "gaussian":
        variances = np.roll(variances, -1, axis=1)  # the noise comes first there, last here
    remark = "independent effects: a smaller model" if problem.num_effects > 1 else ""
    return from_estimates(problem, coef[0], coef[1], variances[0], variances[1], remark=remark)
