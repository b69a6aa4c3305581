"""Parsers: what is written in any format comes back, and every wrong row is named by file and line."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.data import stream
from kgdist.data.formats import ORDERS, Format, check_delimiter, read_rows, user_files
from kgdist.data.rows import Spec
from kgdist.errors import DataError, OptionError

Triple = tuple[str, str, str]
DELIMITERS = ("\t", ",", "|", " ", "||", "→", "\x01", "ab", "é", " ; ")
CLOSERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}
NAME = st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=("Cs",)), min_size=1, max_size=8)


def names_without(delimiter: str) -> st.SearchStrategy[str]:
    """Names that neither hold the delimiter nor could form one with what stands beside them."""
    return NAME.filter(lambda name: not set(name) & set(delimiter))


def write(path: Path, content: str | bytes) -> Path:
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(CLOSERS[path.suffix if path.suffix in stream.COMPRESSED else ""](data))
    return path


def triples(path: Path, spec: Spec | None = None) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for rows in read_rows(path, spec or Spec()):
        columns = [column.to_pylist() for column in rows[:3]]
        found += zip(*columns, *([rows.weights.tolist()] if rows.weights is not None else []), strict=True)
    return found


def error_of(path: Path, spec: Spec | None = None) -> str:
    with pytest.raises(DataError) as caught:
        triples(path, spec)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


def in_order(order: str, triple: Iterable[object]) -> list[str]:
    of = dict(zip("hrt", map(str, triple), strict=True))
    return [of[letter] for letter in order]


# ---- names of formats


@pytest.mark.parametrize("order", ORDERS)
def test_formats_are_read_with_and_without_braces(order: str) -> None:
    for kind in ("raw_udd", "udd"):
        assert Format.parse(f"{kind}_{order}") == Format.parse(f"{kind}_{{{order}}}") == Format(kind, order)


def test_built_in_is_a_format() -> None:
    assert Format.parse("built_in").kind == "built_in"


@pytest.mark.parametrize(
    "text", ["", "udd", "raw_udd_", "udd_hhr", "raw_udd_hrx", "raw_udd_{hrt", "udd_hrt}", "UDD_hrt", "udd_hrt\n"]
)
def test_other_formats_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--format"):
        Format.parse(text)


@pytest.mark.parametrize("delimiter", ["", "\n", "a\rb", "\0", "\ud800"])
def test_impossible_delimiters_are_refused(delimiter: str) -> None:
    with pytest.raises(OptionError, match="--delimiter"):
        check_delimiter(delimiter)


@pytest.mark.parametrize(("text", "counts"), [("raw_udd_hrt", (1, 2, 3)), ("udd_htr", (3, 4, 5))])
def test_number_of_files(tmp_path: Path, text: str, counts: tuple[int, ...]) -> None:
    for count in range(7):
        files = [f"f{i}" for i in range(count)]
        if count in counts:
            assert user_files(tmp_path, Format.parse(text), files).files == [tmp_path / file for file in files]
        else:
            with pytest.raises(OptionError, match="--data_files"):
                user_files(tmp_path, Format.parse(text), files)
    with pytest.raises(OptionError, match="none is given"):
        user_files(tmp_path, Format.parse(text), None)


def test_a_file_of_this_folder_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_text("a\tr\tb\n")
    with pytest.raises(DataError, match="--data_path"):
        user_files("data", Format.parse("raw_udd_hrt"), ["train.txt"])


# ---- what is written comes back


@st.composite
def graphs(draw: st.DrawFn) -> tuple[str, str, list[Triple]]:
    delimiter = draw(st.sampled_from(DELIMITERS))
    name = names_without(delimiter)
    return delimiter, draw(st.sampled_from(ORDERS)), draw(st.lists(st.tuples(name, name, name), min_size=1, max_size=20))


@given(graphs(), st.sampled_from(list(CLOSERS)), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans(), st.integers(0, 3))
def test_text_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    graph: tuple[str, str, list[Triple]],
    ending: str,
    line_end: str,
    bom: bool,
    header: bool,
    blank: int,
) -> None:
    delimiter, order, wanted = graph
    lines = (["x"] if header else []) + [delimiter.join(in_order(order, triple)) for triple in wanted]
    if lines[0].startswith("\ufeff"):
        bom = True  # else the mark that begins the first name is the file's
    text = ("\ufeff" if bom else "") + line_end.join(lines) + line_end * blank
    path = write(tmp_path_factory.getbasetemp() / f"round{ending}", text)
    assert triples(path, Spec(order, delimiter, header)) == wanted


@given(st.lists(st.tuples(NAME, NAME, NAME), min_size=1, max_size=30), st.integers(4, 40))
def test_blocks_do_not_show(tmp_path_factory: pytest.TempPathFactory, wanted: list[Triple], size: int) -> None:
    wanted = [(h.replace("\t", "_"), r.replace("\t", "_"), t.replace("\t", "_")) for h, r, t in wanted]
    text = "\ufeff" + "".join("\t".join(triple) + "\r\n" for triple in wanted)
    path = write(tmp_path_factory.getbasetemp() / "blocks", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "BLOCK", size)
        assert triples(path) == wanted
        # The line number of an error counts through the blocks.
        write(path, text + "short\n" + text)
        assert error_of(path).startswith(f":{len(wanted) + 1}: expected 3 tab-separated fields, found 1")


@given(st.binary(max_size=60), st.sampled_from(["\t", "ab"]), st.booleans())
def test_any_bytes_give_triples_or_one_line_of_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, delimiter: str, ids: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(b"1" + delimiter.encode() + b"2" + delimiter.encode() + b"3\n" + data)
    try:
        found = triples(path, Spec(delimiter=delimiter, limits=(4, 4) if ids else None))
    except DataError as error:
        assert error.line is not None and "try another" not in str(error)
    else:
        body = data.replace(b"\r\n", b"\n").rstrip(b"\n")
        assert len(found) == 1 + (body.count(b"\n") + 1 if body else 0)


def test_nothing_is_special_in_a_name(tmp_path: Path) -> None:
    wanted = [
        ('"a', "'r", "b\\"),
        ("# c", '""', " d "),
        ("NULL", "nan", "NA"),
        ("\ufeffx", "\x1f\x85\u2028", "é"),
        ("\u05d0", "r", "e\u0301"),
    ]
    assert triples(write(tmp_path / "t", "".join("\t".join(triple) + "\n" for triple in wanted))) == wanted


def test_a_block_that_begins_with_a_mark_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BLOCK", 8)
    assert triples(write(tmp_path / "t", "aa\tr\tb\n\ufeffa\tr\tb\n")) == [("aa", "r", "b"), ("\ufeffa", "r", "b")]


def test_a_long_delimiter_among_all_characters(tmp_path: Path) -> None:
    odd = "".join(chr(code) for code in range(1, 128) if code not in (10, 13))
    wanted = [(odd[:60], "r", "a"), (odd[60:], "r", "b"), ("c", "r", "d")]
    path = write(tmp_path / "t", "".join("→".join(triple) + "\n" for triple in wanted))
    assert triples(path, Spec(delimiter="→")) == wanted
    path = write(tmp_path / "t", f"{odd}→r→t\n")  # one line that leaves no character free
    assert error_of(path, Spec(delimiter="→")).startswith(":1: from here on, a line cannot be split")


@given(st.lists(st.tuples(*[st.integers(0, 10**6)] * 3), min_size=1, max_size=20), st.sampled_from(ORDERS))
def test_ids_round_trip(tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[int, int, int]], order: str) -> None:
    path = write(tmp_path_factory.getbasetemp() / "ids", "".join(",".join(in_order(order, triple)) + "\n" for triple in wanted))
    assert triples(path, Spec(order, ",", limits=(10**6 + 1, 10**6 + 1))) == wanted


def test_ids_may_have_blanks_and_zeros_around(tmp_path: Path) -> None:
    assert triples(write(tmp_path / "t", " 1 , 02,3\n"), Spec(delimiter=",", limits=(4, 4))) == [(1, 2, 3)]


@given(st.lists(st.floats(2.0**-100, 2.0**100, width=32), min_size=1, max_size=10), st.sampled_from(ORDERS))
def test_weights_round_trip(tmp_path_factory: pytest.TempPathFactory, weights: list[float], order: str) -> None:
    lines = ["\t".join([*in_order(order, ("h", "r", "t")), repr(weight)]) for weight in weights]
    path = write(tmp_path_factory.getbasetemp() / "weights", "\n".join(lines))
    for wanted in (True, None):
        assert triples(path, Spec(order, weights=wanted)) == [("h", "r", "t", weight) for weight in weights]


def test_optional_weights_follow_the_first_row(tmp_path: Path) -> None:
    assert triples(write(tmp_path / "t", "a\tr\tb\n"), Spec(weights=None)) == [("a", "r", "b")]
    assert error_of(write(tmp_path / "t", "a\tr\tb\t1\na\tr\tb\n"), Spec(weights=None)).startswith(":2: expected 4")


# ---- wrong rows

GOOD = "a\tr\tb\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a\tb\n", 2, "expected 3 tab-separated fields, found 2"),
        ("a\tr\tb\tc\n", 2, "expected 3 tab-separated fields, found 4; give --has_edge_importance"),
        ("a\tr\tb\tc\td\n", 2, "expected 3 tab-separated fields, found 5"),
        ("a,r,b\n", 2, "found 1; is --delimiter right?"),
        ("\n" + GOOD, 2, "blank line"),
        ("  \n", 2, "found 1"),
        ("\t\t\n", 2, "the head is empty"),
        ("a\t\tb\n", 2, "the relation is empty"),
        ("a\tr\t\n", 2, "the tail is empty"),
        (b"a\tr\t\xff\n", 2, "invalid UTF-8 at byte offset 10"),
        (b"a\tr\t\xc3\n", 2, "invalid UTF-8 at byte offset 10"),
        ("a\tr\tb\0\n", 2, "NUL byte at offset 11"),
        ("a\tr\tb\ra\tr\tb\n", 2, "carriage return inside a line (byte offset 11)"),
        ("a\tr\tb\r\r\n", 2, "carriage return"),
        (b"\xff\xfea\0", 2, "NUL byte"),
        ("a" * (1 << 20) + "\tr\tb\n", 2, "line is longer than 1,048,576 bytes"),
    ],
)
def test_wrong_lines(tmp_path: Path, text: str | bytes, line: int, words: str) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    path = tmp_path / "train.txt"
    for before, after in ((GOOD, ""), (GOOD, GOOD), (GOOD, GOOD * 3 + "bad\n")):
        path.write_bytes(before.encode() + data + after.encode())
        message = error_of(path)
        assert message.startswith(f":{line}: ") and words in message
    path.write_bytes(b"head\trel\ttail\n" + GOOD.encode() + data)
    assert error_of(path, Spec(header=True)).startswith(f":{line + 1}: ")


@pytest.mark.parametrize("field", ["x", "1.0", "0x1", "+1", "1_0", "", "１", "true"])
def test_ids_that_are_not_integers(tmp_path: Path, field: str) -> None:
    message = error_of(write(tmp_path / "t", f"0\t0\t0\n0\t0\t{field}\n"), Spec(limits=(5, 3)))
    assert message.startswith(":2: ") and ("0 to 4" in message or "empty" in message)


@pytest.mark.parametrize(
    "value", ["-1", "5", "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 5000]
)
def test_ids_out_of_range(tmp_path: Path, value: str) -> None:
    for column, most in ((0, 4), (1, 2), (2, 4)):
        fields = ["0", "0", "0"]
        fields[column] = value
        message = error_of(write(tmp_path / "t", "0\t0\t0\n" * 3 + "\t".join(fields) + "\n0\t0\tx\n"), Spec(limits=(5, 3)))
        assert message.startswith(":4: ") and f"0 to {most}" in message
        assert len(value) > 30 or value in message


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf", "1e400", "1e39", "1e-60", "x", "", "0x1", "1_0"])
def test_wrong_weights(tmp_path: Path, value: str) -> None:
    message = error_of(write(tmp_path / "t", f"a\tr\tb\t1\na\tr\tb\t{value}\n"), Spec(weights=True))
    assert message.startswith(":2: ") and "weight" in message and repr(value) in message


def test_weights_are_asked_for(tmp_path: Path) -> None:
    assert error_of(write(tmp_path / "t", "a\tr\tb\n"), Spec(weights=True)).startswith(
        ":1: expected 4 tab-separated fields, found 3"
    )


def test_a_long_line_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    with path.open("wb") as file:
        file.write(b"a\tr\tb\n")
        file.truncate(1 << 33)  # sparse: 8 GiB of one line
    assert error_of(path).startswith(":2: line is longer")


def test_lines_up_to_the_limit_are_read(tmp_path: Path) -> None:
    name = "x" * (stream.MAX_LINE - 4)
    path = write(tmp_path / "t", f"a\tr\tb\n{name}\tr\tb\n" * 9)
    assert [h for h, _, _ in triples(path)] == ["a", name] * 9


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2", ".zst"])
def test_damaged_compression(tmp_path: Path, ending: str) -> None:
    rng = np.random.default_rng(0)
    text = "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rng.integers(0, 10**9, (2000, 3)))
    path = write(tmp_path / f"train.txt{ending}", text)
    whole = path.read_bytes()
    assert len(triples(path)) == 2000
    for damaged in (whole[: len(whole) // 2], b"not compressed at all\n" * 3):
        path.write_bytes(damaged)
        assert "decompressed" in error_of(path)


# ---- Parquet


@pytest.mark.parametrize("order", ORDERS)
def test_parquet_by_position_and_by_name(tmp_path: Path, order: str) -> None:
    wanted = [("a", "r", "b"), ("c", "s\t", "a")]
    columns = dict(zip("hrt", zip(*wanted, strict=True), strict=True))
    pq.write_table(pa.table({f"c{i}": list(columns[letter]) for i, letter in enumerate(order)}), tmp_path / "p.parquet")
    assert triples(tmp_path / "p.parquet", Spec(order)) == wanted
    named = pa.table(
        {"id": [1, 2], "tail": columns["t"], "relation": pa.array(columns["r"]).dictionary_encode(), "head": columns["h"]}
    )
    pq.write_table(named, tmp_path / "n.parquet")
    assert triples(tmp_path / "n.parquet", Spec(order)) == wanted


def test_parquet_ids_and_weights(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [0, 1], "b": pa.array([1, 0], pa.uint8()), "c": [2, 2], "w": [0.5, 2]}), path)
    assert triples(path, Spec(limits=(3, 2), weights=True)) == [(0, 1, 2, 0.5), (1, 0, 2, 2.0)]
    assert triples(path, Spec(limits=(3, 2))) == [(0, 1, 2), (1, 0, 2)]
    assert triples(path) == [("0", "1", "2"), ("1", "0", "2")]  # as names, integers are their digits
    assert error_of(path, Spec(limits=(3, 1))).startswith(":1: relation id 1 is out of range")
    assert error_of(path, Spec(limits=(2, 2))).startswith(":1: tail id 2 is out of range, allowed entity ids: 0 to 1")


@pytest.mark.parametrize(
    ("columns", "spec", "words"),
    [
        ({"a": ["x", None], "b": ["r", "r"], "c": ["y", "y"]}, Spec(), ":2: column 'a' is null"),
        ({"a": ["x", "x"], "b": ["r", ""], "c": ["y", "y"]}, Spec(), ":2: relation '' is empty"),
        ({"a": ["x", "x\ny"], "b": ["r", "r"], "c": ["y", "y"]}, Spec(), ":2: head 'x\\ny' is empty or holds NUL or a line end"),
        ({"a": [1.5], "b": ["r"], "c": ["y"]}, Spec(), "column 'a' holds double, expected strings"),
        ({"a": ["x"], "b": [1], "c": [1]}, Spec(limits=(5, 5)), "column 'a' holds string, expected integers"),
        ({"a": [0], "b": [0], "c": [pow(2, 64) - 1]}, Spec(limits=(5, 5)), ":1: tail id"),
        ({"a": ["x"], "b": ["r"]}, Spec(), "at least 3 columns"),
        ({"a": ["x"], "b": ["r"], "c": ["y"]}, Spec(weights=True), "fourth column"),
        ({"a": ["x"], "b": ["r"], "c": ["y"], "d": ["heavy"]}, Spec(weights=True), "column 'd' holds string"),
        ({"a": ["x"] * 2, "b": ["r"] * 2, "c": ["y"] * 2, "d": [1.0, -1.0]}, Spec(weights=True), ":2: weight '-1.0'"),
    ],
)
def test_wrong_parquet(tmp_path: Path, columns: dict[str, list[object]], spec: Spec, words: str) -> None:
    arrays = {
        name: pa.array(values, pa.uint64()) if values[0] == pow(2, 64) - 1 else pa.array(values)
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), tmp_path / "t.parquet")
    assert words in error_of(tmp_path / "t.parquet", spec)


def test_parquet_that_is_none(tmp_path: Path) -> None:
    assert "Parquet" in error_of(write(tmp_path / "t.parquet", GOOD))
    assert "decompress it" in error_of(write(tmp_path / "t.parquet.gz", GOOD))
    with pytest.raises(OptionError, match="--header"):
        triples(write(tmp_path / "t.parquet", GOOD), Spec(header=True))


# ---- N-Triples

NT = """# a comment

<http://a/s> <http://a/p> <http://a/o> .
<http://a/s>\t<http://a/p>\t"plain \\"text\\"\\n" . # another
_:b1 <http://a/p> "caf\\u00e9"@fr-CA .
<http://a/s><http://a/p>"1"^^<http://www.w3.org/2001/XMLSchema#integer>.
_:b1 <http://a/p> _:b.2 .
   <http://a/s> <http://a/p> _:x.
"""
NT_TRIPLES = [
    ("http://a/s", "http://a/p", "http://a/o"),
    ("http://a/s", "http://a/p", '"plain \\"text\\"\\n"'),
    ("_:b1", "http://a/p", '"caf\\u00e9"@fr-CA'),
    ("http://a/s", "http://a/p", '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'),
    ("_:b1", "http://a/p", "_:b.2"),
    ("http://a/s", "http://a/p", "_:x"),
]


@pytest.mark.parametrize("ending", list(CLOSERS))
def test_ntriples(tmp_path: Path, ending: str) -> None:
    assert triples(write(tmp_path / f"t.nt{ending}", NT)) == NT_TRIPLES
    assert triples(write(tmp_path / f"t.nt{ending}", NT.replace("\n", "\r\n"))) == NT_TRIPLES


@pytest.mark.parametrize(
    "line",
    [
        "<http://a/s> <http://a/p> <http://a/o>",
        "<http://a/s> <http://a/p> .",
        '"s" <http://a/p> <http://a/o> .',
        "<http://a/s> _:p <http://a/o> .",
        '<http://a/s> <http://a/p> "open .',
        "<a b> <http://a/p> <http://a/o> .",
        "a\tr\tb",
        "<http://a/s> <http://a/p> <http://a/o> . <http://a/s>",
    ],
)
def test_wrong_ntriples(tmp_path: Path, line: str) -> None:
    assert error_of(write(tmp_path / "t.nt", NT + line + "\n" + NT)).startswith(":9: expected an N-Triples statement")


def test_ntriples_refuse_other_options_and_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "t.nt", NT)
    for spec in (Spec("trh"), Spec(limits=(3, 3)), Spec(header=True), Spec(weights=True)):
        with pytest.raises(OptionError, match="N-Triples"):
            triples(path, spec)
    assert error_of(write(path, NT.encode() + b'_:a <http://p> "\xff" .\n')).startswith(":9: invalid UTF-8")
    assert error_of(write(path, NT + "_:a\0\n")).startswith(":9: NUL")
