"""Model files that are damaged, foreign or half written: never a model that is slightly wrong."""

import functools
import hashlib
import json
import os
import pickle
import zipfile
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from jaxtyping import Float
from sklearn.exceptions import NotFittedError

import nghvi
from nghvi._core.hybrid import State
from nghvi._core.variational import Variational
from nghvi.storage import StorageError, file
from nghvi.storage.classes import fits
from nghvi.storage.codec import decode, encode
from tests.golden import FILES


@pytest.fixture(scope="module")
def model(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.nghvi"
    fitted.save(path)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.nghvi"


def altered(model, path, change=None, members=None, **settings):
    """A model file with another description, valid in all but what was changed."""
    with zipfile.ZipFile(model) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    content = json.loads(parts["model.json"])
    if change:
        change(content)
    content.pop("sha256", None)
    canonical = json.dumps(content, separators=(",", ":")).encode()
    content["sha256"] = hashlib.sha256(canonical).hexdigest()
    parts["model.json"] = json.dumps(content).encode()
    with zipfile.ZipFile(path, "w", **settings) as archive:
        for name, data in {**parts, **(members or {})}.items():
            if data is not None:
                archive.writestr(name, data)
    return path


def refused(path, reason):
    with pytest.raises(StorageError, match=reason) as caught:
        nghvi.load(path)
    assert str(path) in str(caught.value)


def test_altered_keeps_what_is_not_changed(model, path, fitted):
    back = nghvi.load(altered(model, path))
    assert back.elbo_ == fitted.elbo_


def test_every_truncation_is_refused(model, path):
    whole = model.read_bytes()
    for length in [*range(0, 60, 7), *np.linspace(60, len(whole) - 1, 40).astype(int)]:
        path.write_bytes(whole[:length])
        refused(path, "damaged|not a model file")


def test_every_flipped_byte_of_a_small_file_is_seen_or_harmless(path):
    value = {"a": np.arange(3.0), "b": [1, "text", (0.1, None)]}
    file.write(path, *encode(value))
    whole, harmless = path.read_bytes(), 0
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        try:
            stored = file.read(path)
        except StorageError:
            continue
        back = decode(stored.model, stored.arrays)
        assert back["b"] == value["b"]
        assert back["a"].tobytes() == value["a"].tobytes()
        harmless += 1
    assert harmless < 100  # dates and attributes of the zip's directory


def test_flipped_bytes_of_a_model_are_seen_or_harmless(model, path, fitted, panel):
    whole = model.read_bytes()
    new = panel[["g", "a", "b"]].iloc[:3]
    rng, expected = np.random.default_rng(0), fitted.predict(new).tobytes()
    for position in rng.integers(0, len(whole), 150):
        flipped = bytearray(whole)
        flipped[position] ^= int(rng.integers(1, 256))
        path.write_bytes(flipped)
        try:
            back = nghvi.load(path)
        except StorageError:
            continue
        assert back.predict(new).tobytes() == expected


def test_checksums_hold_without_those_of_the_zip(model, path):
    """Whoever packs an altered part anew makes a valid zip."""
    with zipfile.ZipFile(model) as archive:
        tensors, description = archive.read("arrays.safetensors"), archive.read("model.json")
    flipped = tensors[:-1] + bytes([tensors[-1] ^ 1])
    refused(altered(model, path, members={"arrays.safetensors": flipped}), "its arrays are not")
    other = description.replace(b'"converged_":true', b'"converged_":false')
    assert other != description
    refused(altered(model, path, members={"model.json": other}), "not what was saved")
    refused(altered(model, path, members={"model.json": b"{"}), "not JSON")
    refused(altered(model, path, members={"model.json": b"[" * 10**6}), "not JSON")
    refused(altered(model, path, members={"model.json": b"[]"}), "not a model file")


def test_arrays_that_are_not_safetensors_are_refused(model, path):
    for data in (b"", b"nonsense", safetensors.numpy.save({"other": np.ones(2)})):
        digest = hashlib.sha256(data).hexdigest()
        change = functools.partial(dict.update, arrays_sha256=digest)
        refused(altered(model, path, change, {"arrays.safetensors": data}), "read|missing")


def test_foreign_files_are_refused(model, path):
    refused(path, "no such file")
    refused(path.parent, "cannot be opened|not a model")
    for data in (
        b"",
        b"P",
        b"PK",
        b"a,b\n1,2\n",
        pickle.dumps({"a": 1}),
        b"PK\x05\x06" + bytes(18),
    ):
        path.write_bytes(data)
        refused(path, "not a model file|damaged")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<a/>")
    refused(path, r"no model\.json")
    refused(altered(model, path, members={"evil.py": b"1"}), "nothing else")
    refused(altered(model, path, members={"arrays.safetensors": None}), "nothing else")
    refused(altered(model, path, compression=zipfile.ZIP_DEFLATED), "compressed")
    refused(altered(model, path, lambda c: c.update(format="other")), "not a model file")


def test_other_versions_are_named(model, path):
    def attributes(content):
        return content["model"]["attributes"]["dict"]

    newer = altered(model, path, lambda c: c.update(format_version=2, library_version="9.1"))
    refused(newer, "format 2, written by nghvi 9.1.*update")
    refused(
        altered(model, path, lambda c: c["model"].update(estimator="MixedSorter")),
        r"saved by nghvi .*'MixedSorter' is not known",
    )
    refused(altered(model, path, lambda c: c["model"].update(estimator="Rows")), "not an estimator")
    refused(altered(model, path, lambda c: c.update(model=[1])), "no estimator")
    more = altered(model, path, lambda c: attributes(c).update(colour="red"))
    refused(more, r"other parameters .*colour.*another version")
    refused(altered(model, path, lambda c: attributes(c).update(__class__="a")), "__class__")
    refused(altered(model, path, lambda c: attributes(c).pop("rank")), "rank")
    refused(
        altered(model, path, lambda c: attributes(c)["posterior_"].update({"class": "Answers"})),
        "'Answers' is not known",
    )


def test_failed_writes_leave_everything_as_it_was(fitted, path, monkeypatch):
    path.write_bytes(b"before")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    def interrupt(*arguments):
        raise KeyboardInterrupt

    for owner, name, how, error in [
        (os, "replace", fail, StorageError),
        (os, "fsync", fail, StorageError),
        (zipfile.ZipFile, "writestr", fail, StorageError),
        (zipfile.ZipFile, "writestr", interrupt, KeyboardInterrupt),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, how)
            with pytest.raises(error):
                fitted.save(path)
        assert path.read_bytes() == b"before"
        assert os.listdir(path.parent) == [path.name]
    fitted.own_ = object()
    try:
        with pytest.raises(StorageError, match="own_"):
            fitted.save(path)
    finally:
        del fitted.own_
    assert path.read_bytes() == b"before"
    fitted.save(path)
    assert nghvi.load(path).elbo_ == fitted.elbo_
    assert os.listdir(path.parent) == [path.name]


def test_file_is_complete_before_it_has_its_name(fitted, path, monkeypatch):
    seen, replace = [], os.replace

    def look(source, target):
        seen.append((nghvi.load(source).elbo_, os.path.dirname(source), os.path.exists(target)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    fitted.save(path)
    assert seen == [(fitted.elbo_, str(path.parent), False)]


def test_bad_places_and_unfitted_estimators_are_refused(fitted, tmp_path):
    with pytest.raises(StorageError, match=r"no directory .*create it"):
        fitted.save(tmp_path / "missing" / "model.nghvi")
    with pytest.raises(StorageError, match="directory; give"):
        fitted.save(tmp_path)
    with pytest.raises(NotFittedError):
        nghvi.MixedRegressor().save(tmp_path / "model.nghvi")
    own = type("MixedRegressor", (nghvi.MixedRegressor,), {})()
    vars(own).update(vars(fitted))
    with pytest.raises(StorageError, match="register"):
        own.save(tmp_path / "model.nghvi")
    assert os.listdir(tmp_path) == []


def test_files_have_the_usual_permissions_and_follow_links(fitted, path):
    link = path.with_name("link")
    os.symlink(path, link)
    fitted.save(link)
    assert link.is_symlink()
    plain = path.with_name("plain")
    plain.write_bytes(b"")
    assert path.stat().st_mode == plain.stat().st_mode


def test_a_pipe_is_refused_at_once(path):
    os.mkfifo(path)
    refused(path, "a pipe or a device")


WRONG = {
    "posterior_": "text",
    "reader_": {"dict": {}},
    "input_quantiles_": None,
    "n_features_in_": {"tuple": []},
}
WRONG_PARTS_OF_READER = {
    "spec": {"dict": {}},
    "facts": {"tuple": []},
    "inputs": [1, 2],
    "columns": "x",
    "classes": {"tuple": []},
}


@pytest.mark.parametrize("name", WRONG)
def test_values_of_another_kind_are_refused_when_the_file_is_read(model, path, name):
    def change(content):
        content["model"]["attributes"]["dict"][name] = WRONG[name]

    refused(altered(model, path, change), f"{name} of MixedRegressor holds a .*altered")


@pytest.mark.parametrize("name", WRONG_PARTS_OF_READER)
def test_a_reader_of_another_kind_is_refused(model, path, name):
    def fields(content):
        return content["model"]["attributes"]["dict"]["reader_"]["fields"]

    wrong = WRONG_PARTS_OF_READER[name]
    other = altered(model, path, lambda content: fields(content).update({name: wrong}))
    refused(other, f"{name} of RowReader holds a .*altered")
    less = altered(model, path, lambda content: fields(content).pop(name))
    refused(less, rf"RowReader has other fields .*\({name}\)")


@pytest.mark.parametrize("name", ["_spec", "_inputs", "classes_", "feature_names_in_"])
def test_parts_of_a_reader_that_earlier_versions_scattered_are_checked(path, name):
    def change(content):
        content["model"]["attributes"]["dict"][name] = 5

    refused(altered(FILES / "logit.nghvi", path, change), "altered")


def test_fields_of_another_kind_and_parts_that_do_not_fit_are_refused(model, path):
    def posterior(content):
        return content["model"]["attributes"]["dict"]["posterior_"]["fields"]

    def edit(*places, value):
        def change(content):
            owner = posterior(content)
            for place in places[:-1]:
                owner = owner[place]
            owner[places[-1]] = value

        return altered(model, path, change)

    scaling, names = ("scaling", "fields"), ("names", "fields")
    refused(edit(*scaling, "y_scale", value="wide"), "y_scale of Scaling holds a str")
    refused(edit(*scaling, "y_scale", value=0), "do not fit together .*a scale is 0")
    refused(edit(*scaling, "y_centre", value={"float": "nan"}), "not finite")
    refused(edit(*names, "features", value={"tuple": ["a"]}), "number of coefficients differs")
    refused(edit(*names, "effects", value={"tuple": []}), "number of effects differs")
    refused(edit(*names, "groups", value=5), "groups of Named holds a int")
    refused(edit(*names, "features", value=["a"]), "features of Named holds a list")


def test_values_are_told_by_annotations():
    for value, hint, right in (
        (1.5, float, True),
        (True, float, False),
        (np.float64(2), float, True),
        (np.ones(2), float, False),
        (("a", "b"), tuple[str, ...], True),
        (["a"], tuple[str, ...], False),
        ({"a": [1]}, dict[str, list], True),
        ({1: [1]}, dict[str, list], False),
        (None, int | None, True),
        ("a", int | None, False),
        (np.ones((2, 3)), Float[np.ndarray, "s m"], True),
        (np.ones(2), Float[np.ndarray, "s m"], False),
        ("state", State[Variational], False),
        ("anything", Any, True),
    ):
        assert fits(value, hint) is right, (value, hint)
