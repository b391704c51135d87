"""Regression with random coefficients."""

from typing import Any

import numpy as np

from nghvi._core.errors import warn
from nghvi.data.frame import Tabular, Vector
from nghvi.estimators._base import MixedEstimator
from nghvi.estimators.checks import why_not_of_the_fit
from nghvi.estimators.reader import DRAWS, raw_responses
from nghvi.posterior import predictive
from nghvi.posterior.summaries import check_level


class MixedRegressor(MixedEstimator):
    """Mixed model for numbers: measurements, counts, proportions and the like.

    Parameters
    ----------
    group
        Name of the group column (its index, for arrays); None, the default, for no effects. A list
        such as ["firm", "month"] names several factors, crossed or nested; with hidden layers
        these need a Gaussian response.
    formula
        A model formula as for :func:`nghvi.mixed`, for fits to raw data frames. It determines the
        columns, the intercept, the group and its effects. ``group``, ``random``, ``covariance``
        and ``fit_intercept`` may repeat what it says; contradictions raise an error.
    hidden
        Widths of hidden layers, such as (32, 16); (), the default, is a linear mixed model.
    activation
        Activation of the hidden layers: "relu" (the default), "tanh" or "silu".
    trunk
        A network of your own instead of ``hidden``: a nghvi.networks.Trunk, an equinox module
        written for one row, or a pair of functions (init(key), apply(weights, x)).
    skip
        Whether the inputs are features beside those of the network, ``(1, x, size h(x))`` with a
        learnt size. The deep model then contains the linear one, which is returned if the network
        adds nothing. "auto", the default, does so with ``hidden``, default priors and
        ``method="auto"``. False is the model of the paper.
    random
        Features whose coefficients vary by group: "intercept", "all", a list such as
        ["intercept", "Days"], or "auto", the default. "auto" means "intercept" for linear models
        and all features with hidden layers. With ``skip`` it leaves out inputs that are constant
        within every group, all inputs if more than 20 vary, and what the network learns if there
        are fewer than 50 groups of two rows or more; if the response is not Gaussian it means
        "intercept". With several factors the setting holds for all, or is a dictionary by factor:
        {"firm": "all", "month": "intercept"}; "auto" with hidden layers then applies to the factor
        with the most levels, and the others have intercepts.
    response
        "gaussian" (the default, "auto"), another of ``nghvi.responses.RESPONSES`` by name, such as
        "student-t" for noise with outliers or "poisson" for counts, or a response object.
    trials, exposure, censored, weights
        Facts about every row, if there is no formula to state them: the number of ``trials``; the
        ``exposure``, such as the time at risk, whose logarithm is an offset; the bounds (lower,
        upper) that a row is ``censored`` at, None for no bound; ``weights`` w of Gaussian noise,
        whose variance is v / w (for rows that were observed w times see ``counts`` in
        :meth:`fit`). Each is a number for all rows, or the name of a column of X; this column is
        then not an input, and predictions need it as well.
    covariance
        "full" for correlated effects, "diagonal" for independent ones, or "auto", the default:
        what the prior says, which is full by default and diagonal with ``skip``.
    priors
        A nghvi.priors.Priors, which refers to standardised data if ``standardize``. None, the
        default, stands for priors in units of the data.
    rank
        Number of factors of the posterior covariance, "full", or "auto" (the default).
    fit_intercept
        Whether to add an intercept (default True).
    standardize
        Whether to standardise columns and response for the fit (default True). Results are always
        on the scale of the data.
    scaling
        How hidden layers see their inputs: "auto", the default, shows inputs with heavy tails as
        asinh of robust units, "plain" shows all as they are. Coefficients of inputs, including
        those beside a network, always refer to the untransformed column.
    missing
        What to do about missing cells. "error", the default, raises an error that names their
        places. "drop" leaves out rows with missing cells in the columns that are used, with a
        warning. "indicator" fills them with the column's median, or a category's first level, and
        adds a column ``missing(x)`` that is 1 there; predictions then accept missing cells in
        columns that had some at the fit.
    method
        "auto" (the default); a rule of the paper by name ("ng-hvi", "ng-hvi-printed",
        "ng-hvi-exact", "sg-hvi") or as an object of :mod:`nghvi.methods`, whose constants can be
        changed; or another method for the same model: "davi", "davi-published", "nagvac",
        "nagvac-published", "nagvac-program", or "least-squares" (without groups).
    steps
        Number of steps for a network or a method other than "auto"; None, the default, chooses it.
    n_starts
        Number of random starts of a network. With ``skip`` the two best are continued and mixed,
        otherwise the best. "auto", the default, is 3, or 6 if the response is not Gaussian and
        ``skip`` is False.
    latents
        Whether to "integrate" or "sample" the effects; "auto", the default, integrates where that
        is accurate and cheap.
    importance
        Whether to correct the draws of small models by importance weights if these are reliable,
        and those of small networks by Hamiltonian chains (default True).
    batch_groups
        Number of groups per step for a network or a response that is not Gaussian; "auto" chooses
        it by the number of rows, and None, the default, uses all groups. Gradients stay unbiased.
        A linear Gaussian model needs no batches.
    random_state
        Seed; None, the default, is 0, so that results are reproducible.
    devices
        Number of devices to spread the groups over, or "all". None, the default, is one device, or
        after ``jax.distributed.initialize`` all devices of all processes.
    verbose
        Whether to show a progress bar (default False).

    Attributes
    ----------
    converged_, status_, verdict_
        Whether the fit can be used; how it ended, as one word (``"converged"``, ``"settled"``,
        ``"not_converged"``, ``"not_settled"``, ``"interrupted"`` or ``"failed"``); and the same in
        a sentence.
    elbo_, elbo_se_, log_evidence_, k_hat_
        Evidence lower bound and its Monte Carlo error; log evidence by importance sampling; Pareto
        shape of the importance weights, in words as ``k_hat_meaning_``.
    trace_
        Table with one row per step.
    group_, groups_
        Name of the group column, and the labels of its groups; with several factors a tuple of
        names and a dictionary of labels.
    reader_, formula_
        What the columns of the data mean to the fitted model; and what the formula learnt from
        them, None without a formula.
    n_features_in_, feature_names_in_
        Number and names of the columns of X, as scikit-learn defines them.
    input_quantiles_
        Quantiles of the model's input columns in the training data.
    n_iter_, seconds_
        Number of steps, and duration of the fit.
    posterior_
        The posterior as a nghvi.posterior.mixed_posterior.MixedPosterior.
    """

    estimator_type = "regressor"
    usual_response = "gaussian"
    of_classes = False

    def predict(
        self,
        X: Tabular,
        return_std: bool = False,
        which: str = "known",
        draws: int = DRAWS,
        seed: int = 0,
    ) -> Any:
        """Return the posterior predictive mean of each row.

        Parameters
        ----------
        X
            Rows to predict: a data frame or array with the columns of the fit.
        return_std
            Whether to return the predictive sd as well, as a pair (mean, sd).
        which
            "known" uses the effects of known groups and draws those of unseen groups from the
            population; "population" draws those of all groups; "zero" leaves effects out and
            needs no group column.
        draws, seed
            Number of posterior draws that the prediction averages over, and their seed.
        """
        request = self._request(X, which, draws, seed)
        found, scaling = predictive.predict(self.posterior_, request), self.posterior_.scaling
        mean = scaling.raw_response(found.mean)
        return (mean, scaling.y_scale * found.sd) if return_std else mean

    def predict_interval(
        self,
        X: Tabular,
        level: float = 0.9,
        which: str = "known",
        draws: int = DRAWS,
        seed: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper ends of each row's central predictive interval.

        ``level`` is its probability. The ends are values that the response can take; for counts
        they are whole numbers, and the interval holds at least that probability. The other
        arguments are as in :meth:`predict`.
        """
        check_level(level)
        request = self._request(X, which, draws, seed)
        lower, upper = predictive.interval(self.posterior_, request, level)
        return (
            raw_responses(self.posterior_, request, lower),
            raw_responses(self.posterior_, request, upper),
        )

    def pit(
        self, X: Tabular, y: Vector, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> np.ndarray:
        """Return the predictive probability P(Y <= y) of each row, uniform if calibrated.

        For counts it is drawn between P(Y < y) and P(Y <= y). The central interval of level p
        holds y if the result is within p / 2 of 0.5. For rows of the fit, :meth:`check_rows` has
        the probabilities without the row itself. ``y`` are the observed responses; the other
        arguments are as in :meth:`predict`.
        """
        request, values = self._observed(X, y, which, draws, seed)
        of_the_fit = why_not_of_the_fit(self.posterior_, self._rows, request, values) is None
        if which == "known" and of_the_fit:
            warn(
                "pit: these are the rows of the fit, which the model has already seen; "
                "check_rows(X, y)['pit'] predicts each row without itself."
            )
        below, up_to = predictive.around(self.posterior_, request, values)
        return predictive.between(below, up_to, seed)
