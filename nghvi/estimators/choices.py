"""Turns an estimator's settings into the parts of a model; every error names the setting."""

import dataclasses
import difflib
import functools
import inspect
import itertools
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nghvi._core.response import Response
from nghvi.data import Rows
from nghvi.data.frame import DataError
from nghvi.data.panel import WORTHWHILE, distinct_rows
from nghvi.data.pieces import ROWS_PER_PIECE
from nghvi.inference import METHODS
from nghvi.methods import Method, published
from nghvi.networks import ACTIVATIONS, Identity, Perceptron, Trunk, as_trunk
from nghvi.paper.methods import BASELINES, STOPPED_BY_VALIDATION
from nghvi.priors import HalfT, HuangWand, Priors
from nghvi.responses import RESPONSES

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

FEWEST_PIECES = 4
"""The fewest pieces that batch_groups="auto" makes: with fewer, a step would hardly cost less."""
BESIDE_COEF, LEARNT_COEF = 10.0, 1.0
"""Default prior sds of coefficients, in units of the data: of the inputs beside a network, and of
what it learns."""
INTERCEPT_SD, SLOPE_SD, LEARNT_SD = 2.5, 0.5, 1.0
"""Default prior scales of the effects' sds, in the same units: of the intercept, of the inputs
beside a network, and of what it learns."""
COVARIANCES = ("auto", "full", "diagonal")
MOST_COUNTED = 10**9
"""The largest number of steps, draws or starts: more would take longer than anyone waits."""
MOST_PARAMETERS = 10**7
"""The most weights and covariances of a model, so that they fit into memory."""
MOST_COLUMNS = 10_000
"""The most inputs of a linear model, which keeps the products of every two of them."""
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
"""Settings by the names that other programs give them."""
NOT_HERE = {
    "reml": "There is no REML: the posterior holds the uncertainty of all coefficients.",
    "sample_weight": "For rows that were observed several times use fit(..., counts=), for "
    "precisions weights='w'.",
    "offset": "An offset is a term of a formula: 'y ~ x + offset(z)'.",
}
"""What to do instead of settings that other programs have."""


class SettingError(DataError, TypeError):
    """There is no such setting. Also a TypeError, as Python raises for unknown arguments."""


def check_counts(*, optional: bool = True, **settings: Any) -> None:
    """Raise an error unless settings are positive whole numbers, or None or "auto" if optional."""
    for name, value in settings.items():
        if optional and (value is None or (isinstance(value, str) and value == "auto")):
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
            raise DataError(f"{name}={value!r}: it must be a positive whole number.")
        if int(value) > MOST_COUNTED:
            raise DataError(f"{name}={value}: it must be at most {MOST_COUNTED:,}.")


def check_seed(**settings: Any) -> None:
    """Raise an error unless settings are valid seeds."""
    for name, value in settings.items():
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not whole or not 0 <= int(value) < 2**63:
            raise DataError(f"{name}={value!r}: it must be a whole number from 0 to 2**63 - 1.")


def check_draws(draws: Any, seed: Any) -> None:
    """Raise an error unless these are a number of draws and a seed."""
    check_counts(optional=False, draws=draws)
    check_seed(seed=seed)


def choose_seed(random_state: Any) -> int:
    """Return the seed that a setting stands for; a random generator provides one."""
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    check_seed(random_state=random_state)
    return int(random_state)


def with_known_settings(init: Callable[..., None]) -> Callable[..., None]:
    """Make a constructor refuse unknown settings, with a hint at what may have been meant."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked(self: Any, *given: Any, **settings: Any) -> None:
        for name in sorted(settings.keys() - set(known)):
            near = difflib.get_close_matches(name, known, n=1)
            meant = OTHER_WORDS.get(name.lower(), near[0] if near else None)
            guess = f" Did you mean {meant}=?" if meant in known else ""
            said = f" {NOT_HERE[name.lower()]}" if name.lower() in NOT_HERE else ""
            raise SettingError(
                f"Unknown setting {name!r}.{guess}{said} The settings are {', '.join(known)}."
            )
        init(self, *given, **settings)

    return checked


def check_number_of_parameters(effects: int, inputs: int, hidden: Any) -> None:
    """Raise an error if weights and covariances of a model would not fit into memory."""
    if not hidden and inputs > MOST_COLUMNS:
        raise DataError(
            f"there are {inputs:,} input columns, but at most {MOST_COLUMNS:,} are allowed, since "
            "the products of every two are kept. Choose columns, or reduce them, for example with "
            "scikit-learn's PCA or SelectKBest."
        )
    widths = (inputs, *(hidden or ()))
    weights = sum((a + 1) * b for a, b in itertools.pairwise(map(int, widths)))
    covariances = effects * (effects + 1) // 2
    if weights + covariances > MOST_PARAMETERS:
        shown = f"hidden={hidden!r}" if hidden else f"random: {effects:,} columns"
        raise DataError(
            f"{shown}: the model would have {weights:,} weights and {covariances:,} variances and "
            f"covariances of {effects:,} effects, but at most {MOST_PARAMETERS:,} are allowed. "
            "Choose narrower layers, or random='intercept' for one effect per group."
        )


def check_method(method: Any) -> None:
    """Raise an error unless there is such a method."""
    known = (*METHODS, *BASELINES)
    if published(method) is None and method not in known:
        raise DataError(
            f"method={method!r}: choose one of {', '.join(map(repr, known))}, or an object of "
            "nghvi.methods."
        )


def check_runs(method: Method, **asked: Any) -> None:
    """Raise an error if devices or checkpoints are asked for with a method of others."""
    for name, value in asked.items():
        if value is not None and method in BASELINES:
            raise DataError(
                f"method={method!r} does not support {name}; leave {name} out, or use "
                "method='auto' or an NG-HVI method."
            )


def check_stops(method: Method) -> None:
    """Raise an error unless the method stops by held-out rows."""
    if method not in STOPPED_BY_VALIDATION:
        known = ", ".join(map(repr, STOPPED_BY_VALIDATION))
        raise DataError(
            f"method={method!r} makes no use of validation; leave it out, or use a method that "
            f"stops by held-out rows ({known})."
        )


NOT_ON_DISK = (
    "rows on disk support neither facts about each row nor more than two classes; read the table "
    "into memory (pandas.read_parquet; on the command line pass one file without --batch-groups, "
    "and a larger --memory if necessary)."
)


def check_on_disk(settings: "MixedEstimator", response: Response, y: Any, extra: Any) -> None:
    """Raise an error if rows on disk cannot be fitted with these settings.

    ``extra`` is the counts or validation rows, which only a table in memory may come with.
    """
    if not isinstance(y, str):
        raise DataError(
            "with a GroupedDataset, y is the name of the response column, such as 'profit'."
        )
    if not isinstance(settings.group, str):
        raise DataError(
            f"group={settings.group!r}: rows on disk are read by group, so name one group column."
        )
    if settings.formula is not None:
        raise DataError(
            "a formula needs a table in memory; with a GroupedDataset name the columns instead "
            "(columns=)."
        )
    if settings.missing != "error":
        raise DataError(
            f"missing={settings.missing!r} needs a table in memory; with a GroupedDataset drop "
            "such rows from the files."
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
            f"method={settings.method!r} needs all rows at every step; use method='auto' with a "
            "GroupedDataset."
        )


def check_known_coef(known_coef: tuple[float, ...], method: Method, deep: bool) -> None:
    """Raise an error if a model or method cannot have offsets or columns with effects only."""
    if not known_coef:
        return
    if deep:
        raise DataError(
            "the formula has an offset, or effects of columns that are not in its fixed part; with "
            "hidden layers write '(1 | group)' for an intercept per group or '(. | group)' for "
            "effects of every feature of the network, and no offset."
        )
    if method in BASELINES:
        raise DataError(
            f"method={method!r} supports neither offsets nor effects of columns that are not in "
            "the fixed part; add these columns to it, or use method='auto'."
        )


def is_deep(hidden: Any, trunk: Any) -> bool:
    """Return whether there is a network, after checking the widths of its layers."""
    hidden = () if hidden is None else hidden
    if not isinstance(hidden, list | tuple | np.ndarray):
        raise DataError(f"hidden={hidden!r}: it must be a tuple of layer widths, such as (32, 16).")
    if any(isinstance(w, bool) or not isinstance(w, numbers.Integral) or w < 1 for w in hidden):
        raise DataError(f"hidden={hidden!r}: every layer needs a width of at least 1.")
    if trunk is not None and hidden:
        raise DataError("pass hidden (layer widths) or trunk (a network of your own), not both.")
    return bool(hidden) or trunk is not None


def pools(settings: "MixedEstimator", response: Response) -> bool:
    """Return whether a network may treat the levels of large categories as further groups."""
    given = (settings.method, settings.devices, settings.batch_groups)
    return response.conjugate and given in (("auto", None, None), ("auto", None, "auto"))


def choose_trunk(num_inputs: int, hidden: Any, activation: str, trunk: Any) -> Trunk:
    """Return the network, or the identity for a linear model."""
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


def choose_skip(settings: "MixedEstimator") -> bool:
    """Return whether the inputs are features beside those of the network."""
    if settings.skip not in (True, False, "auto"):
        raise DataError(f"skip={settings.skip!r}: choose True, False or 'auto'.")
    if settings.skip != "auto":
        return bool(settings.skip)
    ours = settings.method == "auto" and settings.priors is None
    return bool(settings.hidden) and ours


def scales_inputs(settings: "MixedEstimator") -> bool:
    """Return whether hidden layers see asinh of inputs with heavy tails."""
    if settings.scaling not in ("auto", "plain"):
        raise DataError(f"scaling={settings.scaling!r}: choose 'auto' or 'plain'.")
    return settings.scaling == "auto" and bool(settings.hidden) and settings.method == "auto"


def beside_inputs(priors: Priors, inputs: int, learnt: int, *, correlated: bool) -> Priors:
    """Return the default priors for a network with ``inputs`` inputs beside ``learnt`` features.

    Effects are independent unless they should be ``correlated``: there are seldom enough groups to
    estimate the covariances of dozens of effects.
    """
    coef = (*[BESIDE_COEF] * (1 + inputs), *[LEARNT_COEF] * learnt)
    scale = (INTERCEPT_SD, *[SLOPE_SD] * inputs, *[LEARNT_SD] * learnt)
    effects = HuangWand(scale=scale) if correlated else HalfT(scale=scale)
    return dataclasses.replace(priors, coef_sd=coef, effects=effects)


def choose_priors(priors: Any, covariance: str) -> Priors:
    """Return the priors with the covariance structure that was asked for."""
    if covariance not in COVARIANCES:
        raise DataError(f"covariance={covariance!r}: choose 'auto', 'full' or 'diagonal'.")
    priors = Priors() if priors is None else priors
    if not isinstance(priors, Priors):
        raise DataError(f"priors={priors!r}: it must be a nghvi.priors.Priors.")
    effects = priors.effects
    if covariance == "diagonal" and isinstance(effects, HuangWand):
        effects = HalfT(effects.df, effects.scale)
    if covariance == "full" and not effects.correlated:
        raise DataError(
            f"covariance='full' contradicts the prior {effects}, which makes effects independent; "
            "use HuangWand() or WishartPrecision(scale) for correlated ones."
        )
    if covariance == "diagonal" and effects.correlated:
        raise DataError(
            f"covariance='diagonal' contradicts the prior {effects}; use InverseGamma or HalfT for "
            "independent effects."
        )
    return dataclasses.replace(priors, effects=effects)


def choose_response(response: str | Response, usual: str, *, classes: bool) -> Response:
    """Return the response, given by name or as an object, if the estimator supports it.

    ``usual`` is the name that "auto" stands for; ``classes`` says that the estimator is a
    classifier.
    """
    if isinstance(response, Response) and response.classes == classes:
        return response
    fitting = [known for known, kind in RESPONSES.items() if kind.classes == classes]
    chosen = usual if isinstance(response, str) and response == "auto" else response
    if not isinstance(chosen, str) or chosen not in fitting:
        owner, other = sorted(("MixedRegressor", "MixedClassifier"), reverse=not classes)
        raise DataError(
            f"response={response!r}: {owner} knows {', '.join(map(repr, fitting))}, and objects "
            f"such as nghvi.responses.{RESPONSES[usual].__name__}(); for others see {other}."
        )
    return RESPONSES[chosen]()


def choose_batch_groups(setting: Any, rows: Rows, method: Method, sums_suffice: bool) -> int | None:
    """Return the number of groups per step, None for all.

    ``sums_suffice`` says that the model needs only sums over rows, which are taken once.
    """
    if setting is None or (method != "auto" and setting == "auto"):
        return None
    if method != "auto":
        raise DataError(
            f"batch_groups={setting!r} needs method='auto'; method={method!r} uses all groups at "
            "every step."
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
