"""Score functions that a test registers, gone after it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

from kgdist.models import registry
from kgdist.options import model_file
from kgdist.options.config import OPTIONS


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Put the registry back when the block ends."""
    kept = [(known, copy.copy(known)) for known in (registry.MODELS, model_file.OWN, model_file._brought, registry._tried)]
    row = OPTIONS["model_name"]
    try:
        yield
    finally:
        for known, before in kept:
            known.clear()
            known.update(before)  # type: ignore[attr-defined]
        OPTIONS["model_name"] = row


def forget() -> None:
    """As in a process that has not registered any."""
    for name in model_file.OWN:
        del registry.MODELS[name]
    model_file.OWN.clear()
    model_file._brought.clear()
    OPTIONS["model_name"] = model_file.MODEL
