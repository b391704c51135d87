"""Reduces the rows of a linear model to cross products, so that cost does not depend on them."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi._core.errors import InputError
from nghvi.data.blocks import padded
from nghvi.data.grouped import Columns, Features, Grouped, Moments, Rows

OF_ROWS = ("gram_total", "cross_total", "square_total")
"""Fields that are sums over all rows."""
OF_GROUPS = ("effects_gram", "effects_design", "effects_cross")
"""Fields that are sums over the rows of each group, with the groups as last axis."""
MOST_FILLED = 4096
"""The most groups up to which padding is cheaper than compiling another program."""
LEAST_TOLD = 1e-3
"""The least singular value, relative to the largest, of what a least squares fit determines."""


def least_squares(
    x: Float[np.ndarray, "n q"], y: Float[np.ndarray, " n"], squared: bool = False
) -> Float[np.ndarray, " q"]:
    """Return coefficients of a least squares fit, small where columns are nearly the same.

    Fits start here, so it must not be far from where a prior lets the coefficients be: directions
    that the data hardly determine are left at zero. ``squared``: x and y are x'x and x'y. Columns
    are compared in units of their own size, which are powers of two because these round nothing.
    """
    size = np.sqrt(np.diagonal(x) if squared else np.mean(x**2, axis=0))
    unit = 2.0 ** np.round(np.log2(np.where(size > 0, size, 1.0)))
    if squared:
        return np.linalg.lstsq(x / unit / unit[:, None], y / unit, rcond=LEAST_TOLD**2)[0] / unit
    return np.linalg.lstsq(x / unit, y, rcond=LEAST_TOLD)[0] / unit


class LinearStatistics(Grouped):
    """Cross products of a fixed design, taken about a least squares fit.

    The residuals of that fit take the place of y, so that no digits cancel when y is large
    relative to its variation.
    """

    centre: Float[Array, " q"]
    gram_total: Float[Array, "q q"]
    cross_total: Float[Array, " q"]
    square_total: Float[Array, ""]
    variance: Float[Array, ""]
    effects_gram: Float[Array, "r r k"]
    effects_design: Float[Array, "r q k"]
    effects_cross: Float[Array, "r k"]
    original_order: Int[Array, " k"]
    num_rows: Float[Array, ""]
    num_groups: int = eqx.field(static=True)

    @staticmethod
    def from_rows(
        rows: Rows,
        random: Columns,
        centre: np.ndarray | None = None,
        known: tuple[float, ...] = (),
    ) -> "LinearStatistics":
        """Reduce rows whose features are their own columns.

        ``centre`` holds the coefficients of a fit; if None, one is made, in which the last
        coefficients are fixed at ``known``.
        """
        x, y, codes, weight = rows.observations()
        if centre is None:
            root, free = np.sqrt(weight), x.shape[1] - len(known)
            rest = y - x[:, free:] @ np.array(known)
            fitted = least_squares(x[:, :free] * root[:, None], rest * root)
            centre = np.concatenate([fitted, known])
        residual = y - x @ centre
        sizes = np.bincount(codes, minlength=rows.num_groups)
        starts = np.cumsum(sizes) - sizes

        def group_sum(values: np.ndarray) -> np.ndarray:
            sums = np.zeros((len(sizes), *values.shape[1:]))
            filled = sizes > 0  # reduceat cannot sum over no rows
            sums[filled] = np.add.reduceat(values, starts[filled], axis=0)
            return sums

        r, q = len(random), x.shape[1]
        weighted = x * weight[:, None]
        gram = np.empty((r, r, rows.num_groups))
        design = np.empty((r, q, rows.num_groups))
        cross = np.empty((r, rows.num_groups))
        for i, column in enumerate(random):
            design[i] = group_sum(weighted * x[:, [column]]).T
            cross[i] = group_sum(weighted[:, column] * residual)
        gram[:] = design[:, np.array(random, int)] if r else gram
        return LinearStatistics(
            centre=jax.device_put(centre),
            gram_total=jax.device_put(weighted.T @ x),
            cross_total=jax.device_put(weighted.T @ residual),
            square_total=jax.device_put(weight @ residual**2),
            variance=jax.device_put(np.cov(y, aweights=weight, ddof=0)),
            effects_gram=jax.device_put(gram),
            effects_design=jax.device_put(design),
            effects_cross=jax.device_put(cross),
            original_order=rows.original_order,
            num_rows=jax.device_put(np.float64(rows.num_rows)),
            num_groups=rows.num_groups,
        )

    @staticmethod
    def from_pieces(
        pieces: Callable[[], Iterable[Rows]],
        members: Int[np.ndarray, "p g"],
        random: Columns,
    ) -> "LinearStatistics":
        """Reduce rows in pieces, which are read twice, one at a time.

        ``members`` has the code of each group of each piece, -1 where it is absent.
        """
        gram, cross, num_rows = 0.0, 0.0, 0.0
        for piece in pieces():
            x, y, _, weight = piece.observations()
            gram, cross = gram + (weight[:, None] * x).T @ x, cross + (weight * y) @ x
            num_rows += float(weight.sum())
            variance = piece.variance
        centre = least_squares(np.asarray(gram), np.asarray(cross), squared=True)
        num_groups = int(members.max()) + 1
        totals: dict[str, Any] = dict.fromkeys(OF_ROWS, 0.0)
        r, q = len(random), len(centre)
        shapes = zip(OF_GROUPS, ((r, r), (r, q), (r,)), strict=True)
        by_group = {name: np.zeros((*shape, num_groups)) for name, shape in shapes}
        for codes, piece in zip(members, pieces(), strict=True):
            part = LinearStatistics.from_rows(piece, random, centre)
            totals = {name: total + getattr(part, name) for name, total in totals.items()}
            for name, whole in by_group.items():
                whole[..., codes[codes >= 0]] = np.asarray(getattr(part, name))[..., codes >= 0]
        return LinearStatistics(
            centre=jax.device_put(centre),
            variance=jax.device_put(variance),
            original_order=jnp.arange(num_groups),
            num_rows=jax.device_put(np.float64(num_rows)),
            num_groups=num_groups,
            **{name: jax.device_put(values) for name, values in (totals | by_group).items()},
        )

    def joined(self, more: "LinearStatistics") -> "LinearStatistics":
        """Add the sums of further rows about the same fit; groups are then in original order.

        ``more`` has all groups of these data, and may have others after them.
        """
        new = more.num_groups - self.num_groups

        def both(name: str) -> Any:
            ours, theirs = (
                np.asarray(getattr(each, name))[..., np.asarray(each.original_order)]
                for each in (self, more)
            )
            wider = np.pad(ours, [(0, 0)] * (ours.ndim - 1) + [(0, new)])
            return jax.device_put(wider + theirs)

        return dataclasses.replace(
            more,
            variance=self.variance,
            original_order=jax.device_put(np.arange(more.num_groups)),
            num_rows=self.num_rows + more.num_rows,
            **{name: getattr(self, name) + getattr(more, name) for name in OF_ROWS},
            **{name: both(name) for name in OF_GROUPS},
        )

    def filled_up(self) -> "LinearStatistics":
        """Append empty groups up to one of a few numbers that share compiled programs.

        Cross products of an empty group are zero, and so is its contribution to a likelihood.
        """
        number = padded(self.num_groups)
        if not self.num_groups < number <= MOST_FILLED:
            return self

        empty, groups = number - self.num_groups, dict[str, Any]()
        for name in OF_GROUPS:
            values = np.asarray(getattr(self, name))
            wider = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, empty)])
            groups[name] = jax.device_put(wider)
        return dataclasses.replace(
            self,
            **groups,
            original_order=jax.device_put(np.arange(number)),
            num_groups=number,
        )

    def size(self, effects: int, by_row: int) -> int:
        return self.num_groups * max(effects, 1) ** 2

    @property
    def effects_square(self) -> Float[Array, " r"]:
        """Mean squares of the columns with effects."""
        return jnp.sum(jnp.diagonal(self.effects_gram), axis=0) / self.num_rows

    def features(self, of: Features) -> Float[Array, "n q"]:
        """Raise an error: there are no rows to compute features of, only sums over them."""
        raise InputError(
            "Drawing effects needs every row, but these data are sums over rows; pass the rows "
            "themselves instead of the result of prepare()."
        )

    def moments(self, features: Features, coef: Float[Array, " q"], random: Columns) -> Moments:
        """Return moments at these coefficients; the features are the columns themselves."""
        delta = coef - self.centre
        square = self.square_total - 2 * delta @ self.cross_total + delta @ self.gram_total @ delta
        cross = self.effects_cross - jnp.einsum("rqk,q->rk", self.effects_design, delta)
        return Moments(self.effects_gram, cross, square, self.num_rows)
