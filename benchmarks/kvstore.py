"""The store's wire beside a raw socket that moves the same bytes: `make bench-kvstore`.

One client process, one server process, random rows of one table. Everything is measured in one run, in turn, several times over;
figures are medians, so ratios hold where absolute speeds drift. Raw is a plain TCP socket with large buffers, which suit it
best, that carries as many bytes in both directions, from and to one place in memory: it looks up no row. Beside it, the same
socket between the two passes over rows that no store is without: gathered and scattered, or gathered and updated.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from roofs import machine

from kgdist.base.machine import keep_freed_memory
from kgdist.kernels.rows import adagrad_rows, gather_rows
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.connection import name_of
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import HEADER
from kgdist.kvstore.server import Server
from kgdist.kvstore.tables import MemoryTables, Update
from kgdist.kvstore.wire import TCP_BYTES, Keys, Transport

HERE = Path(__file__).parent
IDENTITY = Identity("bench", "bench", 1, "", "")
WIDTH, COUNT, IN_FLIGHT = 400, 2000, 4
IDS, ROWS = COUNT * 4, COUNT * WIDTH * 4  # bytes
FIELDS = struct.Struct("<QQQ")  # of the raw socket's header: bytes that come, bytes wanted, whether rows are looked up


def settle() -> None:
    """As trainers and servers do. Processes are not pinned: the thread that moves bytes goes where there is room."""
    torch.set_num_threads(1)
    keep_freed_memory()


def serve(job: dict[str, Any]) -> None:
    """A server process, until its stdin ends."""
    settle()
    transport = Transport(Keys.from_json(job["keys"]) if job["keys"] else None)
    wire = transport.server("127.0.0.1", job["port"], name_of(0))
    server = Server(0, Layout.from_json(job["layout"]), MemoryTables.attach(job["handles"], "adagrad_row"), IDENTITY, wire)
    print("ready", flush=True)
    server.serve(lambda: os.getppid() != job["parent"])


def exactly(peer: socket.socket, place: memoryview) -> bool:
    """Fill `place`; False when the other side is gone."""
    got = 0
    while got < len(place):
        more = peer.recv_into(place[got:])
        if not more:
            return False
        got += more
    return True


def tune(peer: socket.socket) -> None:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        peer.setsockopt(socket.SOL_SOCKET, option, TCP_BYTES)


def serve_raw(job: dict[str, Any]) -> None:
    """The other end of the raw socket: per request a header that says what comes, what is wanted, and whether rows are looked
    up."""
    settle()
    tables = MemoryTables.attach(job["handles"], "adagrad_row")
    table, state = tables.rows["entity"], tables.state["entity"]["sum"].view(-1)
    memory, ids, rows = request_memory()
    with socket.create_server(("127.0.0.1", job["port"])) as listener:
        print("ready", flush=True)
        peer, _ = listener.accept()
        tune(peer)
        head = memoryview(bytearray(HEADER.size))
        while exactly(peer, head):
            comes, wanted, looked_up = FIELDS.unpack_from(head)
            if not exactly(peer, memory[:comes]):
                return
            if looked_up and wanted:
                gather_rows(table, ids.long(), rows)
            elif looked_up:
                adagrad_rows(table, state, ids.long(), rows, 0.1)
            peer.sendall(head)
            peer.sendall(memory[IDS : IDS + wanted])


def request_memory() -> tuple[memoryview, torch.Tensor, torch.Tensor]:
    """Memory for a request, and its ids, int32[COUNT], and rows, float32[COUNT, WIDTH]."""
    memory = np.zeros(IDS + ROWS, np.uint8)
    ids, rows = memory[:IDS].view(np.int32), memory[IDS:].view(np.float32).reshape(COUNT, WIDTH)
    return memory.data, torch.from_numpy(ids), torch.from_numpy(rows)


class Raw:
    """Our end of it."""

    def __init__(self, port: int) -> None:
        self.peer = socket.create_connection(("127.0.0.1", port), timeout=30)
        tune(self.peer)
        self.memory, self.ids, self.rows = request_memory()
        self.head = memoryview(bytearray(HEADER.size))

    def run(self, kind: str, ids: list[torch.Tensor], in_flight: int, out: torch.Tensor | None = None) -> None:
        """One request for each of `ids`; between rows of `out` and of the server's table where it is given."""
        comes, wanted = {"pull": (IDS, ROWS), "push": (IDS + ROWS, 0)}[kind]
        head = FIELDS.pack(comes, wanted, out is not None).ljust(HEADER.size)
        everything = torch.arange(COUNT)
        for number in range(len(ids) + in_flight - 1):
            if number < len(ids):
                self.ids.copy_(ids[number])
                if out is not None and kind == "push":
                    gather_rows(out, everything, self.rows)
                self.peer.sendall(head)
                self.peer.sendall(self.memory[:comes])
            if number >= in_flight - 1:
                exactly(self.peer, self.head)
                exactly(self.peer, self.memory[IDS : IDS + wanted])
                if out is not None and kind == "pull":
                    gather_rows(self.rows, everything, out)


def pull_lock_step(tables: StoreTables, ids: list[torch.Tensor], out: torch.Tensor, grads: torch.Tensor) -> None:
    for wanted in ids:
        tables.pull("entity", wanted, out)


def pull_ahead(tables: StoreTables, ids: list[torch.Tensor], out: torch.Tensor, grads: torch.Tensor) -> None:
    tables.ahead({"entity": ids[0].numpy()})
    for wanted, following in zip(ids, [*ids[1:], None], strict=True):
        if following is not None:
            tables.ahead({"entity": following.numpy()})
        tables.pull("entity", wanted, out)


def push_lock_step(tables: StoreTables, ids: list[torch.Tensor], out: torch.Tensor, grads: torch.Tensor) -> None:
    for rows in ids:
        tables.push({"entity": Update(rows.numpy(), grads)}, 0.1)
        tables.flush()


def push_in_flight(tables: StoreTables, ids: list[torch.Tensor], out: torch.Tensor, grads: torch.Tensor) -> None:
    for rows in ids:
        tables.push({"entity": Update(rows.numpy(), grads)}, 0.1)
    tables.flush()


WAYS = {
    ("pull", "lock-step"): (pull_lock_step, 1),
    ("pull", "one batch ahead"): (pull_ahead, 2),
    ("push", "lock-step"): (push_lock_step, 1),
    ("push", f"{IN_FLIGHT} in flight"): (push_in_flight, IN_FLIGHT),
}


def start(role: str, job: dict[str, Any], fds: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--role", role]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=fds, text=True)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(job | {"parent": os.getpid()}) + "\n")
    process.stdin.flush()
    if process.stdout.readline().strip() != "ready":
        raise SystemExit(f"the {role} did not start")
    return process


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(rows: int, rounds: int, times: int) -> dict[str, Any]:
    """Seconds a request, by way and by what carries it."""
    layout = Layout.build({"entity": WIDTH}, {"entity": np.array([0, rows])}, [1])
    memory = MemoryTables.create({"entity": (rows, WIDTH)}, "adagrad_row", shared=True)
    memory.rows["entity"].uniform_(-0.1, 0.1)
    fds = tuple(handle["fd"] for handle in memory.handles().values())
    common = {"layout": layout.to_json(), "handles": memory.handles()}
    keys = Keys.make()
    stores: dict[str, StoreTables] = {}
    processes, transports, secrets = [], [], {"store": None, "store, CURVE": keys, "store, bf16": None}
    for name, secret in secrets.items():
        port = free_port()
        processes.append(start("server", common | {"port": port, "keys": secret.to_json() if secret else None}, fds))
        transports.append(Transport(secret))
        dtype = "bf16" if "bf16" in name else "fp32"
        given: dict[str, Any] = {"client": 0, "max_inflight": IN_FLIGHT, "transport_dtype": dtype}
        stores[name] = StoreTables(layout, [("127.0.0.1", port)], transports[-1], IDENTITY, **given)
    port = free_port()
    processes.append(start("raw", common | {"port": port}, fds))
    raw = Raw(port)
    own = StoreTables(layout, [("127.0.0.1", 1)], transports[0], IDENTITY, client=1, machine=0, local=memory)
    settle()

    random = np.random.default_rng(0)
    ids = [torch.from_numpy(random.choice(rows, COUNT, replace=False)) for _ in range(times)]
    out, grads = torch.empty(COUNT, WIDTH), torch.full((COUNT, WIDTH), 1e-3)
    table, state = memory.rows["entity"], memory.state["entity"]["sum"].view(-1)
    here: dict[tuple[str, str], Callable[[], None]] = {
        ("pull", "numba gather"): lambda: [gather_rows(table, wanted, out) for wanted in ids] and None,
        ("pull", "own machine"): lambda: pull_lock_step(own, ids, out, grads),
        ("push", "numba Adagrad"): lambda: [adagrad_rows(table, state, wanted, grads, 0.1) for wanted in ids] and None,
        ("push", "own machine"): lambda: push_in_flight(own, ids, out, grads),
    }
    found: dict[str, list[float]] = {}
    traffic = stores["store"].traffic()
    for turn in range(rounds + 1):
        for (kind, way), (run, in_flight) in WAYS.items():
            measured = {"raw": seconds(lambda kind=kind, n=in_flight: raw.run(kind, ids, n))}
            given = out if kind == "pull" else grads
            measured["raw, rows"] = seconds(lambda kind=kind, n=in_flight, given=given: raw.run(kind, ids, n, given))
            measured |= {name: seconds(lambda run=run, t=tables: run(t, ids, out, grads)) for name, tables in stores.items()}
            for name, value in measured.items():
                found.setdefault(f"{kind}, {way}: {name}", []).append(value / times)
        for (kind, name), run_here in here.items():
            found.setdefault(f"{kind}: {name}", []).append(seconds(run_here) / times)
        if turn == 0:
            found.clear()  # the first is for compiling and for pages that are new
    moved = [b - a for a, b in zip(traffic, stores["store"].traffic(), strict=True)]
    for tables in [*stores.values(), own]:
        tables.close()
    for transport in transports:
        transport.close()
    raw.peer.close()
    for process in processes:
        process.kill()
        process.wait(timeout=10)
    median = {name: statistics.median(values) for name, values in found.items()}
    return {"seconds": median, "bytes": sum(moved) / ((rounds + 1) * times * 2)}


def table(result: dict[str, Any], rows: int) -> str:
    """As Markdown."""
    took = result["seconds"]
    lines = [
        "# The store's wire",
        "",
        f"`make bench-kvstore`: {COUNT} rows x {WIDTH} fp32 ({ROWS / 1e6:.1f} MB) of a table of {rows * WIDTH * 4 / 1e9:.1f} GB,",
        "over loopback TCP, one client and one server. Medians of one run, everything in turn; GB/s of rows, and beside it the",
        "ratio to a raw socket that moves the same bytes in the same way, but looks up and updates no row. The second column is",
        "that socket between a gather and a copy of the rows (pull), or between a copy and Adagrad (push).",
        "",
        "| | raw | raw, rows | ratio | store | ratio | store, CURVE | ratio | store, bf16 | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind, way in WAYS:
        base = took[f"{kind}, {way}: raw"]
        cells = [f"{ROWS / base / 1e9:.2f}"]
        for name in ("raw, rows", "store", "store, CURVE", "store, bf16"):
            value = took[f"{kind}, {way}: {name}"]
            cells += [f"{ROWS / value / 1e9:.2f}", f"{base / value:.2f}"]
        lines.append(f"| {kind}, {way} | " + " | ".join(cells) + " |")
    ahead, flight = (f"{kind}, {way}" for kind, way in WAYS if way != "lock-step")
    with_rows = [took[f"{way}: raw, rows"] / took[f"{way}: store"] for way in (ahead, flight)]
    lines += ["", f"Beside the raw socket that also looks up rows: {ahead} {with_rows[0]:.2f}, {flight} {with_rows[1]:.2f}."]
    lines += ["", "| rows of the own machine | kernel alone | through the store | ratio |", "|---|---:|---:|---:|"]
    for kind, alone in (("pull", "numba gather"), ("push", "numba Adagrad")):
        base, value = took[f"{kind}: {alone}"], took[f"{kind}: own machine"]
        lines.append(f"| {kind} ({alone}) | {ROWS / base / 1e9:.2f} | {ROWS / value / 1e9:.2f} | {base / value:.2f} |")
    share = result["bytes"] / (8 * COUNT + 2 * ROWS)
    lines += ["", f"Bytes of a pull and a push, headers included: {share:.4f} x (ids x 8 + rows x dim x 4 x 2)."]
    lines += ["", f"Machine: {machine()}, pyzmq {version('pyzmq')}."]
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        lines[-1] += " Run with real-time priority: the machine had other work."
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--times", type=int, default=60)
    parser.add_argument("--role", choices=("server", "raw"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "kvstore.md")
    args = parser.parse_args()
    if args.role:
        {"server": serve, "raw": serve_raw}[args.role](json.loads(sys.stdin.readline()))
        return
    text = table(measure(args.rows, args.rounds, args.times), args.rows)
    print(text)
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
