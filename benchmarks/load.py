"""Loading speed and memory, on one core: `make bench-load`.

Each figure is one whole load in a fresh process that has imported torch and Numba, as a training has: names or ids in, the
binary store out, everything on disk, pyarrow's import included. The roofs are what no loader could leave
out (to read the bytes and hash them) and what the parser underneath takes by itself; the twin is what one would write first,
on the first lines of the same file. All are measured in the same run, in turn.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from datasets import prepare

from kgdist.data.dataset import load_dataset

HERE = Path(__file__).parent
PIECE = 1 << 20  # synthetic triples made at once
LINE, STORED = (
    60,
    24,
)  # bytes of a synthetic triple as text, and in the store with its share of the names; a little more than they are
MOST = 6 << 30  # bytes of disk used at once
SAMPLE = 300_000  # lines of the twin
RELATIONS = 1000


def memory(field: str) -> int:
    """Bytes, of a line of /proc/self/status: VmRSS now, VmHWM at most so far."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) * 1024


def clocked(owner: Any, name: str, spent: list[float]) -> None:
    """Have the processor time of every call of a function, which its owner finds by name, added to `spent`."""
    function = getattr(owner, name)

    def call(*given: Any) -> Any:
        began = time.process_time()
        try:
            return function(*given)
        finally:
            spent.append(time.process_time() - began)

    setattr(owner, name, call)


def one(options: dict[str, Any]) -> dict[str, float]:
    """One load in this process, and what a step's triples cost from the map that it leaves."""
    import torch  # noqa: F401  (a training has it)

    from kgdist.data import build
    from kgdist.data.batches import Batches
    from kgdist.data.vocabulary import Vocabulary
    from kgdist.kernels import jit

    warnings: list[float] = []
    for owner, name in ((build, "_seen"), (build, "_unseen"), (Vocabulary, "padded")):
        clocked(owner, name, warnings)
    jit.load()
    before, started, used = memory("VmRSS"), time.perf_counter(), time.process_time()
    dataset = load_dataset(**options)
    seconds, used, peak = time.perf_counter() - started, time.process_time() - used, memory("VmHWM")
    batches = Batches(dataset.train, 1000, seed=1)
    batches.at(0)
    steps = np.random.default_rng(1).integers(0, batches.steps_per_epoch, 300).tolist()
    began = time.perf_counter()
    for step in steps:
        batches.at(step)
    return {
        "seconds": seconds,
        "used": used,
        "warnings": sum(warnings) / (used - sum(warnings)),
        "peak": peak - before,
        "triples": sum(map(len, dataset.splits.values())),
        "entities": len(dataset.entities),
        "store": sum(file.stat().st_size for file in dataset.folder.iterdir()),
        "batch": (time.perf_counter() - began) / len(steps),
    }


def fresh(options: dict[str, Any]) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(options)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1200, cwd=HERE.parent)
    answer: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return answer


def hashing(files: list[Path]) -> float:
    """Seconds to read the files and hash them."""
    began = time.perf_counter()
    for file in files:
        with file.open("rb") as stream:
            digest = hashlib.sha256()
            while piece := stream.read(PIECE):
                digest.update(piece)
    return time.perf_counter() - began


def parsing(files: list[Path], ids: bool) -> float:
    """Seconds of pyarrow's parser alone over the files of triples, block by block."""
    import pyarrow as pa  # imported late: in a load, the import counts
    from pyarrow import csv

    kind = pa.int64() if ids else pa.string()
    columns = ["a", "b", "c"]
    began = time.perf_counter()
    for file in files:
        with csv.open_csv(
            file,
            csv.ReadOptions(use_threads=False, block_size=4 << 20, column_names=columns),
            csv.ParseOptions(delimiter="\t", quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(columns, kind)),
        ) as reader:
            for _ in reader:
                pass
    return time.perf_counter() - began


def twin(file: Path, ids: bool) -> float:
    """Triples per second of the plain way on the first lines: a dict for names, np.loadtxt for ids."""
    began = time.perf_counter()
    if ids:
        array = np.loadtxt(file, np.int32, delimiter="\t", max_rows=SAMPLE)
    else:
        entities: dict[str, int] = {}
        relations: dict[str, int] = {}
        rows = []
        with file.open(encoding="utf-8") as lines:
            for line in itertools.islice(lines, SAMPLE):
                head, relation, tail = line.rstrip("\n").split("\t")
                row = (
                    entities.setdefault(head, len(entities)),
                    relations.setdefault(relation, len(relations)),
                    entities.setdefault(tail, len(entities)),
                )
                rows.append(row)
        array = np.array(rows, np.int32)
    return len(array) / (time.perf_counter() - began)


def synthetic(folder: Path, triples: int, entities: int, ids: bool) -> list[str]:
    """Write a graph of names, or of ids with the files that name them; returns the names of its files, as --data_files."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    rng = np.random.default_rng(7)
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")

    def text(prefix: str, numbers: np.ndarray) -> Any:
        return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")

    def column(prefix: str, numbers: np.ndarray) -> Any:
        return pa.array(numbers) if ids else text(prefix, numbers)

    with (folder / "train.txt").open("wb") as file:
        for start in range(0, triples, PIECE):
            count = min(PIECE, triples - start)
            heads = (entities * rng.random(count) ** 2).astype(np.int64)  # some entities are met often, most of them seldom
            relations = (RELATIONS * rng.random(count) ** 3).astype(np.int64)
            tails = rng.integers(0, entities, count)
            names = (column("/entity/m.0", heads), column("/domain/relation_", relations), column("/entity/m.0", tails))
            csv.write_csv(pa.table(dict(zip("hrt", names, strict=True))), file, options)
    if not ids:
        return ["train.txt"]
    for name, prefix, total in (("entities.tsv", "/entity/m.0", entities), ("relations.tsv", "/domain/relation_", RELATIONS)):
        with (folder / name).open("wb") as file:
            for start in range(0, total, PIECE):
                numbers = np.arange(start, min(total, start + PIECE))
                csv.write_csv(pa.table({"id": pa.array(numbers), "name": text(prefix, numbers)}), file, options)
    return ["entities.tsv", "relations.tsv", "train.txt"]


def as_ids(source: Path, files: list[str], folder: Path) -> list[str]:
    """Write the graph of names `files` as ids into `folder`; returns --data_files."""
    import pyarrow as pa
    from pyarrow import csv

    dataset = load_dataset(path=source, name="graph", format="raw_udd_hrt", files=files)
    for name, triples in zip(files, dataset.splits.values(), strict=True):
        columns = dict(zip("hrt", triples.array.T, strict=True))
        csv.write_csv(pa.table(columns), folder / name, csv.WriteOptions(include_header=False, delimiter="\t"))
    dataset.entities.write_tsv(folder / "entities.tsv")
    dataset.relations.write_tsv(folder / "relations.tsv")
    return ["entities.tsv", "relations.tsv", *files]


def row(title: str, folder: Path, files: list[str], ids: bool, rounds: int) -> str:
    """One line of the table."""
    options = {"path": str(folder), "name": "graph", "format": "udd_hrt" if ids else "raw_udd_hrt", "files": files}
    texts = [folder / name for name in files if name.endswith(".txt")]
    found: list[tuple[dict[str, float], float, float, float, dict[str, float]]] = []
    for _ in range(rounds):
        shutil.rmtree(folder / ".kgdist", ignore_errors=True)
        os.sync()  # or the load would wait for what was written before it
        first = fresh(options)
        found.append(
            (first, hashing([folder / name for name in files]), parsing(texts, ids), twin(texts[0], ids), fresh(options))
        )
    triples = first["triples"]
    speed, used = (statistics.median(each[0][key] for each in found) for key in ("seconds", "used"))
    hashed, parsed = (statistics.median(triples / each[i] for each in found) for i in (1, 2))
    share = statistics.median((each[1] + each[2]) / each[0]["seconds"] for each in found)
    ratio = statistics.median(triples / each[0]["seconds"] / each[3] for each in found)
    warned = statistics.median(each[0]["warnings"] for each in found)
    again = statistics.median(each[4]["seconds"] for each in found)
    peak = max(each[0]["peak"] for each in found)
    batch = statistics.median(each[4]["batch"] for each in found)
    cells = [
        title,
        f"{triples:,.0f} / {first['entities']:,.0f}",
        f"{speed:.2f} s",
        f"{used:.2f} s",
        f"+{warned:.1%}",
        f"{triples / speed / 1e6:.2f} M",
        f"{hashed / 1e6:.1f} M",
        f"{parsed / 1e6:.1f} M",
        f"{share:.0%}",
        f"{ratio:.1f} x",
        f"{peak / 2**20:,.0f} MiB",
        f"{first['store'] / 2**20:,.0f} MiB",
        f"{again:.3f} s",
        f"{batch * 1e6:.0f} us",
    ]
    line = f"| {' | '.join(cells)} |"
    print(line, flush=True)
    return line


def affordable(triples: int, folder: Path) -> int:
    """As many triples as asked for, or as disk and memory allow."""
    free = min(MOST, shutil.disk_usage(folder).free // 2)
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    room = int(available[1]) * 1024 // 2 if available else triples * 32
    return min(triples, free // (LINE + STORED), room // 32)


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--rounds", type=int, default=5, help="of the benchmark graph; the large ones are loaded once")
    parser.add_argument("--large", type=int, default=50_000_000, help="triples of the synthetic graphs; 0 leaves them out")
    parser.add_argument("--folder", type=Path, help="for the synthetic graphs; a temporary one otherwise")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if options.one:
        print(json.dumps(one(json.loads(options.one))))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        graph = Path(temporary, "graph")
        if prepare("FB15k", options.data):
            name = "FB15k"
            shutil.copytree(options.data / name, graph)
        else:
            name = "wordnet"
            load_dataset(path=temporary, name=name)
            shutil.copytree(Path(temporary, name), graph)
        files = [f"{split}.txt" for split in ("train", "valid", "test")]
        rows.append(row(f"{name}, names", graph, files, False, options.rounds))
        ids = Path(temporary, "ids")
        ids.mkdir()
        rows.append(row(f"{name}, ids", ids, as_ids(graph, files, ids), True, options.rounds))
        large = affordable(options.large, Path(temporary))
        for by_id, title in ((False, "synthetic, names"), (True, "synthetic, ids")):
            if large:
                folder = Path(temporary, "large")
                folder.mkdir()
                rows.append(row(title, folder, synthetic(folder, large, large // 5, by_id), by_id, 1))
                shutil.rmtree(folder)
    import pyarrow as pa
    from roofs import machine  # imports much: in a load, imports count

    head = [
        "files",
        "triples / entities",
        "first load",
        "of it processor",
        "for warnings",
        "triples/s",
        "read and sha256",
        "pyarrow's parser",
        "of both",
    ]
    head += ["against the plain way", "peak memory", "store", "next load", "a batch of 1000"]
    lines = [
        "# Loading",
        "",
        "From text files to the binary store, on one core; medians of interleaved runs, one run of the synthetic graphs.",
        "Written by `make bench-load`. The two columns after `triples/s` are the roofs: reading and hashing the sources,",
        "and the parser underneath, each alone; `of both` is the share of the load that the two would have taken, one",
        "after the other. The plain way is a dict of names in a Python loop, or `np.loadtxt` for ids, on the first",
        "300,000 lines; it checks, hashes, indexes and saves nothing. Peak memory is that of the first load, above what",
        "the process held before it, and beside it the size of the store, which is mapped. `A batch of 1000` is what",
        "drawing the positives of one step at random places of the mapped store costs.",
        "",
        "A first load that took longer than its processor time waited for the disk, or shared the core with other work. `For",
        "warnings`: what is looked for to warn of it (header lines, quotes, repeats, leaks, unseen names) adds to the rest.",
        "",
        f"| {' | '.join(head)} |",
        f"|---|{'---:|' * (len(head) - 1)}",
        *rows,
        "",
        f"Machine: one of {machine()}, pyarrow {pa.__version__}.",
        "",
    ]
    (HERE / "results" / "load.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
