"""The memory of tables: zeros that can be written, on pages of either size."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kgdist.kvstore.shared_memory import SharedArray, huge_pages_refused, private_array
from tests.patience import patience

SHAPES = [(0, 3), (1,), (7, 5), (3000, 400)]


def shared(shape: tuple[int, ...], huge: bool) -> np.ndarray:
    made = SharedArray.allocate(shape, np.float32, huge=huge)
    made.close()  # the memory stays while the array does
    return made.array


@pytest.mark.parametrize("huge", [False, True])
@pytest.mark.parametrize("make", [shared, lambda shape, huge: private_array(shape, np.float32, huge=huge)])
@pytest.mark.parametrize("shape", SHAPES)
def test_new_memory_is_zero_and_can_be_written(
    make: Callable[[tuple[int, ...], bool], np.ndarray], shape: tuple[int, ...], huge: bool
) -> None:
    array = make(shape, huge)
    assert array.shape == shape and array.dtype == np.float32 and not array.any()
    array += 1
    assert array.all() and array.flags.writeable and array.flags.c_contiguous


def test_a_mapping_sees_what_the_other_one_writes() -> None:
    first = SharedArray.allocate((1000, 3), np.int64)
    second = SharedArray.attach(first.handle())
    first.array[17] = (1, 2, 3)
    assert second.array[17].tolist() == [1, 2, 3] and second.array.sum() == 6
    first.close()


BORROWER = """
import json, sys
from kgdist.base.errors import KgdistError
from kgdist.kvstore.shared_memory import SharedArray
for line in sys.stdin:
    try:
        array = SharedArray.attach(json.loads(line)).array
        array[17] += 1
        print(array[17].tolist(), flush=True)
    except KgdistError as error:
        print(error, flush=True)
"""


def test_a_process_that_inherited_nothing_maps_the_same_memory_and_nothing_else() -> None:
    first, other = SharedArray.allocate((1000, 3), np.int64), SharedArray.allocate((999, 3), np.int64)
    first.array[17] = (1, 2, 3)
    mine = first.handle(os.getpid())
    handles = [mine, mine | {"fd": other.fd}, mine | {"fd": 9999}, mine | {"pid": 2**22 + 1}]
    words = "".join(json.dumps(handle) + "\n" for handle in handles)
    try:
        done = subprocess.run(
            [sys.executable, "-c", BORROWER], input=words, capture_output=True, text=True, timeout=patience(60), check=True
        )
        lines = done.stdout.splitlines()
        assert lines[0] == "[2, 3, 4]" and first.array[17].tolist() == [2, 3, 4]
        assert "is not the memory that process" in lines[1] and not other.array.any()
        assert "/fd/9999: the memory of process" in lines[2] and "cannot be opened (No such file" in lines[2]
        assert f"/proc/{2**22 + 1}/fd/" in lines[3]
    finally:
        first.close()
        other.close()


@pytest.mark.parametrize(
    ("words", "private", "common"),
    [
        ("always [madvise] never", None, None),
        ("[always] madvise never", None, None),
        ("always madvise [never]", "echo madvise > ", "--worker thread, or, as root: echo advise > "),
        ("always within_size advise never [deny] force", "echo madvise > ", "echo advise > "),
        (None, "has no transparent huge pages", "has no transparent huge pages"),
        ("nothing in brackets", "has no transparent huge pages", "has no transparent huge pages"),
    ],
)
def test_a_system_that_refuses_is_told_what_to_do(
    words: str | None, private: str | None, common: str | None, tmp_path: Path
) -> None:
    if words is not None:
        for name in ("enabled", "shmem_enabled"):
            (tmp_path / name).write_text(words + "\n")
    for is_shared, wanted in ((False, private), (True, common)):
        found = huge_pages_refused(is_shared, tmp_path)
        assert found == wanted if wanted is None else wanted in str(found)
        assert found is None or "\n" not in found


def test_the_pages_are_huge_where_the_system_allows_it() -> None:
    if huge_pages_refused(shared=False):
        pytest.skip("this system gives no huge pages")
    array = private_array((16 << 20,), np.uint8, huge=True)
    array += 1
    found = re.search(rf"^{_start(array):x}-.*?^AnonHugePages: +(\d+) kB", Path("/proc/self/smaps").read_text(), re.M | re.S)
    if found is None or not int(found[1]):
        pytest.skip("no huge page was free")
    assert int(found[1]) >= 2048


def _start(array: np.ndarray) -> int:
    """Where the mapping begins that holds `array`: neighbours may have been joined to it."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            return first
    raise AssertionError("not mapped")
