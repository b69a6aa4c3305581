"""The options of graph encoders, which make entities' rows out of their neighbourhoods: fields of `Config`."""

from __future__ import annotations

import dataclasses
from functools import partial

from kgdist.options.option import option, whole_path

ENCODERS = ("rgcn", "compgcn", "relgnn", "sage", "gat")

_encoder = partial(option, group="encoder", ours=("train", "dist-train"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Of a graph network in front of the score function."""

    encoder: str = _encoder(
        "none",
        "graph network that computes an entity's row from its neighbours, for any score function: rgcn, with a matrix for each "
        "relation; compgcn, which composes neighbours with relations; relgnn, with attention over both; sage and gat, which do "
        "not distinguish relations (needs the extra kgdist[gnn])",
        choices=("none", *ENCODERS),
    )
    attributes: str | None = _encoder(
        None,
        "folder of attributes written by kgdist-preprocess: an entity starts as the mean of its attributes, one without any as a "
        "row of its own",
        clean=whole_path,
        metavar="FOLDER",
    )
    own_rows: bool = _encoder(
        False,
        "give entities with attributes a row of their own as well, which is added; for attributes that say too little by "
        "themselves",
    )
    num_layers: int = _encoder(2, "layers of the encoder: how many hops it sees", low=1, high=16)
    encoder_dim: int = _encoder(64, "size of entities' own rows and of hidden layers; the last layer gives --hidden_dim", low=1,
                                high=1_000_000)  # fmt: skip
    encoder_lr: float = _encoder(
        0.01, "learning rate of the encoder's weights, by Adam; --lr is that of the rows of entities and relations", above=0
    )
    fanout: tuple[int, ...] = _encoder(
        (),
        "most edges into an entity that each hop uses, drawn by --seed: one number per hop, the last for the hop next to the "
        "triples; -1: all of them",
        low=1,
        besides=(-1,),
        ours=("train", "dist-train", "partition"),
        metavar="N",
    )
    no_inverse: bool = _encoder(
        False,
        "messages go from heads to tails only, not back along inverse relations",
        ours=("train", "dist-train", "partition"),
    )
    num_bases: int = _encoder(
        16,
        "rgcn: the matrix of each relation is a sum of this many shared ones; with --relation_blocks, it has this many blocks on "
        "its diagonal and zeros elsewhere; 0: no restriction",
        low=0,
    )
    relation_blocks: bool = _encoder(False, "rgcn: matrices have --num_bases blocks instead of being sums")
    num_heads: int = _encoder(4, "gat: attention heads, which share the output of a layer", low=1, high=1024)
    dropout: float = _encoder(0.2, "share of each layer's inputs that training sets to 0", low=0, high=0.95)
    neighbor_dropout: float = _encoder(
        0.0,
        "share of entities whose triples are all left out of a step's messages, so that the encoder also learns from attributes "
        "alone, as entities without triples need (kgdist-encode)",
        low=0,
        high=0.95,
    )
    max_grad_norm: float = _encoder(
        1.0,
        "clip the gradient of the encoder's weights to this norm, since a single batch can ruin a training otherwise; 0: do not "
        "clip",
        low=0,
    )
    weight_decay: float = _encoder(0.0, "weight decay of the encoder: this times its weights is added to their gradients", low=0)
