"""Embeddings as Parquet: a file for entities and one for relations, a row for each, vectors as lists of one length."""

from __future__ import annotations

from pathlib import Path

from kgdist.exchange.folder import durable
from kgdist.exchange.source import Source


def write(source: Source, folder: Path) -> None:
    """`entity.parquet`, `relation.parquet`: columns id (int64), name (string), and each table as a list of float32.

    TransR's projections are one more column of relation.parquet. Float bits do not compress, so they are stored as they are.
    """
    import pyarrow as pa
    from pyarrow import parquet

    for kind in source.names:
        tables = [table for table in source.tables if source.kind(table) == kind]
        vectors = {"embedding" if table == kind else table: source.tables[table].shape[1] for table in tables}
        lists = [pa.field(name, pa.list_(pa.float32(), width)) for name, width in vectors.items()]
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), *lists])
        facts = {key: str(value) for key, value in source.about().items() if key != "tables"}
        packed = {"id": "snappy", "name": "snappy"}
        facts |= {f"columns of {name}": source.columns(table) for name, table in zip(vectors, tables, strict=True)}
        with (
            durable(folder / f"{kind}.parquet") as file,
            parquet.ParquetWriter(file, schema.with_metadata(facts), compression=packed, use_dictionary=False) as writer,
        ):
            start = 0
            for (names, first), *others in zip(
                source.named_blocks(tables[0]), *(source.blocks(table) for table in tables[1:]), strict=True
            ):
                columns = [pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1]) for rows in (first, *others)]
                ids = pa.array(range(start, start + len(names)), pa.int64())
                writer.write_batch(pa.record_batch([ids, pa.array(names, pa.string()), *columns], schema=schema))
                start += len(names)
