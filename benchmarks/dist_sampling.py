"""A graph on two machines beside the same in one process: `make bench-dist-sampling`.

Two "machines" of this host, a server and a trainer on each, started by kgdist-launch; and one process that has both partitions.
Both go over batches of nodes and read the features of all that were drawn. Then rows of the other machine beside a raw socket
that looks them up and sends them, rows of the own machine beside NumPy, steps of SparseAdagrad, and what the structure takes of
memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from communities import BATCH, BATCHES, FANOUTS, graph_of
from dist_accuracy import machines
from kvstore import exactly, tune
from roofs import machine

from kgdist import distributed
from kgdist.kernels.rows import gather_rows
from kgdist.sampling import MultiLayerNeighborSampler, NodeDataLoader

HERE = Path(__file__).parent
NAME, WIDTH, PARTS = "communities", 64, 2
ROWS, ROUNDS = 10_000, 60  # of reads
PUSHED, STEPS = 33_000, 40


def prepared(data: Path, nodes: int, edges: int) -> Path:
    """The graph of `make bench-sampling` in two partitions by METIS, with 64 numbers and a label a node."""
    folder = data / f"{NAME}-{nodes}-{edges}-{PARTS}"
    if not (folder / f"{NAME}.json").exists():
        g = graph_of(data, nodes, edges)
        g.ndata["feat"] = torch.randn(nodes, WIDTH, generator=torch.Generator().manual_seed(0))
        g.ndata["label"] = torch.arange(nodes) % 10
        distributed.partition_graph(g, NAME, PARTS, folder)
    return folder / f"{NAME}.json"


def seconds_of(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median of each, in turn."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in taken.items()}


def batches(g: Any, workers: int = 0) -> NodeDataLoader:
    """Over the first nodes of this trainer's own, with features and labels of the next batch on their way."""
    mask = np.ones(g.num_nodes(), bool)
    seeds = distributed.node_split(mask, g.get_partition_book(), force_even=True)
    seeds = seeds[torch.randperm(len(seeds), generator=torch.Generator().manual_seed(g.rank()))[: BATCH * BATCHES]]
    sampler = MultiLayerNeighborSampler(FANOUTS, prefetch_node_feats=["feat"], prefetch_labels=["label"])
    return NodeDataLoader(g, seeds, sampler, batch_size=BATCH, seed=0, num_workers=workers)


def go_over(g: Any) -> dict[str, float]:
    """Seconds of the batches, from when all trainers begin, and what was read."""
    loader = batches(g)
    for _ in loader:  # loops are loaded, connections made, pages mapped
        pass
    loader.set_epoch(0)
    g.barrier()
    began, nodes, edges, total = time.perf_counter(), 0, 0, 0.0
    for inputs, _, blocks in loader:
        nodes, edges = nodes + len(inputs), edges + sum(block.num_edges() for block in blocks)
        total += float(blocks[0].srcdata["feat"][-1, 0]) + float(blocks[-1].dstdata["label"][0])
    found = {"seconds": time.perf_counter() - began, "nodes": nodes, "edges": edges, "total": total}
    g.barrier()
    return found


def answer(port: int, table: np.ndarray) -> None:
    """The other end of the raw socket: for int64[ROWS] ids the rows."""
    torch.set_num_threads(1)
    ids, out = np.empty(ROWS, np.int64), torch.empty(ROWS, WIDTH)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        tune(peer)
        while exactly(peer, memoryview(ids).cast("B")):
            gather_rows(torch.from_numpy(table), torch.from_numpy(ids), out)
            peer.sendall(memoryview(out.numpy()).cast("B"))


def remote_rows(g: Any) -> dict[str, float]:
    """Seconds of ROWS rows of the next machine, the following ones on their way meanwhile; by a tensor and by a raw socket."""
    feat, rng = g.ndata["feat"], np.random.default_rng(0)
    first, end = feat.part_policy.range(1)
    wanted = [rng.integers(first, end, ROWS) for _ in range(8)]
    table = np.random.default_rng(0).random((end - first, WIDTH), np.float32)
    listener = socket.create_server(("127.0.0.1", 0))
    process = get_context("fork").Process(target=answer, args=(listener.getsockname()[1], table), daemon=True)
    process.start()
    peer = listener.accept()[0]
    tune(peer)

    def by_tensor() -> None:
        arrive = feat.prefetch(wanted[0])
        for ids in wanted[1:]:
            following = feat.prefetch(ids)
            arrive()
            arrive = following
        arrive()

    def by_socket() -> None:
        peer.sendall(memoryview(wanted[0] - first).cast("B"))
        for ids in [*wanted[1:], None]:
            if ids is not None:
                peer.sendall(memoryview(ids - first).cast("B"))
            rows = torch.empty(ROWS, WIDTH)
            exactly(peer, memoryview(rows.numpy()).cast("B"))

    try:
        found = seconds_of({"tensor": by_tensor, "socket": by_socket}, 20)
    finally:
        peer.close()
        process.join(10)
        listener.close()
    return {name: taken / len(wanted) for name, taken in found.items()}


def local_rows(g: Any) -> dict[str, dict[str, float]]:
    """Seconds of ROWS rows of the own machine, and of NumPy for the same, by the name of the data."""
    found = {}
    for name in ("feat", "label"):
        tensor = g.ndata[name]
        first, end = tensor.part_policy.range(0)
        ids = np.random.default_rng(0).integers(first, end, ROWS)
        own, wanted = tensor.local_partition.numpy(), torch.from_numpy(ids)
        found[name] = seconds_of(
            {
                "tensor": lambda tensor=tensor, wanted=wanted: tensor[wanted],
                "numpy": lambda own=own, ids=ids, first=first: np.take(own, ids - first, axis=0),
            }
        )
    return found


def pushes(g: Any) -> dict[str, float]:
    """Seconds of steps: rows are read, have a gradient, and are trained by their owners."""
    emb = distributed.DistEmbedding(g.num_nodes(), WIDTH, "emb")
    sparse = distributed.SparseAdagrad([emb], lr=0.1)
    rng = np.random.default_rng(g.rank())
    wanted = [rng.choice(g.num_nodes(), PUSHED, replace=False) for _ in range(8)]
    pushing = 0.0
    for step in range(STEPS + 2):
        if step == 2:
            g.barrier()
            began, pushing = time.perf_counter(), 0.0
        emb(wanted[step % 8]).sum().backward()
        since = time.perf_counter()
        sparse.step()
        pushing += time.perf_counter() - since
    g.barrier()
    return {"whole": time.perf_counter() - began, "step": pushing}


def structure(g: Any) -> dict[str, float]:
    """Bytes of the mapped structure that this machine's processes have together, pages that they share counted once, and that
    they would have if each had its own; two processes sample."""
    loader = iter(batches(g, workers=2))
    for _ in range(BATCHES // 2):
        next(loader)
    found = {"starts": 0.0, "sources": 0.0, "alone": 0.0, "processes": 0.0}
    for pid in mates(os.getpid()):
        name, seen = "", False
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if mapped := re.match(r"[0-9a-f]+-[0-9a-f]+ .*?(/\S*)?$", line):
                part = re.search(r"edges\.\d+\.(starts|sources)\.npy$", mapped[1] or "")
                name = part[1] if part else ""
            elif name and (size := re.match(r"(Pss|Rss):\s+(\d+) kB", line)):
                seen = True
                found[name if size[1] == "Pss" else "alone"] += int(size[2]) * 1024
        found["processes"] += seen
    loader.close()
    return found


def mates(pid: int) -> list[int]:
    """The processes of this machine: this one, its servers, and what they have started."""
    parents = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    above = parents[pid]
    return [each for each, parent in parents.items() if parent == above or parents.get(parent) == above]


def job(part_config: Path, out: Path) -> None:
    """What every trainer does, or the only process there is; its figures are written as JSON."""
    torch.set_num_threads(1)
    distributed.initialize()
    g = distributed.DistGraph(NAME, part_config=part_config)
    first, end = g.get_partition_book().partid2nids(g.rank()).numpy()[[0, -1]] if distributed.get_num_clients() > 1 else (0, -1)
    found: dict[str, Any] = {"batches": go_over(g), "own": int(end - first + 1)}
    if distributed.get_num_clients() > 1:
        found["edges"] = int(g.in_degrees(np.arange(first, end + 1)).sum())
        for name, measure in (("remote", remote_rows), ("local", local_rows)):
            found[name] = measure(g) if g.rank() == 0 else None
            g.barrier()
        found["pushes"] = pushes(g)
        found["structure"] = structure(g)
        g.barrier()
    (out / f"{g.rank()}.json").write_text(json.dumps(found))


def run(part_config: Path, folder: Path, launched: bool) -> list[dict[str, Any]]:
    """Figures of all trainers."""
    words = [sys.executable, __file__, "--job", str(part_config.resolve()), "--out", str(folder.resolve())]
    if launched:
        ends = ["--part_config", str(part_config.resolve()), "--ip_config", str(machines(folder, PARTS)), "--peer_timeout", "60"]
        flags = ["--backend", "local", "--workspace", str(folder), "--num_trainers", "1", *ends]
        words = [sys.executable, "-m", "kgdist.cli.launch", *flags, " ".join(words)]
    for old in folder.glob("*.json"):
        old.unlink()
    subprocess.run(words, cwd=folder, check=True, timeout=900, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def table(alone: list[dict[str, Any]], together: list[list[dict[str, Any]]]) -> list[str]:
    """Rows of the table; medians of the rounds."""

    def rate(trainers: list[dict[str, Any]]) -> float:
        return len(trainers) * BATCH * BATCHES / max(each["batches"]["seconds"] for each in trainers)

    def median(what: Callable[[list[dict[str, Any]]], float]) -> float:
        return statistics.median(map(what, together))

    def ratio(pair: list[dict[str, Any]], name: str) -> float:
        times = pair[0]["local"][name]
        return float(times["numpy"] / times["tensor"])

    batched = statistics.median(rate(pair) / rate([each]) for each, pair in zip(alone, together, strict=True))
    one, remote = statistics.median(rate([each]) for each in alone), median(lambda pair: ROWS / pair[0]["remote"]["tensor"])
    to_socket = median(lambda pair: pair[0]["remote"]["socket"] / pair[0]["remote"]["tensor"])
    rows = [
        (
            "batches with features, two machines together",
            f"{median(rate):,.0f} seeds/s",
            f"{batched:.2f} x one process ({one:,.0f})",
            "1.2 x",
        ),
        (
            f"{ROWS:,} rows of the other machine, one batch ahead",
            f"{remote / 1e6:.2f} M/s",
            f"{to_socket:.2f} x a raw socket",
            "0.7 x",
        ),
    ]
    for name, what in (("feat", f"{WIDTH} float32"), ("label", "one int64")):
        speed = median(lambda pair, name=name: ROWS / pair[0]["local"][name]["tensor"])
        times = median(lambda pair, name=name: ratio(pair, name))
        rows.append(
            (f"{ROWS:,} rows of the own machine, {what}", f"{speed / 1e6:.1f} M/s", f"{times:.2f} x NumPy's take", "0.9 x")
        )
    whole, step = (
        median(lambda pair, key=key: PARTS * PUSHED * STEPS / max(each["pushes"][key] for each in pair))
        for key in ("whole", "step")
    )
    rows.append(
        (
            f"SparseAdagrad, {PUSHED:,} rows a step, read before",
            f"{whole / 1e6:.2f} M/s",
            f"steps alone {step / 1e6:.2f} M/s",
            "1.5 M/s",
        )
    )
    for number, own in enumerate(together[0]):
        mapped = own["structure"]
        edge, node = mapped["sources"] / own["edges"], mapped["starts"] / own["own"]
        once = mapped["alone"] / (mapped["starts"] + mapped["sources"])
        what = f"structure of machine {number}, {mapped['processes']:.0f} processes"
        rows.append((what, f"{edge:.2f} bytes an edge, {node:.2f} a node", f"shared: {once:.1f} x if each had its own", "8, 8"))
    return ["| " + " | ".join(row) + " |" for row in rows]


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        job(options.job, options.out)
        return
    options.data.mkdir(parents=True, exist_ok=True)
    part_config = prepared(options.data, options.nodes, options.edges)
    folder = options.data / "dist_sampling"
    folder.mkdir(exist_ok=True)
    alone, together = [], []
    for _ in range(options.rounds):
        alone += run(part_config, folder, launched=False)
        together.append(run(part_config, folder, launched=True))
    text = "\n".join(
        [
            "# Neighbours and rows of several machines",
            "",
            f"A graph of {options.nodes:,} nodes and {options.edges:,} edges, made from a seed, in two partitions by METIS;",
            f"{WIDTH} float32 a node. Two machines on this host, a server and a trainer on each, by kgdist-launch, in turn",
            f"with one process that has both partitions. Fan-outs {FANOUTS}, {BATCHES} batches of {BATCH} seeds a trainer, no",
            "workers, gone over once before; one thread a process.",
            f"Medians of {options.rounds} rounds; of the memory the first, with two processes that sample beside the trainer.",
            "",
            "| | | | wanted |",
            "|---|---:|---:|---:|",
            *table(alone, together),
            "",
            f"Command: `make bench-dist-sampling`. Machine: {machine()}, load average {os.getloadavg()[1]:.1f}.",
            "",
        ]
    )
    (HERE / "results" / "dist_sampling.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
