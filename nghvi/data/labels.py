"""Labels of groups: of one kind at the fit, and matched by what they mean afterwards.

The same group may come as 3, 3.0 or "3", as True or 1, a date as text once it has been in a CSV
file. A label that is not literally one of the fit's is therefore read as a number, as a truth
value and as a date, and matched where exactly one label of the fit reads the same.
"""

import datetime
import numbers
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nghvi._core.errors import DataError, warn
from nghvi.data.missing import count, places, unmasked, unusable

WHOLE = re.compile(r"([+-]?)0*(\d+)(?:\.0*)?")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}.*")
KINDS = {
    "b": "truth values",
    "i": "whole numbers",
    "u": "whole numbers",
    "f": "numbers",
    "M": "dates",
}
TEXT = "text"
LARGEST_TABLE = 10**8
"""Characters beyond which labels are not put into an array of fixed width."""
MANY, FEW = 5, 0.1
"""Of so many groups or more, a smaller share that is known is suspicious."""


def read_labels(values: Any, name: str) -> np.ndarray:
    """Labels of one kind, none missing; whole numbers as such."""
    values = unmasked(values)
    lost = unusable(values)
    if lost.any():
        raise DataError(
            f"group column {name!r}: {count(lost)} without a group ({places(lost)}); drop them."
        )
    return one_kind(values, name)


def combined(labels: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Labels of all combinations that occur: those of each column with ':' between them."""
    places = [pd.factorize(each) for each in labels]
    words = [np.array([_word(v) for v in _listed(levels)], object) for _, levels in places]
    number = np.ravel_multi_index([codes for codes, _ in places], [len(w) for w in words])
    distinct, index = np.unique(number, return_inverse=True)
    parts = np.unravel_index(distinct, [len(w) for w in words])
    columns = [w[p] for w, p in zip(words, parts, strict=True)]
    joint = [":".join(each) for each in zip(*columns, strict=True)]
    if len(set(joint)) < len(joint):
        raise DataError(
            f"labels of {' and '.join(map(repr, names))} have ':' in them, so that two "
            "combinations read the same: replace it in one of the columns."
        )
    return _texts(joint)[index]


def encode_groups(labels: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Position of each label in ``levels`` by what it means; -1 where it is not among them."""
    if not len(levels):
        return np.full(len(labels), -1)
    labels, levels = (one_kind(np.asarray(each), "group") for each in (labels, levels))
    if labels.dtype.kind == levels.dtype.kind or {TEXT} == {kind_of(labels), kind_of(levels)}:
        return pd.Index(levels).get_indexer(pd.Index(labels))
    position, distinct = pd.factorize(labels)
    return _by_meaning(_listed(distinct), _listed(levels))[position]


def warn_of_strangers(labels: np.ndarray, codes: np.ndarray, levels: np.ndarray, name: Any) -> None:
    """Say so if hardly any group is known, or if labels that are not are of another kind."""
    unknown = pd.unique(labels[codes < 0])
    known = len(pd.unique(codes[codes >= 0]))
    if not len(unknown):
        return
    number = known + len(unknown)
    shown, before = _examples(unknown), _examples(levels)
    if kind_of(unknown) != kind_of(levels):
        warn(
            f"group column {name!r} held {kind_of(levels)} at the fit ({before}) and holds "
            f"{kind_of(unknown)} now: {len(unknown)} of {number} labels ({shown}) were not in "
            "the fit and are predicted as new groups; give labels as they were at the fit."
        )
    elif number >= MANY and known < FEW * number and not _could_be_new(unknown, levels):
        warn(
            f"group column {name!r}: {known} of {number} groups are known (now {shown}, at the fit "
            f"{before}), so the others are predicted as new groups; correct the labels, or give "
            "which='population' if that is intended."
        )


def _could_be_new(unknown: np.ndarray, levels: np.ndarray) -> bool:
    """Whether some new labels are such as the fit had: between its numbers, or written alike.

    So they are where whole groups are left out; labels of another file are all of another form.
    """
    if levels.dtype.kind in KINDS and unknown.dtype.kind in KINDS:
        return bool(((unknown > levels.min()) & (unknown < levels.max())).any())
    return bool({_form(v) for v in unknown.tolist()} & {_form(v) for v in levels.tolist()})


def _form(label: Any) -> str:
    """A text with one sign for every run of digits, of small and of capital letters."""
    text = re.sub(r"\d+", "0", str(label))
    return re.sub(r"[A-Z]+", "A", re.sub(r"[a-z]+", "a", text))


def joined(levels: np.ndarray, more: np.ndarray, name: Any) -> np.ndarray:
    """Levels of the fit and further ones, of the same kind."""
    if kind_of(levels) != kind_of(more) and not {levels.dtype.kind, more.dtype.kind} <= set("iuf"):
        raise DataError(
            f"group column {name!r} held {kind_of(levels)} at the fit ({_examples(levels)}) and "
            f"holds {kind_of(more)} now ({_examples(more)}): give labels of the same kind."
        )
    return np.concatenate([levels, more])


def kind_of(labels: np.ndarray) -> str:
    """What labels are, in words."""
    return KINDS.get(labels.dtype.kind, TEXT)


def one_kind(values: np.ndarray, name: str) -> np.ndarray:
    """Labels without gaps as truth values, numbers, dates or text."""
    if values.dtype.kind == "O":
        values = _from_objects(list(values), name)
    elif values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "backslashreplace")
    elif values.dtype.kind not in "biufMU":
        values = _texts([_word(v) for v in values.tolist()])
    if values.dtype.kind != "f":
        return values
    _check_exact(values, name)
    return values.astype(np.int64) if (values == np.round(values)).all() else values


def _check_exact(values: np.ndarray, name: str) -> None:
    """Beyond, whole numbers have gaps, and neighbouring labels are one number."""
    largest = 2.0 ** (np.finfo(values.dtype).nmant + 1)
    if len(values) and np.abs(values).max() >= largest:
        raise DataError(
            f"group column {name!r} holds {np.abs(values).max():.0f} as {values.dtype}, "
            "where neighbouring whole numbers cannot be told apart: read the labels as integers or "
            "as text (dtype=str)."
        )


def _from_objects(values: list, name: str) -> np.ndarray:
    if all(isinstance(v, str) for v in values):
        return _texts(values)
    if all(isinstance(v, bool | np.bool_) for v in values):
        return np.array(values, bool)
    if all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in values):
        whole = all(isinstance(v, numbers.Integral) for v in values)
        numeric = np.array(values) if whole else np.array(values, float)
        # Integers beyond 64 bits stay objects or turn into floats.
        return (
            numeric if not whole or numeric.dtype.kind in "iu" else _texts(list(map(str, values)))
        )
    if all(isinstance(v, datetime.date | np.datetime64) for v in values):
        try:
            return pd.to_datetime(pd.Series(values), utc=True).dt.tz_localize(None).to_numpy()
        except (ValueError, TypeError):
            return _texts([_word(v) for v in values])
    words = [_word(v) for v in values]
    kinds: dict[str, Any] = {}
    for word, value in zip(words, values, strict=True):
        if type(kinds.setdefault(word, value)) is not type(value):
            warn(
                f"group column {name!r} holds labels of several kinds, among them "
                f"{kinds[word]!r} and {value!r}, which are taken for one group: make them of one "
                "kind."
            )
            break
    return _texts(words)


def _texts(words: list[str]) -> np.ndarray:
    """An array of text; as objects where numpy would cut NULs off or need much memory."""
    longest = max(map(len, words), default=0)
    if any(word.endswith("\0") for word in words) or longest * len(words) > LARGEST_TABLE:
        found = np.empty(len(words), object)
        found[:] = words
        return found
    return np.array(words, str)


def _word(value: Any) -> str:
    """A label as text, whole numbers without a point."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _listed(values: np.ndarray) -> list:
    return list(map(pd.Timestamp, values)) if values.dtype.kind == "M" else values.tolist()


def _by_meaning(labels: list, levels: list) -> np.ndarray:
    """Codes of distinct labels, by the first reading in which one level is the same."""
    codes = np.full(len(labels), -1)
    readings: Sequence[Callable[[Any], str | None]] = (_word, _as_number, _as_truth, _as_date)
    for read in readings:
        found: dict[str, int] = {}
        for code, level in enumerate(levels):
            key = read(level)
            if key is not None:
                # Two levels that read the same belong to none.
                found[key] = -1 if key in found else code
        for i in np.flatnonzero(codes < 0):
            codes[i] = found.get(read(labels[i]) or "", -1)
    return codes


def _as_number(label: Any) -> str | None:
    if isinstance(label, numbers.Real):
        label = _word(int(label) if isinstance(label, bool) else label)
    if not isinstance(label, str):
        return None
    text = label.strip()
    if whole := WHOLE.fullmatch(text):
        sign, digits = whole.groups()
        return f"-{digits}" if sign == "-" and digits != "0" else digits
    return _word(float(text)) if NUMBER.fullmatch(text) else None


def _as_truth(label: Any) -> str | None:
    word = str(label).strip().lower()
    return word if word in ("true", "false") else None


def _as_date(label: Any) -> str | None:
    if isinstance(label, str) and not DATE.fullmatch(label.strip()):
        return None
    if not isinstance(label, str | datetime.date):
        return None
    try:
        moment = pd.Timestamp(label.strip() if isinstance(label, str) else label)
    except ValueError:
        return None
    return (moment.tz_convert(None) if moment.tzinfo is not None else moment).isoformat()


def _examples(labels: np.ndarray) -> str:
    return ", ".join(map(repr, _word_list(labels[:3])))


def _word_list(labels: np.ndarray) -> list:
    return [str(v) if isinstance(v, pd.Timestamp) else v for v in _listed(labels)]
