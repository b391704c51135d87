"""The table, the page and the picture of simulation-based calibration, from its lines."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from benchmarks.rank_bands import Band, band, counts_below, holm, p_value
from nghvi.storage.file import replaced

DOCS = Path(__file__).parent.parent / "docs"
PLACE = DOCS / "calibration.md"
LEVEL = 0.95
LARGEST = 10.0
"""Posterior sds beyond which a truth lies as far as this."""


class Result(NamedTuple):
    """How the ranks of one model stand."""

    name: str
    words: str
    quantities: list[str]
    counts: np.ndarray
    """N F(z), one line per quantity."""
    p_values: np.ndarray
    replications: int
    not_converged: int
    square: tuple[float, float]
    """Mean square of z of the converged and of the other fits: 1 where posteriors are right."""
    corrected: float
    """Share of fits whose draws were corrected by importance weights."""
    k_hat: float
    """Share of fits with a Pareto shape above 0.7."""
    seconds: float
    commits: frozenset[str]

    @property
    def own(self) -> Band:
        """For one quantity."""
        return band(self.replications, LEVEL)

    @property
    def family(self) -> Band:
        """For all quantities of the model together (Bonferroni)."""
        return band(self.replications, 1 - (1 - LEVEL) / len(self.quantities))

    def outside(self, limits: Band) -> list[str]:
        """The quantities that leave the band."""
        out = np.any((self.counts < limits.low) | (self.counts > limits.high), axis=1)
        return [name for name, left in zip(self.quantities, out, strict=True) if left]

    @property
    def alarms(self) -> list[str]:
        """The quantities that leave the model's band."""
        return self.outside(self.family)


def summarise(
    name: str, words: str, quantities: list[str], rows: Sequence[dict], draws: int
) -> Result:
    """Of the lines of one model."""
    ranks = np.array([row["ranks"] for row in rows])
    # A fit that failed has any z, or none: it counts as the largest.
    z = np.clip(np.nan_to_num([row["z"] for row in rows], nan=LARGEST), -LARGEST, LARGEST)
    converged = np.array([row["converged"] for row in rows])

    def mean_square(chosen: np.ndarray) -> float:
        return float(np.mean(z[chosen] ** 2)) if chosen.any() else float("nan")

    return Result(
        name,
        words,
        quantities,
        np.array([counts_below(column, draws) for column in ranks.T]),
        np.array([p_value(column, draws) for column in ranks.T]),
        len(rows),
        int(np.sum(~converged)),
        (mean_square(converged), mean_square(~converged)),
        float(np.mean([row["corrected"] for row in rows])),
        float(np.mean([row["k_hat"] > 0.7 for row in rows])),
        float(np.median([row["seconds"] for row in rows])),
        frozenset(row["commit"] for row in rows),
    )


HEAD = (
    "model",
    "fits",
    "quantities",
    "outside their band (expected)",
    "outside the model's band",
    "smallest p, after Holm",
    "not converged",
    "mean z², converged",
    "mean z², not converged",
    "k-hat > 0.7",
    "median s",
)


def cells(result: Result) -> list[str]:
    """A line of the table."""
    own = result.outside(result.own)
    square = ["" if np.isnan(v) else f"{v:.2f}" for v in result.square]
    return [
        result.words,
        str(result.replications),
        str(len(result.quantities)),
        f"{len(own)} ({(1 - result.own.probability) * len(result.quantities):.2f})",
        ", ".join(result.alarms) or "none",
        f"{holm(result.p_values).min():.2g}",
        f"{result.not_converged} ({100 * result.not_converged / result.replications:.1f} %)",
        *square,
        f"{100 * result.k_hat:.0f} %",
        f"{result.seconds:.2g}",
    ]


def table(results: Sequence[Result]) -> str:
    """As Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *map(cells, results)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def overall(results: Sequence[Result]) -> str:
    """All quantities of all models as one family."""
    adjusted = holm(np.concatenate([result.p_values for result in results]))
    outside = sum(len(result.outside(result.own)) for result in results)
    expected = sum((1 - r.own.probability) * len(r.quantities) for r in results)
    return (
        f"{outside} of {len(adjusted)} quantities leave the 95 % band for one quantity; if every "
        f"posterior were exact, {expected:.1f} would do so by chance. Over all quantities "
        f"together, the smallest p-value after Holm's correction is {adjusted.min():.2g}."
    )


def power(replications: int, scale: float, shift: float, sets: int = 400) -> float:
    """Chance that ranks leave their band if posteriors are normal with a wrong sd or mean."""
    rng = np.random.default_rng(1)
    limits = band(replications, LEVEL)
    # The truth, in sds of its posterior, under a posterior N(shift, scale^2).
    level = norm.cdf((rng.standard_normal((sets, replications)) - shift) / scale)
    counts = np.sum(level[:, None, :] < limits.z[:, None], axis=2)
    return float(np.mean(np.any((counts < limits.low) | (counts > limits.high), axis=1)))


PAGE = """# Calibration by simulation

Do posteriors contain the truth as often as they should? To find out, parameters are drawn from the
prior and data from the model, and the posterior is fitted with that prior and default settings. If
the posterior is right, the rank of the true value among posterior draws is uniform, and the mean of
z² = ((truth - posterior mean) / posterior sd)² is 1. The ranked quantities are all coefficients,
the response's own parameters (noise, spread, cutpoints), the effects' sds and correlations, the
first group's effects, and the log likelihood at the truth.

`python -m benchmarks.sbc --report` writes this page from `benchmarks/results/sbc.jsonl` (commits
{commits}).

{table}

{overall}

![Empirical distribution functions of ranks minus the uniform one](figures/sbc.png)

Each line is one quantity. If posteriors are exact, a line stays inside the dark band everywhere
with probability 95 %, and all lines of a panel stay inside the light band with probability 95 % or
more (Bonferroni). The bands (Säilynoja, Bürkner and Vehtari, 2022) are exact for the number of
fits: the counts of ranks are a Markov chain, so the probability of staying inside is a product of
matrices.

What {replications} fits can detect: posterior sds that are too small by a factor of 0.7, 0.8 or 0.9
leave the dark band with probability {narrow}; means that are off by 0.1, 0.2 or 0.3 posterior sds
do so with probability {shifted}.

{converged}
"""


def converged_sentence(results: Sequence[Result]) -> str:
    """Whether the fits that are not called converged are the bad ones."""
    fits = sum(r.replications for r in results)
    bad = [r for r in results if r.not_converged]
    lost = sum(r.not_converged for r in bad)
    said = f"{lost} of {fits} fits ({100 * lost / fits:.1f} %) did not get the verdict converged."
    if not lost:
        return said
    good = np.array([r.square[0] for r in results])
    weight = np.array([r.replications - r.not_converged for r in results])
    kept = float(np.nansum(weight * good) / weight[np.isfinite(good)].sum())
    other = sum(r.not_converged * r.square[1] for r in bad) / lost
    return said + f" Their mean z² is {other:.2f}; that of the others is {kept:.2f}."


def _chances(values: Sequence[float]) -> str:
    first, second, third = (f"{100 * value:.0f} %" for value in values)
    return f"{first}, {second} and {third}"


def page(results: Sequence[Result]) -> str:
    """The page."""
    fewest = min(result.replications for result in results)
    return PAGE.format(
        commits=", ".join(sorted(frozenset().union(*(result.commits for result in results)))),
        table=table(results),
        overall=overall(results),
        replications=fewest,
        narrow=_chances([power(fewest, scale, 0.0) for scale in (0.7, 0.8, 0.9)]),
        shifted=_chances([power(fewest, 1.0, shift) for shift in (0.1, 0.2, 0.3)]),
        converged=converged_sentence(results),
    )


def draw(results: Sequence[Result]) -> bytes:
    """The picture: one panel per model, one line per quantity."""
    from matplotlib import pyplot as plt

    from nghvi.plots.pictures import BLUE, GREY, grid_or_new

    axes = np.ravel(grid_or_new(None, len(results), 4))
    for ax, result in zip(axes, results, strict=False):
        n = result.replications
        for limits, strength in ((result.family, 0.18), (result.own, 0.3)):
            low, high = limits.low / n - limits.z, limits.high / n - limits.z
            ax.fill_between(limits.z, low, high, color=GREY, alpha=strength, lw=0, step="mid")
        outside = result.alarms
        for name, counts in zip(result.quantities, result.counts, strict=True):
            loud = name in outside
            label = name if loud else None
            colour, width = ("#d1495b", 1.4) if loud else (BLUE, 0.7)
            ax.plot(result.own.z, counts / n - result.own.z, color=colour, lw=width, label=label)
        ax.axhline(0, color="black", lw=0.5)
        ax.set_title(f"{result.words} ({n} fits)", fontsize=8)
        ax.tick_params(labelsize=7)
        if outside:
            ax.legend(fontsize=6, frameon=False)
    figure = axes[0].figure
    figure.supxlabel("rank of the truth among posterior draws / 400", fontsize=8)
    figure.supylabel("ECDF of ranks minus uniform", fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return drawn.getvalue()


def write(results: Sequence[Result]) -> None:
    """The page and its picture."""
    with replaced(DOCS / "figures" / "sbc.png") as file:
        file.write(draw(results))
    with replaced(PLACE) as file:
        file.write(page(results).encode())
