"""Type names for the arrays and trees that are passed through the library."""

import os
from typing import Any

from jaxtyping import Array, Float

PyTree = Any
Place = str | os.PathLike
"""Where a file or folder is."""
Key = Array
Scalar = Float[Array, ""]
Params = Any
"""Unconstrained global parameters theta, a pytree with named fields."""
Latents = Any
"""Latent variables z, a pytree."""
Data = Any
"""Whatever a model was written to read."""
