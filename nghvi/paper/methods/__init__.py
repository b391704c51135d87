"""Other methods for the same models and data, to judge the library's fits against."""

import functools
from collections.abc import Callable
from typing import Any

from nghvi.inference import Inference
from nghvi.paper.methods.davi import DaviFit as DaviFit
from nghvi.paper.methods.davi import davi as davi
from nghvi.paper.methods.gibbs import GibbsDraws as GibbsDraws
from nghvi.paper.methods.gibbs import gibbs as gibbs
from nghvi.paper.methods.least_squares import least_squares as least_squares
from nghvi.paper.methods.nagvac import NagvacFit as NagvacFit
from nghvi.paper.methods.nagvac import nagvac as nagvac


def _davi(*arguments: Any, **settings: Any) -> Inference:
    return davi(*arguments, **settings).inference


def _nagvac(*arguments: Any, **settings: Any) -> Inference:
    return nagvac(*arguments, **settings).inference


STOPPED_BY_VALIDATION: dict[str, Callable[..., Inference]] = {
    "nagvac": _nagvac,
    "nagvac-published": functools.partial(_nagvac, legacy=True),
}
"""These take ``validation=`` rows."""
BASELINES: dict[str, Callable[..., Inference]] = {
    "davi": _davi,
    "davi-published": functools.partial(_davi, legacy=True),
    "least-squares": least_squares,
    **STOPPED_BY_VALIDATION,
}
"""By the name under which an estimator's ``method`` knows them: (model, rows, seed=, steps=)."""
