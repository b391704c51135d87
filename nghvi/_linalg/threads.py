"""LAPACK on one thread: waking a second one costs more than it gains, on a busy machine tenfold."""

import functools
import importlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
Out = TypeVar("Out")


def one_thread(function: Callable[P, Out]) -> Callable[P, Out]:
    """Return the function, during whose calls LAPACK uses one thread."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> Out:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return alone


@functools.cache
def _controller() -> ThreadpoolController:
    """Look for the libraries once, which takes milliseconds."""
    importlib.import_module("scipy.linalg")  # it loads the LAPACK that JAX calls
    return ThreadpoolController()
