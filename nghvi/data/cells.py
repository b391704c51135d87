"""Responses that share group and inputs: one row, a cell, for several observations.

What depends on the inputs alone, predictor and design, is computed once per cell; only the
likelihood is taken at every observation. For a response that is not Gaussian this is exact where
sums of the responses would not be, and the sums over groups run over cells.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from nghvi.data.grouped import Moments, Observations, Rows, select


class CellRows(Rows):
    """Rows are cells; ``y`` are their observations, in the memory order of ``within``."""

    within: Rows
    """The observations as groups of their cells; it has no inputs."""
    row_of: Int[Array, " c"]
    """The row of every group of ``within``."""
    cell_of: Int[Array, " n"]
    """And the way back; any for padding."""

    @staticmethod
    def make(
        inputs: Float[np.ndarray, "t d"],
        index: Int[np.ndarray, " o"],
        observed: Observations,
        num_groups: int,
    ) -> "CellRows":
        """From observations whose inputs are ``inputs[index]``; their own are not looked at."""
        code = observed.group * len(inputs) + index
        cells, cell = np.unique(code, return_inverse=True)
        group, number = cells // len(inputs), cells % len(inputs)
        nothing = np.zeros((len(cell), 0))
        within = Rows.from_arrays(nothing, observed.y, cell, len(cells), observed.weight)
        # Their numbers go the way of responses, and so tell which row is whose.
        rows = Rows.indexed(inputs, number, np.arange(len(cells)), group, num_groups)
        placed = np.asarray(rows.y, int)
        there = np.ones(len(placed), bool) if rows.weight is None else np.asarray(rows.weight) > 0
        row = np.empty(len(cells), int)
        row[placed[there]] = np.flatnonzero(there)
        memory = np.asarray(within.original_order)
        return CellRows(
            x=rows.x,
            y=within.y,
            weight=rows.weight,
            index=rows.index,
            original_order=rows.original_order,
            blocks=rows.blocks,
            num_rows=within.num_rows,
            within=within,
            row_of=jax.device_put(row[np.argsort(memory)]),
            cell_of=jax.device_put(memory[placed]),
        )

    def at_observations(self, values: Float[Array, "n ..."]) -> Float[Array, "o ..."]:
        return self.within.expand(values[self.row_of])

    def by_row(self, values: Float[Array, "o ..."]) -> Float[Array, "n ..."]:
        return self.within.sum(values)[self.cell_of]

    def total(self, values: Float[Array, " o"]) -> Float[Array, ""]:
        return self.within.total(values)

    def moments(
        self,
        features: Callable[[Array], Array],
        coef: Float[Array, " q"],
        random: tuple[int, ...],
    ) -> Moments:
        h = self.features(features)
        design, error = select(h, random), self.y - self.at_observations(h @ coef)
        gram = self.gram(design, self.by_row(jnp.ones_like(self.y)))
        cross = self.sum(design * self.by_row(error)[:, None]).T
        return Moments(gram, cross, self.total(error**2), self.num_rows)

    def observations(self) -> Observations:
        seen, index = self._seen()
        return seen._replace(x=np.asarray(self.x)[index])

    def apart(self) -> Rows:
        """One row per observation again."""
        (_, y, group, weight), index = self._seen()
        rows = Rows.indexed(np.asarray(self.x), index, y, group, self.num_groups, weight)
        return rows.numbered_by(self.original_order)

    def _seen(self) -> tuple[Observations, Int[np.ndarray, " o"]]:
        """Observations by group instead of by cell, and which inputs are theirs."""
        seen = self.within.observations()
        row = np.asarray(self.row_of)[seen.group]
        return seen._replace(group=self.group_of_rows()[row]), np.asarray(self.index)[row]
