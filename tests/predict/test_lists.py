"""Lists of names and ids: every way a file can be written, every way it can be wrong, and how the error helps."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from kgdist.base.errors import DataError, OptionError
from kgdist.data.vocabulary import Vocabulary
from kgdist.predict.lists import Things, things

WORDS = ["dog.n.01", "wolf.n.01", "New York", " padded ", "l'été", "a\tb", "犬", "7", "cat.n.01"]
NAMED = Things("entity", len(WORDS), Vocabulary.from_names(WORDS))
BY_ID = Things("entity", len(WORDS))


def write(folder: Path, raw: bytes) -> Path:
    path = folder / "list.txt"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_names_in_every_usual_dress(tmp_path: Path, end: bytes, last: bool, start: bytes) -> None:
    raw = start + end.join(word.encode() for word in WORDS) + (end if last else b"")
    assert NAMED.read(write(tmp_path, raw)).tolist() == list(range(len(WORDS)))
    raw = start + end.join(b"%d" % n for n in (3, 0, 3)) + (end if last else b"")
    assert BY_ID.read(write(tmp_path, raw)).tolist() == [3, 0, 3]


@settings(max_examples=25)
@given(st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=30))
def test_reading_takes_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, ids: list[int]) -> None:
    path = write(tmp_path_factory.getbasetemp(), "\n".join(WORDS[n] for n in ids).encode())
    assert NAMED.read(path).tolist() == ids == NAMED.words("--head", [WORDS[n] for n in ids]).tolist()
    path.write_text("\n".join(f" {n} " for n in ids))
    assert BY_ID.read(path).tolist() == ids == BY_ID.words("--head", list(map(str, ids))).tolist()
    assert BY_ID.read(path).dtype == NAMED.words("--head", []).dtype == np.int64


@pytest.mark.parametrize(
    ("raw", "line", "says"),
    [
        (b"", None, "is empty, expected one entity name a line"),
        (b"\n\n", None, "is empty, expected one entity name a line"),
        (b"\xef\xbb\xbf", None, "is empty"),
        (b"dog.n.01\n\nwolf.n.01\n", 2, "blank line"),
        (b"dog.n.01\ndgo.n.01\n", 2, "no entity is called 'dgo.n.01'; did you mean 'dog.n.01'"),
        (b"Wolf.N.01", 1, "did you mean 'wolf.n.01'"),
        (b"padded", 1, "did you mean ' padded '?"),
        (b"zzzzzzzzzzzzzzzzzzzz", 1, "no entity is called 'zzzzzzzzzzzzzzzzzzzz'"),
        (b"dog.n.01\n\xff\xfe\n", 2, "invalid UTF-8 at byte offset 9"),
        (b"dog.n.01\nwolf\0\n", 2, "NUL byte at offset 13"),
        (b"dog.n.01\rwolf.n.01\n", 1, "carriage return inside a line"),
        (b"dog.n.01\n" + b"x" * (1 << 20) + b"y\n", 2, "line is longer than 1,048,576 bytes"),
        (b"8", 1, "give --ids if that is an id"),
    ],
)
def test_what_is_wrong_with_names(tmp_path: Path, raw: bytes, line: int | None, says: str) -> None:
    with pytest.raises(DataError) as found:
        NAMED.read(write(tmp_path, raw))
    assert says in str(found.value) and found.value.line == line and len(str(found.value)) < 400


@pytest.mark.parametrize(
    ("raw", "line", "says"),
    [
        (b"0\n9\n", 2, "entity id 9 is out of range, allowed: 0 to 8"),
        (b"0\n-1\n", 2, "entity id -1 is out of range"),
        (b"0\n" + b"9" * 40, 2, "entity id 99999"),
        (b"1.0\n", 1, "'1.0' is not a valid entity id (an integer, 0 to 8)"),
        (b"1\ndog.n.01\n", 2, "'dog.n.01' is not a valid entity id"),
        (b"0x1\n", 1, "'0x1' is not a valid entity id"),
        (b"1\n \n", 2, "' ' is not a valid entity id"),
    ],
)
def test_what_is_wrong_with_ids(tmp_path: Path, raw: bytes, line: int, says: str) -> None:
    with pytest.raises(DataError, match=r"list\.txt:") as found:
        BY_ID.read(write(tmp_path, raw))
    assert says in str(found.value) and found.value.line == line


def test_no_file_at_all(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(DataError, match="no such file|is a folder"):
            NAMED.read(path)


def test_words_are_refused_by_their_option() -> None:
    for kind, word, says in [
        (NAMED, "dgo.n.01", "--left: no entity is called 'dgo.n.01'; did you mean 'dog.n.01'"),
        (BY_ID, "9", "--left: entity id 9 is out of range"),
        (BY_ID, "-1", "--left: entity id -1 is out of range"),
        (BY_ID, "9" * 30, "--left: entity id 9999"),
        (BY_ID, "dog", "--left: 'dog' is not a valid entity id"),
    ]:
        with pytest.raises(OptionError) as found:
            kind.words("--left", [*(["0"] if kind is BY_ID else []), word])
        assert str(found.value).startswith(says)


def test_names_or_ids_is_settled_by_the_options(tmp_path: Path) -> None:
    known = Vocabulary.from_names(["a", "b", "c"])
    mfile = write(tmp_path, b"0\tx\n1\ty\n2\tz\n")
    assert things("entity", 3, known).names is known
    assert things("entity", 3, known, raw_data=True).names is known
    assert things("entity", 3, None).names is None
    assert things("entity", 3, known, ids=True).names is None
    assert things("entity", 3, Vocabulary.numbered(3)).names is None
    assert list(things("entity", 3, known, mfile=str(mfile)).names or ()) == ["x", "y", "z"]
    with pytest.raises(OptionError, match="--raw_data: the names of the relations are not known here; give --rel_mfile FILE"):
        things("relation", 3, None, raw_data=True, flag="--rel_mfile")
    with pytest.raises(DataError, match="names 3 entities, but there are embeddings of 4"):
        things("entity", 4, None, mfile=str(mfile))
