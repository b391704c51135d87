"""Arrays of any fixed-width dtype as tensors that a safetensors file can hold, and back.

Numbers are stored as what they are. Text, dates, complex numbers and foreign byte orders are
stored as their bytes; the description beside them says what the bytes mean.
"""

import math
from typing import Any

import numpy as np

from nghvi.storage.errors import StorageError

PLAIN = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    }
)
"""Dtypes that safetensors has itself."""
FIXED_WIDTH = "biufcSUMm"
"""Kinds of dtypes whose elements are their bytes: never objects, which are addresses."""


def pack(array: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Description and tensor of an array."""
    if array.dtype.kind not in FIXED_WIDTH:
        raise StorageError(f"arrays of {array.dtype} cannot be saved; convert it first.")
    # The memory order is kept: a matrix product may differ in its last bit with another one.
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    described = {"dtype": array.dtype.str, "shape": list(array.shape), "order": order}
    tensor = np.array(array.T if order == "F" else array, order="C")
    if not _is_plain(array.dtype):
        tensor = np.frombuffer(tensor.tobytes(), np.uint8)
    return described, tensor


def unpack(described: dict[str, Any], tensor: np.ndarray) -> np.ndarray:
    """The array, checked against its description."""
    dtype, shape = np.dtype(described["dtype"]), tuple(described["shape"])
    if dtype.kind not in FIXED_WIDTH:
        raise StorageError(f"arrays of {dtype} are not read from files.")
    stored_shape = shape[::-1] if described["order"] == "F" else shape
    if _is_plain(dtype):
        _require(tensor, dtype, stored_shape)
        values = tensor.copy()
    else:
        size = math.prod(shape) * dtype.itemsize
        _require(tensor, np.dtype(np.uint8), (size,))
        values = np.empty(stored_shape, dtype)
        if size:
            values[...] = np.frombuffer(tensor.tobytes(), dtype).reshape(stored_shape)
    return values.T if described["order"] == "F" else values


def _is_plain(dtype: np.dtype) -> bool:
    return dtype.name in PLAIN and dtype.isnative


def _require(tensor: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tensor.shape != shape:
        raise StorageError(
            f"an array should be {dtype} of shape {shape} but is {tensor.dtype} of shape "
            f"{tensor.shape}: the file is damaged; get another copy or save the model again."
        )
