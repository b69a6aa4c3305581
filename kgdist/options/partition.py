"""The options of kgdist-partition: into how many parts, by what method, balanced how, written where.

They are fields of `kgdist.options.config.Config` like all others, in a file of their own because no other command has them.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from kgdist.options.option import option

_PARTITION = ("partition",)
_partition = partial(option, group="partition", ours=_PARTITION, sticky=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """See the module."""

    num_parts: int | None = option(
        None,
        "number of partitions, one for each machine",
        short="-k",
        synonyms=("--num-parts",),
        low=1,
        high=65535,
        group="partition",
        dglke=_PARTITION,
        sticky=False,
    )
    method: str = _partition(
        "metis",
        "metis: few triples between partitions, for graphs that fit into memory several times over; streaming: nearly as few, in "
        "several passes over the triples on disk; random: even shares at once; dglke: as the text partitions in the folder of "
        "the data set say, which dglke_partition wrote",
        choices=("metis", "streaming", "random", "dglke"),
    )
    balance: str = _partition(
        "triples",
        "what is evened out: triples, so that machines have the same work, besides entities; or entities alone, as DGL-KE",
        choices=("triples", "entities"),
    )
    layout: str = _partition(
        "kgdist", "what is written: kgdist's own files, or the text files of DGL-KE", choices=("kgdist", "dglke")
    )
    out: str | None = _partition(
        None, "folder that gets the partitions, instead of the data set's own, <data_path>/<dataset>", metavar="FOLDER"
    )
    verify: bool = _partition(
        False,
        "read what was written, or, without -k, what is there, and prove that every triple is in exactly one partition",
    )
