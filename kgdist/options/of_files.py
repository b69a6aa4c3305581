"""How files of triples are laid out: the words that several commands share."""

from __future__ import annotations

import re
from typing import Any

_FORMAT = re.compile(r"(raw_udd|udd)_(?:\{([hrt]{3})\}|([hrt]{3}))")
HEADER: dict[str, Any] = {"choices": ("no", "yes", "auto"), "bare": "yes"}
QUOTED = 'fields may be quoted as in CSV ("New York, NY", quotation marks inside doubled), and lose their quotation marks'


def clean_format(text: str) -> str:
    """A format of triples as it is kept. Raises ValueError for one that is none."""
    if text == "built_in":
        return text
    match = _FORMAT.fullmatch(text)
    columns = (match[2] or match[3]) if match else ""
    if match is None or len(set(columns)) != 3:
        raise ValueError(f"must be built_in, or raw_udd_XYZ or udd_XYZ with XYZ the order of h, r and t, not {text[:60]!r}")
    return f"{match[1]}_{columns}"


def clean_delimiter(text: str) -> str:
    """What separates columns; `\\t` is a tab. Raises ValueError for a line break."""
    text = text.replace("\\t", "\t")
    if "\n" in text or "\r" in text:
        raise ValueError("must not hold a line break")
    return text
