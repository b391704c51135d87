"""Other methods for the same models and data, to judge the library's fits against.

Each is loaded when it is asked for: a fit by the library's own method does not wait for them.
"""

import functools
from collections.abc import Callable
from typing import Any

from nghvi.inference import Inference


def _davi(*arguments: Any, **settings: Any) -> Inference:
    from nghvi.paper.methods.davi import davi

    return davi(*arguments, **settings).inference


def _nagvac(*arguments: Any, **settings: Any) -> Inference:
    from nghvi.paper.methods.nagvac import nagvac

    return nagvac(*arguments, **settings).inference


def _least_squares(*arguments: Any, **settings: Any) -> Inference:
    from nghvi.paper.methods.least_squares import least_squares

    return least_squares(*arguments, **settings)


STOPPED_BY_VALIDATION: dict[str, Callable[..., Inference]] = {
    "nagvac": _nagvac,
    "nagvac-published": functools.partial(_nagvac, legacy=True),
    "nagvac-program": functools.partial(_nagvac, legacy=True, mistakes=True),
}
"""Methods that take ``validation=`` rows."""
BASELINES: dict[str, Callable[..., Inference]] = {
    "davi": _davi,
    "davi-published": functools.partial(_davi, legacy=True),
    "least-squares": _least_squares,
    **STOPPED_BY_VALIDATION,
}
"""By the name that an estimator's ``method`` takes; called with (model, rows, seed=, steps=)."""
