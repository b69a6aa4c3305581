"""Parsers: what is written in any format comes back, and every wrong row is named by file and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import DataError, OptionError
from kgdist.data.read.columns import Spec
from kgdist.data.read.formats import ORDERS, Format, check_delimiter, user_files
from kgdist.data.read.lines import MAX_LINE
from tests.data.graphs import CLOSERS, Triple, error_of, in_order, triples, write

DELIMITERS = ("\t", ",", "|", " ", "||", "→", "\x01", "ab", "é", " ; ")
NAME = st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=("Cs",)), min_size=1, max_size=8)


def names_without(delimiter: str) -> st.SearchStrategy[str]:
    """Names that neither hold the delimiter nor could form one with what stands beside them."""
    return NAME.filter(lambda name: not set(name) & set(delimiter))


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


@settings(max_examples=40)
@given(st.lists(st.tuples(NAME, NAME, NAME), min_size=1, max_size=30), st.integers(4, 40))
def test_blocks_do_not_show(tmp_path_factory: pytest.TempPathFactory, wanted: list[Triple], size: int) -> None:
    wanted = [(h.replace("\t", "_"), r.replace("\t", "_"), t.replace("\t", "_")) for h, r, t in wanted]
    text = "\ufeff" + "".join("\t".join(triple) + "\r\n" for triple in wanted)
    path = write(tmp_path_factory.getbasetemp() / "blocks", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgdist.data.read.lines.BLOCK", size)
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
        lines = data.split(b"\n")
        while lines and not lines[-1].strip(b"\r"):
            lines.pop()  # blank lines at the end, however they end
        assert len(found) == 1 + len(lines)


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
    monkeypatch.setattr("kgdist.data.read.lines.BLOCK", 8)
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
        ('"a\tr"\tb\tc\n', 2, "expected 3 tab-separated fields, found 4; give --quoted"),
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
    name = "x" * (MAX_LINE - 4)
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
