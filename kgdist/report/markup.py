"""HTML that cannot be broken by what is put into it: text is escaped unless this file has made it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_VOID = ("meta", "wbr")
_PIECES = re.compile(r"[^_/:,;-]*[_/:,;-]+|[^_/:,;-]+$")


class Markup(str):
    """Text that is HTML already."""


Child = str | Markup | None | Iterable["Child"]


def text(child: Child) -> str:
    """The HTML of text (escaped), of Markup (as it is), of nothing, or of all of a list."""
    if child is None:
        return ""
    if isinstance(child, Markup):
        return str(child)
    if isinstance(child, str):
        return html.escape(child)
    return "".join(text(part) for part in child)


def el(tag: str, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element. `class_` is class, `aria_label` is aria-label; None and False leave an attribute out."""
    words = [tag]
    for name, value in attributes.items():
        key = name.rstrip("_").replace("_", "-")
        if value is True:
            words.append(key)
        elif value is not None and value is not False:
            words.append(f'{key}="{html.escape(value)}"')
    end = "" if tag in _VOID else f"{text(children)}</{tag}>"
    return Markup(f"<{' '.join(words)}>{end}")


def short(name: str, limit: int = 80) -> Markup:
    """A name of the graph: it may break after its signs, or else anywhere. One longer than `limit` is cut, its title is whole."""
    cut = len(name) > limit
    shown = name[: limit - 1] + "…" if cut else name
    pieces = [[piece, el("wbr")] for piece in _PIECES.findall(shown)]
    return el("span", pieces, class_="name", title=name if cut else None)


def table(head: Sequence[Child], rows: Iterable[Sequence[Child]], *, class_: str = "", hidden: Sequence[int] = ()) -> Markup:
    """A table whose first column are names and whose others are numbers; columns `hidden` give way on narrow screens."""

    def cells(kind: str, row: Sequence[Child]) -> Markup:
        found = []
        for place, cell in enumerate(row):
            classes = "wide" if place in hidden else None
            found.append(
                el("th", cell, class_=classes, scope="row") if kind == "td" and place == 0 else el(kind, cell, class_=classes)
            )
        return el("tr", found)

    body = [cells("td", row) for row in rows]
    return el("table", el("thead", cells("th", head)), el("tbody", body), class_=class_ or None)


def fold(title: Child, *children: Child, open_: bool = False) -> Markup:
    """What can be unfolded."""
    return el("details", el("summary", title), *children, open=open_)
