"""What a fitted estimator says about new rows."""

import abc
import copy
from typing import Any, Self, cast

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from nghvi._core.response import Response
from nghvi.data import Rows
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.frame import (
    Complete,
    DataError,
    Table,
    column_names,
    drop_missing,
    has_columns,
    read_response,
)
from nghvi.data.labels import encode_groups, joined, warn_of_strangers
from nghvi.data.scaling import add_intercept
from nghvi.data.source import Groups
from nghvi.estimators import tables
from nghvi.estimators.choices import check_counts, check_seed
from nghvi.estimators.row_facts import RowFacts
from nghvi.estimators.spec import Spec
from nghvi.formula import Design, bounds_of, learn, parse, response_given, variables
from nghvi.models.mixed import prepare
from nghvi.posterior import predictive
from nghvi.posterior.mixed import MixedPosterior

DRAWS = 200
DIGITS_OF_BOUNDS = 12
MISSING = ("error", "drop")
WHICH = ("known", "population", "zero")


class Predictions(BaseEstimator, abc.ABC):
    """The part of both estimators that reads new data."""

    posterior_: MixedPosterior
    formula: str | None
    missing: str
    trials: Any
    exposure: Any
    censored: Any
    weights: Any
    formula_: Design | None
    _spec: Spec
    _rows: Fingerprint
    """Of the rows whose posterior this is."""
    groups_: Groups
    """Labels, by factor where there are several."""
    input_quantiles_: pd.DataFrame
    n_features_in_: int
    _inputs: tuple[str, ...]
    """Columns that the model reads, by name."""

    def sample_predictive(
        self, X: Any, draws: int = 1000, seed: int = 0, which: str = "known"
    ) -> np.ndarray:
        """Joint draws from the posterior predictive distribution, shape (draws, rows).

        Within a draw, rows of one group share its effects, also if the group is new. A
        classifier's draws are 0 and 1, for the first and the second of its ``classes_``.
        """
        request = self._request(X, which, draws, seed)
        return self._raw(request, predictive.sample(self.posterior_, request))

    def log_score(
        self, X: Any, y: Any, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> float:
        """Mean log predictive density of y; larger is better."""
        return float(np.mean(self.log_densities(X, y, which, draws, seed)))

    def log_densities(
        self, X: Any, y: Any, which: str = "known", draws: int = DRAWS, seed: int = 0
    ) -> np.ndarray:
        """Log predictive density of each response."""
        request = self._request(X, which, draws, seed)
        found = predictive.predict(self.posterior_, request, self._scaled_response(y, request))
        return found.log_density - np.log(self.posterior_.scaling.y_scale)

    def add_groups(self, X: Any, y: Any) -> Self:
        """A copy that also knows the groups in X, conditioned on their rows; nothing is refitted.

        The posterior of the global parameters stays as it is.
        """
        table, x = self._scaled(X)
        if table.group is None:
            raise DataError("the model has no group column: there are no groups to add.")
        if isinstance(table.group, tuple):
            raise DataError(
                "add_groups with several grouping factors is not supported yet: fit again with "
                "the new rows, or predict new levels from the population."
            )
        values = self._response_values(read_response(y, len(x)))
        levels, codes = np.unique(table.group, return_inverse=True)
        groups = cast(np.ndarray, self.groups_)
        known = levels[encode_groups(levels, groups) >= 0]
        if known.size:
            raise DataError(
                f"group {known[0]!r} is known already: add_groups takes new groups only."
            )
        posterior = self.posterior_
        scaled = posterior.scaling.apply_response(values)
        part = prepare(posterior.model, Rows.from_arrays(x, scaled, codes, len(levels)))
        extended = copy.copy(self)
        added = Fingerprint.of(x, scaled, codes + len(groups))
        extended._rows = Fingerprint.joined([self._rows, added])
        extended.groups_ = joined(groups, levels, self._spec.group)
        extended.posterior_ = posterior._replace(
            names=posterior.names._replace(groups=extended.groups_),
            added=(*posterior.added, part),
        )
        return extended

    def _predicted(self, X: Any, which: str, draws: int, seed: int) -> predictive.Predicted:
        request = self._request(X, which, draws, seed)
        return predictive.predict(self.posterior_, request)

    def _request(self, X: Any, which: str, draws: int, seed: int) -> predictive.Request:
        if which not in WHICH:
            raise DataError(f"which={which!r}: choose one of {', '.join(map(repr, WHICH))}.")
        check_counts(optional=False, draws=draws)
        check_seed(seed=seed)
        table, x = self._scaled(X, grouped=which != "zero")
        return predictive.Request(x, self._codes(table, which), which != "zero", draws, seed)

    def _codes(self, table: Table, which: str) -> np.ndarray:
        """Places of the groups among the known ones; a column per factor if there are several."""
        n, labels = len(table.values), table.group
        if not isinstance(self.groups_, dict):
            number = sum(part.num_groups for part in self.posterior_.parts)
            own = np.zeros(n, int) if labels is None else np.asarray(labels)
            known = None if labels is None else self.groups_
            return _numbered(own, known, number, self._spec.group, which)
        given = labels if isinstance(labels, tuple) else (None,) * len(self.groups_)
        return np.column_stack(
            [
                _numbered(np.zeros(n, int), None, len(levels), name, which)
                if own is None
                else _numbered(own, levels, len(levels), name, which)
                for own, (name, levels) in zip(given, self.groups_.items(), strict=True)
            ]
        )

    def _raw(self, request: predictive.Request, values: np.ndarray) -> np.ndarray:
        """Responses on the scale of the data; those at a bound are exactly that."""
        posterior = self.posterior_
        scaling, raw = posterior.scaling, posterior.scaling.raw_response(values)
        if posterior.model.num_facts and posterior.model.response.facts_like_response:
            for bound in request.x[:, -posterior.model.num_facts :].T:
                # On the way to the fitted scale and back a bound changes in its last digit.
                stated = np.round(scaling.raw_response(bound), DIGITS_OF_BOUNDS)
                raw = np.where(values == bound, stated, raw)
        return raw

    def _scaled_response(self, y: Any, request: predictive.Request) -> np.ndarray:
        values = self._response_values(read_response(y, len(request.x)))
        return self.posterior_.scaling.apply_response(values)

    def _scaled(self, X: Any, *, grouped: bool = True) -> tuple[Table, np.ndarray]:
        """The table of new data, checked against the fit's, and its scaled columns.

        ``grouped``: whether the group column must be there.
        """
        check_is_fitted(self, "posterior_")
        table = self._table(X, grouped=grouped)
        expected = self._inputs
        if hasattr(self, "feature_names_in_") and table.named:
            table = tables.align(table, expected)
        elif table.values.shape[1] != len(expected):
            raise DataError(
                f"X has {table.values.shape[1] + self._spec.num_factors} features, but "
                f"{type(self).__name__} is expecting {self.n_features_in_} features as input."
            )
        x = add_intercept(table.values, self._spec.intercept)
        return table, self.posterior_.scaling.apply(x)

    def _complete(self, X: Any, y: Any, counts: Any = None) -> Complete:
        """Rows with a response; those with missing cells are left out if the settings say so."""
        if self.missing not in MISSING:
            raise DataError(f"missing={self.missing!r}: choose 'error' or 'drop'.")
        if self.missing == "error":
            return Complete(X, y, counts, None)
        return drop_missing(X, y, counts, () if self.formula is None else variables(self.formula))

    def _learn(self, X: Any) -> None:
        """What the columns of training data mean."""
        stated = RowFacts.of(self)
        self.formula_ = None if self.formula is None else learn(self.formula, X)
        self._spec = Spec.of(self, self.formula_, stated)

    @property
    def _bounds(self) -> tuple[str, ...]:
        """Columns of the data that are bounds, which may be infinite."""
        return RowFacts.of(self).bounds if self.formula is None else bounds_of(self.formula)

    def _table(self, X: Any, *, grouped: bool = True) -> Table:
        if self.formula_ is not None:
            return self.formula_.table(X, grouped=grouped)
        needed = grouped or has_columns(X, self._spec.group, self.n_features_in_)
        return RowFacts.of(self).table(X, self._spec.group if needed else None)

    def _read(self, X: Any, y: Any) -> tuple[Table, np.ndarray]:
        """Training or validation data, checked."""
        table = self._table(X)
        if self.formula_ is not None:
            y = response_given(self.formula_.formula, X, y)
        if y is None:
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        response = read_response(y, len(table.values))
        if len(response) == 1:
            raise DataError("X has one row (n_samples=1): a fit needs more.")
        return table, response

    def _response_name(self, y: Any = None) -> str:
        """What messages call the response: the left side of a formula, or the name that y has."""
        if self.formula_ is not None:
            return parse(self.formula_.formula).response
        name = getattr(y, "name", None)
        return name if isinstance(name, str) and name else "y"

    def _response_column(self, X: Any, y: Any) -> Any:
        """The response as it came: y, or the column that the formula names."""
        name = self._response_name()
        return X[name] if y is None and name in column_names(X) else y

    def _learn_classes(self, y: np.ndarray, order: np.ndarray | None, response: Response) -> None:
        """What the classes are, where the response names them; ``order``: as the data state it."""

    @abc.abstractmethod
    def _response_values(self, y: np.ndarray) -> np.ndarray:
        """The response as the model reads it."""


def _numbered(
    labels: np.ndarray, levels: np.ndarray | None, num_known: int, name: Any, which: str
) -> np.ndarray:
    """Places among the levels; unseen groups are numbered after them, and so share effects.

    ``levels``: None where all groups are to be unseen.
    """
    codes = np.full(len(labels), -1) if levels is None else encode_groups(labels, levels)
    if which == "known" and levels is not None:
        warn_of_strangers(labels, codes, levels, name)
    if which == "population":
        codes = np.full(len(labels), -1)
    new = codes < 0
    codes[new] = num_known + np.unique(labels[new], return_inverse=True)[1]
    return codes
