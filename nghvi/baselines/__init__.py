"""Other methods for the same models and data, to judge the library's fits against."""

import functools
from collections.abc import Callable

from nghvi.baselines.davi import DaviFit as DaviFit
from nghvi.baselines.davi import davi as davi
from nghvi.baselines.davi import davi_fit as davi_fit
from nghvi.baselines.gibbs import GibbsDraws as GibbsDraws
from nghvi.baselines.gibbs import gibbs as gibbs
from nghvi.baselines.least_squares import least_squares as least_squares
from nghvi.infer import Inference

BASELINES: dict[str, Callable[..., Inference]] = {
    "davi": davi,
    "davi-published": functools.partial(davi, legacy=True),
    "least-squares": least_squares,
}
"""By the name under which an estimator's ``method`` knows them: (model, rows, seed=, steps=)."""
