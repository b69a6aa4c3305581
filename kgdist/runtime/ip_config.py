"""The machines of a job, read from ip_config.txt: a line is `address [first port [servers]]`, apart by blanks.

Comments (#), blank lines, tabs, host names, IPv6 with or without brackets, different server counts and several machines on one
host are fine. Here nothing is resolved or reached: whether an address leads anywhere is asked by
`kgdist.runtime.checks`.
"""

from __future__ import annotations

import bisect
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from kgdist.base.errors import DataError, counted
from kgdist.base.files import PathLike

PORT = 30050  # the first one where a line has none, as in DGL
SHAPE = "address [first port [servers]]"
LARGEST = 1 << 20  # bytes of the file: some 30,000 machines
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?:{_LABEL}\.)*{_LABEL}\.?")
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Machine:
    """One machine of the job, which trains the partition of its number; its server s listens on `port + s`."""

    address: str  # host name, IPv4 or IPv6 without brackets; empty until an engine has placed it
    port: int  # 0 until its agent has found one that is free
    servers: int
    number: int  # from 0, in the order of the lines

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"machine_{self.number}" + (f" ({self.address})" if self.address else "")

    @property
    def ports(self) -> range:
        """The ports of its servers."""
        return range(self.port, self.port + self.servers) if self.port else range(0)

    @property
    def listening(self) -> str:
        """Its servers, in words."""
        if not self.port:
            return f"{counted(self.servers, 'server')} on free ports" if self.servers > 1 else "1 server on a free port"
        return f"{counted(self.servers, 'server')} on port {self.port}" + (f"-{self.ports[-1]}" if self.servers > 1 else "")


def unplaced(count: int, servers: int = 1) -> list[Machine]:
    """So many machines that an engine will place."""
    return [Machine("", 0, servers, number) for number in range(count)]


def read_cluster(path: PathLike, servers: int | None = None) -> list[Machine]:
    """The machines of a file, at least one; `servers`: --num_servers, which counts where a line does not say how many.

    Raises DataError naming the file and the line (exit code 2).
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise DataError(path, f"{reason}; expected the machines, one a line: {SHAPE}") from error
    except ValueError as error:  # a NUL in the path
        raise DataError(path, str(error)) from error
    if len(data) > LARGEST:
        raise DataError(path, "larger than 1 MiB; expected one short line for each machine")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(path, f"not UTF-8 text at byte {error.start}", line=data.count(b"\n", 0, error.start) + 1) from error
    return parse_cluster(text, path, servers)


def parse_cluster(text: str, path: PathLike = "ip_config.txt", servers: int | None = None) -> list[Machine]:
    """The machines that `text` lists, see `read_cluster`; `path` is for messages only. Raises DataError."""
    machines: list[Machine] = []
    taken: dict[object, list[tuple[int, int, int]]] = {}  # host -> first port, last port and line of its machines, in order
    for number, line in enumerate(text.split("\n"), 1):
        fields = re.sub(r"(^|\s)#.*", "", line).split()
        if not fields:
            continue
        try:
            machine = _machine(fields, len(machines), servers)
            _claim(machine, number, taken.setdefault(_host(machine.address), []))
        except ValueError as error:
            raise DataError(path, str(error), line=number) from error
        machines.append(machine)
    if not machines:
        raise DataError(path, f"names no machine; expected one a line: {SHAPE}")
    return machines


def _machine(fields: list[str], number: int, wanted: int | None) -> Machine:
    if len(fields) > 3:
        raise ValueError(f"expected 1 to 3 fields ({SHAPE}), found {len(fields)}")
    address, port = _address(fields[0]), _integer(fields[1]) if len(fields) > 1 else PORT
    servers = _integer(fields[2]) if len(fields) > 2 else wanted or 1
    if port is None or not 1 <= port <= 65535:
        raise ValueError(f"the first port must be a number from 1 to 65535, not {_shown(fields[1])}")
    if servers is None or servers < 1:
        raise ValueError(f"servers must be a number, 1 or more, not {_shown(fields[2])}")
    if wanted not in (None, servers):
        raise ValueError(f"{counted(servers, 'server')} here, but --num_servers says {wanted}; drop one of the two")
    if port + servers - 1 > 65535:
        raise ValueError(f"{servers} servers from port {port} on go beyond port 65535")
    return Machine(address, port, servers, number)


def _address(text: str) -> str:
    """The address without brackets. Raises ValueError for what is neither an address nor a host name."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    ip = _ip(bare)
    if ip is not None and (bare == text or ip.version == 6):
        if ip.is_unspecified or ip.is_multicast:
            raise ValueError(f"{text} is not the address of one machine; give the one under which the others reach it")
        return bare
    if text.startswith("-"):
        raise ValueError(f"an address cannot start with a dash: {_shown(text)}")
    if "@" in text:
        raise ValueError(f"expected an address alone, not {_shown(text)}; the user is given by --ssh_user")
    last = text.rstrip(".").rpartition(".")[2]
    if len(text) > 253 or not _HOST.fullmatch(text) or _NUMBER.fullmatch(last):  # 10.0.0.256 is no host name
        raise ValueError(f"expected an IP address or a host name, not {_shown(text)}")
    return text


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _integer(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def _shown(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _claim(machine: Machine, line: int, taken: list[tuple[int, int, int]]) -> None:
    """Add the machine's ports to those of its host. Raises ValueError when a machine of another line has one of them."""
    first, last = machine.ports[0], machine.ports[-1]
    at = bisect.bisect(taken, (first, last, line))
    for other_first, other_last, there in taken[max(at - 1, 0) : at + 1]:  # the nearest two; the others are further away
        low, high = max(first, other_first), min(last, other_last)
        if low <= high:
            what, verb = (f"port {low}", "belongs") if low == high else (f"ports {low} to {high}", "belong")
            raise ValueError(
                f"{what} of {machine.address} {verb} to the machine of line {there} already; give another first port"
            )
    taken.insert(at, (first, last, line))


def _host(address: str) -> object:
    """Equal for two ways to write one address; names are not resolved."""
    ip = _ip("127.0.0.1" if address.lower().rstrip(".") == "localhost" else address)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip or address.lower().rstrip(".")
