"""Model formulas: from text and a raw data frame to a design, with formulaic's model matrices.

Only the group term is read here; everything else is formulaic's.
"""

from nghvi._core.errors import FormulaError as FormulaError
from nghvi.formula.design import Design as Design
from nghvi.formula.design import bounds_of as bounds_of
from nghvi.formula.design import has_intercept as has_intercept
from nghvi.formula.design import learn as learn
from nghvi.formula.design import response_given as response_given
from nghvi.formula.design import response_of as response_of
from nghvi.formula.design import variables as variables
from nghvi.formula.syntax import Syntax as Syntax
from nghvi.formula.syntax import parse as parse
