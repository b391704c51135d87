"""The paper's simulated examples: the same processes, fresh draws.

Constants are the paper's. The hidden weights of Example 2(a), which it does not print, are those of
the authors' program. Those of Example 2(b) are in one of their files: pass it as ``parameters``;
otherwise a network of the same shape with random weights is used.
"""

import hashlib
import json
import pathlib
from typing import NamedTuple

import numpy as np
import pandas as pd

GROUP = "group"
INPUT_CORRELATION = np.array(
    [
        [1.0, 0.0, -0.5, 0.2, 0.0],
        [0.0, 1.0, 0.0, -0.5, 0.2],
        [-0.5, 0.0, 1.0, 0.0, -0.5],
        [0.2, -0.5, 0.0, 1.0, 0.0],
        [0.0, 0.2, -0.5, 0.0, 1.0],
    ]
)
COEF_1 = np.array([0.8292, -1.3250, 0.9909, 1.6823, -1.7564, 0.0580])
COEF_2A = np.array([0.8292, -1.3250, 3.9909, 1.6823, -1.7564, 0.5580])
PRECISION_2A = np.array([1.0443, 9.0498, 0.4569, 0.5190, 0.2857, 2.7548])
WEIGHTS_2A = [
    np.array(
        [
            [-0.1707, 0.1172, -0.1895, -0.2492, 0.0248, -0.0832],
            [0.1504, -0.1364, 1.2092, 0.1060, 0.1503, -0.1479],
            [0.2405, 0.0685, -0.9980, -0.1831, -0.5280, -0.1237],
            [-0.0778, 0.1822, -0.1251, 1.0701, -0.1563, 0.0894],
            [0.1122, -0.1326, 0.1913, -0.1283, -0.1156, 0.1055],
        ]
    ),
    np.array(
        [
            [2.0222, -0.4532, 0.5586, -1.2149, -0.6363, 1.0118],
            [1.0507, 0.5432, 1.1082, -1.2565, 0.2018, 0.5704],
            [-0.0383, -0.3346, 1.0881, -0.5966, 1.0482, -0.9536],
            [1.0308, 0.2975, 1.0769, 1.4464, -0.5461, 0.1874],
            [1.9315, 1.0029, -1.2876, -0.1965, -0.4191, 0.9219],
        ]
    ),
]
NUM_GROUPS = 1000


class Part(NamedTuple):
    """Inputs with a group column, and the response."""

    inputs: pd.DataFrame
    y: np.ndarray


class Problem(NamedTuple):
    """Training rows, rows for a stopping rule, rows to score; the mean of y where it is known."""

    train: Part
    validation: Part
    test: Part
    test_mean: np.ndarray

    def ungrouped(self) -> "Problem":
        """The same rows without the group column."""
        train, validation, test = (
            part._replace(inputs=part.inputs.drop(columns=GROUP))
            for part in (self.train, self.validation, self.test)
        )
        return self._replace(train=train, validation=validation, test=test)


def _part(x: np.ndarray, y: np.ndarray) -> Part:
    """From arrays (groups, rows per group, ...)."""
    frame = pd.DataFrame(
        x.reshape(-1, x.shape[-1]), columns=[f"x{j + 1}" for j in range(x.shape[-1])]
    )
    return Part(frame.assign(**{GROUP: np.repeat(np.arange(len(x)), x.shape[1])}), y.ravel())


def _split(x: np.ndarray, y: np.ndarray, mean: np.ndarray, sizes: tuple[int, int, int]) -> Problem:
    first, second = sizes[0], sizes[0] + sizes[1]
    train, validation, test = (
        _part(x[:, cut], y[:, cut])
        for cut in (slice(0, first), slice(first, second), slice(second, sum(sizes)))
    )
    return Problem(train, validation, test, mean[:, second:].ravel())


def example1(num_groups: int, ratio: float, seed: int) -> Problem:
    """5,000 rows of a linear model with a random intercept of variance ``ratio``."""
    rng = np.random.default_rng([1, seed])
    size = 5000 // num_groups
    x = rng.multivariate_normal(np.zeros(5), INPUT_CORRELATION, (num_groups, size + 1))
    mean = COEF_1[0] + x @ COEF_1[1:] + np.sqrt(ratio) * rng.normal(size=(num_groups, 1))
    return _split(x, mean + rng.normal(size=mean.shape), mean, (size, 0, 1))


class NetworkProcess(NamedTuple):
    """A Gaussian network with independent random coefficients."""

    weights: list[np.ndarray]
    coef: np.ndarray
    effect_var: np.ndarray
    noise_var: float
    correlation: np.ndarray
    """Correlation matrix of the inputs."""


def network(
    rng: np.random.Generator,
    process: NetworkProcess,
    sizes: tuple[int, int, int],
    num_groups: int = NUM_GROUPS,
) -> Problem:
    """``sizes``: rows per group for training, validation and test."""
    weights, coef, effect_var, noise_var, correlation = process
    x = rng.multivariate_normal(np.zeros(len(correlation)), correlation, (num_groups, sum(sizes)))
    h = x
    for w in weights:
        h = np.maximum(h @ w[:, 1:].T + w[:, 0], 0)
    h = np.concatenate([np.ones((*h.shape[:2], 1)), h], axis=-1)
    effects = rng.normal(size=(num_groups, len(coef))) * np.sqrt(effect_var)
    mean = np.einsum("kni,ki->kn", h, coef + effects)
    return _split(x, mean + np.sqrt(noise_var) * rng.normal(size=mean.shape), mean, sizes)


def example2a(seed: int, num_groups: int = NUM_GROUPS) -> Problem:
    """A [5, 5] network with random coefficients; 6, 2 and 2 rows per group."""
    rng = np.random.default_rng([2, seed])
    process = NetworkProcess(WEIGHTS_2A, COEF_2A, 1 / PRECISION_2A, 20.0, INPUT_CORRELATION)
    return network(rng, process, (6, 2, 2), num_groups)


def example2b(
    seed: int, parameters: pathlib.Path | None = None, num_groups: int = NUM_GROUPS
) -> Problem:
    """A [32, 16] network of 64 inputs; 30, 10 and 10 rows per group."""
    rng = np.random.default_rng([3, seed])
    if parameters is None:
        shapes = [(32, 64), (16, 32)]
        weights = [
            np.column_stack([np.zeros(m), rng.normal(size=(m, n)) * np.sqrt(2 / n)])
            for m, n in shapes
        ]
        coef, effect_var = rng.normal(size=17), rng.exponential(0.2, 17)
        process = NetworkProcess(weights, coef, effect_var, 2.25, np.eye(64))
    else:
        process = stored_process(parameters)
    return network(rng, process, (30, 10, 10), num_groups)


def network_name(parameters: pathlib.Path | None) -> str:
    """Which network makes the data of Example 2(b), as its rows record it."""
    if parameters is None:
        return "a network with random weights (no --parameters)"
    digest = hashlib.sha256(parameters.read_bytes()).hexdigest()
    return f"the network of --parameters, {digest[:8]}"


def stored_process(parameters: pathlib.Path) -> NetworkProcess:
    """The authors' process of Example 2(b)."""
    held = json.loads(parameters.read_text())
    weights = [np.array(w) for w in held[next(k for k in held if "eight" in k)]]
    effect_var = np.diag(np.array(held["Sigma_alpha"]))
    coef, correlation = np.ravel(held["beta"]), np.array(held["V_x"])
    return NetworkProcess(weights, coef, effect_var, 2.25, correlation)


def example3(seed: int, effect_sd: float, num_groups: int = NUM_GROUPS) -> Problem:
    """Binary rows, smooth in five uniform inputs; effects of sd 1 (the text) or 0.1 (the code)."""
    rng = np.random.default_rng([4, seed])
    x = rng.uniform(-1, 1, (num_groups, 20, 5))
    x1, x2, x3, x4, x5 = np.moveaxis(x, -1, 0)
    effects = effect_sd * rng.normal(size=(num_groups, 1))
    eta = 2 + 3 * (x1 - 2 * x2) ** 2 - 5 * x3 / (1 + x4) ** 2 - 5 * x5 + effects
    probability = 1 / (1 + np.exp(-np.clip(eta, -700, 700)))
    y = (rng.random(eta.shape) < probability).astype(float)
    return _split(x, y, probability, (14, 3, 3))


def probit(seed: int) -> tuple[Problem, np.ndarray]:
    """The web appendix's probit model, 100 groups of 20; and its latent y* (training rows)."""
    rng = np.random.default_rng([5, seed])
    root, diagonal = rng.normal(size=(3, 1)), rng.uniform(0.5, 1.5, 3)
    covariance = root @ root.T + np.diag(diagonal)
    coef = np.sqrt(10) * rng.normal(size=4)
    x = rng.multivariate_normal(np.zeros(3), covariance, (100, 21))
    latent = coef[0] + x @ coef[1:] + rng.normal(size=(100, 1)) + rng.normal(size=(100, 21))
    y = (latent > 0).astype(float)
    return _split(x, y, latent, (20, 0, 1)), latent[:, :20].ravel()


def group_shares(train: Part, part: Part) -> np.ndarray:
    """Each row's probability: the share of ones in its group's training rows."""
    means = train.inputs.assign(y=train.y).groupby(GROUP)["y"].mean()
    return part.inputs[GROUP].map(means).to_numpy()


def majority(train: Part, part: Part) -> np.ndarray:
    """Probability 1 or 0 for all rows: whichever is more frequent in training."""
    return np.full(len(part.y), float(train.y.mean() > 0.5))
