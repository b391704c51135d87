"""The models of simulation-based calibration, and the shapes of their data."""

import dataclasses
import hashlib
from typing import NamedTuple

import numpy as np

from benchmarks.sbc_responses import SIMULATED
from nghvi.priors import HalfT, HuangWand, Priors

EFFECTS = HuangWand(df=2.0, scale=0.7)
PRIORS = Priors(coef_sd=1.0, noise=HalfT(df=3.0, scale=0.7), effects=EFFECTS)
"""Stated on the raw scale, and narrower than the defaults: most data sets tell something, and the
tails are those of the defaults."""


class Factor(NamedTuple):
    """A grouping factor of some rows."""

    name: str
    codes: np.ndarray
    """The level of every row."""
    levels: int
    effects: int
    """The first so many columns have coefficients that differ between levels."""
    suffix: str = ""
    """Of the names of what is ranked; empty if the model has no other factor."""

    @property
    def table(self) -> str:
        """The name of the effects among posterior draws."""
        return f"effects[{self.name}]" if self.suffix else "effects"

    @property
    def covariance(self) -> str:
        """The name of the effects' covariance among posterior draws."""
        return f"effects_cov[{self.name}]" if self.suffix else "effects_cov"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A model and the shape of its data."""

    name: str
    words: str
    response: str
    groups: int
    size: int
    """Rows per group."""
    columns: int
    """Of the design, intercept included."""
    effects: int
    """The first so many columns have group-specific coefficients."""
    latents: str = "auto"
    priors: Priors = PRIORS

    @property
    def group(self) -> np.ndarray:
        return np.repeat(np.arange(self.groups), self.size)

    @property
    def factors(self) -> tuple[Factor, ...]:
        return (Factor("g", self.group, self.groups, self.effects),)

    @property
    def design(self) -> np.ndarray:
        """The same for all replications."""
        rng = np.random.default_rng([self.groups, self.size, self.columns])
        covariates = rng.standard_normal((self.groups * self.size, self.columns - 1))
        return np.column_stack([np.ones(len(covariates)), covariates])

    @property
    def terms(self) -> list[str]:
        return ["intercept", *(f"x{j}" for j in range(1, self.columns))]

    @property
    def fingerprint(self) -> str:
        """Changes with the model, so that lines of another one are not counted."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]


@dataclasses.dataclass(frozen=True)
class TwoFactors(Cell):
    """A model with a second factor, of intercepts alone."""

    others: int = 8
    """Levels of the second factor."""
    nested: bool = False
    """Whether every group belongs to one level of it; otherwise rows are spread at random."""

    @property
    def other(self) -> np.ndarray:
        """The second factor's level of every row; rows are spread evenly over its levels."""
        even = np.arange(self.groups * self.size) * self.others // (self.groups * self.size)
        return even if self.nested else np.random.default_rng(self.others).permutation(even)

    @property
    def factors(self) -> tuple[Factor, ...]:
        return (
            Factor("g", self.group, self.groups, self.effects, " | g"),
            Factor("h", self.other, self.others, 1, " | h"),
        )


CELLS = (
    Cell("lmm", "Gaussian, 30 groups", "gaussian", 30, 6, 3, 1),
    Cell("few groups", "Gaussian, 12 groups, two effects", "gaussian", 12, 8, 3, 2),
    Cell("four effects", "Gaussian, 30 groups, four effects", "gaussian", 30, 10, 4, 4),
    Cell("student-t", "Student-t, 30 groups", "student-t", 30, 8, 3, 1),
    Cell("probit", "probit, 40 groups", "probit", 40, 8, 3, 1),
    Cell("logit", "logit, 40 groups, two effects", "logit", 40, 8, 3, 2),
    Cell("drawn effects", "probit, 40 groups, effects drawn", "probit", 40, 8, 3, 1, "sample"),
    *(Cell(name, f"{name}, 12 groups", name, 12, 6, 2, 1) for name in SIMULATED),
    TwoFactors(
        "crossed gaussian",
        "Gaussian, 24 x 8 crossed levels, a slope by the first",
        *("gaussian", 24, 8, 3, 2),
    ),
    TwoFactors(
        "nested gaussian", "Gaussian, 24 levels nested in 8", "gaussian", 24, 6, 3, 1, nested=True
    ),
    TwoFactors("crossed logit", "logit, 40 x 8 crossed levels", "logit", 40, 8, 3, 1),
)
