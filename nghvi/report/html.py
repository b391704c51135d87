"""Small pieces of HTML: what comes from a user is escaped, what is made here is ``Html``."""

import html
from collections.abc import Iterable, Sequence


class Html(str):
    """Markup that is finished."""

    __slots__ = ()


def text(value: object) -> str:
    """Markup of anything: escaped, unless it is markup already."""
    return value if isinstance(value, Html) else html.escape(str(value))


def element(tag: str, *content: object, **attributes: str) -> Html:
    """``<tag ...>content</tag>``; a trailing underscore of an attribute's name is dropped."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for name, value in attributes.items()
    )
    return Html(f"<{tag}{given}>{''.join(map(text, content))}</{tag}>")


def join(parts: Iterable[object]) -> Html:
    """One after the other."""
    return Html("\n".join(map(text, parts)))


def paragraph(*content: object, **attributes: str) -> Html:
    """A paragraph."""
    return element("p", *content, **attributes)


def section(title: str, *content: object) -> Html:
    """A part of the page with a heading of its own."""
    name = "".join(c if c.isalnum() else "-" for c in title.lower())
    return element("section", element("h2", title, id=name), *content, aria_labelledby=name)


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], *, kind: str = "numbers"
) -> Html:
    """A table whose first column names the rows; wide ones scroll inside their frame.

    ``kind="text"``: the last column holds words; ``"reading"``: it says in words what the numbers
    do, and phones leave it and the third one out.
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
    """Names and values side by side."""
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in pairs)
    return element("dl", *rows)
