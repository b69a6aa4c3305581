"""The options of what kgdist-eval can test besides ranks of entities. Fields of `Config`."""

from __future__ import annotations

import dataclasses

from kgdist.options.option import option


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherTestOptions:
    """Of ranks of relations, of telling true triples from false ones, and of triples that a run cannot know."""

    skip_unknown: bool = option(
        False,
        "leave out triples of valid and test with an entity or a relation that the run does not have, as PyKEEN does, whose "
        "models know those of train alone; how many is said",
        group="evaluation",
        ours=("eval",),
        sticky=False,
    )
    rank_relations: bool = option(
        False,
        "also rank the true relation of each test triple among all relations, (head, ?, tail)",
        group="evaluation",
        ours=("eval",),
        sticky=False,
    )
    classify: bool = option(
        False,
        "also tell true triples from false ones by a threshold for each relation, chosen on the valid split: accuracy, AUC-ROC "
        "and AUC-PR. For each true triple a false one is drawn, from the entities that the relation has at that end",
        group="evaluation",
        ours=("eval",),
        sticky=False,
    )
    classify_files: tuple[str, ...] = option(
        (),
        "the same with negatives of your own: a file to choose thresholds by and one to test on, of lines with head, relation, "
        "tail and label, 1 for true and -1 or 0 for false; --delimiter, --header and --quoted hold for them, too",
        group="evaluation",
        ours=("eval",),
        metavar="FILE",
        sticky=False,
    )
