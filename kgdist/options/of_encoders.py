"""The options of graph encoders, which make entities' rows out of their neighbourhoods: fields of `Config`."""

from __future__ import annotations

import dataclasses
import os
from functools import partial

from kgdist.options.option import option

ENCODERS = ("rgcn", "compgcn", "relgnn", "sage", "gat")

_encoder = partial(option, group="encoder", ours=("train", "dist-train"))


def _whole_path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Of a graph network in front of the score function."""

    encoder: str = _encoder(
        "none",
        "graph network that makes an entity's row out of its neighbours', for every score function: rgcn, with a matrix for each "
        "relation; compgcn, which composes neighbours with relations; relgnn, attention over both; sage and gat, which do not "
        "tell relations apart (the extra kgdist[gnn])",
        choices=("none", *ENCODERS),
    )
    attributes: str | None = _encoder(
        None,
        "folder that kgdist-preprocess has made of attributes of the entities: they begin as the mean of these, those without "
        "any as rows of their own",
        clean=_whole_path,
        metavar="FOLDER",
    )
    own_rows: bool = _encoder(
        False,
        "entities with attributes have a row of their own as well, which is added to what these make: where attributes alone say "
        "too little of an entity",
    )
    num_layers: int = _encoder(2, "layers of the encoder: how many hops away it looks", low=1, high=16)
    encoder_dim: int = _encoder(64, "size of entities' own rows, and of what layers hand on; the last gives --hidden_dim", low=1,
                                high=1_000_000)  # fmt: skip
    encoder_lr: float = _encoder(
        0.01, "learning rate of the encoder's weights, by Adam; --lr is that of the rows of entities and relations", above=0
    )
    fanout: tuple[int, ...] = _encoder(
        (),
        "of so many edges into an entity each hop takes as many, drawn by --seed, and not all. A number for each hop, the last "
        "one next to the triples themselves; -1: all",
        low=1,
        besides=(-1,),
        ours=("train", "dist-train", "partition"),
        metavar="N",
    )
    no_inverse: bool = _encoder(
        False,
        "messages go from heads to tails only, and not by inverse relations as well",
        ours=("train", "dist-train", "partition"),
    )
    num_bases: int = _encoder(
        16,
        "rgcn: the matrix of each relation is a sum of so many that all share; with --relation_blocks, it has so many blocks "
        "along its diagonal, and nothing else; 0: it is free",
        low=0,
    )
    relation_blocks: bool = _encoder(False, "rgcn: matrices have --num_bases blocks instead of being sums")
    num_heads: int = _encoder(4, "gat: heads of the attention, which divide what a layer gives", low=1, high=1024)
    dropout: float = _encoder(0.2, "share of the numbers that come into a layer that training sets to 0", low=0, high=0.95)
    neighbor_dropout: float = _encoder(
        0.0,
        "share of a step's entities whose triples all are left out of the messages of that step, so that rows of attributes "
        "alone are learned, as entities without triples need them (kgdist-encode)",
        low=0,
        high=0.95,
    )
    max_grad_norm: float = _encoder(
        1.0,
        "a step's gradient of the encoder's weights is made this long if it is longer: a single batch can else ruin a training; "
        "0: it stays as it is",
        low=0,
    )
    weight_decay: float = _encoder(0.0, "times the encoder's weights is added to their gradients", low=0)
