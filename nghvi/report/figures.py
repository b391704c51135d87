"""Pictures as inline SVG that takes the page's font and colours, in the light and in the dark."""

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from nghvi.plots.pictures import BLUE, GREY, ORANGE
from nghvi.report.html import Html, element

INK = "#010203"
"""Stands for the text's colour until the picture is in the page."""
COLOURS = {
    INK: "currentColor",
    BLUE: "var(--blue)",
    GREY: "var(--grey)",
    ORANGE: "var(--red)",
}
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "nghvi",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Names of columns are text, not formulas.
    "text.parse_math": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
}
WIDE, SMALL, TALL = (4.2, 3.0), (2.1, 1.5), (4.2, 4.4)


class Gallery:
    """Draws pictures; every one gets identifiers of its own."""

    def __init__(self) -> None:
        self._number = 0

    def picture(
        self, draw: Callable[[Any], Any], *captions: str, size: tuple[float, float] = WIDE
    ) -> list[Html]:
        """What ``draw`` puts on its axes: one, or an array with one for every caption."""
        with _styled():
            # Not pyplot's, which would open windows in a session that has them.
            figures = [Figure(figsize=size, layout="constrained") for _ in captions]
            axes = [figure.add_subplot() for figure in figures]
            draw(axes[0] if len(axes) == 1 else np.array(axes, dtype=object))
            labels = [ax.get_title() for ax in axes]
            drawings = [self._svg(figure) for figure in figures]
        return [_figure(*each) for each in zip(drawings, labels, captions, strict=True)]

    def _svg(self, figure: Any) -> str:
        self._number += 1
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        return _inline(file.getvalue(), f"f{self._number}-")


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        # The reader's fonts are used, whatever the one for measuring lacks.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def _inline(svg: str, prefix: str) -> str:
    """The element alone: no prologue, no metadata, no fonts, own identifiers, page's colours."""
    box = re.search(r'viewBox="[^"]*"', svg)
    svg = f"<svg {box[0] if box else ''}" + svg[svg.index(">", svg.index("<svg")) :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r'\b(id="|url\(#)', rf"\1{prefix}", svg)
    svg = svg.replace('xlink:href="#', f'href="#{prefix}').replace("xlink:href", "href")
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    for colour, name in COLOURS.items():
        svg = svg.replace(colour, name)
    return re.sub(r"\s*\n\s*", "\n", svg)


def _figure(svg: str, title: str, caption: str) -> Html:
    label = f"{title}. {caption}" if caption else title
    opening = element("svg", role="img", aria_label=label).removesuffix("></svg>")
    below = [element("figcaption", caption)] if caption else []
    return element("figure", Html(svg.replace("<svg", opening, 1)), *below)
