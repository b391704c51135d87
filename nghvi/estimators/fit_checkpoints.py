"""What a checkpoint of an estimator's fit must agree with."""

import hashlib
import numbers
import os
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.base import BaseEstimator

from nghvi._typing import Data
from nghvi.data.frame import DataError
from nghvi.data.working_copy import StreamedRows
from nghvi.models.divided import mesh_of
from nghvi.models.mixed import MixedModel
from nghvi.storage.checkpoints import Checkpoints
from nghvi.storage.file import library_version

NO_MATTER = ("verbose", "devices")
"""Settings that do not decide the course; of devices their number does."""
EVERY = 300.0
"""Seconds between checkpoints."""


class Kept(NamedTuple):
    """Where and how often a fit keeps checkpoints."""

    directory: str | os.PathLike
    every: float

    @staticmethod
    def of(checkpoint: str | os.PathLike | None, every: float) -> "Kept | None":
        """What the caller of ``fit`` asked for."""
        if isinstance(every, bool) or not isinstance(every, numbers.Real) or not every >= 0:
            raise DataError(f"every={every!r}: give seconds between checkpoints, 0 or more.")
        return None if checkpoint is None else Kept(checkpoint, float(every))


def with_checkpoints(
    kept: Kept, estimator: BaseEstimator, model: MixedModel, data: Data
) -> dict[str, Any]:
    """The settings of ``infer`` with which a fit continues from its checkpoints."""
    checkpoints = _checkpoints_of(kept, estimator, model, data)
    return {"keep": checkpoints.offer, "resume": checkpoints.newest()}


def _checkpoints_of(
    kept: Kept, estimator: BaseEstimator, model: MixedModel, data: Data
) -> Checkpoints:
    settings = estimator.get_params(deep=False)
    state = settings["random_state"]
    if state is not None and not isinstance(state, numbers.Integral):
        raise DataError(
            f"checkpoint with random_state={state!r}: give an integer, which a later process can "
            "repeat."
        )
    facts = {name: repr(value) for name, value in settings.items() if name not in NO_MATTER}
    mesh = mesh_of(settings["devices"])
    seen = data.facts if isinstance(data, StreamedRows) else data
    return Checkpoints(
        kept.directory,
        {
            "estimator": type(estimator).__name__,
            **facts,
            "devices": str(1 if mesh is None else mesh.size),
            "number of rows": str(float(data.num_rows)),
            "number of groups": str(data.num_groups),
            "sha256 of data and model": _fingerprint((seen, model)),
            "nghvi version": library_version(),
        },
        kept.every,
    )


def _fingerprint(tree: Any) -> str:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
