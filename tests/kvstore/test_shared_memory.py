"""The memory of tables: zeros that can be written, on pages of either size."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kgdist.base.errors import KgdistError
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


def test_memory_made_at_run_time_is_mapped_by_a_process_that_was_there_before() -> None:
    code = (
        "import json, sys\n"
        "from kgdist.kvstore.shared_memory import SharedArray\n"
        "print('ready', flush=True)\n"
        "array = SharedArray.attach(json.loads(sys.stdin.readline())).array\n"
        "print(array.sum(), array.dtype, array.shape, flush=True)\n"
        "array[1] = 8\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        made = SharedArray.allocate((3, 2), np.int16)
        made.array[:] = 2
        other.stdin.write(json.dumps(made.handle(pid=True)) + "\n")
        other.stdin.flush()
        assert other.stdout.readline() == "12 int16 (3, 2)\n"
        assert other.wait(patience(60)) == 0
    assert made.array.tolist() == [[2, 2], [8, 8], [2, 2]]
    gone = made.handle(pid=True)
    with pytest.raises(KgdistError, match=r"descriptor \d+ is not int16\[30000\]"):
        SharedArray.attach(gone | {"shape": [30_000]})
    made.close()
    with pytest.raises(KgdistError, match="it has ended, or is of another user"):
        SharedArray.attach(gone)
    with pytest.raises(KgdistError, match="shared memory of process"):
        SharedArray.attach(gone | {"pid": other.pid})


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
