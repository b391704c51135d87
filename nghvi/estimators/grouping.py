"""The grouping factors of an estimator: how they are chosen, and which designs are refused."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from nghvi._core.errors import short, warn
from nghvi._core.response import Response
from nghvi.data.elimination import Pattern
from nghvi.data.frame import Column, DataError, Group

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

MOST_SHOWN = 3
"""How many parts of a design, or levels of a part, a warning names."""


class Term(NamedTuple):
    """The effects of one grouping factor."""

    group: str
    random: Any
    """As in the setting: "auto", "intercept", "all" or names of features."""
    covariance: str


def chosen_group(group: Any) -> Group:
    """Return the setting as a column or a tuple of columns; a list of one is that column."""
    if not isinstance(group, list | tuple):
        if hasattr(group, "__len__") and not isinstance(group, str):
            raise DataError(
                f"group={short(group)}: give the name of a column, not its cells; labels that are "
                "not in X yet become a column of it, as in X.assign(group=labels)."
            )
        return group
    columns: tuple[Column, ...] = tuple(group)
    if not columns:
        raise DataError("group=[]: name one column or several, or use group=None for no groups.")
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise DataError(f"group={list(group)!r} names {twice!r} twice; name every factor once.")
    return columns[0] if len(columns) == 1 else columns


def terms_of(
    settings: "MixedEstimator", group: tuple[Column, ...], pooled: tuple[str, ...] = ()
) -> tuple[Term, ...]:
    """Return the terms of settings without a formula, one per factor.

    ``pooled``: categories that become factors with intercepts.
    """
    random = settings.random
    if not (group or pooled) and not (isinstance(random, str) and random == "auto"):
        random = dict(random) if isinstance(random, Mapping) else random
        raise DataError(
            f"random={random!r}: there is no grouping factor; name one by group=, or leave random "
            "out."
        )
    return tuple(
        Term(str(name), random_of(settings.random, group, name), settings.covariance)
        for name in group
    )


def random_of(random: Any, group: tuple[Column, ...], factor: Column) -> Any:
    """Return the setting ``random`` of one factor, given by its name or for all factors."""
    if not isinstance(random, Mapping):
        return random
    known = [str(each) for each in group]
    unknown = [key for key in random if str(key) not in known]
    if unknown:
        raise DataError(
            f"random={dict(random)!r}: {unknown[0]!r} is not among the grouping factors, which are "
            f"{', '.join(map(repr, known))}."
        )
    return {str(key): value for key, value in random.items()}.get(str(factor), "auto")


def check_supported(
    settings: "MixedEstimator", terms: tuple[Term, ...], deep: bool, response: Response
) -> None:
    """Raise an error if settings cannot be combined with several factors."""
    if len(terms) < 2:
        return
    factors = " and ".join(repr(term.group) for term in terms)
    if deep and not response.conjugate:
        raise DataError(
            f"hidden layers with several grouping factors ({factors}) need a Gaussian response "
            f"without weights, not {response.name!r}; keep one factor, or leave out hidden (and "
            "trunk)."
        )
    given: dict[str, Any] = {"method": "auto", "batch_groups": None, "devices": None}
    if not response.conjugate:
        given["latents"] = "auto"
    for name, usual in given.items():
        value = getattr(settings, name)
        if value != usual and not (name == "batch_groups" and value == "auto"):
            raise DataError(
                f"{name}={value!r} with several grouping factors ({factors}) is not supported; "
                f"leave {name} out, or keep one factor."
            )


def check_design(
    codes: np.ndarray,
    terms: tuple[Term, ...],
    random: tuple[tuple[int, ...], ...],
    groups: Mapping,
    *,
    noise: bool = True,
) -> None:
    """Refuse factors that cannot be told apart, and warn of designs that were probably not meant.

    ``codes`` are the levels of every row, ``random`` the columns with effects of every factor.
    ``noise``: whether rows have noise of unknown size, which effects of single rows would hide.
    """
    levels = [len(groups[term.group]) for term in terms]
    for f, term in enumerate(terms):
        if noise and levels[f] == len(codes):
            warn(
                f"group column {term.group!r}: every row is its own group, so that its effects and "
                "noise cannot be told apart: some parameters are determined by the prior alone."
            )
        for g in range(f):
            _check_pair(codes[:, g], codes[:, f], (terms[g], term), groups)
            same = set(random[f]) & set(random[g])
            cells = len(Pattern.of(codes[:, f], codes[:, g], levels[g]).keys)
            if same and levels[f] == levels[g] == cells:
                raise DataError(
                    f"the factors {terms[g].group!r} and {term.group!r} divide the rows in the "
                    "same way, so that their effects cannot be told apart; leave one of them out."
                )


def _check_pair(
    first: np.ndarray, second: np.ndarray, terms: tuple[Term, Term], groups: Mapping
) -> None:
    """Warn if the levels of two crossed factors fall into parts that never meet."""
    names = [term.group for term in terms]
    sizes = [len(groups[name]) for name in names]
    meeting = coo_array((np.ones(len(first)), (first, sizes[0] + second)), shape=(sum(sizes),) * 2)
    number, part = connected_components(meeting, directed=False)
    if number == 1 or number >= min(sizes):  # connected, or one nested in the other
        return
    shown = []
    for each in range(min(number, MOST_SHOWN)):
        one, other = (
            _listed(groups[name][inside == each])
            for name, inside in zip(names, np.split(part, [sizes[0]]), strict=True)
        )
        shown.append(f"{names[0]} {one} with {names[1]} {other}")
    more = f"; and {number - MOST_SHOWN} more" if number > MOST_SHOWN else ""
    warn(
        f"levels of {names[0]!r} and {names[1]!r} fall into {number} parts that never meet "
        f"({'; '.join(shown)}{more}), so that only the variances of the factors decide how "
        "differences between parts are divided among them."
    )


def _listed(labels: np.ndarray) -> str:
    more = ", ..." if len(labels) > MOST_SHOWN else ""
    return ", ".join(map(str, labels[:MOST_SHOWN])) + more
