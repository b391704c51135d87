"""Model files: what comes back is what was saved, or an error that says what to do."""

import dataclasses
import datetime
import inspect
import json
import subprocess
import sys
from collections import OrderedDict
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import nghvi
from nghvi.networks import Identity, Perceptron, Trunk
from nghvi.priors import HalfT, Priors, WishartPrecision
from nghvi.recipes.run import Position
from nghvi.storage import StorageError, classes, file, register
from nghvi.storage.codec import TEXT, decode, encode

COLUMNS = ["g", "a", "b"]


def through_file(value, tmp_path):
    """Encoded, written, read, decoded: what the codec makes must also survive JSON."""
    file.write(tmp_path / "value", *encode(value))
    stored = file.read(tmp_path / "value")
    return decode(stored.model, stored.arrays)


def assert_same(ours, theirs):
    """Same types all the way down, and the same bits."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(ours, tuple | list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(ours, np.ndarray | np.generic | jax.Array):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if ours.dtype.kind in "OT":
            assert_same(ours.tolist(), theirs.tolist())
        else:
            assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
    elif dataclasses.is_dataclass(ours):
        for field in dataclasses.fields(ours):
            assert_same(getattr(ours, field.name), getattr(theirs, field.name))
    else:
        assert repr(ours) == repr(theirs)  # nan and -0.0 included


DTYPES = "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 >f8 >i4 S3 U4 >U4 M8[ns] M8[D] >M8[s] m8[s]"
DATES = [datetime.date(2020, 2, 29), datetime.date(1, 1, 1)]
OBJECTS = np.empty(3, object)
OBJECTS[:] = [None, ("a", 1), "Ω"]
VALUES = [
    *(None, True, False, 0, -1, 2**80, "", "Ünï\n\x00\U0001f600", "\ud800", "__metadata__"),
    *(0.0, -0.0, 0.1, 1e-320, 1.7976931348623157e308, float("nan"), float("inf"), -float("inf")),
    *((), (1,), [], [1, (2, [3])], {}, {"tuple": [1]}, {"class": "Rows", "fields": {}}),
    {"a": 1, "b.c": {"d": np.ones(2)}, "b": {"c.d": np.ones(1)}},
    {"__metadata__": np.ones(1), "é": np.ones(1)}, {0: 1.5, (1, "a"): {2: np.ones(1)}},
    *(np.float64(0.1), np.float32("nan"), np.int8(-3), np.bool_(True), np.str_("ä")),
    *(np.datetime64("2020-01-01T12"), np.timedelta64(3, "s"), np.datetime64("NaT")),
    *(np.zeros((0, 3)), np.zeros(()), np.zeros(0, bool), np.array([], str), np.zeros((2, 0), "U0")),
    *(np.array([np.nan, np.inf, -np.inf, -0.0]), np.array([True, False])),
    *(np.arange(12.0).reshape(3, 4)[:, ::2], np.arange(6.0).reshape(2, 3).T),
    *(np.array(["Ω", "", "日本語", "\U0001f600"]), np.array([b"ab", b"c"])),
    *(np.array(["a", "bcd"], object), np.array([["x"], ["y"]], object), OBJECTS),
    *(np.array(DATES, object), np.array([datetime.datetime(2020, 1, 1, 3, 4, 5, 6)], object)),
    *(np.array(["ä", "long " * 9], TEXT), np.array(["2020-01-01", "NaT"], "M8[ns]")),
    *(jnp.arange(3), jnp.ones((2, 2), jnp.float32), jnp.zeros((0, 2)), jnp.array([True])),
    *(jnp.array(1.5), Priors(), Priors(noise=HalfT(3, 1.0), effects=WishartPrecision(0.01))),
    Perceptron(2, (3, 4)),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_come_back(value, tmp_path):
    assert_same(through_file(value, tmp_path), value)
    assert_same(through_file({"nested": [(value,)]}, tmp_path), {"nested": [(value,)]})


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_arrays_of_any_bits_come_back(dtype, tmp_path):
    rng = np.random.default_rng(0)
    for shape in [(), (1,), (5,), (2, 3), (3, 1, 2), (4, 0)]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        bits = rng.integers(0, 2 if dtype == "?" else 128, size, dtype=np.uint8)
        if "U" in dtype:  # code points have an upper limit
            bits = np.array([chr(c) for c in rng.integers(32, 55000, size)], "U1")
        array = np.resize(bits.astype(dtype) if "U" in dtype else bits.view(dtype), shape)
        if size or "U" not in dtype:
            assert_same(through_file(array, tmp_path), array)


def test_arrays_keep_their_kind_order_and_identity(tmp_path):
    shared = np.arange(6.0).reshape(2, 3).T
    back = through_file({"a": shared, "b": shared, "c": jnp.asarray(shared)}, tmp_path)
    assert back["a"] is back["b"]
    assert back["a"].flags.f_contiguous
    assert back["a"].flags.writeable
    assert isinstance(back["c"], jax.Array)
    assert len(encode([shared, shared])[1]) == 1


def test_tables_come_back(tmp_path):
    frame = pd.DataFrame({"stage": ["a", "b"], "elbo": [1.0, np.nan], "n": [1, 2]})
    frame.index.name = "step"
    for table in (frame, frame.set_index("stage"), frame.iloc[:0]):
        pd.testing.assert_frame_equal(through_file(table, tmp_path), table)


class Loose(NamedTuple):
    x: int


class Stranger(eqx.Module):
    x: int


@pytest.mark.parametrize(
    "value",
    [
        *(lambda x: x, len, int, Loose(1), Stranger(1), object(), {1, 2}, 1j, range(3)),
        *(OrderedDict(a=1), np.ma.ones(2), np.zeros(2, [("a", float)]), jax.random.key(0)),
        *(np.array([object()]), jnp.ones(2, jnp.bfloat16), {"deep": [Perceptron(1, (2,), len)]}),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_cannot_be_saved_is_refused_by_place(value):
    with pytest.raises(StorageError, match=r"^model\.inner"):
        encode({"inner": value})


def test_own_classes_are_registered():
    with pytest.raises(StorageError, match=r"a trunk .* of your own .*nghvi\.storage\.register"):
        encode(OwnTrunk(3))
    try:
        assert register(OwnTrunk) is OwnTrunk
        register(OwnTrunk)
        assert decode(*encode(OwnTrunk(3))) == OwnTrunk(3)
        with pytest.raises(StorageError, match="taken"):
            register(dataclasses.make_dataclass("Rows", ["x"], frozen=True))
        with pytest.raises(StorageError, match="frozen"):
            register(dataclasses.make_dataclass("Mutable", ["x"]))
    finally:
        classes._CLASSES.pop("OwnTrunk", None)


def test_every_part_of_a_model_may_be_saved():
    """A new form of the data, trunk, response or prior needs a line in the allow-list.

    A trunk made of the user's functions is none of them: code is never in a file.
    """
    for module in (nghvi.data, nghvi.networks, nghvi.responses, nghvi.families, nghvi.priors):
        for kind in vars(module).values():
            if isinstance(kind, type) and not inspect.isabstract(kind) and kind is not eqx.Module:
                part = issubclass(kind, eqx.Module) or dataclasses.is_dataclass(kind)
                part = part and kind is not nghvi.networks.OwnTrunk
                assert not part or classes.is_registered(kind), kind


class OwnTrunk(Trunk):
    num_inputs: int = eqx.field(static=True)

    def init_weights(self, key):
        return ()

    def __call__(self, weights, x):
        return x

    @property
    def num_features(self):
        return self.num_inputs


GOOD = encode({"a": np.ones((2, 3)), "t": Identity(2)})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda j, a: a.clear(), "missing"),
        (lambda j, a: a.update({"model.a": np.ones(6)}), "shape"),
        (lambda j, a: a.update({"model.a": np.ones((2, 3), np.float32)}), "float32"),
        (lambda j, a: j["dict"]["a"].update(dtype="|O"), "object"),
        (lambda j, a: j["dict"]["a"].update(dtype="nonsense"), "malformed"),
        (lambda j, a: j["dict"]["a"].pop("shape"), "malformed"),
        (lambda j, a: j["dict"]["t"].update({"class": "os.system"}), "not known here"),
        (lambda j, a: j["dict"]["t"]["fields"].update(more=1), "more"),
        (lambda j, a: j["dict"]["t"]["fields"].clear(), "num_inputs"),
        (lambda j, a: j.update(dict=None), "malformed"),
        (lambda j, a: j["dict"].update(a={"eval": "1"}), "eval"),
        (lambda j, a: j["dict"].update(a={}), "not known"),
        (lambda j, a: j["dict"].update(a={"objects": [1], "shape": [2]}), "malformed"),
        (lambda j, a: j["dict"].update(a={"class": "MixedRegressor", "fields": {}}), "cannot"),
    ],
)
def test_descriptions_are_checked(change, reason):
    described, arrays = json.loads(json.dumps(GOOD[0])), dict(GOOD[1])
    change(described, arrays)
    with pytest.raises(StorageError, match=reason):
        decode(described, arrays)


def named(frame):
    """Groups by name instead of number."""
    return frame.assign(g=[f"größe {g}" for g in frame["g"]])


@pytest.fixture(scope="module")
def deep(panel):
    part = panel[panel["g"] < 6]
    estimator = nghvi.MixedRegressor(
        "g", hidden=(3,), method="ng-hvi", steps=20, random_state=np.random.RandomState(1)
    )
    return estimator.fit(named(part[COLUMNS]), part["y"])


@pytest.fixture(scope="module")
def new(panel):
    """Known and unknown groups."""
    return panel[COLUMNS].iloc[:240:30].assign(g=[0, 1, 10**6, 2, 3, 10**7, 4, 5])


def answer(estimator, new):
    return getattr(estimator, "predict_proba", estimator.predict)(new)


def test_estimators_come_back_whole(fitted, fitted_binary, deep, new, tmp_path):
    for number, estimator in enumerate((fitted, fitted_binary, deep)):
        path = tmp_path / f"{number}.nghvi"
        estimator.save(path)
        back = nghvi.load(path)
        assert type(back) is type(estimator)
        frame = named(new) if estimator is deep else new
        assert_same(answer(back, frame), answer(estimator, frame))
        pd.testing.assert_frame_equal(back.summary(), estimator.summary(), check_exact=True)
        pd.testing.assert_frame_equal(back.trace_, estimator.trace_, check_exact=True)
        assert vars(back).keys() == vars(estimator).keys()
        for name in ("verdict_", "elbo_", "converged_", "groups_", "feature_names_in_"):
            assert_same(getattr(back, name), getattr(estimator, name))
        lost = {"random_state": None} if estimator is deep else {}
        assert back.get_params() == estimator.get_params() | lost
        back.save(tmp_path / "again.nghvi")
        assert (tmp_path / "again.nghvi").read_bytes() == path.read_bytes()


def test_draws_of_a_loaded_model_are_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    assert_same(nghvi.load(tmp_path / "model").posterior_draws(20), fitted.posterior_draws(20))


def test_interrupted_fit_comes_back_as_it_is(fitted, tmp_path):
    run = fitted.posterior_.inference.run._replace(position=Position(0, None, ()))
    inference = dataclasses.replace(fitted.posterior_.inference, run=run)
    stopped = clone(fitted)
    vars(stopped).update(vars(fitted), posterior_=fitted.posterior_._replace(inference=inference))
    stopped.save(tmp_path / "model")
    back = nghvi.load(tmp_path / "model")
    assert back.posterior_.inference.run.position == Position(0, None, ())
    assert back.resume().elbo_ == fitted.elbo_


def test_fresh_process_predicts_the_same_bits(fitted, fitted_binary, deep, new, tmp_path):
    for name, estimator in {"linear": fitted, "probit": fitted_binary, "deep": deep}.items():
        estimator.save(str(tmp_path / name))
        frame = named(new) if estimator is deep else new
        frame.to_csv(tmp_path / f"{name}.csv", index=False, float_format="%.17g")
        np.save(tmp_path / f"{name}.npy", answer(estimator, frame))
    script = """
import numpy as np, pandas as pd, nghvi
for name in ("linear", "probit", "deep"):
    new = pd.read_csv(name + ".csv", float_precision="round_trip")
    estimator = nghvi.load(name)
    answer = getattr(estimator, "predict_proba", estimator.predict)(new)
    assert answer.tobytes() == np.load(name + ".npy").tobytes(), name
print("same")
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr
