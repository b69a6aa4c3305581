"""Vertex cuts, which self-sufficient partitions begin with: `make bench-edges`.

Triples of graphs made from a seed, with communities and without, are divided among four partitions by each method, each time
in a fresh process, whose triples are mapped. Times are those of a core (one thread works). Memory is what the process has of its
own at most, beyond what it had when it began: not the triples, nor the answer, which lie in files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from communities import MIXING, RELATIONS, triples_of
from roofs import machine

from kgdist.partition.edges import divide_triples, scratch
from kgdist.partition.expansion import EdgeSizes, Expansion, Reach

HERE = Path(__file__).parent
PARTS, ROUNDS = 4, 3
EXPONENT = 2.3  # of the degrees: a few entities are in thousands of triples
METHODS = ("hdrf", "dbh", "random", "metis")


def own_memory() -> int:
    """Bytes that no file backs."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


class Peak:
    """The most memory while the block runs, looked at every 20 ms."""

    def __enter__(self) -> Peak:
        self.most = self.first = own_memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, own_memory())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(10)

    @property
    def grown(self) -> int:
        """Bytes."""
        return self.most - self.first


def one(job: dict[str, Any]) -> dict[str, Any]:
    """Divide, in a process of its own."""
    triples, entities = np.load(job["file"], mmap_mode="r", allow_pickle=False), job["entities"]
    with scratch(len(triples)) as out:
        # Loops are compiled by a graph of other sizes, or the allocator would keep arrays that then cost nothing.
        few = np.stack([np.arange(500) % 90, np.arange(500) % 7, np.arange(500) % 89], axis=1).astype(np.int32)
        divide_triples(few, 90, 7, PARTS, np.zeros(500, np.uint8), method=job["method"])
        with Peak() as peak:
            began = time.process_time()
            divide_triples(triples, entities, RELATIONS, PARTS, out, method=job["method"])
            seconds = time.process_time() - began
        sizes = EdgeSizes.of(Expansion(triples, out, entities, PARTS, Reach(0, (), True, 0)))
    return {"seconds": seconds, "bytes": peak.grown, "replication": sizes.replication,
            "balance": max(sizes.core) * PARTS / len(triples)}  # fmt: skip


def measured(file: Path, entities: int, triples: int, method: str, rounds: int) -> list[str]:
    """A row of the table."""
    job = json.dumps({"file": str(file), "entities": entities, "method": method})
    found = [
        json.loads(subprocess.run([sys.executable, __file__, "--job", job], check=True, stdout=subprocess.PIPE).stdout)
        for _ in range(rounds)
    ]
    seconds = statistics.median(each["seconds"] for each in found)
    last = found[-1]
    return [method, f"{triples / seconds / 1e6:.1f} M/s", f"{last['replication']:.2f}", f"{last['balance']:.3f}",
            f"{max(each['bytes'] for each in found) / entities:.0f}"]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.job is not None:
        print(json.dumps(one(options.job)))
        return
    lines = [
        "# Vertex cuts",
        "",
        f"Triples divided among {PARTS} partitions; one core, medians of {ROUNDS}. Degrees: a power law, exponent {EXPONENT}.",
        "Replication: partitions that an entity has triples in, on average. Balance: the largest partition over the average.",
        "Bytes an entity: memory beside the triples and the answer, which lie in files. Replication depends on the graph: the",
        "more triples an entity has, the more partitions it is in; random cuts say how hard a graph is.",
        "",
    ]
    for title, mixing, entities, triples, methods in (
        ("communities", MIXING, 100_000, 1_000_000, METHODS),
        ("no communities", 1.0, 100_000, 1_000_000, METHODS),
        ("communities", MIXING, 1_000_000, 1_000_000, ("hdrf", "dbh")),
        ("communities", MIXING, 1_000_000, 10_000_000, ("hdrf", "dbh")),
    ):
        file = triples_of(options.data, entities, triples, mixing, EXPONENT)
        lines += [f"## {entities:,} entities, {triples:,} triples, {title}", "",
                  "| method | triples | replication | balance | bytes an entity |", "|---|---:|---:|---:|---:|"]  # fmt: skip
        for method in methods:
            lines.append("| " + " | ".join(measured(file, entities, triples, method, ROUNDS)) + " |")
            print(lines[-1], flush=True)
        lines.append("")
    wanted = "3 M/s and replication 2.15 with 100,000 entities; balance 1.02; memory that does not grow with triples"
    lines += [f"Wanted of hdrf: {wanted}.", "", f"Command: `make bench-edges`. Machine: {machine()}."]
    page = HERE / "results" / "edges.md"
    page.write_text("\n".join(lines) + "\n")
    print(f"written: {page}")


if __name__ == "__main__":
    main()
