"""The form of the data that a mixed model reads: rows, or sums over them where these suffice."""

from nghvi.data import LinearStatistics, Rows
from nghvi.data.grouped import Grouped
from nghvi.data.panel import collapse
from nghvi.models.mixed import MixedModel


def prepare(model: MixedModel, rows: Rows) -> Grouped:
    """Return the smallest form of the data that serves the model exactly."""
    if model.response.conjugate and model.trunk.linear:
        return LinearStatistics.from_rows(rows, model.random, known=model.known_coef)
    return collapse(rows, sums_suffice=model.response.conjugate, merge=model.gibbs is None)
