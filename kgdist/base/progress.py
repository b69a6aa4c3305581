"""What a person sees of a long job (bars) and what a program reads of it (metrics.jsonl)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kgdist.base.log import SCREEN, bars


def bar(
    iterable: Iterable[Any] | None = None, *, total: float | None = None, desc: str, unit: str = "it", initial: int = 0
) -> tqdm[Any]:
    """A progress bar with the time left; silent with --quiet, where stderr is no terminal, and for two seconds."""
    return tqdm(
        iterable,
        file=SCREEN,
        total=total,
        desc=desc,
        unit=unit,
        unit_scale=True,
        initial=initial,
        delay=2,
        dynamic_ncols=True,
        disable=not bars(),
    )


class Metrics:
    """Appends one JSON object a line to a file: ``{"time": seconds since 1970, "kind": "train" | "valid" | ..., ...}``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, kind: str, **values: Any) -> None:
        """Append one line; each line is written with a single call, so a reader never sees half of one."""
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, **values}, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
