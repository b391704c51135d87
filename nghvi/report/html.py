"""Small pieces of HTML: what comes from a user is escaped, what is made here is ``Html``.

The module also has the style of the page (light and dark, screen, phone and paper) and its
pictures: inline SVG in the font and colours of the page.
"""

import contextlib
import html
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from nghvi.plots.pictures import BLUE, GREY, ORANGE


class Html(str):
    """A text that is finished markup."""

    __slots__ = ()


def text(value: object) -> str:
    """Return the markup of anything: escaped, unless it is markup already."""
    return value if isinstance(value, Html) else html.escape(str(value))


def element(tag: str, *content: object, **attributes: str) -> Html:
    """Return ``<tag ...>content</tag>``; attributes lose an underscore at the end of their name."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for name, value in attributes.items()
    )
    return Html(f"<{tag}{given}>{''.join(map(text, content))}</{tag}>")


def join(parts: Iterable[object]) -> Html:
    """Return the markup of several parts, one after the other."""
    return Html("\n".join(map(text, parts)))


def paragraph(*content: object, **attributes: str) -> Html:
    """Return a paragraph."""
    return element("p", *content, **attributes)


def section(title: str, *content: object) -> Html:
    """Return a part of the page with a heading of its own."""
    name = "".join(c if c.isalnum() else "-" for c in title.lower())
    return element("section", element("h2", title, id=name), *content, aria_labelledby=name)


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], *, kind: str = "numbers"
) -> Html:
    """Return a table whose first column names the rows; wide ones scroll inside their frame.

    ``kind="text"``: the last column holds words; ``"texts"``: the last two do; ``"reading"``: the
    last says in words what the numbers do, and phones leave it and the third one out.
    """
    head = element("tr", *(element("th", each, scope="col") for each in heads))
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", each) for each in others))
        for first, *others in rows
    ]
    parts = element("caption", caption), element("thead", head), element("tbody", *body)
    content = element("table", *parts, class_=kind)
    # Focusable, so that it can be scrolled with the keyboard.
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """Return names and values side by side."""
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in pairs)
    return element("dl", *rows)


CSS = """
:root { color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1d2733; --soft: #55606e; --line: #dde2e8;
  --blue: #2a6f97; --grey: #8d99ae; --red: #d1495b;
  --good: #1f7a4d; --good-back: #e7f5ed; --care: #8a5a00; --care-back: #fdf3dc;
  --bad: #b3261e; --bad-back: #fdecea; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12161c; --card: #1b212a; --ink: #e6eaf0; --soft: #a3afbd; --line: #333d4a;
  --blue: #6fb7e0; --grey: #8d99ae; --red: #f0808d;
  --good: #7fd6a8; --good-back: #16301f; --care: #f0c36b; --care-back: #33280f;
  --bad: #ff9d94; --bad-back: #3a1a18; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
main, header, footer { max-width: 66rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 0 0 .6rem; }
p { margin: 0 0 .7rem; max-width: 46rem; }
header p, footer, figcaption, .soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .7rem;
  padding: 1.1rem 1.2rem; margin: 1rem 0; }
.verdict { border-left: .5rem solid; font-size: 1.05rem; }
.verdict h2 { font-size: 1.7rem; line-height: 1.2; }
.verdict.good { background: var(--good-back); border-color: var(--good); }
.verdict.care { background: var(--care-back); border-color: var(--care); }
.verdict.bad { background: var(--bad-back); border-color: var(--bad); }
.good h2 { color: var(--good); } .care h2 { color: var(--care); } .bad h2 { color: var(--bad); }
.flag { color: var(--bad); font-weight: 600; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(12rem, 1fr)); gap: .7rem 1.4rem;
  margin: 0; }
dt { color: var(--soft); font-size: .85rem; }
dl + p { margin-top: .9rem; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 0 0 .8rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 30rem; }
caption { text-align: left; color: var(--soft); font-size: .9rem; padding-bottom: .3rem; }
th, td { padding: .32rem .9rem .32rem 0; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; font-size: .85rem; }
tbody th { font-weight: 600; }
th:first-child, :is(table.text, table.texts, table.reading) :is(th, td):last-child,
table.texts :is(th, td):nth-last-child(2) { text-align: left; }
table.texts td:nth-last-child(-n+2) { white-space: normal; min-width: 6rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: 1rem; }
.figures.small { grid-template-columns: repeat(auto-fill, minmax(min(11rem, 45%), 1fr)); }
figure { margin: 0; min-width: 0; max-width: 31rem; }
figcaption { font-size: .88rem; margin-top: .2rem; }
svg { display: block; width: 100%; height: auto; color: var(--ink); overflow: visible; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: inherit; }
pre { background: var(--paper); border: 1px solid var(--line); border-radius: .4rem;
  padding: .7rem .9rem; overflow-x: auto; font-size: .85rem; line-height: 1.45; margin: 0 0 .8rem; }
details { margin-top: .6rem; } summary { cursor: pointer; color: var(--soft); }
footer { padding-bottom: 2rem; font-size: .85rem; }
@media (max-width: 40rem) { body { font-size: 15px; } section { padding: .9rem; }
  dl { grid-template-columns: repeat(2, 1fr); }
  h1 { font-size: 1.45rem; } .verdict h2 { font-size: 1.4rem; } table { min-width: 0; }
  th, td { padding-right: .45rem; font-size: .8rem; } tbody th, table.text td:last-child {
  white-space: normal; overflow-wrap: anywhere; } tbody th { min-width: 6rem; }
  table.texts thead th { white-space: normal; } table.texts td:nth-last-child(-n+2) {
  min-width: 4.8rem; }
  table.reading :is(th, td):is(:nth-child(3), :last-child) { display: none; }
  pre { white-space: pre-wrap; } }
@media print { :root { --paper: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #ccc;
  --blue: #2a6f97; --grey: #8d99ae; --red: #d1495b; --good: #1f7a4d; --good-back: #fff;
  --care: #8a5a00; --care-back: #fff; --bad: #b3261e; --bad-back: #fff; }
  body { font-size: 10.5pt; } section { border: 0; padding: .2rem 0; }
  .verdict { border-left: .4rem solid; padding-left: .8rem; }
  p, figure, table, tr, pre, dl div { break-inside: avoid; }
  h2, p:has(+ .figures) { break-after: avoid; } figure { max-width: 23rem; }
  .scroll, pre { overflow: visible; white-space: pre-wrap; } }
"""


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
        """Return what ``draw`` puts on its axes: one, or an array with one for every caption."""
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
    """Return the ``svg`` element alone, with identifiers of its own and the page's colours."""
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
