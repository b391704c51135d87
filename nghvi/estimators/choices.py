"""From an estimator's settings to the parts of a model; every complaint names the setting."""

import dataclasses
import difflib
import functools
import inspect
import itertools
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nghvi._core.response import Response
from nghvi.data import Rows
from nghvi.data.frame import DataError
from nghvi.data.panel import WORTHWHILE, distinct_rows
from nghvi.data.pieces import ROWS_PER_PIECE
from nghvi.estimators.columns import centred_columns
from nghvi.inference import METHODS
from nghvi.methods import Method, published
from nghvi.networks import ACTIVATIONS, Identity, Perceptron, Trunk, as_trunk
from nghvi.paper.methods import BASELINES, STOPPED_BY_VALIDATION
from nghvi.priors import EffectsPrior, HalfT, HuangWand, InverseGamma, Priors, WishartPrecision
from nghvi.responses import RESPONSES

FEWEST_PIECES = 4
"""Into fewer, data are not divided unless asked to: a step would hardly cost less."""
BESIDE_COEF, LEARNT_COEF = 10.0, 1.0
INTERCEPT_SD, SLOPE_SD, LEARNT_SD = 2.5, 0.5, 1.0
"""Scales of the default priors of coefficients, and of effects' sds, in units of the data: of the
inputs beside a network and of what it learns."""
COVARIANCES = ("auto", "full", "diagonal")
MOST_COUNTED = 10**9
"""Steps, draws, starts: beyond, nobody waits for the end."""
MOST_PARAMETERS = 10**7
MOST_COLUMNS = 10_000
OTHER_WORDS = {
    **dict.fromkeys(("family", "link", "likelihood", "distribution", "loss"), "response"),
    **dict.fromkeys(("seed", "rng", "random_seed", "key"), "random_state"),
    **dict.fromkeys(("n_iter", "max_iter", "num_steps", "iterations", "epochs"), "steps"),
    **dict.fromkeys(("layers", "hidden_layer_sizes", "hidden_layers"), "hidden"),
    **dict.fromkeys(("re_formula", "vc_formula", "random_effects", "slopes"), "random"),
    **dict.fromkeys(("cov", "cov_struct"), "covariance"),
    **dict.fromkeys(("intercept", "add_intercept"), "fit_intercept"),
    **dict.fromkeys(("normalize", "scale"), "standardize"),
    **dict.fromkeys(("network", "module"), "trunk"),
    "progress": "verbose",
    "prior": "priors",
    "by": "group",
}
"""What other programs call a setting."""
NOT_HERE = {
    "reml": "There is no REML: the posterior holds the uncertainty of all coefficients.",
    "sample_weight": "Rows that were observed several times are fit(..., counts=), precisions "
    "weights='w'.",
    "offset": "An offset is a term of a formula: 'y ~ x + offset(z)'.",
}


class SettingError(DataError, TypeError):
    """There is no such setting; Python itself raises a TypeError for an unknown argument."""


def check_counts(*, optional: bool = True, **settings: Any) -> None:
    """Settings that are a positive whole number, or None or "auto" where that is an option."""
    for name, value in settings.items():
        if optional and (value is None or (isinstance(value, str) and value == "auto")):
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise DataError(f"{name}={value!r}: give a positive whole number.")
        if int(value) > MOST_COUNTED:
            raise DataError(f"{name}={value}: give at most {MOST_COUNTED:,}.")


def check_seed(**settings: Any) -> None:
    """Settings that are a seed."""
    for name, value in settings.items():
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not whole or not 0 <= int(value) < 2**63:
            raise DataError(f"{name}={value!r}: give a whole number from 0 to 2**63 - 1.")


def check_level(level: Any) -> None:
    """The probability of an interval."""
    number = isinstance(level, numbers.Real) and not isinstance(level, bool)
    if not number or not 0 < level < 1:
        raise DataError(f"level={level!r}: give a probability between 0 and 1, such as 0.9.")


def choose_seed(random_state: Any) -> int:
    """The seed that a setting stands for; a generator is asked for one."""
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    check_seed(random_state=random_state)
    return int(random_state)


def with_known_settings(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that complains of a setting that there is not, and says which may be meant."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked(self: Any, *given: Any, **settings: Any) -> None:
        _check_known_settings(settings.keys() - set(known), known)
        init(self, *given, **settings)

    return checked


def _check_known_settings(unknown: Iterable[str], known: Sequence[str]) -> None:
    for name in sorted(unknown):
        near = difflib.get_close_matches(name, known, n=1)
        meant = OTHER_WORDS.get(name.lower(), near[0] if near else None)
        guess = f" Did you mean {meant}=?" if meant in known else ""
        said = f" {NOT_HERE[name.lower()]}" if name.lower() in NOT_HERE else ""
        raise SettingError(
            f"Unknown setting {name!r}.{guess}{said} The settings are {', '.join(known)}."
        )


def check_number_of_parameters(structure: Any, inputs: int, hidden: Any) -> None:
    """A model whose weights and covariances have room in memory."""
    if not hidden and inputs > MOST_COLUMNS:
        raise DataError(
            f"there are {inputs:,} input columns, and {MOST_COLUMNS:,} are the most, since the "
            "products of every two are kept. Choose columns, or reduce them, for example with "
            "scikit-learn's PCA or SelectKBest."
        )
    widths = (inputs, *(hidden or ()))
    weights = sum((a + 1) * b for a, b in itertools.pairwise(map(int, widths)))
    effects = len(structure.random)
    covariances = effects * (effects + 1) // 2
    if weights + covariances > MOST_PARAMETERS:
        shown = f"hidden={hidden!r}" if hidden else f"random: {effects:,} columns"
        raise DataError(
            f"{shown}: {weights:,} weights, and effects of {effects:,} features with "
            f"{covariances:,} variances and covariances; {MOST_PARAMETERS:,} are the most. Choose "
            "narrower layers, or random='intercept' for one effect by group."
        )


def check_method(method: Any) -> None:
    """A method of ours or another one."""
    known = (*METHODS, *BASELINES)
    if published(method) is None and method not in known:
        raise DataError(
            f"method={method!r}: choose one of {', '.join(map(repr, known))}, or an object of "
            "nghvi.methods."
        )


def check_runs(method: Method, **asked: Any) -> None:
    """Devices and checkpoints are for the methods that run in steps of ours."""
    for name, value in asked.items():
        if value is not None and method in BASELINES:
            raise DataError(f"{name} with method={method!r}: only the NG-HVI methods support that.")


def check_stops(method: Method) -> None:
    """A method that watches held-out rows."""
    if method not in STOPPED_BY_VALIDATION:
        known = ", ".join(map(repr, STOPPED_BY_VALIDATION))
        raise DataError(f"validation with method={method!r}: only {known} stop by held-out rows.")


NOT_ON_DISK = (
    "rows on disk are read without what is known about each of them, and with two classes at most; "
    "read the table into memory (pandas.read_parquet; on the command line one file, without "
    "--batch-groups and with a larger --memory if need be)."
)


def check_on_disk(settings: Any, response: Response, y: Any, extra: Any) -> None:
    """Settings that rows on disk can be fitted with.

    ``extra``: what a table in memory may come with, and this may not.
    """
    if not isinstance(y, str):
        raise DataError(
            "y with a GroupedDataset is the name of the response column, such as 'profit'."
        )
    if not isinstance(settings.group, str):
        raise DataError(
            f"group={settings.group!r} with a GroupedDataset: name the group column; rows are "
            "read by groups."
        )
    if settings.formula is not None:
        raise DataError("a formula needs its table in memory: name columns instead (columns=).")
    if settings.missing != "error":
        raise DataError(
            f"missing={settings.missing!r} needs a table in memory: drop the rows from the files."
        )
    if extra is not None:
        raise DataError("counts and validation need a table in memory, not a GroupedDataset.")
    for name in ("trials", "exposure", "censored", "weights"):
        if getattr(settings, name) is not None:
            raise DataError(f"{name}={getattr(settings, name)!r}: {NOT_ON_DISK}")
    if response.takes_intercept:
        raise DataError(f"response={response.name!r}: {NOT_ON_DISK}")
    if settings.method != "auto":
        raise DataError(
            f"method={settings.method!r} needs all rows at every step: a GroupedDataset is fitted "
            "with method='auto'."
        )


def check_known_coef(known_coef: tuple[float, ...], method: Method, deep: bool) -> None:
    """Offsets and columns with effects only need a linear model and a method of ours."""
    if not known_coef:
        return
    if deep:
        raise DataError(
            "the formula has an offset, or effects of columns that are not its fixed part: with "
            "hidden layers write '(1 | group)' for an intercept by group or '(. | group)' for "
            "effects of every feature of the network, and no offset."
        )
    if method in BASELINES:
        raise DataError(
            f"method={method!r} supports neither offsets nor effects of columns that are not in "
            "the fixed part: add these columns to it, or use method='auto'."
        )


def is_deep(hidden: Any, trunk: Any) -> bool:
    """Whether there is a network; checks the layer widths."""
    hidden = () if hidden is None else hidden
    if not isinstance(hidden, list | tuple | np.ndarray):
        raise DataError(f"hidden={hidden!r}: give a tuple of layer widths, for example (32, 16).")
    if any(isinstance(w, bool) or not isinstance(w, numbers.Integral) or w < 1 for w in hidden):
        raise DataError(f"hidden={hidden!r}: every layer needs a width of at least 1.")
    if trunk is not None and hidden:
        raise DataError("give hidden (layer widths) or trunk (a network of your own), not both.")
    return bool(hidden) or trunk is not None


def pools(settings: Any, response: Response) -> bool:
    """Whether a network can have effects of more grouping factors than those that it is told."""
    given = (settings.method, settings.devices, settings.batch_groups)
    return response.conjugate and given in (("auto", None, None), ("auto", None, "auto"))


def choose_trunk(num_inputs: int, hidden: Any, activation: str, trunk: Any) -> Trunk:
    """The network, or the columns themselves."""
    if trunk is not None:
        try:
            return as_trunk(trunk, num_inputs)
        except (TypeError, ValueError) as error:
            raise DataError(f"trunk={trunk!r}: {error}") from error
    if not hidden:
        return Identity(num_inputs)
    if activation not in tuple(ACTIVATIONS):
        raise DataError(f"activation={activation!r}: choose one of {sorted(ACTIVATIONS)}.")
    return Perceptron(num_inputs, tuple(int(w) for w in hidden), activation)


def choose_skip(settings: Any, response: Response) -> bool:
    """Whether the inputs stand beside the network's features."""
    if settings.skip not in (True, False, "auto"):
        raise DataError(f"skip={settings.skip!r}: choose True, False or 'auto'.")
    if settings.skip != "auto":
        return bool(settings.skip)
    ours = settings.method == "auto" and settings.priors is None
    return bool(settings.hidden) and ours and response.conjugate


def scales_inputs(settings: Any) -> bool:
    """Whether hidden layers see inputs with heavy tails by asinh."""
    if settings.scaling not in ("auto", "plain"):
        raise DataError(f"scaling={settings.scaling!r}: choose 'auto' or 'plain'.")
    return settings.scaling == "auto" and bool(settings.hidden) and settings.method == "auto"


def beside_inputs(priors: Priors, inputs: int, learnt: int, *, correlated: bool) -> Priors:
    """The default priors of a network's features that have the inputs beside them.

    Effects are independent unless they are asked to be ``correlated``: groups are seldom many
    enough for the covariances of dozens of effects.
    """
    coef = (*[BESIDE_COEF] * (1 + inputs), *[LEARNT_COEF] * learnt)
    scale = (INTERCEPT_SD, *[SLOPE_SD] * inputs, *[LEARNT_SD] * learnt)
    effects = HuangWand(scale=scale) if correlated else HalfT(scale=scale)
    return dataclasses.replace(priors, coef_sd=coef, effects=effects)


def choose_priors(priors: Any, covariance: str) -> Priors:
    """The priors, with a covariance structure that agrees with them."""
    if covariance not in COVARIANCES:
        raise DataError(f"covariance={covariance!r}: choose 'auto', 'full' or 'diagonal'.")
    priors = Priors() if priors is None else priors
    if not isinstance(priors, Priors):
        raise DataError(f"priors={priors!r}: give a nghvi.priors.Priors.")
    effects = priors.effects
    if covariance == "diagonal" and isinstance(effects, HuangWand):
        effects = HalfT(effects.df, effects.scale)
    diagonal = isinstance(effects, InverseGamma | HalfT)
    if covariance == "full" and diagonal:
        raise DataError(
            f"covariance='full' with {effects}: this prior makes the effects independent; use "
            "HuangWand() or WishartPrecision(scale) for correlated ones."
        )
    if covariance == "diagonal" and not diagonal:
        raise DataError(
            f"covariance='diagonal' with {effects}: use InverseGamma or HalfT as the prior."
        )
    return dataclasses.replace(priors, effects=effects)


def choose_response(response: Any, usual: str, *, classes: bool) -> Response:
    """The response by name, or an object, if it is of the right kind."""
    if isinstance(response, Response) and response.classes == classes:
        return response
    fitting = [known for known, kind in RESPONSES.items() if kind.classes == classes]
    chosen = usual if isinstance(response, str) and response == "auto" else response
    if not isinstance(chosen, str) or chosen not in fitting:
        owner, other = sorted(("MixedRegressor", "MixedClassifier"), reverse=not classes)
        raise DataError(
            f"response={response!r}: {owner} knows {', '.join(map(repr, fitting))}, and objects "
            f"such as nghvi.responses.{RESPONSES[usual].__name__}(); see {other} for the others."
        )
    return RESPONSES[chosen]()


def choose_batch_groups(setting: Any, rows: Rows, method: Method, sums_suffice: bool) -> int | None:
    """Groups at a step; None for all of them, as where sums over rows are taken once for all."""
    if setting is None or (method != "auto" and setting == "auto"):
        return None
    if method != "auto":
        raise DataError(
            f"batch_groups={setting!r} with method={method!r}: only method='auto' takes some "
            "groups at a step."
        )
    if sums_suffice:
        return None
    if setting != "auto":
        return int(setting) if setting < rows.num_groups else None
    pieces = round(rows.num_rows / ROWS_PER_PIECE)
    if pieces < FEWEST_PIECES:
        return None
    if WORTHWHILE * len(distinct_rows(np.asarray(rows.x))[0]) <= rows.num_rows:
        return None  # a network on the distinct inputs costs less than on a batch of rows
    return max(1, round(rows.num_groups / pieces))


def choose_centred(
    num_columns: int,
    random: tuple[int, ...],
    prior: EffectsPrior,
    *,
    fit_intercept: bool,
    deep: bool,
) -> np.ndarray:
    """Which columns are centred."""
    if deep:  # A network's first layer has biases of its own.
        return np.full(num_columns, True)
    correlated = isinstance(prior, HuangWand | WishartPrecision)
    return centred_columns(num_columns, random, fit_intercept=fit_intercept, correlated=correlated)
