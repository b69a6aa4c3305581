"""Score functions that a test registers, gone after it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

from kgdist import own_models
from kgdist.config import OPTIONS
from kgdist.models import registry


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Put the registry back when the block ends."""
    kept = [(known, copy.copy(known)) for known in (registry.MODELS, own_models.OWN, own_models._brought, registry._tried)]
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
    for name in own_models.OWN:
        del registry.MODELS[name]
    own_models.OWN.clear()
    own_models._brought.clear()
    OPTIONS["model_name"] = own_models.MODEL
