"""Cost of one optimisation step of a deep mixed model, in units of the plain network.

The unit is one jitted value_and_grad of the squared error loss of the same network on the same
rows; both run inside a compiled loop. Shapes: Examples 2(a), 2(b) and 3, and the asset pricing
panel (309,960 rows, 120 distinct inputs, 548 groups) with and without collapsing repeated rows.

Run: python -m benchmarks.network_step
"""

import json
import pathlib
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from nghvi._core.direction import ScaledGradient
from nghvi._core.draws import IndependentDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.model import initial_theta
from nghvi._core.score import Integrated, Sampled, Score
from nghvi._core.step_rules import Adam
from nghvi.data import Rows
from nghvi.families import FactorGaussian
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Perceptron
from nghvi.paper.studies.facts import about
from nghvi.priors import InverseGamma, Priors
from nghvi.recipes.deep import starting_sd
from nghvi.responses import Gaussian, Probit


class Shape(NamedTuple):
    """What decides the cost."""

    groups: int
    rows_per_group: int
    inputs: int
    hidden: tuple[int, ...]
    rank: int
    binary: bool = False
    distinct: int = 0
    """Number of distinct inputs; 0 means all are."""


SHAPES = {
    "2(a)": Shape(1000, 6, 5, (5, 5), 3),
    "2(b)": Shape(1000, 30, 64, (32, 16), 3),
    "3": Shape(1000, 14, 5, (5, 5), 1, binary=True),
    "finance": Shape(548, 0, 5, (32, 16, 8), 5, distinct=120),
}


def make_rows(shape: Shape) -> Rows:
    rng = np.random.default_rng(0)
    if shape.distinct:
        # 2,583 firms over 548 groups of very unequal size, each seen at every input.
        firms = np.bincount(np.minimum(rng.zipf(1.6, 2583 - 548), 548) - 1, minlength=548) + 1
        group = np.repeat(np.arange(548), firms * shape.distinct)
        x = rng.normal(size=(shape.distinct, shape.inputs))
        x = np.tile(x, (firms.sum(), 1))
    else:
        group = np.repeat(np.arange(shape.groups), shape.rows_per_group)
        x = rng.normal(size=(group.size, shape.inputs))
    y = rng.normal(size=group.size) + np.maximum(x[:, 0], 0)
    return Rows.from_arrays(x, (y > 0.5) * 1.0 if shape.binary else y, group, shape.groups)


def milliseconds(body: Any, start: Any, seconds: float = 2.0) -> float:
    """Best time of one pass of a compiled loop of ``body``."""
    run = eqx.filter_jit(lambda s, n: jax.lax.fori_loop(0, n, body, s))
    jax.block_until_ready(run(start, jnp.asarray(1)))
    begun = time.perf_counter()
    jax.block_until_ready(run(start, jnp.asarray(3)))
    number = max(3, int(seconds / 3 / max((time.perf_counter() - begun) / 3, 1e-5)))
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        jax.block_until_ready(run(start, jnp.asarray(number)))
        times.append((time.perf_counter() - begun) / number)
    return 1e3 * min(times)


def plain(model: MixedModel, rows: Rows) -> float:
    params = model.init_params(jax.random.key(0), rows)

    def body(i: Any, p: Any) -> Any:
        def loss(p: Any) -> Any:
            return jnp.sum((rows.y - model.features(p, rows.x) @ p.coef) ** 2)

        value, slope = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda a, b: a - 1e-12 * value * b, p, slope)

    return milliseconds(body, params)


def step(model: MixedModel, data: Any, score: Score, rank: int) -> float:
    key = jax.random.key(0)
    unit = starting_sd(model.init_params(key, data))
    q = FactorGaussian.start(initial_theta(key, model, data), unit, rank, 0.01 * unit[:, None])
    algorithm = HybridVI(
        IndependentDraws(1), score, ScaledGradient(unit, 1.0), Adam(1e-9, 1000, 0.5)
    )
    state = eqx.filter_jit(algorithm.init)(key, model, data, q)
    return milliseconds(
        lambda i, s: algorithm.step(jax.random.fold_in(key, i), s, model, data)[0], state
    )


def difference(model: MixedModel, rows: Rows, small: Any) -> float:
    """Largest relative difference between the two scores."""
    params = model.init_params(jax.random.key(1), rows)
    score = eqx.filter_jit(lambda d: jax.grad(lambda p: model.log_marginal(p, d))(params))
    pairs = zip(jax.tree.leaves(score(rows)), jax.tree.leaves(score(small)), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / (1e-300 + jnp.max(jnp.abs(a)))) for a, b in pairs)


def main() -> int:
    """Time every shape, print ratios and write rows."""
    found = []
    for name, shape in SHAPES.items():
        rows = make_rows(shape)
        response, score = (Probit(), Sampled()) if shape.binary else (Gaussian(), Integrated())
        trunk = Perceptron(shape.inputs, shape.hidden)
        sweeps = 2 if shape.binary else None
        random = tuple(range(shape.hidden[-1] + 1))
        model = MixedModel(trunk, response, Priors(noise=InverseGamma()), random, sweeps)
        row: dict[str, Any] = {"shape": name, "plain_ms": plain(model, rows)}
        row["step_ms"] = step(model, rows, score, shape.rank)
        row["ratio"] = row["step_ms"] / row["plain_ms"]
        if shape.distinct:
            small = prepare(model, rows)
            row["collapsed_ms"] = step(model, small, score, shape.rank)
            row["times_cheaper"] = row["step_ms"] / row["collapsed_ms"]
            row["score_difference"] = difference(model, rows, small)
        found.append(row)
        print(
            "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else v for k, v in row.items()),
            flush=True,
        )
    results = pathlib.Path(__file__).parent / "results" / "network_step.json"
    results.write_text(json.dumps({"about": about(), "rows": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
