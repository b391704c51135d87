"""Whether a value from a file is of the kind that the annotation of its field says.

A file with the right checksums may still have been written by another program, or by hand. What an
annotation does not tell (``Any``, a protocol, a name of ours for something untyped) is let pass.
"""

import functools
import numbers
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import AbstractArray

KINDS: dict[type, tuple[type, ...]] = {
    float: (numbers.Real, np.number, np.ndarray, jax.Array),
    int: (numbers.Integral, np.number, np.ndarray, jax.Array),
    bool: (bool, np.bool_, np.ndarray, jax.Array),
    str: (str,),
    type(None): (type(None),),
}
"""What a field of a plain type may hold: numbers may be arrays of one number."""


@functools.cache
def hints_of(cls: type) -> Mapping[str, Any]:
    """Annotations of a class by field; none if they cannot be told."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return {}


def misfit(cls: type, fields: Mapping[str, Any]) -> str | None:
    """The first field whose value is of another kind than its annotation."""
    hints = hints_of(cls)
    return next((name for name, v in fields.items() if not fits(v, hints.get(name, Any))), None)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value may be what the annotation says."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return _fits_tuple(value, arguments)
    if origin in (list, Sequence):
        return isinstance(value, list | tuple) and all(
            fits(each, arguments[0] if arguments else Any) for each in value
        )
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(
            fits(key, arguments[0]) and fits(each, arguments[1]) for key, each in value.items()
        )
    if isinstance(hint, typing.TypeVar):
        return hint.__bound__ is None or fits(value, hint.__bound__)
    if isinstance(origin, type):  # a class of ours with parameters
        return isinstance(value, origin)
    if hint is Any or not isinstance(hint, type):
        return True
    if hint in KINDS:
        single = not isinstance(value, np.ndarray | jax.Array) or value.ndim == 0
        return isinstance(value, KINDS[hint]) and single and (hint is bool or value is not True)
    if issubclass(hint, AbstractArray):
        return _fits_array(value, hint)
    if getattr(hint, "_is_protocol", False):
        return True
    return isinstance(value, hint)


def _fits_tuple(value: Any, arguments: tuple[Any, ...]) -> bool:
    if not isinstance(value, tuple):
        return False
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return all(fits(each, arguments[0]) for each in value)
    return len(value) == len(arguments) and all(map(fits, value, arguments))


def _fits_array(value: Any, hint: Any) -> bool:
    """An array with as many dimensions, or more where several are kept as one."""
    if isinstance(value, numbers.Number):
        return not hint.dims
    return isinstance(value, np.ndarray | jax.Array) and value.ndim >= len(hint.dims)
