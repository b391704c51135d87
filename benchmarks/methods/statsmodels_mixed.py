"""statsmodels: MixedLM by restricted likelihood; BinomialBayesMixedGLM by mean-field Bayes.

The second has no probit link, so its coefficients are on another scale: it is timed, and its
figures are left out of the comparison.
"""

import warnings
from typing import Any

import numpy as np
import statsmodels.api as sm
from scipy import sparse
from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

from benchmarks import problems
from benchmarks.methods.base import Summary, from_estimates
from benchmarks.problems import Problem


def fit(problem: Problem, seed: int) -> Any:
    if problem.response == "gaussian":
        varying = problem.design[:, list(problem.random)]
        model = sm.MixedLM(problem.y, problem.design, problem.group, exog_re=varying)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.fit()
    rows = np.arange(len(problem.y))
    membership = sparse.csr_matrix((np.ones(len(rows)), (rows, problem.group)))
    model = BinomialBayesMixedGLM(
        problem.y,
        problem.design,
        membership,
        np.zeros(problem.num_groups, int),
        fe_p=problems.COEF_SD,
    )
    np.random.seed(seed)  # noqa: NPY002  its start is drawn from the global stream
    return model.fit_vb()


def summarise(problem: Problem, fitted: Any) -> Summary:
    if problem.response != "gaussian":
        nothing = np.full(len(problem.parameters), np.nan)
        return Summary(nothing, nothing, remark="logit link only: timed, not compared")
    rows, columns = np.tril_indices(problem.num_effects)
    effects = np.diagonal(np.atleast_2d(fitted.cov_re))
    effect_errors = np.asarray(fitted.bse_re)[rows == columns]
    return from_estimates(
        problem,
        np.asarray(fitted.fe_params),
        np.asarray(fitted.bse_fe),
        np.append(effects, fitted.scale),
        np.append(effect_errors, np.nan),  # the noise variance is profiled out
        facts={"converged": bool(fitted.converged)},
    )
