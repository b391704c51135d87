"""Regression with random coefficients."""

from typing import Any

import numpy as np

from nghvi._core.errors import warn
from nghvi.estimators._base import MixedEstimator
from nghvi.estimators.checks import why_not_of_the_fit
from nghvi.estimators.choices import check_level
from nghvi.estimators.reader import DRAWS, raw_responses
from nghvi.posterior import predictive


class MixedRegressor(MixedEstimator):
    """Mixed model for a continuous response, with a calibrated posterior.

    Parameters
    ----------
    group
        Column name (or index, for arrays) of the grouping factor; None for no effects. A list such
        as ["firm", "month"] names several factors, crossed or nested (with hidden layers: Gaussian
        response).
    formula
        A model formula as for :func:`nghvi.mixed`, which reads a raw data frame. It alone decides
        about the columns, the intercept, the group and its effects: ``group``, ``random``,
        ``covariance`` and ``fit_intercept`` may repeat what it says and are refused if they
        contradict it.
    hidden
        Widths of hidden layers; () is a linear mixed model.
    activation
        "relu", "tanh" or "silu".
    trunk
        A network of your own instead of ``hidden``: a nghvi.networks.Trunk, an equinox module
        written for one row, or a pair of functions (init(key), apply(weights, x)).
    skip
        Whether the inputs stand beside the network's features, ``(1, x, size h(x))`` with a size
        that is learnt: the deep model then contains the linear one, which is returned where the
        network adds nothing. "auto": with hidden layers, a Gaussian response, default priors and
        ``method="auto"``. False is the paper's model.
    random
        "intercept", "all", a list such as ["intercept", "Days"], or "auto" ("intercept" for linear
        models; with hidden layers all features but inputs that are constant within every group,
        or more than 20, and what the network learns where there are fewer than 50 groups). With
        several factors the same for all, or by name: {"firm": "all", "month": "intercept"}; "auto"
        with hidden layers is meant for the factor with the most levels, the others have intercepts.
    response
        "gaussian" ("auto" means that), another of ``nghvi.responses.RESPONSES`` by name, such as
        "student-t" for noise with outliers or "poisson" for counts, or a response object.
    trials, exposure, censored, weights
        What is known about every row, without a formula that says it: the number of ``trials``;
        the ``exposure``, such as the time at risk, whose logarithm is an offset; the bounds
        (lower, upper) that a row is ``censored`` at, None for no bound; ``weights`` w of Gaussian
        noise, whose variance is v / w (rows that were observed w times are
        ``fit(..., counts=)``). Each is a number that holds for all rows, or the name of a column
        of X, which is then not an input and which predictions read from their rows.
    covariance
        "full" (correlated effects), "diagonal", or "auto" (as the prior says: full by default,
        diagonal with a skip connection).
    priors
        A nghvi.priors.Priors; it refers to standardised data if ``standardize``. None: the
        defaults in units of the data.
    rank
        Factors of the posterior covariance, "full" or "auto".
    fit_intercept
        Add an intercept.
    standardize
        Fit on standardised columns and response; results are reported on the raw scale.
    scaling
        How hidden layers see their inputs: "auto" shows those with heavy tails as asinh of robust
        units, "plain" shows all as they are fitted. Coefficients of inputs, also of those beside a
        network, are never those of a transformed column.
    missing
        "error" refuses missing cells with their places; "drop" leaves out rows with missing cells
        in the columns that are used, and says how many; "indicator" fills missing cells with the
        column's median, or a category's first level, and adds a column ``missing(x)`` that is 1
        there. Predictions need complete rows but for columns that had gaps at such a fit.
    method
        "auto"; a rule of the paper by name ("ng-hvi", "ng-hvi-printed", "ng-hvi-exact", "sg-hvi")
        or as an object of :mod:`nghvi.methods`, whose constants can be changed; or another method
        for the same model: "davi", "davi-published", "nagvac", "nagvac-published", "least-squares"
        (no groups).
    steps
        Number of steps of a network or of another method; None is automatic.
    n_starts
        Starts of a network, of which the best goes on; "auto" is 3, 6 for a classifier.
    latents
        "integrate", "sample" or "auto" (integrate).
    importance
        Correct the draws of small models by importance weights where reliable.
    batch_groups
        Groups at a step of a network or a binary response, "auto" (chosen from the number of rows)
        or None (all groups). Gradients stay unbiased; a linear Gaussian model needs none.
    random_state
        Seed; None is 0, so results are reproducible by default.
    devices
        Number of devices that the groups are spread over, or "all". None is one device; after
        ``jax.distributed.initialize`` all devices of all processes.
    verbose
        Show a progress bar.

    Attributes
    ----------
    converged_, status_, verdict_
        Whether the fit can be used; how it ended, as one word (``"converged"``, ``"settled"``,
        ``"not_converged"``, ``"not_settled"``, ``"interrupted"``, ``"failed"``); and in words.
    elbo_, elbo_se_, log_evidence_, k_hat_
        Lower bound, its Monte Carlo error, log evidence by importance sampling, Pareto shape of
        the Gaussian family.
    trace_
        One row per step.
    group_, groups_
        Name of the group column, and its levels; of several factors a tuple and a dictionary.
    posterior_
        The posterior object.
    """

    estimator_type = "regressor"
    usual_response = "gaussian"
    of_classes = False

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        which: str = "known",
        draws: int = DRAWS,
        seed: int = 0,
    ) -> Any:
        """Posterior predictive mean, and with ``return_std`` the predictive sd as well.

        ``which``: "known" uses the effects of known groups and draws those of unseen groups
        from the population; "population" does so for all groups; "zero" leaves effects out
        and needs no group column.
        """
        request = self._request(X, which, draws, seed)
        found, scaling = predictive.predict(self.posterior_, request), self.posterior_.scaling
        mean = scaling.raw_response(found.mean)
        return (mean, scaling.y_scale * found.sd) if return_std else mean

    def predict_interval(
        self, X: Any, level: float = 0.9, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper end of the central predictive interval of each row.

        The ends are values that the response can take: whole numbers for counts, which hold at
        least that probability.
        """
        check_level(level)
        request = self._request(X, which, draws, seed)
        lower, upper = predictive.interval(self.posterior_, request, level)
        return (
            raw_responses(self.posterior_, request, lower),
            raw_responses(self.posterior_, request, upper),
        )

    def pit(
        self, X: Any, y: Any, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> np.ndarray:
        """Predictive probability of a response up to y: uniform where predictions are calibrated.

        Of counts the probability is drawn between those of a smaller and of no larger response.
        A central interval of level p holds y where the distance from 0.5 is below p / 2. For the
        rows of the fit :meth:`check_rows` has the probabilities without the row itself.
        """
        request, values = self._observed(X, y, which, draws, seed)
        of_the_fit = why_not_of_the_fit(self.posterior_, self._rows, request, values) is None
        if which == "known" and of_the_fit:
            warn(
                "pit: these are the rows of the fit, which the predictions have seen; "
                "check_rows(X, y)['pit'] leaves each row out of its own."
            )
        below, up_to = predictive.around(self.posterior_, request, values)
        return below + np.random.default_rng(seed).random(len(values)) * (up_to - below)
