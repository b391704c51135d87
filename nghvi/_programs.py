"""Programs: functions that are compiled once per shape, and that a later process finds ready.

JAX keeps what its compiler made, but every process traces its functions anew to learn what is to
be compiled, which takes most of the time of a first fit. Here a file is named by a hash of
everything that tracing sees: source and constants of this package, versions and settings, the
function, whatever is static in its arguments, and the shapes of the rest. The file says which
program results, and another file holds that program, so that a new version of this package traces
anew but compiles only what changed. Nothing is kept of functions or classes from elsewhere, such as
a model in a user's own module, because their source may change.

Within a process programs pile up with every new shape of the data. Those of a linear model hold 40
MB and a thousand memory maps; beyond 65,530 the process ends. So those used longest ago are
released once there are many.
"""

import collections
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib.metadata
import io
import os
import pathlib
import pickle
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, Self, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxlib.lapack
import numpy as np
from jax.experimental import serialize_executable

from nghvi import _compiled

P = ParamSpec("P")
T = TypeVar("T")

MAPS = pathlib.Path("/proc/self/maps")
"""The file in which Linux lists the memory maps of this process."""
MOST_MAPS = 8_000
"""Memory maps beyond which programs are released; a process then holds some 700 MB. Those on disk
are soon loaded again."""
MOST_THREADS = 3
"""Most threads that make programs ahead; a fit has no more to make at once."""
VERSIONED = ("jax", "jaxlib", "equinox", "optax", "numpy")
"""Packages whose version is part of the hash."""
KNOWN = {"nghvi", "builtins", "functools", "operator", "collections", "types", *VERSIONED}
"""Packages whose functions and classes are determined by a version or by the hashed source."""
OPTIONS: dict[str, str | bool] = {"xla_cpu_use_fusion_emitters": False}
"""Options of the compiler: XLA's older way to make kernels. The newer one returns wrong numbers, or
ends the process, where a kernel joins three pieces of different lengths, as rows of groups of three
sizes are joined (decision 27); it also takes up to twice as long to compile."""
ARRAYS = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)
SWITCHED_OFF = "jax_disable_jit"
WORTH = "jax_persistent_cache_min_compile_time_secs"
EDGES = {"cli", "report", "plots", "storage", "formula", "estimators", "interpret", "paper"}
"""Parts of the package whose constants matter only to programs of their own. A process may load
them sooner, later or never, so they must not enter the hash of other programs."""
SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_default_prng_impl",
    "jax_debug_nans",
)
"""Settings of JAX that change what is traced."""

_recent: "collections.OrderedDict[tuple[_Program, tuple], None]" = collections.OrderedDict()
"""What is ready, in the order of last use."""
new_programs: list[str] = []
"""Functions for which programs were made since the last look at the memory maps."""
_foreseen: set[tuple] = set()
"""That for which programs were made ahead, or begun."""


def program(function: Callable[P, T]) -> Callable[P, T]:
    """Compile ``function`` once per shape of the arrays in its arguments; the rest is static."""
    return cast(Callable[P, T], _Program(function))


class _Program:
    """A function, and the programs compiled from it."""

    def __init__(self, function: Callable) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._inner = eqx.filter_jit(function)
        self._ready: dict[tuple, Future[_Ready | None]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        asked, template, arrays = _asked((args, kwargs))
        # Inside another program, or with several devices, only JAX knows what is to be done.
        if any(isinstance(leaf, jax.core.Tracer) for leaf in arrays):
            return self._inner(*args, **kwargs)
        if not _is_plain():
            return self._as_jax_does(args, kwargs)
        making = self._ready.get(asked)
        if making is None or making.cancel() or making.exception() is not None:
            made = self._made_or_found(template, asked[-2], arrays)
            making = self._ready[asked] = Future()
            making.set_result(made)
        _recent[self, asked] = None
        _recent.move_to_end((self, asked))
        ready = making.result()
        return self._as_jax_does(args, kwargs) if ready is None else ready(arrays)

    def make(self, maker: ThreadPoolExecutor, arguments: tuple) -> None:
        """Let another thread make the program for these arguments, unless it is there."""
        asked, template, arrays = _asked(arguments)
        if asked not in self._ready:
            _recent[self, asked] = None
            made = maker.submit(self._made_or_found, template, asked[-2], arrays)
            self._ready[asked] = made

    def _as_jax_does(self, *arguments: Any) -> Any:
        """Call the function as JAX itself would keep it; to it NumPy's arrays are constants."""
        args, kwargs = jax.tree.map(_on_device, arguments)
        return self._traced(*args, **kwargs)

    @functools.cached_property
    def _traced(self) -> Callable:
        return cast(Any, eqx.filter_jit)(self._function, compiler_options=_options())

    def forget(self, asked: tuple) -> None:
        """Release what was compiled for these arguments."""
        self._ready.pop(asked, None)

    def _made_or_found(self, template: Any, shapes: tuple, arrays: list) -> "_Ready | None":
        module = self._function.__module__
        name = f"{module}.{self._function.__qualname__}"
        new_programs.append(name)
        named = [(shape, str(dtype), weak) for shape, dtype, weak in shapes]
        try:
            told = _told((name, template, named, _settings()), module.split(".")[1])
        except Exception:  # something of the user's, or of a kind that cannot be written down
            return None
        traced = _file(hashlib.sha256(told).hexdigest(), "traced")
        if (known := _read(traced)) is not None:
            number, form = known
            compiled = _loaded(number, len(arrays), jax.tree.leaves(form).count(...))
            if compiled is not None:
                return _Ready(compiled, form)
        with _no_garbage_collected():
            lowered, form = _trace(self._function, template, arrays)
        # The text does not contain the shapes of unused arrays.
        text = repr((_compiled.FORMAT, _source()[1:], named, _options(), lowered.as_text()))
        number = hashlib.sha256(text.encode()).hexdigest()
        compiled = _loaded(number, len(arrays), jax.tree.leaves(form).count(...))
        if compiled is None:
            compiled = _compile(lowered)
            # A program may hold what cannot be written to a file, such as a call of Python.
            with contextlib.suppress(Exception):
                _write(_file(number, "compiled"), _compiled.serialized(compiled))
        _write(traced, (number, form))
        return _Ready(compiled, form)


def _on_device(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _asked(arguments: tuple) -> tuple[tuple, Any, list]:
    """Return which program is asked for, the arguments without arrays, and the arrays.

    Shapes may stand for arrays, and arrays be NumPy's: ``device_put`` takes twice a call's time.
    """
    leaves, tree = jax.tree.flatten(arguments)
    holes = [... if isinstance(x, ARRAYS) else x for x in leaves]
    arrays = [leaf for leaf, hole in zip(leaves, holes, strict=True) if hole is ...]
    shapes = tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in arrays)
    kinds = tuple(map(type, holes))  # since 1, 1.0 and True are equal
    return (tree, tuple(holes), kinds, shapes, _settings()), jax.tree.unflatten(tree, holes), arrays


class Ahead:
    """A block that makes programs in other threads before they are needed.

    The first fit of a shape mostly waits for the compiler, on one core. What it will need is known
    before, but for the numbers: :meth:`make` takes shapes in their place.
    """

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._threads = min((cores or 1) - 1, MOST_THREADS)
        self._maker: ThreadPoolExecutor | None = None

    @property
    def possible(self) -> bool:
        """Whether there is a core to do it, and a single device."""
        return self._threads > 0 and _is_plain()

    def is_of_use(self, *arguments: Any) -> bool:
        """Return whether this is the first block that hears of arguments of such shapes."""
        asked = _asked(arguments)[0]
        new = self.possible and asked not in _foreseen
        if new:
            _foreseen.add(asked)
        return new

    def __enter__(self) -> Self:
        if self.possible:
            self._maker = ThreadPoolExecutor(self._threads, "nghvi compiles")
        return self

    def __exit__(self, *raised: object) -> None:
        if self._maker is not None:
            self._maker.shutdown(wait=False, cancel_futures=True)

    def make(self, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Begin to make the program of a function for these arguments."""
        if self._maker is not None:
            cast(_Program, function).make(self._maker, (args, kwargs))


class _Ready:
    """A compiled program, and the form of its result, which has ``...`` in place of arrays."""

    def __init__(self, compiled: jax.stages.Compiled, form: Any) -> None:
        self._compiled = compiled
        self._leaves, self._tree = jax.tree.flatten(form)

    def __call__(self, arrays: list) -> Any:
        found = iter(self._compiled(arrays))
        leaves = [next(found) if leaf is ... else leaf for leaf in self._leaves]
        return jax.tree.unflatten(self._tree, leaves)


def _trace(function: Callable, template: Any, arrays: list) -> tuple[jax.stages.Lowered, Any]:
    """Return the function, lowered to one between lists of arrays, and the form of its result."""
    leaves, tree = jax.tree.flatten(template)
    forms = []

    def flat(given: list) -> list:
        rest = iter(given)
        args, kwargs = jax.tree.unflatten(
            tree, [next(rest) if leaf is ... else leaf for leaf in leaves]
        )
        out, form = jax.tree.flatten(function(*args, **kwargs))
        holes = [... if eqx.is_array(leaf) else leaf for leaf in out]
        forms.append(jax.tree.unflatten(form, holes))
        return [leaf for leaf, hole in zip(out, holes, strict=True) if hole is ...]

    flat.__name__ = f"kept_{function.__name__}"
    lowered = jax.jit(flat).lower(arrays)
    return lowered, forms[-1]


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Suspend garbage collection inside the block.

    Tracing makes many objects, nearly all of which stay alive; searching them for garbage would
    take a tenth of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _WithoutCache:
    """A block in which JAX keeps nothing; several threads may be inside at once."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = getattr(jax.config, WORTH)
                jax.config.update(WORTH, float("inf"))
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                jax.config.update(WORTH, self._before)


_without_cache = _WithoutCache()


def _compile(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile without JAX's own cache: a program that comes from there cannot be serialised."""
    with _without_cache:
        return lowered.compile(compiler_options=_options())


def _loaded(number: str, num_in: int, num_out: int) -> jax.stages.Compiled | None:
    if (content := _read(_file(number, "compiled"))) is None:
        return None
    _start_lapack()
    into = jax.tree.structure((([0] * num_in,), {}))
    out = jax.tree.structure([0] * num_out)
    with contextlib.suppress(Exception):
        return serialize_executable.deserialize_and_load(content, into, out)
    return None


def _file(number: str, kind: str) -> pathlib.Path | None:
    kept = _compiled.programs_folder
    return None if kept is None else kept / f"{number}.{kind}"


def _write(path: pathlib.Path | None, what: Any) -> None:
    """Write a file completely, or not at all."""
    if path is not None:
        with contextlib.suppress(Exception):
            content = pickle.dumps(what)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(file.name, path)


def _read(path: pathlib.Path | None) -> Any:
    """Return what was written to ``path``; None if nothing was, or if the file is damaged."""
    with contextlib.suppress(Exception):
        if path is not None:
            whole = path.read_bytes()
            if hashlib.sha256(whole[32:]).digest() == whole[:32]:
                os.utime(path)  # since the least recently used files are deleted first
                return pickle.loads(whole[32:])
    return None


@functools.cache
def _start_lapack() -> None:
    """Load LAPACK's functions, which JAX does while it traces a program that calls them."""
    jaxlib.lapack.prepare_lapack_call("potrf_ffi", np.dtype(float))


class _Teller(pickle.Pickler):
    """A pickler that writes down everything a function was given, only to be hashed."""

    def persistent_id(self, obj: Any) -> None:
        package = (getattr(obj, "__module__", None) or "builtins").partition(".")[0]
        if hasattr(obj, "__qualname__") and package not in KNOWN:
            raise pickle.PicklingError(f"The source of {obj!r} is not known.")

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, types.FunctionType):
            return NotImplemented
        code = obj.__code__
        within = [cell.cell_contents for cell in obj.__closure__ or ()]
        constants = [each for each in code.co_consts if not isinstance(each, types.CodeType)]
        where = (obj.__module__, obj.__qualname__, code.co_firstlineno, code.co_code, constants)
        return tuple, ((*where, code.co_names, within, obj.__defaults__, obj.__kwdefaults__),)


def _told(what: Any, part: str = "") -> bytes:
    """Return what tracing sees as bytes to be hashed; ``part``: the subpackage that asks."""
    with io.BytesIO() as file:
        _Teller(file, protocol=5).dump((_source(), _constants(part), what))
        return file.getvalue()


def _constants(part: str) -> list[tuple]:
    """Return the constants of modules that compute, since a caller may have changed them."""
    return [
        (name, constant, value)
        for name, module in sorted(sys.modules.items())
        if name.startswith("nghvi.") and name.split(".")[1] not in EDGES - {part}
        for constant, value in sorted(vars(module).items())
        if constant.isupper() and _is_plain_value(value)
    ]


def _is_plain_value(value: Any) -> bool:
    each = value if isinstance(value, tuple) else (value,)
    return all(isinstance(one, int | float | str) for one in each)


@functools.cache
def _source() -> tuple[str, ...]:
    """Return a hash of the package's source, versions of its foundations, and compiler flags."""
    root, digest = pathlib.Path(__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    versions = [importlib.metadata.version(name) for name in VERSIONED]
    return digest.hexdigest(), *versions, os.environ.get("XLA_FLAGS", "")


def _settings() -> tuple:
    return tuple(getattr(jax.config, name) for name in SETTINGS)


@functools.cache
def _options() -> dict[str, str | bool]:
    """Return our options of the compiler, or none if its version does not know them."""
    try:
        jax.jit(lambda: 0, compiler_options=OPTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return OPTIONS


def _is_plain() -> bool:
    return jax.device_count() == 1 and not getattr(jax.config, SWITCHED_OFF)


def forget_programs() -> None:
    """Release all programs of this process, including those of other packages."""
    _release(len(_recent))
    jax.clear_caches()
    _return_memory()


def _release(number: int) -> None:
    """Release as many programs of this package, those used longest ago first."""
    for _ in range(number):
        (owner, asked), _nothing = _recent.popitem(last=False)
        owner.forget(asked)
    _foreseen.clear()


def forget_programs_if_many() -> None:
    """Make room for further programs; called before a fit, so that its own programs stay."""
    new_programs.clear()
    with contextlib.suppress(OSError):  # not Linux
        if _num_maps() > MOST_MAPS:
            while _recent and _num_maps() > 0.75 * MOST_MAPS:
                _release(-(-len(_recent) // 4))
            _return_memory()
            if _num_maps() > MOST_MAPS:  # held by programs of other packages
                forget_programs()


def _return_memory() -> None:
    """Give the system what is free; in small pieces between others, it would stay here."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not the GNU C library
        ctypes.CDLL(None).malloc_trim(0)


def _num_maps() -> int:
    return MAPS.read_bytes().count(b"\n")
