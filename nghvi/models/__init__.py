"""Models: the mixed model is the only one the paper needs."""

from nghvi.models.mixed import MixedModel as MixedModel
from nghvi.models.parameters import MixedParams as MixedParams
