"""What a caller in Python names -> ids: one name or id, or several of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kgdist.base.errors import UsageError
from kgdist.data.vocabulary import Vocabulary
from kgdist.predict.lists import closest

Wanted = str | int | Iterable[Any]  # a name (str) or an id (int), or several


def ids_of(wanted: Wanted, names: Vocabulary, noun: str) -> tuple[np.ndarray, bool]:
    """int64[n], and whether one alone was named. `noun`: "entity" or "relation".

    Raises UsageError naming the first that is not known, with names like it.
    """
    single = isinstance(wanted, str) or not isinstance(wanted, Iterable)
    several = [wanted] if single else list(wanted)  # type: ignore[arg-type]
    texts = [each for each in several if isinstance(each, str)]
    found = iter(names.find(texts).tolist() if texts else [])
    ids = np.empty(len(several), np.int64)
    for place, each in enumerate(several):
        if isinstance(each, str):
            number = next(found)
            if number < 0:
                near = closest(each, names)
                hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
                raise UsageError(f"no {noun} is called {each[:80]!r}{hint}")
        elif isinstance(each, int | np.integer) and not isinstance(each, bool):
            number = int(each)
            if not 0 <= number < len(names):
                raise UsageError(f"{noun} id {number} is out of range, allowed: 0 to {len(names) - 1}")
        else:
            raise UsageError(f"{each!r:.60} is no {noun}: give a name (str) or an id (int)")
        ids[place] = number
    return ids, single
