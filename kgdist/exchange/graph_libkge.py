"""Graphs in the layout of LibKGE's data folders (github.com/uma-pi1/kge, data/preprocess): names in train.txt and its kin, ids
in train.del and its kin, the names of the ids in entity_ids.del and relation_ids.del, and dataset.yaml on all of them.

Not written are the splits that its script derives besides (train_sample, valid_without_unseen, ...): no training needs them.
"""

from __future__ import annotations

import json
from pathlib import Path

from kgdist.exchange.folder import durable
from kgdist.exchange.graph import Graph, refuse_weights
from kgdist.exchange.graph_text import digits, names, write_dictionary, write_names, write_split


def write(graph: Graph, folder: Path) -> None:
    """The folder; put it below LibKGE's data/ and name it by dataset.name."""
    refuse_weights(graph, "libkge")
    dataset = graph.dataset
    write_dictionary(folder / "entity_ids.del", dataset.entities, "\t")
    write_dictionary(folder / "relation_ids.del", dataset.relations, "\t")
    write_names(Graph(dataset, graph.files, graph.header), folder, names)
    facts: dict[str, object] = {}
    for kind in ("entity_ids", "relation_ids"):
        facts |= {f"files.{kind}.filename": f"{kind}.del", f"files.{kind}.type": "map"}
    for split, triples in dataset.splits.items():
        write_split(graph, split, folder / f"{split}.del", (digits, digits, digits), "hrt", "\t")
        own = {"filename": f"{split}.del", "size": len(triples), "split_type": split, "type": "triples"}
        facts |= {f"files.{split}.{key}": value for key, value in own.items()}
    facts |= {"name": dataset.name, "num_entities": len(dataset.entities), "num_relations": len(dataset.relations)}
    with durable(folder / "dataset.yaml") as file:  # a string of JSON is one of YAML
        lines = [f"  {key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in facts.items()]
        file.write(("dataset:\n" + "".join(lines)).encode())
