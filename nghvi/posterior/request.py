"""Rows to predict, and their linear predictor given draws of theta.

Given a draw theta_j, the predictor of a row with features h is normal::

    known group     N(h'(beta + m_k), z'V_k z)     m_k, V_k: conditional moments given the data
    unseen group    N(h'beta, z'Omega z)           its effects come from the population
    zero            h'beta                         no effects at all

A Gaussian response integrates over it. Otherwise the conditional of a known group is not normal,
and its effects are drawn; where a mean over the mixture is all that is asked for, and it costs
little, they are integrated by the quadrature of the fit. The effects of an unseen group are one
number per draw, or are integrated by the trapezoidal rule, whose grid is shifted differently for
every j.
"""

import dataclasses
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy import special

from nghvi._typing import Data, Key
from nghvi.data.blocks import padded
from nghvi.data.panel import distinct_rows
from nghvi.data.working_copy import StreamedRows
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.models.several_factors import SeveralFactors
from nghvi.posterior.effects import effects_of
from nghvi.posterior.expansion import Expansion, expanded
from nghvi.posterior.mixed_posterior import MixedPosterior, params_at


class Request(NamedTuple):
    """Rows to predict, on the fitted scale."""

    x: Float[np.ndarray, "n d"]
    codes: Int[np.ndarray, "n ..."]
    """Position of each row's group among the known groups; unseen groups have further numbers.

    With several factors there is one column per factor.
    """
    effects: bool
    """Whether predictions include effects."""
    draws: int
    seed: int

    def rows(self, start: int, stop: int) -> "Request":
        """Return some of the rows, padded to one of few lengths so that few programs compile."""
        x, codes = self.x[start:stop], self.codes[start:stop]
        more = padded(len(x)) - len(x)
        filled = np.concatenate([x, np.repeat(x[:1], more, axis=0)])
        repeated = np.concatenate([codes, np.repeat(codes[:1], more, axis=0)])
        return self._replace(x=filled, codes=repeated)

    def distinct(self) -> tuple["Request", Int[np.ndarray, " n"]]:
        """Return the rows that differ in inputs or group, and which of them each row equals."""
        first, index = distinct_rows(np.column_stack([self.x, self.codes]))
        return self._replace(x=self.x[first], codes=self.codes[first]), index


def held(posterior: MixedPosterior, request: Request) -> tuple[MixedPosterior, Request]:
    """Load the rows on disk that belong to the groups of a request; return both for memory.

    Data that are in memory already stay as they are.
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


SPACING, NODES = 1.25, 8
"""Distance of neighbouring nodes of the trapezoidal rule for new levels, in sds, and their
number."""
FEW_NUMBERS = 4e7
"""How many numbers, rows times draws times nodes, a prediction by quadrature may take."""


class Draw(NamedTuple):
    """A draw of theta and what goes with it; many of them have a leading axis."""

    key: Key
    theta: Float[Array, "... m"]
    sign: Float[Array, "..."]
    """The sign of drawn deviations of the effects from their mean."""
    nodes: Float[Array, "... j"]
    """Standardised values of a new level's part of the predictor."""
    share: Float[Array, "... j"]
    """The weights of these nodes, which sum to one over all nodes and draws."""


class Inputs(NamedTuple):
    """The arguments of the compiled programs; draws of theta have a leading axis."""

    model: MixedModel
    parts: tuple[Data, ...]
    draws: Draw
    x: Float[Array, "n d"]
    codes: Int[Array, "n ..."]
    expansion: Expansion | None = None
    """Moments of the effects as functions of theta; None if they are computed for every draw."""
    by_points: bool = False
    """Whether effects of known groups are integrated by quadrature."""

    @staticmethod
    def of(
        posterior: MixedPosterior,
        request: Request,
        *,
        averaged: bool = True,
        moved: bool = True,
        nodes: bool = False,
    ) -> "Inputs":
        """Draw theta for a request.

        ``averaged``: whether only the mixture over draws will be used; ``moved``: whether draws may
        be moved to the mean and covariance of all; ``nodes``: whether the mixture is used for means
        alone, which may then be taken over several nodes per draw.
        """
        rng = np.random.default_rng(request.seed)
        model, number, pool = posterior.model, request.draws, posterior.inference.pool
        effects, expansion, pairs = effects_of(model), None, False
        if averaged and request.effects:
            expansion = expanded(posterior, request.x, request.codes, number)
            pairs = expansion is None and effects.in_pairs(posterior.parts[0])
        # Moved draws of a posterior with several modes could lie between them.
        draw = pool.matched if moved and not model.many_modes else pool.resample
        keys, sign = jax.random.split(jax.random.key(request.seed), number), np.ones(number)
        if pairs:  # every second draw is the mirror image of the one before: their mean is exact
            theta = np.repeat(draw(-(-number // 2), rng), 2, axis=0)[:number]
            keys, sign[1::2] = keys[2 * (np.arange(number) // 2)], -1.0
        else:
            theta = draw(number, rng)
        by_points, spread = False, _stratified
        if nodes and request.effects and not model.response.conjugate:
            known = request.codes < effects.num_known(posterior.parts)
            if points := effects.num_points:
                rows = len(request.x) + sum(len(part.x) for part in posterior.parts)
                by_points = bool(known.any()) and rows * number * points <= FEW_NUMBERS
            spread = _stratified if known.all() else _shifted_nodes
        arrays = (jax.device_put(a) for a in (theta, sign, *spread(number, rng)))
        x, codes = (jax.device_put(a) for a in (request.x, request.codes))
        draws = Draw(keys, *arrays)
        return Inputs(model, posterior.parts, draws, x, codes, expansion, by_points)


def _stratified(draws: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a standard normal number per draw, and its share in all of them."""
    normal = special.ndtri((rng.permutation(draws) + rng.random()) / draws)
    return normal[:, None], np.full((draws, 1), 1 / draws)


def _shifted_nodes(draws: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes for N(0, 1) per draw, shifted differently for each, and their shares."""
    shift = (rng.permutation(draws) + rng.random()) / draws - 0.5
    nodes = SPACING * (np.arange(NODES) - 0.5 * (NODES - 1) + shift[:, None])
    weight = np.exp(-0.5 * nodes**2)
    return nodes, weight / weight.sum(axis=1, keepdims=True) / draws


class Predictor(NamedTuple):
    """The predictor of every row given theta, at a node of the effects that are not integrated."""

    location: Float[Array, "*j n"]
    variance: Float[Array, "*j n"]
    """Variance over which the response integrates; 0 unless it is conjugate."""
    dispersion: Float[Array, "*j c"]
    share: Float[Array, "*j n"]
    """Probability of the node, and of the draw."""


def predictor(inputs: Inputs, draw: Draw, effects: bool) -> Predictor:
    """Return the predictor at the only node of a draw."""
    return jax.tree.map(lambda each: each[0], predictors(inputs, draw, effects))


def predictors(inputs: Inputs, draw: Draw, effects: bool) -> Predictor:
    """Return the predictor at all nodes of a draw, on a leading axis."""
    model, of_groups = inputs.model, effects_of(inputs.model)
    params: MixedParams = params_at(model, inputs.parts[0], draw.theta)
    h = model.features(params, inputs.x)
    fixed, variance = h @ model.all_coef(params), jnp.zeros(len(h))
    at = model.design(h), inputs.codes, inputs.parts
    mean: Array | float = 0.0
    if not effects or model.num_effects == 0:
        pass
    elif inputs.expansion is not None:
        several = cast(SeveralFactors, model)
        mean, variance = inputs.expansion(params, several, inputs.parts[0])
        variance += of_groups.population_at(params, *at)
    elif inputs.by_points:
        variance = of_groups.population_at(params, *at)
    else:
        mean, variance = of_groups.predictor((draw.key, params, draw.sign), *at)
    if model.response.conjugate:
        location, left = (fixed + mean)[None], variance
    else:
        location, left = fixed + mean + draw.nodes[:, None] * jnp.sqrt(variance), jnp.zeros(len(h))
    share = jnp.broadcast_to(draw.share[:, None], location.shape)
    if inputs.by_points:
        known = inputs.codes < of_groups.num_known(inputs.parts)
        own, chance = of_groups.at_points(params, *at)
        number = max(len(own), len(location))
        more = ((0, number - len(own)), (0, 0)), ((0, number - len(location)), (0, 0))
        location = jnp.where(known, jnp.pad(fixed + own, more[0]), jnp.pad(location, more[1]))
        chance = chance / len(inputs.draws.theta)
        share = jnp.where(known, jnp.pad(chance, more[0]), jnp.pad(share, more[1]))
    left, dispersion = (
        jnp.broadcast_to(each, (len(location), len(each)))
        for each in (left, model.dispersion(params))
    )
    return Predictor(location, left, dispersion, share)
