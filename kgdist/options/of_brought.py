"""The options of what a user brings beside triples: labels of names. Fields of `Config`, and of the commands that ask a run."""

from __future__ import annotations

import dataclasses

from kgdist.options.option import option

_HERE = ("train", "eval")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """Of commands that show names."""

    labels: str | None = option(
        None,
        "what people call the entities and relations: lines name<TAB>label, or RDF with rdfs:label. The run keeps them, and they "
        "stand beside names from then on",
        group="output",
        ours=_HERE,
        metavar="FILE",
        sticky=False,
    )
