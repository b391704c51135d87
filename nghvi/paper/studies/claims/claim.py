"""A statement of the paper or of the authors' program, and the numbers it is checked against."""

from collections.abc import Callable
from typing import NamedTuple

from nghvi.paper.studies import printed_values
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options


class Claim(NamedTuple):
    """One statement."""

    name: str
    where: str
    """The place in the paper, or "program"."""
    said: str
    found: str
    """One sentence, numbers in braces as in ``str.format``."""
    numbers: Callable[[Options], Row]

    def check(self, options: Options) -> Row:
        """The numbers, and the sentence with them filled in."""
        numbers = self.numbers(options)
        found = self.found.format(**numbers)
        return {"where": self.where, "said": self.said, "found": found, **numbers}


def size(example: str, name: str) -> int:
    """A dimension of an example, from the paper's last table."""
    return int(printed_values.SUMMARY[example][name])
