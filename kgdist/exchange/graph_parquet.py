"""Graphs as Parquet: `<split>.parquet` with columns head, relation, tail of names, and weight if there is one. Any name fits."""

from __future__ import annotations

from pathlib import Path

from kgdist.exchange.folder import durable
from kgdist.exchange.graph import Graph, warn_unused
from kgdist.exchange.graph_text import spelled


def write(graph: Graph, folder: Path) -> None:
    """One row group for each piece; equal names of a row group are stored once."""
    import pyarrow as pa
    from pyarrow import parquet

    warn_unused(graph)
    entities, relations = graph.dataset.entities.take, graph.dataset.relations.take
    for split, triples in graph.dataset.splits.items():
        fields = [pa.field(name, pa.large_string(), nullable=False) for name in ("head", "relation", "tail")]
        if triples.weights is not None:
            fields.append(pa.field("weight", pa.float32(), nullable=False))
        schema = pa.schema(fields)
        with durable(folder / f"{split}.parquet") as file, parquet.ParquetWriter(file, schema) as writer:
            for piece in graph.pieces(split):
                columns = [spelled(graph, piece, place, words) for place, words in enumerate((entities, relations, entities))]
                columns += [] if piece.weights is None else [pa.array(piece.weights)]
                writer.write_batch(pa.record_batch(columns, schema=schema))
