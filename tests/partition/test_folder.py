"""Partition folders against the data set they are made of: each triple once, with its tail's owner, and everything leads back."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgdist.base.errors import CheckpointError, KgdistError, OptionError
from kgdist.base.files import sha256
from kgdist.base.types import Side
from kgdist.data import statistics
from kgdist.data.known import KnownTriples
from kgdist.data.statistics import relation_categories
from kgdist.kernels.route import owners
from kgdist.partition import write
from kgdist.partition.folder import Partition
from kgdist.partition.manifest import numbered
from kgdist.partition.verify import open_all, same_answers, verify
from tests.partition.worlds import BALANCES, METHODS, communities, dataset, graphs, partitioned

laws = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


def multiset(triples: np.ndarray, weights: np.ndarray | None = None) -> list[tuple[float, ...]]:
    rows = triples.tolist() if weights is None else np.column_stack([triples, weights]).tolist()
    return sorted(map(tuple, rows))


@laws
@given(
    method=st.sampled_from(METHODS),
    graph=graphs(),
    parts=st.integers(1, 6),
    balance=st.sampled_from(BALANCES),
    data=st.data(),
)
def test_the_partitions_are_the_graph(
    method: str,
    graph: tuple[int, int, np.ndarray],
    parts: int,
    balance: str,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    entities, relations, train = graph
    parts = min(parts, entities)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    splits = [rng.integers(0, [entities, relations, entities], (size, 3)).astype(np.int32) for size in (3, 4)]
    weights = rng.random(len(train)).astype(np.float32) + 0.5 if data.draw(st.booleans()) else None
    folder = tmp_path_factory.mktemp("graph")
    world = dataset(folder, train, *splits, entities=entities, relations=relations, weights=weights)
    weights = world.train.weights
    root = folder / "parts"
    folders = partitioned(world, root, parts, method=method, balance=balance)
    assert folders == numbered(root) == [root / f"partition_{part}" for part in range(parts)]
    opened = open_all(root, verify=True)
    book = opened[0].book
    original = np.concatenate([partition.entities for partition in opened])  # original id by new id
    links = np.concatenate([partition.relations for partition in opened])
    assert sorted(original.tolist()) == list(range(entities)) and sorted(links.tolist()) == list(range(relations))
    assert (links == book.original_relations()).all()
    back, back_weights = [], []
    for part, partition in enumerate(opened):
        own = partition.train.array
        assert partition.part == part and partition.book == book and partition.graph == opened[0].graph
        assert own.dtype == np.int32 and (owners(book.entities, own[:, 2]) == part).all()
        back.append(np.stack([original[own[:, 0]], links[own[:, 1]], original[own[:, 2]]], axis=1))
        assert (partition.train.weights is None) == (weights is None)
        back_weights.append(partition.train.weights)
    if weights is None:
        assert multiset(np.concatenate(back)) == multiset(train)
    else:
        assert multiset(np.concatenate(back), np.concatenate(back_weights)) == multiset(train, weights)
    everything = [world.train.array, *splits]
    for name, split in zip(("valid", "test"), splits, strict=True):
        for partition in opened:
            there = partition.splits[name].array
            assert (np.stack([original[there[:, 0]], links[there[:, 1]], original[there[:, 2]]], axis=1) == split).all()
        known, whole = opened[-1].known(name), KnownTriples.build(everything, entities, relations)
        for side in Side:
            anchors, wanted = side.other.pick(there[:, 0], there[:, 2]), side.other.pick(split[:, 0], split[:, 2])
            offsets, ids = known.answers(side, anchors, there[:, 1])
            expected_offsets, expected = whole.answers(side, wanted, split[:, 1])
            assert (offsets == expected_offsets).all()
            for begin, end in itertools.pairwise(offsets):
                assert sorted(original[ids[begin:end]].tolist()) == expected[begin:end].tolist()
    assert (opened[0].categories() == relation_categories(train, relations)).all()
    names = opened[0].vocabularies()
    assert list(names[0]) == list(world.entities) and list(names[1]) == list(world.relations)
    sizes = opened[0].manifest.common.sizes
    assert sizes["halo"] == [len(set(t[:, 0]) - set(range(book.entities[p], book.entities[p + 1]))) for p, t in enumerate(
        partition.train.array for partition in opened)]  # fmt: skip
    assert sizes["cut"] == sum(int((owners(book.entities, p.train.array[:, 0]) != p.part).sum()) for p in opened)
    assert sizes["relations"] == [len(np.unique(p.train.array[:, 1])) for p in opened]
    assert verify(root, world)[1].to_json() == sizes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three partitions with weights, valid and test."""
    train = communities(entities=60, degree=4)
    world = dataset(
        tmp_path / "graph", train, train[:5], train[5:9], entities=60, relations=5, weights=np.ones(len(train), np.float32)
    )
    partitioned(world, tmp_path / "parts", 3)
    return tmp_path / "parts"


def world_of(root: Path) -> write.Dataset:
    train = communities(entities=60, degree=4)
    return dataset(
        root.parent / "graph", train, train[:5], train[5:9], entities=60, relations=5, weights=np.ones(len(train), np.float32)
    )


def test_the_files_are_listed_with_their_sizes_and_hashes(root: Path) -> None:
    for folder in numbered(root):
        listed = Partition.open(folder).files()
        assert listed == {file.name: (file.stat().st_size, sha256(file)) for file in folder.iterdir()}
        assert ("entity.names.npy" in listed) == (folder.name == "partition_0")


def test_a_flipped_byte_in_any_file_is_found(root: Path) -> None:
    rng = np.random.default_rng(0)
    for folder in numbered(root)[:2]:
        for file in sorted(folder.iterdir()):
            good = file.read_bytes()
            places = rng.integers(0, len(good), 12 if file.name == "partition.json" else 3).tolist()
            for place in {0, len(good) // 2, len(good) - 1, *places}:
                damaged = bytearray(good)
                damaged[place] ^= 1 << int(rng.integers(0, 8))
                file.write_bytes(damaged)
                if file.name == "partition.json" and same(good, bytes(damaged)):
                    continue  # JSON means the same
                with pytest.raises(CheckpointError) as caught:
                    Partition.open(folder, verify=True)
                assert str(file) in str(caught.value) and "\n" not in str(caught.value)
            file.write_bytes(good)
        Partition.open(folder, verify=True)


def same(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_a_file_that_is_cut_missing_or_strange_is_found(root: Path) -> None:
    folder = root / "partition_1"
    for file in sorted(folder.iterdir()):
        good = file.read_bytes()
        for bad in (good[:-3], good + b"\0", b""):
            file.write_bytes(bad)
            with pytest.raises(CheckpointError, match=file.name):
                Partition.open(folder)
        file.unlink()
        with pytest.raises(CheckpointError, match=file.name):
            Partition.open(folder)
        file.write_bytes(good)
    (folder / "more.npy").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"more\.npy: not a file of this partition"):
        Partition.open(folder, verify=True)


def rehashed(folder: Path, change: Callable[[Path], None]) -> None:
    """Change a file and make partition.json of all folders say so: what only a comparison with the data set can find."""
    change(folder)
    root = folder.parent
    manifests = [Partition.open(other).manifest if other != folder else None for other in numbered(root)]
    common = next(manifest for manifest in manifests if manifest).common
    files = [write.files_of(other) for other in numbered(root)]
    common = write.Common(**{**vars(common), "contents": tuple(map(write.digest_of, files))})
    for part, other in enumerate(numbered(root)):
        write.Manifest(part, common, files[part]).write(other)


def edited(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, change(np.load(folder / name, allow_pickle=False)), allow_pickle=False)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("train.npy", lambda rows: rows[[1, 0, *range(2, len(rows))]]),
        ("train.npy", lambda rows: np.concatenate([rows[:-1], rows[:1]])),
        ("train.weights.npy", lambda weights: weights + np.float32(1)),
        ("valid.npy", lambda rows: rows[::-1]),
        ("entities.npy", lambda ids: ids[::-1]),
        ("entities.npy", lambda ids: (ids + 1) % 60),
        ("relations.npy", lambda ids: ids[::-1] + 1),
        ("test.known.tail.ids.npy", lambda ids: (ids + 1) % 60),
        ("categories.npy", lambda codes: (codes + 1) % 4),
        ("entity.names.npy", lambda letters: letters[::-1]),
    ],
)
def test_verify_finds_what_hashes_cannot(root: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    world = world_of(root)
    verify(root, world)
    rehashed(root / "partition_0", edited(name, change))
    open_all(root, verify=True)
    with pytest.raises(CheckpointError, match="partition_0|parts"):
        verify(root, world)


def test_partitions_of_other_graphs_and_mixtures_are_refused(root: Path, tmp_path: Path) -> None:
    world = world_of(root)
    other = dataset(tmp_path / "other", communities(entities=60, degree=4, seed=1), entities=60, relations=5)
    with pytest.raises(CheckpointError, match="another graph"):
        verify(root, other)
    partitioned(world, tmp_path / "again", 3, seed=1)
    shutil.rmtree(root / "partition_1")
    with pytest.raises(CheckpointError, match="partition_1 is missing"):
        open_all(root)
    shutil.copytree(tmp_path / "again" / "partition_1", root / "partition_1")
    with pytest.raises(CheckpointError, match="another partitioning"):
        open_all(root)
    shutil.rmtree(root / "partition_1")
    shutil.copytree(root / "partition_2", root / "partition_1")
    with pytest.raises(CheckpointError, match="partition_1 is missing or another's"):
        open_all(root)
    with pytest.raises(CheckpointError, match="has no folders"):
        open_all(tmp_path / "other")
    with pytest.raises(CheckpointError, match="no such folder"):
        Partition.open(tmp_path / "nowhere")


def test_a_newer_format_and_other_json_are_refused(root: Path) -> None:
    file = root / "partition_0" / "partition.json"
    value = json.loads(file.read_text())
    for change in ({"format": 2}, {"format": "1"}, {"part": 7}, {"part": True}, {"files": []}, {"common": {}}, {"more": 1}):
        file.write_text(json.dumps({**value, **change}))
        with pytest.raises(CheckpointError, match=r"partition\.json"):
            Partition.open(root / "partition_0")
    for text in ("[]", "{}", "", "null", '{"format": 1}'):
        file.write_text(text)
        with pytest.raises(CheckpointError, match=r"partition\.json"):
            Partition.open(root / "partition_0")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.lists(st.integers(0, 11), min_size=1, max_size=4), value=VALUES)
def test_any_value_in_partition_json_is_read_or_refused_on_purpose(root: Path, path: list[int], value: object) -> None:
    file = root / "partition_0" / "partition.json"
    if not (good := root / "good.json").exists():
        good.write_bytes(file.read_bytes())
    whole = json.loads(good.read_text())
    at: Any = whole
    for place in path[:-1]:  # go down as far as there is something
        inner = list(at.values() if isinstance(at, dict) else at)
        if not inner or not isinstance(inner[place % len(inner)], (dict, list)) or not inner[place % len(inner)]:
            break
        at = inner[place % len(inner)]
    key = list(at)[path[-1] % len(at)] if isinstance(at, dict) else path[-1] % len(at)
    equal = at[key] == value  # 1, 1.0 and true are equal, and mean the same where they are not refused
    at[key] = value
    file.write_text(json.dumps(whole))
    try:
        Partition.open(file.parent)
    except CheckpointError as error:
        assert "partition_0" in str(error) and "\n" not in str(error)
    else:
        assert equal


def test_names_and_categories_are_asked_of_partition_0(root: Path) -> None:
    second = Partition.open(root / "partition_1")
    for ask in (second.vocabularies, second.categories):
        with pytest.raises(CheckpointError, match="in partition_0 only"):
            ask()
    for split in ("train", "more"):
        with pytest.raises(CheckpointError, match="no split"):
            second.known(split)


def test_old_partitions_go_when_the_new_are_complete_and_not_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(root)
    before = {str(file): file.read_bytes() for file in root.rglob("*") if file.is_file()}

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(write, "files_of", full)
        with pytest.raises(KgdistError, match="No space left on device.*unchanged"):
            partitioned(world, root, 2)
    assert {str(file): file.read_bytes() for file in root.rglob("*") if file.is_file()} == before
    rename, count = Path.rename, iter(range(100))

    def some(path: Path, target: Path) -> Path:
        if next(count) == 4:  # three old ones are aside, one new one has its name
            raise OSError(5, "Input/output error")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", some)
        with pytest.raises(KgdistError, match="Input/output error"):
            partitioned(world, root, 2)
    assert {str(file): file.read_bytes() for file in root.rglob("*") if file.is_file()} == before
    partitioned(world, root, 2)
    assert sorted(path.name for path in root.iterdir()) == ["partition_0", "partition_1"]
    verify(root, world)


def test_what_a_killed_writer_left_goes_with_the_next_one(root: Path) -> None:
    child = os.fork()
    if child == 0:
        with write.staged(root, 2):
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL and len(list(root.glob(".partition_*.tmp"))) == 2
    before = numbered(root)
    with pytest.raises(RuntimeError), write.staged(root, 1):
        assert len(list(root.glob(".partition_*"))) == 1  # its own
        raise RuntimeError
    assert not list(root.glob(".partition_*")) and numbered(root) == before


def test_folders_of_something_else_are_not_replaced(root: Path) -> None:
    world = world_of(root)
    (root / "partition_7").mkdir()
    partitioned(world, root, 2)  # an empty one is in nobody's way
    (root / "partition_7").mkdir()
    (root / "partition_7" / "local_to_global.txt").write_text("0\n")
    with pytest.raises(OptionError, match=r"^--out: .*partition_7 is there already, and such text partitions"):
        partitioned(world, root, 2)
    (root / "partition_7" / "local_to_global.txt").rename(root / "partition_7" / "thesis.tex")
    with pytest.raises(OptionError, match="folders of something else"):
        partitioned(world, root, 2)
    assert (root / "partition_7" / "thesis.tex").exists()


def test_without_splits_to_evaluate_there_are_no_filters(tmp_path: Path) -> None:
    world = dataset(tmp_path / "graph", np.array([[0, 0, 1], [1, 1, 2], [2, 0, 0]], np.int32), entities=3, relations=2)
    partitioned(world, tmp_path / "parts", 2)
    opened, _ = verify(tmp_path / "parts", world)
    assert set(opened[0].splits) == {"train"}
    assert not any("known" in name for name in opened[0].files())


def test_categories_in_pieces_are_those_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    train = communities(entities=50, relations=9)
    expected = relation_categories(train, 11)
    monkeypatch.setattr(statistics, "AT_ONCE", 37)
    monkeypatch.setattr(statistics, "PIECE", 10)
    assert (relation_categories(train, 11) == expected).all()


def test_a_filter_of_other_answers_is_told(root: Path) -> None:
    triples = np.array([[0, 0, 1], [0, 0, 2]], np.int32)
    one, other = KnownTriples.build([triples], 3, 1), KnownTriples.build([triples[:1]], 3, 1)
    assert same_answers(one, one, triples) and not same_answers(one, other, triples)
