"""Fitting an estimator to a ``GroupedDataset``: what is done to a table, done to rows on disk."""

import time
from typing import Any

import numpy as np

from nghvi._core.response import Response
from nghvi.data import LinearStatistics
from nghvi.data.dataset import GroupedDataset
from nghvi.data.frame import DataError
from nghvi.data.streamed import StreamedRows
from nghvi.data.working_copy import WorkingCopy
from nghvi.estimators import tables
from nghvi.estimators.choices import choose_centred
from nghvi.estimators.fit_checkpoints import Kept
from nghvi.estimators.spec import Spec, Structure, follow_data
from nghvi.models.mixed import MixedModel
from nghvi.posterior.mixed import MixedPosterior
from nghvi.posterior.scaling import Scaling, moments


def fit_dataset(
    estimator: Any,
    dataset: GroupedDataset,
    y: Any,
    response: Response,
    kept: Kept | None,
    extra: Any,
) -> Any:
    """Fit to rows on disk; ``y`` names the response column.

    ``extra``: what a table in memory may come with, and this may not.
    """
    begun = time.perf_counter()
    _check(estimator, y, extra)
    estimator.formula_ = None
    estimator._spec = spec = Spec.of(estimator, None)
    chosen = dataset.select(estimator.group, y, classes=response.classes)
    structure = Structure.of(estimator, spec, chosen.inputs, response)
    number = estimator.batch_groups
    copy = dataset.copied(chosen, number if isinstance(number, int) else None, estimator._seed())
    estimator.groups_, estimator._inputs = copy.learnt.levels, chosen.inputs
    estimator.feature_names_in_ = np.array([spec.group, *chosen.inputs], dtype=object)
    estimator.n_features_in_ = len(estimator.feature_names_in_)
    if response.classes:
        estimator.classes_ = copy.learnt.classes
    sample = copy.piece(0)
    sample = sample[sample[:, -1] > 0]
    estimator.input_quantiles_ = tables.quantile_table(sample[:, :-2], chosen.inputs)
    response.check(sample[:, -2], y)
    response = response.suited(
        sample[:, -2], np.zeros(len(sample)), intercept=spec.intercept or spec.deep
    )
    scaling = Scaling.none(len(chosen.inputs) + spec.intercept)
    measured = response.typical(sample[:, -2])
    if estimator.standardize:
        # Where outliers are to count less, some groups must tell what an outlier is.
        sampled = None if response.conjugate else measured
        scaling = _scaling(spec, copy, structure, measured is not None, sampled)
    if estimator.priors is None:
        mean, variance = _moments(spec, copy)
        structure = follow_data(
            structure,
            spec,
            scaling.apply(mean[:-1]),
            variance[:-1] / scaling.scale**2,
            (response.typical_predictor, 1.0)
            if measured is None
            else moments(scaling.apply_response(measured), None),
            copy.learnt.num_rows,
        )
    rows = _streamed(copy, scaling, spec.intercept)
    estimator._rows = rows.fingerprint()
    model = structure.model(response, None)
    data = _sums(model, rows) if response.conjugate and not spec.deep else rows
    estimator._batch_groups = None
    model = model.suited(data)
    inference = estimator._infer(model, data, scaling, spec.deep, kept=kept)
    names = structure.named(estimator.groups_)
    estimator.posterior_ = MixedPosterior(inference, scaling, names)
    estimator._publish(inference, time.perf_counter() - begun)
    return estimator


def _check(estimator: Any, y: Any, extra: Any) -> None:
    if not isinstance(y, str):
        raise DataError(
            "y with a GroupedDataset is the name of the response column, such as 'profit'."
        )
    if not isinstance(estimator.group, str):
        raise DataError(
            f"group={estimator.group!r} with a GroupedDataset: name the group column; rows are "
            "read by groups."
        )
    if estimator.formula is not None:
        raise DataError("a formula needs its table in memory: name columns instead (columns=).")
    if estimator.missing != "error":
        raise DataError(
            f"missing={estimator.missing!r} needs a table in memory: drop the rows from the files."
        )
    if extra is not None:
        raise DataError("counts and validation need a table in memory, not a GroupedDataset.")
    if estimator.method != "auto":
        raise DataError(
            f"method={estimator.method!r} needs all rows at every step: a GroupedDataset is fitted "
            "with method='auto'."
        )


def _streamed(copy: WorkingCopy, scaling: Scaling, intercept: bool) -> StreamedRows:
    return StreamedRows(
        str(copy.directory),
        copy.identity,
        intercept=intercept,
        centre=scaling.centre,
        scale=scaling.scale,
        y_centre=scaling.y_centre,
        y_scale=scaling.y_scale,
        num_rows=float(copy.learnt.num_rows),
        num_groups=len(copy.learnt.levels),
        variance=float(copy.learnt.variance[-1]) / scaling.y_scale**2,
    )


def _moments(spec: Spec, copy: WorkingCopy) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of all columns, a column of ones included, and last of the response."""
    ones = int(spec.intercept)
    mean = np.concatenate([np.ones(ones), copy.learnt.mean])
    return mean, np.concatenate([np.zeros(ones), copy.learnt.variance])


def _scaling(
    spec: Spec, copy: WorkingCopy, structure: Structure, with_y: bool, y: np.ndarray | None
) -> Scaling:
    """Centres and scales from the pass over all rows, those of the response from ``y`` if given."""
    mean, variance = _moments(spec, copy)
    of_y = (mean[-1], variance[-1]) if y is None else (y.mean(), y.var())
    centred = choose_centred(
        len(mean) - 1,
        structure.random,
        structure.priors,
        fit_intercept=spec.intercept,
        deep=spec.deep,
    )
    return Scaling.from_moments(
        mean[:-1],
        variance[:-1],
        centred,
        of_y if with_y else None,
        spec.intercept or spec.deep,
    )


def _sums(model: MixedModel, rows: StreamedRows) -> LinearStatistics:
    """A linear Gaussian model needs sums by group only: no batches, and no rows afterwards."""
    return LinearStatistics.from_pieces(
        lambda: map(rows.piece, range(rows.num_pieces)), rows.copy.dealt.members, model.random
    )
