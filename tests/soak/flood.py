"""Strangers at a server's port: `python -m tests.soak.flood ADDRESS PORT SECONDS SEED`, in the network of the job, as nobody.

Raw garbage, greetings that stop half way, whole greetings of another mechanism, frames without end, resets; at most CONNECTIONS
are open at a time. Says how many there were.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import sys
import time

CONNECTIONS = 50
NOBODY = 65534
GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x01"  # of ZMTP 3.1, up to the mechanism


def words(chance: random.Random) -> bytes:
    """What one of them says."""
    null = GREETING + b"NULL".ljust(20, b"\0") + b"\0" * 32
    ready = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
    curve = GREETING + b"CURVE".ljust(20, b"\0") + b"\0" * 32
    return chance.choice(
        [
            chance.randbytes(chance.randrange(1, 5000)),
            GREETING[: chance.randrange(len(GREETING))],
            null + ready + b"\x02" + struct.pack(">Q", 1 << chance.randrange(64)),
            null + ready + b"\x01\x00" * 2000,
            curve + b"\x04\xc8\x05HELLO" + chance.randbytes(194),
            curve + b"\x06" + struct.pack(">Q", 64 << 20) + chance.randbytes(4096),
            b"GET / HTTP/1.1\r\n\r\n",
        ]
    )


def main() -> None:
    """See the module."""
    address, port, seconds, seed = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    socket.getaddrinfo(address, port)  # what that imports nobody may not be allowed to read
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    chance, deadline, made = random.Random(seed), time.monotonic() + seconds, 0
    held: list[socket.socket] = []
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((address, port), timeout=1.0))
            made += 1
            held[-1].settimeout(0.2)
            held[-1].sendall(words(chance))
        if len(held) > CONNECTIONS or chance.random() < 0.3:
            closed = held.pop(chance.randrange(len(held))) if held else None
            if closed is not None and chance.random() < 0.5:  # as a crash does
                closed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if closed is not None:
                closed.close()
        time.sleep(0.002)
    for one in held:
        one.close()
    print(made)


if __name__ == "__main__":
    main()
