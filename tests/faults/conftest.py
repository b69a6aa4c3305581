"""Fixtures of these tests: a real sshd, networks of machines on this host, and folders with a partitioned graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.jobs import ip_config, workspace
from tests.faults.netns import make_network
from tests.faults.sshd import home, make_sshd, sshd

__all__ = ["home", "make_network", "make_sshd", "space", "sshd", "toy"]


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of two machines."""
    return workspace(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def space(toy: Path, tmp_path: Path) -> Path:
    """The same data in a workspace of one's own."""
    (tmp_path / "data").symlink_to(toy / "data")
    ip_config(tmp_path, parts=2)
    return tmp_path
