"""Observations sorted by group, and the sums over groups that inference needs.

For a Gaussian response everything the likelihood needs of group k is ``Z_k'Z_k``, ``Z_k'e_k``
and ``e'e`` with ``e = y - H beta`` (:class:`Moments`). ``LinearStatistics`` gets them from
cross products computed once, so a linear model's cost does not depend on the number of rows;
``Rows`` recomputes them from features that change with theta.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi.data.blocks import lay_out


class Moments(NamedTuple):
    """Sums over rows given the fixed part. Batch axis (groups) last."""

    gram: Float[Array, "r r k"]
    cross: Float[Array, "r k"]
    square: Float[Array, ""]
    num_rows: int


class Rows(eqx.Module):
    """Rows laid out in blocks of equally sized groups; padding rows have mask 0.

    Groups are kept in memory order; :meth:`in_original_order` undoes it.
    """

    x: Float[Array, "n d"]
    y: Float[Array, " n"]
    mask: Float[Array, " n"] | None
    original_order: Int[Array, " k"]
    blocks: tuple[tuple[int, int], ...] = eqx.field(static=True)
    num_rows: int = eqx.field(static=True)

    @staticmethod
    def from_arrays(x: np.ndarray, y: np.ndarray, group: np.ndarray, num_groups: int) -> "Rows":
        """Group codes run from 0 to num_groups - 1; rows may come in any order."""
        layout = lay_out(np.asarray(group), int(num_groups))
        total = sum(count * size for count, size in layout.blocks)

        def place(values: np.ndarray) -> Array:
            # Padding repeats a real row rather than zeros, so every function stays finite on it.
            out = np.broadcast_to(values[:1], (total, *values.shape[1:])).copy()
            out[layout.position] = values
            return jnp.asarray(out)

        mask = np.zeros(total)
        mask[layout.position] = 1.0
        return Rows(
            place(np.asarray(x, float)),
            place(np.asarray(y, float)),
            None if total == len(y) else jnp.asarray(mask),
            jnp.asarray(np.argsort(layout.group_order)),
            layout.blocks,
            len(y),
        )

    @property
    def num_groups(self) -> int:
        return sum(count for count, _ in self.blocks)

    def in_original_order(self, values: Float[Array, "k *rest"]) -> Float[Array, "k *rest"]:
        """Values by group, from memory order to the order of the group codes."""
        return values[self.original_order]

    def masked(self, values: Float[Array, "n *rest"]) -> Float[Array, "n *rest"]:
        """Values with those of the padding rows set to zero."""
        if self.mask is None:
            return values
        return values * self.mask.reshape(-1, *(1,) * (values.ndim - 1))

    def sum(self, values: Float[Array, "n *rest"]) -> Float[Array, "k *rest"]:
        """Sum over the rows of each group."""
        return jnp.concatenate([jnp.sum(b, axis=1) for b in self._split(self.masked(values))])

    def total(self, values: Float[Array, " n"]) -> Float[Array, ""]:
        """Sum over all rows."""
        return jnp.sum(values if self.mask is None else values * self.mask)

    def expand(self, values: Float[Array, "k *rest"]) -> Float[Array, "n *rest"]:
        """The value of each row's group."""
        parts, start = [], 0
        for count, size in self.blocks:
            block = values[start : start + count, None]
            shape = (count, size, *values.shape[1:])
            parts.append(jnp.broadcast_to(block, shape).reshape(count * size, *values.shape[1:]))
            start += count
        return jnp.concatenate(parts)

    def gram(self, design: Float[Array, "n r"]) -> Float[Array, "r r k"]:
        """Z_k' Z_k for every group."""
        products = [jnp.einsum("kni,knj->ijk", b, b) for b in self._split(self.masked(design))]
        return jnp.concatenate(products, axis=-1)

    def moments(
        self,
        features: Callable[[Array], Array],
        coef: Float[Array, " q"],
        random: tuple[int, ...],
    ) -> Moments:
        """Moments at these features and coefficients."""
        h = features(self.x)
        error = self.y - h @ coef
        design = h[:, np.array(random, int)]
        cross = self.sum(design * error[:, None]).T
        return Moments(self.gram(design), cross, self.total(error**2), self.num_rows)

    def _split(self, values: Float[Array, "n *rest"]) -> list[Float[Array, "kb nb *rest"]]:
        parts, start = [], 0
        for count, size in self.blocks:
            part = values[start : start + count * size]
            parts.append(part.reshape(count, size, *values.shape[1:]))
            start += count * size
        return parts


class LinearStatistics(eqx.Module):
    """Cross products of a fixed design, taken about a least squares fit.

    Residuals of the fit stand in for y, so that nothing cancels when y is large against its
    own variation.
    """

    centre: Float[Array, " q"]
    gram_total: Float[Array, "q q"]
    cross_total: Float[Array, " q"]
    square_total: Float[Array, ""]
    variance: Float[Array, ""]
    """Variance of the response."""
    effects_gram: Float[Array, "r r k"]
    effects_design: Float[Array, "r q k"]
    effects_cross: Float[Array, "r k"]
    original_order: Int[Array, " k"]
    num_rows: int = eqx.field(static=True)
    num_groups: int = eqx.field(static=True)

    @staticmethod
    def from_rows(rows: Rows, random: tuple[int, ...]) -> "LinearStatistics":
        """Reduce rows whose features are their own columns."""
        keep = np.ones(len(rows.y), bool) if rows.mask is None else np.asarray(rows.mask) > 0
        codes = np.asarray(rows.expand(jnp.arange(rows.num_groups)))[keep]
        x, y = np.asarray(rows.x)[keep], np.asarray(rows.y)[keep]
        centre = np.linalg.lstsq(x, y, rcond=None)[0]
        residual = y - x @ centre
        sizes = np.bincount(codes, minlength=rows.num_groups)
        starts = np.cumsum(sizes) - sizes

        def group_sum(values: np.ndarray) -> np.ndarray:
            sums = np.add.reduceat(values, np.minimum(starts, len(values) - 1), axis=0)
            sums[sizes == 0] = 0.0  # reduceat repeats a row where a group is empty
            return sums

        r, q = len(random), x.shape[1]
        gram = np.empty((r, r, rows.num_groups))
        design = np.empty((r, q, rows.num_groups))
        cross = np.empty((r, rows.num_groups))
        for i, column in enumerate(random):
            design[i] = group_sum(x * x[:, [column]]).T
            cross[i] = group_sum(residual * x[:, column])
        gram[:] = design[:, np.array(random, int)] if r else gram
        return LinearStatistics(
            jnp.asarray(centre),
            jnp.asarray(x.T @ x),
            jnp.asarray(x.T @ residual),
            jnp.asarray(residual @ residual),
            jnp.asarray(np.var(y)),
            jnp.asarray(gram),
            jnp.asarray(design),
            jnp.asarray(cross),
            rows.original_order,
            rows.num_rows,
            rows.num_groups,
        )

    def moments(
        self,
        features: Callable[[Array], Array],
        coef: Float[Array, " q"],
        random: tuple[int, ...],
    ) -> Moments:
        """Moments at these coefficients; the features are the columns themselves."""
        delta = coef - self.centre
        square = self.square_total - 2 * delta @ self.cross_total + delta @ self.gram_total @ delta
        cross = self.effects_cross - jnp.einsum("rqk,q->rk", self.effects_design, delta)
        return Moments(self.effects_gram, cross, square, self.num_rows)

    def in_original_order(self, values: Float[Array, "k *rest"]) -> Float[Array, "k *rest"]:
        """Values by group, from memory order to the order of the group codes."""
        return values[self.original_order]
