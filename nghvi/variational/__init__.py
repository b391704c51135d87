"""Variational families for the global parameters: one small file each."""

from nghvi.variational.cholesky import CholeskyGaussian as CholeskyGaussian
from nghvi.variational.factor import FactorGaussian as FactorGaussian

FAMILIES = {"factor": FactorGaussian, "cholesky": CholeskyGaussian}
