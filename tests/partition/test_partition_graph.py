"""Partitions of graphs against the graphs: each edge once, with its destination's owner; data and neighbours through the maps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgdist.base import log
from kgdist.base.errors import CheckpointError, KgdistError, OptionError, UsageError
from kgdist.base.files import sha256
from kgdist.partition.balance import merged
from kgdist.partition.folder import Partition
from kgdist.partition.partition_graph import (
    load_partition,
    load_partition_book,
    load_partition_feats,
    mapping,
    open_partitions,
    partition_graph,
)
from kgdist.partition.typed_folder import LocalPartition
from kgdist.partition.typed_verify import verify_partitions
from tests.partition.typed_worlds import HOMOGENEOUS, World, communities, homogeneous, worlds
from tests.partition.worlds import METHODS

laws = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def maps_of(world: World, config: Path) -> tuple[dict[str, np.ndarray], dict[Any, np.ndarray]]:
    """Of every type, also where there is one."""
    nodes, edges = mapping(config)
    if isinstance(nodes, torch.Tensor):
        nodes, edges = {world.ntypes[0]: nodes}, {world.canonical_etypes[0]: edges}  # type: ignore[dict-item]
    assert all(each.dtype == torch.int64 for each in (*nodes.values(), *edges.values()))  # type: ignore[union-attr]
    return {k: v.numpy() for k, v in nodes.items()}, {k: v.numpy() for k, v in edges.items()}  # type: ignore[union-attr]


def reached(world: World, own: dict[str, set[int]], hops: int) -> dict[str, set[int]]:
    """Brute force: nodes that own nodes are reached from within `hops`, in original ids, but own ones."""
    found = {ntype: set(nodes) for ntype, nodes in own.items()}
    for _ in range(hops):
        before = {ntype: set(nodes) for ntype, nodes in found.items()}
        for etype in world.canonical_etypes:
            for source, destination in zip(*world.ends[etype], strict=True):
                if int(destination) in before[etype[2]]:
                    found[etype[0]].add(int(source))
    return {ntype: found[ntype] - own[ntype] for ntype in found}


@pytest.mark.parametrize("method", METHODS)
@laws
@given(world=worlds(), data=st.data())
def test_the_partitions_are_the_graph(
    method: str, world: World, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    total = world.num_nodes()
    parts, hops, trainers = data.draw(st.integers(1, min(5, total))), data.draw(st.integers(0, 3)), data.draw(st.integers(1, 2))
    trainers = trainers if parts * trainers <= total else 1
    root = tmp_path_factory.mktemp("graph")
    arguments = {
        "num_hops": hops,
        "part_method": method,
        "balance_edges": data.draw(st.booleans()),
        "num_trainers_per_machine": trainers,
        "seed": data.draw(st.integers(0, 3)),
    }
    if data.draw(st.booleans()):
        arguments["balance_ntypes"] = {ntype: np.arange(count) % 3 == 0 for ntype, count in world.count.items()}
    partition_graph(world, "toy graph", parts, root, **arguments)
    config = root / "toy graph.json"
    opened = open_partitions(config, verify=True)
    book = opened[0].book
    nodes, edges = maps_of(world, config)
    assert [folder.name for folder in sorted(root.glob("partition_*"))] == [f"partition_{part}" for part in range(parts)]
    for ntype, count in world.count.items():
        assert sorted(nodes[ntype].tolist()) == list(range(count))
    for each in opened:
        assert sum(len(ids) for ids in each.node_ids.values()) > 0  # no partition is empty
        own = {ntype: set(each.node_ids[ntype].tolist()) for ntype in world.ntypes}
        expected = reached(world, own, hops)
        for ntype in world.ntypes:
            assert {int(node) for node in nodes[ntype][each.halo[ntype]]} == expected[ntype]
            assert (np.diff(each.halo[ntype]) > 0).all()
            assert nodes[ntype][slice(*each.range(ntype))].tolist() == each.node_ids[ntype].tolist()
    for etype in world.canonical_etypes:
        sources, destinations = world.ends[etype]
        assert sorted(edges[etype].tolist()) == list(range(world.num_edges(etype)))
        found = []
        for each in opened:
            first, (low, high) = each.range(etype)[0], each.range(etype[2])
            starts, new_sources = each.starts[etype], each.sources[etype]
            assert starts.dtype == np.int64 and new_sources.dtype == np.int32 and len(starts) == high - low + 1
            for row in range(high - low):
                for place in range(starts[row], starts[row + 1]):
                    found.append((nodes[etype[0]][new_sources[place]], nodes[etype[2]][low + row], edges[etype][first + place]))
        assert [edge for _, _, edge in found] == edges[etype].tolist()  # an edge's id is its place
        assert all((sources[edge], destinations[edge]) == (source, destination) for source, destination, edge in found)
        assert len(found) == world.num_edges(etype)
    for each in opened:
        for ntype in world.ntypes:
            for name, values in world.nodes[ntype].data.items():
                there = each.node_features[ntype][name]
                assert there.dtype == values.dtype and torch.equal(there, values[torch.from_numpy(each.node_ids[ntype]).long()])
            if trainers > 1:
                assert (each.node_features[ntype]["trainer_id"] // trainers == each.part).all()
        for etype in world.canonical_etypes:
            values = world.edges[etype].data["w"]
            assert torch.equal(each.edge_features[etype]["w"], values[torch.from_numpy(each.edge_ids[etype]).long()])
            if trainers > 1:  # an edge's trainer is its destination's
                expected_ids = each.node_features[etype[2]]["trainer_id"].repeat_interleave(
                    torch.from_numpy(np.diff(each.starts[etype]))
                )
                assert torch.equal(each.edge_features[etype]["trainer_id"], expected_ids)
    sizes = verify_partitions(config, world).to_json()
    assert sizes == opened[0].manifest.common.sizes
    owner = {ntype: np.searchsorted(book.nodes[ntype][1:], np.argsort(nodes[ntype]), side="right") for ntype in world.ntypes}
    cut = [
        int((owner[s][world.ends[s, e, d][0]] != owner[d][world.ends[s, e, d][1]]).sum()) for s, e, d in world.canonical_etypes
    ]
    assert [sum(row) for row in sizes["cut"]] == cut


@laws
@given(world=worlds(), parts=st.integers(1, 4))
def test_aggregation_over_own_nodes_is_that_of_the_whole_graph(
    world: World, parts: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("graph")
    result = partition_graph(world, "toy", min(parts, world.num_nodes()), root, part_method="random", return_mapping=True)
    assert result is not None
    values = {ntype: np.arange(count) ** 2 + 1.0 for ntype, count in world.count.items()}
    nodes, _ = maps_of(world, root / "toy.json")
    for etype in world.canonical_etypes:
        sources, destinations = world.ends[etype]
        whole = np.bincount(destinations, weights=values[etype[0]][sources], minlength=world.count[etype[2]])
        renumbered = values[etype[0]][nodes[etype[0]]]
        for each in open_partitions(root / "toy.json"):
            rows = np.repeat(np.arange(len(each.starts[etype]) - 1), np.diff(each.starts[etype]))
            sums = np.bincount(rows, weights=renumbered[each.sources[etype]], minlength=len(each.starts[etype]) - 1)
            assert np.array_equal(sums, whole[nodes[etype[2]][slice(*each.range(etype[2]))]])


def test_it_returns_what_dgl_returns(tmp_path: Path) -> None:
    world = communities()
    world.nodes["_N"].data["feat"] = torch.randn(400, 5)
    assert partition_graph(world, "toy", 3, tmp_path) is None
    nodes, edges = partition_graph(world, "toy", 3, tmp_path, return_mapping=True)  # type: ignore[misc]
    assert isinstance(nodes, torch.Tensor) and isinstance(edges, torch.Tensor)
    back = torch.empty(400, 5)
    found = [load_partition_feats(tmp_path / "toy.json", part)[0] for part in range(3)]
    back[nodes] = torch.cat([each["_N/feat"] for each in found if each is not None])
    assert torch.equal(back, world.nodes["_N"].data["feat"])
    loaded = load_partition(tmp_path / "toy.json", 1)
    graph, node_feats, edge_feats, book, name, ntypes, etypes = loaded
    assert isinstance(graph, LocalPartition) and graph.part == book.partid == 1 and name == "toy"
    assert (list(node_feats), edge_feats, ntypes, etypes) == (["_N/feat"], {}, ["_N"], [HOMOGENEOUS])
    assert load_partition(tmp_path / "toy.json", 1, load_feats=False).node_feats == {}
    assert load_partition_book(tmp_path / "toy.json", 2).book.partid == 2
    said = json.loads((tmp_path / "toy.json").read_text())
    assert said["num_parts"] == 3 and said["num_nodes"] == 400 and said["num_edges"] == 3200 and said["halo_hops"] == 1
    assert said["node_map"]["_N"][2][1] == 400 and said["edge_map"]["_N:_E:_N"][0][0] == 0 and said["ntypes"] == {"_N": 0}
    shutil.move(tmp_path, tmp_path.with_name("elsewhere"))  # paths are relative
    verify_partitions(tmp_path.with_name("elsewhere") / "toy.json", world)


@pytest.mark.parametrize("method", METHODS)
def test_classes_and_their_edges_are_evened_out(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.setup()  # a command that another test has called may have been told to be quiet
    world = communities(nodes=2000, degree=10)
    mask = torch.from_numpy(np.random.default_rng(0).random(2000) < 0.1)
    partition_graph(world, "toy", 4, tmp_path, part_method=method, balance_ntypes=mask, balance_edges=True)
    sizes = open_partitions(tmp_path / "toy.json")[0].manifest.common.sizes
    for numbers in (*sizes["class_nodes"], *sizes["class_edges"]):
        assert max(numbers) * 4 / sum(numbers) <= 1.15
    assert [sum(numbers) for numbers in sizes["class_nodes"]] == [int((~mask).sum()), int(mask.sum())]
    assert f"cut: {sum(sizes['cut'][0]):,} of 20,000 edges" in capsys.readouterr().out
    assert method == "random" or sum(sizes["cut"][0]) < 0.3 * 20_000


def test_rare_types_leave_no_partition_empty(tmp_path: Path) -> None:
    """METIS leaves two of four parts empty over two nodes that it is to even out."""
    plain = communities(nodes=200)
    edges = {("a", "to", "a"): plain.edges_of(), ("b", "to", "a"): ([0, 1], [3, 4]), ("c", "of", "c"): ([], [])}
    world = World(edges, {"a": 200, "b": 2, "c": 0})
    for objective in ("cut", "vol"):
        partition_graph(world, "toy", 4, tmp_path, objtype=objective)
        owned = np.diff(open_partitions(tmp_path / "toy.json")[0].book.nodes["a"])
        assert owned.max() <= 1.1 * 50 and verify_partitions(tmp_path / "toy.json", world)


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(1, 8))
def test_classes_with_fewer_members_than_parts_become_one(drawn: list[int], parts: int) -> None:
    classes = np.array(drawn, int) * 7
    kinds = merged(classes, parts)
    assert len(kinds) == len(classes)
    if len(kinds):
        counts = np.bincount(kinds)
        assert counts.min() >= min(parts, len(classes))
        for kind in np.unique(classes):
            assert len(set(kinds[classes == kind])) == 1
            if (classes == kind).sum() >= parts and (np.unique(classes, return_counts=True)[1] >= parts).all():
                assert len(set(classes[kinds == kinds[classes == kind][0]])) == 1


def test_the_answer_depends_on_the_seed_alone(tmp_path: Path) -> None:
    world = communities()
    found = []
    for seed in (0, 0, 1):
        partition_graph(world, "toy", 4, tmp_path / str(len(found)), part_method="random", seed=seed)
        found.append(json.loads((tmp_path / str(len(found)) / "toy.json").read_text())["graph"])
    assert found[0] == found[1] != found[2]


def test_one_partition_keeps_the_ids_of_nodes(tmp_path: Path) -> None:
    nodes, edges = partition_graph(communities(), "toy", 1, tmp_path, return_mapping=True)  # type: ignore[misc]
    assert torch.equal(nodes, torch.arange(400)) and sorted(edges.tolist()) == list(range(3200))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_parts": 0}, "num_parts: must be an integer >= 1"),
        ({"num_parts": 401}, "401 parts of 400 nodes: some would be empty"),
        ({"num_trainers_per_machine": 201}, "402 parts of 400"),
        ({"num_hops": -1}, "num_hops: must be an integer >= 0"),
        ({"part_method": "parmetis"}, "part_method: must be one of metis, streaming, random"),
        ({"objtype": "volume"}, "objtype: must be one of cut, vol"),
        ({"objtype": "vol", "part_method": "random"}, "random knows cut only"),
        ({"graph_name": "../x"}, "is to be the name of a file"),
        ({"graph_formats": ["coo"]}, "graph_formats: partitions are written in kgdist's own format"),
        ({"use_graphbolt": True}, "use_graphbolt: partitions are written in kgdist's own format"),
        ({"balance_ntypes": np.zeros(3, int)}, r"int64\[3\] for 400 nodes of type _N"),
        ({"balance_ntypes": np.zeros(400)}, r"float64\[400\] for 400 nodes"),
        ({"balance_ntypes": {"x": np.zeros(3, int)}}, "there is no node type 'x': there are _N"),
        ({"balance_ntypes": ["a"] * 400}, r"<U1\[400\] for 400 nodes of type _N: give an integer or bool"),
        ({"balance_ntypes": "train_mask"}, "for 400 nodes of type _N: give an integer or bool"),
        ({"balance_edges": "no"}, "balance_edges: must be true or false, not 'no'"),
        ({"num_parts": 2.0}, "num_parts: must be an integer >= 1, not 2.0"),
        ({"num_parts": True}, "num_parts: must be an integer >= 1, not True"),
        ({"seed": -1}, "seed: must be an integer >= 0, not -1"),
        ({"seed": None}, "seed: must be an integer >= 0, not None"),
        ({"graph_name": "x" * 300}, "is to be the name of a file: use at most 128"),
        ({"graph_name": "a/b"}, "'a/b' is to be the name of a file"),
        ({"graph_name": ".."}, "is to be the name of a file"),
        ({"out_path": None}, "out_path: must be a path, not None"),
        ({"g": None}, "a graph is needed, not a NoneType: make one by kgdist.graph"),
        ({"g": ([0], [1])}, "a graph is needed, not a tuple: make one by kgdist.graph"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        partition_graph(**{"g": communities(), "graph_name": "toy", "num_parts": 2, "out_path": tmp_path / "out", **arguments})
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_integers_of_numpy_are_integers(tmp_path: Path) -> None:
    given = {"num_parts": 2, "num_hops": 1, "num_trainers_per_machine": 2, "seed": 3}
    for folder, kind in (("a", int), ("b", np.int64)):
        how: dict[str, Any] = {name: kind(value) for name, value in given.items()}
        partition_graph(communities(), "toy", out_path=tmp_path / folder, part_method="random", **how)
    assert (tmp_path / "a" / "toy.json").read_text() == (tmp_path / "b" / "toy.json").read_text()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (torch.eye(400).to_sparse(), "'x' is sparse, which no partition can hold: give its .to_dense"),
        (np.array(["a"] * 400), "'x' is of str32, which no partition can hold"),
        (["a"] * 400, "'x' is a list that makes no tensor of numbers"),
        (torch.zeros(399), r"'x' has the shape \[399\], but there are 400"),
    ],
)
def test_data_that_cannot_be_kept_is_refused_before_anything_is_divided(
    data: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = communities()
    world.nodes["_N"].data["x"] = data
    monkeypatch.setattr("kgdist.partition.partition_graph.divide", lambda *_, **__: pytest.fail("it was divided"))
    with pytest.raises(UsageError, match=words):
        partition_graph(world, "toy", 2, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_typed_graph_needs_classes_by_type(tmp_path: Path) -> None:
    world = World({("a", "to", "b"): ([0], [0])}, {"a": 1, "b": 1})
    with pytest.raises(UsageError, match="give a dictionary of node type to classes; the types are a, b"):
        partition_graph(world, "toy", 1, tmp_path, balance_ntypes=[0, 1])
    world.nodes["a"].data["x"] = torch.zeros(1, dtype=torch.complex64)
    with pytest.raises(UsageError, match="'x' is of complex64, which no partition can hold"):
        partition_graph(world, "toy", 1, tmp_path)
    world.nodes["a"].data["x"] = torch.zeros(2)
    with pytest.raises(UsageError, match="there are 1 to have a row each"):
        partition_graph(world, "toy", 1, tmp_path)
    world.nodes["a"].data = {"trainer_id": torch.zeros(1)}
    with pytest.raises(UsageError, match="'trainer_id' is the name of data"):
        partition_graph(world, "toy", 1, tmp_path, num_trainers_per_machine=2)


def test_an_edge_between_nodes_that_are_not_there_is_refused(tmp_path: Path) -> None:
    for ends in (([0, 5], [0, 0]), ([0, 0], [0, -1]), ([0, 1 << 40], [0, 1])):
        with pytest.raises(KgdistError, match="id out of range|there is no such node"):
            partition_graph(homogeneous(*ends, 4), "toy", 2, tmp_path, part_method="random")
        with pytest.raises(UsageError, match="edge 1 of type _N:_E:_N, .* there is no such node"):
            partition_graph(homogeneous(*ends, 4), "toy", 1, tmp_path)
    assert not (tmp_path / "toy.json").exists() and not list(tmp_path.glob("partition_*"))


def test_other_things_are_not_replaced(tmp_path: Path) -> None:
    world = communities()
    partition_graph(world, "toy", 2, tmp_path, part_method="random")
    with pytest.raises(OptionError, match="is a partition of the graph 'toy': name another folder for 'other'"):
        partition_graph(world, "other", 2, tmp_path, part_method="random")
    partition_graph(world, "toy", 3, tmp_path, part_method="random")
    assert verify_partitions(tmp_path / "toy.json").total()["edges"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "toy.json").write_text("{}")
    with pytest.raises(OptionError, match="is not the description of partitions"):
        partition_graph(world, "toy", 2, tmp_path / "b", part_method="random")


def test_the_files_are_listed_and_take_what_they_may(root: Path) -> None:
    for each in open_partitions(root / "toy.json"):
        listed = each.files()
        assert listed == {file.name: (file.stat().st_size, sha256(file)) for file in each.folder.iterdir()}
        edges, nodes = len(each.edge_ids[HOMOGENEOUS]), len(each.node_ids["_N"])
        structure = listed["edges.0.starts.npy"][0] + listed["edges.0.sources.npy"][0] - 2 * 128  # headers
        assert structure == 4 * edges + 8 * (nodes + 1)
        assert listed["nodes.0.feature.0.npy"][0] == 128 + 8 * nodes  # of own nodes alone


def test_a_flipped_byte_in_any_file_is_found(root: Path) -> None:
    rng = np.random.default_rng(0)
    for file in [*sorted((root / "partition_1").iterdir()), root / "toy.json"]:
        good = file.read_bytes()
        for place in {0, len(good) // 2, len(good) - 2, *rng.integers(0, len(good), 5).tolist()}:
            damaged = bytearray(good)
            damaged[place] ^= 1 << int(rng.integers(0, 7))
            file.write_bytes(damaged)
            if file.suffix == ".json":
                try:
                    same = json.loads(damaged) == json.loads(good)
                except ValueError:
                    same = False
                if same:
                    continue
            with pytest.raises(UsageError) as caught:
                verify_partitions(root / "toy.json")
            assert file.name in str(caught.value) and "\n" not in str(caught.value)
        file.write_bytes(good)
    verify_partitions(root / "toy.json")


def test_missing_and_foreign_partitions_are_refused_in_one_line(root: Path) -> None:
    with pytest.raises(UsageError, match="no partition 3: there are 3"):
        load_partition(root / "toy.json", 3)
    with pytest.raises(CheckpointError, match="no such file"):
        load_partition(root / "other.json", 0)
    other = root / "other"
    partition_graph(communities(nodes=60, degree=4, seed=1), "toy", 3, other)
    shutil.move(root / "partition_1", root / "aside")
    with pytest.raises(CheckpointError, match="partition_1: no such folder"):
        open_partitions(root / "toy.json")
    shutil.copytree(other / "partition_1", root / "partition_1")
    with pytest.raises(CheckpointError, match="partition_1: is partition 1 of graph .*, but .*json names partition 1"):
        load_partition(root / "toy.json", 1)
    shutil.rmtree(root / "partition_1")
    shutil.copytree(root / "partition_0", root / "partition_1")
    with pytest.raises(CheckpointError, match="partition_1: is partition 0 of graph .*, but .*json names partition 1"):
        load_partition(root / "toy.json", 1)
    with pytest.raises(CheckpointError, match="a partition of a graph, which DistGraph opens; wanted is one of triples"):
        Partition.open(root / "partition_0")
    (root / "partition_0" / "halo.0.npy").unlink()
    with pytest.raises(CheckpointError, match=r"halo\.0\.npy: missing"):
        load_partition(root / "toy.json", 0)
