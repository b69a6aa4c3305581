"""Graphs in DGL's chunked format: a metadata.json that names files of edges and of data, opened in bounded memory.

    graph_name            text
    node_type             [name, ...]
    num_nodes_per_chunk   [[nodes in each file of data, ...], one list for each node type]; or num_nodes: [nodes, ...]
    edge_type             ["source:name:destination", ...]
    num_edges_per_chunk   likewise; or num_edges
    edges                 edge type -> {"format": {"name": "csv" | "numpy" | "parquet", "delimiter": " "}, "data": [file, ...]}
    node_data, edge_data  type -> {name: the same}

Files are relative to metadata.json. What is no `.npy` is turned into arrays in a scratch folder, piece by piece; all are mapped,
so that the system keeps of them what there is room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import DataError, KgdistError
from kgdist.base.files import PathLike, read_json
from kgdist.base.log import bar
from kgdist.data.read.arrays import FORMATS, mapped, read_numbers, read_pairs
from kgdist.data.read.lines import check_file
from kgdist.partition.typed_book import SEPARATOR, EdgeType
from kgdist.partition.typed_folder import whole
from kgdist.partition.typed_graph import STORED, Assembled, Column


class _Chunked:
    """A metadata.json, read step by step."""

    def __init__(self, file: Path, scratch: Path) -> None:
        self.file, self.scratch = file, scratch
        self.made = 0  # arrays in the scratch folder
        value = read_json(file)
        if not isinstance(value, dict):
            raise self.wrong("is not a description of a graph")
        self.value: dict[str, Any] = value

    def wrong(self, what: str) -> DataError:
        """The error for this file."""
        return DataError(self.file, what)

    def names(self, key: str) -> list[str]:
        """A list of different names."""
        found = self.value.get(key)
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found) or len({*found}) < len(found):
            raise self.wrong(f"{key}: expected a list of different names")
        return found

    def counts(self, key: str, kinds: Sequence[str]) -> dict[str, int]:
        """How many there are of each of `kinds`: `key`, or the sums of `<key>_per_chunk`."""
        found = self.value.get(key, self.value.get(f"{key}_per_chunk"))
        try:
            listed = [[each] if type(each) is int else list(each) for each in found]  # type: ignore[union-attr]
            counts = list(map(sum, listed))
            if len(counts) != len(kinds) or any(type(count) is not int or count < 0 for each in listed for count in each):
                raise ValueError
        except (TypeError, ValueError) as error:
            raise self.wrong(f"{key}_per_chunk: expected a list of numbers for each type") from error
        return dict(zip(kinds, counts, strict=True))

    def files(self, value: Any, what: str) -> tuple[str, str, list[Path]]:
        """(format, delimiter, files) of edges or of one feature."""
        try:
            kind, files = value["format"]["name"], [self.file.parent / name for name in value["data"]]
            delimiter = value["format"].get("delimiter", " ")
            if not isinstance(value["data"], list):
                raise TypeError
        except (KeyError, TypeError, AttributeError) as error:
            raise self.wrong(f'{what}: expected {{"format": {{"name": ...}}, "data": [file, ...]}}') from error
        if kind not in FORMATS or not isinstance(delimiter, str) or len(delimiter) != 1:
            raise self.wrong(f"{what}: format {kind!r} with delimiter {delimiter!r}; it must be one of {', '.join(FORMATS)}")
        for path in files:
            if kind != "csv" or not path.is_file() or path.stat().st_size:  # a csv file of no rows is empty
                check_file(path, what)
        return kind, delimiter, files

    def room(self, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """An array in the scratch folder."""
        self.made += 1
        if 0 in shape:
            return np.zeros(shape, dtype)
        try:
            return np.asarray(np.memmap(self.scratch / f"{self.made}.bin", dtype, "w+", shape=shape))
        except OSError as error:
            raise KgdistError(f"{self.scratch}: cannot be written ({error.strerror or error}); name another place") from error

    def ends(self, etype: str, count: int, limits: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations of all edges of a type, by id."""
        edges = self.value.get("edges")
        if not isinstance(edges, dict) or etype not in edges:
            raise self.wrong(f"edges: lacks those of type {etype}")
        kind, delimiter, files = self.files(edges[etype], f"edges of {etype}")
        ends = tuple(self.room(whole(limit), (count,)) for limit in limits)
        at = 0
        for path in bar(files, desc=f"reading {etype}", unit=" file"):
            before = at
            for piece in read_pairs(path, kind, delimiter):
                for side, limit in enumerate(limits):
                    strange = (piece[:, side] < 0) | (piece[:, side] >= limit)
                    if strange.any():
                        row, node = at - before + int(strange.argmax()), int(piece[strange.argmax(), side])
                        raise DataError(path, f"there is no node {node}: there are {limit}", line=row + 1)
                if at + len(piece) > count:
                    raise DataError(path, f"more edges of {etype} than the {count} that {self.file.name} states")
                for side, array in enumerate(ends):
                    array[at : at + len(piece)] = piece[:, side]
                at += len(piece)
        if at < count:
            raise self.wrong(f"edges of {etype}: {at} in the files, and {count} by the numbers")
        return ends[0], ends[1]

    def data(self, key: str, kinds: Mapping[str, int]) -> dict[str, dict[str, Column]]:
        """Features of nodes or edges by type and name."""
        found: dict[str, dict[str, Column]] = {kind: {} for kind in kinds}
        given = self.value.get(key) or {}
        if not isinstance(given, dict) or (strange := {*given} - {*kinds}):
            raise self.wrong(f"{key}: of types that there are none of" + (f": {', '.join(sorted(strange))}" if given else ""))
        for kind, features in given.items():
            if not isinstance(features, dict):
                raise self.wrong(
                    f"{key} of {kind}: expected {{name: {{...}}, ...}}, with {{}} for none, not {str(features)[:60]}"
                )
            for name, value in features.items():
                what = f"{key} {name} of {kind}"
                layout, delimiter, files = self.files(value, what)
                arrays = [mapped(path) if layout == "numpy" else self.table(path, layout, delimiter) for path in files]
                found[kind][name] = self.column(arrays, files, kinds[kind], what)
        return found

    def table(self, path: Path, kind: str, delimiter: str) -> np.ndarray:
        """The numbers of a csv or Parquet file as an array in the scratch folder."""
        rows, first = 0, None
        for piece in read_numbers(path, kind, delimiter):
            first, rows = (piece if first is None else first), rows + len(piece)
        if first is None:
            return np.zeros(0, np.float32)
        array, at = self.room(first.dtype, (rows, *first.shape[1:])), 0
        for piece in read_numbers(path, kind, delimiter):
            if piece.dtype != array.dtype or piece.shape[1:] != array.shape[1:]:
                raise DataError(
                    path, f"holds {array.dtype} first and {piece.dtype} after {at} rows: write all alike, as 1.0 for 1"
                )
            array[at : at + len(piece)] = piece
            at += len(piece)
        return array

    def column(self, arrays: Sequence[np.ndarray], files: Sequence[Path], count: int, what: str) -> Column:
        """The rows of several arrays, one after the other."""
        arrays = [array for array in arrays if len(array)] or list(arrays[:1])
        if sum(map(len, arrays)) != count or not arrays:
            raise self.wrong(f"{what}: {sum(map(len, arrays))} rows in the files, and {count} by the numbers")
        first = arrays[0]
        for array, path in zip(arrays, files, strict=False):
            if (array.dtype, array.shape[1:]) != (first.dtype, first.shape[1:]):
                raise DataError(path, f"{what}: {array.dtype}{list(array.shape[1:])} a row, and {first.dtype} in another file")
        if first.dtype.name not in STORED:
            raise DataError(files[0], f"{what}: {first.dtype} cannot be kept: convert it to one of {', '.join(STORED)}")
        return Column(first.dtype.name, first.shape[1:], lambda ids: _take(arrays, ids))


def _take(arrays: Sequence[np.ndarray], ids: np.ndarray) -> np.ndarray:
    """The rows `ids` int64[m] of arrays one after the other."""
    if len(arrays) == 1:
        return np.asarray(arrays[0].take(ids, axis=0))
    starts = np.cumsum([0, *map(len, arrays)])
    which = np.searchsorted(starts[1:], ids, side="right")
    found = np.empty((len(ids), *arrays[0].shape[1:]), arrays[0].dtype)
    for number in np.unique(which):
        here = which == number
        found[here] = arrays[number].take(ids[here] - starts[number], axis=0)
    return found


def open_chunked(metadata: PathLike, scratch: Path) -> tuple[str, Assembled]:
    """(name, graph) of a metadata.json. `scratch` is an empty folder that outlives the graph.

    Raises DataError naming the file, and CheckpointError for a metadata.json that is missing or is no JSON.
    """
    chunked = _Chunked(Path(metadata), scratch)
    name = chunked.value.get("graph_name")
    if not isinstance(name, str):
        raise chunked.wrong("graph_name: expected text")
    ntypes, kinds = chunked.names("node_type"), chunked.names("edge_type")
    nodes, edges = chunked.counts("num_nodes", ntypes), chunked.counts("num_edges", kinds)
    etypes = dict(_apart(chunked, kinds, ntypes))
    ends = {etype: chunked.ends(kind, edges[kind], (nodes[etype[0]], nodes[etype[2]])) for kind, etype in etypes.items()}
    on_nodes, on_edges = chunked.data("node_data", nodes), chunked.data("edge_data", edges)
    return name, Assembled(nodes, ends, on_nodes, {etypes[kind]: found for kind, found in on_edges.items()})


def _apart(chunked: _Chunked, kinds: Sequence[str], ntypes: Sequence[str]) -> Iterator[tuple[str, EdgeType]]:
    """Each edge type as one text and as three."""
    for kind in kinds:
        names = kind.split(SEPARATOR)
        if len(names) != 3 or not {names[0], names[2]} <= set(ntypes):
            raise chunked.wrong(f"edge_type {kind!r}: expected source:name:destination, of the types {', '.join(ntypes)}")
        yield kind, (names[0], names[1], names[2])
