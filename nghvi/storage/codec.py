"""From values to JSON and arrays, and back: numbers, text, labels, containers, known classes.

What JSON cannot express becomes an object with a tag: ``{"tuple": [...]}``, ``{"float": "nan"}``,
``{"array": name, ...}``, ``{"class": name, "fields": {...}}``. Plain dicts are tagged as well, so
a tag can never be mistaken for data.

Arrays become tensors that a safetensors file can hold. Numbers are stored directly; text, dates,
complex numbers and foreign byte orders are stored as bytes together with a description.
"""

import datetime
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from nghvi._core.errors import StorageError
from nghvi.storage.classes import class_named, fields_of, instance, is_registered

Json = Any
Arrays = dict[str, np.ndarray]
TEXT = np.dtypes.StringDType()
ROOT = "model"


def encode(value: Any) -> tuple[Json, Arrays]:
    """Return a JSON value and named arrays that together hold ``value``."""
    encoder = _Encoder()
    return encoder.encode(value, ROOT), encoder.arrays


def decode(value: Json, arrays: Arrays) -> Any:
    """Return what :func:`encode` was given."""
    try:
        return _Decoder(arrays).decode(value)
    except StorageError:
        raise
    except Exception as error:  # whatever is malformed fails in its own way
        raise StorageError(
            f"the model's description is malformed ({type(error).__name__}: {error}); it was made "
            "by another version of nghvi or by something else."
        ) from error


class _Encoder:
    """Collects the arrays while values turn into JSON; ``place`` names a value for people."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        # The array itself is kept beside its description: an id is unique only while it lives.
        self._seen: dict[int, tuple[Any, Json]] = {}

    def encode(self, value: Any, place: str) -> Json:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if type(value) is list:
            return self._each(value, place)
        if type(value) is tuple:
            return {"tuple": self._each(value, place)}
        if type(value) is dict:
            if all(type(key) is str for key in value):
                return {"dict": self._fields(value, place)}
            return {"pairs": self._each(list(value.items()), place)}
        if type(value) in (datetime.date, datetime.datetime):
            return {type(value).__name__: value.isoformat()}
        if isinstance(value, np.generic):
            return {"scalar": self._array(np.asarray(value), place)}
        if type(value) is np.ndarray or isinstance(value, jax.Array):
            return self._array(value, place)
        if type(value) is pd.DataFrame:
            return self._frame(value, place)
        if is_registered(type(value)):
            fields = self._fields(fields_of(value), place)
            return {"class": type(value).__name__, "fields": fields}
        raise StorageError(_refusal(value, place))

    def _each(self, values: Any, place: str) -> list[Json]:
        return [self.encode(value, f"{place}.{i}") for i, value in enumerate(values)]

    def _fields(self, values: dict, place: str) -> dict[str, Json]:
        for key in values:
            if type(key) is not str:
                raise StorageError(f"{place}: the key {key!r} cannot be saved; use text as keys.")
        return {key: self.encode(value, f"{place}.{key}") for key, value in values.items()}

    def _array(self, value: Any, place: str) -> Json:
        if id(value) in self._seen:
            return self._seen[id(value)][1]
        described = self._described(value, place)
        self._seen[id(value)] = (value, described)
        return described

    def _described(self, value: Any, place: str) -> Json:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.extended):
            raise StorageError(
                f"{place}: arrays of {value.dtype} cannot be saved; convert it to numbers or text."
            )
        array = np.asarray(value)
        if array.dtype.kind == "O" or array.dtype == TEXT:
            listed = self._each(array.ravel().tolist(), place)
            kind = "objects" if array.dtype.kind == "O" else "texts"
            return {kind: listed, "shape": list(array.shape)}
        try:
            described, tensor = pack(array)
        except StorageError as error:
            raise StorageError(f"{place}: {error}") from None
        name = self._free_name(place)
        self.arrays[name] = tensor
        return {"array": name, "jax": isinstance(value, jax.Array), **described}

    def _free_name(self, place: str) -> str:
        name = place.encode("ascii", "backslashreplace").decode()
        while name in self.arrays:  # keys may hold dots
            name += "'"
        return name

    def _frame(self, frame: pd.DataFrame, place: str) -> Json:
        text = [c for c in frame.columns if isinstance(frame[c].dtype, pd.StringDtype)]
        plain = all(isinstance(d, np.dtype | pd.StringDtype) for d in frame.dtypes)
        if isinstance(frame.index, pd.MultiIndex) or not (plain and frame.columns.is_unique):
            raise StorageError(
                f"{place}: a table with such an index or columns cannot be saved; reset its index "
                "and name its columns by text."
            )
        counted = frame.index.equals(pd.RangeIndex(len(frame)))
        index = None if counted else frame.index.to_numpy()
        return {
            "frame": self._fields({c: frame[c].to_numpy() for c in frame.columns}, place),
            "index": self.encode(index, f"{place}.index"),
            "index_name": self.encode(frame.index.name, place),
            "rows": len(frame),
            "text": text,
        }


class _Decoder:
    """Makes values from JSON by their tags."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self._made: dict[tuple[str, bool], Any] = {}
        self._by_tag: dict[str, Callable[[Json], Any]] = {
            "float": lambda j: float(j["float"]),
            "date": lambda j: datetime.date.fromisoformat(j["date"]),
            "datetime": lambda j: datetime.datetime.fromisoformat(j["datetime"]),
            "tuple": lambda j: tuple(self.decode(v) for v in j["tuple"]),
            "dict": lambda j: self._fields(j["dict"]),
            "pairs": lambda j: dict(self.decode(j["pairs"])),
            "scalar": lambda j: self.decode(j["scalar"])[()],
            "array": self._array,
            "objects": lambda j: _filled(self.decode(j["objects"]), j["shape"], np.dtype(object)),
            "texts": lambda j: _filled(self.decode(j["texts"]), j["shape"], TEXT),
            "frame": self._frame,
            "class": lambda j: instance(class_named(j["class"]), self._fields(j["fields"])),
        }

    def decode(self, value: Json) -> Any:
        if isinstance(value, list):
            return [self.decode(v) for v in value]
        if not isinstance(value, dict):
            return value
        tag = next(iter(value), None)
        if tag not in self._by_tag:
            raise StorageError(
                f"the kind of value {tag!r} is not known: the file was made by another version "
                "of nghvi; update the library."
            )
        return self._by_tag[tag](value)

    def _fields(self, fields: dict[str, Json]) -> dict[str, Any]:
        return {key: self.decode(value) for key, value in fields.items()}

    def _array(self, described: Json) -> Any:
        name, on_device = described["array"], described["jax"]
        if name not in self.arrays:
            raise StorageError(
                f"the array {name!r} is missing: the file is damaged; get another copy or save "
                "the model again."
            )
        if (name, on_device) not in self._made:
            array = unpack(described, self.arrays[name])
            self._made[name, on_device] = jnp.array(array) if on_device else array
        return self._made[name, on_device]

    def _frame(self, described: Json) -> pd.DataFrame:
        index = self.decode(described["index"])
        rows = pd.RangeIndex(described["rows"]) if index is None else pd.Index(index)
        name = self.decode(described["index_name"])
        columns = self._fields(described["frame"])
        text = dict.fromkeys(described["text"], "str")
        return pd.DataFrame(columns, index=rows.rename(name)).astype(text)


def _filled(values: list, shape: list[int], dtype: Any) -> np.ndarray:
    # Element by element: numpy would take labels that are sequences apart.
    out = np.empty(len(values), dtype)
    for i, value in enumerate(values):
        out[i] = value
    return out.reshape(shape)


def _refusal(value: Any, place: str) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, type) or (callable(value) and not hasattr(value, "__dict__")):
        kind = repr(value)
    if callable(value) or hasattr(value, "__dict__"):
        return (
            f"{place}: {kind} cannot be saved. A model with a trunk (or any other class) of your "
            "own can be saved only if its class is registered by nghvi.storage.register(cls), in "
            "the process that saves and in the one that loads; functions cannot be saved at all: "
            "put the code into the class."
        )
    return f"{place}: a value of type {kind} cannot be saved; use numbers, text, lists or dicts."


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
    """Return the description and the tensor of an array."""
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
    """Return the array, checked against its description."""
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
