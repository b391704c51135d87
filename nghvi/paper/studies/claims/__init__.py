"""Statements of the paper and of the authors' program, each against numbers computed here.

The examples run all methods; this study takes formulas and settings one at a time. Printing errors
that need no numbers are listed together with what should be there.
"""

import pandas as pd

from nghvi.paper.studies.claims import elbo, fisher, sampling
from nghvi.paper.studies.claims.claim import Claim
from nghvi.paper.studies.exhibits import Table
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options, Study

CLAIMS: dict[str, Claim] = {
    claim.name: claim for claim in (*elbo.CLAIMS, *fisher.CLAIMS, *sampling.CLAIMS)
}

OTHERS = (
    ("Web Appendix B", "F32 has the shape of its transpose", "F23[(i,a), j] = 2 d_j P_ij (PB)_ja"),
    ("Web Appendix D.1", "H_k is n_k x (m_L + 1)", "n_k x m_L: m_L counts the offset"),
    ("Web Appendix D.3", "H_k' beta", "H_k beta"),
    (
        "Algorithm 1(d)",
        "the natural gradient is divided by its norm",
        "program: norm clipped at 50",
    ),
    ("Example 3", "a_k ~ N(0, 1)", "program: sd 0.1; both are run here"),
    ("Table 3", "at the variational posterior mean", "program: averages over 1,000 draws of theta"),
    ("Figure 4(a)", "PCE of test rows", "program: of validation rows"),
    ("Section 1", "NAGVAC has a block-diagonal Fisher matrix", "program: whole matrix"),
    (
        "program, 2(a)",
        "zero densities guarded before the log score",
        "overwrites the first density",
    ),
    ("program, 2(a)", "100 replicates", "the script uses a variable that does not exist"),
    (
        "program, 2(b)",
        "one file of parameters",
        "two files of the same name; the right one is found first",
    ),
)
"""Place, what stands there, what should stand there or what the program does."""


def cells(options: Options) -> list[Row]:
    """One cell per claim."""
    return [{"claim": name, "seed": options.seed} for name in CLAIMS]


def run(cell: Row, options: Options) -> Row:
    """Check one claim."""
    return CLAIMS[cell["claim"]].check(options._replace(seed=cell["seed"]))


def tables(rows: list[Row]) -> list[Table]:
    """The claims with numbers, and the others."""
    found = pd.DataFrame(rows)[["claim", "where", "said", "found"]]
    others = pd.DataFrame(OTHERS, columns=["where", "said", "right, or what the program does"])
    caption = "Printing errors, and where text and program differ"
    return [
        Table("claims", "Statements against numbers computed here", found.set_index("claim")),
        Table("claims_others", caption, others.set_index("where")),
    ]


STUDY = Study("claims", "statements of the paper, one at a time", cells, run, tables)
