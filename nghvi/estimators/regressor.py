"""Regression with random coefficients."""

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin

from nghvi.data.frame import DataError
from nghvi.estimators._base import MixedEstimator


class MixedRegressor(RegressorMixin, MixedEstimator):
    """Mixed model for a continuous response, with a calibrated posterior.

    Parameters
    ----------
    group : column name (or index, for arrays) of the grouping factor; None for no effects.
    hidden : widths of hidden layers; () is a linear mixed model.
    activation : "relu", "tanh" or "silu".
    random : "intercept", "all", a list such as ["intercept", "Days"], or "auto" ("intercept"
        for linear models, "all" with hidden layers).
    response : "gaussian"; "auto" means that.
    covariance : "full" (correlated effects), "diagonal", or "auto" (as the prior says: full by
        default).
    priors : a nghvi.priors.Priors; it refers to standardised data if ``standardize``.
    rank : factors of the posterior covariance, "full" or "auto".
    fit_intercept : add an intercept.
    standardize : fit on standardised columns and response; results are reported on the raw scale.
    method : "auto", or a published rule: "ng-hvi", "ng-hvi-printed", "sg-hvi".
    steps : number of steps of a published rule.
    latents : "integrate", "sample" or "auto" (integrate).
    importance : correct the draws of small models by importance weights where reliable.
    random_state : seed; None is 0, so results are reproducible by default.
    verbose : show a progress bar.

    Attributes
    ----------
    converged_, verdict_ : has it converged, and a sentence about it.
    elbo_, elbo_se_, log_evidence_, k_hat_ : lower bound, its Monte Carlo error, log evidence by
        importance sampling, Pareto shape of the Gaussian family.
    trace_ : one row a step. groups_ : levels of the group. posterior_ : the posterior object.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to a table X (group column included) and a response y."""
        response = self._response("gaussian", binary=False, other="MixedClassifier")
        table, y = self._read(X, y)
        if y.dtype.kind not in "fiub":
            raise DataError(
                f"y holds {y.dtype} values: a regression needs numbers; for classes use "
                "MixedClassifier."
            )
        return self._fit(X, y.astype(float), table, response)

    def predict(self, X: Any) -> np.ndarray:
        """Posterior predictive mean; known groups with their effects, unseen ones without."""
        mean = self._predict_mean(X)
        scaling = self.posterior_.scaling
        return scaling.y_centre + scaling.y_scale * mean
