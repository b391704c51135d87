"""The web appendix's probit model: how fast each hybrid rule finds the latent y*."""

import pathlib
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jax.scipy.special import log_ndtr

from nghvi._core.draws import IndependentDraws
from nghvi._core.fit import fit
from nghvi._core.hybrid import HybridVI
from nghvi._core.model import unraveller
from nghvi._core.score import Sampled
from nghvi.data import Rows
from nghvi.models.mixed import MixedModel
from nghvi.models.published_start import published_start
from nghvi.networks import Identity
from nghvi.priors import InverseGamma, Priors
from nghvi.recipes.published import published_rule
from nghvi.responses import Probit
from nghvi.studies.figures import save, trace_axes
from nghvi.studies.problems import GROUP
from nghvi.studies.problems import probit as simulate
from nghvi.studies.store import Row
from nghvi.studies.study import Options, Study
from nghvi.studies.tables import write_table
from nghvi.variational import FactorGaussian

STEPS, EVERY, DRAWS = 3000, 25, 20


def run(cell: Row, options: Options) -> Row:
    """RMSE of y* and seconds every few steps."""
    problem, latent = simulate(cell["seed"])
    x = problem.train.inputs.drop(columns=GROUP).to_numpy()
    codes = problem.train.inputs[GROUP].to_numpy()
    x = np.column_stack([np.ones(len(x)), x])
    rows = Rows.from_arrays(x, problem.train.y, codes, codes.max() + 1)
    model = MixedModel(Identity(4), Probit(), Priors(effects=InverseGamma()), (0,), 5)
    rule = published_rule(cell["method"])
    algorithm = HybridVI(IndependentDraws(1), Sampled(moving=False), rule.direction, rule.step_rule)
    start = published_start(model, rows, cell["seed"])
    q = FactorGaussian.start(start, jnp.ones_like(start), 3, signed_scale=True)
    key, unravel = jax.random.key(cell["seed"]), unraveller(model, rows)

    @jax.jit
    def y_star(theta: jax.Array) -> jax.Array:
        """E[y* | theta, y], by draws of the effects."""

        def one(key: jax.Array) -> jax.Array:
            effects = model.draw_effects(key, unravel(theta), rows)
            eta = x @ unravel(theta).coef + rows.in_original_order(effects)[codes, 0]
            sign = 2 * problem.train.y - 1
            log_ratio = -0.5 * eta**2 - 0.5 * jnp.log(2 * jnp.pi) - log_ndtr(sign * eta)
            return eta + sign * jnp.exp(log_ratio)

        return jnp.mean(jax.lax.map(one, jax.random.split(key, DRAWS)), axis=0)

    def rmse(theta: jax.Array) -> float:
        return float(np.sqrt(np.mean((y_star(theta) - latent) ** 2)))

    done = fit(key, algorithm, model, rows, q, num_steps=0, chunk=EVERY)
    steps = options.steps(STEPS)
    done = fit(key, algorithm, model, rows, q, num_steps=1, chunk=EVERY, resume=done)  # compile
    errors, seconds = [rmse(q.mean)], 0.0
    for number in range(EVERY, steps + 1, EVERY):
        begun = time.perf_counter()
        done = fit(key, algorithm, model, rows, q, num_steps=number, chunk=EVERY, resume=done)
        seconds += time.perf_counter() - begun
        errors.append(rmse(done.state.q.mean))
    return {"steps": steps, "seconds": seconds, "trace_every": EVERY, "trace": errors}


def report(rows: list[Row], folder: pathlib.Path) -> None:
    """RMSE against steps and seconds; when each rule first comes within 1 % of its end."""
    found = []
    for row in rows:
        trace = np.asarray(row["trace"])
        reached = int(np.argmax(trace <= 1.01 * trace[-5:].mean())) * row["trace_every"]
        found.append(
            {
                "method": row["method"],
                "RMSE at the end": f"{trace[-1]:.4f}",
                "steps to within 1 %": reached,
                "seconds to within 1 %": f"{reached * row['seconds'] / row['steps']:.2f}",
            }
        )
    caption = "Probit model (web appendix C.2): RMSE of the latent y*"
    write_table(pd.DataFrame(found).set_index("method"), folder, "probit", caption)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    trace_axes(axes, {row["method"]: row for row in rows}, "RMSE of y*")
    save(figure, folder, "probit")


STUDY = Study(
    "probit",
    "probit model of the web appendix",
    lambda options: [{"method": m, "seed": options.seed} for m in ("ng-hvi", "sg-hvi")],
    run,
    report,
)
