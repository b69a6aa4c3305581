"""Whatever stands in ip_config.txt: machines, or one line that says what is wrong; never anything else."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import DataError
from kgdist.runtime.ip_config import parse_cluster, read_cluster

PIECES = st.sampled_from(
    ["10.0.0.1", "host", "::1", "[::1]", "30050", "1", " ", "\t", "\n", "\r\n", "#", "-", "65535", "0", "\0"]
)
TEXTS = st.text(max_size=60) | st.lists(PIECES | st.text(max_size=3), max_size=30).map("".join)


def held(text: str) -> None:
    """The invariants of every outcome."""
    try:
        machines = parse_cluster(text)
    except DataError as error:
        assert str(error).startswith("ip_config.txt") and "\n" not in str(error) and error.exit_code == 2
        return
    assert [m.number for m in machines] == list(range(len(machines))) and machines
    taken = [(m.address.lower(), port) for m in machines for port in m.ports]
    assert len(set(taken)) == len(taken) and all(1 <= port <= 65535 for _, port in taken)
    for machine in machines:
        assert not machine.address.startswith("-") and not set(machine.address) & set(" \t\n;|&$`'\"\\/@[]()<>*?~\0")


@given(TEXTS)
def test_any_text(text: str) -> None:
    held(text)


def test_random_bytes_in_a_file(tmp_path: Path) -> None:
    draw = random.Random(7)
    for _ in range(200):
        path = tmp_path / "ip_config.txt"
        path.write_bytes(draw.randbytes(draw.randrange(200)))
        try:
            read_cluster(path)
        except DataError as error:
            assert "ip_config.txt" in str(error)
