"""Other methods for the same models and data, to judge the library's fits against."""

from nghvi.baselines.gibbs import GibbsDraws as GibbsDraws
from nghvi.baselines.gibbs import gibbs as gibbs
from nghvi.baselines.nagvac import NagvacFit as NagvacFit
from nghvi.baselines.nagvac import nagvac as nagvac
