"""The columns of a model's design: intercept, random columns, heavy tails, and warnings about them.

A column with a few extreme cells is nearly constant for a network: standardised by its sd, almost
all rows have the same value. The network therefore sees ``asinh((x - median) / unit)``, which is
linear in the middle and logarithmic in the tails (:func:`tamed`). Coefficients of inputs beside the
network refer to the columns themselves.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from nghvi._core.errors import warn
from nghvi._core.response import Support
from nghvi.data.frame import DataError
from nghvi.networks import Tamed, Trunk
from nghvi.priors import EffectsPrior

INTERCEPT = "intercept"
FAR = 20
"""How many sds from zero the mean of a column may be before it should be centred."""
MOST_LOST, ALIKE = 9.0, 10.0
"""By how much a prior may reduce twice the log likelihood of a linear fit without a warning, and
the variance inflation from which on a column is nearly a combination of others."""
SURELY_APART = 1e-8
"""Least eigenvalue of the products of columns of length one from which on none of them is a linear
combination of the others, to within 1e-4."""
FEWEST_ON_A_LINE = 5
"""The fewest rows for which a perfectly linear relation is not put down to chance."""
HEAVY = 1.5
"""The ratio of sd to robust unit from which on a column has heavy tails."""
FEW_VALUES = 10
"""Columns with at most so many different values count as codes, whatever their sd."""
OWN_PRIOR = "state a prior that you can justify (priors=Priors(coef_sd=2.5))"
OF_NORMAL = 1.349
"""The interquartile range of a normal distribution, in sds."""


def feature_names(names: tuple[str, ...], fit_intercept: bool) -> tuple[str, ...]:
    """Return the names of the columns of the fixed part."""
    if not fit_intercept:
        return names
    if INTERCEPT in names:
        raise DataError(
            f"column {INTERCEPT!r} has the same name as the intercept that is added; rename it, or "
            "drop it if it is constant."
        )
    return (INTERCEPT, *names)


def random_columns(
    random: str | Sequence[Any], names: tuple[str, ...], *, deep: bool, factor: str | None = None
) -> tuple[int, ...]:
    """Return the indices of the features with effects, in the order of the features.

    ``factor``: under which name a dictionary had this setting, for messages; None without one.
    """
    said = f"random={random if factor is None else {factor: random}!r}"
    if isinstance(random, str):
        if random == "auto":
            random = "all" if deep else INTERCEPT
        if random == "all":
            return tuple(range(len(names)))
        if random == INTERCEPT:
            if INTERCEPT not in names:
                raise DataError(
                    "random='intercept' needs fit_intercept=True; otherwise list the columns whose "
                    "coefficients vary by group, for example random=['x']."
                )
            return (0,)
        raise DataError(f"{said}: choose 'auto', 'intercept', 'all' or a list of column names.")
    if not isinstance(random, list | tuple | np.ndarray | pd.Index):
        raise DataError(
            f"{said}: choose 'auto', 'intercept', 'all' or a list of column names, such "
            "as ['intercept', 'x']."
        )
    chosen = []
    for entry in random:
        name = f"x{entry}" if isinstance(entry, int | np.integer) else entry
        if name not in names:
            shown = ", ".join(map(repr, names[:10]))
            raise DataError(f"random: {entry!r} is not a column of the model; it has {shown}.")
        chosen.append(names.index(name))
    if len(set(chosen)) != len(chosen):
        raise DataError(f"random={list(random)!r} names a column twice; name it once.")
    if not chosen:
        raise DataError("random=[] leaves nothing that varies by group; use group=None instead.")
    return tuple(sorted(chosen))


def varies_within(column: np.ndarray, codes: np.ndarray) -> bool:
    """Return whether a column differs between rows of the same group."""
    first = np.full(codes.max() + 1, np.nan)
    first[codes[::-1]] = column[::-1]
    return bool((column != first[codes]).any())


def centred_columns(
    num_columns: int, random: tuple[int, ...], prior: EffectsPrior, *, fit_intercept: bool
) -> np.ndarray:
    """Return the columns that may be centred because an intercept absorbs the shift.

    Centring any other column would change the model. A column with a random slope needs a random
    intercept that may be correlated with it.
    """
    centred = np.full(num_columns, fit_intercept)
    if fit_intercept:
        centred[0] = False
        if 0 not in random or not prior.correlated:
            centred[list(random)] = False
    return centred


def warn_about_design(
    x: np.ndarray,
    names: tuple[str, ...],
    codes: np.ndarray | None,
    random: tuple[int, ...],
    *,
    noise: bool = True,
) -> None:
    """Warn of parameters that the data do not determine, so that their prior does.

    ``noise``: whether rows have noise of unknown size, which effects of single rows would hide.
    """
    n, q = x.shape
    constant = [names[j] for j in range(q) if names[j] != INTERCEPT and np.ptp(x[:, j]) == 0]
    if constant and INTERCEPT in names:
        _warn(f"column {_list(constant)} is constant, like the intercept")
    dependent = _dependent_columns(x, names)
    if dependent and not constant:
        _warn(f"column {_list(dependent)} is a linear combination of the columns before it")
    if n < q:
        _warn(f"there are fewer rows ({n}) than coefficients ({q})")
    if codes is None or not random:
        return
    number = codes.max() + 1
    if number == n and noise:
        _warn("every row is its own group, so that effects and noise cannot be told apart")
    elif random[0] == 0 and number <= q < n and _spans_groups(x, codes, number):
        _warn(
            "the inputs already give every group an intercept of its own, which leaves nothing "
            "for the effects to explain; leave the group column, or columns that are constant "
            "within groups, out of the inputs"
        )


def warn_about_origin(x: np.ndarray, names: tuple[str, ...], random: tuple[int, ...]) -> None:
    """Warn of columns so far from zero that intercepts and slopes by group nearly coincide.

    Their correlation is then close to 1 or -1, which a prior on raw columns hardly allows.
    """
    if 0 not in random or names[0] != INTERCEPT:
        return
    far = [names[j] for j in random[1:] if abs(x[:, j].mean()) > FAR * x[:, j].std() > 0]
    if far:
        warn(
            f"column {_list(far)} is far from zero, so that its effects correlate with those of "
            "the intercept, which refer to a value of 0. Centre the column, or use "
            "standardize=True (the default)."
        )


def _spans_groups(x: np.ndarray, codes: np.ndarray, number: int) -> bool:
    """Return whether indicators of all groups are linear combinations of the columns."""
    indicators = (codes[:, None] == np.arange(number)).astype(float)
    fitted = x @ np.linalg.lstsq(x, indicators, rcond=None)[0]
    return bool(np.abs(fitted - indicators).max() < 1e-7)


def warn_about_separation(
    x: np.ndarray, names: tuple[str, ...], y: np.ndarray, support: Support
) -> None:
    """Warn of columns whose coefficient could grow without end: y is at an end of its support in
    all rows on one side of a value, and at the other end, if there is one, in all on the other.

    Two classes may be told apart by a column, or all rows of one level be of the same class, or all
    its counts 0. Counts between the ends have to share the value.
    """
    low, high = y == support.low, y == support.high
    below, above = x[~high], x[~low]
    if not (len(below) and len(above)):
        return
    ends = (below.max(axis=0), above.min(axis=0)), (above.max(axis=0), below.min(axis=0))
    copies = _copies(x, names, y)  # these are warned of as such

    def listed(found: np.ndarray) -> list[str]:
        each = zip(names, found & (np.ptp(x, axis=0) > 0), strict=True)
        return [name for name, sure in each if sure and name not in copies]

    apart, touching = (
        np.any([compare(most, least) for most, least in ends], axis=0)
        for compare in (np.less, np.less_equal)
    )
    if found := listed(apart):
        _warn(
            f"the classes are separated without error by {_list(found)}, whose coefficient could "
            "be arbitrarily large; leave the column out if it follows from the response, or "
            f"{OWN_PRIOR}"
        )
    if found := listed(touching & ~apart):
        _warn(
            f"all rows at one end of {_list(found)} have the same response, so that the "
            "coefficient could be arbitrarily large; merge the level with another if it is rare, "
            f"or {OWN_PRIOR}"
        )


def warn_about_one_class(y: np.ndarray, codes: np.ndarray, group: Any) -> None:
    """Warn if every group has rows of one class only: the spread of the effects has no bound."""
    if not varies_within(y, codes):
        _warn(
            f"every group of {group!r} has rows of one class only, so that the sd of the effects "
            "could be arbitrarily large; state a prior that you can justify "
            "(priors=Priors(effects=HalfT(3, 1.0)))"
        )


def warn_about_prior(
    x: np.ndarray, names: tuple[str, ...], y: np.ndarray, prior_sd: np.ndarray
) -> None:
    """Warn of columns so similar that the prior keeps their coefficients from what the data say.

    With sums of squares r at the least squares fit and p at the prior's ridge, the prior costs
    ``(p - r) / s^2``, twice a log likelihood. A column and its square far from zero are an example:
    their difference bends the curve, and only huge coefficients of opposite sign reach it.
    ``x`` and ``y`` are standardised.
    """
    spare = len(x) - x.shape[1]
    if spare < 1:
        return
    triangle = np.asarray(np.linalg.qr(np.column_stack([x, y]), mode="r"))
    root, seen, rest = triangle[:-1, :-1], triangle[:-1, -1], triangle[-1, -1]
    noise = np.sqrt(max(rest**2, 1e-20 * (y @ y)) / spare)
    free = np.linalg.lstsq(root, seen, rcond=1e-12)[0]
    ridge = np.concatenate([root, np.diag(noise / prior_sd)])
    held = np.linalg.lstsq(ridge, np.append(seen, np.zeros(len(free))), rcond=None)[0]
    loss = np.sum((root @ held - seen) ** 2) - np.sum((root @ free - seen) ** 2)
    # By how much its likeness to the others widens what is known of a column's coefficient.
    likeness = np.sum(np.linalg.pinv(root, rcond=1e-12) ** 2, axis=1) * np.sum(x**2, axis=0)
    apart = (np.abs(free) > 2 * prior_sd) & (likeness > ALIKE)
    far = [name for name, found in zip(names, apart, strict=True) if found]
    if loss > MOST_LOST * noise**2 and far:
        warn(
            f"columns {_list(far)} are nearly the same, or nearly combinations of one another. The "
            "fit needs coefficients larger than their prior allows, and is worse than it could be. "
            "Centre such columns before powers and products are taken (I((x - 2000)**2) or "
            "poly(x, 2) instead of I(x**2)), leave some out, or state a wider prior: "
            "priors=Priors(coef_sd=...)."
        )


def warn_about_meaning(
    x: np.ndarray,
    names: tuple[str, ...],
    y: np.ndarray,
    labels: np.ndarray | None,
    *,
    group: Any,
    discrete: bool,
) -> None:
    """Warn of data that can be fitted but were probably not meant that way.

    ``x`` are the columns whose coefficients are estimated, ``labels`` the group labels of the rows.
    ``discrete`` says that the response holds whole numbers or classes.
    """
    for name in _copies(x, names, y):
        warn(
            f"column {name!r} is the response itself, up to a factor and a shift. If the target "
            "was left among the inputs, remove it."
        )
    if not discrete and np.isin(y, (0, 1)).all():
        warn(
            "y holds only 0 and 1 but is treated as a measurement with Gaussian noise. For two "
            "classes use MixedClassifier, or response='logit' (or 'probit') with a formula."
        )
    if labels is not None and labels.dtype.kind == "f":
        levels = len(np.unique(labels))
        if levels > len(y) / 2:
            warn(
                f"group column {group!r} looks like a measurement: it has {levels} different "
                f"numbers in {len(y)} rows. Name the column that says which rows belong together."
            )


def _copies(x: np.ndarray, names: tuple[str, ...], y: np.ndarray) -> list[str]:
    """Return the columns that are exactly linear in the response, none if there are few rows."""
    if len(y) < FEWEST_ON_A_LINE:
        return []
    columns, response = x - x.mean(axis=0), y - y.mean()
    square = np.einsum("ij,ij->j", columns, columns) * (response @ response)
    same = (response @ columns) ** 2 >= (1 - 1e-12) * square
    return [name for name, s, size in zip(names, same, square, strict=False) if s and size > 0]


def _warn(reason: str) -> None:
    warn(f"{reason}: some parameters are determined by the prior alone.")


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names))


def _dependent_columns(x: np.ndarray, names: tuple[str, ...]) -> list[str]:
    """Return the columns that are linear combinations of those before them."""
    norms = np.linalg.norm(x, axis=0)
    used = np.flatnonzero(norms > 0)
    if not 0 < len(used) <= len(x):
        return []
    unit = x[:, used] / norms[used]
    # No diagonal entry of the triangle is below its least singular value.
    if np.linalg.eigvalsh(unit.T @ unit)[0] > SURELY_APART:
        return []
    diagonal = np.abs(np.diagonal(np.linalg.qr(unit, mode="r")))
    return [names[j] for j, d in zip(used, diagonal, strict=True) if d < 1e-7]


def robust_unit(x: np.ndarray) -> float:
    """Return the interquartile range as an sd; if it is 0, the median distance of other cells.

    Other cells are those that differ from the median.
    """
    low, middle, high = np.quantile(x, [0.25, 0.5, 0.75])
    if high > low:
        return float(high - low) / OF_NORMAL
    off = x[x != middle]
    return float(np.median(np.abs(off - middle))) if len(off) else 0.0


def is_heavy(x: np.ndarray) -> bool:
    """Return whether a column has heavy tails, so that a network should see its asinh."""
    unit = robust_unit(x)
    return unit > 0 and x.std() >= HEAVY * unit and len(np.unique(x)) > FEW_VALUES


def tamed(network: Trunk, x: np.ndarray) -> Trunk:
    """Return the network with asinh before its inputs with heavy tails, learnt from rows ``x``."""
    columns = tuple(j for j in range(x.shape[1]) if is_heavy(x[:, j]))
    if not columns:
        return network
    centre = np.median(x[:, columns], axis=0)
    unit = np.array([robust_unit(x[:, j]) for j in columns])
    seen = np.arcsinh((x[:, columns] - centre) / unit)
    learnt = (centre, unit, seen.mean(axis=0), seen.std(axis=0))
    return Tamed(network, columns, *map(jnp.asarray, learnt))
