"""kgdist-partition: divide a knowledge graph, or another graph, among machines."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgdist.base.errors import OptionError
from kgdist.base.files import folder_for
from kgdist.base.log import log, result, say, tell
from kgdist.cli.command import command, set_up_log
from kgdist.data.dataset import Dataset
from kgdist.data.entity_types import types_of
from kgdist.options import parse
from kgdist.options.config import Config
from kgdist.options.contradictions import of_partitioning, refuse
from kgdist.options.resolve import resolve

if TYPE_CHECKING:
    from kgdist.partition.expansion import EdgeSizes
    from kgdist.partition.graph import Sizes
    from kgdist.partition.typed_sizes import TypedSizes


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    parsed = parse.parse("partition", argv)
    config, notes = resolve(parsed.config, parsed.explicit)
    if config.edges and "method" not in parsed.explicit:
        config = config.replace(method="hdrf")
    refuse(of_partitioning(config, parsed.explicit))
    from kgdist.data.dataset import open_dataset

    set_up_log(config)
    for note in notes:
        log.info(note)
    if config.metadata is not None:
        return divide_graph(config, Path(config.metadata))
    dataset = open_dataset(config)
    own = Path(config.data_path) / config.dataset
    root = Path(config.out) if config.out is not None else own
    if config.num_parts is None and config.method != "dglke":
        sizes = prove(config, dataset, root)
        result({"dataset": dataset.name, "folder": str(root), "verified": True, "sizes": sizes.to_json()})
        return 0
    if config.edges:
        return make_edges(config, dataset, root)
    return make(config, dataset, root, own)


def divide_graph(config: Config, metadata: Path) -> int:
    """The graph of a metadata.json: divide it, or, without -k, read what is there. Raises DataError, CheckpointError."""
    from kgdist.base.machine import peak_of_this_process
    from kgdist.partition.chunked import open_chunked
    from kgdist.partition.partition_graph import open_partition, partition_graph
    from kgdist.partition.typed_verify import verify_partitions

    root, started = Path(config.out or "."), time.perf_counter()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(folder_for(root))
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".scratch-", dir=root))
        except OSError as error:
            raise OptionError("--out", f"{root}: cannot be written ({error.strerror or error}); name another folder") from error
        name, graph = open_chunked(metadata, Path(folder))
        if config.num_parts is not None:
            how = {"part_method": config.method, "balance_edges": config.balance == "triples", "seed": config.seed}
            partition_graph(graph, name, config.num_parts, root, **how, scratch=Path(folder))  # type: ignore[arg-type]
        if config.verify:
            verify_partitions(root / f"{name}.json", graph)
    first = open_partition(root / f"{name}.json", 0)
    tell(f"{time.perf_counter() - started:.1f} s; at most {peak_of_this_process() / 2**20:,.0f} MiB of memory")
    result({"dataset": name, "folder": str(root), "verified": config.verify, "sizes": first.manifest.common.sizes})
    return 0


def prove(config: Config, dataset: Dataset, root: Path) -> Sizes | TypedSizes | EdgeSizes:
    """Read the partitions in `root` again, and say that they are right; their sizes. Raises CheckpointError, DataError."""
    from kgdist.partition.dglke_text import read_text
    from kgdist.partition.edges_verify import verify_edges
    from kgdist.partition.graph import Sizes
    from kgdist.partition.typed_graph import of_triples
    from kgdist.partition.typed_verify import verify_partitions
    from kgdist.partition.verify import verify

    if config.edges:
        divided, found = verify_edges(root, dataset)
        if config.num_parts is None:
            say(found.table())
        once = f"every triple of {dataset.name} is core in exactly one of the {len(found.core)} partitions in {root}"
        drawn = "what was drawn of" if divided[0].manifest.common.reach.fanout else "all"
        say(f"verified: {once}, and each has {drawn} that messages to its core entities need")
        return found
    if config.layout == "graph":
        counted = verify_partitions(root / f"{dataset.name}.json", of_triples(dataset, config.features))
        if config.num_parts is None:
            say(counted.table())
        return counted
    if config.layout == "dglke":
        assigned, parts = read_text(dataset, root)
        sizes = Sizes.of(dataset.train.array, assigned, parts, len(dataset.relations))
    else:
        sizes = verify(root, dataset)[1]
    if config.num_parts is None:
        say(sizes.table())
    say(f"verified: every triple of {dataset.name} is in exactly one of the {len(sizes.triples)} partitions in {root}")
    return sizes


def make(config: Config, dataset: Dataset, root: Path, own: Path) -> int:
    """Assign, measure, and, unless it is a trial, write and verify. `own` is the data set's own folder."""
    from kgdist.partition import dglke_text
    from kgdist.partition.assign import assign
    from kgdist.partition.book import Numbering
    from kgdist.partition.graph import Sizes
    from kgdist.partition.partition_graph import check_place, write_partitions
    from kgdist.partition.typed_graph import of_triples
    from kgdist.partition.typed_write import Plan, data_of
    from kgdist.partition.write import check_replaced, write

    if config.layout == "kgdist" and config.method != "dglke":
        check_replaced(root)  # said now, and not when all is divided
    entities, relations, train = len(dataset.entities), len(dataset.relations), dataset.train.array
    graph = of_triples(dataset, config.features) if config.layout == "graph" else None
    if graph is not None:
        data_of(graph, trainers=1)  # what cannot be kept or replaced is said now, and not when all is divided
        check_place(root, dataset.name)
    types, started = types_of(config, dataset.entities), time.perf_counter()
    method, balance, seed, parts = config.method, config.balance, config.seed, config.num_parts or 1
    if method == "dglke":
        assigned, parts = dglke_text.read_text(dataset, own)
        dglke_text.check_parts(config.num_parts, parts)
        balance = "entities"  # what dglke_partition evens out
    else:
        assigned = assign(train, entities, relations, parts, method=method, balance=balance, seed=seed)
    seconds = {"assigning": time.perf_counter() - started}
    sizes = Sizes.of(train, assigned, parts, relations)
    say(f"{dataset.name}: {entities:,} entities, {relations:,} relations, {len(train):,} training triples")
    say(sizes.table())
    if min(sizes.triples) == 0:
        log.warning("a partition has no triples: its machine would have nothing to train; take fewer partitions")
    if not config.dry_run:
        started = time.perf_counter()
        if config.layout == "dglke":
            folders = dglke_text.write_text(dataset, assigned, parts, root)
        elif graph is not None:
            plan = Plan(dataset.name, method, "cut", seed, hops=1, trainers=1)
            file = write_partitions(graph, assigned, parts, root, plan)
            folders = [file.with_name(f"partition_{part}") for part in range(parts)]
            dataset.entities.write_tsv(file.with_suffix(".entities.tsv"))  # not entities.tsv, which may be its own file
            dataset.relations.write_tsv(file.with_suffix(".relations.tsv"))
        else:
            numbering = Numbering.of(assigned, parts, relations)
            how = {"method": method, "balance": balance}
            folders = write(dataset, numbering, sizes, root, **how, seed=seed, source=source(config), types=types)
        seconds["writing"] = time.perf_counter() - started
        say(f"written: {folders[0]}" + (f" to {folders[-1].name}" if parts > 1 else ""))
    finish(config.replace(num_parts=parts), dataset, root, seconds, sizes)
    return 0


def make_edges(config: Config, dataset: Dataset, root: Path) -> int:
    """Divide the triples, look around each part, and, unless it is a trial, write and verify."""
    from kgdist.partition.edges import divide_triples, scratch
    from kgdist.partition.edges_folder import EdgesInCommon
    from kgdist.partition.edges_write import write_edges
    from kgdist.partition.expansion import EdgeSizes, Expansion, Reach
    from kgdist.partition.write import check_replaced

    check_replaced(root, EdgesInCommon)  # said now, and not when all is divided
    entities, relations, train = len(dataset.entities), len(dataset.relations), dataset.train.array
    parts, types, started = config.num_parts or 1, types_of(config, dataset.entities), time.perf_counter()
    how = {"method": config.method, "balance": config.balance}
    with scratch(len(train)) as assigned:
        divide_triples(train, entities, relations, parts, assigned, **how, seed=config.seed)
        seconds = {"assigning": time.perf_counter() - started}
        started = time.perf_counter()
        reach = Reach(config.expand, config.fanout, not config.no_inverse, config.seed)
        expansion = Expansion(train, assigned, entities, parts, reach)
        sizes = EdgeSizes.of(expansion)
        seconds["expanding"] = time.perf_counter() - started
        say(f"{dataset.name}: {entities:,} entities, {relations:,} relations, {len(train):,} training triples")
        say(sizes.table())
        for warning in sizes.warnings():
            log.warning(warning)
        if not config.dry_run:
            started = time.perf_counter()
            more: dict[str, Any] = {"method": config.method, "source": source(config), "types": types}
            folders = write_edges(dataset, expansion, sizes, root, **more)
            seconds["writing"] = time.perf_counter() - started
            say(f"written: {folders[0]}" + (f" to {folders[-1].name}" if parts > 1 else ""))
    finish(config.replace(num_parts=parts), dataset, root, seconds, sizes)
    return 0


def finish(config: Config, dataset: Dataset, root: Path, seconds: dict[str, float], sizes: Sizes | EdgeSizes) -> None:
    """Verify what was written, if that is asked for, and say what all took, besides `seconds`."""
    from kgdist.base.machine import peak_of_this_process

    if config.verify:
        started = time.perf_counter()
        prove(config, dataset, root)
        seconds["verifying"] = time.perf_counter() - started
    times = ", ".join(f"{what} {each:.1f} s" for what, each in seconds.items())
    tell(f"{times}; at most {peak_of_this_process() / 2**20:,.0f} MiB of memory")
    written = None if config.dry_run else str(root)
    result({"dataset": dataset.name, "folder": written, "verified": config.verify, "sizes": sizes.to_json()})


def source(config: Config) -> dict[str, Any]:
    """The options by which the data set can be read again from its files."""
    home = Path(config.data_path).expanduser().absolute()  # which is not where the partitions are
    files, split = [str(home / file) for file in config.data_files], list(config.split)
    text = {"delimiter": config.delimiter, "header": config.header, "quoted": config.quoted}
    named = {"format": config.format, "data_files": files, **text}
    return {**named, "split": split} if split else named


if __name__ == "__main__":
    sys.exit(main())
