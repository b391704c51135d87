"""A process of a spread fit: ``python -m tests.models.spread_worker OUT [HOST:PORT ID NUMBER]``.

It fits a linear model with its effects integrated out on all devices, and keeps q after every
chunk. A single process also draws the effects, for many estimates of the score and for a fit.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from nghvi._core.hosts import is_first, join, on_host
from nghvi._core.score import Sampled
from nghvi.data import Rows
from nghvi.inference import infer
from nghvi.models.divided import Sharded, mesh_of, shard
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity
from nghvi.priors import Priors
from nghvi.responses import Gaussian

GROUPS, DRAWS = 13, 2000
"""Groups that do not divide by 2 or 4."""
THETA = [0.1, 0.8, -0.2, 0.3]
MODEL = MixedModel(Identity(2), Gaussian(), Priors(), (0,))


def rows():
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(GROUPS), rng.integers(1, 9, GROUPS))
    x = np.column_stack([np.ones(group.size), rng.normal(size=group.size)])
    y = x @ [0.3, 1.0] + rng.normal(size=GROUPS)[group] + rng.normal(size=group.size)
    return Rows.from_arrays(x, y, group, GROUPS)


def fit(devices):
    """q after every chunk, and the ELBO."""
    trace = []

    def keep(position, ends):
        trace.append(np.concatenate(jax.tree.leaves(on_host(position.current.state.q))))

    data = prepare(MODEL, rows())
    found = infer(MODEL, data, devices=devices, keep=keep, importance=False)
    return {"trace": np.stack(trace), "elbo": found.elbo}


def fit_with_drawn_effects(devices):
    """Mean and sds of q."""
    q = infer(MODEL, rows(), devices=devices, latents="sample", importance=False).q
    return {"mean": np.asarray(q.centre), "sd": np.asarray(q.standard_deviation())}


def scores(model, data):
    """Scores of theta by drawn effects, one per key."""
    rule, theta = Sampled(), jnp.asarray(THETA)

    @jax.jit
    def sampled(keys):
        latents = rule.init_latents(keys[0], theta, model, data)
        return jax.vmap(lambda key: rule(key, theta, latents, model, data)[1])(keys)

    drawn = sampled(jax.random.split(jax.random.key(1), DRAWS))
    return {"drawn": on_host(drawn)}


def main(out, coordinator=None, process_id=0, num_processes=1):
    if coordinator:
        join(coordinator, int(process_id), int(num_processes))
    mesh = mesh_of("all")
    # With several processes all devices are used by default.
    found = {**fit(None if coordinator else "all"), "devices": mesh.size}
    if not coordinator:
        found |= scores(Sharded(MODEL), shard(rows(), mesh)) | fit_with_drawn_effects("all")
    if is_first():
        np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
