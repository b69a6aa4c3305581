"""Ports of this machine: whether a job's servers can have theirs, and one that is free; and which interface has an address."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import random
import socket
import struct
from collections.abc import Collection

from kgdist.base.errors import UsageError
from kgdist.kvstore.places import OUTGOING, in_use
from kgdist.runtime.ip_config import Machine

LOWEST = 10_000  # of those that are tried
TRIES = 200
SIOCGIFADDR = 0x8915  # of linux/sockios.h


def port_problems(machine: Machine) -> list[str]:
    """One line for every port of `machine`, which is this one, that its servers could not listen on."""
    found = []
    for port in machine.ports:
        try:
            info = socket.getaddrinfo(machine.address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            with socket.socket(info[0], info[1]) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(info[4])
        except socket.gaierror as error:
            return [f"{machine.address}: cannot be resolved here ({error.strerror}); check ip_config.txt"]
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return [f"{machine.address}: is not an address of this machine; ip_config.txt needs one that it has itself"]
            taken = error.errno == errno.EADDRINUSE
            reason = in_use(str(info[4][0]), port) if taken else f"cannot be bound ({error.strerror})"
            found.append(f"{machine.address}:{port} {reason}")
    return found


def free_port(besides: Collection[int]) -> int:
    """One that nobody has on any address at this moment, and that no outgoing connection is given. Raises UsageError."""
    return free_ports(1, besides)


def free_ports(count: int, besides: Collection[int] = ()) -> int:
    """The first of so many such ports in a row, drawn at random: others may look for some at the same time. Raises UsageError."""
    draw = random.SystemRandom()
    for _ in range(TRIES):
        ports = range(first := draw.randrange(LOWEST, max(LOWEST + 1, OUTGOING - count)), first + count)
        if any(port in besides for port in ports):
            continue
        try:
            with contextlib.ExitStack() as held:
                for port in ports:
                    held.enter_context(socket.create_server(("", port)))
                return first
        except OSError:
            continue
    what = "ports" if count == 1 else f"rows of {count} ports"
    raise UsageError(f"none of {TRIES} {what} between {LOWEST} and {OUTGOING} that were tried is free here")


def interface_of(address: str) -> str | None:
    """The network interface that has the address (IPv4, or a host name) of this machine; None where that is not to be found."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        wanted = socket.inet_aton(socket.gethostbyname(address))
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # one without an address
                found = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if found[20:24] == wanted:
                    return name
    return None
