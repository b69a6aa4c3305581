"""Errors on their way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from kgdist.base.errors import DataError, Diverged, KgdistError, OptionError, UnknownName

ERRORS = [OptionError("--lr", "too large"), DataError("a.tsv", "no triple", line=3), UnknownName("nobody"), Diverged("no number")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_can_be_handed_on(error: KgdistError) -> None:
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error) and str(other) == str(error) and other.__dict__ == error.__dict__
