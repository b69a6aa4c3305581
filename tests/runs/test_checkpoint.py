"""Checkpoints are whole or refused: round trip, every kind of damage, no space, no permission."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgdist.base.errors import CheckpointError, KgdistError
from kgdist.base.files import sha256, sha256_of_json, write_json
from kgdist.runs import checkpoint, pieces
from tests.patience import patience

ARRAYS = {"entity": np.arange(12, dtype=np.float32).reshape(4, 3), "entity.sum": np.ones((4, 1), np.float32)}


def before_digests(folder: Path) -> dict[str, Any]:
    """A manifest as older versions wrote it, without a digest of its own."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["digest"]
    return dict(manifest)


def test_round_trip_and_only_the_newest_two_stay(tmp_path: Path) -> None:
    for step in (5, 20, 100):
        checkpoint.save(tmp_path, step, ARRAYS, {"steps": [step]})
    assert [step for step, _ in checkpoint.numbered(tmp_path)] == [100, 20]
    loaded = checkpoint.latest(tmp_path)
    assert loaded.step == 100 and loaded.meta == {"steps": [100]}
    for key, array in ARRAYS.items():
        np.testing.assert_array_equal(loaded.arrays[key], array)
    assert not list(tmp_path.glob(".*"))


def test_who_saves_or_loads_can_see_how_far_it_has_come(tmp_path: Path) -> None:
    moved: list[int] = []
    array = np.zeros((5, 1 << 20), np.float32)  # 20 MB, two pieces
    folder = checkpoint.save(tmp_path, 1, {"entity": array}, {}, moved=moved.append)
    size = (folder / "entity.npy").stat().st_size
    assert sum(moved) == size and max(moved) <= pieces.BLOCK
    moved.clear()
    checkpoint.load(folder, moved.append)
    assert sum(moved) == size and max(moved) <= pieces.BLOCK


@pytest.mark.parametrize("rows", [0, 1, 700, 4096, 4097, 9000])  # of 1,000 numbers: pieces of 16 MiB and what is left of them
@pytest.mark.parametrize("hashed", sorted(pieces.HASHES))
def test_pieces_are_verified_while_they_are_read(tmp_path: Path, rows: int, hashed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "hash_name", lambda: hashed)
    monkeypatch.setattr(pieces, "usable_cores", lambda: 3)
    array = np.random.default_rng(1).normal(size=(rows, 1000)).astype(np.float32)
    folder = checkpoint.save(tmp_path, 1, {"entity": array, "relation": ARRAYS["entity"]}, {})
    file = folder / "entity.npy"
    np.testing.assert_array_equal(np.load(file, allow_pickle=False), array)
    into = {"entity": np.ones_like(array)}
    checkpoint.opened(folder).read(into)
    np.testing.assert_array_equal(into["entity"], array)
    for position in {0, 100, *(position for position in (200, pieces.PIECE, file.stat().st_size - 1) if rows)}:
        position = min(position, file.stat().st_size - 1)
        with file.open("r+b") as changed:
            changed.seek(position)
            (before,) = changed.read(1)
            changed.seek(position)
            changed.write(bytes([before ^ 64]))
        with pytest.raises(CheckpointError, match=r"entity\.npy"):
            checkpoint.opened(folder).read(into)
        with file.open("r+b") as changed:
            changed.seek(position)
            changed.write(bytes([before]))
    checkpoint.load(folder)


def test_a_checkpoint_of_the_first_format_is_read(tmp_path: Path) -> None:
    """One sha256 of each whole file."""
    folder = checkpoint.save(tmp_path, 1, ARRAYS, {"steps": [1]})
    files = {
        key: {
            "bytes": (folder / f"{key}.npy").stat().st_size,
            "sha256": sha256(folder / f"{key}.npy"),
            "shape": list(array.shape),
        }
        for key, array in ARRAYS.items()
    }
    write_json(folder / "manifest.json", {"format": 1, "step": 1, "files": files, "meta": {"steps": [1]}})
    into = {key: np.zeros_like(array) for key, array in ARRAYS.items()}
    checkpoint.latest(tmp_path, lambda saved: saved.read(into))
    for key, array in ARRAYS.items():
        np.testing.assert_array_equal(into[key], array)
    files["entity"]["sha256"] = files["entity.sum"]["sha256"]
    write_json(folder / "manifest.json", {"format": 1, "step": 1, "files": files, "meta": {}})
    with pytest.raises(CheckpointError, match=r"entity\.npy: its content has changed"):
        checkpoint.load(folder)


def test_rows_that_change_while_they_are_written_make_a_whole_checkpoint(tmp_path: Path) -> None:
    """Threads that could not be ended still update them."""
    array, ended = np.zeros((5000, 1000), np.float32), threading.Event()

    def update() -> None:
        while not ended.is_set():
            array[:] += 1

    changing = threading.Thread(target=update)
    changing.start()
    try:
        for step in range(3):
            checkpoint.load(checkpoint.save(tmp_path, step, {"entity": array}, {}))
    finally:
        ended.set()
        changing.join(30)


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 5, ARRAYS, {"n": 1})
    checkpoint.save(tmp_path, 5, ARRAYS, {"n": 2})
    assert checkpoint.latest(tmp_path).meta == {"n": 2}


@pytest.mark.parametrize("position", [0, 1, 20, 127, 128, 130, 160, -1])
@pytest.mark.parametrize("how", ["flip", "cut"])
def test_damage_is_found_and_the_checkpoint_before_is_used(tmp_path: Path, how: str, position: int) -> None:
    checkpoint.save(tmp_path, 1, ARRAYS, {})
    newest = checkpoint.save(tmp_path, 2, ARRAYS, {})
    file = newest / "entity.npy"
    data = bytearray(file.read_bytes())
    if how == "flip":
        data[position] ^= 1
    file.write_bytes(data if how == "flip" else data[:position])
    with pytest.raises(CheckpointError, match=r"entity\.npy"):
        checkpoint.load(newest)
    assert checkpoint.latest(tmp_path).step == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "newer kgdist"),
        ({"format": None}, "not a manifest"),
        ({"files": None}, "incomplete"),
        ({"step": "x"}, "incomplete"),
        ({"step": 2}, "of step 2, which is not the folder's"),
        ({"digesu": "0"}, "incomplete .'digesu' is not known"),
        ({"files": {"entity": {"bytes": 176, "shape": [4, 3], "hash": "md5", "piece": 16, "digests": []}}}, "incomplete"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    folder = checkpoint.save(tmp_path, 1, ARRAYS, {})
    (folder / "manifest.json").write_text(json.dumps(before_digests(folder) | change))
    with pytest.raises(CheckpointError, match=message):
        checkpoint.latest(tmp_path)


META = {"steps": [50, 52], "best": {"mrr": 0.25, "step": 40, "waited": 1}, "stamp": "job:0"}


def test_every_bit_of_a_manifest_counts(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, 50, {"entity": ARRAYS["entity"]}, META)
    file = folder / "manifest.json"
    content, saved = file.read_bytes(), checkpoint.load(folder)
    with file.open("r+b", buffering=0) as changed:
        for place, byte in enumerate(content):
            for bit in range(8):
                changed.seek(place)
                changed.write(bytes([byte ^ 1 << bit]))
                try:
                    found = checkpoint.opened(folder)
                except CheckpointError:
                    continue
                assert (found.step, found.meta, found.entries) == (saved.step, saved.meta, saved.entries), file.read_bytes()
            changed.seek(place)
            changed.write(bytes([byte]))
    checkpoint.load(folder)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    meta=st.dictionaries(
        st.text(max_size=3), st.recursive(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists)
    ),
    indent=st.none() | st.integers(0, 3),
    ascii=st.booleans(),
)
def test_what_a_manifest_says_counts_and_not_how_it_is_written(
    tmp_path: Path, meta: dict[str, Any], indent: int | None, ascii: bool
) -> None:
    folder = tmp_path / "ckpt-1"
    if not folder.exists():
        checkpoint.save(tmp_path, 1, {}, {})
    file, manifest = folder / "manifest.json", {"format": 2, "step": 1, "files": {}, "meta": meta}
    manifest["digest"] = sha256_of_json(manifest)
    turned = dict(reversed(manifest.items()))
    file.write_text(json.dumps(turned, indent=indent, ensure_ascii=ascii), encoding="utf-8")
    assert checkpoint.load(folder).meta == meta
    file.write_text(json.dumps(manifest | {"meta": meta | {"more": 1}}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"manifest\.json: its content has changed"):
        checkpoint.load(folder)


def test_a_manifest_of_before_digests_is_read(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, 50, ARRAYS, META)
    (folder / "manifest.json").write_text(json.dumps(before_digests(folder)))
    assert checkpoint.latest(tmp_path).meta == META


def test_missing_and_extra_shards_are_named(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, 1, ARRAYS, {})
    np.save(folder / "other.npy", ARRAYS["entity"])
    with pytest.raises(CheckpointError, match=r"other\.npy: not in the manifest"):
        checkpoint.load(folder)
    (folder / "other.npy").unlink()
    (folder / "entity.sum.npy").unlink()
    with pytest.raises(CheckpointError, match=r"entity\.sum\.npy: missing"):
        checkpoint.load(folder)


def test_object_arrays_are_never_unpickled(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, 1, ARRAYS, {})
    np.save(folder / "entity.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    manifest = before_digests(folder)
    size = (folder / "entity.npy").stat().st_size
    manifest["files"]["entity"] |= {"bytes": size, "digests": [sha256(folder / "entity.npy")]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="not a readable"):
        checkpoint.load(folder)


def test_no_checkpoint_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such run folder"):
        checkpoint.latest(tmp_path / "none")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        checkpoint.latest(tmp_path)


def test_a_file_that_cannot_grow_leaves_the_one_before(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes every write past 4 kB fail, as a full disk does; the process is a real one."""
    checkpoint.save(tmp_path, 1, ARRAYS, {})
    script = (
        "import resource, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from kgdist.runs import checkpoint\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    checkpoint.save(Path(sys.argv[1]), 2, {'entity': np.zeros((4000, 3), np.float32)}, {})\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert ran.stdout.startswith("KgdistError") and "previous checkpoint is unchanged" in ran.stdout
    assert checkpoint.latest(tmp_path).step == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-1"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only folders")
def test_a_read_only_folder_is_said(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, ARRAYS, {})
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(KgdistError, match="cannot be written"):
            checkpoint.save(tmp_path, 2, ARRAYS, {})
        assert checkpoint.latest(tmp_path).step == 1
    finally:
        tmp_path.chmod(0o700)


def test_more_than_the_disk_holds_is_refused_before_writing(tmp_path: Path) -> None:
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1 << 40, 4), (0, 0))
    checkpoint.save(tmp_path, 1, ARRAYS, {})
    with pytest.raises(KgdistError, match="not enough disk space"):
        checkpoint.save(tmp_path, 2, {"entity": huge}, {})
    assert checkpoint.latest(tmp_path).step == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 8 << 20
