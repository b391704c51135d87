"""Variational families for the global parameters: each has a small file of its own."""

from nghvi._core.errors import InputError
from nghvi._core.variational import Family as Family
from nghvi._core.variational import Variational as Variational
from nghvi.families.cholesky import CholeskyGaussian as CholeskyGaussian
from nghvi.families.cholesky import Full as Full
from nghvi.families.factor import Factor as Factor
from nghvi.families.factor import FactorGaussian as FactorGaussian
from nghvi.families.mixture import Mixture as Mixture
from nghvi.families.multivariate_t import MultivariateT as MultivariateT
from nghvi.families.point import Point as Point

FAMILIES: dict[str, Family] = {
    "full": Full(),
    "factor": Factor(),
    "multivariate-t": MultivariateT(),
}
"""The families that ``family=`` accepts by name."""


def family_of(rank: int | str) -> str | Family:
    """Return the family for a number of factors, ``"full"`` or ``"auto"``."""
    if isinstance(rank, str):
        if rank not in ("auto", "full"):
            raise InputError(f"rank={rank!r}: give a number of factors >= 0, 'full' or 'auto'.")
        return rank
    return Factor(rank)
