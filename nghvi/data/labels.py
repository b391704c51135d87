"""Labels of groups: of one kind at the fit, and matched by their meaning afterwards.

The same group may be labelled 3, 3.0 or "3", or True and 1; a date becomes text in a CSV file. A
label that is not literally one of the fit is therefore read as a number, as a truth value and as a
date, and matched if exactly one label of the fit reads the same.
"""

import datetime
import numbers
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nghvi._core.errors import DataError, warn
from nghvi.data.cells import LABELLED, NUMBER, WHOLE, count, places, unmasked, unusable

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
"""The most characters that an array of labels of fixed width may hold; longer ones are objects."""
MANY, FEW = 5, 0.1
"""A warning is issued if there are at least 5 groups and fewer than a tenth of them are known."""


def read_labels(values: Any, name: str) -> np.ndarray:
    """Return labels as an array of one kind, whole numbers as integers; none may be missing."""
    values = unmasked(values)
    lost = unusable(values)
    if lost.any():
        raise DataError(
            f"group column {name!r}: {count(lost)} without a group ({places(lost)}); {LABELLED}."
        )
    return one_kind(values, name)


def combined(labels: Sequence[np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Return the labels of combinations of columns: those of each column, joined by ':'."""
    places = [pd.factorize(each) for each in labels]
    words = [np.array([_word(v) for v in _listed(levels)], object) for _, levels in places]
    number = np.ravel_multi_index([codes for codes, _ in places], [len(w) for w in words])
    distinct, index = np.unique(number, return_inverse=True)
    parts = np.unravel_index(distinct, [len(w) for w in words])
    columns = [w[p] for w, p in zip(words, parts, strict=True)]
    joint = [":".join(each) for each in zip(*columns, strict=True)]
    if len(set(joint)) < len(joint):
        raise DataError(
            f"labels of {' and '.join(map(repr, names))} contain ':', so that two combinations "
            "have the same label; replace the ':' in one of the columns."
        )
    return _texts(joint)[index]


def encode_groups(labels: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the position of each label in ``levels`` by its meaning, -1 for unknown ones."""
    if not len(levels):
        return np.full(len(labels), -1)
    labels, levels = (one_kind(np.asarray(each), "group") for each in (labels, levels))
    if labels.dtype.kind == levels.dtype.kind or {TEXT} == {kind_of(labels), kind_of(levels)}:
        return pd.Index(levels).get_indexer(pd.Index(labels))
    position, distinct = pd.factorize(labels)
    return _by_meaning(_listed(distinct), _listed(levels))[position]


def warn_of_strangers(labels: np.ndarray, codes: np.ndarray, levels: np.ndarray, name: Any) -> None:
    """Warn if hardly any group is known, or if unknown labels are of another kind."""
    unknown = pd.unique(labels[codes < 0])
    known = len(pd.unique(codes[codes >= 0]))
    if not len(unknown):
        return
    number = known + len(unknown)
    shown, before = examples(unknown), examples(levels)
    if kind_of(unknown) != kind_of(levels):
        warn(
            f"group column {name!r} held {kind_of(levels)} at the fit ({before}) and holds "
            f"{kind_of(unknown)} now: {len(unknown)} of {number} labels ({shown}) were not in "
            "the fit and are predicted as new groups. Use the labels of the fit."
        )
    elif number >= MANY and known < FEW * number and not _could_be_new(unknown, levels):
        warn(
            f"group column {name!r}: {known} of {number} groups are known (now {shown}, at "
            f"the fit {before}), and the others are predicted as new groups. Correct the labels, "
            "or pass which='population' if this is intended."
        )


def _could_be_new(unknown: np.ndarray, levels: np.ndarray) -> bool:
    """Return whether some new labels look like those of the fit: between its numbers, or alike.

    They do if whole groups were held out; labels of an unrelated file all have another form.
    """
    if levels.dtype.kind in KINDS and unknown.dtype.kind in KINDS:
        return bool(((unknown > levels.min()) & (unknown < levels.max())).any())
    return bool({_form(v) for v in unknown.tolist()} & {_form(v) for v in levels.tolist()})


def _form(label: Any) -> str:
    """Return a label with one sign for every run of digits, of small and of capital letters."""
    text = re.sub(r"\d+", "0", str(label))
    return re.sub(r"[A-Z]+", "A", re.sub(r"[a-z]+", "a", text))


def joined(levels: np.ndarray, more: np.ndarray, name: Any) -> np.ndarray:
    """Append further levels to those of the fit; both have to be of the same kind."""
    if kind_of(levels) != kind_of(more) and not {levels.dtype.kind, more.dtype.kind} <= set("iuf"):
        raise DataError(
            f"group column {name!r} held {kind_of(levels)} at the fit ({examples(levels)}) and "
            f"holds {kind_of(more)} now ({examples(more)}); use labels of the same kind."
        )
    return np.concatenate([levels, more])


def kind_of(labels: np.ndarray) -> str:
    """Return the kind of labels in words: numbers, dates, text and the like."""
    return KINDS.get(labels.dtype.kind, TEXT)


def one_kind(values: np.ndarray, name: str) -> np.ndarray:
    """Return complete labels as truth values, numbers, dates or text, all of one kind."""
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
    """Raise an error if labels are so large that neighbouring whole numbers coincide as floats."""
    largest = 2.0 ** (np.finfo(values.dtype).nmant + 1)
    if len(values) and np.abs(values).max() >= largest:
        raise DataError(
            f"group column {name!r} holds {np.abs(values).max():.0f} as {values.dtype}, which "
            "cannot tell such neighbouring whole numbers apart; read the labels as integers or as "
            "text (dtype=str)."
        )


def _from_objects(values: list, name: str) -> np.ndarray:
    if all(isinstance(v, str) for v in values):
        return _texts(values)
    if all(isinstance(v, bool | np.bool_) for v in values):
        return np.array(values, bool)
    if all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in values):
        whole = all(isinstance(v, numbers.Integral) for v in values)
        numeric = np.array(values) if whole else np.array(values, float)
        # numpy keeps integers beyond 64 bits as objects or turns them into floats.
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
                f"{kinds[word]!r} and {value!r}, which are treated as one group. Convert them to "
                "one kind."
            )
            break
    return _texts(words)


def _texts(words: list[str]) -> np.ndarray:
    """Return an array of text, as objects where numpy would drop NULs or need much memory."""
    longest = max(map(len, words), default=0)
    if any(word.endswith("\0") for word in words) or longest * len(words) > LARGEST_TABLE:
        found = np.empty(len(words), object)
        found[:] = words
        return found
    return np.array(words, str)


def _word(value: Any) -> str:
    """Return a label as text, whole numbers without a decimal point."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _listed(values: np.ndarray) -> list:
    return list(map(pd.Timestamp, values)) if values.dtype.kind == "M" else values.tolist()


def _by_meaning(labels: list, levels: list) -> np.ndarray:
    """Return codes of distinct labels by the first reading in which exactly one level agrees."""
    codes = np.full(len(labels), -1)
    readings: Sequence[Callable[[Any], str | None]] = (_word, _as_number, _as_truth, _as_date)
    for read in readings:
        found: dict[str, int] = {}
        for code, level in enumerate(levels):
            key = read(level)
            if key is not None:
                # If two levels read the same, a label that does so matches neither.
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


def examples(labels: np.ndarray) -> str:
    """Return the first labels as a message shows them."""
    some = _listed(labels[:3])
    return ", ".join(repr(str(v) if isinstance(v, pd.Timestamp) else v) for v in some)
