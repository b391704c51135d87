"""A formula that cannot be used."""

import re

from nghvi.data.frame import DataError


class FormulaError(DataError):
    """The message shows the place in the formula and the remedy."""

    @staticmethod
    def at(formula: str, place: str, reason: str) -> "FormulaError":
        """An error at a piece of the formula."""
        # The parts of a formula are parsed with spaces of their own.
        found = re.search(r"\s*".join(map(re.escape, place.replace(" ", ""))), formula)
        shown = f", at {found[0]!r} (character {found.start() + 1})" if found and place else ""
        return FormulaError(f"formula {formula!r}{shown}: {reason}")
