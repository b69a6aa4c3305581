"""One run and one server for the tests that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.rig import Served, served, trained


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, which tests only read."""
    return trained(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Served]:
    """A server of it."""
    with served(run) as made:
        yield made
