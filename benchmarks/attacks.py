"""A server of the store under attack, and under load: `make bench-attacks`.

One server process with rows of 100 numbers; a trainer that pulls and pushes without a pause; a client that pulls 100 rows fifty
times a second and writes down how long each pull takes; and attackers, each a process of its own, in every way that is known to
have hurt a server once. For each: whether the server lives, how much more memory it took at most, and that client's pulls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq

from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.connection import name_of
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import Kind, Message, Part, pack
from kgdist.kvstore.places import user_name
from kgdist.kvstore.server import Server
from kgdist.kvstore.tables import MemoryTables, Update
from kgdist.kvstore.wire import Keys, Transport

HERE = Path(__file__).parent
IDENTITY = Identity("attacks", "attacks", 1, "", "")
ROWS, WIDTH, CLIENTS = 100_000, 100, 8
WARM = 3.0  # seconds until trainer and server have all the memory that they need
NOBODY = 65534
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"
CURVE_GREETING, NULL_GREETING = GREETING + b"CURVE".ljust(52, b"\0"), GREETING + b"NULL".ljust(52, b"\0")
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
LAYOUT = Layout.build({"entity": WIDTH}, {"entity": np.array([0, ROWS])}, [1])

Target = dict[str, Any]


def transport_of(target: Target) -> Transport:
    return Transport(Keys.from_json(target["keys"]) if target["keys"] else None, 15.0, user=target["way"] == "user")


# ---- the attacked


def serve(target: Target) -> None:
    """A server process, until its parent ends it."""
    torch.set_num_threads(1)
    tables = MemoryTables.create({"entity": (ROWS, WIDTH)}, "adagrad_row")
    transport = transport_of(target)
    wire = transport.server("127.0.0.1", 0, name_of(0))
    server = Server(0, LAYOUT, tables, IDENTITY, wire, transport=transport, clients=CLIENTS)
    print(int(wire.socket.get(zmq.LAST_ENDPOINT).rpartition(b":")[2]), flush=True)
    server.serve(lambda: os.getppid() != target["parent"])


def tables_of(target: Target, number: int) -> StoreTables:
    return StoreTables(LAYOUT, [("127.0.0.1", target["port"])], transport_of(target), IDENTITY, client=number)


def load(target: Target) -> None:
    """A trainer that never rests."""
    torch.set_num_threads(1)
    tables, chance = tables_of(target, 0), np.random.default_rng(0)
    grads = torch.randn(1000, WIDTH)
    print("ready", flush=True)
    while os.getppid() == target["parent"]:
        ids = chance.choice(ROWS, 1000, replace=False)
        tables.ahead({"entity": ids})
        tables.pull("entity", torch.from_numpy(ids))
        tables.push({"entity": Update(ids, grads)}, 1e-3)


def pulls(target: Target, seconds: float) -> list[float]:
    """Milliseconds of each of a client's pulls."""
    tables, chance, found = tables_of(target, 1), np.random.default_rng(1), []
    tables.pull("entity", torch.arange(100))  # loads the loops, the first time
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        ids = torch.from_numpy(chance.integers(0, ROWS, 100))
        began = time.perf_counter()
        tables.pull("entity", ids)
        found.append(1000 * (time.perf_counter() - began))
        time.sleep(0.02)
    tables.flush()
    tables.close()
    return found


# ---- attackers: each goes on until it is ended


def tcp(target: Target) -> socket.socket:
    return socket.create_connection(("127.0.0.1", target["port"]), timeout=10)


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def handshakes_without_end(target: Target) -> None:
    """40 connections, each with one frame of a handshake that is as long as a frame can be."""
    size = 4 << 20
    while True:
        peers = [tcp(target) for _ in range(40)]
        for peer in peers:
            peer.sendall(CURVE_GREETING + b"\x06" + size.to_bytes(8, "big"))
            peer.setblocking(False)
        noise, ends = bytes(1 << 16), time.monotonic() + 1.0
        while peers and time.monotonic() < ends:
            for peer in list(peers):
                try:
                    peer.send(noise)
                except BlockingIOError:
                    time.sleep(0.0001)
                except OSError:
                    peers.remove(peer)
        for peer in peers:
            peer.close()


def silence(target: Target) -> None:
    """Connections that say nothing, and nothing but half a greeting."""
    held: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            held.append(tcp(target))
            held[-1].sendall(NULL_GREETING[: len(held) % 64])
        for peer in held[:-2000]:
            peer.close()
        del held[:-2000]


def floods_and_resets(target: Target) -> None:
    """Frames without end on raw TCP, then RST: libzmq's assertion (issue 4841) where the socket is open."""
    while True:
        with contextlib.suppress(OSError):
            peer = tcp(target)
            peer.sendall((NULL_GREETING if target["way"] == "none" else CURVE_GREETING) + READY)
            time.sleep(0.001)
            peer.sendall(b"\x00\x05kgdsX" * 4000)
            reset(peer)


def another_users_floods(target: Target) -> None:
    """The same at a socket of this user only, as another one."""
    name = "\0" + user_name("127.0.0.1", target["port"])
    os.setuid(NOBODY)
    while True:
        with contextlib.suppress(OSError):
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(name)
            peer.sendall(NULL_GREETING + READY + b"\x00\x05kgdsX" * 4000)
            reset(peer)


def insider(target: Target, number: int = 7) -> zmq.Socket[bytes]:
    """A raw socket of one who has what it takes, welcomed as a client."""
    wire = transport_of(target).client("127.0.0.1", target["port"])
    wire.socket.set(zmq.SNDTIMEO, 5000)
    wire.socket.send_multipart(pack(Message(Kind.HELLO, number, 1, round=1, number=1, text=IDENTITY.text("trainer", number))))
    wire.socket.poll(5000)
    return wire.socket


def shed(peer: zmq.Socket[bytes]) -> None:
    with contextlib.suppress(zmq.ZMQError):
        while True:
            peer.recv(zmq.NOBLOCK)


def message_without_end(target: Target) -> None:
    """Frames with more to come, for ever, by one who was welcomed before."""
    hello = pack(Message(Kind.HELLO, 7, 1, round=1, number=1, text=IDENTITY.text("trainer", 7)))[0]
    frames_without_end(target, b"\x02" + len(hello).to_bytes(8, "big") + hello)


def strangers_message_without_end(target: Target) -> None:
    """The same by one who was not."""
    frames_without_end(target, b"")


def frames_without_end(target: Target, first: bytes) -> None:
    frame = b"\x03" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20)
    while True:
        with contextlib.suppress(OSError), tcp(target) as peer:
            peer.sendall(NULL_GREETING + READY)
            time.sleep(0.1)  # its READY; what comes before it would be no message
            peer.sendall(first)
            time.sleep(0.1)
            while True:
                peer.sendall(frame)


def reading(number: int, rows: int) -> list[Any]:
    return pack(Message(Kind.READ, 7, 1, round=1, number=number, parts=(Part(0, rows, WIDTH, 0),)))


def greedy_reads(target: Target) -> None:
    """As many blocks of rows as can be asked for, each as large as can be, and read."""
    peer, number = insider(target), 0
    while True:
        number += 1
        with contextlib.suppress(zmq.ZMQError):
            peer.send_multipart(reading(number, 10_000 if number % 2 else 60_000), zmq.NOBLOCK)
        shed(peer)


def reads_that_nobody_reads(target: Target) -> None:
    """The same, and nothing is taken from the socket."""
    peer, number = insider(target), 0
    while True:
        number += 1
        with contextlib.suppress(zmq.ZMQError):
            peer.send_multipart(reading(number, 10_000))


def made_up_clients(target: Target) -> None:
    """HELLOs of clients and incarnations that do not exist."""
    peer, number = insider(target), 0
    while True:
        number += 1
        text = IDENTITY.text("trainer", number)
        hello = Message(Kind.HELLO, number % (1 << 32), (1 << 32) - 1 - number % 3, round=1, number=1, text=text)
        with contextlib.suppress(zmq.ZMQError):
            peer.send_multipart(pack(hello))
        shed(peer)


def absurd_updates(target: Target) -> None:
    """Pushes that would make rows infinite, or numbers of them that no trainer reaches."""
    peer, number = insider(target), 0
    ids, values = np.arange(100, dtype=np.int32), np.ones(100 * WIDTH, np.float32)
    while True:
        number += 1
        squares = np.full(100, -5.0 if number % 2 else 1.0, np.float32)
        lr = 0.1 if number % 2 else 1e308
        part = Part(0, 100, WIDTH, ids=ids, squares=squares)
        push = Message(Kind.PUSH, 7, 1, round=1, number=number, lr=lr, parts=(part,), values=values)
        with contextlib.suppress(zmq.ZMQError):
            peer.send_multipart(pack(push))
        shed(peer)


def noise(target: Target) -> None:
    """Messages with some of their bytes changed."""
    peer, chance = insider(target), np.random.default_rng(0)
    ids, values = np.arange(100, dtype=np.int32), np.ones(100 * WIDTH, np.float32)
    push = Message(Kind.PUSH, 7, 1, number=1 << 40, lr=0.1, parts=(Part(0, 100, WIDTH, ids=ids),), values=values)
    whole = [bytes(frame) for frame in pack(push)]
    while True:
        frames = [bytearray(frame) for frame in whole]
        for _ in range(3):
            frames[0][chance.integers(len(frames[0]))] = chance.integers(256)
        with contextlib.suppress(zmq.ZMQError):
            peer.send_multipart(frames)
        shed(peer)


ATTACKS: list[tuple[Callable[[Target], None] | None, str]] = [
    (None, "user"),
    (another_users_floods, "user"),
    (greedy_reads, "user"),
    (reads_that_nobody_reads, "user"),
    (made_up_clients, "user"),
    (absurd_updates, "user"),
    (noise, "user"),
    (None, "curve"),
    (handshakes_without_end, "curve"),
    (silence, "curve"),
    (floods_and_resets, "curve"),
    (greedy_reads, "curve"),
    (reads_that_nobody_reads, "curve"),
    (noise, "curve"),
    (strangers_message_without_end, "none"),
    (message_without_end, "none"),
]
BY_NAME = {attack.__name__: attack for attack, _ in ATTACKS if attack is not None}


# ---- one attack


def resident(pid: int) -> float:
    """MiB that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def child(role: str, target: Target) -> Iterator[subprocess.Popen[str]]:
    """A process of this file that has said its first word, ended when the block is left."""
    command = [sys.executable, str(Path(__file__)), "--role", role]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(target) + "\n")
        process.stdin.flush()
        target["said"] = process.stdout.readline().strip()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def attacked(attack: str, way: str, seconds: float) -> dict[str, Any]:
    """Attack a new server for so long; what came of it."""
    keys = Keys.make().to_json() if way == "curve" else None
    target: Target = {"way": way, "keys": keys, "parent": os.getpid(), "port": 0}
    with child("serve", target) as server:
        target["port"] = int(target["said"])
        with child("load", target):
            pulls(target, WARM)
            calm = pulls(target, max(3.0, seconds / 10))
            before = most = resident(server.pid)
            busy: list[float] = []
            lost = ""
            with child(attack, target) if attack else contextlib.nullcontext():
                ends = time.monotonic() + seconds
                while time.monotonic() < ends and server.poll() is None and not lost:
                    try:
                        busy += pulls(target, 0.5)
                        most = max(most, resident(server.pid))
                    except Exception as error:
                        lost = f"{type(error).__name__}: {error}"
            alive = server.poll() is None and not lost
    found = {"attack": attack or "none at all", "way": way, "alive": alive, "more": most - before, "lost": lost}
    for name, values in (("calm", calm), ("busy", busy or [np.nan])):
        found |= {f"{name} p50": np.percentile(values, 50), f"{name} p99": np.percentile(values, 99)}
    return found


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack")
    parser.add_argument("--only", default="", help="those attacks whose name has this in it")
    args = parser.parse_args()
    if args.role:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        target = json.loads(sys.stdin.readline())
        if args.role in BY_NAME:
            print("attacking", flush=True)
        {"serve": serve, "load": load, **BY_NAME}[args.role](target)
        return
    lines = [
        "# A server under attack\n",
        f"`make bench-attacks`: {args.seconds:g} s of each attack on a server that also serves a trainer without a pause, on",
        f"{cpu()}, {os.cpu_count()} cores, which server, trainer, client and attacker share. Milliseconds are those of another",
        "client's pulls of 100 rows, before the attack and under it; MiB, what the server took at most beyond what it had.\n",
        "| attack | connections | alive | MiB more | p50 before | p99 before | p50 | p99 |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for attack, way in ATTACKS:
        name = attack.__name__ if attack else ""
        if args.only in name:
            found = attacked(name, way, args.seconds)
            times = " | ".join(f"{found[key]:.1f}" for key in ("calm p50", "calm p99", "busy p50", "busy p99"))
            alive = "yes" if found["alive"] else f"no {found['lost']}"
            line = f"| {found['attack'].replace('_', ' ')} | {way} | {alive} | {found['more']:.0f} | {times} |"
            lines.append(line)
            print(line, flush=True)
    busy = os.getloadavg()[1]
    lines.append(
        f"\nLoad of the machine in the last five minutes of it: {busy:.1f}; more than about {os.cpu_count()} adds to every time."
    )
    if not args.only:
        (HERE / "results" / "attacks.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
