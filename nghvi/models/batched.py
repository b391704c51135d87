"""Models of grouped rows on mini-batches of their groups, and what cannot be done with these."""

from nghvi._core.batches import Batches, Subsampled
from nghvi._core.errors import InputError
from nghvi._core.model import LatentModel, MarginalModel
from nghvi._typing import Data
from nghvi.data import Rows
from nghvi.data.streamed import StackedPieces, StreamedRows


def in_batches(
    model: LatentModel,
    data: Data,
    batch_groups: int | None,
    *,
    seed: int = 0,
    method: object = "auto",
    full: bool = False,
    devices: int | str | None = None,
) -> tuple[Subsampled, Batches]:
    """The model of a piece and the pieces; ``batch_groups=None`` where they lie on disk already."""
    if method != "auto":
        raise InputError(
            f"batch_groups with method={method!r}: the published rules see all groups at every "
            "step; leave batch_groups=None, or method='auto'."
        )
    if full:
        raise InputError("batch_groups with family='full' (rank='full'): give a number of factors.")
    if devices is not None:
        raise InputError(
            f"batch_groups with devices={devices!r}: a batch is one device's work; choose one."
        )
    if not isinstance(data, Rows | StreamedRows) or not isinstance(model, MarginalModel):
        raise InputError(
            f"batch_groups with {type(model).__name__} of {type(data).__name__}: only a model of "
            "grouped rows with a log_marginal can be divided into groups."
        )
    if getattr(model, "gibbs", None) is not None:
        raise InputError(
            "batch_groups with Gibbs sweeps: they go on from the last draw of a group's effects, "
            "which is many steps old; give the model gibbs=None."
        )
    pieces = data if isinstance(data, StreamedRows) else StackedPieces(data, batch_groups, seed)
    return Batches.of(pieces, seed, model)
