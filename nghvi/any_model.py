"""The posterior of any latent variable model: draws, tables, predictions and a file.

A joint draw is a theta from the pool of weighted draws, followed by a z from ``p(z | theta, y)``.
The model's own kernel draws z; it is applied often enough to forget where it started.
"""

import dataclasses
import os
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pandas as pd
from jaxtyping import Array

from nghvi._core.errors import DataError
from nghvi._core.model import LatentModel, named_leaves, unraveller
from nghvi._programs import program
from nghvi._typing import Data, Key, Latents, Params, PyTree
from nghvi.inference import Inference
from nghvi.posterior.summaries import LEVEL, Summary, described
from nghvi.storage import save

DRAWS = 1000
"""Default number of draws."""
MOVES = 20
"""Default number of applications of a model's kernel per draw; an exact kernel needs only 1."""


@dataclasses.dataclass(frozen=True)
class Posterior:
    """The posterior of a fitted model of your own::

        posterior = nghvi.Posterior(nghvi.infer(model, data))

    Methods that draw take a ``seed``, and the number of draws as ``draws`` or ``number``. ``moves``
    is how often the model's ``sample_latents`` is applied per draw: more if it mixes slowly, 1 if
    it is exact. ``level`` is the probability of a central interval, whose ends are columns named
    by their percentage, such as ``q5`` and ``q95``.

    Parameters
    ----------
    inference
        What :func:`nghvi.infer` returned.
    """

    inference: Inference

    @property
    def model(self) -> LatentModel:
        """The model that was fitted."""
        return self.inference.model

    def draws(self, number: int = DRAWS, seed: int = 0) -> Params:
        """Return equally weighted draws of the parameters, named, with a leading axis."""
        return self.inference.draws(number, seed)

    def latent_draws(self, number: int = DRAWS, seed: int = 0, *, moves: int = MOVES) -> Latents:
        """Return draws of the latent variables, each given one draw of the parameters.

        For the same ``number`` and ``seed``, :meth:`draws` returns these parameters.
        """
        return _latents(self.model, self.inference.data, *self._joint(number, seed), moves)

    def summary(self, level: float = LEVEL) -> Summary:
        """Return posterior mean, sd, median and interval of all that ``model.quantities`` names."""
        pool = self.inference.pool
        found = _quantities(self.model, self.inference.data, jax.device_put(pool.theta))
        return described(_entries(found), pool.weight, level).rename_axis("parameter")

    def latent_summary(
        self, level: float = LEVEL, draws: int = DRAWS, seed: int = 0, *, moves: int = MOVES
    ) -> Summary:
        """Return posterior mean, sd, median and interval of every latent variable, from draws."""
        found = named_leaves(self.latent_draws(draws, seed, moves=moves), "latents")
        return described(_entries(found), _equal(draws), level).rename_axis("latent")

    def predictive_draws(
        self, new: Any, draws: int = DRAWS, seed: int = 0, *, moves: int = MOVES
    ) -> PyTree:
        """Return draws of what ``model.predictive`` makes of ``new``, with a leading axis."""
        joint = self._joint(draws, seed)
        return _predictions(self.model, self.inference.data, *joint, new, moves)

    def predict(
        self,
        new: Any,
        level: float = LEVEL,
        draws: int = DRAWS,
        seed: int = 0,
        *,
        moves: int = MOVES,
    ) -> Summary:
        """Return predictive mean, sd, median and interval for ``new``, one row per number.

        ``new`` is passed on to ``model.predictive`` and may be anything that it reads.
        """
        found = self.predictive_draws(new, draws, seed, moves=moves)
        table = described(_entries(named_leaves(found, "")), _equal(draws), level)
        if isinstance(found, jax.Array) and found.ndim == 2:
            table.index = pd.RangeIndex(len(table))
        return table.rename_axis("row")

    def save(self, path: str | os.PathLike) -> None:
        """Write everything to the file ``path`` for ``nghvi.load``.

        The file holds numbers and the names of classes, but no code. The classes of your model and
        its data have to be registered (``nghvi.storage.register``) both in the process that saves
        and in the one that loads.
        """
        save(self, path)

    def check(self) -> None:
        """Raise an error if the parts are inconsistent, as those of an altered file may be."""
        pool = self.inference.pool
        if pool.theta.shape != (len(pool.weight), np.asarray(self.inference.q.centre).size):
            raise DataError("draws, weights and the variational distribution differ in size")
        if not (np.isfinite(pool.theta).all() and np.isfinite(pool.weight).all()):
            raise DataError("draws or weights are not finite")
        eqx.filter_eval_shape(_quantities, self.model, self.inference.data, pool.theta)

    def _joint(self, number: int, seed: int) -> tuple[Key, Array]:
        theta = self.inference.pool.resample(number, np.random.default_rng(seed))
        return jax.random.split(jax.random.key(seed), number), jax.device_put(theta)


def _equal(number: int) -> np.ndarray:
    return np.full(number, 1 / number)


def _entries(named: dict[str, Array]) -> dict[str, np.ndarray]:
    """Return the draws of single numbers by name; an array has ``beta[0]``, ``beta[1]``, ..."""
    found = {}
    for name, values in named.items():
        array = np.asarray(values)
        for place in np.ndindex(array.shape[1:]):
            at = f"[{','.join(map(str, place))}]" if place else ""
            found[f"{name}{at}"] = array[(slice(None), *place)]
    return found


@program
def _quantities(model: LatentModel, data: Data, theta: Array) -> dict[str, Array]:
    unravel = unraveller(model, data)
    return jax.vmap(lambda t: model.quantities(unravel(t)))(theta)


def _draw_latents(model: LatentModel, data: Data, key: Key, params: Params, moves: int) -> Latents:
    begin, move = jax.random.split(key)
    latents = model.init_latents(begin, params, data)

    def again(latents: Latents, key: Key) -> tuple[Latents, None]:
        return model.sample_latents(key, params, latents, data), None

    return jax.lax.scan(again, latents, jax.random.split(move, moves))[0]


@program
def _latents(model: LatentModel, data: Data, keys: Key, theta: Array, moves: int) -> Latents:
    unravel = unraveller(model, data)

    def one(draw: tuple[Key, Array]) -> Latents:
        return _draw_latents(model, data, draw[0], unravel(draw[1]), moves)

    return jax.lax.map(one, (keys, theta))


@program
def _predictions(
    model: LatentModel, data: Data, keys: Key, theta: Array, new: Any, moves: int
) -> PyTree:
    unravel = unraveller(model, data)

    def one(draw: tuple[Key, Array]) -> PyTree:
        of_latents, of_new = jax.random.split(draw[0])
        params = unravel(draw[1])
        latents = _draw_latents(model, data, of_latents, params, moves)
        return model.predictive(of_new, params, latents, new)

    return jax.lax.map(one, (keys, theta))
