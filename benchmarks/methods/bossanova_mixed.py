"""bossanova: lme4's estimates by formula; no standard errors for variances.

Standard errors of the coefficients come with ``infer``, hence in ``summarise``.
"""

import numpy as np
import polars as pl
from bossanova import model as formula_model
from bossanova import set_display_digits

from benchmarks.methods.base import Summary, from_estimates
from benchmarks.problems import Problem

set_display_digits(12)  # its tables hold rounded numbers, by default four digits


def fit(problem: Problem, seed: int) -> formula_model:
    columns = dict(zip(problem.covariates, problem.x.T, strict=True))
    labels = np.char.add("g", problem.group.astype(str))
    frame = pl.DataFrame({**columns, "y": problem.y, "g": labels.tolist()})
    varying = " + ".join(["1", *problem.random_terms[1:]])
    formula = f"y ~ {' + '.join(problem.covariates)} + ({varying} | g)"
    family = {} if problem.response == "gaussian" else {"family": "binomial", "link": "probit"}
    fitted = formula_model(formula, data=frame, **family)
    fitted.fit()
    return fitted


def summarise(problem: Problem, fitted: formula_model) -> Summary:
    fitted.infer()
    spread = fitted.varying_spread.filter(pl.col("metric") == "variance")
    variance = dict(zip(spread["term"], spread["estimate"], strict=True))
    names = [f"g | {'Intercept' if t == 'intercept' else t}" for t in problem.random_terms]
    names += ["Residual"] if problem.response == "gaussian" else []
    return from_estimates(
        problem,
        fitted.params["estimate"].to_numpy(),
        fitted.params["se"].to_numpy(),
        np.array([variance[name] for name in names]),
        np.full(len(names), np.nan),
        remark="no posterior; no errors for variances",
    )
