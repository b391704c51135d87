"""Rows to predict and the draws to predict them with, each distinct row once."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import ndtri

from nghvi._typing import Data, Key
from nghvi.data.blocks import padded
from nghvi.data.panel import distinct_rows
from nghvi.data.streamed import StreamedRows
from nghvi.models.mixed import MixedModel
from nghvi.posterior.effects import effects_of
from nghvi.posterior.mixed_posterior import MixedPosterior


class Request(NamedTuple):
    """Rows to predict, on the fitted scale."""

    x: Float[np.ndarray, "n d"]
    codes: Int[np.ndarray, "n ..."]
    """Position of the row's group among the known ones; beyond them, one number per unseen group.

    A column per factor where there are several.
    """
    effects: bool
    """Whether to predict with effects at all."""
    draws: int
    seed: int

    def rows(self, start: int, stop: int) -> "Request":
        """Some of the rows, their number padded so that few programs are compiled."""
        x, codes = self.x[start:stop], self.codes[start:stop]
        more = padded(len(x)) - len(x)
        filled = np.concatenate([x, np.repeat(x[:1], more, axis=0)])
        repeated = np.concatenate([codes, np.repeat(codes[:1], more, axis=0)])
        return self._replace(x=filled, codes=repeated)

    def distinct(self) -> tuple["Request", Int[np.ndarray, " n"]]:
        """The rows that differ in inputs or group, and which of them each row is."""
        first, index = distinct_rows(np.column_stack([self.x, self.codes]))
        return self._replace(x=self.x[first], codes=self.codes[first]), index


def held(posterior: MixedPosterior, request: Request) -> tuple[MixedPosterior, Request]:
    """The posterior with the rows of the groups asked for in memory, and the request for it.

    Rows on disk are read for the groups of the request only.
    """
    data = posterior.data
    if not isinstance(data, StreamedRows):
        return posterior, request
    known = request.codes < data.num_groups
    groups, index = np.unique(request.codes[known], return_inverse=True)
    rows, position = data.some_groups(groups)
    codes = request.codes + rows.num_groups - data.num_groups
    codes[known] = position[index]
    inference = dataclasses.replace(posterior.inference, data=rows)
    return posterior._replace(inference=inference), request._replace(codes=codes)


Draw = tuple[Key, Float[Array, "... m"], Float[Array, "..."]]


class Inputs(NamedTuple):
    """What the compiled programs read; draws of theta have a leading axis."""

    model: MixedModel
    parts: tuple[Data, ...]
    keys: Key
    theta: Float[Array, "s m"]
    standard: Float[Array, " s"]
    """One standard normal per draw, stratified: an unseen group's effect, in units of its sd."""
    x: Float[Array, "n d"]
    codes: Int[Array, "n ..."]

    @staticmethod
    def of(posterior: MixedPosterior, request: Request, *, averaged: bool = True) -> "Inputs":
        """Draws of theta for a request; ``averaged``: no more than their mixture is wanted."""
        rng = np.random.default_rng(request.seed)
        theta = posterior.inference.pool.resample(request.draws, rng)
        keys = jax.random.split(jax.random.key(request.seed), request.draws)
        standard = ndtri((rng.permutation(request.draws) + rng.random()) / request.draws)
        if averaged and effects_of(posterior.model).in_pairs(posterior.data):
            theta, keys, standard = _in_pairs(theta, keys, standard)
        arrays = (jax.device_put(a) for a in (theta, standard, request.x, request.codes))
        return Inputs(posterior.model, posterior.parts, keys, *arrays)

    @property
    def draws(self) -> "Draw":
        """What to map over."""
        return self.keys, self.theta, self.standard


def _in_pairs(theta: np.ndarray, keys: Key, standard: np.ndarray) -> tuple:
    """Every second draw is the opposite of the one before: what is drawn has the right mean."""
    first = 2 * (np.arange(len(theta)) // 2)
    sign = np.where(np.arange(len(theta)) % 2, -1.0, 1.0)
    return theta[first], keys[first], np.abs(standard[first]) * sign


def inputs_once(
    posterior: MixedPosterior, request: Request
) -> tuple[Inputs, Int[np.ndarray, " n"], Int[Array, " padded"]]:
    """Inputs that differ, which of them each row has, and the same padded."""
    posterior, request = held(posterior, request)
    distinct, index = request.distinct()
    inputs = Inputs.of(posterior, distinct.rows(0, len(distinct.x)))
    return inputs, index, jax.device_put(filled(index, padded(len(index))))


def filled(values: np.ndarray, size: int) -> np.ndarray:
    """Values with zeros after them."""
    return np.concatenate([values, np.zeros(size - len(values), values.dtype)])
