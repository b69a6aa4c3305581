"""Graphs in DGL's chunked format: read as what was written, divided, and refused in one line where they are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from kgdist.base.errors import CheckpointError, DataError, UsageError
from kgdist.cli import partition as command
from kgdist.partition.chunked import open_chunked
from kgdist.partition.partition_graph import open_partitions
from kgdist.partition.typed_verify import verify_partitions
from tests.partition.typed_worlds import World

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def world() -> World:
    rng = np.random.default_rng(0)
    counts = {"author": 30, "paper": 50}
    ends = {etype: (rng.integers(0, counts[etype[0]], 90), rng.integers(0, counts[etype[2]], 90)) for etype in (WRITES, CITES)}
    made = World(ends, counts)
    made.nodes["paper"].data["feat"] = torch.from_numpy(rng.random((50, 3), np.float32))
    made.nodes["paper"].data["year"] = torch.from_numpy(rng.integers(1990, 2020, 50))
    made.nodes["author"].data["known"] = torch.from_numpy(rng.random(30) < 0.5)
    made.edges[WRITES].data["w"] = torch.from_numpy(rng.random(90))
    return made


def cut(array: np.ndarray, *places: int) -> list[np.ndarray]:
    return np.split(array, places)


def save(path: Path, array: np.ndarray, kind: str) -> str:
    """Write a file of a format; its name."""
    path = path.with_suffix({"csv": ".csv", "numpy": ".npy", "parquet": ".parquet"}[kind])
    if kind == "csv":
        np.savetxt(path, array, fmt="%s", delimiter=" ")
    elif kind == "numpy":
        np.save(path, array)
    elif array.ndim == 2 and array.dtype.kind == "f":  # as lists, the other way to write it
        flat = pa.array(array.reshape(-1))
        parquet.write_table(pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, array.shape[1])}), path)
    else:
        columns = (array if array.ndim == 2 else array[:, None]).T
        parquet.write_table(pa.table({f"c{n}": column for n, column in enumerate(columns)}), path)
    return path.name


def write(folder: Path, kind: str, graph: World) -> Path:
    """metadata.json and its files."""
    folder.mkdir(parents=True, exist_ok=True)
    layout = {"name": kind, **({"delimiter": " "} if kind == "csv" else {})}

    def chunks(stem: str, pieces: list[np.ndarray]) -> dict[str, Any]:
        return {"format": layout, "data": [save(folder / f"{stem}-{n}", piece, kind) for n, piece in enumerate(pieces)]}

    value = {
        "graph_name": "mag",
        "node_type": ["author", "paper"],
        "num_nodes_per_chunk": [[10, 20], [25, 25]],
        "edge_type": ["author:writes:paper", "paper:cites:paper"],
        "num_edges_per_chunk": [[40, 50], [90, 0]],
        "edges": {
            "author:writes:paper": chunks("writes", cut(np.stack(graph.ends[WRITES], 1), 40)),
            "paper:cites:paper": chunks("cites", cut(np.stack(graph.ends[CITES], 1), 90)),
        },
        "node_data": {
            "paper": {
                "feat": chunks("feat", cut(graph.nodes["paper"].data["feat"].numpy(), 25)),
                "year": chunks("year", cut(graph.nodes["paper"].data["year"].numpy(), 10, 30)),
            },
            "author": {
                "known": {
                    "format": {"name": "numpy"},
                    "data": [save(folder / "known", graph.nodes["author"].data["known"].numpy(), "numpy")],
                }
            },
        },
        "edge_data": {"author:writes:paper": {"w": chunks("w", cut(graph.edges[WRITES].data["w"].numpy(), 40))}},
    }
    (folder / "metadata.json").write_text(json.dumps(value))
    return folder / "metadata.json"


@pytest.mark.parametrize("kind", ["csv", "numpy", "parquet"])
def test_a_chunked_graph_is_divided_as_the_graph_that_it_is(kind: str, tmp_path: Path) -> None:
    graph = world()
    metadata = write(tmp_path / "in", kind, graph)
    out = tmp_path / "out"
    words = ["--metadata", str(metadata), "-k", "3", "--out", str(out), "--verify", "--quiet"]
    assert command.main(words) == 0
    if kind == "csv":  # has no float32
        graph.nodes["paper"].data["feat"] = graph.nodes["paper"].data["feat"].numpy().astype(str).astype(np.float64)
    verify_partitions(out / "mag.json", graph)
    assert [each.folder.name for each in open_partitions(out / "mag.json")] == ["partition_0", "partition_1", "partition_2"]
    assert {path.name for path in out.iterdir()} == {"mag.json", "partition_0", "partition_1", "partition_2"}
    assert command.main(["--metadata", str(metadata), "--verify", "--out", str(out), "--quiet"]) == 0


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.pop("graph_name"), "graph_name: expected text"),
        (lambda v: v.pop("node_type"), "node_type: expected a list of different names"),
        (lambda v: v["node_type"].append("paper"), "node_type: expected a list of different names"),
        (lambda v: v["num_nodes_per_chunk"].pop(), "num_nodes_per_chunk: expected a list of numbers for each type"),
        (lambda v: v["num_nodes_per_chunk"][0].append(-31), "num_nodes_per_chunk: expected a list of numbers"),
        (lambda v: v["num_nodes_per_chunk"][0].extend([9, -9]), "num_nodes_per_chunk: expected a list of numbers"),
        (lambda v: v["num_nodes_per_chunk"].__setitem__(0, float("inf")), "num_nodes_per_chunk: expected a list of numbers"),
        (lambda v: v["node_data"].update(paper=None), "node_data of paper: expected {name"),
        (lambda v: v["node_data"]["paper"].update(feat=None), "node_data feat of paper: expected"),
        (lambda v: v["edges"]["paper:cites:paper"].update(data="cites-0.npy"), "edges of paper:cites:paper: expected"),
        (lambda v: v["edge_type"].__setitem__(0, "author:writes"), "expected source:name:destination"),
        (lambda v: v["edge_type"].__setitem__(0, "venue:writes:paper"), "of the types author, paper"),
        (lambda v: v["edges"].pop("paper:cites:paper"), "edges: lacks those of type paper:cites:paper"),
        (lambda v: v["edges"]["paper:cites:paper"].pop("format"), "edges of paper:cites:paper: expected"),
        (lambda v: v["edges"]["paper:cites:paper"]["format"].update(name="orc"), "format 'orc'"),
        (lambda v: v["edges"]["paper:cites:paper"]["data"].append("no.npy"), "no.npy"),
        (lambda v: v["edges"]["paper:cites:paper"]["data"].append("writes-0.npy"), "more edges of paper:cites:paper than the 90"),
        (lambda v: v["num_edges_per_chunk"][0].append(1), "90 in the files, and 91 by the numbers"),
        (lambda v: v["num_nodes_per_chunk"].__setitem__(1, [20]), "there is no node"),
        (lambda v: v["num_nodes_per_chunk"][1].append(3), "50 rows in the files, and 53 by the numbers"),
        (lambda v: v["node_data"].update(venue={}), "node_data: of types that there are none of: venue"),
        (lambda v: v["node_data"]["paper"]["feat"]["data"].__setitem__(0, "year-0.npy"), "in another file|rows in the files"),
        (lambda v: v["edges"]["paper:cites:paper"].update(data=["feat-0.npy"]), "expected two columns of integers"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(change: Change, words: str, tmp_path: Path) -> None:
    metadata = write(tmp_path, "numpy", world())
    value = json.loads(metadata.read_text())
    change(value)
    metadata.write_text(json.dumps(value))
    (tmp_path / "scratch").mkdir()
    with pytest.raises(DataError, match=words) as caught:
        open_chunked(metadata, tmp_path / "scratch")
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("csv", b"0 1\n0 1 2\n", "not a readable csv file"),
        ("csv", b"0 x\n", "expected two columns|holds string"),
        ("csv", b"0 1.5\n", "expected two columns of integers"),
        ("csv", b"0 77\n", "there is no node 77: there are 50"),
        ("csv", b"0 -1\n", "there is no node -1"),
        ("parquet", b"PAR1 no", "not a readable parquet file"),
        ("numpy", b"\x93NUMPY no", "not a readable"),
    ],
)
def test_damaged_files_of_edges_are_refused(kind: str, content: bytes, words: str, tmp_path: Path) -> None:
    metadata = write(tmp_path, kind, world())
    next(tmp_path.glob("writes-0.*")).write_bytes(content)
    (tmp_path / "scratch").mkdir()
    with pytest.raises(DataError, match=words) as caught:
        open_chunked(metadata, tmp_path / "scratch")
    assert "\n" not in str(caught.value) and "writes-0" in str(caught.value)


def test_what_fails_leaves_no_folder_behind(tmp_path: Path) -> None:
    metadata = write(tmp_path / "in", "numpy", world())
    next((tmp_path / "in").glob("writes-0.*")).write_bytes(b"no")
    words = ["--metadata", str(metadata), "-k", "2", "--quiet", "--out"]
    assert command.main([*words, str(tmp_path / "new" / "out")]) == 2
    assert not (tmp_path / "new").exists()
    (tmp_path / "there").mkdir()
    assert command.main([*words, str(tmp_path / "there")]) == 2
    assert list((tmp_path / "there").iterdir()) == []  # who made it has it


def test_a_metadata_that_is_none_is_refused(tmp_path: Path) -> None:
    for content in ("[]", "{", "3"):
        (tmp_path / "metadata.json").write_text(content)
        with pytest.raises(UsageError, match="metadata.json"):
            open_chunked(tmp_path / "metadata.json", tmp_path)
    with pytest.raises(CheckpointError, match="no such file"):
        open_chunked(tmp_path / "other.json", tmp_path)
