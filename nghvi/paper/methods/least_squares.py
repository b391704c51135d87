"""A network without effects, trained by Levenberg-Marquardt: a point, with Gaussian residuals.

    minimise  sum_i w_i (y_i - h(x_i)' beta)^2,   sigma^2 = mean squared residual

This is the usual feed-forward network of applied work, as a posterior concentrated at the estimate.
If inputs repeat, their mean response and its weight give the same estimate.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import least_squares as solve

from nghvi._core.errors import InputError
from nghvi._typing import Key
from nghvi.data import Rows
from nghvi.data.grouped import Observations
from nghvi.data.panel import distinct_rows
from nghvi.families import Point
from nghvi.inference import Inference
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.recipes.importance import Pool
from nghvi.recipes.run import Run
from nghvi.recipes.verdict import Cause, Status, Verdict

LARGEST_JACOBIAN = 2**28
"""Numbers that the solver may hold: 2 GB."""


def least_squares(
    model: MixedModel, rows: Rows, *, seed: int = 0, steps: int | None = None
) -> Inference:
    """Fit the weights and coefficients of a Gaussian model without random effects.

    ``steps`` limits the number of evaluations; None leaves it to the solver.
    """
    if model.num_effects or not model.response.conjugate:
        raise InputError(
            "least_squares fits a Gaussian response without random effects: use group=None."
        )
    begun = time.perf_counter()
    params = model.init_params(jax.random.key(seed), rows)
    start, unravel = ravel_pytree((params.weights, _small_coef(jax.random.key(seed), params)))
    inputs, mean, weight, within = _repeated_once(rows.observations())
    if start.size * len(mean) > LARGEST_JACOBIAN:
        raise InputError(
            f"least_squares: {len(mean)} rows x {start.size} weights are too many for a dense "
            "Jacobian; use fewer rows or a smaller network."
        )
    # The solver wants as many residuals as weights: the ones that lack are zero.
    lacking = max(start.size - len(mean), 0)

    @jax.jit
    def residuals(theta: jax.Array) -> jax.Array:
        weights, coef = unravel(theta)
        errors = jnp.sqrt(weight) * (mean - model.trunk(weights, inputs) @ coef)
        return jnp.concatenate([errors, jnp.zeros(lacking)])

    jacobian = jax.jit(jax.jacfwd(residuals))
    found = solve(
        lambda t: np.asarray(residuals(jnp.asarray(t))),
        np.asarray(start),
        lambda t: np.asarray(jacobian(jnp.asarray(t))),
        method="lm",
        max_nfev=steps,
    )
    weights, coef = unravel(jnp.asarray(found.x))
    noise_var = (2 * found.cost + within) / rows.num_rows
    best = params._replace(weights=weights, coef=coef, dispersion=jnp.log(jnp.asarray([noise_var])))
    q = Point(ravel_pytree(best)[0])
    status = Status.SETTLED if found.success else Status.NOT_SETTLED
    verdict = Verdict(status, Cause.LEAST_SQUARES, {"evaluations": int(found.nfev)})
    nan = float("nan")
    run = Run(q, verdict, (), int(found.nfev), time.perf_counter() - begun, None)
    pool = Pool.plain(np.asarray(q.mean)[None])
    return Inference(model, rows, q, verdict, run, pool, nan, nan, nan, nan)


def _repeated_once(rows: Observations) -> tuple[jax.Array, jax.Array, jax.Array, float]:
    """Distinct inputs, mean response and weight of each, and squares about those means."""
    first, index = distinct_rows(rows.x)
    weight = np.bincount(index, rows.weight)
    mean = np.bincount(index, rows.weight * rows.y) / weight
    within = float(rows.weight @ (rows.y - mean[index]) ** 2)
    return jnp.asarray(rows.x[first]), jnp.asarray(mean), jnp.asarray(weight), within


def _small_coef(key: Key, params: MixedParams) -> jax.Array:
    """Coefficients of zero would leave the weights without a gradient."""
    return 0.1 * jax.random.normal(key, params.coef.shape)
