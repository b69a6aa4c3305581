"""A data file as blocks of whole lines: compression, byte-order mark, header, blank last lines, bytes that no line may hold.

Memory stays within a few blocks however large the file is. Nothing here knows what a line means; see text.py and
dictionary.py.

Line ends are LF or CRLF. The last line may lack one, and blank lines at the end of a file (also such as hold carriage returns
only) are dropped; blank lines elsewhere are passed on, to be refused by the reader. A carriage return anywhere else (also as
a lone line end of old systems) is refused, as is NUL.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from kgdist.base.errors import DataError

BLOCK = 4 << 20  # bytes read at once
MAX_LINE = 1 << 20
BOM = b"\xef\xbb\xbf"
COMPRESSED = (".gz", ".xz", ".zst", ".bz2")


class Lines(NamedTuple):
    """Whole lines of a file, exactly as they stand in it; only the very last line may have been given a line feed."""

    raw: bytes
    line: int  # number of the first line, from 1
    offset: int  # of the first byte in the (decompressed) file


def suffix(path: Path) -> str:
    """What the file is once decompressed: ".parquet", ".nt", ".txt", ... in lower case."""
    return Path(path.stem if path.suffix.lower() in COMPRESSED else path.name).suffix.lower()


def find(folder: Path, name: str) -> Path | None:
    """The file of that name in the folder, plain or compressed."""
    return next((folder / (name + end) for end in ("", *COMPRESSED) if (folder / (name + end)).exists()), None)


def split_file(folder: Path, split: str) -> Path | None:
    """The file of a split in the folder of a data set: text as DGL-KE or as kgdist-split writes it, else Parquet."""
    parquet = folder / f"{split}.parquet"
    return find(folder, f"{split}.txt") or find(folder, f"{split}.tsv") or (parquet if parquet.exists() else None)


def reason(error: Exception) -> str:
    """The words of an OSError without its number, or of another error on one line."""
    return (isinstance(error, OSError) and error.strerror) or " ".join(str(error).split()) or type(error).__name__


def check_file(path: Path, expected: str) -> os.stat_result:
    """The file's status. Raises DataError unless it is a readable, regular file of at least one byte; `expected` says what
    it should hold.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise DataError(path, f"is a folder, expected a file with {expected}")
        if not stat.S_ISREG(status.st_mode):
            raise DataError(path, "is not a regular file, and data are read more than once; write them to a file first")
        with path.open("rb"):
            pass
    except FileNotFoundError as error:
        raise DataError(path, f"no such file, expected {expected}") from error
    except (OSError, ValueError) as error:
        raise DataError(path, f"cannot be read ({reason(error)})") from error
    if status.st_size == 0:
        raise DataError(path, f"is empty, expected {expected}")
    return status


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed as its suffix says. Raises DataError for a file that cannot be read or is damaged."""
    kind = path.suffix.lower()
    damages: list[type[Exception]] = [EOFError, lzma.LZMAError, zlib.error, OSError, ValueError]
    try:
        with contextlib.ExitStack() as stack:
            raw: Any = stack.enter_context(path.open("rb"))
            if kind == ".gz":
                raw = stack.enter_context(gzip.GzipFile(fileobj=raw))
            elif kind == ".xz":
                raw = stack.enter_context(lzma.LZMAFile(raw))
            elif kind == ".bz2":
                raw = stack.enter_context(bz2.BZ2File(raw))
            elif kind == ".zst":
                import pyarrow as pa

                damages.append(pa.ArrowException)
                raw = stack.enter_context(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))
            yield raw
    except tuple(damages) as error:
        # Decompressors raise OSError for bad bytes, too, but then without a number of the system's.
        damaged = kind in COMPRESSED and getattr(error, "errno", None) is None
        what = "damaged or cut short, cannot be decompressed" if damaged else "cannot be read"
        raise DataError(path, f"{what} ({reason(error)})") from error


def blocks(path: Path, *, header: bool = False) -> Iterator[Lines]:
    """Yield the file's lines, some megabytes at a time; `header` drops the first line. Raises DataError (unreadable, line
    over 1 MiB).
    """
    with open_bytes(path) as stream:
        carry, line, offset = b"", 1, 0
        while piece := stream.read(BLOCK):
            data = carry + piece
            if offset == 0 and line == 1 and not carry and data.startswith(BOM):
                data, offset = data[len(BOM) :], len(BOM)
            cut = _content_end(data)
            if cut:
                yield from _without_header(Lines(data[:cut], line, offset), header)
                line, offset = line + _feeds(data, cut), offset + cut
            carry = data[cut:]
            if len(carry) > MAX_LINE:
                blank = carry.startswith((b"\n", b"\r\n"))
                raise DataError(path, "blank line" if blank else f"line is longer than {MAX_LINE:,} bytes", line=line)
        if carry.strip(b"\r\n"):
            yield from _without_header(Lines(carry if carry.endswith(b"\n") else carry + b"\n", line, offset), header)


def _feeds(data: bytes, end: int) -> int:
    """How many line feeds there are before `end`: `bytes.count`, three times as fast."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, end) == ord("\n")))


def _content_end(data: bytes) -> int:
    """Where the last whole line that is not blank ends; 0 if there is none."""
    last = data.rfind(b"\n") + 1
    if last > 1 and data[last - 2] not in b"\r\n":
        return last  # as nearly always, without copying the block
    end = len(data[:last].rstrip(b"\r\n"))
    return data.index(b"\n", end) + 1 if end else 0


def _without_header(block: Lines, header: bool) -> Iterator[Lines]:
    if header and block.line == 1:
        end = block.raw.index(b"\n") + 1
        block = Lines(block.raw[end:], 2, block.offset + end)
    if block.raw:
        yield block


def plain(raw: bytes) -> bytes | None:
    """The lines with LF ends, or None if a byte is refused (NUL, lone carriage return) or a line is too long: `each_line` says
    which."""
    text = raw.replace(b"\r\n", b"\n") if b"\r" in raw else raw
    if b"\r" in text or b"\0" in text:
        return None
    half = MAX_LINE // 2
    for start in range(0, len(text), half):
        # A window without a line end may be part of a long line: only then are lines measured.
        if text.find(b"\n", start, start + half) < 0 and max(map(len, text.split(b"\n"))) > MAX_LINE:
            return None
    return text


def each_line(block: Lines) -> Iterator[tuple[int, bytes, str | None]]:
    """The lines, slowly: number, line without its end, and what is wrong with it whatever it should hold, if anything."""
    offset = block.offset
    for number, line in enumerate(block.raw.split(b"\n")[:-1], block.line):
        yield number, line.removesuffix(b"\r"), _wrong_bytes(line.removesuffix(b"\r"), offset)
        offset += len(line) + 1


def _wrong_bytes(line: bytes, offset: int) -> str | None:
    if len(line) > MAX_LINE:
        return f"line is longer than {MAX_LINE:,} bytes"
    if b"\0" in line:
        return f"NUL byte at offset {offset + line.index(0)}; text files must not hold any (is this a binary or UTF-16 file?)"
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 at byte offset {offset + error.start}; convert the file to UTF-8"
    if b"\r" in line:
        return f"carriage return inside a line (byte offset {offset + line.index(13)}); lines must end in LF or CRLF"
    return None if line else "blank line"
