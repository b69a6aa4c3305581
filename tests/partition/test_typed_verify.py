"""What reading partitions again finds: those whose digests agree and that are wrong all the same, and those of another graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.base.errors import CheckpointError
from kgdist.base.files import sha256
from kgdist.partition.manifest import NAME, Manifest, digest_of, files_of
from kgdist.partition.partition_graph import description, mapping, open_partitions
from kgdist.partition.typed_folder import GraphInCommon
from kgdist.partition.typed_verify import verify_partitions
from tests.partition.typed_worlds import HOMOGENEOUS, communities


def reseal(root: Path, part: int) -> None:
    """Make partition.json of `part` say what its files hold now, and all others, and the graph's file, agree."""
    folders = sorted(root.glob("partition_*"))
    files = [files_of(folder) for folder in folders]
    common = Manifest.read(folders[0], GraphInCommon).common
    sealed = GraphInCommon(*list(vars(common).values())[:-1], tuple(map(digest_of, files)))
    for number, folder in enumerate(folders):
        Manifest(number, sealed, files[number]).write(folder)
    (root / "toy.json").write_text(json.dumps(description(sealed)))
    assert json.loads((folders[part] / NAME).read_text())["files"]["nodes.0.ids.npy"]["sha256"] == sha256(
        folders[part] / "nodes.0.ids.npy"
    )


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("nodes.0.ids.npy", lambda ids: ids * 0 + ids[0], "owned twice"),
        ("nodes.0.ids.npy", lambda ids: ids + 1000, "owns node of type _N .*, and there are 60"),
        ("edges.0.ids.npy", lambda ids: ids * 0 + ids[0], "owned twice"),
        (
            "edges.0.starts.npy",
            lambda starts: np.where(np.arange(len(starts)) == 1, starts[-1] + 5, starts),
            "does not ascend from 0 to",
        ),
        ("edges.0.sources.npy", lambda sources: sources + 60, r"has a node that is not in 0\.\.59"),
        ("edges.0.sources.npy", lambda sources: sources * 0 + 1, "not the nodes that edges lead from|other sizes"),
        ("halo.0.npy", lambda nodes: nodes[::-1].copy(), "not the nodes that edges lead from"),
    ],
)
def test_partitions_that_agree_with_one_another_and_are_wrong_are_found(root: Path, name: str, change: Any, words: str) -> None:
    file = root / "partition_1" / name
    np.save(file, change(np.load(file)))
    reseal(root, 1)
    with pytest.raises(CheckpointError, match=words) as caught:
        verify_partitions(root / "toy.json")
    assert "\n" not in str(caught.value)


def test_another_graph_is_told_from_the_one_that_was_divided(root: Path) -> None:
    world = communities(nodes=60, degree=4)
    with pytest.raises(CheckpointError, match="has other data of _N than the graph: feat"):
        verify_partitions(root / "toy.json", world)
    world.nodes["_N"].data["feat"] = torch.cat([part.node_features["_N"]["feat"] for part in open_partitions(root / "toy.json")])
    with pytest.raises(CheckpointError, match="'feat' of _N is not the graph's"):
        verify_partitions(root / "toy.json", world)
    world.ends[HOMOGENEOUS][0][7] ^= 1
    nodes = mapping(root / "toy.json")[0]
    world.nodes["_N"].data["feat"][nodes] = world.nodes["_N"].data["feat"].clone()
    with pytest.raises(CheckpointError, match="edge 7 of type _N:_E:_N joins other nodes"):
        verify_partitions(root / "toy.json", world)
    with pytest.raises(CheckpointError, match="other numbers of nodes or edges"):
        verify_partitions(root / "toy.json", communities(nodes=61 * 8, degree=4))
