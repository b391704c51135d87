"""What a caller of ``infer`` can choose."""

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
LATENTS = ("auto", "integrate", "sample")
INSTEAD = {
    "rank": "Give family=nghvi.families.Factor(rank) or family='full'. ",
    "smooth": "Whether a posterior has many modes is said by the model's property many_modes. ",
    "start_scale": "Give start=nghvi.Start(theta, scale). ",
    "refinements": "They are part of the position that is given as resume=. ",
    "random_state": "Did you mean seed=? ",
}
"""Of names that are settings elsewhere, or were: what to do."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a posterior is approximated; every field has a default that suits most models.

    Parameters
    ----------
    seed
        Of all random numbers: the same seed gives the same result.
    method
        ``"auto"``, or a rule of :mod:`nghvi.methods` or its name.
    family
        Of variational distributions: ``"auto"`` (Gaussians, with full covariance up to 300
        parameters), a name in :mod:`nghvi.families`, or an object such as ``Factor(rank=2)``. Draws
        of a family other than ``"auto"`` and ``"full"`` are its own, not corrected.
    steps
        Steps of a published rule, or of one start of a network; None takes as many as are needed.
    n_starts
        Random starts of a model with many modes, of which the best goes on.
    latents
        ``"integrate"`` or ``"sample"`` the latent variables; ``"auto"`` integrates where that is
        exact and cheap.
    importance
        Whether draws may be corrected by importance weights; False keeps those of the family.
    batch_groups
        About so many groups of ``Rows`` per step, weighted so that gradients are unbiased, by the
        recipe for networks. ``StreamedRows`` are always read that way, in the pieces in which they
        lie on disk.
    devices
        Their number, or ``"all"``, over which the groups are spread. None is one device, or after
        ``jax.distributed.initialize`` those of all processes, each of which makes the same call.
    start
        Where the search begins: a vector theta, or :class:`Start` with the sds of the first steps
        of a published rule. None asks the model.
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
                "from nghvi.families.Family. (The distribution of y is the model's matter.)"
            )

    @property
    def of_family(self) -> Family | None:
        """The family that was asked for; None leaves the choice to the recipe."""
        return self.family if isinstance(self.family, Family) else FAMILIES.get(str(self.family))

    @property
    def begin(self) -> Start | None:
        """The start as what it is, not as it may be written."""
        return (
            self.start if self.start is None or isinstance(self.start, Start) else Start(self.start)
        )

    def changed(self, changes: Mapping[str, Any]) -> "Settings":
        """The same with other values of some fields."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes.keys() - set(known):
            near = difflib.get_close_matches(name, known, n=1)
            guess = f"Did you mean {near[0]}=? " if near else ""
            raise InputError(
                f"Unknown setting {name!r}. {INSTEAD.get(name, guess)}"
                f"The settings are {', '.join(known)}."
            )
        return dataclasses.replace(self, **changes)
