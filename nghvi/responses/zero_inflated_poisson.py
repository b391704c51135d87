"""y = 0 with probability pi, otherwise y ~ Poisson(mu), log mu = eta."""

from typing import ClassVar

from nghvi.responses._zero_inflated import ZeroInflated
from nghvi.responses.poisson import Poisson


class ZeroInflatedPoisson(ZeroInflated, Poisson):
    """Numbers of events with more zeros than a Poisson distribution has."""

    name: ClassVar[str] = "zero-inflated-poisson"
