"""Model formulas: turn a text and a raw data frame into a design, with formulaic's model matrices.

Group terms, offsets and facts about the rows are read here; formulaic handles everything else.
"""

from nghvi._core.errors import FormulaError as FormulaError
from nghvi.formula.design import Design as Design
from nghvi.formula.design import bounds_of as bounds_of
from nghvi.formula.design import has_intercept as has_intercept
from nghvi.formula.design import learn as learn
from nghvi.formula.design import learn_and_read as learn_and_read
from nghvi.formula.design import response_given as response_given
from nghvi.formula.design import response_of as response_of
from nghvi.formula.design import variables as variables
from nghvi.formula.syntax import Syntax as Syntax
from nghvi.formula.syntax import parse as parse
