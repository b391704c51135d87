"""y = 0 with probability pi, otherwise y ~ NegativeBinomial(mean mu, size k), log mu = eta."""

from typing import ClassVar

from nghvi.responses._zero_inflated import ZeroInflated
from nghvi.responses.negative_binomial import NegativeBinomial


class ZeroInflatedNegativeBinomial(ZeroInflated, NegativeBinomial):
    """Numbers of events that vary more than their mean, with extra zeros."""

    name: ClassVar[str] = "zero-inflated-negative-binomial"
