"""Where servers listen: addresses, ports, which process has them; and how many connections a process may have."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import resource
import socket
import sys
from pathlib import Path

from kgdist.base.errors import KgdistError, UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PREFIX = "kgdist/"
LISTENING = 0x10000  # in the flags of /proc/net/unix
OUTGOING = 32768  # the first port that Linux gives to outgoing connections
SPARE = 128  # descriptors of a process that are not connections: tables, pipes, libraries, a socket's own


def resolve(host: str, port: int) -> list[tuple[str, bool]]:
    """Addresses of a host, and whether each is IPv6. Raises UsageError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{host!r}: no address of that name is known ({error})") from error
    return [(str(address[0]), family == socket.AF_INET6) for family, _, _, _, address in found]


def at(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def user_name(host: str, port: int) -> str:
    """The abstract name of the Unix-domain socket of a server. Raises UsageError."""
    return PREFIX + at(resolve(host, port)[0][0], port)


def hold(host: str, port: int) -> socket.socket:
    """The TCP port, with nobody listening: a free one for 0. Raises UsageError when it is taken or no address of this machine."""
    address, ipv6 = resolve(host, port)[0]
    held = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET)
    try:
        held.bind((address, port))
    except OSError as error:
        held.close()
        raise taken(host, port, error.errno or 0) from error
    return held


def taken(host: str, port: int, why: int) -> UsageError:
    """The error of one who could not listen there, for this number of the system's."""
    if why == errno.EADDRINUSE:
        return UsageError(f"{at(host, port)} {in_use(resolve(host, port)[0][0], port)}")
    return UsageError(f"{at(host, port)} cannot be listened on: {os.strerror(why)}")


def in_use(address: str, port: int, proc: Path = Path("/proc")) -> str:
    """That a port of this address is, in words, and by whom."""
    if pid := port_holder(address, port, proc):
        return f"is in use (pid {pid})"
    return "is in use" + (f", perhaps by an outgoing connection; a port below {OUTGOING} never is" if port >= OUTGOING else "")


def port_holder(address: str, port: int, proc: Path = Path("/proc")) -> int | None:
    """The process that keeps others from listening on a port of this address, by TCP or its name, where the system tells us.

    Another one may listen on the same port of another address. A socket of all addresses keeps them all, and is named when there
    is none of this very address.
    """
    wanted, clashes = _plain(address), dict[str, int]()
    with contextlib.suppress(OSError):
        for line in (proc / "net/unix").read_text(encoding="ascii", errors="replace").splitlines()[1:]:
            words = line.split()
            if words[-1] == f"@{PREFIX}{at(address, port)}" and int(words[3], 16) & LISTENING:
                clashes[f"socket:[{words[6]}]"] = 0
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / table).read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                place, _, number = words[1].rpartition(":")
                if words[3] == "0A" and int(number, 16) == port:  # LISTEN
                    other = _in_table(place)
                    if other == wanted or _covers(other, wanted) or _covers(wanted, other):
                        clashes[f"socket:[{words[9]}]"] = (other != wanted) + (other.version != wanted.version)
    nearest = {inode for inode, distance in clashes.items() if distance == min(clashes.values())}
    for link in proc.glob("[0-9]*/fd/*") if nearest else ():
        with contextlib.suppress(OSError):
            if os.readlink(link) in nearest:
                return int(link.parts[-3])
    return None


def _covers(one: Address, other: Address) -> bool:
    """Whether a socket of the address `one` is one of `other` as well: IPv6's also takes in IPv4, unless told not to."""
    return one.is_unspecified and one.version >= other.version


def _plain(text: str) -> Address:
    """Without a zone, and as IPv4 where it is one in IPv6's clothes."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address


def _in_table(digits: str) -> Address:
    """An address of /proc/net/tcp: 32-bit words of the network's bytes, printed as numbers of this machine."""
    words = (int(digits[start : start + 8], 16) for start in range(0, len(digits), 8))
    return _plain(str(ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))))


def too_many(wanted: int) -> str | None:
    """What to say where a process cannot have so many connections, else None."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or wanted + SPARE <= hard:
        return None
    allowed = f"the hard limit of open files here allows {hard - SPARE}, {SPARE} being for other things"
    return f"{wanted} connections in one process: {allowed}; raise it to {wanted + SPARE} (ulimit -Hn)"


def allow_connections(wanted: int = 0) -> None:
    """As many descriptors as the system lets us have: each connection takes one, also that of a stranger. Raises KgdistError when
    they are too few for those `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if (problem := too_many(wanted)) is not None:
        raise KgdistError(problem)
