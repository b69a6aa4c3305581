"""Embeddings as one safetensors file: eight bytes of length, a header of JSON, the numbers.

Written here rather than by the library of that name, which wants every table in memory and again in bytes; the format is four
lines (github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from kgdist.exchange.folder import durable
from kgdist.exchange.source import Source


def write(source: Source, folder: Path) -> None:
    """`embeddings.safetensors`: tensors F32 by table; model, sizes and the meaning of columns in its metadata, all of it text."""
    about = source.about()
    facts = {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in about.items()}
    header: dict[str, Any] = {"__metadata__": facts}
    offset = 0
    for name, rows in source.tables.items():
        header[name] = {"dtype": "F32", "shape": list(rows.shape), "data_offsets": [offset, offset + rows.nbytes]}
        offset += rows.nbytes
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of eight
    with durable(folder / "embeddings.safetensors") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for table in source.tables:
            for rows in source.blocks(table):
                file.write(rows.astype("<f4", copy=False).data)
