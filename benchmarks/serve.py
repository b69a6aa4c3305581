"""kgdist-serve beside its engine alone, on one machine: `make bench-serve`.

A run of ComplEx on FB15k, dim 400 (untrained: speed does not depend on it), served as a user serves it. 64 clients, one process
of their own, ask for the ten best answers, heads and tails in turn, each the next question as soon as it has an answer: one
question a request, or many. Beside them, in the same rounds, the engine answers the same questions in one batch in this process.
Then requests arrive at random (a Poisson process) at half of the measured rate, and their latency counts from when they were due.
With --minutes good and bad requests are mixed for so long. Clients and server share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from datasets import prepare
from roofs import machine

from kgdist.base.types import Side
from kgdist.serve.live import Live, open_live

HERE = Path(__file__).parent
CLIENTS, K, DIM = 64, 10, 400
MANY = 32  # questions of a long request
BAD = (
    (b"/predict", b"{"),
    (b"/predict", b'{"head": "nobody", "relation": "nothing"}'),
    (b"/predict", b'{"k": 1000000000}'),
    (b"/similar", b'{"entity": 3}'),
    (b"/nowhere", b"{}"),
    (b"/explain", b"[" * 2000),
)


def made_run(root: Path) -> Path:
    """A run folder of the model, made by a few steps."""
    prepare("FB15k", root)
    out = root / "serve"
    if not list(out.glob("*/config.json")):
        words = ["--dataset", "FB15k", "--data_path", str(root), "--model_name", "ComplEx", "--hidden_dim", str(DIM)]
        call = [sys.executable, "-m", "kgdist.cli.train", *words, "--max_step", "20", "--save_path", str(out), "--quiet"]
        subprocess.run(call, check=True)
    return next(out.glob("*/config.json")).parent


@contextmanager
def server(run: Path, threads: int) -> Iterator[tuple[int, int]]:
    """(port, process id) of a server of the run."""
    words = [str(run), "--port", "0", "--num_thread", str(threads)]
    process = subprocess.Popen([sys.executable, "-m", "kgdist.cli.serve", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = next(match for line in process.stdout if (match := re.search(r"http://[^ ]*:(\d+)", line)))
        yield int(found[1]), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def bodies(live: Live, count: int, each: int) -> list[bytes]:
    """`count` requests of `each` questions from the test split."""
    triples = live.dataset.splits["test"].array  # type: ignore[union-attr]
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        rows = triples[rng.integers(0, len(triples), each)]
        heads, tails = (live.entities.names(rows[:, column]) for column in (0, 2))
        named = zip(heads, live.relations.names(rows[:, 1]), tails, strict=True)
        asked: list[dict[str, Any]] = [
            {"head": head, "relation": relation} if (place + number) % 2 else {"relation": relation, "tail": tail}
            for place, (head, relation, tail) in enumerate(named)
        ]
        made.append(json.dumps({"k": K, "questions": asked} if each > 1 else {"k": K, **asked[0]}).encode())
    return made


def engine(live: Live, count: int, threads: int) -> float:
    """Questions a second of the engine alone, `count` of them in two batches: of tails and of heads."""
    triples = live.dataset.splits["test"].array[: count // 2].astype(np.int64)  # type: ignore[union-attr]
    began = time.perf_counter()
    for side, column in ((Side.TAIL, 0), (Side.HEAD, 2)):
        live.predictor.top(side, triples[:, column], triples[:, 1], K)
    return 2 * len(triples) / (time.perf_counter() - began)


# ---- clients


def request(path: bytes, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (path, len(body))
    return head + body


class Client(asyncio.Protocol):
    """One connection; knows no HTTP but lengths."""

    def __init__(self) -> None:
        self.rest, self.waiter = b"", None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.rest += data
        head, found, body = self.rest.partition(b"\r\n\r\n")
        if not found or self.waiter is None:
            return
        length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
        if len(body) >= length:
            self.rest = body[length:]
            self.waiter.set_result(int(head[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(0)

    async def ask(self, sent: bytes) -> int:
        """The status of the answer; 0: the connection was closed."""
        self.waiter = asyncio.get_running_loop().create_future()
        self.transport.write(sent)
        return await self.waiter


async def connected(port: int) -> Client:
    return (await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port))[1]


async def busy(port: int, sent: list[bytes], seconds: float) -> tuple[float, Counter[int]]:
    """(requests a second, statuses) of clients that ask without a pause."""
    statuses: Counter[int] = Counter()
    until = time.perf_counter() + seconds

    async def one(number: int) -> None:
        client, place = await connected(port), number
        while time.perf_counter() < until:
            status = await client.ask(sent[place % len(sent)])
            statuses[status] += 1
            place += CLIENTS
            if client.transport.is_closing() or status == 0:  # after an error the server may close it
                client = await connected(port)
        client.transport.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    return sum(statuses.values()) / (time.perf_counter() - began), statuses


async def at_rate(port: int, sent: list[bytes], rate: float, seconds: float) -> list[float]:
    """Seconds from when each request was due to its answer, in order of size."""
    loop, free = asyncio.get_running_loop(), asyncio.Queue[Client]()
    for _ in range(CLIENTS):
        free.put_nowait(await connected(port))
    found: list[float] = []

    async def one(due: float, body: bytes) -> None:
        client = await free.get()
        assert await client.ask(body) == 200
        found.append(loop.time() - due)
        free.put_nowait(client)

    rng, due, tasks = random.Random(0), loop.time(), []
    end = due + seconds
    while due < end:
        due += rng.expovariate(rate)
        if (pause := due - loop.time()) > 0:
            await asyncio.sleep(pause)
        tasks.append(asyncio.ensure_future(one(due, sent[len(tasks) % len(sent)])))
    await asyncio.gather(*tasks)
    return sorted(found)


def in_process(work: Any, *words: Any) -> Any:
    """Run a coroutine function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (work.__name__, words))


def _run(name: str, words: tuple[Any, ...]) -> Any:
    return asyncio.run(globals()[name](*words))


# ---- memory


def memory(pid: int) -> dict[str, float]:
    """MB of a process: all that is resident, and what no file holds (anonymous)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    parts = {name: int(size) / 1000 for name, size in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}
    return {"resident": parts["Rss"], "own": parts["Anonymous"]}


def libraries() -> float:
    """MB of its own of a process that has imported what the server stands on, and does nothing."""
    code = "import kgdist.serve.app, kgdist.serve.live, kgdist.serve.listener, numba, pyarrow.compute, uvicorn; input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        time.sleep(10.0)
        return memory(process.pid)["own"]
    finally:
        process.kill()
        process.wait(timeout=60)


def soak(port: int, pid: int, good: list[bytes], minutes: float) -> dict[str, Any]:
    """Good and bad requests mixed, a minute at a time: statuses, and memory after each."""
    bad = [request(path, body) for path, body in BAD]
    mixed = [bad[place % len(bad)] if place % 5 == 4 else each for place, each in enumerate(good)]
    statuses: Counter[int] = Counter()
    own = []
    for _ in range(max(1, round(minutes))):
        statuses += in_process(busy, port, mixed, 60.0)[1]
        own.append(memory(pid)["own"])
    return {"statuses": dict(sorted(statuses.items())), "own MB after each minute": [round(each) for each in own]}


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a measurement")
    parser.add_argument("--minutes", type=float, default=0.0, help="of good and bad requests mixed")
    options = parser.parse_args()
    threads = os.cpu_count() or 1
    run = made_run(options.data.absolute())
    live = open_live(run, None, threads)
    files = sum(file.stat().st_size for file in run.glob("*.npy")) / 1e6
    single, many = ([request(b"/predict", body) for body in bodies(live, 4096 // each, each)] for each in (1, MANY))
    rates: dict[str, list[float]] = {"engine": [], "single": [], "many": []}
    engine(live, 4096, threads)
    with server(run, threads) as (port, pid):
        in_process(busy, port, single, 2.0)
        for _ in range(options.rounds):
            rates["engine"].append(engine(live, 8192, threads))
            rates["single"].append(in_process(busy, port, single, options.seconds)[0])
            rates["many"].append(in_process(busy, port, many, options.seconds)[0] * MANY)
        half = {name: statistics.median(rates[name]) / 2 for name in ("single", "many")}
        late = {
            "single": in_process(at_rate, port, single, half["single"], 2 * options.seconds),
            "many": in_process(at_rate, port, many, half["many"] / MANY, 2 * options.seconds),
        }
        used = memory(pid) | {"libraries": libraries()}
        mixed = soak(port, pid, single, options.minutes) if options.minutes else None
    text = page(rates, half, late, used, files, mixed)
    (HERE / "results" / "serve.md").write_text(text, encoding="utf-8")
    print(text)


def page(
    rates: dict[str, list[float]],
    half: dict[str, float],
    late: dict[str, list[float]],
    used: dict[str, float],
    files: float,
    mixed: dict[str, Any] | None,
) -> str:
    """The results as markdown."""
    middle = {name: statistics.median(each) for name, each in rates.items()}
    ratio = {name: statistics.median(a / b for a, b in zip(rates[name], rates["engine"], strict=True)) for name in half}
    lines = ["# A server beside its engine", "", *(__doc__ or "").strip().splitlines()[2:], ""]
    lines += ["| | questions/s | of the engine's | at half of it: p50 ms | p99 ms |", "|---|---:|---:|---:|---:|"]
    lines.append(f"| the engine, all in one batch | {middle['engine']:,.0f} | 1 | | |")
    for name, title in (("single", "one question a request"), ("many", f"{MANY} questions a request")):
        times = late[name]
        p50, p99 = (1000 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
        lines.append(f"| {CLIENTS} clients, {title} | {middle[name]:,.0f} | {ratio[name]:.2f} | {p50:.1f} | {p99:.1f} |")
    own = f"{used['own']:.0f} MB are the server's own (anonymous), and {used['libraries']:.0f} MB of these its libraries'"
    lines += [
        "",
        f"Memory: {used['resident']:.0f} MB resident, of which {own} (torch, Numba, Arrow), which have them without any",
    ]
    lines[-1] += f" work; the rest is mapped from files, which other processes share. The run's rows are {files:.0f} MB."
    if mixed is not None:
        lines += ["", "Good and bad requests mixed, by status: " + ", ".join(f"{n} x {s}" for s, n in mixed["statuses"].items())]
        lines[-1] += f"; MB of its own after each minute: {', '.join(map(str, mixed['own MB after each minute']))}."
    return "\n".join([*lines, "", f"Machine: {machine()}.", "By `make bench-serve`.", ""])


if __name__ == "__main__":
    main()
