"""The storage: what is sent comes back, whole or not at all, and what is wrong is told in one line."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from kgdist.base.errors import CheckpointError, KgdistError, OptionError
from kgdist.options.config import Config
from kgdist.partition.folder import Partition
from kgdist.partition.manifest import folder_of
from kgdist.runs import checkpoint, rundir
from kgdist.runtime.storage import Storage
from tests.partition.worlds import communities, dataset, partitioned


def storage_of(address: Path | str) -> Storage:
    found = Storage.of(Config(storage=str(address)))
    assert found is not None
    return found


@pytest.fixture(params=["{}", "file://{}"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A folder, by its path and by an address."""
    return storage_of(request.param.format(tmp_path / "shared"))


@pytest.fixture(params=["folder", "objects"])
def any_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A folder, and a file system without any, as buckets are."""
    if request.param == "folder":
        yield storage_of(tmp_path / "shared")
        return
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield Storage("memory://shared", files, "/shared")
    files.store.clear()


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """The folder of a data set in two partitions."""
    graph = dataset(tmp_path / "graph", communities(), entities=400, relations=5)
    return partitioned(graph, tmp_path / "here" / "toy", 2)[0].parent


def saved(place: Path, step: int, name: str | None = None, value: float = 0.0) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    arrays = {"entity": np.full((50, 4), step + value, np.float32), "entity.sum": np.zeros((50, 1), np.float32)}
    return checkpoint.save(place, step, arrays, {"stamp": "a:0"}, name=name, keep=0)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_partitions_come_back(any_storage: Storage, parts: Path, tmp_path: Path) -> None:
    for number in (0, 1):
        partition, moved = Partition.open(folder_of(parts, number)), [0]
        files = partition.files()
        assert any_storage.send_partition(partition.folder, files, lambda count, moved=moved: moved.append(count))  # type: ignore[misc]
        assert sum(moved) == sum(size for size, _ in files.values())
        assert not any_storage.send_partition(partition.folder, files), "it is there already"
        there = folder_of(tmp_path / "there" / "toy", number)
        any_storage.fetch_partition(there, partition.graph)
        assert content(there) == content(partition.folder)
        assert Partition.open(there, verify=True).graph == partition.graph
        count: list[int] = []
        any_storage.fetch_partition(there, None, count.append)
        assert not count, "it is here already"


def test_a_fetch_goes_on_and_repairs(storage: Storage, parts: Path, tmp_path: Path) -> None:
    partition = Partition.open(folder_of(parts, 0))
    storage.send_partition(partition.folder, partition.files())
    there = folder_of(tmp_path / "there" / "toy", 0)
    storage.fetch_partition(there, partition.graph)
    victim = max(there.glob("*.npy"), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    moved: list[int] = []
    storage.fetch_partition(there, partition.graph, moved.append)
    assert content(there) == content(partition.folder) and sum(moved) == len(data)


def test_partitions_that_are_not_what_is_wanted(storage: Storage, parts: Path, tmp_path: Path) -> None:
    partition = Partition.open(folder_of(parts, 0))
    there = folder_of(tmp_path / "there" / "toy", 0)
    with pytest.raises(CheckpointError, match=r"partitions/toy/partition_0/partition.json: is not there; send .* with --copy"):
        storage.fetch_partition(there, None)
    storage.send_partition(partition.folder, partition.files())
    with pytest.raises(CheckpointError, match=f"is of a graph {partition.graph[:12]}, not {'b' * 12}"):
        storage.fetch_partition(there, "b" * 64)
    inside = tmp_path / "shared" / "partitions" / "toy" / "partition_0"
    victim = max(inside.glob("*.npy"), key=lambda path: path.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match=f"{victim.name}: has changed since it was written"):
        storage.fetch_partition(there, partition.graph)
    assert not (there / "partition.json").exists(), "no half of a partition looks like one"
    victim.unlink()
    with pytest.raises(KgdistError, match=victim.name):
        storage.fetch_partition(there, partition.graph)
    (inside / "partition.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not a manifest of a partition"):
        storage.fetch_partition(there, partition.graph)


def test_checkpoints_come_back(any_storage: Storage, tmp_path: Path) -> None:
    here, there = (tmp_path / name / "run_0" / "machine_1" for name in ("here", "there"))
    assert any_storage.checkpoints(here) == [] and any_storage.runs() == []
    for step in (100, 200):
        any_storage.send_checkpoint(saved(here, step))
    any_storage.send_checkpoint(saved(here, 200, "best-200"))
    assert any_storage.runs() == ["run_0"]
    assert [(each.step, each.path.name, each.meta["stamp"]) for each in any_storage.checkpoints(there)] == [
        (200, "ckpt-200", "a:0"),
        (100, "ckpt-100", "a:0"),
    ]
    for name in ("ckpt-200", "best-200"):
        any_storage.fetch_checkpoint(there / name)
        assert content(there / name) == content(here / name)
        checkpoint.load(there / name)
    moved: list[int] = []
    any_storage.fetch_checkpoint(there / "ckpt-200", moved.append)
    assert not moved, "it is here already"
    saved(there, 200, value=0.5)  # of another attempt, which never was whole everywhere
    any_storage.fetch_checkpoint(there / "ckpt-200", moved.append)
    assert moved and content(there / "ckpt-200") == content(here / "ckpt-200")
    any_storage.keep(here, {"ckpt-200"})
    assert [each.step for each in any_storage.checkpoints(here)] == [200]
    assert not any_storage.fetch_checkpoint(there / "best-200")
    whole = content(there / "ckpt-200")
    (there / "ckpt-200" / "entity.npy").write_bytes(b"damaged")
    assert any_storage.fetch_checkpoint(there / "ckpt-200"), "its manifest is as it should be"
    assert any_storage.fetch_checkpoint(there / "ckpt-200", anew=True) and content(there / "ckpt-200") == whole


def test_a_run_is_kept_by_whoever_claimed_it_last(any_storage: Storage) -> None:
    any_storage.claim("run_0", "one")
    any_storage.check_claim("run_0", "one")
    assert any_storage.runs() == ["run_0"]
    any_storage.claim("run_0", "two")
    any_storage.check_claim("run_0", "two")
    with pytest.raises(KgdistError, match="runs/run_0: was begun or gone on with by another launcher since"):
        any_storage.check_claim("run_0", "one")
    any_storage.check_claim("run_1", "one")  # of a storage that was emptied
    assert any_storage.runs() == ["run_0", "run_1"]


def test_a_checkpoint_that_was_not_sent_whole_is_none(storage: Storage, tmp_path: Path) -> None:
    here = tmp_path / "here" / "run_0" / "machine_0"
    storage.send_checkpoint(saved(here, 100))
    path = saved(here, 200)
    (path / "manifest.json").unlink()  # with which the sending ends
    with pytest.raises(KgdistError, match="manifest.json"):
        storage.send_checkpoint(path)
    inside = tmp_path / "shared" / "runs" / "run_0" / "machine_0"
    assert (inside / "ckpt-200" / "entity.npy").exists()
    assert [each.step for each in storage.checkpoints(here)] == [100]
    manifest = json.loads((inside / "ckpt-100" / "manifest.json").read_text())
    (inside / "ckpt-100" / "manifest.json").write_text(json.dumps(manifest | {"step": 99}))
    assert storage.checkpoints(here) == []
    with pytest.raises(CheckpointError, match="has changed"):
        storage.fetch_checkpoint(tmp_path / "there" / "run_0" / "machine_0" / "ckpt-100")


def test_files_of_a_run(storage: Storage, tmp_path: Path) -> None:
    here, there = tmp_path / "here" / "run_0", tmp_path / "there" / "run_0"
    saved(here / "machine_0", 100)
    for name, text in (("config.json", "{}"), ("metrics.jsonl", "one\ntwo\n"), ("toy_entity.npy", "rows")):
        (here / name).write_text(text)
    storage.send_run(here, suffixes=(".json", ".jsonl"))
    inside = tmp_path / "shared" / "runs" / "run_0"
    assert sorted(path.name for path in inside.iterdir()) == ["config.json", "metrics.jsonl"]
    storage.send_run(here)
    assert (inside / "toy_entity.npy").read_text() == "rows"
    storage.fetch_run(there, ("metrics.jsonl", "nothing"))
    assert [path.name for path in there.iterdir()] == ["metrics.jsonl"]
    (there / "metrics.jsonl").write_text("one\ntwo\nthree\n")
    storage.fetch_run(there, ("metrics.jsonl",))
    assert (there / "metrics.jsonl").read_text() == "one\ntwo\nthree\n", "what is here is longer"


def test_the_names_of_runs_there_are_taken(tmp_path: Path) -> None:
    assert rundir.create(tmp_path, "TransE_toy", ["TransE_toy_4", "RotatE_toy_9"]).name == "TransE_toy_5"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("s3://me:secret@bucket/x", "holds a password"),
        ("simplecache::s3://me:secret@bucket/x", "holds a password"),
        ("simplecache::memory://x", "memory:// is seen by one process only"),
        ("memory://x", "memory:// is seen by one process only"),
        ("nonsense://x", "nonsense"),
    ],
)
def test_addresses_that_are_refused(address: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        Storage.of(Config(storage=address))
    assert "\n" not in str(raised.value) and "secret" not in str(raised.value)


def test_a_file_system_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(OptionError, match="s3fs"):
        Storage.of(Config(storage="s3://bucket/x"))


def test_a_storage_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("a file")
    path = saved(tmp_path / "here" / "run_0" / "machine_0", 100)
    with pytest.raises(KgdistError, match=r"--storage .*shared/runs/run_0/machine_0/ckpt-100: "):
        storage_of(tmp_path / "shared").send_checkpoint(path)


def test_no_room_here(any_storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = (tmp_path / name / "run_0" / "machine_0" for name in ("here", "there"))
    any_storage.send_checkpoint(saved(here, 100))
    usage: Any = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(KgdistError, match="not enough disk space"):
        any_storage.fetch_checkpoint(there / "ckpt-100")
    assert not (there / "ckpt-100").exists()
