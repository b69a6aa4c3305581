"""Vocabularies and the hash index under them, held against Python's own dict and list."""

from __future__ import annotations

import hashlib
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import CheckpointError, DataError, UsageError
from kgdist.data import names as names_module
from kgdist.data import vocabulary as vocabulary_module
from kgdist.data.names import Interner, as_binary, compiled_hash, hash_name, hash_names, make_run, parts, search
from kgdist.data.read import dictionary as dictionary_module
from kgdist.data.read.dictionary import read_dictionary
from kgdist.data.vocabulary import Vocabulary, with_inverses
from kgdist.kernels import hashing

NAME = st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=("Cs",)), min_size=1, max_size=12)
NAMES = st.lists(NAME, unique=True, max_size=40)


@given(NAMES, st.lists(NAME, max_size=10))
def test_is_a_bijection(names: list[str], others: list[str]) -> None:
    vocabulary = Vocabulary.from_names(names)
    ids = {name: i for i, name in enumerate(names)}
    assert len(vocabulary) == len(names)
    assert list(vocabulary) == names == [vocabulary[i] for i in range(len(names))]
    assert vocabulary.encode(names).tolist() == list(range(len(names)))
    assert vocabulary.find(names + others).tolist() == [ids.get(name, -1) for name in names + others]
    assert [int(vocabulary.find([name])[0]) for name in names + others] == [ids.get(name, -1) for name in names + others]
    assert vocabulary.names(np.arange(len(names))[::-1]) == names[::-1]
    assert vocabulary.take(np.arange(len(names), dtype=np.int32)[::-1]).to_pylist() == names[::-1]
    assert all((name in vocabulary) == (name in ids) for name in others)


@given(NAMES)
def test_digest_is_that_of_the_names_in_order(names: list[str]) -> None:
    wanted = hashlib.sha256("".join(f"{name}\n" for name in names).encode()).hexdigest()
    assert Vocabulary.from_names(names).digest == wanted


@given(NAMES.filter(bool))
def test_tsv_round_trip_is_byte_exact(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    path = tmp_path_factory.mktemp("tsv") / "entities.tsv"
    Vocabulary.from_names(names).write_tsv(path)
    assert path.read_bytes() == "".join(f"{i}\t{name}\n" for i, name in enumerate(names)).encode()
    again = Vocabulary.read_tsv(path)
    assert list(again) == names
    assert again.digest == Vocabulary.from_names(names).digest


def test_normalisation_twins_right_to_left_and_bom_stay_distinct() -> None:
    names = ["é", "e\u0301", "\ufeffa", "a", "\u05d0\u05d1", " a", "a ", "A"]
    assert list(Vocabulary.from_names(names)) == names


def test_names_come_in_any_form() -> None:
    vocabulary = Vocabulary.from_names(["a", "b", "c"])
    forms = [
        ["c", "a"],
        np.array(["c", "a"]),
        np.array(["c", "a"], object),
        pa.array(["c", "a"]),
        pa.array(["x", "c", "a"])[1:],
        pa.chunked_array([["c"], ["a"]]),
        pa.array(["c", "a"]).dictionary_encode(),
        pa.array([b"c", b"a"]),
        pa.array(["c", "a"], pa.string_view()),
    ]
    for form in forms:
        ids = vocabulary.encode(form)
        assert ids.tolist() == [2, 0]
        assert ids.dtype == np.int32


def test_wrong_asks() -> None:
    vocabulary = Vocabulary.from_names(["a", "b"])
    assert vocabulary.id("b") == 1
    with pytest.raises(KeyError, match="nobody"):
        vocabulary.id("nobody")
    with pytest.raises(KeyError, match="first"):
        vocabulary.encode(["a", "first", "second"])
    for bad in (-1, 2):
        with pytest.raises(IndexError, match="0 to 1"):
            vocabulary[bad]
        with pytest.raises(IndexError, match=str(bad)):
            vocabulary.names([0, bad])
    for wrong in ([1, 2], [None], pa.array([1.5]), ["\ud800"]):
        for look in (vocabulary.encode, vocabulary.find):
            with pytest.raises(TypeError):
                look(wrong)
    assert 3 not in vocabulary


@pytest.mark.parametrize("bad", ["", "a\nb", "a\rb", "\0"])
def test_names_that_no_file_could_carry_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="name 1"):
        Vocabulary.from_names(["fine", bad])


def test_a_repeated_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'b' appears twice"):
        Vocabulary.from_names(["a", "b", "c", "b"])


@pytest.mark.parametrize("count", [0, 1, 12])
def test_numbered_is_a_vocabulary_of_digits(count: int) -> None:
    numbered, named = Vocabulary.numbered(count), Vocabulary.from_names([str(i) for i in range(count)])
    asked = ["0", "11", "12", "01", "-1", "+1", "1.0", "x", "", " 1", "9" * 30]
    assert len(numbered) == count and list(numbered) == list(named)
    assert numbered.digest == named.digest
    assert numbered.find(asked).tolist() == named.find(asked).tolist() == numbered.find(pa.array(asked)).tolist()
    assert numbered.names(np.arange(count)) == list(named)
    assert (numbered.count, named.count) == (count, None)


def test_numbered_writes_the_same_tsv(tmp_path: Path) -> None:
    Vocabulary.numbered(70_000).write_tsv(tmp_path / "a.tsv")  # more than one piece
    assert (tmp_path / "a.tsv").read_text() == "".join(f"{i}\t{i}\n" for i in range(70_000))


def test_save_and_map(tmp_path: Path) -> None:
    names = [f"name {i}" for i in range(1000)]
    Vocabulary.from_names(names).save(tmp_path, "entities")
    again = Vocabulary.load(tmp_path, "entities")
    assert list(again) == names
    assert again.encode(names[::-1]).tolist() == list(range(1000))[::-1]
    np.save(tmp_path / "entities.ids.npy", np.zeros(3, np.int32))
    with pytest.raises(CheckpointError, match="entities"):
        Vocabulary.load(tmp_path, "entities")


# ---- the index


@given(st.lists(st.binary(max_size=6), max_size=30))
def test_hash_is_a_function_of_the_bytes_alone(values: list[bytes]) -> None:
    array = pa.array(values, pa.large_binary())
    together = hash_names(array)
    assert together.tolist() == [int(hash_names(pa.array([value], pa.large_binary()))[0]) for value in values]
    assert hash_names(array[len(values) // 2 :]).tolist() == together[len(values) // 2 :].tolist()
    assert len(set(together.tolist())) == len(set(values))
    assert [hash_name(value) for value in values] == together.tolist()


def test_hash_of_long_names_and_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = pa.array([bytes([i % 256]) * (i * 7 % 301) for i in range(500)], pa.large_binary())
    whole = hash_names(values)
    monkeypatch.setattr(names_module, "_PIECE", 100)
    assert hash_names(values).tolist() == whole.tolist()


@given(st.lists(NAME, unique=True, max_size=30), st.lists(NAME, max_size=10), st.integers(1, 5))
def test_colliding_hashes_cost_time_only(names: list[str], others: list[str], kinds: int) -> None:
    stored, asked = as_binary(names), as_binary(others + names)
    weak = np.arange(len(names), dtype=np.uint64) % kinds
    of = dict(zip(names, weak.tolist(), strict=True))
    hashes = np.array([of.get(name, 0) for name in others + names], np.uint64)
    wanted = [names.index(name) if name in of else -1 for name in others + names]
    assert search(make_run(weak), hashes, asked, stored).tolist() == wanted
    with mock.patch.object(vocabulary_module, "hash_name", lambda text: of.get(text.decode(), 0)):
        vocabulary = Vocabulary(*parts(stored), make_run(weak))
        assert [int(vocabulary.find([name])[0]) for name in others + names] == wanted


def intern(interner: Interner, values: object) -> list[int]:
    """The ids of distinct names, the new ones numbered in order."""
    found = interner.find(values)
    new = np.flatnonzero(found < 0)
    found[new] = interner.add(values.take(pa.array(new)))  # type: ignore[attr-defined]
    return found.tolist()


@pytest.mark.parametrize("many", [0, 7, 1 << 40])  # compiled from the start, from the seventh name on, never
@given(batches=st.lists(st.lists(NAME, unique=True, max_size=20), max_size=12))
def test_interner_numbers_by_first_appearance(many: int, batches: list[list[str]]) -> None:
    ids: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names_module, "MANY", many)
        interner = Interner()
        for batch in batches:
            wanted = [ids.setdefault(name, len(ids)) for name in batch]
            assert intern(interner, as_binary(batch)) == wanted
            assert interner.find(as_binary([*batch, "\0"])).tolist() == [*wanted, -1]
        assert len(interner) == len(ids)
        vocabulary = Vocabulary(*interner.finish())
    assert list(vocabulary) == list(ids)
    assert vocabulary.encode(list(ids)).tolist() == list(range(len(ids)))


def test_both_indices_of_an_interner_agree_on_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    batches = [[f"{number:x}" * int(number % 5 + 1) for number in np.unique(rng.integers(0, 60_000, 4000))] for _ in range(30)]
    made = []
    for many in (1000, 1 << 40):
        monkeypatch.setattr(names_module, "MANY", many)
        interner = Interner()
        ids = [intern(interner, as_binary(batch)) for batch in batches]
        offsets, data, run = interner.finish()
        made.append((ids, offsets.tolist(), data.tobytes(), run.hashes.tolist(), run.ids.tolist()))
    assert made[0] == made[1]


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_the_compiled_hash_is_the_same(values: list[bytes]) -> None:
    names = pa.array(values, pa.large_binary())
    assert compiled_hash(names).tolist() == hash_names(names).tolist()


@given(st.lists(NAME, unique=True, max_size=60), st.lists(NAME, max_size=10), st.integers(1, 5))
def test_colliding_hashes_in_a_table_cost_time_only(names: list[str], others: list[str], kinds: int) -> None:
    asked = as_binary(names + others)
    weak = np.array([len(name) % kinds for name in names + others], np.uint64) << np.uint64(32)  # same place, few high halves
    table = np.zeros(128, np.uint64)
    hashing.insert(table, weak[: len(names)], 0)
    found = np.empty(len(asked), np.int64)
    hashing.find(table, *parts(as_binary(names or ["x"])), *parts(asked), weak, found)
    assert found.tolist() == [names.index(name) if name in names else -1 for name in names + others]


def test_interner_stops_at_the_id_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "MAX_IDS", 3)
    interner = Interner("entities")
    intern(interner, as_binary(["a", "b"]))
    intern(interner, as_binary(["b", "c"]))
    with pytest.raises(UsageError, match="more than 3 distinct entities"):
        intern(interner, as_binary(["c", "d"]))


# ---- dictionary files


def read(path: Path, text: str | bytes, delimiter: str = "\t", **options: bool) -> object:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    names = read_dictionary(path, delimiter, **options)
    return names if isinstance(names, int) else names.to_pylist()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0\ta\n1\tb\n", ["a", "b"]),
        ("a\t0\nb\t1\n", ["a", "b"]),
        ("1\tb\n0\ta", ["a", "b"]),
        ("0\ta\tx\n1\tb\n", ["a\tx", "b"]),  # the name is all but the id
        ("a\tx\t0\nb\t1\n", ["a\tx", "b"]),
        ("1\t0\n0\t1\n", ["1", "0"]),  # both columns are ids: the first is
        ("33\t1\n107\t0\n", ["107", "33"]),  # names that look like ids, ids second
        ("0\t107\n1\t33\n", ["107", "33"]),
        ("a\nb\n", ["a", "b"]),
        ("0\n1\n2\n", ["0", "1", "2"]),
        ("2\n0\n1\n", ["0", "1", "2"]),  # a list of the ids themselves
        ("5\n7\n", ["5", "7"]),
        ("\ufeff0\ta\r\n1\tb\r\n\r\n", ["a", "b"]),
        ('0\t"a\n1\t b \n', ['"a', " b "]),
    ],
)
def test_dictionary_layouts(tmp_path: Path, text: str, names: list[str]) -> None:
    assert read(tmp_path / "d", text) == names


@pytest.mark.parametrize("text", ["0\ta\n1\tb\n2\tc\n", "a\t0\nb\t1\nc\t2\n", "0\ta\r\n1\tb\r\n2\tc"])
def test_dictionaries_in_order_are_read_the_short_way_and_the_general_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "d").write_bytes(text.encode())
    assert dictionary_module._in_order(tmp_path / "d", "\t", False).to_pylist() == ["a", "b", "c"]
    monkeypatch.setattr(dictionary_module, "_in_order", lambda *_: None)
    assert read(tmp_path / "d", text) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "text", ["1\t0\n0\t1\n", "0\ta\n2\tb\n", "0\ta\n1\ta\n", "0\ta\n1\t\n", "5\t0\n7\t1\n", "00\ta\n", "a\n"]
)
def test_other_dictionaries_are_left_to_the_general_way(tmp_path: Path, text: str) -> None:
    (tmp_path / "d").write_text(text)
    assert dictionary_module._in_order(tmp_path / "d", "\t", False) is None


def test_dictionaries_of_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgdist.data.read.lines.BLOCK", 64)
    names = [f"name {i}" for i in range(50)]
    assert read(tmp_path / "d", "".join(f"{i}\t{name}\n" for i, name in enumerate(names))) == names
    assert read(tmp_path / "d", "".join(f"{name}\t{i}\n" for i, name in enumerate(names))) == names


def test_dictionary_with_other_delimiters_header_and_count(tmp_path: Path) -> None:
    path = tmp_path / "d"
    assert read(path, "0||a\n1||b|c\n", "||") == ["a", "b|c"]
    assert read(path, "0→a\n1→b\n", "→") == ["a", "b"]
    assert read(path, "id\tname\n0\ta\n", header=True) == ["a"]
    assert read(path, "2\na\t0\nb\t1\n", counted=True) == ["a", "b"]
    assert read(path, "86054151\n", counted=True) == 86054151


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("0\ta\n1\tb\n0\ta\n", 3, "repeats line 1"),
        ("0\ta\n1\tb\n1\tc\n", 3, "id 1 is 'c', but 'b' on line 2"),
        ("0\ta\n1\tb\n2\ta\n", 3, "'a' has id 2, but id 0 on line 1"),
        ("0\ta\n1\tb\n3\tc\n", 3, "id 3 follows id 1 (line 2), so id 2 is missing"),
        ("1\ta\n2\tb\n", 1, "id 1 is the lowest, so id 0 is missing"),
        ("a\t0\nb\t2\n", 2, "follows id 0 (line 1)"),
        ("0\ta\nx\tb\n", 2, "integer id"),
        ("0\ta\n-1\tb\n", 2, "integer id"),
        ("0\ta\nb\n", 2, "expected `id<delimiter>name`"),
        ("0\ta\n\n1\tb\n", 2, "blank line"),
        ("0\ta\n1\t\n", 2, "empty"),
        ("a\nb\na\n", 3, "repeats line 1"),
        (b"0\ta\n1\t\xff\n", 2, "invalid UTF-8 at byte offset 6"),
        ("0\ta\n1\tb\0\n", 2, "NUL byte at offset 7"),
        ("0\ta\r1\tb\n", 1, "carriage return"),
        ("0\ta\n1\t" + "b" * (1 << 20) + "\n", 2, "longer than"),
    ],
)
def test_wrong_dictionaries(tmp_path: Path, text: str | bytes, line: int, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path / "entities.dict", text)
    assert f"entities.dict:{line}: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["3\na\t0\n", "x\na\t0\n", "0\n", "99999999999\n", "-1\n"])
def test_wrong_counts(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"entity2id\.txt:1: "):
        read(tmp_path / "entity2id.txt", text, counted=True)


def test_dictionary_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_dictionary(tmp_path / "absent")
    with pytest.raises(DataError, match="is a folder"):
        read_dictionary(tmp_path)
    for text in ("", "\n", "\n\n"):
        with pytest.raises(DataError, match="is empty"):
            read(tmp_path / "d", text)


def test_the_likeliest_names_are_found_among_the_first_of_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Vocabulary.from_names([f"entity_{n:04d}" for n in range(3000)] + ["dog.n.01", "hot_dog.n.01"])
    assert many.near("dog")[0] == "dog.n.01"
    assert many.near("Entity_1234x")[0] == "entity_1234"
    assert many.near("") == [] and many.near("?") == [] and many.near("x" * 1_000_000) == []
    monkeypatch.setattr(vocabulary_module, "LOOK", 3000)
    assert many.near("dog") == [] and many.complete("dog") == []


def test_a_name_that_holds_what_was_asked_is_near() -> None:
    iris = [f"http://example.org/resource/{name}" for name in ("Hot_dog", "Dog", "Cat", "Dogma")]
    assert Vocabulary.from_names([*iris, "dig"]).near("dog") == [iris[1], iris[3], iris[0]]
    assert Vocabulary.from_names(iris).near("og") == []  # two letters stand in many a name


@given(NAMES)
def test_inverse_relations_have_names_of_their_own(names: list[str]) -> None:
    names += [name + "_inverse" for name in names if name + "_inverse" not in names and len(name) % 2]
    made = list(with_inverses(Vocabulary.from_names(names)))
    assert made[::2] == names and len(set(made)) == 2 * len(names)
    assert len({inverse.removeprefix(name) for name, inverse in zip(names, made[1::2], strict=True)}) <= 1
    assert all(inverse.startswith(name) and inverse.endswith("_inverse") for name, inverse in zip(names, made[1::2], strict=True))


def test_a_name_that_a_relation_has_is_given_to_no_inverse() -> None:
    assert list(with_inverses(Vocabulary.from_names(["of", "in"]))) == ["of", "of_inverse", "in", "in_inverse"]
    taken = with_inverses(Vocabulary.from_names(["of", "of_inverse", "in"]))
    assert list(taken) == ["of", "of__inverse", "of_inverse", "of_inverse__inverse", "in", "in__inverse"]
