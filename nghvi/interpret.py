"""What a fitted model says about its inputs: profiles, partial dependence, shares of variance.

Every curve shows the expected response (for a classifier, a probability) in the user's units. Bands
reflect the uncertainty of the parameters and effects, not that of new observations.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from nghvi._core.errors import DataError, suggest
from nghvi._linalg import small
from nghvi._programs import program
from nghvi._sklearn import check_is_fitted
from nghvi._typing import Data
from nghvi.data import Rows
from nghvi.data.frame import Column, Tabular
from nghvi.data.labels import encode_groups
from nghvi.estimators._base import MixedEstimator
from nghvi.estimators.choices import check_counts, check_draws
from nghvi.formula import Design
from nghvi.inference import unravel_draws
from nghvi.models.mixed import MixedModel
from nghvi.posterior.effects import effects_of
from nghvi.posterior.mixed_posterior import params_at, precision_factors
from nghvi.posterior.predictive import Request, predictor_draws
from nghvi.posterior.summaries import LEVEL, Summary, check_level, described

POPULATION = "population"
"""Label of the curve without effects."""
ALL = "all"
"""Label of the curve averaged over all rows."""
ENDS = (0.05, 0.95)
"""Default quantiles of an input between which curves run."""
NUMBERS_AT_ONCE = 1e7
"""How many expected responses, draws times rows, are in memory at a time."""
CURVE_COLUMNS = ("group", "mean", "lower", "upper")  # besides the input


def lek_profile(
    estimator: MixedEstimator,
    variable: Column,
    groups: Any = None,
    reference: Mapping | pd.Series | None = None,
    *,
    grid: Any = None,
    n_grid: int = 19,
    quantiles: tuple[float, float] = ENDS,
    draws: int = 200,
    level: float = 0.9,
    seed: int = 0,
) -> pd.DataFrame:
    """Compute the expected response along one input, with all others held at a reference.

    Parameters
    ----------
    estimator
        A fitted MixedRegressor or MixedClassifier.
    variable
        The input to move: the name of a numeric column, or its number if the fit had an array.
    groups
        Label or labels of known groups, one curve each; "population", the default, is the curve
        without effects.
    reference
        Values of other inputs by name. Inputs that it does not name are at their training median
        (that of the design's columns). If several columns of a formula read the variable, as in
        ``ses * sector``, it moves in all of them, and inputs that are not numbers are at their
        most common value.
    grid, n_grid, quantiles
        Values of the input; by default ``n_grid`` evenly spaced ones between these two of its
        training quantiles. An input whose quantiles are only two values, such as one of 0 and 1,
        has no others in between.
    draws, level, seed
        Number of posterior draws, probability of the band, seed of the draws.

    Returns
    -------
    pandas.DataFrame
        One row per group and grid value: ``group``, the input, ``mean``, ``lower``, ``upper``.
    """
    name = _input_name(estimator, variable)
    _check_settings(n_grid, draws, level, seed)
    values = _grid(estimator, name, grid, n_grid, quantiles)
    labels = [POPULATION] if groups is None else _listed(groups)
    codes = _profile_codes(estimator, labels)
    if name in movable(estimator) and not _moves_others(estimator, reference):
        inputs = np.tile(_reference_row(estimator, reference), (len(values), 1))
        inputs[:, _column(estimator, name)] = _scaled(estimator, name, values)
    else:
        frame = _raw_reference(estimator, reference, len(values)).assign(**{name: values})
        inputs = _columns_of_model(estimator, frame)
    drawn = np.empty((draws, len(labels), len(values)))
    for effects in (False, True):
        chosen = (codes >= 0) == effects
        if chosen.any():
            x = np.tile(inputs, (chosen.sum(), 1))
            group = np.repeat(np.maximum(codes[chosen], 0), len(values))
            means = _expected(estimator, Request(x, group, effects, int(draws), int(seed)))
            drawn[:, chosen] = means.reshape(draws, -1, len(values))
    return _curves(labels, name, values, drawn, level)


def partial_dependence(
    estimator: MixedEstimator,
    variable: Column,
    X: Tabular,
    groups: Any = None,
    *,
    grid: Any = None,
    n_grid: int = 19,
    quantiles: tuple[float, float] = ENDS,
    draws: int = 100,
    level: float = 0.9,
    seed: int = 0,
) -> pd.DataFrame:
    """Average the expected response over the rows of X, giving all of them the same input value.

    Every row keeps its other inputs and the effects of its own group; those of an unseen group are
    drawn from the population. ``groups`` are labels of groups, each of which gets a curve from its
    own rows; by default there is one curve for all rows. All other arguments and the result are as
    in :func:`lek_profile`.
    """
    name = _input_name(estimator, variable)
    _check_settings(n_grid, draws, level, seed)
    values = _grid(estimator, name, grid, n_grid, quantiles)
    request = estimator.reader_.request(estimator.posterior_, X, "known", draws, seed)
    labels = [ALL] if groups is None else _listed(groups)
    member = np.ones((len(request.x), 1), bool)
    if groups is not None:
        member = request.codes[:, None] == _known_codes(estimator, labels)
        _check_members(labels, member)
    used = member.any(axis=1)
    request = request._replace(x=request.x[used], codes=request.codes[used])
    share = member[used] / member.sum(axis=0)

    def moved(value: float) -> np.ndarray:
        """Return the rows of X with this value of the input, on the fitted scale."""
        if name in movable(estimator):
            x = request.x.copy()
            for column, known in estimator.reader_.moved(name, value).items():
                x[:, _column(estimator, column)] = _scaled(estimator, column, known)
            return x
        frame = _raw(estimator).design.raw_inputs(X)[used].assign(**{name: value})
        return _columns_of_model(estimator, frame)

    pieces = int(np.ceil(draws * len(request.x) * len(values) / NUMBERS_AT_ONCE))
    averages = []
    for piece in np.array_split(values, min(pieces, len(values))):
        x = np.concatenate([moved(value) for value in piece])
        asked = request._replace(x=x, codes=np.concatenate([request.codes] * len(piece)))
        means = _expected(estimator, asked).reshape(draws, len(piece), -1)
        averages.append(np.swapaxes(means @ share, 1, 2))
    return _curves(labels, name, values, np.concatenate(averages, axis=2), level)


def variance_share(
    estimator: MixedEstimator, X: Tabular | None = None, draws: int = 200, seed: int = 0
) -> pd.DataFrame:
    """Compute the share of each random feature in the variance of the predictor between groups.

    The share of feature j is Omega_jj E[h_j^2] divided by the sum of these, where E is the average
    over the rows of X (by default the training rows). Covariances between effects are left out.
    Columns are as the fit standardised them, so that the intercept stands for groups at average
    inputs if the model allows centred columns. ``draws`` and ``seed`` are those of the parameters.

    Returns the posterior ``mean`` and ``sd``, one row per feature.
    """
    check_is_fitted(estimator)
    check_draws(draws, seed)
    posterior = estimator.posterior_
    if not posterior.names.effects:
        raise DataError(
            "the model has no effects, so there is no variance between groups to share."
        )
    rows = posterior.data
    if X is not None:
        x = _columns_of_model(estimator, X, grouped=True)
        rows = Rows.from_arrays(x, np.zeros(len(x)), np.zeros(len(x), int), 1)
    theta = posterior.inference.pool.resample(int(draws), np.random.default_rng(seed))
    shares = np.asarray(_shares(posterior.model, posterior.data, rows, jnp.asarray(theta)))
    index = pd.Index(posterior.names.effects, name="feature")
    return pd.DataFrame({"mean": shares.mean(axis=0), "sd": shares.std(axis=0)}, index=index)


def icc(estimator: MixedEstimator, level: float = LEVEL) -> Summary:
    """Compute the share of every grouping factor, and of noise, in the variance of a response.

    With one factor and random intercepts, its share is the intraclass correlation. The variance of
    a factor with slopes is the average of ``z' Omega z`` over the rows of the fit. The model has to
    be linear with a Gaussian response. ``level`` is the probability of the interval. Returns the
    columns of ``summary``, one row per factor and one for noise.
    """
    check_is_fitted(estimator)
    posterior = estimator.posterior_
    model = posterior.model
    linear = model.trunk.linear and model.response.conjugate
    if not (linear and model.num_effects):
        raise DataError("icc needs a linear model with a Gaussian response and group effects.")
    names, pool = posterior.names, posterior.inference.pool
    parts = posterior.data.factors if names.factors else (posterior.data,)
    labels = [factor.name for factor in names.factors] or [str(estimator.group_)]
    if "noise" in labels:
        raise DataError("icc: the grouping factor 'noise' has the name of a result; rename it.")
    params = unravel_draws(model, posterior.data, pool.theta)
    lower = np.asarray(precision_factors(model, params))
    omega = np.linalg.inv(lower @ lower.transpose(0, 2, 1))
    variances = {"noise": np.exp(np.asarray(params.dispersion)[:, 0])}
    for label, block, part in zip(labels, names.blocks, parts, strict=True):
        square = np.asarray(part.effects_gram).sum(axis=-1) / float(part.num_rows)
        own = omega[:, block, block]
        variances[label] = np.einsum("sij,ij->s", own, square)
    total = sum(variances.values())
    shares = {name: variances[name] / total for name in (*labels, "noise")}
    return described(shares, pool.weight, level).rename_axis("factor")


@program
def _shares(model: MixedModel, data: Data, rows: Data, theta: Array) -> Float[Array, "s r"]:
    def one(each: Array) -> Array:
        params = params_at(model, data, each)
        inverse = small.inverse_lower(model.precision_factor(params))
        variance = jnp.sum(inverse**2, axis=0) * effects_of(model).mean_squares(params, rows)
        return variance / jnp.sum(variance)

    return jax.lax.map(one, theta)


def _expected(estimator: MixedEstimator, request: Request) -> Float[np.ndarray, "s n"]:
    """Return draws of the expected response in the user's units."""
    posterior = estimator.posterior_
    return posterior.scaling.raw_response(predictor_draws(posterior, request))


def _curves(
    labels: list, name: str, grid: np.ndarray, drawn: Float[np.ndarray, "s c g"], level: float
) -> pd.DataFrame:
    """Return mean and band of every curve, stacked."""
    if name in CURVE_COLUMNS:
        raise DataError(f"input {name!r} has the same name as a column of the result; rename it.")
    lower, upper = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    return pd.DataFrame(
        {
            "group": [label for label in labels for _ in grid],
            name: np.tile(grid, len(labels)),
            "mean": drawn.mean(axis=0).ravel(),
            "lower": lower.ravel(),
            "upper": upper.ravel(),
        }
    )


def _check_settings(n_grid: int, draws: int, level: float, seed: int) -> None:
    check_counts(n_grid=n_grid)
    check_draws(draws, seed)
    check_level(level)


def _input_name(estimator: MixedEstimator, variable: Column) -> str:
    """Return the name of an input, which for arrays may be given by its column number."""
    check_is_fitted(estimator)
    named = hasattr(estimator, "feature_names_in_") or isinstance(variable, str)
    name = str(variable) if named else f"x{variable}"
    inputs = followed(estimator)
    if name in inputs:
        return name
    if not inputs:
        raise DataError(
            f"variable={variable!r}: the model has no numeric input that a curve could follow; "
            "change columns in a data frame and use predict instead."
        )
    raise DataError(
        f"variable={variable!r} is not a numeric input of the model. {suggest(name, inputs)} "
        "For any other, change it in a data frame and use predict."
    )


class _Raw(NamedTuple):
    """The columns that a formula reads: quantiles of numbers, the most common value of others."""

    design: Design
    quantiles: pd.DataFrame
    commonest: dict[str, Any]

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.design.inputs


def _raw(estimator: MixedEstimator) -> _Raw:
    """Return the columns that a model's formula reads, with typical values."""
    reader = estimator.reader_
    quantiles, commonest = reader.raw_quantiles, reader.commonest
    return _Raw(cast(Design, reader.design), cast(pd.DataFrame, quantiles), cast(dict, commonest))


def followed(estimator: MixedEstimator) -> tuple[str, ...]:
    """Return the inputs that a curve can follow: all columns of numbers."""
    raw = () if estimator.formula is None else tuple(_raw(estimator).quantiles.columns)
    return tuple(dict.fromkeys((*movable(estimator), *raw)))


def movable(estimator: MixedEstimator) -> tuple[str, ...]:
    """Return the numeric inputs that are one column of the model and read by no other."""
    if estimator.formula is not None:
        return _raw(estimator).design.movable
    return estimator.reader_.numbers


def _grid(
    estimator: MixedEstimator, name: str, grid: Any, n_grid: int, quantiles: tuple[float, float]
) -> np.ndarray:
    if grid is not None:
        values = np.asarray(grid, float)
        if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
            raise DataError("grid must be a list of finite values of the input.")
        return values
    single = name in movable(estimator)
    known = (estimator.input_quantiles_ if single else _raw(estimator).quantiles)[name]
    ends = []
    for quantile in quantiles:
        near = np.isclose(known.index, quantile)
        if not near.any():
            shown = ", ".join(f"{q:g}" for q in known.index)
            raise DataError(
                f"quantiles={quantiles!r}: the fit kept only {shown}; choose two of these, or pass "
                "the values themselves as grid."
            )
        ends.append(known[near].iloc[0])
    return np.unique(ends) if known.nunique() == 2 else np.linspace(ends[0], ends[1], n_grid)


def _reference_row(estimator: MixedEstimator, reference: Any) -> np.ndarray:
    """Return the columns of the model at the reference, on the fitted scale."""
    row = estimator.input_quantiles_.loc[0.5].copy()
    # A reference may be a row of the training table, which holds the group as well.
    ignored = set(map(str, getattr(estimator, "feature_names_in_", ()))) - set(row.index)
    known, coding = estimator.reader_.facts, estimator.reader_.coding
    for name, value in ({} if reference is None else dict(reference)).items():
        if coding is not None and str(name) in coding.levels:
            held = coding.coded(str(name), np.array([value]))
            row.update(pd.Series({column: level.item() for column, level in held.items()}))
        elif str(name) in row.index:
            row[str(name)] = _finite(value, name)
        elif str(name) in known.columns:
            row.update(pd.Series(known.at(str(name), _finite(value, name))))
        elif str(name) not in ignored:
            raise DataError(f"reference: {name!r} is not an input of the model.")
    scaling = estimator.posterior_.scaling
    intercept = np.ones(len(scaling.centre) - len(row))
    return scaling.apply(np.concatenate([intercept, row.to_numpy(float)]))


def _moves_others(estimator: MixedEstimator, reference: Any) -> bool:
    """Return whether a reference names columns that a formula transforms, such as trials(n)."""
    if estimator.formula is None or reference is None:
        return False
    named = set(map(str, dict(reference))) - set(estimator.input_quantiles_)
    return bool(named & set(_raw(estimator).inputs))


def _raw_reference(estimator: MixedEstimator, reference: Any, number: int) -> pd.DataFrame:
    """Return ``number`` equal rows of raw inputs at the reference, for a formula to code."""
    raw = _raw(estimator)
    row = {**raw.quantiles.loc[0.5].to_dict(), **raw.commonest}
    for name, value in ({} if reference is None else dict(reference)).items():
        if str(name) in raw.inputs:
            measured = str(name) in raw.quantiles
            row[str(name)] = _finite(value, name) if measured else value
        elif str(name) not in map(str, estimator.group_columns_):
            raise DataError(f"reference: {name!r} is not an input of the model.")
    for name in raw.inputs:
        if name not in row:
            raise DataError(f"reference: add a value of {name!r}, which has no typical value.")
    return pd.DataFrame({name: [value] * number for name, value in row.items()})


def _finite(value: Any, name: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise DataError(f"reference: {name!r} is {value!r}, but it must be a finite number.")
    return number


def _columns_of_model(
    estimator: MixedEstimator, X: Tabular, *, grouped: bool = False
) -> np.ndarray:
    """Return the inputs of rows on the fitted scale; ``grouped`` requires a group column."""
    reader = estimator.reader_
    return reader.scaled(reader.table(X, grouped=grouped), estimator.posterior_.scaling)


def _column(estimator: MixedEstimator, name: str) -> int:
    """Return the position of an input among the model's columns, after an intercept if any."""
    inputs = estimator.reader_.inputs
    return len(estimator.posterior_.scaling.centre) - len(inputs) + inputs.index(name)


def _scaled(estimator: MixedEstimator, name: str, values: Any) -> Any:
    scaling, column = estimator.posterior_.scaling, _column(estimator, name)
    return (values - scaling.centre[column]) / scaling.scale[column]


def _listed(groups: Any) -> list:
    """Return the labels as a list, even if there is only one."""
    if isinstance(groups, str) or not np.iterable(groups):
        return [groups]
    if not len(labels := list(groups)):
        raise DataError("groups is empty; name at least one group, or leave groups out.")
    return labels


def _profile_codes(estimator: MixedEstimator, labels: list) -> np.ndarray:
    """Return the positions of labels among the known groups, -1 for the population."""
    named = np.array([not (isinstance(label, str) and label == POPULATION) for label in labels])
    codes = np.full(len(labels), -1)
    codes[named] = _known_codes(estimator, [labels[i] for i in np.flatnonzero(named)])
    return codes


def _known_codes(estimator: MixedEstimator, labels: list) -> np.ndarray:
    """Return the positions of labels among the known groups."""
    if not labels:
        return np.zeros(0, int)
    if not len(estimator.groups_):
        raise DataError("the model has no group column; leave groups out.")
    if isinstance(estimator.groups_, dict):
        raise DataError(
            "curves of single groups need a model with one grouping factor; leave groups out, or "
            "change columns in a data frame and use predict."
        )
    codes = encode_groups(np.asarray(labels), estimator.groups_)
    for label, code in zip(labels, codes, strict=True):
        if code < 0:
            shown = ", ".join(map(repr, estimator.groups_[:5].tolist()))
            raise DataError(f"the model does not know the group {label!r}; it knows {shown}, ...")
    return codes


def _check_members(labels: list, member: np.ndarray) -> None:
    for label, rows in zip(labels, member.T, strict=True):
        if not rows.any():
            raise DataError(f"group {label!r} has no rows in X; leave it out of groups.")
