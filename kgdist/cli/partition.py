"""kgdist-partition: divide a knowledge graph among machines."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgdist.base.log import log, result, say, tell
from kgdist.cli.command import command, set_up_log
from kgdist.data.dataset import Dataset
from kgdist.options import parse
from kgdist.options.config import Config
from kgdist.options.contradictions import of_partitioning, refuse
from kgdist.options.resolve import resolve

if TYPE_CHECKING:
    from kgdist.partition.graph import Sizes


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    parsed = parse.parse("partition", argv)
    config, notes = resolve(parsed.config, parsed.explicit)
    refuse(of_partitioning(config, parsed.explicit))
    from kgdist.data.dataset import open_dataset

    set_up_log(config)
    for note in notes:
        log.info(note)
    dataset = open_dataset(config)
    own = Path(config.data_path) / config.dataset
    root = Path(config.out) if config.out is not None else own
    if config.num_parts is None and config.method != "dglke":
        sizes = prove(config, dataset, root)
        result({"dataset": dataset.name, "folder": str(root), "verified": True, "sizes": sizes.to_json()})
        return 0
    return make(config, dataset, root, own)


def prove(config: Config, dataset: Dataset, root: Path) -> Sizes:
    """Read the partitions in `root` again, and say that they are right; their sizes. Raises CheckpointError, DataError."""
    from kgdist.partition.dglke_text import read_text
    from kgdist.partition.graph import Sizes
    from kgdist.partition.verify import verify

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
    from kgdist.base.machine import peak_of_this_process
    from kgdist.partition import dglke_text
    from kgdist.partition.assign import assign
    from kgdist.partition.book import Numbering
    from kgdist.partition.graph import Sizes
    from kgdist.partition.write import write

    entities, relations, train = len(dataset.entities), len(dataset.relations), dataset.train.array
    started = time.perf_counter()
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
        else:
            numbering = Numbering.of(assigned, parts, relations)
            folders = write(dataset, numbering, sizes, root, method=method, balance=balance, seed=seed, source=source(config))
        seconds["writing"] = time.perf_counter() - started
        say(f"written: {folders[0]}" + (f" to {folders[-1].name}" if parts > 1 else ""))
    if config.verify:
        started = time.perf_counter()
        prove(config.replace(num_parts=parts), dataset, root)
        seconds["verifying"] = time.perf_counter() - started
    times = ", ".join(f"{what} {each:.1f} s" for what, each in seconds.items())
    tell(f"{times}; at most {peak_of_this_process() / 2**20:,.0f} MiB of memory")
    written = None if config.dry_run else str(root)
    result({"dataset": dataset.name, "folder": written, "verified": config.verify, "sizes": sizes.to_json()})
    return 0


def source(config: Config) -> dict[str, Any]:
    """The options by which the data set can be read again from its files."""
    files = list(config.data_files)
    return {"format": config.format, "data_files": files, "delimiter": config.delimiter, "header": config.header}


if __name__ == "__main__":
    sys.exit(main())
