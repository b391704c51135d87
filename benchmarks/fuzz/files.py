"""Model files, checkpoints and runs that are damaged, or edited with checksums that agree."""

import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

import nghvi
from benchmarks.fuzz.formulas import frame
from benchmarks.fuzz.judge import ANY, REFUSE, Case, Checked
from nghvi.cli import main
from nghvi.storage.checkpoints import checkpoint_files

MODEL = "model.nghvi"
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 1e300, "", "text", "y ~ I(9**9**9)", [], [1, "a"], {}, [[]]),
    *({"dict": 3}, {"tuple": 1}, {"float": "nan"}, {"float": "x"}, {"class": "Priors"}),
    *({"class": "os", "fields": {}}, {"array": "no"}, {"frame": {}}, {"unknown": 1}),
)


@functools.cache
def originals() -> pathlib.Path:
    """A run of a formula, and checkpoints of a fit, in a directory of this process."""
    place = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place)
    data = frame()
    data.to_csv(place / "data.csv", index=False)
    with contextlib.redirect_stdout(io.StringIO()):
        out = ["--out", str(place / "run"), "--quiet"]
        main(["fit", str(place / "data.csv"), "--formula", "y ~ x + s + (1 | g)", *out])
    inputs = data[["g", "x", "z"]]
    model = nghvi.MixedRegressor("g").fit(inputs, data["y"], checkpoint=place / "kept", every=0)
    model.save(place / MODEL)
    return place


def cases(number: int, seed: int) -> list[Case]:
    """So many of every kind in turn."""
    kinds = (_truncated, _flipped, _edited, _edited, _edited_run, _edited, _checkpoint, _foreign)
    return [
        kinds[i % len(kinds)](f"file-{i}", np.random.default_rng([seed, 5, i]))
        for i in range(number)
    ]


def _used(path: pathlib.Path) -> Checked:
    """Everything that a loaded model is used for."""
    model = nghvi.load(path)
    data = frame()
    inputs = data[["g", "x", "z"]]
    numbers = {
        "summary": model.summary().to_numpy(float),
        "effects": model.group_effects().to_numpy(float),
        "predictions": model.predict(inputs),
        "interval": np.array(model.predict_interval(inputs)),
        "draws": model.posterior_draws(20)["effects"],
    }
    return Checked(numbers, [])


def _changed(name: str, described: str, change: Callable[[pathlib.Path], None], what: str) -> Case:
    """A copy of the model file that was changed, used."""

    def run() -> Checked:
        with tempfile.TemporaryDirectory() as made:
            path = pathlib.Path(made) / MODEL
            path.write_bytes((originals() / MODEL).read_bytes())
            change(path)
            return _used(path)

    return Case(name, run, what, described)


def _truncated(name: str, rng: np.random.Generator) -> Case:
    share = float(rng.random())

    def change(path: pathlib.Path) -> None:
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])

    return _changed(name, f"truncated at {share:.3f}", change, REFUSE)


def _flipped(name: str, rng: np.random.Generator) -> Case:
    share, bits = float(rng.random()), int(rng.integers(1, 256))

    def change(path: pathlib.Path) -> None:
        whole = bytearray(path.read_bytes())
        whole[int(share * len(whole))] ^= bits
        path.write_bytes(whole)

    return _changed(name, f"flipped at {share:.3f}", change, ANY)


def _edited(name: str, rng: np.random.Generator) -> Case:
    """A value of the description replaced by one of another kind."""
    number, odd, remove = int(rng.integers(2**31)), int(rng.integers(len(ODD))), rng.random() < 0.2

    said = "removed" if remove else f"replaced by {ODD[odd]!r}"
    change = functools.partial(_edit, number=number, odd=None if remove else odd)
    return _changed(name, f"value {number} {said}", change, ANY)


def _edit(path: pathlib.Path, number: int, odd: int | None) -> None:
    """Replace a value of the description, or remove it; the checksum is recomputed."""
    with zipfile.ZipFile(path) as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    content = json.loads(parts["model.json"])
    places = _places(content["model"])
    owner, key = places[number % len(places)]
    if odd is None:
        del owner[key]
    else:
        owner[key] = ODD[odd]
    content.pop("sha256")
    canonical = json.dumps(content, separators=(",", ":")).encode()
    content["sha256"] = hashlib.sha256(canonical).hexdigest()
    parts["model.json"] = json.dumps(content, separators=(",", ":")).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for each, data in parts.items():
            archive.writestr(each, data)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place of a JSON value, as its container and key."""
    out = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        out.append((value, key))
        if isinstance(each, dict | list):
            out += _places(each)
    return out


def _foreign(name: str, rng: np.random.Generator) -> Case:
    """Something else under the name of a model."""
    which = int(rng.integers(6))

    def change(path: pathlib.Path) -> None:
        path.unlink()
        if which == 0:
            os.mkfifo(path)
        elif which == 1:
            path.mkdir()
        elif which == 2:
            path.write_bytes(rng.bytes(1000))
        elif which == 3:
            path.symlink_to(path)
        elif which == 4:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("model.json", "[" * 10**5)
        # otherwise it is missing

    kinds = ("pipe", "directory", "random bytes", "link to itself", "nested zip", "nothing")
    return _changed(name, kinds[which], change, REFUSE)


def _checkpoint(name: str, rng: np.random.Generator) -> Case:
    """A fit that goes on from checkpoints of which some or all are cut or edited."""
    share, all_of_them = float(rng.random()), bool(rng.random() < 0.5)
    number, odd, edited = int(rng.integers(2**31)), int(rng.integers(len(ODD))), rng.random() < 0.6

    def run() -> Checked:
        with tempfile.TemporaryDirectory() as made:
            kept = pathlib.Path(made)
            for path in checkpoint_files(originals() / "kept"):
                (kept / path.name).write_bytes(path.read_bytes())
            files = checkpoint_files(kept)
            for path in files if all_of_them else files[-1:]:
                if edited:
                    _edit(path, number, odd)
                    continue
                whole = path.read_bytes()
                path.write_bytes(whole[: int(share * len(whole))])
            data = frame()
            model = nghvi.MixedRegressor("g")
            model.fit(data[["g", "x", "z"]], data["y"], checkpoint=kept, every=0)
            return Checked({"summary": model.summary().to_numpy(float)}, [])

    how = f"edited ({number}, {ODD[odd]!r})" if edited else f"cut at {share:.3f}"
    return Case(name, run, ANY, f"{'all' if all_of_them else 'last'} checkpoints {how}")


def _edited_run(name: str, rng: np.random.Generator) -> Case:
    """A command of the program on a run whose settings, model or table were changed."""
    command = ("summary", "predict", "report")[rng.integers(3)]
    file = ("settings.json", "model.nghvi", "data.csv")[rng.integers(3)]
    odd, share = ODD[rng.integers(len(ODD))], float(rng.random())

    def run() -> Checked:
        with tempfile.TemporaryDirectory() as made:
            place = pathlib.Path(made)
            (place / "run").mkdir()
            for path in (originals() / "run").iterdir():
                (place / "run" / path.name).write_bytes(path.read_bytes())
            (place / "data.csv").write_bytes((originals() / "data.csv").read_bytes())
            _spoil(place / file if file == "data.csv" else place / "run" / file, odd, share)
            arguments = [command, str(place / "run")]
            if command == "predict":
                arguments.append(str(place / "data.csv"))
            elif command == "report":
                arguments += ["--data", str(place / "data.csv")]
            return _program(arguments)

    return Case(name, run, ANY, f"{command} with {file} changed ({odd!r}, {share:.3f})"[:120])


def _spoil(path: pathlib.Path, odd: Any, share: float) -> None:
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        places = _places(content)
        owner, key = places[int(share * len(places))]
        owner[key] = odd
        path.write_text(json.dumps(content))
        return
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])


def _program(arguments: list[str]) -> Checked:
    """Run it: exit code 2 says one line, any other none of a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    said = err.getvalue()
    if code == 2:
        own = [line for line in said.splitlines() if line.startswith("nghvi ")]
        one_line = len(said.splitlines()) == len(own) and own
        problems = [] if one_line else [f"exit code 2 with {said!r}"]
        return Checked({}, problems, refused=not problems)
    if code not in (0, 3):
        return Checked({}, [f"exit code {code}"])
    nan = "nan" in out.getvalue().lower()
    return Checked({"printed": np.array([np.nan if nan else 0.0])}, [])
