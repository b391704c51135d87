"""Turns a user's rows into those of a model: the one way in for fits, predictions and checks.

A formula or, if there is none, settings say what the columns of a data frame or an array mean::

    data -> table (inputs by name, labels of groups) -> scaled inputs and codes of groups

All that this takes is learnt at the fit and kept in a :class:`RowReader`. :func:`raw_responses` is
the way back.
"""

import dataclasses
from collections.abc import Container
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd

from nghvi._core.errors import naming_kept
from nghvi._core.response import Response, offenders
from nghvi.data import Rows
from nghvi.data.coding import Coding
from nghvi.data.frame import (
    Complete,
    DataError,
    Group,
    Table,
    Tabular,
    Vector,
    column_names,
    columns_of,
    drop_missing,
    has_columns,
    read_response,
    stated_order,
)
from nghvi.data.labels import encode_groups, warn_of_strangers
from nghvi.data.scaling import Scaling, add_intercept
from nghvi.data.source import GroupedDataset, Groups, InMemory, OnDisk, Source
from nghvi.estimators.choices import check_draws, choose_seed, is_deep, pools
from nghvi.estimators.grouping import chosen_group
from nghvi.estimators.response_columns import (
    RowFacts,
    learn_classes,
    measurements,
    places_of,
    warn_of_order,
)
from nghvi.estimators.spec import Spec
from nghvi.estimators.tables import typical_inputs
from nghvi.formula import Design, bounds_of, learn_and_read, parse, response_given, variables
from nghvi.posterior.mixed_posterior import MixedPosterior
from nghvi.posterior.request import Request
from nghvi.storage.classes import instance

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

DRAWS = 200
"""Default number of draws for predictions."""
DIGITS_OF_BOUNDS = 12
"""Decimals of a bound that survive scaling."""
MISSING = ("error", "drop", "indicator")
WHICH = ("known", "population", "zero")
SCATTERED = {
    "formula_": "design",
    "_spec": "spec",
    "_inputs": "inputs",
    "_raw_quantiles": "raw_quantiles",
    "_commonest": "commonest",
    "classes_": "classes",
}
"""Attributes of estimators of earlier versions, and the fields that hold them now."""


def complete_rows(
    settings: "MixedEstimator", X: Tabular, y: Vector | None, counts: Vector | None = None
) -> Complete:
    """Return rows and responses, without those that have missing cells if missing='drop'."""
    if settings.missing not in MISSING:
        raise DataError(f"missing={settings.missing!r}: choose 'error', 'drop' or 'indicator'.")
    if settings.missing != "drop":
        return Complete(X, y, counts, None)
    used = () if settings.formula is None else variables(settings.formula)
    return drop_missing(X, y, counts, used)


class RowReader(NamedTuple):
    """What the columns of the data mean to a model, as learnt at its fit."""

    estimator: str
    """Name of the estimator's class, for messages."""
    spec: Spec
    facts: RowFacts
    """Facts about every row that the settings state."""
    design: Design | None
    """What a formula learnt; None without a formula."""
    inputs: tuple[str, ...]
    """Names of the columns that the model reads."""
    columns: tuple[Any, ...] | None
    """Names of the columns of the data, including the group; None if they had none."""
    classes: np.ndarray | None
    """Classes of the response; None if it holds numbers."""
    raw_quantiles: pd.DataFrame | None = None
    """Quantiles of the numeric columns that a formula reads."""
    commonest: dict[str, Any] | None = None
    """Most common value of each other column that a formula reads."""
    coding: Coding | None = None
    """How inputs are coded without a formula; None means that all are numbers."""
    group: Group = None
    """Group columns that the settings name: those of ``spec`` without pooled categories."""

    @staticmethod
    def of(settings: "MixedEstimator", X: Tabular | None, response: Response) -> "RowReader":
        """Learn a reader from an estimator's settings and training data, None for data on disk."""
        return RowReader.learn(settings, X, response)[0]

    @staticmethod
    def learn(
        settings: "MixedEstimator", X: Tabular | None, response: Response
    ) -> "tuple[RowReader, Table | None]":
        """Return the same as :meth:`of`, and the table of the training data; None for None."""
        facts, group = RowFacts.of(settings), chosen_group(settings.group)
        pooled: tuple[str, ...] = ()
        indicator = settings.missing == "indicator"
        design, coding, table, quantiles, commonest = None, None, None, None, None
        if settings.formula is not None:
            design, table, inputs = learn_and_read(
                settings.formula, cast(Tabular, X), indicator=indicator
            )
            quantiles, commonest = typical_inputs(inputs)
        elif X is not None:
            deep, cells = is_deep(settings.hidden, settings.trunk), facts.cells(X, group)
            coding = Coding.learn(
                cells,
                indicator=indicator,
                intercept=deep or bool(settings.fit_intercept),
                pool=deep and pools(settings, response),
            )
            pooled, table = coding.pooled, coding.table(cells, by_name=cells.named)
            table = facts.beside(table, X)
        spec, name = Spec.of(settings, design, facts, pooled), type(settings).__name__
        learnt = (quantiles, commonest, coding, group)
        return RowReader(name, spec, facts, design, (), None, None, *learnt), table

    @staticmethod
    def gathered(estimator: "MixedEstimator") -> "RowReader":
        """Make a reader from the attributes of an estimator of an earlier version; remove them."""
        kept = estimator.__dict__
        parts = {new: kept.pop(old) for old, new in SCATTERED.items() if old in kept}
        kept.pop("groups_", None)  # the posterior has them
        names = kept.get("feature_names_in_")
        others = {
            "estimator": type(estimator).__name__,
            "facts": RowFacts.of(estimator),
            "columns": None if names is None else tuple(names),
        }
        return instance(RowReader, {"classes": None, **parts, **others})

    def with_inputs_of(self, source: Source) -> "RowReader":
        """Return the reader with the columns of the fit, which new data are compared with."""
        return self._replace(inputs=source.inputs, columns=source.columns)

    @property
    def num_columns(self) -> int:
        """Number of columns that new data must have."""
        if self.columns is not None:
            return len(self.columns)
        return len(self._coding.inputs) + self._num_grouped

    @property
    def _num_grouped(self) -> int:
        """Number of columns that the settings name as groups."""
        return len(columns_of(self._group))

    @property
    def bounds(self) -> tuple[str, ...]:
        """Columns of the data that hold censoring bounds, which may be infinite."""
        return self.facts.bounds if self.design is None else bounds_of(self.design.formula)

    @property
    def group_columns(self) -> tuple[Any, ...]:
        """Columns of the data that hold group labels."""
        if self.design is not None:
            return parse(self.design.formula).group_columns
        return columns_of(self.spec.group)

    @property
    def may_lack(self) -> Container[str]:
        """Columns in which cells may be missing, because some were missing at the fit."""
        return (self._coding if self.design is None else self.design).gaps.fillings

    @property
    def numbers(self) -> tuple[str, ...]:
        """Inputs of a model without a formula that are numeric columns of the data."""
        coding = self._coding
        return tuple(n for n in coding.inputs if n not in coding.levels and n not in coding.pooled)

    def moved(self, name: str, value: float) -> dict[str, float]:
        """Return the model's columns, by name, that one of :attr:`numbers` with this value sets."""
        told = self._coding.gaps.indicator_of(name)
        return {name: value} | ({} if told is None else {told: 0.0})

    @property
    def _coding(self) -> Coding:
        """The coding; for data on disk and models of earlier versions all inputs are numbers."""
        if self.coding is not None:
            return self.coding
        known = len(self.inputs) - len(self.facts.stated)
        return Coding(self.inputs[:known], {})

    @property
    def _group(self) -> Group:
        return self.spec.group if self.coding is None else self.group

    def table(self, X: Tabular, *, grouped: bool = True) -> Table:
        """Return inputs and group labels of rows; ``grouped`` requires the group column."""
        if self.design is not None:
            return self.design.table(X, grouped=grouped)
        group = self._group
        needed = grouped or has_columns(X, group, self.num_columns)
        coding, named = self._coding, self.columns is not None
        cells = self.facts.cells(X, group if needed else None, coding.inputs if named else None)
        by_name = named and cells.named
        if not by_name and len(cells.inputs) != len(coding.inputs):
            raise DataError(
                f"X has {len(cells.inputs) + self._num_grouped} features, but "
                f"{self.estimator} is expecting {self.num_columns} features as input."
            )
        table = self.facts.beside(coding.table(cells, by_name=by_name), X)
        return table if needed else table._replace(group=None)

    def read_response(self, X: Tabular, y: Vector | None, num_rows: int) -> np.ndarray:
        """Return the responses of training or validation data, checked."""
        if self.design is not None:
            y = response_given(self.design.formula, X, y)
        if y is None:
            raise DataError(f"{self.estimator} requires y to be passed, but the target y is None.")
        response = read_response(y, num_rows, self.response_name(y))
        if num_rows == 1:
            raise DataError("X has only one row (n_samples=1), but a fit needs more.")
        return response

    def scaled(self, table: Table, scaling: Scaling) -> np.ndarray:
        """Return the columns of the model on the fitted scale, from those of a table."""
        return scaling.apply(add_intercept(table.values, self.spec.intercept))

    def request(
        self,
        posterior: MixedPosterior,
        X: Tabular,
        which: str = "known",
        draws: int = 1,
        seed: int = 0,
    ) -> Request:
        """Return a request for predictions; ``which`` says which effects to predict with."""
        if which not in WHICH:
            raise DataError(f"which={which!r}: choose one of {', '.join(map(repr, WHICH))}.")
        check_draws(draws, seed)
        table = self.table(X, grouped=which != "zero")
        if number := posterior.model.num_facts:
            of_rows = posterior.model.response.given(table.values[:, -number:])
            of_rows.check_facts(table.names[-number:])
        x = self.scaled(table, posterior.scaling)
        codes = _codes(posterior, table, self.spec.group, which)
        return Request(x, codes, which != "zero", draws, seed)

    def observed(
        self,
        posterior: MixedPosterior,
        X: Tabular,
        y: Vector | None,
        which: str = "known",
        draws: int = 1,
        seed: int = 0,
    ) -> tuple[Request, np.ndarray]:
        """Return a request for predictions, and the observed responses on the fitted scale."""
        warn_of_order(X, y)
        request = self.request(posterior, X, which, draws, seed)
        return request, self.responses(posterior, request.x, y)

    def responses(self, posterior: MixedPosterior, x: np.ndarray, y: Vector | None) -> np.ndarray:
        """Return observed responses on the fitted scale, checked; ``x`` are their scaled rows."""
        name = self.response_name(y)
        raw = self.values(read_response(y, len(x), name), name)
        values, response = posterior.scaling.apply_response(raw), posterior.model.response_at(x)
        outside = ~response.support.holds(values)
        if outside.any():
            raise response.outside_support(name, offenders(raw, outside))
        return values

    def values(self, response: np.ndarray, name: str = "y") -> np.ndarray:
        """Return responses as numbers; ``name`` is that of the response, for messages."""
        known = self.classes
        return measurements(response, name) if known is None else places_of(response, known)

    def response_name(self, y: Vector | None = None) -> str:
        """Return the name of the response: the left-hand side of a formula, or the name of y."""
        if self.design is not None:
            return parse(self.design.formula).response
        name = getattr(y, "name", None)
        return name if isinstance(name, str) and name else "y"


def response_column(formula: str | None, X: Tabular | GroupedDataset, y: Vector | None) -> Any:
    """Return the response as it was passed: y, or the column that the formula names."""
    if y is not None or formula is None:
        return y
    name = parse(formula).response
    return cast(Any, X)[name] if name in column_names(cast(Tabular, X)) else y


def read_to_fit(
    settings: "MixedEstimator",
    X: Tabular | GroupedDataset,
    y: Vector | None,
    counts: Vector | None,
    response: Response,
) -> tuple[RowReader, Source]:
    """Read training data; return a reader for further rows, and the source of these.

    ``settings`` is an estimator; ``X``, ``y`` and ``counts`` are the arguments of its ``fit``.
    """
    if isinstance(X, GroupedDataset):
        return _read_from_disk(settings, X, str(y), response)
    if X is None:
        raise DataError("X is None; pass a data frame or an array with one row per observation.")
    complete = complete_rows(settings, X, y, counts)
    with naming_kept(complete.kept):
        return _read_in_memory(settings, complete, response)


def _read_in_memory(
    settings: "MixedEstimator", complete: Complete, response: Response
) -> tuple[RowReader, Source]:
    X, y, counts, kept = complete
    warn_of_order(X, y)
    reader, table = RowReader.learn(settings, X, response)
    assert table is not None
    order = stated_order(response_column(settings.formula, X, y)) if response.classes else None
    name = reader.response_name(y)
    y = reader.read_response(X, y, len(table.values))
    if settings.of_classes:
        reader = reader._replace(classes=learn_classes(y, order, response, name))
    values = reader.values(y, name)
    columns = tuple(column_names(X)) if table.named else None
    if reader.design is not None:
        columns = reader.design.variables
    group = reader.spec.group
    source = InMemory.of(table, values, counts, group=group, columns=columns, response_name=name)
    source = dataclasses.replace(source, kept=kept)
    return reader.with_inputs_of(source), source


def _read_from_disk(
    settings: "MixedEstimator", dataset: GroupedDataset, y: str, response: Response
) -> tuple[RowReader, Source]:
    reader, number = RowReader.of(settings, None, response), settings.batch_groups
    source = OnDisk.of(
        *(dataset, str(reader.spec.group), y),
        classes=response.classes,
        batch_groups=number if isinstance(number, int) else None,
        seed=choose_seed(settings.random_state),
    )
    if settings.of_classes:
        classes = learn_classes(source.copy.learnt.classes, None, response)
        reader = reader._replace(classes=classes)
    return reader.with_inputs_of(source), source


def read_held_out(
    settings: "MixedEstimator",
    reader: RowReader,
    given: tuple[Any, Any],
    scaling: Scaling,
    groups: Groups,
) -> Rows:
    """Read the rows of a stopping rule; rows of groups without training data are left out."""
    X, y = complete_rows(settings, *given)[:2]
    table, levels = reader.table(X), cast(np.ndarray, groups)
    x, y = reader.scaled(table, scaling), reader.read_response(X, y, len(table.values))
    y = reader.values(y)
    labels = None if table.group is None else np.asarray(table.group)
    codes = np.zeros(len(y), int) if labels is None else encode_groups(labels, levels)
    known = codes >= 0
    if not known.any():
        raise DataError("validation has no rows of the groups in X; hold out rows of these groups.")
    y = scaling.apply_response(y[known])
    return Rows.from_arrays(x[known], y, codes[known], max(len(levels), 1))


def raw_responses(posterior: MixedPosterior, request: Request, values: np.ndarray) -> np.ndarray:
    """Return responses on the scale of the data; those at a bound equal it exactly."""
    scaling, raw = posterior.scaling, posterior.scaling.raw_response(values)
    if posterior.model.num_facts and posterior.model.response.facts_like_response:
        for bound in request.x[:, -posterior.model.num_facts :].T:
            # Scaling a bound and back changes its last digits.
            stated = np.round(scaling.raw_response(bound), DIGITS_OF_BOUNDS)
            raw = np.where(values == bound, stated, raw)
    return raw


def _codes(posterior: MixedPosterior, table: Table, group: Any, which: str) -> np.ndarray:
    """Return the positions of groups among the known ones, a column per factor if several."""
    n, labels, known = len(table.values), table.group, posterior.names.labels
    if not isinstance(known, dict):
        number = sum(part.num_groups for part in posterior.parts)
        own = np.zeros(n, int) if labels is None else np.asarray(labels)
        return _numbered(own, None if labels is None else known, number, group, which)
    given = labels if isinstance(labels, tuple) else (None,) * len(known)
    return np.column_stack(
        [
            _numbered(np.zeros(n, int), None, len(levels), name, which)
            if own is None
            else _numbered(own, levels, len(levels), name, which)
            for own, (name, levels) in zip(given, known.items(), strict=True)
        ]
    )


def _numbered(
    labels: np.ndarray, levels: np.ndarray | None, num_known: int, name: Any, which: str
) -> np.ndarray:
    """Return positions among the levels; unseen groups have the numbers after these, one each.

    With ``levels=None`` all groups count as unseen.
    """
    codes = np.full(len(labels), -1) if levels is None else encode_groups(labels, levels)
    if which == "known" and levels is not None:
        warn_of_strangers(labels, codes, levels, name)
    if which == "population":
        codes = np.full(len(labels), -1)
    new = codes < 0
    codes[new] = num_known + np.unique(labels[new], return_inverse=True)[1]
    return codes
