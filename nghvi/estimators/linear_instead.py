"""Where a network adds nothing: the linear mixed model instead, and a verdict that says so.

The features of a network with a skip connection are ``(1, x, size h(x) / sqrt(width))``. A size
near zero leaves a linear model, which its own recipe fits better: with a full covariance, draws
corrected by importance weights, and coefficients of the columns themselves.
"""

import dataclasses
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from nghvi.estimators.factor_checks import random_of
from nghvi.estimators.tables import verdict_sentence
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

WORTH_SLOPES = 2.0
"""Nats of log evidence by which slopes have to be ahead: where it is a draw, fewer effects predict
new groups better."""


def size_if_nothing(posterior: MixedPosterior) -> float | None:
    """The size of a network that adds nothing; None if it does, or has no size."""
    found = params_at(posterior.model, posterior.data, posterior.inference.q.centre)
    return posterior.model.trunk.size_of(found.weights) if posterior.model.given_up(found) else None


def adopt_linear(estimator: "MixedEstimator", size: float, X: Any, y: Any, counts: Any) -> None:
    """Make the better of the linear models that the network contains the estimator's result.

    Intercepts by group, or slopes as well if the log evidence is clearly for them. Where none is
    fitted well, the network stays.
    """
    found = []
    with warnings.catch_warnings():  # the network's fit has said what there is to say
        warnings.simplefilter("ignore")
        for settings in _candidates(estimator):
            linear = clone(estimator).set_params(hidden=(), trunk=None, verbose=False, **settings)
            linear.set_params(group=estimator.group_)  # with categories that the network pools
            found.append(linear.fit(X, y, counts))
    usable = [linear for linear in found if linear.converged_]
    if not usable:
        return
    best = clearly_best(usable)
    ours = estimator.get_params(deep=False)
    for name, value in vars(best).items():
        if name not in ours:
            setattr(estimator, name, value)
    effects = len(best.posterior_.names.effects)
    estimator.posterior_ = told_of_nothing(best.posterior_, size, effects=effects)
    estimator.verdict_ = verdict_sentence(estimator.posterior_)


def _candidates(estimator: "MixedEstimator") -> Iterator[dict[str, Any]]:
    """Settings of the linear models."""
    priors, random = estimator.priors, estimator.random
    scales = () if priors is None else (priors.coef_sd, getattr(priors.effects, "scale", 1.0))
    if any(isinstance(scale, tuple) for scale in scales):  # one for each feature of the network
        return
    if estimator.formula is not None:
        yield {}
        return
    names, known = estimator.posterior_.names, ("intercept", *estimator.reader_.inputs)
    diagonal = estimator.covariance == "auto" and priors is None
    independent = {"covariance": "diagonal"} if diagonal else {}
    if names.factors:
        slopes = {f.name: [name for name in f.effects if name in known] for f in names.factors}
        group = estimator.group_
        few = {
            name: ["intercept"]
            if "intercept" in own and isinstance(random_of(random, group, name), str)
            else own
            for name, own in slopes.items()
        }
        for chosen in (few, slopes) if few != slopes else (few,):
            yield {"random": {name: own or "auto" for name, own in chosen.items()}} | independent
        return
    columns = [name for name in names.effects if name in known]
    if not columns:
        yield {"random": "auto"}
        return
    if "intercept" in columns and (isinstance(random, str) or len(columns) == 1):
        yield {"random": "intercept"}
    if columns != ["intercept"]:
        yield {"random": columns} | independent


def clearly_best(models: list[Any]) -> Any:
    """The first of the models, unless the evidence is clearly for another."""

    def support(linear: Any) -> float:
        evidence = float(np.nan_to_num(linear.log_evidence_, nan=-np.inf))
        return evidence if linear is models[0] else evidence - WORTH_SLOPES

    return max(models, key=support)


def told_of_nothing(posterior: MixedPosterior, size: float, **facts: float) -> MixedPosterior:
    """With a verdict that says that the network adds nothing."""
    verdict = posterior.inference.verdict
    verdict = verdict._replace(facts={**verdict.facts, "network_size": size, **facts})
    return posterior._replace(inference=dataclasses.replace(posterior.inference, verdict=verdict))
