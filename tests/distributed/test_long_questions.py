"""Questions of any length: what owners say in pieces is what one process knows, however many ids and edge types there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kgdist.distributed import long_questions as questions
from kgdist.distributed.current import use
from kgdist.distributed.dist_graph import DistGraph
from kgdist.distributed.remote import Remote
from kgdist.distributed.splits import node_split
from kgdist.distributed.standalone import Standalone
from kgdist.distributed.tensor import DistTensor
from kgdist.graphs.in_memory import Graph, graph, heterograph
from kgdist.graphs.structure import EID, Draw, Question
from kgdist.partition.partition_graph import partition_graph
from tests.distributed.machines import machines

TYPES = [("a", f"r{number}", "ab"[number % 2]) for number in range(70)]
NODES = {"a": 30, "b": 20}


def many_types(count: int = len(TYPES)) -> Graph:
    """More edge types than one answer has room for, with weights."""
    rng = np.random.default_rng(0)
    made = heterograph({etype: tuple(rng.integers(0, NODES[etype[end]], 60) for end in (0, 2)) for etype in TYPES[:count]}, NODES)
    for etype in TYPES[:count]:
        made.edges[etype].data["w"] = torch.from_numpy(rng.random(60))
    return made


@pytest.mark.parametrize("limits", [{}, {"MOST_IDS": 3, "MOST_TYPES": 2}, {"MOST_LETTERS": 100, "AHEAD": 1}], ids=str)
def test_any_number_of_edge_types_and_ids(limits: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in limits.items():
        monkeypatch.setattr(questions, name, most)
    partition_graph(many_types(), "g", 2, tmp_path, part_method="random")
    use(Standalone())
    alone = DistGraph("g", part_config=tmp_path / "g.json")
    rng = np.random.default_rng(1)
    asked = [
        Question(etype, rng.integers(0, NODES[etype[0 if out else 2]], 12), fanout, prob=prob, out=out, exclude=exclude)
        for out in (False, True)
        for fanout, prob, exclude in ((-1, None, None), (2, None, rng.integers(0, 60, 9)), (2, "w", None))
        for etype in (TYPES[:3] if out else TYPES)
    ]
    gone = rng.permutation(60)[:30]  # with the smallest limit more than an owner can be told
    asked += [Question(TYPES[0], np.arange(30), 2, again, prob, False, gone) for again in (False, True) for prob in (None, "w")]
    draw = Draw(3, 1, 0)
    expected = alone.neighbours(asked, draw)
    degrees = [(alone.in_degrees(etype=etype), alone.out_degrees(etype=etype), *alone.edges(etype)) for etype in TYPES[:4]]
    with machines([2, 1]) as storage:
        use(storage)
        there = DistGraph("g", part_config=tmp_path / "g.json")
        for question, answer, other in zip(asked, there.neighbours(asked, draw), expected, strict=True):
            assert all(np.array_equal(one, two) for one, two in zip(answer, other, strict=True)), question
        for etype, known in zip(TYPES, degrees, strict=False):
            found = there.in_degrees(etype=etype), there.out_degrees(etype=etype), *there.edges(etype)
            assert all(torch.equal(one, two) for one, two in zip(found, known, strict=True))
        mask = DistTensor((NODES["a"],), torch.bool, part_policy=there.get_node_partition_policy("a"))
        mask[torch.arange(0, NODES["a"], 2)] = torch.ones(NODES["a"] // 2, dtype=torch.bool)
        assert node_split(mask).tolist() == list(range(0, NODES["a"], 2))
        use(Standalone())


def test_more_ids_than_a_message_holds(tmp_path: Path) -> None:
    """Of one owner: its half of 1.3 million nodes, and as many edges."""
    count = 1_300_000
    sources = np.random.default_rng(0).permutation(count).astype(np.int32)
    partition_graph(graph((sources, np.arange(count, dtype=np.int32)), num_nodes=count), "g", 2, tmp_path, part_method="random")
    use(Standalone())
    alone = DistGraph("g", part_config=tmp_path / "g.json")
    known = alone.in_degrees(), alone.out_degrees(), *alone.edges()
    seeds, gone = torch.arange(0, count, 5), torch.arange(*alone.get_edge_partition_policy().range(1))[1:]
    kept = alone.sample_neighbors(seeds, 2, exclude_edges=gone, seed=0)
    assert count // 10 < kept.num_edges() < count // 9
    with machines([1, 1]) as storage:
        use(storage)
        there = DistGraph("g", part_config=tmp_path / "g.json")
        policy = there.get_node_partition_policy()
        assert policy.get_part_size(1) * 8 > questions.PIECE_BYTES
        found = there.in_degrees(), there.out_degrees(), *there.edges()
        assert all(torch.equal(one, two) for one, two in zip(found, known, strict=True))
        whole = there.in_subgraph(torch.arange(count))
        assert torch.equal(whole.edata[EID].sort().values, torch.arange(count))
        left = there.sample_neighbors(seeds, 2, exclude_edges=gone, seed=0)
        assert torch.equal(left.edata[EID], kept.edata[EID]) and all(map(torch.equal, left.edges(), kept.edges()))
        use(Standalone())


def test_of_the_own_partition_everything_is_asked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks of `node_split` are looked through for each question."""
    monkeypatch.setattr(questions, "MOST_IDS", 3)
    partition_graph(many_types(2), "g", 2, tmp_path, part_method="random")
    asked: list[tuple[int, int]] = []

    def counting(here: Standalone | Remote) -> None:
        ask = here.ask
        monkeypatch.setattr(here, "ask", lambda part, *rest: asked.append((part, len(rest[-1][0]))) or ask(part, *rest))
        use(here)

    counting(Standalone())
    alone = DistGraph("g", part_config=tmp_path / "g.json")
    known = alone.in_degrees(etype=TYPES[0])
    sizes = [alone.get_node_partition_policy("a").get_part_size(part) for part in range(2)]
    assert sorted(asked) == list(enumerate(sizes))
    with machines([1, 1]) as storage:
        counting(storage)
        there = DistGraph("g", part_config=tmp_path / "g.json")
        asked.clear()
        assert torch.equal(there.in_degrees(etype=TYPES[0]), known)
        assert [size for part, size in asked if part == 0] == [sizes[0]]
        assert max(size for part, size in asked if part == 1) == 3
        use(Standalone())
