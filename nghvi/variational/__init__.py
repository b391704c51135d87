"""Variational families for the global parameters: one small file each."""

from nghvi.variational.cholesky import CholeskyGaussian as CholeskyGaussian
from nghvi.variational.factor import FactorGaussian as FactorGaussian
from nghvi.variational.point import Point as Point

FAMILIES = {"factor": FactorGaussian, "cholesky": CholeskyGaussian, "point": Point}
