"""Mixed models: with one grouping factor, with several, and divided over devices or batches."""

from nghvi.models.mixed import MixedModel as MixedModel
from nghvi.models.parameters import MixedParams as MixedParams
