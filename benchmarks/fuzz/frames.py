"""Data frames: dtypes, holes, constants, scales, labels, shapes, containers.

A case is one or two changes of a small clean table. A change keeps what the numbers mean beside the
objects that hold them, so that the oracle is computed from the meaning.
"""

import datetime
import decimal
import fractions
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse

import nghvi
from benchmarks.fuzz.judge import ANY, FIT, REFUSE, Case, Checked, Oracle, fit_checked

GROUPS, SIZE = 8, 5
ROWS = GROUPS * SIZE


class Draft:
    """A table under change; ``meant`` are the numbers that it stands for."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        group = np.repeat(np.arange(GROUPS), SIZE)
        x = rng.normal(size=(ROWS, 2))
        y = 1 + x @ [1.0, -0.5] + rng.normal(size=GROUPS)[group] + 0.6 * rng.normal(size=ROWS)
        self.frame = pd.DataFrame({"g": group, "x": x[:, 0], "z": x[:, 1]})
        self.y: Any = pd.Series(y)
        self.meant_y = y
        self.expects = FIT
        self.compared = False
        """Whether a fit, if there is one, has to agree with the oracle."""
        self.group: Any = "g"
        self.wrap: Callable[[pd.DataFrame], Any] = lambda frame: frame
        self.names = {"x": "x", "z": "z"}
        self.settings: dict[str, Any] = {}
        self.coded: dict[str, np.ndarray] = {}
        """Columns that the library is to make of others, by their names in a summary."""

    def expect(self, what: str) -> None:
        """The strictest of what the changes expect: refusal, then anything, then a fit."""
        order = (FIT, ANY, REFUSE)
        self.expects = max(self.expects, what, key=order.index)

    def spoil(self, column: str, value: Any) -> None:
        rows = self.rng.choice(ROWS, 2, replace=False)
        values = self.frame[column].astype(object)
        values.iloc[rows] = value
        self.frame[column] = values
        self.expect(REFUSE)

    def measured(self, values: np.ndarray, column: str = "x") -> None:
        self.frame[column] = values

    def respond(self, y: Any, meant: np.ndarray | None = None) -> None:
        self.y = y
        self.meant_y = self.meant_y if meant is None else meant


def _cast(dtype: Any, factor: float = 1.0) -> Callable[[Draft], None]:
    def change(d: Draft) -> None:
        for column in ("x", "z"):
            values = (d.frame[column] * factor).round() if factor != 1 else d.frame[column]
            d.frame[column] = values.astype(dtype)

    return change


def _objects(make: Callable[[float], Any], what: str) -> Callable[[Draft], None]:
    def change(d: Draft) -> None:
        d.frame["x"] = pd.Series([make(v) for v in d.frame["x"]], dtype=object)
        d.expect(what)

    return change


def _scale(column: str, factor: float, shift: float = 0.0, what: str = FIT) -> Callable:
    def change(d: Draft) -> None:
        with np.errstate(all="ignore"):
            if column == "y":
                d.meant_y = d.meant_y * factor + shift
                d.y = pd.Series(d.meant_y)
            else:
                d.frame[column] = d.frame[column] * factor + shift
        d.compared = True
        d.expect(what)

    return change


def _labels(make: Callable[[int], Any], what: str = FIT) -> Callable[[Draft], None]:
    def change(d: Draft) -> None:
        made = [make(int(k)) for k in d.frame["g"]]
        one_by_one = np.empty(ROWS, object)
        one_by_one[:] = made
        d.frame["g"] = one_by_one if isinstance(made[0], tuple | bytes) else pd.Series(made)
        d.expect(what)

    return change


def _assign(name: Any, make: Callable[[Draft], Any], what: str) -> Callable[[Draft], None]:
    def change(d: Draft) -> None:
        d.frame[name] = make(d)
        d.expect(what)

    return change


def _response(make: Callable[[Draft], Any], what: str) -> Callable[[Draft], None]:
    def change(d: Draft) -> None:
        d.y = make(d)
        d.expect(what)

    return change


def _hold(wrap: Callable[[pd.DataFrame], Any], what: str = FIT, group: Any = "g") -> Callable:
    def change(d: Draft) -> None:
        d.wrap, d.group = wrap, group
        d.expect(what)

    return change


def _rename(names: dict[str, Any], what: str = FIT) -> Callable[[Draft], None]:
    def change(d: Draft) -> None:
        d.frame = d.frame.rename(columns=names)
        d.names = {column: str(names.get(column, column)) for column in d.names}
        d.group = names.get("g", d.group)
        d.expect(what)

    return change


def _rows(keep: Callable[[Draft], np.ndarray], what: str) -> Callable[[Draft], None]:
    def change(d: Draft) -> None:
        kept = keep(d)
        d.frame = d.frame.iloc[kept].reset_index(drop=True)
        d.y, d.meant_y = pd.Series(np.asarray(d.y)[kept]), d.meant_y[kept]
        d.expect(what)

    return change


def _indexed(make: Callable[[Draft], Any]) -> Callable[[Draft], None]:
    def change(d: Draft) -> None:
        d.frame.index = make(d)

    return change


def _masked(hidden: bool) -> Callable[[pd.DataFrame], Any]:
    def wrap(frame: pd.DataFrame) -> Any:
        mask = np.zeros(frame.shape, bool)
        mask[3, 1] = hidden
        return np.ma.masked_array(frame.to_numpy(float), mask)

    return wrap


def _category(make: Callable[[np.ndarray], Any], levels: str = "uvw") -> Callable[[Draft], None]:
    def change(d: Draft) -> None:
        words = np.array(list(levels))[d.rng.integers(0, len(levels), len(d.frame))]
        d.frame["c"] = make(words)
        d.coded |= {f"c[T.{level}]": (words == level) * 1.0 for level in levels[1:]}

    return change


def _told(column: str, gap: Any) -> Callable[[Draft], None]:
    """Cells without a value, which the model is to learn from."""

    def change(d: Draft) -> None:
        d.spoil(column, gap)
        d.expects, d.settings = FIT, {"missing": "indicator"}
        lost = d.frame[column].isna().to_numpy()
        known = d.frame[column][~lost]
        if known.map(lambda v: isinstance(v, str)).all():
            filled = d.frame[column].where(~lost, known.min())
            levels = sorted(known.unique())[1:]
            d.coded |= {f"{column}[T.{v}]": (filled == v).to_numpy() * 1.0 for v in levels}
        else:
            middle = np.sort(known.astype(float))[(len(known) - 1) // 2]
            d.coded[column] = d.frame[column].where(~lost, middle).astype(float).to_numpy()
        d.coded[f"missing({column})"] = lost * 1.0

    return change


def _told_category(d: Draft) -> None:
    d.frame["c"] = np.array(list("uvw"))[d.rng.integers(0, 3, len(d.frame))]
    _told("c", None)(d)


def _told_beside_inf(d: Draft) -> None:
    _told("x", None)(d)
    d.spoil("z", np.inf)


def _outlier(d: Draft) -> None:
    d.frame.loc[3, "x"] = 1e6


DAY = datetime.date(2020, 1, 1)
CHANGES: dict[str, Callable[[Draft], None]] = {
    "float32": _cast("float32"),
    "float16": _cast("float16"),
    "int64": _cast("int64", 10),
    "int8": _cast("int8", 20),
    "uint64": _scale("x", 10, 100),
    "Int64": _cast("Int64", 10),
    "Float64": _cast("Float64"),
    "arrow": _cast("double[pyarrow]"),
    "boolean": _assign("x", lambda d: d.frame["x"] > 0, FIT),
    "nullable boolean": _assign("x", lambda d: (d.frame["x"] > 0).astype("boolean"), FIT),
    "python floats": _objects(float, FIT),
    "decimals": _objects(lambda v: decimal.Decimal(str(v)), ANY),
    "fractions": _objects(lambda v: fractions.Fraction(v).limit_denominator(1000), ANY),
    "text numbers": _objects(str, REFUSE),
    "decimal commas": _objects(lambda v: f"{v:.3f}".replace(".", ","), REFUSE),
    "lists": _objects(lambda v: [v, v], REFUSE),
    "complex": _objects(lambda v: complex(v, 1), REFUSE),
    "none": lambda d: d.spoil("x", None),
    "nan": lambda d: d.spoil("z", np.nan),
    "inf": lambda d: d.spoil("x", np.inf),
    "NA": lambda d: d.spoil("x", pd.NA),
    "word": lambda d: d.spoil("x", "n/a"),
    "missing group": lambda d: d.spoil("g", None),
    "NaN group": lambda d: d.spoil("g", np.nan),
    "dates as input": _assign("x", lambda d: pd.date_range("2020", periods=len(d.frame)), REFUSE),
    "durations": _assign("x", lambda d: pd.to_timedelta(np.arange(len(d.frame)), "D"), REFUSE),
    "a category": _category(pd.Categorical),
    "text": _category(lambda words: pd.Series(words, dtype=object)),
    "string dtype": _category(lambda words: pd.Series(words, dtype="string")),
    "arrow strings": _category(lambda words: pd.Series(words, dtype="string[pyarrow]")),
    "a category of codes": _category(lambda words: pd.Categorical(words.astype(int)), "123"),
    "one level": _assign("c", lambda d: "red", ANY),
    "many levels": _assign("c", lambda d: [f"t{i % 30}" for i in range(len(d.frame))], REFUSE),
    "free text": _assign("c", lambda d: [f"row {i}" for i in range(len(d.frame))], REFUSE),
    "text and numbers": _assign("c", lambda d: [i if i % 2 else "a" for i in range(ROWS)], REFUSE),
    "none told": _told("x", None),
    "nan told": _told("z", np.nan),
    "NA told": _told("x", pd.NA),
    "a category's gaps told": _told_category,
    "inf beside gaps told": _told_beside_inf,
    "an outlier": _outlier,
    "constant": _assign("c", lambda d: 3.0, ANY),
    "zeros": _assign("c", lambda d: 0.0, ANY),
    "a column twice": _assign("c", lambda d: d.frame.iloc[:, 1], ANY),
    "collinear": _assign("c", lambda d: 2 * pd.Series(np.arange(len(d.frame)) % 2) + 1, ANY),
    "constant in groups": _assign("c", lambda d: np.arange(len(d.frame)) // SIZE % 3, ANY),
    "subnormal": _assign("c", lambda d: np.linspace(0, 5e-324, len(d.frame)), ANY),
    "integers beyond 2**53": _assign("x", lambda d: np.arange(len(d.frame)) + 2**62, ANY),
    "x * 1e-200": _scale("x", 1e-200, 0, ANY),
    "x * 1e200": _scale("x", 1e200, 0, ANY),
    "x * 1e-12": _scale("x", 1e-12),
    "x + 1e6": _scale("x", 1, 1e6),
    "x * 1e9 + 1e12": _scale("x", 1e9, 1e12),
    "x near the end": _scale("x", 1e308, 0, ANY),
    "y * 1e150": _scale("y", 1e150, 0, ANY),
    "y * 1e-150": _scale("y", 1e-150, 0, ANY),
    "y * 1e-8 + 1": _scale("y", 1e-8, 1.0),
    "y near the end": _scale("y", 4e307, 0, ANY),
    "y + 1e8": _scale("y", 1, 1e8),
    "text groups": _labels(lambda k: f"school {k}"),
    "unicode groups": _labels(lambda k: "αβγδεζηθ"[k] + "\u0301 ☃"),
    "NUL groups": _labels(lambda k: "a" * (k + 1) + "\0" * (k % 2)),
    "date groups": _labels(lambda k: DAY + datetime.timedelta(k)),
    "time groups": _labels(lambda k: pd.Timestamp("2020-01-01") + pd.Timedelta(k, "h")),
    "float groups": _labels(lambda k: k + 0.5),
    "huge float groups": _labels(lambda k: float(2**63) * (k + 1), ANY),
    "huge groups": _labels(lambda k: 2**64 - 1 - k),
    "tuple groups": _labels(lambda k: (k, "a"), ANY),
    "bytes groups": _labels(lambda k: bytes([65 + k]), ANY),
    "mixed groups": _labels(lambda k: k if k % 2 else f"g{k}"),
    "boolean groups": _labels(lambda k: bool(k % 2), ANY),
    "categorical groups": lambda d: d.frame.__setitem__("g", d.frame["g"].astype("category")),
    "one group": _labels(lambda k: 1, REFUSE),
    "every row a group": _assign("g", lambda d: np.arange(len(d.frame)), ANY),
    "polars": _hold(lambda f: pl.from_pandas(f.reset_index(drop=True)), ANY),
    "arrow table": _hold(lambda f: pa.Table.from_pandas(f.reset_index(drop=True)), ANY),
    "array": _hold(lambda f: f.to_numpy(), ANY, 0),
    "lists of rows": _hold(lambda f: f.to_numpy().tolist(), ANY, 0),
    "dict": _hold(lambda f: f.to_dict("list"), ANY),
    "sparse": _hold(lambda f: scipy.sparse.csr_matrix(f[["x", "z"]].to_numpy(float)), REFUSE, 0),
    "masked, nothing hidden": _hold(_masked(False), ANY, 0),
    "masked, one hidden": _hold(_masked(True), REFUSE, 0),
    "three dimensions": _hold(lambda f: np.zeros((4, 4, 4)), REFUSE, 0),
    "a series": _hold(lambda f: f["x"] if "x" in f else f.iloc[:, 0], REFUSE),
    "unicode names": _rename({"x": "größe ☃", "z": "名前"}),
    "numbers as names": _rename({"x": 0, "z": 1, "g": 2}, ANY),
    "odd names": _rename({"x": "a\nb", "z": "", "g": " "}, ANY),
    "names of functions": _rename({"x": "log", "z": "C"}),
    "names alike": _rename({"z": "x"}, REFUSE),
    "name of the intercept": _rename({"z": "intercept"}, REFUSE),
    "name of a parameter": _rename({"z": "noise_var"}, ANY),
    "two levels of names": _hold(lambda f: _two_levels(f), ANY),
    "no rows": _rows(lambda d: np.arange(0), REFUSE),
    "one row": _rows(lambda d: np.arange(1), REFUSE),
    "two rows": _rows(lambda d: np.array([0, ROWS - 1]), ANY),
    "shuffled": _rows(lambda d: d.rng.permutation(len(d.frame)), FIT),
    "unequal groups": _rows(lambda d: np.flatnonzero(np.arange(ROWS) % 7 != 0), FIT),
    "rows twice": _rows(lambda d: np.repeat(np.arange(len(d.frame)), 2), FIT),
    "index twice": _indexed(lambda d: np.arange(len(d.frame)) // 2),
    "index of text": _indexed(lambda d: [f"r{i}" for i in range(len(d.frame))]),
    "y as a list": _response(lambda d: np.asarray(d.y).tolist(), FIT),
    "y as a column": _response(lambda d: np.asarray(d.y)[:, None], ANY),
    "y of polars": _response(lambda d: pl.Series(np.asarray(d.y)), FIT),
    "y with another index": _response(
        lambda d: pd.Series(np.asarray(d.y)[::1], index=range(7, 7 + len(d.y))), FIT
    ),
    "y of objects": _response(lambda d: pd.Series(list(d.y), dtype=object), FIT),
    "y with nan": _response(lambda d: pd.Series(d.y).where(np.arange(len(d.y)) != 2), REFUSE),
    "y with inf": _response(lambda d: [np.inf, *np.asarray(d.y)[1:]], REFUSE),
    "y masked": _response(lambda d: np.ma.masked_less(np.asarray(d.y), np.median(d.y)), REFUSE),
    "y constant": _response(lambda d: np.full(len(d.y), 2.0), REFUSE),
    "y of text": _response(lambda d: [f"{v:.2f}" for v in d.y], REFUSE),
    "y of dates": _response(lambda d: pd.date_range("2020", periods=len(d.y)), REFUSE),
    "y too short": _response(lambda d: np.asarray(d.y)[:-1], REFUSE),
    "y of booleans": _response(lambda d: np.asarray(d.y) > np.median(d.y), ANY),
    "y of classes": _response(lambda d: (np.asarray(d.y) > np.median(d.y)) * 1, ANY),
    "y in two columns": _response(lambda d: np.column_stack([d.y, d.y]), REFUSE),
    "y without noise": _response(lambda d: 2 * np.arange(len(d.y)) / 7.0, ANY),
    "y none": _response(lambda d: None, REFUSE),
    "y complex": _response(lambda d: np.asarray(d.y) + 1j, REFUSE),
    "y decimals": _response(lambda d: [decimal.Decimal(str(v)) for v in d.y], ANY),
}


def _two_levels(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_axis(pd.MultiIndex.from_product([["a"], list(frame.columns)]), axis=1)


def cases(number: int, seed: int) -> list[Case]:
    """Every change by itself, and then pairs of them."""
    names = list(CHANGES)
    rng = np.random.default_rng([seed, 1])
    chosen: list[tuple[str, ...]] = [(name,) for name in names]
    while len(chosen) < number:
        first, second = rng.choice(len(names), 2, replace=False)
        chosen.append((names[first], names[second]))
    return [_case(i, changes, seed) for i, changes in enumerate(chosen[:number])]


def _case(number: int, changes: tuple[str, ...], seed: int) -> Case:
    draft = Draft(np.random.default_rng([seed, 2, number]))
    try:
        for name in changes:
            CHANGES[name](draft)
        held: Any = draft.wrap(draft.frame)
    except Exception as error:  # two changes that do not go together make no case of their own
        if len(changes) == 1:
            raise
        return _case(number, changes[:1], seed)._replace(described=f"{changes[0]} ({error})")
    # Of two changes the second may have undone what made the first one a case for refusal.
    expects = draft.expects if len(changes) == 1 or draft.expects == FIT else ANY
    compared = expects == FIT or (draft.compared and len(changes) == 1)
    compared = compared and (len(changes) == 1 or not draft.coded)

    def run() -> Checked:
        model = nghvi.MixedRegressor(draft.group, **draft.settings).fit(held, draft.y)
        return fit_checked(model, held, _oracle(draft) if compared else None)

    return Case(f"frame-{number}", run, expects, " + ".join(changes))


def _oracle(draft: Draft) -> Oracle | None:
    """By the meaning of the numbers; none where a second change has made a column constant."""
    columns = [name for name in draft.names.values() if name not in draft.coded]
    x = draft.frame[columns].astype(float).to_numpy()
    x = np.column_stack([x, *draft.coded.values()])
    columns += draft.coded
    if (np.ptp(x, axis=0) == 0).any():
        return None
    group = draft.frame[draft.group].astype(str).to_numpy()
    return Oracle.of(x, draft.meant_y, group, tuple(columns))
