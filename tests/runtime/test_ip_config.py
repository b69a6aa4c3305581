"""ip_config.txt: what may stand in it, and the line and reason of everything that may not."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import DataError
from kgdist.runtime.ip_config import LARGEST, Machine, parse_cluster, read_cluster


def test_the_three_columns_of_each_line() -> None:
    machines = parse_cluster("192.168.0.11 30050 8\n192.168.0.12 30050 8\n")
    assert machines == [Machine("192.168.0.11", 30050, 8, 0), Machine("192.168.0.12", 30050, 8, 1)]
    assert [m.name for m in machines] == ["machine_0 (192.168.0.11)", "machine_1 (192.168.0.12)"]
    assert list(machines[0].ports) == list(range(30050, 30058))


def test_comments_blanks_tabs_names_ipv6_and_line_ends() -> None:
    text = (
        "# the cluster\r\n\n   \t\nhost-a.example\t30050\t 2   # rack 3\r\n  ::1 30050 1\n[fe80::1]  30050 3\n"
        "Gpu_1 65535 1#"  # a # inside a word is part of it
    )
    with pytest.raises(DataError, match="ip_config.txt:7: servers"):
        parse_cluster(text)
    machines = parse_cluster("\n" + text[:-1])
    assert [(m.address, m.port, m.servers) for m in machines] == [
        ("host-a.example", 30050, 2),
        ("::1", 30050, 1),
        ("fe80::1", 30050, 3),
        ("Gpu_1", 65535, 1),
    ]


def test_several_machines_on_one_host() -> None:
    assert len(parse_cluster("127.0.0.1 30050 2\n127.0.0.1 30052 1\nlocalhost 30053 1\n")) == 3


def test_a_line_may_leave_the_port_and_the_servers_to_others() -> None:
    text = "10.0.0.1\n10.0.0.2 30060  # its own port\nhost-c 30050 2\n"
    assert [(m.port, m.servers) for m in parse_cluster(text)] == [(30050, 1), (30060, 1), (30050, 2)]
    assert [(m.port, m.servers) for m in parse_cluster(text, servers=2)] == [(30050, 2), (30060, 2), (30050, 2)]
    with pytest.raises(DataError, match="^ip_config.txt:3: 2 servers here, but --num_servers says 3; drop one of the two$"):
        parse_cluster(text, servers=3)


BAD_LINES = {
    "10.0.0.1 30050 1 2": "expected 1 to 3 fields .address .first port .servers..., found 4$",
    "10.0.0.1 2 x": "servers must be a number, 1 or more, not 'x'",
    "8.8.8.8": "port 30050 of 8.8.8.8 belongs to the machine of line 2 already",
    "10.0.0.1 0 1": "the first port must be a number from 1 to 65535, not '0'",
    "10.0.0.1 65536 1": "the first port must be .* not '65536'",
    "10.0.0.1 -1 1": "the first port must be .* not '-1'",
    "10.0.0.1 abc 1": "the first port must be .* not 'abc'",
    "10.0.0.1 ٣٠٠ 1": "the first port must be",  # digits, but not ours
    "10.0.0.1 0x10 1": "the first port must be",
    f"10.0.0.1 {'9' * 5000} 1": "the first port must be .*\\.\\.\\.$",
    "10.0.0.1 30050 0": "servers must be a number, 1 or more, not '0'",
    "10.0.0.1 30050 1.5": "servers must be",
    "10.0.0.1 65535 2": "2 servers from port 65535 on go beyond port 65535",
    "-oProxyCommand=id 30050 1": "an address cannot start with a dash",
    "me@host 30050 1": "--ssh_user",
    "10.0.0.256 30050 1": "an IP address or a host name, not '10.0.0.256'",
    "10.0.0 30050 1": "an IP address or a host name",
    "[10.0.0.1] 30050 1": "an IP address or a host name",
    "fe80::1::2 30050 1": "an IP address or a host name",
    "[::1 30050 1": "an IP address or a host name",
    "host;id 30050 1": "an IP address or a host name",
    "$(id) 30050 1": "an IP address or a host name",
    "host/../x 30050 1": "an IP address or a host name",
    "host:22 30050 1": "an IP address or a host name",
    "a\0b 30050 1": "an IP address or a host name",
    "münchen 30050 1": "an IP address or a host name",
    f"{'a' * 64}.org 30050 1": "an IP address or a host name",
    "0.0.0.0 30050 1": "is not the address of one machine",
    ":: 30050 1": "is not the address of one machine",
    "224.0.0.1 30050 1": "is not the address of one machine",
    "8.8.8.8 30050 1": "port 30050 of 8.8.8.8 belongs to the machine of line 2 already",
    "8.8.8.8 30049 9": "ports 30050 to 30053 of 8.8.8.8 belong to the machine of line 2",
    "8.8.8.8 30053 9": "port 30053 of 8.8.8.8 belongs",
    "localhost 40000 1": "port 40000 of localhost belongs to the machine of line 3",
    "::ffff:8.8.8.8 30050 1": "belongs to the machine of line 2",
    "HOST.example. 1 1": "belongs to the machine of line 4",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: repr(line[:24]))
def test_a_bad_line_is_named_with_its_reason(line: str) -> None:
    good = "# machines\n8.8.8.8 30050 4\n127.0.0.1 40000 1\nhost.example 1 1\n\n"
    with pytest.raises(DataError, match=f"^ip_config.txt:6: .*{BAD_LINES[line]}") as caught:
        parse_cluster(good + line + "\n")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "\ufeff"])
def test_a_file_without_machines(text: str, tmp_path: Path) -> None:
    (tmp_path / "ip_config.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="ip_config.txt: names no machine"):
        read_cluster(tmp_path / "ip_config.txt")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "ip_config.txt"
    with pytest.raises(DataError, match="no such file; expected the machines"):
        read_cluster(path)
    with pytest.raises(DataError, match="directory"):
        read_cluster(tmp_path)
    with pytest.raises(DataError):
        read_cluster("a\0b")
    path.write_bytes(b"10.0.0.1 30050 1\n10.0.0.2 \xff 1\n")
    with pytest.raises(DataError, match=r"ip_config.txt:2: not UTF-8 text at byte 26"):
        read_cluster(path)
    path.write_bytes(b"#" * (LARGEST + 1))
    with pytest.raises(DataError, match="larger than 1 MiB"):
        read_cluster(path)
    path.write_bytes(b"\xef\xbb\xbf10.0.0.1 30050 1\r\n")
    assert read_cluster(path) == [Machine("10.0.0.1", 30050, 1, 0)]


NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z](\.[a-z]{2,4}){0,2}", fullmatch=True)
ADDRESSES = NAMES | st.ip_addresses().filter(lambda ip: not (ip.is_unspecified or ip.is_multicast)).map(str)
ROWS = st.tuples(ADDRESSES, st.integers(1, 65535), st.integers(1, 64)).filter(lambda row: row[1] + row[2] <= 65536)


@given(st.lists(ROWS, min_size=1, max_size=6), st.sampled_from([" ", "\t", " \t  "]), st.sampled_from(["\n", "\r\n", "\n\n#x\n"]))
def test_what_is_written_is_read(rows: list[tuple[str, int, int]], blank: str, end: str) -> None:
    claimed: set[tuple[object, int]] = set()
    clean = True
    for address, port, servers in rows:
        host = _canonical(address)
        wanted = {(host, p) for p in range(port, port + servers)}
        clean = clean and not wanted & claimed
        claimed |= wanted
    text = "".join(blank.join(map(str, row)) + end for row in rows)
    if not clean:
        with pytest.raises(DataError, match="already"):
            parse_cluster(text)
        return
    machines = parse_cluster(text)
    assert [(m.address, m.port, m.servers, m.number) for m in machines] == [(*row, i) for i, row in enumerate(rows)]


def _canonical(address: str) -> object:
    if address == "localhost":
        address = "127.0.0.1"
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return getattr(ip, "ipv4_mapped", None) or ip
