"""Fitted estimators and posteriors in files: ``save`` and ``load``, without pickle.

A file holds numbers and names, never code. All attributes of an estimator are kept, with one
exception: a ``random_state`` that is a generator object comes back as None, since a finished fit
has no use for its state. An interrupted fit can be resumed after loading.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from nghvi._core.errors import StorageError as StorageError
from nghvi._sklearn import Estimator
from nghvi.storage import file
from nghvi.storage.classes import class_named, hints_of, is_registered, misfit
from nghvi.storage.classes import register as register
from nghvi.storage.codec import decode, encode

ALTERED = "the file was altered; get another copy of it or fit again"

LATER_SETTINGS = {
    "skip": False,
    "scaling": "plain",
    **dict.fromkeys(("trials", "exposure", "censored", "weights")),
}
"""Settings that the first files lack, and what was done then."""


def save(fitted: Any, path: str | os.PathLike) -> None:
    """Write a fitted estimator, or a ``Posterior``, to ``path``; an existing file is replaced."""
    kind = type(fitted)
    if not is_registered(kind):
        raise StorageError(
            f"{kind.__name__} is not an estimator of nghvi: call nghvi.storage.register"
            f"({kind.__name__}), before saving and before loading."
        )
    if not isinstance(fitted, Estimator):
        described, arrays = encode(fitted)
        file.write(path, {"posterior": described}, arrays)
        return
    attributes, arrays = encode({k: _lasting(v) for k, v in vars(fitted).items()})
    file.write(path, {"estimator": kind.__name__, "attributes": attributes}, arrays)


def load(path: str | os.PathLike) -> Any:
    """Return the estimator or the ``Posterior`` that was saved to ``path``, ready to predict.

    Classes of your own must be registered first (:func:`register`): the file only names them.
    """
    stored = file.read(path)
    try:
        if isinstance(stored.model, dict) and stored.model.keys() == {"posterior"}:
            return _checked(decode(stored.model["posterior"], stored.arrays))
        return _estimator(stored)
    except StorageError as error:
        raise StorageError(f"{path} (saved by nghvi {stored.library_version}): {error}") from error


def _lasting(value: Any) -> Any:
    return None if isinstance(value, np.random.RandomState | np.random.Generator) else value


def _estimator(stored: file.Stored) -> Any:
    if not isinstance(stored.model, dict) or stored.model.keys() != {"estimator", "attributes"}:
        raise StorageError("the file holds no estimator.")
    kind: Any = class_named(stored.model["estimator"])
    if not issubclass(kind, Estimator):
        raise StorageError(f"{kind.__name__} is not an estimator.")
    attributes = decode(stored.model["attributes"], stored.arrays)
    if not isinstance(attributes, dict):
        raise StorageError(f"the file holds no attributes of {kind.__name__}.")
    for name in LATER_SETTINGS.keys() & kind._get_param_names():
        attributes.setdefault(name, LATER_SETTINGS[name])
    _check_names(kind, attributes)
    # The constructor could only set what is set here.
    estimator: Any = object.__new__(kind)
    with _altered_if_it_fails():
        estimator.__setstate__(attributes)
    _check_learnt(kind, vars(estimator))
    return estimator


def _check_names(kind: Any, attributes: dict[str, Any]) -> None:
    parameters = set(kind._get_param_names())
    missing = parameters - attributes.keys()
    unknown = {name for name in attributes.keys() - parameters if not _is_fitted_name(name)}
    if missing or unknown:
        named = ", ".join(sorted(missing | unknown))
        raise StorageError(
            f"{kind.__name__} has other parameters here than in the file ({named}): it was made "
            "by another version of nghvi; load it with that version or fit again."
        )


def _check_learnt(kind: Any, attributes: dict[str, Any]) -> None:
    learnt = {name for name in hints_of(kind) if _is_fitted_name(name)}
    if lost := sorted(learnt - attributes.keys()):
        raise StorageError(f"{kind.__name__} lacks {', '.join(lost)}: {ALTERED}.")
    if wrong := misfit(kind, {name: attributes[name] for name in learnt}):
        held = type(attributes[wrong]).__name__
        raise StorageError(f"{wrong} of {kind.__name__} holds a {held}: {ALTERED}.")
    if hasattr(posterior := attributes.get("posterior_"), "check"):
        _checked(posterior)


def _checked(posterior: Any) -> Any:
    """Return the posterior if its parts fit together, else raise an error."""
    if not hasattr(posterior, "check"):
        raise StorageError(f"the file holds a {type(posterior).__name__}, not a posterior.")
    with _altered_if_it_fails():
        posterior.check()
    return posterior


@contextlib.contextmanager
def _altered_if_it_fails() -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except Exception as error:  # whatever does not fit together fails in its own way
        reason = str(error).split("\n")[0]
        raise StorageError(f"its parts do not fit together ({reason}): {ALTERED}.") from error


def _is_fitted_name(name: str) -> bool:
    return (name.endswith("_") or name.startswith("_")) and not name.startswith("__")
