"""Time of one NG-HVI step against the number of parameters and the number of groups.

    m   parameters of a model that costs next to nothing itself (a diagonal Gaussian density),
        so that what is timed is the factor Gaussian's algebra: published rule, p = 3
    K   groups of a linear mixed model with a random intercept (m = 8), and with an intercept
        and two slopes (m = 11); effects integrated out, cross products given

``python -m benchmarks step-cost`` prints times and log-log slopes, writes a plot to
``docs/figures/step_cost.png`` and the figures to ``benchmarks/results/step_cost.json``.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nghvi._core.draws import IndependentDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.loop import fit
from nghvi._core.model import LatentModel, MarginalModel, initial_theta
from nghvi._core.score import Integrated
from nghvi.data import LinearStatistics
from nghvi.families import FactorGaussian
from nghvi.methods import PUBLISHED
from nghvi.models.mixed import MixedModel
from nghvi.networks import Identity
from nghvi.paper.studies import facts
from nghvi.priors import InverseGamma, Priors, WishartPrecision
from nghvi.responses import Gaussian

ROOT = Path(__file__).parent.parent
RANK = 3
DIMENSIONS = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
GROUPS = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
REPEATS = 5
SECONDS_A_REPEAT = 0.3


class DiagonalGaussian(MarginalModel):
    """theta ~ N(centre, 1 / precision), independent; there are no latent variables."""

    def init_params(self, key: Any, data: Any) -> Any:
        return jnp.zeros_like(data[0])

    def log_marginal(self, params: Any, data: Any) -> Any:
        centre, precision = data
        return -0.5 * jnp.sum(precision * (params - centre) ** 2)

    def init_latents(self, key: Any, params: Any, data: Any) -> Any:
        return ()

    def log_joint(self, params: Any, latents: Any, data: Any) -> Any:
        return self.log_marginal(params, data)

    def sample_latents(self, key: Any, params: Any, latents: Any, data: Any) -> Any:
        return ()


def diagonal_problem(m: int) -> tuple[LatentModel, object]:
    rng = np.random.default_rng(m)
    centre, precision = rng.standard_normal(m), rng.uniform(0.5, 5.0, m)
    return DiagonalGaussian(), (jnp.asarray(centre), jnp.asarray(precision))


def mixed_problem(groups: int, num_effects: int) -> tuple[LatentModel, object]:
    """A linear mixed model whose cross products are drawn instead of summed over rows.

    Five rows per group, as if covariates and errors were standard normal: what a step costs does
    not depend on the numbers, and a million groups fit in memory.
    """
    rng, size, columns = np.random.default_rng(groups), 5, 6
    rows = size * groups
    design = np.sqrt(size) * rng.standard_normal((num_effects, columns, groups))
    # Z'Z of each group: a Wishart draw, so that it is a possible sum of products.
    sample = rng.standard_normal((size, num_effects, groups))
    sample[:, 0] = 1.0
    gram = np.einsum("nik,njk->ijk", sample, sample)
    design[:, :num_effects] = gram
    cross = np.sqrt(2 * size) * rng.standard_normal((num_effects, groups))
    data = LinearStatistics(
        centre=jnp.zeros(columns),
        gram_total=rows * jnp.eye(columns),
        cross_total=jnp.zeros(columns),
        square_total=jnp.asarray(2.0 * rows),
        variance=jnp.asarray(2.0),
        effects_gram=jnp.asarray(gram),
        effects_design=jnp.asarray(design),
        effects_cross=jnp.asarray(cross),
        original_order=jnp.arange(groups),
        num_rows=jnp.asarray(rows, float),
        num_groups=groups,
    )
    effects = InverseGamma() if num_effects == 1 else WishartPrecision(1.0)
    priors = Priors(noise=InverseGamma(), effects=effects)
    random = tuple(range(num_effects))
    return MixedModel(Identity(columns), Gaussian(), priors, random), data


def seconds_per_step(model: LatentModel, data: object) -> dict[str, float]:
    """Best and median of several runs of the library's own loop, after compilation."""
    rule = PUBLISHED["ng-hvi"]
    algorithm = HybridVI(IndependentDraws(1), Integrated(), rule.direction, rule.step_rule)
    key = jax.random.key(0)
    start = initial_theta(key, model, data)
    q = FactorGaussian.start(start, jnp.full_like(start, 0.1), RANK, signed_scale=True)

    def advance(number: int, chunk: int, so_far: Any = None) -> tuple[float, Any]:
        begun = time.perf_counter()
        done = 0 if so_far is None else so_far.step
        so_far = fit(
            key, algorithm, model, data, q, num_steps=done + number, chunk=chunk, resume=so_far
        )
        jax.block_until_ready(so_far.state)
        return time.perf_counter() - begun, so_far

    _, run = advance(10, 10)  # compiles
    rough, run = advance(10, 10, run)
    steps = 10 * int(np.clip(SECONDS_A_REPEAT / rough, 1, 200))
    chunk = 10
    if rough < 0.1:
        # The loop's fixed cost per chunk, about a millisecond, would show: compile longer chunks.
        chunk = steps
        _, run = advance(steps, chunk)
    times = []
    for _ in range(REPEATS):
        seconds, run = advance(steps, chunk, run)
        times.append(seconds / steps)
    finite = bool(np.isfinite(np.asarray(run.state.q.mean)).all())
    return {"best": min(times), "median": float(np.median(times)), "steps": steps, "finite": finite}


def sweep(name: str, sizes: Sequence[int], build: Any) -> dict[str, Any]:
    """Times over sizes and their slopes; prints a line for each."""
    points = []
    for size in sizes:
        model, data = build(size)
        point = {"size": size, **seconds_per_step(model, data)}
        print(f"{name}  {size:>9,}  {1e3 * point['best']:9.4f} ms per step", flush=True)
        points.append(point)
    best = [p["best"] for p in points]
    slopes = {"all sizes": slope(sizes, best)}
    if len(sizes) > 3:
        # Small sizes are dominated by a fixed cost; the law shows at the large end.
        slopes["last decade and a half"] = slope(sizes[-4:], best[-4:])
    text = ", ".join(f"{part}: {value:.2f}" for part, value in slopes.items())
    print(f"{name}  log-log slope, {text}\n", flush=True)
    return {"name": name, "points": points, "slopes": slopes}


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Least squares slope of log time on log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def plot(left: Sequence[dict], right: Sequence[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.6), sharey=True, layout="constrained")
    titles = ("parameters m", "groups K")
    for axis, sweeps, title in zip(axes, (left, right), titles, strict=True):
        for swept in sweeps:
            sizes = np.array([p["size"] for p in swept["points"]])
            times = 1e3 * np.array([p["best"] for p in swept["points"]])
            axis.loglog(sizes, times, "o-", label=swept["name"])
        line = times[-1] * sizes / sizes[-1]
        axis.loglog(sizes, line, "k:", linewidth=1, label="proportional to size")
        axis.set_xlabel(title)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("milliseconds per step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks step-cost", description=__doc__)
    parser.add_argument("--largest", type=int, default=None, help="leave out sizes above this")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs/figures/step_cost.png")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/step_cost.json")
    options = parser.parse_args(arguments)

    def kept(sizes: Sequence[int]) -> list[int]:
        return [s for s in sizes if options.largest is None or s <= options.largest]

    about = facts.about()
    left = [sweep(f"factor Gaussian, p = {RANK}", kept(DIMENSIONS), diagonal_problem)]
    right = [
        sweep("linear, random intercept", kept(GROUPS), lambda k: mixed_problem(k, 1)),
        sweep("linear, 3 correlated effects", kept(GROUPS), lambda k: mixed_problem(k, 3)),
    ]
    plot(left, right, options.figure)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    content = {"about": about, "parameters": left, "groups": right}
    options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
