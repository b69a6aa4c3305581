"""The options of what a user brings beside triples: labels of names, vectors of entities. Fields of `Config`; labels also of the
commands that ask a run."""

from __future__ import annotations

import dataclasses

from kgdist.options.option import option, whole_path

_HERE = ("train", "eval")
_TRAIN = ("train", "dist-train")


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BroughtOptions(LabelOptions):
    """Of a training."""

    init_vectors: tuple[str, ...] = option(
        (),
        "start entities at vectors that you have, such as those of their texts: an .npy and a file of names, Parquet, or text of "
        "word2vec. Wider ones are projected on their principal axes, and all are scaled to the model's initial range, or with "
        "--freeze, for dot products, to .3 at least",
        group="start",
        ours=_TRAIN,
        metavar="FILE",
        clean=whole_path,
        sticky=False,
        again=True,
    )
    freeze: str = option(
        "none",
        "entities: their rows stay as they start, and the rest of the model is trained",
        group="start",
        ours=_TRAIN,
        choices=("none", "entities"),
    )
