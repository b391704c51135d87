"""What a latent variable model is to this library.

The joint density is ``g(theta, z) = p(y | z, theta) p(z | theta) p(theta)``. A model states
``log g``, Jacobians included, and a way to draw ``z`` from ``p(z | theta, y)``. A model whose
latent variables can be integrated out also states ``log p(y | theta) + log p(theta)``.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from nghvi._core.errors import InputError
from nghvi._core.variational import Variational
from nghvi._programs import program
from nghvi._typing import Data, Key, Latents, Params, PyTree, Scalar


class LatentModel(eqx.Module):
    """A model with global parameters ``params`` (unconstrained) and latent variables.

    Subclasses write these four methods for one parameter vector; batching over draws is done
    by the library. ``data`` is whatever the model was written to read.
    """

    @abc.abstractmethod
    def init_params(self, key: Key, data: Data) -> Params:
        """Return the parameters from which a fit starts: any pytree of float arrays."""

    @abc.abstractmethod
    def init_latents(self, key: Key, params: Params, data: Data) -> Latents:
        """Return latents from which :meth:`sample_latents` can start."""

    @abc.abstractmethod
    def log_joint(self, params: Params, latents: Latents, data: Data) -> Scalar:
        """Return ``log p(y, z | theta) + log p(theta)``, log-Jacobians of transforms included.

        The support of z must not depend on theta, else the gradient is biased.
        """

    @abc.abstractmethod
    def sample_latents(self, key: Key, params: Params, latents: Latents, data: Data) -> Latents:
        """Apply a Markov kernel that leaves ``p(z | theta, y)`` invariant.

        An exact draw ignores ``latents``.
        """

    def log_joint_moving(
        self, params: Params, anchor: Params, latents: Latents, data: Data
    ) -> Scalar:
        """Return :meth:`log_joint` in coordinates of z that may move with ``params``.

        ``latents`` were drawn at ``anchor``, where the gradient is taken. By Fisher's identity
        every smooth change of coordinates gives the same expected gradient; a good one gives it
        less noise.
        """
        return self.log_joint(params, latents, data)

    def log_conditional(self, params: Params, latents: Latents, data: Data) -> Scalar | None:
        """Return ``log p(z | theta, y)``, or None if its constant is unknown.

        If it is known, ``log g - log p(z | theta, y)`` is ``log p(y, theta)``, and the trace of a
        run holds the noisy ELBO.
        """
        return None

    def log_at_rest(self, params: Params, data: Data) -> Scalar | None:
        """Return ``log p(y | theta, z) + log p(theta)`` with z at the centre of its prior.

        A network first climbs this density to find its start, unless it is None: that is cheaper
        than drawing or integrating z, and avoids the poor modes in which z explains what the
        network should.
        """
        return None

    def log_prior(self, params: Params) -> Scalar | None:
        """Return ``log p(theta)`` as included in the densities above, or None if not separable.

        If it is known the data may be divided, since the rest of every density is a sum over
        groups.
        """
        return None

    def log_prior_at_rest(self, params: Params) -> Scalar | None:
        """Return ``log p(theta)`` as included in :meth:`log_at_rest`.

        It may lack the prior of parameters that only the latents have.
        """
        return self.log_prior(params)

    def quantities(self, params: Params) -> dict[str, Array]:
        """Return what a summary shows, by name; by default the parameters as they are.

        For instance ``{"beta": params.beta, "sd": jnp.exp(0.5 * params.log_variance)}``.
        """
        return named_leaves(params, "theta")

    def predictive(self, key: Key, params: Params, latents: Latents, new: Any) -> PyTree:
        """Draw what is to be predicted for ``new`` data, given one draw of theta and z.

        ``new`` is whatever this method was written to read. A model that does not override it
        cannot predict.
        """
        raise InputError(
            f"{type(self).__name__} does not say how to predict: write its method predictive(self, "
            "key, params, latents, new), which draws what is to be predicted for new data."
        )

    def looks_up(self, data: Data) -> bool:
        """Return whether :meth:`MarginalModel.with_lookup` saves time."""
        return False

    @property
    def many_modes(self) -> bool:
        """Whether the posterior has many modes, like that of a network.

        If so, several starts climb, a factor Gaussian explores around the best of them, and the
        verdict says "settled" instead of "converged".
        """
        return False

    def num_observations(self, data: Data) -> float:
        """Return the number of observations; the more, the shorter the steps of a network's fit."""
        return max((leaf.shape[0] for leaf in _arrays(data) if leaf.ndim), default=1)

    def evaluation_size(self, data: Data) -> int:
        """Return how many numbers one evaluation of a density touches, a measure of its cost."""
        return sum(leaf.size for leaf in _arrays(data))

    @property
    def one_by_one(self) -> bool:
        """Whether draws are best evaluated one after another, however small the data are."""
        return False


def named_leaves(tree: PyTree, alone: str) -> dict[str, Array]:
    """Return the arrays of a tree by path, such as ``layers.0``; a bare array is ``alone``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or alone: leaf
        for path, leaf in leaves
    }


def _arrays(data: Data) -> list[Array]:
    return [leaf for leaf in jax.tree.leaves(data) if eqx.is_array(leaf)]


class MarginalModel(LatentModel):
    """A latent variable model whose latent variables can be integrated out."""

    @abc.abstractmethod
    def log_marginal(self, params: Params, data: Data) -> Scalar:
        """Return ``log p(y | theta) + log p(theta)``, log-Jacobians of transforms included."""

    @property
    def marginal_is_exact(self) -> bool:
        """Whether :meth:`log_marginal` is exact, and not only good enough to start from."""
        return True

    @property
    def integration_is_cheap(self) -> bool:
        """Whether many noisy steps should integrate the latent variables rather than draw them."""
        return True

    @property
    def integration_is_affordable(self) -> bool:
        """Whether a fit may evaluate :meth:`log_marginal` thousands of times."""
        return True

    @property
    def moves_naturally(self) -> bool:
        """Whether a network should move by natural gradients of a diagonal Gaussian, not Adam."""
        return False

    def given_up(self, params: Params) -> bool:
        """Return whether a part of the model, such as its network, contributes nothing."""
        return False

    def is_drawn(self, data: Data) -> bool:
        """Return whether :meth:`log_marginal` is a mean over draws shared by all theta.

        Their noise hardly changes with theta: it shifts the level, which says nothing about theta.
        """
        return False

    def placed(self, params: Params, data: Data) -> Self:
        """Return the model with its draws placed to suit the posterior near ``params``."""
        return self

    def with_lookup(self, q: Variational, data: Data) -> Self:
        """Return the model with slow computations looked up near q, if it has such a form."""
        return self

    def deviations(self, params: Params, data: Data) -> Float[Array, " s"] | None:
        """Return by how much each draw alone would change :meth:`log_marginal`, if that is known.

        It is only asked of models whose marginal :meth:`is_drawn`.
        """
        return None

    def log_marginal_afresh(self, key: Key, params: Params, data: Data) -> tuple[Scalar, Scalar]:
        """Return :meth:`log_marginal` computed from many fresh draws, and its standard error."""
        return self.log_marginal(params, data), jnp.zeros(())

    def refined(self) -> Self:
        """Return the model with a more accurate :meth:`log_marginal`; itself if there is none."""
        return self

    def yardstick(self) -> Self:
        """Return the model by whose :meth:`log_marginal` that of this one is judged.

        It has been refined at least once; there may be cheaper models between the two.
        """
        return self.refined()

    def refinable(self) -> Self:
        """Return the model in a form whose refinements share programs, if it has such a form."""
        return self

    def plain(self) -> Self:
        """Return the model, which a fit may have refined, in the form in which it is kept."""
        return self

    def approximate(self) -> Self:
        """Return the model with a cheap, approximate :meth:`log_marginal`; itself if none."""
        return self

    def in_few_digits(self) -> Self:
        """Return a faster model that computes the same to fewer digits, for noisy steps."""
        return self

    @property
    def emphasis(self) -> float:
        """How often the data may count for weights that a diagonal Gaussian pays too much for."""
        return 1.0


def _of_model(ability: str) -> property:
    return property(lambda self: getattr(self.model, ability))


class DividedModel(MarginalModel):
    """A model of all the data that reads them in pieces, with the abilities of ``model``."""

    model: MarginalModel

    def log_prior(self, params: Params) -> Scalar | None:
        return self.model.log_prior(params)

    many_modes = _of_model("many_modes")
    marginal_is_exact = _of_model("marginal_is_exact")
    integration_is_cheap = _of_model("integration_is_cheap")
    integration_is_affordable = _of_model("integration_is_affordable")
    moves_naturally = _of_model("moves_naturally")

    def given_up(self, params: Params) -> bool:
        return self.model.given_up(params)

    def refined(self) -> Self:
        better = self.model.refined()
        return self if better is self.model else dataclasses.replace(self, model=better)

    def yardstick(self) -> Self:
        better = self.model.yardstick()
        return self if better is self.model else dataclasses.replace(self, model=better)

    def approximate(self) -> Self:
        return dataclasses.replace(self, model=self.model.approximate())

    def in_few_digits(self) -> Self:
        return dataclasses.replace(self, model=self.model.in_few_digits())


def parameter_dimension(model: LatentModel, data: Data) -> int:
    """Return the number of scalars in theta."""
    # Computing a starting point takes less time than tracing how it would be computed.
    return initial_theta(jax.random.key(0), model, data).size


def unraveller(model: LatentModel, data: Data) -> Callable[[Float[Array, " m"]], Params]:
    """Return the map from the vector theta to the model's named parameters."""
    leaves, tree = jax.tree.flatten((model, data))
    known = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf
        for leaf in leaves
    ]
    return _unraveller(tree, tuple(known))


@functools.lru_cache(maxsize=128)
def _unraveller(tree: Any, leaves: tuple) -> Callable[[Float[Array, " m"]], Params]:
    """Remember the map per shapes of model and data: every program asks, and tracing is slow."""
    model, data = jax.tree.unflatten(tree, leaves)
    shapes = eqx.filter_eval_shape(model.init_params, jax.random.key(0), data)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    return ravel_pytree(zeros)[1]


@program
def initial_theta(key: Key, model: LatentModel, data: Data) -> Float[Array, " m"]:
    """Return the model's starting point as one vector."""
    return ravel_pytree(model.init_params(key, data))[0]
