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
from datasets import prepare
from roofs import machine

from kgdist.data.dataset import load_dataset
from kgdist.partition import metis
from kgdist.partition.assign import assign
from kgdist.partition.book import Numbering
from kgdist.partition.graph import TOLERANCE, Sizes, adjacency, degrees, loads_of
from kgdist.partition.write import split_train

HERE = Path(__file__).parent
PARTS = 4
GROUPS, MIXING = 1000, 0.25  # communities, and the share of triples that ignore them
RELATIONS = 100
REFERENCE = {"FB15k": 119431, "wn18": 9867}  # triples that dglke_partition cuts with four partitions, by its logs
METHODS = ("metis", "streaming", "random")


def synthetic(file: Path, entities: int, triples: int, seed: int = 1) -> None:
    """Write int32[triples, 3] of a graph whose entities have unequal degrees (Pareto, exponent 2) and one community each."""
    rng = np.random.default_rng(seed)
    weight = rng.pareto(2.0, entities) + 1
    group = np.sort(rng.integers(0, GROUPS, entities))
    ends = np.cumsum(weight)
    first = np.searchsorted(group, np.arange(GROUPS + 1))
    low, high = np.append(0, ends)[first[:-1]], np.append(0, ends)[first[1:]]  # the weights of each community
    heads = np.searchsorted(ends, rng.random(triples) * ends[-1])
    inside = low[group[heads]] + rng.random(triples) * (high - low)[group[heads]]
    anywhere = rng.random(triples) * ends[-1]
    tails = np.searchsorted(ends, np.where(rng.random(triples) < MIXING, anywhere, inside)).clip(max=entities - 1)
    shuffle = rng.permutation(entities).astype(np.int32)  # ids tell nothing of communities
    rows = np.stack([shuffle[heads], rng.integers(0, RELATIONS, triples, dtype=np.int32), shuffle[tails]], axis=1)
    np.save(file, rows, allow_pickle=False)


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
    graph, loads = adjacency(triples, found), loads_of(found, job["balance"])[:, -1:].copy()
    began = time.process_time()
    metis.library().divide(graph, loads, PARTS, TOLERANCE[job["balance"]][-1:], 1, False)
    return time.process_time() - began


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
        "what", nargs="*", default=["metis", "streaming", "random", "real"], help="parts to measure anew; also metis/triples"
    )
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--entities", type=int, default=1_000_000)
    parser.add_argument("--triples", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help="only one division, described as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(json.loads(options.one))))
        return
    options.data.mkdir(parents=True, exist_ok=True)
    kept = options.data / "partition.json"  # what earlier calls measured
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    file = options.data / f"communities-{options.entities}-{options.triples}.npy"
    if not file.exists():
        synthetic(file, options.entities, options.triples)
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
    rounds = {int(row["rounds"]) for row in found.values() if isinstance(row, dict)}
    lines += ["", f"Rounds: {' or '.join(map(str, sorted(rounds)))}, on a machine that others use, too."]
    lines += ["", f"Writing the triples of all partitions takes {found.get('writing', '?')} of a core more.", ""]
    lines += [
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
