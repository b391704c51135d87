"""The web appendix's probit model: how fast each hybrid rule finds the latent y*.

The paper's steps draw effects and y*; ours draw effects by the same sweeps and take the gradient of
log p(y | effects, theta), in which y* is integrated out.
"""

import pathlib
import time
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from nghvi._core.draws import IndependentDraws
from nghvi._core.hybrid import HybridVI
from nghvi._core.loop import fit
from nghvi._core.model import unraveller
from nghvi._core.score import Sampled
from nghvi._special import inverse_mills
from nghvi.families import FactorGaussian
from nghvi.methods import PUBLISHED, published_start
from nghvi.models.mixed import MixedModel
from nghvi.networks import Identity
from nghvi.paper.methods.gibbs import gibbs
from nghvi.paper.studies.compared import rows_of, with_intercept
from nghvi.paper.studies.exhibits import Table, save, trace_axes
from nghvi.paper.studies.problems import GROUP
from nghvi.paper.studies.problems import probit as simulate
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options, Study
from nghvi.priors import InverseGamma, Priors
from nghvi.responses import Probit

STEPS, EVERY, DRAWS = 10_000, 50, 20
MCMC, SWEEPS = "mcmc", 20_000


def run(cell: Row, options: Options) -> Row:
    """RMSE of y* and seconds every few steps."""
    problem, latent = simulate(cell["seed"])
    rows, x = rows_of(problem.train), jnp.asarray(with_intercept(problem.train))
    codes = problem.train.inputs[GROUP].to_numpy()
    model = MixedModel(Identity(4), Probit(), Priors(effects=InverseGamma()), (0,), 5)
    sign = jnp.asarray(2 * problem.train.y - 1)
    key = jax.random.key(cell["seed"])

    def given(coef: jax.Array, effects: jax.Array) -> jax.Array:
        """E[y* | coefficients, effects, y]."""
        eta = x @ coef + effects[codes, 0]
        return eta + sign * inverse_mills(sign * eta)

    def rmse(found: jax.Array) -> float:
        return float(np.sqrt(np.mean((found - latent) ** 2)))

    if cell["method"] == MCMC:
        drawn = gibbs(key, model, rows, draws=options.steps(SWEEPS), chains=1)
        both = (drawn.coef[0], cast(jax.Array, drawn.effects)[0])
        expected = jax.lax.map(lambda draw: given(*draw), both)
        return {"rmse": rmse(jnp.mean(expected, axis=0))}
    rule = PUBLISHED[cell["method"]]
    algorithm = HybridVI(IndependentDraws(1), Sampled(moving=False), rule.direction, rule.step_rule)
    start = published_start(model, rows, cell["seed"]).theta
    q = FactorGaussian.start(start, jnp.ones_like(start), 3, signed_scale=True)
    unravel = unraveller(model, rows)

    @jax.jit
    def y_star(theta: jax.Array) -> jax.Array:
        """E[y* | theta, y], by draws of the effects."""

        def one(key: jax.Array) -> jax.Array:
            effects = model.draw_effects(key, unravel(theta), rows)
            return given(unravel(theta).coef, rows.in_original_order(effects))

        return jnp.mean(jax.lax.map(one, jax.random.split(key, DRAWS)), axis=0)

    done = fit(key, algorithm, model, rows, q, num_steps=0, chunk=EVERY)
    steps = options.steps(STEPS)
    done = fit(key, algorithm, model, rows, q, num_steps=1, chunk=EVERY, resume=done)  # compile
    errors, seconds = [rmse(y_star(q.mean))], 0.0
    for number in range(EVERY, steps + 1, EVERY):
        begun = time.perf_counter()
        done = fit(key, algorithm, model, rows, q, num_steps=number, chunk=EVERY, resume=done)
        seconds += time.perf_counter() - begun
        errors.append(rmse(y_star(done.state.q.mean)))
    return {"steps": steps, "seconds": seconds, "trace_every": EVERY, "trace": errors}


class Arrival(NamedTuple):
    """When a curve comes within a share of a value; None where it does not."""

    first: int | None
    """The step at which it is there for the first time, wherever it goes next."""
    for_good: int | None
    """The step from which on it stays."""


def arrival(row: Row, value: float, share: float) -> Arrival:
    """When the RMSE of y* comes within a share of a value."""
    outside = np.abs(np.asarray(row["trace"]) - value) > share * value
    first = int(np.argmin(outside)) * row["trace_every"]
    last_outside = int(np.nonzero(outside)[0].max(initial=-1))
    return Arrival(
        None if outside.all() else first,
        None if outside[-1] else (last_outside + 1) * row["trace_every"],
    )


OF_ITS_END, OF_THE_EXACT = 0.01, 0.05
"""How close a curve has to be to its own end, and to the RMSE of the exact posterior mean."""


def tables(rows: list[Row]) -> list[Table]:
    """When each rule is close to its own end, and to the RMSE of the exact posterior mean."""
    exact = next(row["rmse"] for row in rows if row["method"] == MCMC)
    found = []
    for row in rows:
        if row["method"] == MCMC:
            continue
        trace = np.asarray(row["trace"])
        own = arrival(row, trace[-5:].mean(), OF_ITS_END)
        right = arrival(row, exact, OF_THE_EXACT)
        found.append(
            {
                "method": row["method"],
                "smallest RMSE": f"{trace.min():.4f}",
                "RMSE at the end": f"{trace[-1]:.4f}",
                "first within 1 % of its end": _step(own.first),
                "first within 5 % of the exact": _step(right.first),
                "for good": _step(right.for_good),
                "ms per step": f"{1e3 * row['seconds'] / row['steps']:.1f}",
            }
        )
    caption = (
        "Probit model (web appendix C.2): RMSE of the latent y* by steps. That of the exact "
        f"posterior mean is {exact:.4f}."
    )
    return [Table("probit", caption, pd.DataFrame(found).set_index("method"))]


def _step(number: int | None) -> str:
    return "never" if number is None else str(number)


def figures(rows: list[Row], folder: pathlib.Path) -> None:
    """RMSE against steps and seconds."""
    exact = next(row["rmse"] for row in rows if row["method"] == MCMC)
    rows = [row for row in rows if row["method"] != MCMC]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    trace_axes(axes, {row["method"]: row for row in rows}, "RMSE of y*")
    axes[0].axhline(exact, color="0.6", lw=0.8)
    axes[1].axhline(exact, color="0.6", lw=0.8)
    save(figure, folder, "probit")


STUDY = Study(
    "probit",
    "probit model of the web appendix",
    lambda options: [{"method": m, "seed": options.seed} for m in ("ng-hvi", "sg-hvi", MCMC)],
    run,
    tables,
    figures,
)
