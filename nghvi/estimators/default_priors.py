"""Default priors in units of the data, so that they mean the same whatever the units are."""

import dataclasses

import numpy as np

from nghvi.estimators.spec import Spec, Structure
from nghvi.posterior.scaling import nonzero
from nghvi.priors import HalfT, HuangWand

FEW_SPARE, NO_EXACT_FIT = 3, 0.3
"""Rows beyond the coefficients up to which the noise is kept away from zero, and how far."""


def follow_data(
    structure: Structure,
    spec: Spec,
    mean: np.ndarray,
    variance: np.ndarray,
    of_y: tuple[float, float] | None,
    num_rows: float,
) -> Structure:
    """With priors in units of the data, from means and variances on the fitted scale.

    A coefficient's unit is an sd of the response for an sd of its column, the intercept's
    reaches from zero to the response. All are 1 where everything was standardised.
    ``of_y``: moments of the response, None where it has no unit of its own (classes). Where
    rows hardly outnumber coefficients, noise near zero is not believed: the density has a
    spike there, at the coefficients that leave no error.
    """
    y_mean, y_variance = of_y or (0.0, 1.0)
    y_unit = nonzero(np.sqrt(y_variance + (0 if spec.intercept or spec.deep else y_mean**2)))
    coef = np.full(len(structure.features), y_unit)
    if not spec.deep:
        size = nonzero(np.sqrt(variance + mean**2))
        spread = np.sqrt(variance) if spec.intercept else size
        # A column that hardly varies has no unit of its own.
        coef = y_unit / np.where(spread > 1e-12 * size, spread, size)
    effects = coef.copy()
    if spec.deep:
        coef[0] = np.sqrt(y_unit**2 + y_mean**2)
    if spec.intercept:
        away = (mean * coef) ** 2
        coef[0] = np.sqrt(y_unit**2 + y_mean**2 + np.sum(away[1:]))
        varying = [j for j in structure.random if j > 0]
        if 0 not in structure.random:  # nothing takes up where a column begins
            effects[varying] = y_unit / size[varying]
        effects[0] = y_unit
        if isinstance(structure.priors.effects, HuangWand):  # may be as far off as the slopes say
            effects[0] = np.sqrt(y_unit**2 + np.sum(away[varying]))
    num_fixed = len(structure.features) - len(structure.known_coef)
    priors = structure.priors
    if not spec.deep and num_rows <= num_fixed + FEW_SPARE:
        priors = dataclasses.replace(priors, noise=HalfT(floor=NO_EXACT_FIT))
    priors = priors.in_units(coef[:num_fixed], effects[list(structure.random)], float(y_unit))
    return structure._replace(priors=priors)
