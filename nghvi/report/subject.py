"""What a page is about."""

from typing import Any, NamedTuple

import pandas as pd

from nghvi.formula import parse
from nghvi.report.figures import Gallery


class Subject(NamedTuple):
    """What the page is about."""

    estimator: Any
    X: Any
    y: Any
    checked: pd.DataFrame | None
    """Rows beside their predictions; None where no rows were given."""
    gallery: Gallery

    @property
    def response(self) -> str:
        """The name of the response, as far as it is known."""
        formula = self.estimator.formula
        said = None if formula is None else parse(formula).response
        return str(said or getattr(self.y, "name", None) or "response")
