"""Partitioning beside METIS itself: `make bench-partition`.

A graph of communities, made from a seed, is divided in fresh processes by each method. METIS' own time is its C call alone on the
finished arrays, taken in the same process after ours. All times are those of a core (one thread works), so that others who use
the machine disturb less. Real graphs are divided beside it, where they are at hand.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from communities import GROUPS, MIXING, RELATIONS, triples_of
from datasets import prepare
from roofs import machine

from kgdist.data.dataset import load_dataset
from kgdist.partition import metis
from kgdist.partition.assign import assign
from kgdist.partition.balance import TOLERANCE, Balance
from kgdist.partition.book import Numbering
from kgdist.partition.graph import Adjacency, Sizes, adjacency, degrees
from kgdist.partition.partition_graph import open_partition, partition_graph
from kgdist.partition.typed_graph import Assembled, Joined
from kgdist.partition.write import split_train

HERE = Path(__file__).parent
PARTS = 4
REFERENCE = {"FB15k": 119431, "wn18": 9867}  # triples that dglke_partition cuts with four partitions, by its logs
METHODS = ("metis", "streaming", "random")
KIND, WIDTH = ("_N", "_E", "_N"), 64  # of the graph for partition_graph, and the numbers that a node has


def memory(name: str) -> int:
    """MiB, of a line of /proc/self/status: VmRSS now, VmHWM at most so far."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) // 1024


def one(job: dict[str, Any]) -> dict[str, Any]:
    """One division in this process, from mapped triples to who owns what."""
    triples = np.load(job["file"], mmap_mode="r", allow_pickle=False)
    how = {"method": job["method"], "balance": job["balance"], "seed": 0}
    assign(triples[:2000] % 100, 100, RELATIONS, PARTS, **how)  # loads the loops
    before, began = memory("VmRSS"), time.process_time()
    assigned = assign(triples, job["entities"], RELATIONS, PARTS, **how)
    found = {"seconds": time.process_time() - began, "memory": memory("VmHWM") - before}
    if job.get("alone"):  # both in memory that this process has used before: the system takes long to hand out so much
        found["alone"] = alone(triples, job)
        began = time.process_time()
        assign(triples, job["entities"], RELATIONS, PARTS, **how)
        found["seconds"] = time.process_time() - began
    sizes = Sizes.of(triples, assigned, PARTS, RELATIONS).to_json()
    return {**found, "cut": sizes["cut"] / len(triples), **sizes["balance"]}


def alone(triples: np.ndarray, job: dict[str, Any]) -> float:
    """Seconds of METIS' C call on the ready arrays, the arguments those of ours."""
    found = degrees(triples, job["entities"], RELATIONS)
    graph, loads = whole(adjacency(triples, found)), Balance.of_triples(found, job["balance"]).loads[:, -1:].copy()
    began = time.process_time()
    metis.library().divide(graph, loads, PARTS, TOLERANCE[job["balance"]][-1:], 1, False)
    return time.process_time() - began


def whole(graph: Adjacency) -> Adjacency:
    """It, in the integers that METIS takes."""
    return Adjacency(graph.starts, graph.neighbours.astype(np.int64), graph.weights.astype(np.int64))


def graph(job: dict[str, Any]) -> dict[str, Any]:
    """partition_graph of the same graph with data, in this process, until the last file is on disk."""
    parts, how = tempfile.TemporaryDirectory(dir=Path(job["file"]).parent), {"part_method": job["method"], "balance_edges": True}
    with parts as folder:
        small = np.random.default_rng(0).integers(0, 400, (2, 4000))
        partition_graph(Assembled({"_N": 400}, {KIND: (small[0], small[1])}, {}, {}), "small", PARTS, f"{folder}/small", **how)
        libraries = memory("VmRSS")
        triples = np.load(job["file"], allow_pickle=False)
        ends = triples[:, 0].astype(np.int64), triples[:, 2].astype(np.int64)
        data = np.random.default_rng(0).random((job["entities"], WIDTH), np.float32)
        given = Assembled({"_N": job["entities"]}, {KIND: ends}, {"_N": {"feat": data}}, {})
        del triples
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM counts from here
        began, clock = time.process_time(), time.perf_counter()
        partition_graph(given, "communities", PARTS, f"{folder}/graph", **how)
        found = {"seconds": time.process_time() - began, "clock": time.perf_counter() - clock}
        found |= {"peak": memory("VmHWM"), "libraries": libraries}
        sizes = open_partition(f"{folder}/graph/communities.json", 0).manifest.common.sizes
    del given, data
    joined = Joined(Assembled({"_N": job["entities"]}, {KIND: ends}, {}, {}))
    degree = degrees(joined, job["entities"], 1)
    rows, loads = whole(adjacency(joined, degree)), Balance.of_triples(degree, "triples").loads[:, -1:].copy()
    began = time.process_time()
    metis.library().divide(rows, loads, PARTS, TOLERANCE["triples"][-1:], 1, False)
    found["alone"] = time.process_time() - began
    return {**found, "cut": sum(sizes["cut"][0]) / len(ends[0]), **sizes["balance"]}


def fresh(job: dict[str, Any]) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1200)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def writing(file: Path, entities: int) -> str:
    """Seconds to write the triples of all partitions, dealt out at random."""
    from kgdist.data.dataset import Triples

    triples = np.load(file, mmap_mode="r", allow_pickle=False)
    assigned = assign(triples, entities, RELATIONS, PARTS, method="random", balance="triples", seed=0)
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(part) for part in range(PARTS)]
        for each in folders:
            each.mkdir()
        began = time.process_time()
        split_train(Triples(triples), Numbering.of(assigned, PARTS, RELATIONS), folders)
        return f"{time.process_time() - began:.1f} s"


def real(data: Path) -> list[str]:
    """Lines of the table of real graphs."""
    lines = []
    for name, reference in REFERENCE.items():
        if not prepare(name, data):
            continue
        dataset = load_dataset(path=data, name=name)
        train, entities, relations = dataset.train.array, len(dataset.entities), len(dataset.relations)
        for method in METHODS:
            for balance in ("triples", "entities"):
                began = time.process_time()
                assigned = assign(train, entities, relations, PARTS, method=method, balance=balance, seed=0)
                seconds = time.process_time() - began
                sizes = Sizes.of(train, assigned, PARTS, relations).to_json()
                cells = [f"{name} ({reference:,})", method, balance, f"{sizes['cut']:,}", f"{sizes['cut'] / len(train):.3f}"]
                cells += [f"{sizes['balance'][load]:.2f}" for load in ("entities", "triples")]
                lines.append("| " + " | ".join([*cells, f"{seconds:.1f}"]) + " |")
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure what is asked for, and rewrite the table from all that has been measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what",
        nargs="*",
        default=["metis", "streaming", "random", "graph", "real"],
        help="parts to measure anew; also metis/triples",
    )
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--entities", type=int, default=1_000_000)
    parser.add_argument("--triples", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help="only one division, described as JSON")
    options = parser.parse_args()
    if options.one:
        job = json.loads(options.one)
        print(json.dumps(graph(job) if job.get("graph") else one(job)))
        return
    options.data.mkdir(parents=True, exist_ok=True)
    kept = options.data / "partition.json"  # what earlier calls measured
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    file = triples_of(options.data, options.entities, options.triples)
    for method in METHODS:
        for balance in ("triples", "entities"):
            if not {method, f"{method}/{balance}"} & set(options.what):
                continue
            job = {
                "file": str(file),
                "entities": options.entities,
                "method": method,
                "balance": balance,
                "alone": method == "metis",
            }
            rounds = [fresh(job) for _ in range(options.rounds)]
            median = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
            median["ratio"] = statistics.median(each["seconds"] / each.get("alone", each["seconds"]) for each in rounds)
            median["rounds"] = len(rounds)
            found[f"{method}, {balance}"] = median
            print(method, balance, median, flush=True)
            kept.write_text(json.dumps(found))
    for method in METHODS if "graph" in options.what else ():
        job = {"file": str(file), "entities": options.entities, "method": method, "graph": True}
        rounds = [fresh(job) for _ in range(options.rounds)]
        found[f"graph, {method}"] = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        found[f"graph, {method}"]["ratio"] = statistics.median(each["seconds"] / each["alone"] for each in rounds)
        print("graph", method, found[f"graph, {method}"], flush=True)
        kept.write_text(json.dumps(found))
    if "random" in options.what:
        found["writing"] = writing(file, options.entities)
    if "real" in options.what:
        found["real"] = real(options.data)
    kept.write_text(json.dumps(found))
    text = table(found, options.entities, options.triples)
    (HERE / "results" / "partition.md").write_text(text, encoding="utf-8")
    print(text)


def table(found: dict[str, Any], entities: int, triples: int) -> str:
    """All results as markdown."""
    lines = [
        "# Partitioning",
        "",
        f"A graph of {entities:,} entities and {triples:,} triples, made from a seed: {GROUPS:,} communities, degrees by a power",
        f"law, ids shuffled, {MIXING:.0%} of the triples regardless of communities. {PARTS} partitions, one thread, a fresh",
        "process each time, from mapped triples to the owner of each entity; seconds of a core. `of METIS`: our time",
        "divided by that of METIS' C call alone on finished arrays, both measured in a process that has done it once",
        "before. `MiB`: what is added to a process whose libraries are loaded. Balance is the largest partition divided by",
        "the average. Written by",
        "`make bench-partition`.",
        "",
        "| method | balance | seconds | of METIS | million triples/s | MiB | cut | entities | triples |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for method in METHODS:
        for balance in ("triples", "entities"):
            row = found.get(f"{method}, {balance}")
            if row:
                ratio = f"{row['ratio']:.2f} ({row['alone']:.1f} s)" if "alone" in row else ""
                cells = [method, balance, f"{row['seconds']:.1f}", ratio, f"{triples / row['seconds'] / 1e6:.1f}"]
                cells += [f"{row['memory']:,.0f}", f"{row['cut']:.4f}", f"{row['entities']:.3f}", f"{row['triples']:.3f}"]
                lines.append("| " + " | ".join(cells) + " |")
    rounds = {int(row["rounds"]) for row in found.values() if isinstance(row, dict) and "rounds" in row}
    lines += ["", f"Rounds: {' or '.join(map(str, sorted(rounds)))}, on a machine that others use, too."]
    lines += ["", f"Writing the triples of all partitions takes {found.get('writing', '?')} of a core more.", ""]
    lines += [
        f"`partition_graph` of this graph with {WIDTH} float32 a node and `balance_edges`, until the last file is on disk.",
        "`of METIS`: divided by METIS' C call alone, in the same process afterwards. `peak MiB`: of the whole process, the",
        "graph, its data and the libraries (in brackets) included.",
        "",
        "| method | seconds | of METIS | by the clock | peak MiB | cut | nodes | edges |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for method in METHODS:
        row = found.get(f"graph, {method}")
        if row:
            cells = [method, f"{row['seconds']:.1f}", f"{row['ratio']:.2f} ({row['alone']:.1f} s)", f"{row['clock']:.1f}"]
            cells += [f"{row['peak']:,.0f} ({row['libraries']:,.0f})", f"{row['cut']:.4f}"]
            lines.append("| " + " | ".join([*cells, f"{row['nodes']:.3f}", f"{row['edges']:.3f}"]) + " |")
    lines += [
        "",
        "Real graphs, four partitions; in brackets what `dglke_partition` cuts, which evens out entities alone (FB15k: 1.46 of",
        "triples).",
        "",
        "| graph | method | balance | cut | share | entities | triples | seconds |",
        "|---|---|---|---:|---:|---:|---:|---:|",
        *found.get("real", []),
        "",
        f"Command: `make bench-partition`. Machine: {machine()}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
