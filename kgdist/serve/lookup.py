"""Names and labels -> ids, and ids -> names with their labels: what a request calls things, and what it is told.

Things are looked up by name, and by label where nothing has that name and one thing alone has the label.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kgdist.data.labels import ByLabel
from kgdist.data.names import is_text
from kgdist.data.read.columns import shown
from kgdist.predict.lists import PLURAL
from kgdist.serve.live import Live

HINTED = 3  # names of what may have been meant


class Refused(Exception):
    """A request that is not answered: its status, and what to say. `unknown`: (noun, name), for names like it."""

    def __init__(self, status: int, text: str, unknown: tuple[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.unknown = status, text, unknown


def look_up(live: Live, noun: str, texts: list[str], inverses: bool) -> dict[str, int]:
    """The ids of names and labels of a noun; with `inverses` those of rows. Raises Refused for the first that is not known."""
    names = live.row_names[noun] if inverses else live.names[noun]
    texts = list(dict.fromkeys(texts))
    try:
        ids = names.find(texts).tolist() if texts else []
    except TypeError:  # half of a surrogate pair, which no name holds
        texts.sort(key=is_text)
        ids = [int(names.find([text])[0]) if is_text(text) else -1 for text in texts]
    by_label = live.by_label(live.row_labels[noun] if inverses else live.labels[noun])
    for place, text in enumerate(texts):
        if ids[place] < 0:
            ids[place] = _labelled(noun, text, by_label)
    return dict(zip(texts, ids, strict=True))


def _labelled(noun: str, text: str, by_label: ByLabel | None) -> int:
    """The id of what alone has this label. Raises Refused."""
    bearers = np.zeros(0, np.int64) if by_label is None or not is_text(text) else by_label.bearers(text)
    if len(bearers) > 1:
        raise Refused(409, f"{len(bearers):,} {PLURAL[noun]} have the label {shown(text)}: name one of them", (noun, text))
    if len(bearers) == 0:
        raise Refused(404, f"no {noun} is called {shown(text)}", (noun, text))
    return int(bearers[0])


def near(live: Live, noun: str, text: str) -> list[str]:
    """Names of what `text` may have been meant to be: of those that have this label, or one like it, or such a name."""
    names, by_label = live.names[noun], live.by_label(live.labels[noun])  # without inverses: most questions take none
    if by_label is None or not is_text(text):
        return list(names.near(text))
    if len(bearers := by_label.bearers(text)):
        return list(names.names(bearers[:HINTED]))
    like = [name for label in by_label.texts.near(text) for name in names.names(by_label.bearers(label)[:1])]
    return list(dict.fromkeys([*names.near(text), *like]))[:HINTED]


def complete(live: Live, noun: str, text: str, most: int) -> dict[str, list[Any]]:
    """Names that `text` may be the beginning or a part of, and then those of which it is that of the label; with labels. Of all,
    where there is no text, first those with most triples."""
    if not is_text(text):
        return {"names": []}
    names, by_label = live.names[noun], live.by_label(live.labels[noun])
    found = [*([text] if text in names else []), *names.complete(text, most)]
    if not text:
        found = [*names.names(live.hubs[noun][:most]), *found]
    if by_label is not None:
        bearers = (by_label.bearers(label)[:most] for label in by_label.texts.complete(text, most))
        found += [name for ids in bearers for name in names.names(ids)]
    found = list(dict.fromkeys(found))[:most]
    return {"names": found} | ({} if by_label is None else {"labels": live.labels[noun].names(names.find(found))})


def named(live: Live, ids: dict[str, Any]) -> dict[str, list[Any]]:
    """Names, and where the run has labels these beside them, of the ids int[n] of each of `ids`, which are ends."""
    columns: dict[str, list[Any]] = {}
    for end, numbers in ids.items():
        noun = "relation" if end == "relation" else "entity"
        columns[end] = live.names[noun].names(numbers)
        if len(live.labels[noun]):
            columns[f"{end}_label"] = live.labels[noun].names(numbers)
    return columns
