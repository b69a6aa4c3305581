"""kgdist-split: one file of triples into train, valid and test."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kgdist.base.errors import DataError, counted
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import SplitOptions


@command()
def main(argv: Sequence[str]) -> int:
    options: SplitOptions = parse.parse_tool("split", argv)
    from kgdist.base import log
    from kgdist.data.dataset import NOTABLE, READING, Triples, in_another_form, load_dataset
    from kgdist.data.leaks import Families, answered, find, portions
    from kgdist.data.split import divide
    from kgdist.exchange import graphs, layouts

    set_up_log(options)
    write = layouts.layout("raw_udd_hrt", delimiter=options.output_delimiter)
    file, out = Path(str(options.file)), Path(str(options.output_path))
    whole = load_dataset(
        path=file.parent,
        name=file.name.split(".")[0] or "graph",
        format=options.format,
        files=[file.name],
        delimiter=options.delimiter,
        header=options.header,
        quoted=options.quoted,
        weighted=options.has_edge_importance,
        judged=READING,  # repeated triples are left out here
    )
    triples, weights = whole.train.array, whole.train.weights
    families = None
    if options.no_leaks:
        links = find(portions([triples]), len(whole.relations))
        families = Families.of(links, len(whole.relations))
        log.tell(f"{counted(len(links), 'pair')} of relations that say the same, or the same turned round")
    found = divide(triples, options.ratio, options.seed, families)
    counts = dict(zip(("train", "valid", "test"), found.counts, strict=True))
    if not counts["train"] or not any(found.counts[1:]):
        split = "train" if not counts["train"] else "valid and test"
        raise DataError(file, f"leaves no triple for {split}: train needs one of each entity and relation; give more triples")
    parts = {}
    for number, name in enumerate(counts):
        mine = found.split == number
        if counts[name]:
            parts[name] = Triples(triples[mine], None if weights is None else weights[mine])
    divided = replace(whole, train=parts["train"], valid=parts.get("valid"), test=parts.get("test"))
    for path in graphs.convert(graphs.Written(divided, {}), "raw_udd_hrt", write, out, force=options.force):
        log.say(str(path))
    if found.repeated:
        log.say(f"{counted(found.repeated, 'repeated triple')} left out")
    log.say(", ".join(f"{count:,} {name}" for name, count in counts.items()))
    for name, have, wanted in zip(counts, found.counts, found.wanted, strict=True):
        if name != "train" and have < wanted:
            why = "train keeps the others, so that it has every entity and relation"
            why += ", and what says the same stays together" if families is not None else ""
            log.log.warning("%s: %s triples instead of %s: %s", name, f"{have:,}", f"{wanted:,}", why)
    if families is None:
        splits = [triples.array for triples in divided.splits.values()]
        if (share := answered(splits, len(divided.relations)).otherwise) > NOTABLE:
            log.log.warning(in_another_form(share, "--no_leaks"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
