"""Inputs with heavy tails: which ones a network sees by asinh, and in which units.

A column that a few cells stretch is flat for a network: standardised by its sd, nearly all rows
are at one place. The network therefore sees ``asinh((x - median) / unit)``, which is a straight
line in the middle and a logarithm in the tails. Coefficients of the inputs beside the network are
those of the columns themselves.
"""

import jax.numpy as jnp
import numpy as np

from nghvi.networks import Tamed, Trunk

HEAVY = 1.5
"""An sd of so many robust units or more is one of heavy tails."""
FEW_VALUES = 10
"""Columns of fewer different values are codes, whatever their sd."""
OF_NORMAL = 1.349
"""The interquartile range of a normal, in sds."""


def robust_unit(x: np.ndarray) -> float:
    """The interquartile range as an sd; where it is 0, that of the cells off the median."""
    low, middle, high = np.quantile(x, [0.25, 0.5, 0.75])
    if high > low:
        return float(high - low) / OF_NORMAL
    off = x[x != middle]
    return float(np.median(np.abs(off - middle))) if len(off) else 0.0


def is_heavy(x: np.ndarray) -> bool:
    """Whether a network should see a column by asinh."""
    unit = robust_unit(x)
    return unit > 0 and x.std() >= HEAVY * unit and len(np.unique(x)) > FEW_VALUES


def tamed(network: Trunk, x: np.ndarray) -> Trunk:
    """The network, told which of its inputs have heavy tails; ``x``: training rows."""
    columns = tuple(j for j in range(x.shape[1]) if is_heavy(x[:, j]))
    if not columns:
        return network
    centre = np.median(x[:, columns], axis=0)
    unit = np.array([robust_unit(x[:, j]) for j in columns])
    seen = np.arcsinh((x[:, columns] - centre) / unit)
    learnt = (centre, unit, seen.mean(axis=0), seen.std(axis=0))
    return Tamed(network, columns, *map(jnp.asarray, learnt))
