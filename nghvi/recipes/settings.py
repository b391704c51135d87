"""All that a caller of ``infer`` can choose."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Float

from nghvi._core.errors import InputError
from nghvi._core.variational import Start
from nghvi.families import FAMILIES, Family
from nghvi.methods import PUBLISHED, Method, published

METHODS = ("auto", *PUBLISHED)
"""Names that ``method=`` accepts."""
LATENTS = ("auto", "integrate", "sample")
"""Values that ``latents=`` accepts."""
INSTEAD = {
    "rank": "Give family=nghvi.families.Factor(rank) or family='full'. ",
    "smooth": "A model says by its property many_modes whether its posterior has many modes. ",
    "start_scale": "Give start=nghvi.Start(theta, scale). ",
    "refinements": "They are part of the position that is given as resume=. ",
    "random_state": "Did you mean seed=? ",
}
"""Advice for names that are settings elsewhere, or were settings once."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a posterior is approximated; every field has a default that suits most models.

    Parameters
    ----------
    seed
        Seed of all random numbers; the same seed gives the same result.
    method
        ``"auto"``, or a rule of :mod:`nghvi.methods` or its name.
    family
        The family of variational distributions: ``"auto"`` (Gaussians, with full covariance up to
        300 parameters), a name in :mod:`nghvi.families`, or an object such as ``Factor(rank=2)``.
        Only draws of ``"auto"`` and ``"full"`` are corrected by importance weights.
    steps
        Number of steps of a published rule, or of one start of a network. None leaves it to the
        recipe.
    n_starts
        Number of random starts of a model with many modes, of which the best is continued, or the
        two best are continued and mixed.
    latents
        ``"integrate"`` or ``"sample"`` the latent variables; ``"auto"`` integrates where that is
        exact and cheap.
    importance
        Whether draws may be corrected by importance weights, or those of small networks by
        Hamiltonian chains; False keeps those of the family.
    batch_groups
        Number of groups of ``Rows`` that a step sees, roughly; they are weighted so that gradients
        are unbiased, and the recipe is the one for networks. ``StreamedRows`` are always read like
        this, in the pieces in which they are stored on disk.
    devices
        Number of devices over which the groups are spread, or ``"all"``. None stands for one
        device, or after ``jax.distributed.initialize`` for those of all processes, each of which
        makes the same call.
    start
        Where the search begins: a vector theta, or a :class:`Start`, whose sds are those with which
        a published rule starts. None asks the model.
    """

    seed: int = 0
    method: Method = "auto"
    family: str | Family = "auto"
    steps: int | None = None
    n_starts: int | str = "auto"
    latents: str = "auto"
    importance: bool = True
    batch_groups: int | None = None
    devices: int | str | None = None
    start: Start | Float[Array, " m"] | None = None

    def __post_init__(self) -> None:
        if self.latents not in LATENTS:
            raise InputError(f"latents={self.latents!r}: choose 'auto', 'integrate' or 'sample'.")
        if published(self.method) is None and self.method != "auto":
            known = ", ".join(map(repr, METHODS))
            raise InputError(
                f"method={self.method!r}: choose one of {known}, or an object of nghvi.methods."
            )
        if self.family != "auto" and self.of_family is None:
            known = ", ".join(map(repr, ("auto", *FAMILIES)))
            raise InputError(
                f"family={self.family!r}: choose one of {known}, or an object whose class derives "
                "from nghvi.families.Family. (The distribution of y is a part of the model.)"
            )

    @property
    def of_family(self) -> Family | None:
        """The family that was asked for; None if the recipe chooses it."""
        return self.family if isinstance(self.family, Family) else FAMILIES.get(str(self.family))

    @property
    def begin(self) -> Start | None:
        """The start as a :class:`Start`, even if it was given as a vector."""
        return (
            self.start if self.start is None or isinstance(self.start, Start) else Start(self.start)
        )

    def changed(self, changes: Mapping[str, Any]) -> "Settings":
        """Return the same settings with other values of some fields."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes.keys() - set(known):
            near = difflib.get_close_matches(name, known, n=1)
            guess = f"Did you mean {near[0]}=? " if near else ""
            raise InputError(
                f"Unknown setting {name!r}. {INSTEAD.get(name, guess)}"
                f"The settings are {', '.join(known)}."
            )
        return dataclasses.replace(self, **changes)
