"""When a statement of the paper reproduces.

A statement that one method is better than another is compared data set by data set::

    Reproduces                    the paper's sign in a majority that is not due to chance (sign
                                  test, 5 %), and a median difference of half to twice the paper's
    Reproduces in direction only  the same, but the difference is smaller or larger than that
    Does not reproduce            the other sign, in a majority that is not due to chance
    Undecided                     ten data sets or more, and no such majority
    Too few data sets             fewer than ten

Statements about scores on the single panel of returns need two standard errors (by blocks of
months). An explanation that the paper gives does not reproduce if its own numbers contradict it.
"""

from collections.abc import Mapping

import pandas as pd
from scipy.stats import binomtest

from nghvi.paper.studies.store import Row

YES, SIGN, NO = "Reproduces", "Reproduces in direction only", "Does not reproduce"
OPEN, FEW = "Undecided", "Too few data sets"
LABELS = (YES, SIGN, NO, OPEN, FEW)
FEWEST_TO_TELL, CHANCE, FACTOR, ERRORS = 10, 0.05, 2.0, 2.0
"""Data sets, level of the sign test, how far sizes may differ, standard errors that count."""
Held = Mapping[str, list[Row]]
"""Rows of all studies by name."""
Gains = Mapping[str, tuple[float, float]]
"""Differences on the panel with their standard errors, by what they are differences of."""


def label(ours: pd.Series, theirs: float) -> str:
    """By the rule above; ``ours`` are differences on data sets, ``theirs`` the paper's."""
    if len(ours) < FEWEST_TO_TELL:
        return FEW
    wins = int((ours * theirs > 0).sum())
    if binomtest(wins, len(ours)).pvalue > CHANCE:
        return OPEN
    if 2 * wins < len(ours):
        return NO
    return YES if 1 / FACTOR <= ours.median() / theirs <= FACTOR else SIGN


def any_better(gains: Gains) -> bool:
    """Whether anything is better than what it is compared with."""
    return any(gain > ERRORS * se for gain, se in gains.values())


def panel_label(gains: Gains) -> str:
    """The label of a statement that something is better, with every set of factors."""
    if all(gain > ERRORS * se for gain, se in gains.values()):
        return YES
    return OPEN if any(gain > 0 for gain, _ in gains.values()) else NO
