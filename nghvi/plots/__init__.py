"""Pictures of a fit. Every function draws on ``ax`` (a new one by default) and returns it.

Pictures with several panels take and return an array of axes.
"""

from nghvi.plots.pictures import caterpillar as caterpillar
from nghvi.plots.pictures import lek as lek
from nghvi.plots.pictures import overview as overview
from nghvi.plots.pictures import partial_dependence as partial_dependence
from nghvi.plots.pictures import posterior as posterior
from nghvi.plots.pictures import trace as trace
from nghvi.plots.pictures import variance_share as variance_share
from nghvi.plots.row_checks import calibration as calibration
from nghvi.plots.row_checks import predictive_check as predictive_check
from nghvi.plots.row_checks import residuals as residuals
