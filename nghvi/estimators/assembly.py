"""Assembles a model and its data, step by step, from a spec and a source of rows.

Every row goes this way into a fit, whatever its source, with a formula or with settings.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nghvi._core.errors import naming_kept, warn
from nghvi._core.response import Response
from nghvi._typing import Data
from nghvi.data import Rows
from nghvi.data.factors import CrossedRows, CrossedStatistics, FactorRows
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import DataError
from nghvi.data.panel import CrossedPanel
from nghvi.data.scaling import Scaling, add_intercept, moments
from nghvi.data.source import Sample, Source
from nghvi.data.working_copy import StreamedRows
from nghvi.estimators.choices import choose_batch_groups
from nghvi.estimators.columns import (
    centred_columns,
    warn_about_design,
    warn_about_meaning,
    warn_about_one_class,
    warn_about_origin,
    warn_about_prior,
    warn_about_separation,
)
from nghvi.estimators.grouping import check_design, check_supported
from nghvi.estimators.spec import (
    Spec,
    Structure,
    follow_data,
    warn_about_few_groups,
)
from nghvi.formula import parse
from nghvi.methods import published
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.posterior.mixed_posterior import Named
from nghvi.priors import HuangWand, Priors
from nghvi.responses import RESPONSES, Gaussian, WeightedGaussian

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

PUBLISHED_SWEEPS, DEEP_SWEEPS = 5, 2
"""Gibbs sweeps per step, of a published rule and of the recipe for networks."""

Moments = tuple[Any, Any]
"""Mean and variance."""


class Assembled(NamedTuple):
    """A model and its data, with the scaling that leads back to the raw data."""

    model: MixedModel
    data: Data
    scaling: Scaling
    names: Named
    batch_groups: int | None
    rows: Fingerprint


def assemble(
    settings: "MixedEstimator", spec: Spec, source: Source, response: Response
) -> Assembled:
    """Assemble model and data; ``settings`` is an estimator, read for what no spec holds."""
    if response.takes_intercept and not (spec.intercept or spec.deep):
        raise DataError(
            f"the {response.name} response has cutpoints in place of an intercept; remove "
            "fit_intercept=False, or '0 +' from the formula."
        )
    if type(response) is Gaussian and spec.facts == WeightedGaussian.facts:
        response = WeightedGaussian()
    _check_facts(settings, spec, response)
    check_supported(settings, spec.terms, spec.deep, response)
    number = len(source.inputs) - len(spec.facts)
    structure = Structure.of(settings, spec, source.inputs[:number])
    sample = source.sample._replace(x=source.sample.x[:, :number])
    structure = structure.with_usual_effects(spec, sample.x, sample.codes, source.groups, response)
    bound = response.given(source.sample.x[:, number:] if spec.facts else None)
    with naming_kept(source.kept):
        if spec.facts:
            bound.check_facts(source.inputs[number:])
        source.check(bound)
    if source.complete:
        _warn(settings, spec, structure, sample, source, bound)
    known = sample.x[:, number - len(spec.known_coef) :] @ np.array(spec.known_coef)
    response = bound.suited(sample.y, known, intercept=spec.intercept or spec.deep).given(None)
    of_x, of_y = _of_columns(source, spec), _of_response(source, response, known)
    scaling = Scaling.none(len(of_x[0]))
    if settings.standardize:
        scaling = _scaling(spec, structure, of_x, of_y)
    structure = structure.with_tails(
        settings, scaling.apply(add_intercept(sample.x, spec.intercept))
    )
    if settings.priors is None:
        of_predictor = (response.typical_predictor, 1.0)
        structure = follow_data(
            structure,
            spec,
            scaling.apply(of_x[0]),
            of_x[1] / scaling.scale**2,
            of_predictor if of_y is None else _scaled(scaling, of_y),
            source.num_rows,
        )
    if source.complete and not spec.deep:
        _warn_about_prior(spec, structure, sample, scaling, response.typical(sample.y - known))
    scaling = scaling.with_facts(len(spec.facts), as_response=response.facts_like_response)
    densities = float(np.average(bound.has_density(sample.y), weights=sample.weight))
    scaling = scaling._replace(densities=densities)
    rows, fingerprint = source.read(scaling, spec.intercept)
    counted = sample.weight is not None
    model, data, batch_groups = _model_and_data(settings, spec, structure, response, rows, counted)
    names = structure.named(source.groups)
    return Assembled(model, data, scaling, names, batch_groups, fingerprint)


def _check_facts(settings: "MixedEstimator", spec: Spec, response: Response) -> None:
    """Raise an error unless the facts stated about the rows are those the response needs."""
    exposed = settings.formula is not None and parse(settings.formula).exposed
    if response.ratio is None and (exposed or settings.exposure is not None):
        raise DataError(
            f"response={response.name!r} does not support an exposure, by which a rate is "
            "multiplied; choose response='poisson' or another one for counts, or write "
            "'... + offset(log(time))' if the logarithm is to be added to y."
        )
    if spec.facts and spec.facts != response.facts:
        fitting = [name for name, kind in RESPONSES.items() if kind.facts == spec.facts]
        fitting = ["gaussian"] if spec.facts == WeightedGaussian.facts else fitting
        trials = "weights" in spec.facts and "trials" in response.facts
        raise DataError(
            f"response={response.name!r} does not support {' and '.join(spec.facts)}; "
            + (
                "state the number of trials, and successes instead of shares: 'successes | "
                "trials(n) ~ ...' or trials='n'."
                if trials
                else f"choose response={' or '.join(map(repr, fitting))}."
            )
        )
    if response.facts_needed and not spec.facts:
        given = "weights='w'" if response.facts == ("weights",) else "censored=(lower, upper)"
        written = (
            "y | weights(w)" if response.facts == ("weights",) else "censored(y, lower, upper)"
        )
        raise DataError(
            f"response={response.name!r} needs {' and '.join(response.facts)} of every row; pass "
            f"{given}, as numbers or columns, or write '{written} ~ ...' in a formula."
        )
    if spec.facts and settings.method != "auto":
        raise DataError(
            f"method={settings.method!r} does not support {' and '.join(spec.facts)}; use "
            "method='auto'."
        )


def _of_columns(source: Source, spec: Spec) -> Moments:
    """Return moments of all columns that the model reads, those of an intercept first."""
    mean, variance = source.moments
    ones, number = int(spec.intercept), len(source.inputs) - len(spec.facts)
    return (
        np.concatenate([np.ones(ones), mean[:number]]),
        np.concatenate([np.zeros(ones), variance[:number]]),
    )


def _of_response(source: Source, response: Response, known: np.ndarray) -> Moments | None:
    """Return moments of the response minus its known part, None if it is not standardised."""
    sample = source.sample
    typical = response.typical(sample.y - known)
    if typical is None:
        return None
    if source.complete or not np.array_equal(typical, sample.y):
        return moments(typical, sample.weight)
    mean, variance = source.moments
    return mean[-1], variance[-1]


def _scaling(spec: Spec, structure: Structure, of_x: Moments, of_y: Moments | None) -> Scaling:
    """Return centres and scales; columns with a known coefficient are scaled like the response."""
    number = len(of_x[0])
    centred = np.full(number, True)  # the biases of a network's first layer absorb any shift
    each = zip(structure.effects, structure.effects_priors, strict=True)
    for own in () if spec.deep else each:
        centred &= centred_columns(number, *own, fit_intercept=spec.intercept)
    scaling = Scaling.from_moments(*of_x, centred, of_y, spec.intercept or spec.deep)
    num_fixed = number - len(spec.known_coef)
    return scaling.in_units_of_response(num_fixed + np.flatnonzero(spec.known_coef))


def _scaled(scaling: Scaling, of_y: Moments) -> tuple[float, float]:
    mean, variance = of_y
    return float(scaling.apply_response(mean)), float(variance / scaling.y_scale**2)


def _model_and_data(
    settings: "MixedEstimator",
    spec: Spec,
    structure: Structure,
    response: Response,
    rows: Rows | FactorRows | StreamedRows,
    counted: bool,
) -> tuple[MixedModel, Data, int | None]:
    """Return the model, its data in the best form, and the groups per step (None for all)."""
    if isinstance(rows, FactorRows):
        crossed = _crossed(rows, structure, response)
        return structure.model(response, None).suited(crossed), crossed, None
    ours, by_rule = settings.method == "auto", published(settings.method) is not None
    if counted and not ours:
        raise DataError("counts need method='auto', since all other methods work row by row.")
    sums_suffice = response.conjugate and not spec.deep
    batch_groups = None
    if isinstance(rows, Rows):
        number = settings.batch_groups
        batch_groups = choose_batch_groups(number, rows, settings.method, sums_suffice)
    in_pieces = batch_groups is not None or not isinstance(rows, Rows)
    # Gibbs draws a number for every observation; its many cheap steps suit those of a network.
    sweeps = PUBLISHED_SWEEPS if by_rule else DEEP_SWEEPS
    own_network = spec.deep and ours and not (in_pieces or structure.trunk.sized)
    gibbs = not response.conjugate and not counted and (by_rule or own_network)
    model = structure.model(response, sweeps if gibbs else None)
    # Rules run a network on repeated inputs once; linear models start them from the rows.
    merged = ours or (by_rule and spec.deep)
    row_by_row = batch_groups is not None or not merged or settings.latents == "sample"
    data: Data = rows
    if isinstance(rows, StreamedRows):
        data = rows.sums(model.random) if sums_suffice else rows
    elif not row_by_row:
        data = prepare(model, rows)
    if ours and batch_groups is None:
        model = model.suited(data)
    return model, data, batch_groups


def _crossed(rows: FactorRows, structure: Structure, response: Response) -> Data:
    """Return the smallest form of rows with several factors that is exact for the model."""
    if not response.conjugate:
        return CrossedRows.from_rows(rows, structure.effects)
    if structure.trunk.linear:
        return CrossedStatistics.from_rows(rows, structure.effects, structure.known_coef)
    return CrossedPanel.from_rows(rows, structure.effects)


def _warn_about_prior(
    spec: Spec, structure: Structure, sample: Sample, scaling: Scaling, y: np.ndarray | None
) -> None:
    """Warn if the prior of the coefficients contradicts a linear fit to the response.

    A response that is not standardised (None) is compared in units of its own sd: roughly the link.
    """
    columns = add_intercept(sample.x, spec.intercept)
    number = columns.shape[1] - len(spec.known_coef)
    if y is None:
        y = (sample.y - sample.y.mean()) / max(sample.y.std(), 1e-300)
    else:
        y = scaling.apply_response(y)
    weight = np.sqrt(np.ones(len(y)) if sample.weight is None else sample.weight)
    prior_sd = np.broadcast_to(np.asarray(structure.priors.coef_sd, float), number)
    x = scaling.apply(columns)[:, :number] * weight[:, None]
    warn_about_prior(x, structure.features[:number], y * weight, prior_sd)


def _warn(
    settings: "MixedEstimator",
    spec: Spec,
    structure: Structure,
    sample: Sample,
    source: Source,
    response: Response,
) -> None:
    """Warn of what can be fitted but was probably not meant, or is not determined by the data."""
    num_inputs = sample.x.shape[1] - len(spec.known_coef)
    groups, codes, labels = source.groups, sample.codes, None
    # The mean of a count says how much it varies: an effect of each row is overdispersion.
    noise = response.classes or response.num_dispersion > 0
    if isinstance(groups, dict):
        check_design(codes, spec.terms, structure.effects, groups, noise=noise)
    elif len(groups):
        labels = groups[codes]
    warn_about_meaning(
        sample.x[:, :num_inputs],
        source.inputs,
        sample.y,
        labels,
        group=spec.group,
        discrete=response.support.discrete,
    )
    if settings.standardize and settings.priors == Priors.paper() and settings.method == "auto":
        warn(
            "Priors.paper() is stated for raw data; on standardised data it keeps the variances of "
            "effects from being small. Use standardize=False with it, or leave priors out."
        )
    if spec.deep:
        warn_about_few_groups(structure, spec, groups)
        return
    x = add_intercept(sample.x, spec.intercept)
    num_fixed = num_inputs + spec.intercept
    features = structure.features
    one = None if spec.several else codes
    shown, own = features[:num_fixed], structure.effects[0]
    warn_about_design(x[:, :num_fixed], shown, one, own, noise=noise)
    if response.support.discrete:
        warn_about_separation(x[:, :num_fixed], shown, sample.y, response.support)
    if response.support.two_valued and one is not None:
        warn_about_one_class(sample.y, one, spec.group)
    if not settings.standardize and isinstance(structure.priors.effects, HuangWand):
        for own in structure.effects:
            warn_about_origin(x, features, own)
