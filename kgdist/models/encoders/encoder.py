"""The graph networks by name. They read blocks, and know neither triples nor tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

import kgdist.nn as nn
from kgdist.attributes.attribute_folder import NodeAttributes, open_attributes
from kgdist.base.errors import OptionError, counted
from kgdist.models.encoders.message_graph import MessageGraph
from kgdist.options.config import Config
from kgdist.sampling.blocks import Block

TABLE = "encoder"  # the weights, as a table of one row


class Layer(torch.nn.Module):
    """A layer on the edges of a block: float32[sources, in] -> float32[destinations, out]."""

    def forward(self, block: Block, relations: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`relations` int64[E], of the block's edges in their order."""
        raise NotImplementedError


class Relational(Layer):
    """R-GCN's, each edge weighing 1 over those of its relation that lead to its destination."""

    def __init__(self, config: Config, width: int, out: int, num_relations: int, before: Layer | None) -> None:
        super().__init__()
        kind = "bdd" if config.relation_blocks else "basis" if config.num_bases else None
        bases = config.num_bases if kind == "bdd" else min(config.num_bases, num_relations)
        self.made = nn.RelGraphConv(width, out, num_relations, kind, bases or None)

    def forward(self, block: Block, relations: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.made(block, rows, relations, norm="mean")
        return found


class Sage(Layer):
    """GraphSAGE's mean."""

    def __init__(self, config: Config, width: int, out: int, num_relations: int, before: Layer | None) -> None:
        super().__init__()
        self.made = nn.SAGEConv(width, out, "mean")

    def forward(self, block: Block, relations: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.made(block, rows)
        return found


class Attention(Layer):
    """Graph attention, beside what the destination has itself."""

    def __init__(self, config: Config, width: int, out: int, num_relations: int, before: Layer | None) -> None:
        super().__init__()
        self.made = nn.GATConv(width, out // config.num_heads, config.num_heads, residual=True, allow_zero_in_degree=True)

    def forward(self, block: Block, relations: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.made(block, rows).flatten(1)
        return found


class _States(Layer):
    """Layers with rows of relations, which each hands on to the next: those of the first are weights.

    The layers before are asked for theirs, a product of [relations, in] for each: nothing beside the edges.
    """

    def __init__(self, width: int, num_relations: int, before: Layer | None) -> None:
        super().__init__()
        self._before = (before,)  # in a tuple, so that its weights are not this layer's as well
        self.first: torch.nn.Parameter | None = None
        if before is None:
            self.first = torch.nn.Parameter(torch.empty(num_relations, width))
            torch.nn.init.normal_(self.first, std=width**-0.5)

    def states(self) -> torch.Tensor:
        """float32[relations, in]."""
        (before,) = self._before
        if self.first is not None:
            return self.first
        assert isinstance(before, _States), "layers of one kind"
        return before.states() @ before.hands_on()

    def hands_on(self) -> torch.Tensor:
        """The matrix [in, out] that relations take to the next layer."""
        raise NotImplementedError


class Composed(_States):
    """CompGCN's, by component."""

    def __init__(self, config: Config, width: int, out: int, num_relations: int, before: Layer | None) -> None:
        super().__init__(width, num_relations, before)
        self.made = nn.CompGraphConv(width, out, num_relations, "mul", inverse=not config.no_inverse)

    def hands_on(self) -> torch.Tensor:
        return self.made.W_rel

    def forward(self, block: Block, relations: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.made(block, rows, relations, self.states())[0]
        return found


class RelationAttention(_States):
    """RelGNN's."""

    def __init__(self, config: Config, width: int, out: int, num_relations: int, before: Layer | None) -> None:
        super().__init__(width, num_relations, before)
        self.made = nn.RelGNNConv(width, out, num_relations)

    def hands_on(self) -> torch.Tensor:
        return self.made.U

    def forward(self, block: Block, relations: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.made(block, rows, relations, self.states())[0]
        return found


LAYERS: dict[str, Callable[..., Layer]] = {
    "rgcn": Relational,
    "compgcn": Composed,
    "relgnn": RelationAttention,
    "sage": Sage,
    "gat": Attention,
}


class Encoder(torch.nn.Module):
    """`--num_layers` layers with ReLU between them, from rows of `--encoder_dim` to rows of the score function's size.

    Weights begin as the layers' own rules draw them, from `--seed`. Raises OptionError for sizes that a layer cannot have.

    Args:
        attributes: what entities begin with that have any; the others, and all where it is None, begin with rows of their own.
        entities: int[n], which of those of the attributes they are; all, in order, where it is None.
    """

    def __init__(
        self,
        config: Config,
        num_relations: int,
        attributes: NodeAttributes | None = None,
        entities: np.ndarray | None = None,
    ) -> None:
        super().__init__()
        widths = [config.encoder_dim] * config.num_layers + [config.entity_dim]
        for out in widths[1:]:
            if config.encoder == "gat" and out % config.num_heads:
                raise OptionError("--num_heads", f"{config.num_heads} heads cannot divide {out} numbers evenly")
            if config.encoder == "rgcn" and config.relation_blocks and (out % config.num_bases or widths[0] % config.num_bases):
                raise OptionError(
                    "--num_bases", f"no {config.num_bases} equal blocks can be made of {widths[0]} and {out} numbers"
                )
        self.share, self.own_rows = config.dropout, config.own_rows
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.attributes = None
            if attributes is not None:
                rows = attributes.rows if entities is None else attributes.rows[entities]
                self.attributes = nn.AttributeEmbedding(attributes, rows, config.encoder_dim)
            kind = LAYERS[config.encoder]
            self.layers = torch.nn.ModuleList()
            for width, out in pairwise(widths):
                before = self.layers[-1] if len(self.layers) else None
                self.layers.append(kind(config, width, out, num_relations, before))

    def begin(self, entities: np.ndarray, rows: torch.Tensor, silent: torch.Tensor | None = None) -> torch.Tensor:
        """What entities int64[n] begin with, float32[n, in], of rows of their own: what their attributes make, if they have any;
        with `--own_rows` both are added, but for those that are `silent`, bool[n]."""
        if self.attributes is None:
            return rows
        made, known = self.attributes(entities)
        if not self.own_rows:
            return torch.where(known[:, None], made, rows)
        both: torch.Tensor = made + (rows if silent is None else rows.masked_fill((silent & known)[:, None], 0))
        return both

    def layer(
        self,
        number: int,
        block: Block,
        relations: torch.Tensor,
        rows: torch.Tensor,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """One layer, float32[sources, in] -> float32[destinations, out]; with dropout where a generator draws it."""
        if generator is not None and self.share:
            kept = torch.rand(rows.shape, generator=generator).to(rows.device) >= self.share
            rows = rows * kept / (1 - self.share)
        found: torch.Tensor = self.layers[number](block, relations, rows)
        return found if number == len(self.layers) - 1 else found.relu()

    def forward(
        self,
        blocks: Sequence[Block],
        relations: Sequence[torch.Tensor],
        rows: torch.Tensor,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """float32[seeds, out], of what inputs begin with, float32[inputs, in], and, for each block, the relations int64[E] of its
        edges."""
        for number, (block, kinds) in enumerate(zip(blocks, relations, strict=True)):
            rows = self.layer(number, block, kinds, rows, generator)
        return rows

    def described(self, config: Config) -> str:
        """In words, for the start of a training."""
        layers, count = counted(len(self.layers), "layer"), self.weights().shape[1]
        text = f"{config.encoder}: {layers}, {count:,} weights"
        if self.attributes is not None:
            rows = self.attributes.rows
            text += f"; {int((rows >= 0).sum()):,} of {len(rows):,} entities have attributes"
        return text

    def weights(self) -> torch.Tensor:
        """float32[1, P]: all of them, a copy."""
        return torch.nn.utils.parameters_to_vector(self.parameters()).detach()[None].clone()

    def use(self, weights: torch.Tensor) -> None:
        """Take these from now on, float32[1, P], without a copy; gradients are forgotten."""
        torch.nn.utils.vector_to_parameters(weights[0], self.parameters())
        self.zero_grad(set_to_none=True)

    def gradients(self) -> torch.Tensor:
        """float32[1, P]."""
        found = [torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters()]
        return torch.cat([grad.reshape(-1) for grad in found])[None]


class Encoding(NamedTuple):
    """What makes rows of entities in a training."""

    encoder: Encoder
    messages: MessageGraph

    @classmethod
    def of(
        cls,
        config: Config,
        triples: np.ndarray,
        num_entities: int,
        num_relations: int,
        entities: np.ndarray | None = None,
        total: int | None = None,
    ) -> Encoding | None:
        """On training triples int[T, 3]; None where the options name no encoder. Raises as `Encoder` and `attributes_of`.

        Of a part of a graph of `total` entities, `entities` int[num_entities] are the numbers that they have there.
        """
        if config.encoder == "none":
            return None
        messages = MessageGraph.of(triples, num_entities, num_relations, inverse=not config.no_inverse)
        attributes = attributes_of(config, num_entities if total is None else total) if config.attributes is not None else None
        return cls(Encoder(config, messages.num_relations, attributes, entities), messages)


def attributes_of(config: Config, num_entities: int) -> NodeAttributes:
    """Those in the folder `--attributes`. Raises OptionError for a folder of several types of nodes, or of another number of
    entities; CheckpointError for one that kgdist-preprocess has not made."""
    found = open_attributes(str(config.attributes))
    if len(found) != 1:
        several = f"{config.attributes} is of several types of nodes ({', '.join(found)}), and triples have one"
        raise OptionError(
            "--attributes", f"{several}; make it of one file with all columns, empty where an entity has no such value"
        )
    (attributes,) = found.values()
    if len(attributes.entities) != num_entities:
        has = f"{config.attributes} is of {len(attributes.entities):,} entities, and {config.dataset} has {num_entities:,}"
        raise OptionError("--attributes", f"{has}; make it by kgdist-preprocess with the data options of this training")
    return attributes
