"""The bench of the command tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.graphs import Bench


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """A random graph of 30 entities, and the commands on it."""
    return Bench(tmp_path, capsys)
