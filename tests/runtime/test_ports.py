"""Ports and interfaces of this machine."""

from __future__ import annotations

import socket

import pytest

from kgdist.base.errors import UsageError
from kgdist.kvstore.places import OUTGOING
from kgdist.runtime import ports


def test_a_free_port_can_be_listened_on_and_is_none_of_those_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", ports.free_port(()))) as taken:
        held = taken.getsockname()[1]
        assert ports.LOWEST <= held < OUTGOING
        monkeypatch.setattr(ports, "LOWEST", held)
        monkeypatch.setattr(ports, "OUTGOING", held + 2)
        if held + 1 < OUTGOING:
            with pytest.raises(UsageError, match="none of 200 ports"):
                ports.free_port({held + 1})


def test_the_interface_of_an_address() -> None:
    names = {name for _, name in socket.if_nameindex()}
    assert ports.interface_of("127.0.0.1") in names and ports.interface_of("localhost") in names
    assert ports.interface_of("192.0.2.1") is None and ports.interface_of("no such name") is None
