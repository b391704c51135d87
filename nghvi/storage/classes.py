"""The allow-list: the classes whose instances a model file may hold.

A file names classes; only the ones listed here, or registered by the running program, are made
from it. Instances are restored field by field, without calling a constructor, so nothing in a
file decides what code runs.

A file with correct checksums may still have been written by another program, or by hand, so every
value is compared with the annotation of its field. Where an annotation says nothing (``Any``, a
protocol, an alias for something untyped), any value is accepted.
"""

import dataclasses
import enum
import functools
import importlib
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import AbstractArray

from nghvi._core.errors import StorageError
from nghvi._core.hybrid import Info, State
from nghvi._core.loop import Fit
from nghvi._core.step_rules import NaturalState, ScaleState
from nghvi._core.variational import RemainingError
from nghvi._linalg.tree import SolveInfo, SolveOptions
from nghvi._sklearn import Estimator
from nghvi.data import LinearStatistics, Panel, Rows
from nghvi.data.coding import Coding, Gaps
from nghvi.data.elimination import Cells, Elimination, Step, Update
from nghvi.data.factors import CrossedRows, CrossedStatistics
from nghvi.data.fingerprint import Fingerprint
from nghvi.data.grouped import CellRows
from nghvi.data.panel import CrossedPanel
from nghvi.data.scaling import Scaling
from nghvi.data.working_copy import StreamedRows
from nghvi.families import FAMILIES, Mixture, Point
from nghvi.formula.design import Design
from nghvi.formula.matrices import Learnt
from nghvi.inference import Inference
from nghvi.latents.crossed_integrals import Place
from nghvi.methods import NaturalGradient, OrdinaryGradient
from nghvi.models.general_factors import GeneralFactors
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import LinearStart, Spread
from nghvi.models.several_factors import SeveralFactors
from nghvi.networks import Identity, Perceptron, RoughPerceptron, Skip, Tamed
from nghvi.posterior.mixed_posterior import GroupingFactor, MixedPosterior, Named
from nghvi.priors import Gamma, HalfT, HuangWand, InverseGamma, Priors, WishartPrecision
from nghvi.recipes.importance import Pool
from nghvi.recipes.run import Ended, Position, Run
from nghvi.recipes.verdict import Cause, Status, Verdict
from nghvi.responses import RESPONSES, Interval

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
    """Return the annotations of a class by field; none if they cannot be told."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return {}


def misfit(cls: type, fields: Mapping[str, Any]) -> str | None:
    """Return the first field whose value is of another kind than its annotation."""
    hints = hints_of(cls)
    return next((name for name, v in fields.items() if not fits(v, hints.get(name, Any))), None)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value may be what the annotation says."""
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
    """Return whether a value is an array of enough dimensions: several may be kept as one."""
    if isinstance(value, numbers.Number):
        return not hint.dims
    return isinstance(value, np.ndarray | jax.Array) and value.ndim >= len(hint.dims)


Class = TypeVar("Class", bound=type)

LEFT_OUT: dict[type, dict[str, Any]] = {
    # They are what ``trace_`` was made from; an interrupted run has them in its position.
    Run: {"traces": ()},
}
"""Fields that are not saved, with the value that they are given instead."""


def _verdict_of_earlier_versions(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a verdict that was a sentence, whose beginning said what happened."""
    if "sentence" not in fields:
        return fields
    beginning = fields["sentence"].partition(":")[0].partition(" as far")[0]
    known = {status.heading: status for status in Status}
    usual = Status.CONVERGED if fields["converged"] else Status.NOT_CONVERGED
    status = known.get(beginning, usual)
    numbers = {name: fields[name] for name in ("mean_error", "scale_error")}
    resumable = status is Status.INTERRUPTED and "resume" in fields["sentence"]
    made = Verdict(status, Cause.EARLIER_VERSION, numbers, resumable)
    return made._asdict()


def _rows_on_disk_of_earlier_versions(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of rows on disk whose centres and scales were fields of their own."""
    apart = ("centre", "scale", "y_centre", "y_scale")
    if not fields.keys() >= set(apart):
        return fields
    scaling = Scaling(*(fields[name] for name in apart))
    others = {name: value for name, value in fields.items() if name not in apart}
    return others | {"scaling": scaling}


UPGRADES: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
    # The model of an interrupted fit is saved as refined as it was.
    Position: lambda fields: {"refinements": 0} | fields,
    Verdict: _verdict_of_earlier_versions,
    StreamedRows: _rows_on_disk_of_earlier_versions,
    # Theta had one kind of coordinates once.
    MixedModel: lambda fields: (
        dict.fromkeys(("effects_unit", "start", "grid", "spread", "near"))
        | {"num_facts": 0}
        | fields
    ),
    Pool: lambda fields: {"member": None, "chains": 0} | fields,
    Interval: lambda fields: {"bounds" if k == "ends" else k: v for k, v in fields.items()},
    Spread: lambda fields: {"precision": np.zeros_like(fields["square"])} | fields,
    SeveralFactors: lambda fields: {"grid": None, "near": None} | fields,
    GeneralFactors: lambda fields: {"grid": None, "spread": None, "near": None} | fields,
}
"""From the fields of an instance as an earlier version saved it to those of today."""

_CLASSES: dict[str, type] = {}

HIGHER = {
    "MixedRegressor": "nghvi.estimators",
    "MixedClassifier": "nghvi.estimators",
    "RowReader": "nghvi.estimators.reader",
    "RowFacts": "nghvi.estimators.response_columns",
    "RowFact": "nghvi.estimators.response_columns",
    "Spec": "nghvi.estimators.spec",
    "Term": "nghvi.estimators.grouping",
    "Posterior": "nghvi.any_model",
}
"""Classes of layers above this one, which are loaded when one of them is met."""


def register(cls: Class) -> Class:
    """Allow instances of a class of your own (a trunk, a response, an estimator) in model files.

    Call it, or use it as a decorator, both in the process that saves and in the one that loads. A
    file refers to the class by name, and its instances must be determined by their fields: it has
    to be an equinox module, a frozen dataclass, a NamedTuple or an estimator.
    """
    if not issubclass(cls, Estimator):
        field_names(cls)
    known = _known(cls.__name__)
    # The same class may come again from a notebook cell that is run twice.
    if known is not None and _origin(known) != _origin(cls):
        raise StorageError(
            f"register({_origin(cls)}): the name is taken by {_origin(known)}; rename the class."
        )
    _CLASSES[cls.__name__] = cls
    return cls


def class_named(name: str) -> type:
    """Return the class that a file means."""
    known = _known(name) if isinstance(name, str) else None
    if known is None:
        raise StorageError(
            f"the class {name!r} is not known here: if it is your own, call "
            "nghvi.storage.register(cls) before loading; otherwise the file was made by another "
            "version of nghvi."
        )
    return known


def _known(name: str) -> type | None:
    if name in HIGHER:
        return getattr(importlib.import_module(HIGHER[name]), name)
    return _CLASSES.get(name)


def is_registered(cls: type) -> bool:
    """Return whether instances of exactly this class may be saved."""
    return _known(cls.__name__) is cls


def field_names(cls: type) -> tuple[str, ...]:
    """Return the names of everything that an instance consists of."""
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return cls._fields
    if issubclass(cls, enum.Enum):
        return ("value",)
    if dataclasses.is_dataclass(cls) and (issubclass(cls, eqx.Module) or _is_frozen(cls)):
        return tuple(field.name for field in dataclasses.fields(cls))
    raise StorageError(
        f"{_origin(cls)} cannot be saved: make it an equinox module, a frozen dataclass or a "
        "NamedTuple."
    )


def _is_frozen(cls: type) -> bool:
    declared = getattr(cls, "__dataclass_params__", None)
    return declared is not None and declared.frozen


def fields_of(value: Any) -> dict[str, Any]:
    """Return what is to be saved of an instance, by name."""
    left_out = LEFT_OUT.get(type(value), {})
    return {
        name: left_out[name] if name in left_out else getattr(value, name)
        for name in field_names(type(value))
    }


def instance(cls: type, fields: dict[str, Any]) -> Any:
    """Return the instance with these fields, without calling its constructor."""
    # A class of a layer above this one says itself how its fields have changed.
    fields = UPGRADES.get(cls, getattr(cls, "upgraded", dict))(fields)
    # What an earlier version did not have yet; only tuples with names have such defaults.
    fields = getattr(cls, "_field_defaults", {}) | fields
    expected = set(field_names(cls))
    if fields.keys() != expected:
        differing = ", ".join(sorted(fields.keys() ^ expected))
        raise StorageError(
            f"{cls.__name__} has other fields here than in the file ({differing}): the file was "
            "made by another version of the class; load it with that one or fit again."
        )
    if wrong := misfit(cls, fields):
        raise StorageError(
            f"{wrong} of {cls.__name__} holds a {type(fields[wrong]).__name__}, which it never "
            "does: the file was altered; get another copy of it or fit again."
        )
    if issubclass(cls, tuple | enum.Enum):
        return cls(**fields)
    made = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def _origin(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


for _class in (
    *(MixedPosterior, Named, GroupingFactor, Scaling, Inference, Run, Verdict, Status, Cause, Pool),
    *(Rows, CellRows, LinearStatistics, Panel, StreamedRows, Fingerprint, Design, Learnt),
    *(Coding, Gaps),
    *(MixedModel, LinearStart, Identity, Perceptron, RoughPerceptron, Skip, Tamed),
    *(CrossedStatistics, Elimination, Step, Update, Cells, SeveralFactors, Spread),
    *(CrossedRows, CrossedPanel, GeneralFactors, Place),
    *(Position, Ended, Fit, State, Info, RemainingError, SolveInfo, ScaleState, NaturalState),
    # Where an interrupted run's optimiser is; if optax changes them, such a run has to start again.
    *(optax.ScaleByAdamState, optax.ScaleByAdaDeltaState, optax.EmaState, optax.EmptyState),
    *(NaturalGradient, OrdinaryGradient, SolveOptions),
    *(Priors, InverseGamma, HalfT, WishartPrecision, HuangWand, Gamma),
    *RESPONSES.values(),
    *(
        Point,
        Mixture,
        *map(type, FAMILIES.values()),
        *(family.member for family in FAMILIES.values()),
    ),
):
    register(_class)
