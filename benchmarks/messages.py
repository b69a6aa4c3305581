"""What a step costs in messages: one trainer's tables against the servers of many machines, `make bench-messages`.

All servers run in one other process of this host, in turn and in one thread, so that hundreds of them fit. What is counted is
the time that cores spend, not the time that passes: of the trainer's own thread, of the servers' Python (inside of their steps),
and of the threads of libzmq at both ends, which move the bytes. A step pulls some different rows, which were asked for ahead, and
pushes gradients for as many.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq
from roofs import machine

from kgdist.base.machine import keep_freed_memory
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.connection import name_of
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.server import Server
from kgdist.kvstore.tables import MemoryTables, Update
from kgdist.kvstore.wire import Keys, Transport

HERE = Path(__file__).parent
IDENTITY = Identity("bench", "bench", 1, "", "")
ENTITIES = 200_000
ROWS, DIM = 1550, 400  # of a step: what a batch of 1,000 triples with 200 negatives needs from elsewhere; numbers in a row
CASES = ((1, 1, 1), (2, 1, 1), (8, 1, 1), (16, 1, 1), (32, 1, 1), (63, 1, 1), (63, 4, 1), (63, 1, 2), (63, 1, 4))
TRIES = 3
WARM, STEPS = 20, 100
COUNTED = ("trainer", "servers", "trainer_io", "servers_io", "seconds")


def serve() -> None:
    """The servers of one job after another, each a line of stdin, until that ends."""
    torch.set_num_threads(1)
    keep_freed_memory()
    line = sys.stdin.readline()
    while line:
        job = json.loads(line)
        transport = Transport(Keys.from_json(job["keys"]) if job["keys"] else None)
        try:
            line = run(Layout.from_json(job["layout"]), transport, job["parent"])
        finally:
            transport.close()


def run(layout: Layout, transport: Transport, parent: int) -> str:
    """All servers; for each empty line of stdin, milliseconds of a core so far: of turns, and of all other threads. Returns the
    first line that is not empty."""
    machines, poller = [], zmq.Poller()
    for number in range(layout.machines):
        ranges = {name: layout.machine_range(name, number) for name in layout.widths}
        shapes = {name: (high - low, layout.widths[name]) for name, (low, high) in ranges.items()}
        machines.append(MemoryTables.create(shapes, "adagrad_row"))
        for name in shapes:
            machines[-1].rows[name].fill_(0.1)  # or the first to look up a row would pay for its memory
    servers, ports = {}, []
    for number, where in enumerate(layout.machine_of):
        wire = transport.server("127.0.0.1", 0, name_of(number))
        ports.append(int(wire.socket.get(zmq.LAST_ENDPOINT).rpartition(b":")[2]))
        servers[wire.socket] = Server(number, layout, machines[where], IDENTITY, wire)
        poller.register(wire.socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    print(json.dumps(ports), flush=True)
    spent = 0.0
    while os.getppid() == parent:
        for ready, _ in poller.poll(1000):
            if ready in servers:
                began = time.thread_time()
                servers[ready].step(0)
                spent += time.thread_time() - began
            elif (line := sys.stdin.readline()) == "\n":
                print(json.dumps([1000 * spent, 1000 * (time.process_time() - time.thread_time())]), flush=True)
            else:
                return line
    return ""


class Host:
    """The process of the servers: started once, for many jobs."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def say(self, line: str) -> Any:
        """What it answers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def measure(
    host: Host,
    *,
    machines: int,
    servers: int = 1,
    rows: int = ROWS,
    dim: int = DIM,
    pull_ahead: int = 1,
    steps: int = STEPS,
    **ways: Any,
) -> dict[str, float]:
    """What a step costs that pulls and pushes so many rows, see `spent`; `servers` are those of each machine."""
    bounds = np.linspace(0, ENTITIES, machines + 1).astype(np.int64)
    layout = Layout.build({"entity": dim}, {"entity": bounds}, [servers] * machines)
    random = np.random.default_rng(0)
    batches = [random.choice(ENTITIES, rows, replace=False) for _ in range(max(WARM, steps))]

    def work(tables: StoreTables, count: int) -> None:
        train(tables, batches[:count], dim, pull_ahead)

    return spent(host, layout, work, steps, max_inflight=pull_ahead, **ways)


def spent(
    host: Host,
    layout: Layout,
    work: Callable[[StoreTables, int], None],
    steps: int,
    *,
    dtype: str = "fp32",
    curve: bool = False,
    max_inflight: int = 1,
) -> dict[str, float]:
    """Milliseconds of a core a step, and (`seconds`) how long a step took: see COUNTED. `work` does so many steps."""
    keys = Keys.make() if curve else None
    ports = host.say(json.dumps({"layout": layout.to_json(), "keys": keys and keys.to_json(), "parent": os.getpid()}))
    transport, ends = Transport(keys), [("127.0.0.1", port) for port in ports]
    try:
        limits: dict[str, Any] = {"transport_dtype": dtype, "max_inflight": max_inflight}
        tables = StoreTables(layout, ends, transport, IDENTITY, client=0, **limits)
        work(tables, WARM)
        before, theirs, began = (time.thread_time(), time.process_time()), host.say(""), time.perf_counter()
        work(tables, steps)
        took = time.perf_counter() - began
        own, mine = time.thread_time() - before[0], time.process_time() - before[1]
        python, moving = (now - then for now, then in zip(host.say(""), theirs, strict=True))
        tables.close()
    finally:
        transport.close()
    totals = (1000 * own, python, 1000 * (mine - own), moving, took)
    return {name: total / steps for name, total in zip(COUNTED, totals, strict=True)}


def train(tables: StoreTables, batches: Sequence[np.ndarray], dim: int, pull_ahead: int) -> None:
    """A step for each batch of rows as a trainer makes them, without its arithmetic; some steps' rows are asked for together."""
    rows = len(batches[0])
    out, grads, squares = torch.empty(rows, dim), torch.full((rows, dim), 1e-3), torch.full((rows,), 1e-6)
    asked = 2
    tables.ahead(*({"entity": ids} for ids in batches[:asked]))
    for step, ids in enumerate(batches):
        tables.pull("entity", torch.from_numpy(ids), out)
        tables.push({"entity": Update(ids, grads, squares)}, 0.1)
        if step + 2 == asked < len(batches):
            tables.ahead(*({"entity": ids} for ids in batches[asked : asked + pull_ahead]))
            asked += pull_ahead
    tables.flush()


def table(found: list[tuple[Any, ...]]) -> str:
    """As Markdown."""
    lines = [
        "# What messages cost",
        "",
        f"`make bench-messages`: one trainer, {ROWS:,} different rows a step, pulled and pushed in fp32 over loopback TCP,",
        "not encrypted; all servers in one other process. Milliseconds of a core a step: the trainer's own thread, the Python",
        f"of all servers together, and the threads of libzmq at either end: the least of {TRIES} tries, for other work on the",
        "machine only adds to them.",
        "",
        "| machines | servers of each | `--pull_ahead` | dim | trainer | servers | libzmq, trainer | libzmq, servers |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for *case, costs in found:
        lines.append("| " + " | ".join([*map(str, case), *(f"{costs[name]:.2f}" for name in COUNTED[:4])]) + " |")
    load = f"Load average at the end {os.getloadavg()[0]:.1f}, of which the measurement is about 1.3."
    return "\n".join([*lines, "", f"Machine: {machine()}. {load}"]) + "\n"


def main() -> None:
    """Measure all cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "messages.md")
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    found = []
    with Host() as host:
        for dim in (DIM, 4):
            for machines, servers, together in CASES:
                ways = {"machines": machines, "servers": servers, "pull_ahead": together, "dim": dim}
                tries = [measure(host, **ways, steps=args.steps) for _ in range(TRIES)]
                found.append((*ways.values(), {name: min(each[name] for each in tries) for name in COUNTED}))
                print(ways, {name: round(value, 2) for name, value in found[-1][-1].items()}, flush=True)
    args.out.write_text(table(found), encoding="utf-8")


if __name__ == "__main__":
    main()
