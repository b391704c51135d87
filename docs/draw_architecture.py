"""Draws the packages of the library: ``python docs/draw_architecture.py`` writes figures/rooms.png.

Boxes are packages; the numbers mark the path of a row through a fit.
"""

import pathlib

from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

TARGET = pathlib.Path(__file__).parent / "figures" / "rooms.png"
WIDTH, LEFT, GAP, HIGH = 760, 10, 10, 54
LAYERS = (
    (("cli", "commands"), ("report", "one page"), ("plots", "pictures"), ("paper", "reproduction")),
    (
        ("estimators", "mixed, MixedRegressor, MixedClassifier"),
        ("any_model", "Posterior"),
        ("storage", "files"),
    ),
    (("formula", "text to design"), ("posterior", "draws, predictions, checks")),
    (("infer", "one call"), ("recipes", "smooth, deep, published: stages and verdict")),
    (("models", "mixed model, pieces"), ("families", "of variational distributions")),
    (("responses", "what y is"), ("latents", "integrate or draw effects")),
    (("data", "rows, sums, pieces, files"), ("networks", "trunks"), ("priors", "and units")),
    (("_core", "model, draws, score, direction, step, loop"), ("_linalg", "small and low rank")),
)
"""From the top: every layer imports only those below it."""
WAY = ("estimators", "formula", "data", "models", "infer", "_core", "posterior", "report")
"""The packages that a row of a table passes through."""
BACK, EDGE, MARK, INK, SOFT = ("#e8f1f7", "#d3e5f0"), "#2a6f97", "#d1495b", "#1d2733", "#55606e"


def places() -> dict[str, tuple[float, float, float]]:
    """Left edge, top and width of every box; widths follow the length of what stands in it."""
    found = {}
    for number, layer in enumerate(LAYERS):
        sizes = [max(1.4 * len(name) + 4, len(what)) + 2 for name, what in layer]
        room = WIDTH - 2 * LEFT - GAP * (len(layer) - 1)
        left: float = LEFT
        for (name, _), size in zip(layer, sizes, strict=True):
            width = room * size / sum(sizes)
            found[name] = left, LEFT + number * (HIGH + GAP), width
            left += width + GAP
    return found


def main() -> None:
    """Write the picture."""
    at = places()
    height = 2 * LEFT + len(LAYERS) * (HIGH + GAP) - GAP
    figure = Figure(figsize=(WIDTH / 96, height / 96))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    for number, layer in enumerate(LAYERS):
        for name, what in layer:
            left, top, width = at[name]
            corners = {"boxstyle": "round,pad=0,rounding_size=6", "facecolor": BACK[number % 2]}
            axes.add_patch(FancyBboxPatch((left, top), width, HIGH, edgecolor=EDGE, **corners))
            axes.text(left + 10, top + 22, name, size=11, weight="bold", color=INK)
            axes.text(left + 10, top + 42, what, size=8.5, color=SOFT)
    for number, name in enumerate(WAY, 1):
        left, top, width = at[name]
        place = left + width - 17, top + 17
        axes.add_patch(Circle(place, 11, color=MARK))
        white = {"color": "white", "ha": "center", "va": "center", "weight": "bold"}
        axes.text(*place, str(number), size=9, **white)
    figure.savefig(TARGET, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
