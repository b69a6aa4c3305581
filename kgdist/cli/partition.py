"""kgdist-partition: divide a knowledge graph among machines."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgdist import flags
from kgdist.cli.main import run
from kgdist.config import Config
from kgdist.data.store import Dataset
from kgdist.errors import OptionError
from kgdist.log import log, say, setup
from kgdist.resolve import resolve


def partition(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    parsed = flags.parse("partition", argv)
    config, notes = resolve(parsed.config, set(parsed.explicit))
    if config.num_parts is None and not config.verify and config.method != "dglke":
        raise OptionError("--num_parts", "say how many partitions: -k 4 for four machines")
    if config.dry_run and config.verify:
        raise OptionError("--verify", "there is nothing to read after --dry_run; drop one of them")
    from kgdist.runtime.job import open_dataset

    setup(debug=config.debug, quiet=config.quiet)
    for note in notes:
        log.info(note)
    dataset = open_dataset(config)
    root = Path(config.out) if config.out is not None else Path(config.data_path) / config.dataset
    if config.num_parts is None and config.method != "dglke":
        from kgdist.partition.verify import verify

        partitions, sizes = verify(root, dataset)
        say(sizes.table())
        say(f"verified: every triple of {dataset.name} is in exactly one of the {len(partitions)} partitions in {root}")
        return 0
    return make(config, dataset, root)


def make(config: Config, dataset: Dataset, root: Path) -> int:
    """Assign, measure, and, unless it is a trial, write and verify."""
    from kgdist.partition.assign import assign
    from kgdist.partition.book import Numbering
    from kgdist.partition.sizes import Sizes
    from kgdist.partition.verify import verify
    from kgdist.partition.writer import write
    from kgdist.runtime.memory import peak_of_this_process

    entities, relations = len(dataset.entities), len(dataset.relations)
    parts = config.num_parts or 1
    started = time.perf_counter()
    method, balance, seed = config.method, config.balance, config.seed
    assigned = assign(dataset.train.array, entities, relations, parts, method=method, balance=balance, seed=seed)
    seconds = {"assigning": time.perf_counter() - started}
    sizes = Sizes.of(dataset.train.array, assigned, parts, relations)
    say(f"{dataset.name}: {entities:,} entities, {relations:,} relations, {len(dataset.train):,} training triples")
    say(sizes.table())
    if min(sizes.triples) == 0:
        log.warning("a partition has no triples: its machine would have nothing to train; take fewer partitions")
    if not config.dry_run:
        started = time.perf_counter()
        numbering = Numbering.of(assigned, parts, relations)
        folders = write(dataset, numbering, sizes, root, method=method, balance=balance, seed=seed, source=source(config))
        seconds["writing"] = time.perf_counter() - started
        say(f"written: {folders[0]}" + (f" to {folders[-1].name}" if parts > 1 else ""))
    if config.verify:
        started = time.perf_counter()
        verify(root, dataset)
        seconds["verifying"] = time.perf_counter() - started
        say("verified: every triple is in exactly one partition")
    times = ", ".join(f"{what} {each:.1f} s" for what, each in seconds.items())
    say(f"{times}; at most {peak_of_this_process() / 2**20:,.0f} MiB of memory")
    return 0


def source(config: Config) -> dict[str, Any]:
    """The options by which the data set can be read again from its files."""
    files = list(config.data_files)
    return {"format": config.format, "data_files": files, "delimiter": config.delimiter, "header": config.header}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(partition, argv)


if __name__ == "__main__":
    sys.exit(main())
