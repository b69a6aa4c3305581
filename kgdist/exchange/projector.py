"""Files for the TensorFlow Embedding Projector: vectors without a header, and their labels, one column, without a header, either.

Two ways to look: load a pair by hand at the projector's page, or `tensorboard --logdir FOLDER` (it has projector_config.pbtxt).
(tensorflow.org, "Visualizing data using the Embedding Projector in TensorBoard": labels of one column have no header, and of more
columns do; so a tab in a name, which would make a second column, becomes a blank.)
"""

from __future__ import annotations

from pathlib import Path

from kgdist.exchange.folder import durable
from kgdist.exchange.lines import lines_of
from kgdist.exchange.source import Source


def write(source: Source, folder: Path) -> None:
    """`<table>_vectors.tsv` and `<table>_metadata.tsv` for each table, and projector_config.pbtxt."""
    config = []
    for table in source.tables:
        vectors, labels = f"{table}_vectors.tsv", f"{table}_metadata.tsv"
        with durable(folder / vectors) as numbers, durable(folder / labels) as words:
            for names, rows in source.named_blocks(table):
                numbers.write(lines_of(rows, "\t"))
                words.write("".join(name.replace("\t", " ") + "\n" for name in names).encode())
        fields = {"tensor_name": table, "tensor_path": vectors, "metadata_path": labels}
        config.append("embeddings {\n" + "".join(f'  {key}: "{value}"\n' for key, value in fields.items()) + "}\n")
    with durable(folder / "projector_config.pbtxt") as file:
        file.write("".join(config).encode())
