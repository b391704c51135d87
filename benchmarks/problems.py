"""The simulated problems. A name, a size and a seed determine every number.

    lmm     1000 groups of 5 rows, random intercept, 5 covariates (Example 1 of the paper)
    lmm3    1000 groups of 8 rows, correlated random intercept and two slopes
    probit  1000 groups of 14 rows, binary response, random intercept, 3 covariates

Only numpy is imported: a method's cold time must not contain another package's imports.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

SIZES = {"full": 1000, "small": 50}
"""Number of groups by size; "small" is for smoke tests."""

COEF_SD = 10.0
VARIANCE_SHAPE = 1.01
VARIANCE_SCALE = 1.01
WISHART_SCALE = 1.0
"""The priors, the same for every method that takes priors: N(0, 10^2) for coefficients,
InverseGamma(1.01, 1.01) for the noise variance and for the variance of a single random effect,
and for r > 1 effects Omega^-1 ~ Wishart(I, r + 1)."""

CORRELATION = np.array(
    [
        [1.0, 0.0, -0.5, 0.2, 0.0],
        [0.0, 1.0, 0.0, -0.5, 0.2],
        [-0.5, 0.0, 1.0, 0.0, -0.5],
        [0.2, -0.5, 0.0, 1.0, 0.0],
        [0.0, 0.2, -0.5, 0.0, 1.0],
    ]
)
"""Of the covariates of Example 1."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One data set and the model to fit to it."""

    name: str
    response: str
    """``"gaussian"`` or ``"probit"``."""
    x: np.ndarray
    """Covariates, without the column of ones."""
    y: np.ndarray
    group: np.ndarray
    """Group codes from 0 to ``num_groups - 1``."""
    random: tuple[int, ...]
    """Columns of :attr:`design` with group-specific coefficients."""

    @property
    def num_groups(self) -> int:
        return int(self.group[-1]) + 1

    @property
    def num_effects(self) -> int:
        return len(self.random)

    @property
    def covariates(self) -> list[str]:
        return [f"x{i + 1}" for i in range(self.x.shape[1])]

    @property
    def terms(self) -> list[str]:
        """Names of the columns of the design."""
        return ["intercept", *self.covariates]

    @property
    def random_terms(self) -> list[str]:
        return [self.terms[i] for i in self.random]

    @property
    def design(self) -> np.ndarray:
        """Covariates with the column of ones in front."""
        return np.column_stack([np.ones(len(self.y)), self.x])

    @property
    def parameters(self) -> list[str]:
        """What is compared, in the order in which every method reports it."""
        names = [f"coef {t}" for t in self.terms]
        names += [f"log variance {t}" for t in self.random_terms]
        return names + (["log variance noise"] if self.response == "gaussian" else [])

    @property
    def fingerprint(self) -> str:
        """Changes with any number of the data or the priors; guards the cached references."""
        priors = np.array([COEF_SD, VARIANCE_SHAPE, VARIANCE_SCALE, WISHART_SCALE])
        digest = hashlib.sha256()
        for array in (self.x, self.y, self.group, np.array(self.random), priors):
            # Rounded, so that the last bits of another machine's arithmetic do not matter.
            digest.update(np.round(np.asarray(array, float), 8).tobytes())
        return digest.hexdigest()[:16]

    def frame(self) -> "pd.DataFrame":
        """Covariates and the group column ``g``."""
        import pandas as pd

        return pd.DataFrame(self.x, columns=self.covariates).assign(g=self.group)


def _linear(rng: np.random.Generator, groups: int) -> Problem:
    group = np.repeat(np.arange(groups), 5)
    x = rng.standard_normal((len(group), 5)) @ np.linalg.cholesky(CORRELATION).T
    coef = np.array([0.8292, -1.3250, 0.9909, 1.6823, -1.7564, 0.0580])
    effects = rng.standard_normal(groups)
    y = coef[0] + x @ coef[1:] + effects[group] + rng.standard_normal(len(group))
    return Problem("lmm", "gaussian", x, y, group, (0,))


def _correlated(rng: np.random.Generator, groups: int) -> Problem:
    group = np.repeat(np.arange(groups), 8)
    x = rng.standard_normal((len(group), 3))
    coef = np.array([1.0, 0.8, -0.5, 0.3])
    omega = np.array([[1.0, 0.3, -0.2], [0.3, 0.5, 0.1], [-0.2, 0.1, 0.3]])
    effects = rng.standard_normal((groups, 3)) @ np.linalg.cholesky(omega).T
    design = np.column_stack([np.ones(len(group)), x])
    varying = np.sum(design[:, :3] * effects[group], axis=1)
    y = design @ coef + varying + rng.standard_normal(len(group))
    return Problem("lmm3", "gaussian", x, y, group, (0, 1, 2))


def _probit(rng: np.random.Generator, groups: int) -> Problem:
    group = np.repeat(np.arange(groups), 14)
    x = rng.standard_normal((len(group), 3))
    coef = np.array([0.2, 0.7, -0.5, 0.3])
    effects = rng.standard_normal(groups)
    eta = coef[0] + x @ coef[1:] + effects[group]
    y = (rng.standard_normal(len(group)) < eta).astype(float)
    return Problem("probit", "probit", x, y, group, (0,))


GENERATORS: dict[str, Callable[[np.random.Generator, int], Problem]] = {
    "lmm": _linear,
    "lmm3": _correlated,
    "probit": _probit,
}


def simulate(name: str, size: str = "full", seed: int = 1) -> Problem:
    """The data set of this name; another seed gives another one of the same shape."""
    stream = np.random.default_rng([seed, list(GENERATORS).index(name)])
    return GENERATORS[name](stream, SIZES[size])
