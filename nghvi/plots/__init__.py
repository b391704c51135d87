"""Pictures of a fit. Every function draws on ``ax`` (a new one by default) and returns it.

Pictures with several panels take and return an array of axes.
"""

from nghvi.plots.checks import calibration as calibration
from nghvi.plots.checks import predictive_check as predictive_check
from nghvi.plots.checks import residuals as residuals
from nghvi.plots.fit import caterpillar as caterpillar
from nghvi.plots.fit import overview as overview
from nghvi.plots.fit import posterior as posterior
from nghvi.plots.fit import trace as trace
from nghvi.plots.inputs import lek as lek
from nghvi.plots.inputs import partial_dependence as partial_dependence
from nghvi.plots.inputs import variance_share as variance_share
