"""The binary form of a data set: reused, made again when it must be, whole or absent whatever happens."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kgdist.base.errors import DataError, KgdistError
from kgdist.data import build as building
from kgdist.data import cache
from tests.data.graphs import TEST, TRAIN, VALID, built, fails, named, raw, text, write_raw
from tests.patience import patience


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def age(folder: Path) -> None:
    """Make the data files look older than the cache, as they are in life."""
    for path in folder.glob("*.txt"):
        os.utime(path, ns=(10**18, 10**18))


def test_the_second_load_maps_the_first(tmp_path: Path) -> None:
    files = write_raw(tmp_path)
    age(tmp_path)
    first = raw(tmp_path, files)
    made = built(tmp_path)
    again = raw(tmp_path, files)
    assert built(tmp_path) == made and len(made) == 1
    assert [named(again, split) for split in again.splits.values()] == [TRAIN, VALID, TEST]
    assert again.digest == first.digest
    raw(tmp_path, files[:1])
    raw(tmp_path, files, format="raw_udd_trh")
    assert len(built(tmp_path)) == 3  # other options, other cache


def test_a_changed_file_is_read_again_and_a_touched_one_too(tmp_path: Path) -> None:
    files = write_raw(tmp_path)
    age(tmp_path)
    raw(tmp_path, files)
    made = built(tmp_path)
    os.utime(tmp_path / "train.txt")
    raw(tmp_path, files)
    assert len(built(tmp_path)) == 1 and built(tmp_path) != made
    changed = [("a", "likes", "b"), *TRAIN[1:]]  # of the same size, and as soon as can be
    for triples in (changed, TRAIN, changed):
        (tmp_path / "train.txt").write_text(text(triples))
        dataset = raw(tmp_path, files)
        assert named(dataset, dataset.train) == triples
    (tmp_path / "train.txt").write_text(text(TRAIN[:1]))
    assert len(raw(tmp_path, files).train) == 1
    assert len(built(tmp_path)) == 1


def test_old_arrays_outlive_a_rebuild(tmp_path: Path) -> None:
    write_raw(tmp_path)
    dataset = raw(tmp_path)
    (tmp_path / "train.txt").write_text(text([("x", "y", "z")]))
    raw(tmp_path)
    assert named(dataset, dataset.train) == TRAIN


def test_any_damage_is_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = write_raw(tmp_path)
    age(tmp_path)
    wanted = raw(tmp_path, files).digest
    (folder,) = built(tmp_path)
    rng = random.Random(0)
    for path in sorted(Path(folder).iterdir()):
        for damage in ("flip", "cut", "empty", "remove"):
            data = bytearray(path.read_bytes())
            if damage == "flip":
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
            elif damage != "remove":
                data = data[: len(data) // 2 if damage == "cut" else 0]
            path.write_bytes(data)
            if damage == "remove":
                path.unlink()
            with caplog.at_level(logging.INFO, "kgdist"):
                caplog.clear()
                dataset = raw(tmp_path, files)
            assert dataset.digest == wanted, (path.name, damage)
            assert [named(dataset, split) for split in dataset.splits.values()] == [TRAIN, VALID, TEST]
            if (path.name, damage) != ("meta.json", "remove"):
                assert any("will be made again" in record.message for record in caplog.records), (path.name, damage)


def test_damage_behind_an_unchecked_hash_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "VERIFY_BYTES", 0)  # as for caches too large to be hashed at every load
    write_raw(tmp_path)
    raw(tmp_path)
    (folder,) = built(tmp_path)
    for name in ("train.npy", "entities.offsets.npy"):
        data = bytearray(Path(folder, name).read_bytes())
        data[10] ^= 0xFF  # inside the header
        Path(folder, name).write_bytes(data)
        dataset = raw(tmp_path)
        assert named(dataset, dataset.train) == TRAIN


def test_a_read_only_data_folder_uses_the_users_cache(tmp_path: Path, own_cache_folder: Path) -> None:
    files = write_raw(tmp_path)
    (tmp_path / ".kgdist").write_text("a file in the way: works for root, too")
    for _ in range(2):
        dataset = raw(tmp_path, files)
        assert named(dataset, dataset.train) == TRAIN
        assert len(built(own_cache_folder)) == 1
    made = built(own_cache_folder)
    raw(tmp_path, files)
    assert built(own_cache_folder) == made


def test_nowhere_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raw(tmp_path)
    (tmp_path / ".kgdist").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".kgdist"))
    with pytest.raises(KgdistError, match="XDG_CACHE_HOME"):
        raw(tmp_path)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_raw(tmp_path)
    build = building.build

    def late(*arguments: Any) -> Any:
        meta = build(*arguments)
        with (tmp_path / "train.txt").open("a") as file:
            file.write("one\tmore\ttriple\n")
        return meta

    monkeypatch.setattr(building, "build", late)
    assert "train.txt: was changed while it was read" in fails(lambda: raw(tmp_path))
    assert not built(tmp_path)


def test_builders_that_died_and_older_layouts_are_swept_away(tmp_path: Path) -> None:
    files = write_raw(tmp_path)
    script = (
        "import os, sys; from kgdist.data import build; from kgdist.data.dataset import load_dataset\n"
        "build.build = lambda *_: os.kill(os.getpid(), 9)\n"
        "load_dataset(path=sys.argv[1], name='x', format='raw_udd_hrt', files=sys.argv[2:])"
    )
    command = [sys.executable, "-c", script, str(tmp_path), *files]
    died = subprocess.run(command, cwd=Path(__file__).parents[2], timeout=patience(100), check=False)
    assert died.returncode == -9 and len(list((tmp_path / ".kgdist").iterdir())) == 1
    raw(tmp_path, files)
    (folder,) = map(Path, built(tmp_path))
    assert list((tmp_path / ".kgdist").iterdir()) == [folder]
    folder.rename(folder.with_name(folder.name.partition("-")[0]))  # as it was called before
    raw(tmp_path, files)
    assert list((tmp_path / ".kgdist").iterdir()) == [folder]


def test_many_builders_at_once(tmp_path: Path) -> None:
    files = write_raw(tmp_path)
    script = (
        "import sys; from kgdist.data.dataset import load_dataset\n"
        "d = load_dataset(path=sys.argv[1], name='x', format='raw_udd_hrt', files=sys.argv[2:])\n"
        "print(d.digest, d.train.array.sum())"
    )
    command = [sys.executable, "-c", script, str(tmp_path), *files]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) for _ in range(3)]
    answers = {child.communicate(timeout=patience(100))[0] for child in children}
    assert all(child.returncode == 0 for child in children)
    dataset = raw(tmp_path, files)
    assert answers == {f"{dataset.digest} {dataset.train.array.sum()}\n"}


def test_a_cached_graph_is_used_without_the_parser(tmp_path: Path) -> None:
    files = write_raw(tmp_path)
    age(tmp_path)
    raw(tmp_path, files)
    script = (
        "import sys; from pathlib import Path; from kgdist.data.dataset import load_dataset\n"
        "d = load_dataset(path=sys.argv[1], name='x', format='raw_udd_hrt', files=sys.argv[2:])\n"
        "d.entities.write_tsv(Path(sys.argv[1], 'entities.tsv')); names = d.entities.names(range(2)), list(d.relations)\n"
        "import kgdist.runtime.local\n"
        "print([name for name in sys.modules if name.startswith('pyarrow')])"
    )
    command = [sys.executable, "-c", script, str(tmp_path), *files]
    made = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2], timeout=patience(100), check=True
    )
    assert made.stdout == "[]\n"


def test_readers_during_rebuilds_see_one_graph_or_the_other(tmp_path: Path) -> None:
    write_raw(tmp_path)
    graphs = (TRAIN, [("p", "q", "s"), ("s", "q", "u")])
    wrong: list[object] = []
    done = threading.Event()

    def attempt() -> None:
        try:
            dataset = raw(tmp_path)
            if named(dataset, dataset.train) not in graphs:
                wrong.append(named(dataset, dataset.train))
        except DataError as error:
            if "while it was read" not in str(error):
                wrong.append(error)
        except (
            SystemError
        ) as error:  # two threads in the parser of Python 3.11, which NumPy reads headers by (python/cpython#106905)
            if "AST constructor recursion depth mismatch" not in str(error):
                wrong.append(error)

    def read() -> None:
        while not done.is_set():
            try:
                attempt()
            except BaseException as error:
                wrong.append(error)
                raise

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for i in range(30):
            fresh = tmp_path / "fresh"
            fresh.write_text(text(graphs[i % 2]))
            os.replace(fresh, tmp_path / "train.txt")
            attempt()
    finally:
        done.set()
        thread.join(timeout=patience(60))
    assert not thread.is_alive() and not wrong
