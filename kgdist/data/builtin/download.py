"""One file over HTTP to one place on disk: resumed, counted, checked, and whole when it has its name.

The bytes come in at `NAME.part`; beside it `NAME.part.json` remembers which version of the file they belong to. Only the standard
library is used. It unpacks nothing, knows no data set, and takes no lock: one process at a time is the caller's business.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kgdist.base import files
from kgdist.base.errors import CheckpointError, DataError, KgdistError
from kgdist.base.log import log
from kgdist.base.progress import bar

PIECE = 1 << 18
MIB = 1 << 20
TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}  # answers that may be better a little later


class Patience(NamedTuple):
    """How long to wait for a server."""

    timeout: float = 30.0  # seconds for connecting, and for any silence
    slowest: int = 1024  # bytes that each `timeout` seconds must bring, or the connection counts as cut
    attempts: int = 4  # failures in a row that end it; at least a MiB of progress starts the row anew
    delay: float = 1.0  # seconds before the second attempt, doubled for each one more


PATIENCE = Patience()


class _State(NamedTuple):
    """What the bytes in `NAME.part` are a part of."""

    url: str
    version: str  # a strong ETag, or the time of the last change
    total: int


def fetch(
    url: str,
    target: Path,
    *,
    magic: bytes = b"PK",
    sha256: str | None = None,
    limit: int,
    advice: str,
    patience: Patience = PATIENCE,
    beat: Callable[[], None] = lambda: None,
) -> None:
    """Fetch `url` to `target`, going on with what an earlier call has left.

    magic: what the content starts with, so that a log-in page is not taken for it.   sha256: hex, checked if given.
    limit: the most bytes it can plausibly have.   advice: the next step, said in every error.   beat: called as bytes arrive.

    Raises KgdistError if it cannot be fetched, DataError if it is not what was asked for. What has arrived stays for the next
    call if the server names a version of it, and unless it was wrong.
    """
    part = target.with_name(target.name + ".part")
    job = _Job(url, part, magic, limit, advice, patience, beat)
    failures, furthest = 0, 0
    while True:
        try:
            job.attempt()
            break
        except (OSError, http.client.HTTPException) as error:  # files raise KgdistError, so this is the network
            reason = _reason(error)
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            size = part.stat().st_size if part.exists() else 0
            failures = 1 if size >= furthest + MIB else failures + 1
            furthest = max(furthest, size)
            if not _passing(error) or failures >= patience.attempts:
                kept = ""
                if _resumable(url, part):
                    kept = f"; {size:,} bytes are kept, the same command goes on from there"
                else:
                    _forget(part)
                times = f", {failures} times in a row" if failures > 1 else ""
                raise KgdistError(f"{url}: {reason}{times}{kept}; {advice}") from error
            pause = patience.delay * 2 ** (failures - 1)
            log.warning("%s: %s; trying again in %.3g s", url, reason, pause)
            time.sleep(pause)
    if sha256 is not None and (found := files.sha256(part)) != sha256.lower():
        _forget(part)
        raise DataError(url, f"its sha256 is {found}, expected {sha256.lower()}; it is thrown away, {advice}")
    with _writing(part):
        os.replace(part, target)
    _forget(part)


def fetch_sha256(url: str, patience: Patience = PATIENCE) -> str | None:
    """The hash that a mirror publishes at `url` as `hex [name]`, or None if it publishes none."""
    try:
        with urllib.request.urlopen(_request(url), timeout=patience.timeout) as response:
            words = response.read(4096).split()
    except (OSError, http.client.HTTPException) as error:
        log.debug("%s: no hash there (%s)", url, error)
        return None
    if not words or not re.fullmatch(rb"[0-9a-fA-F]{64}", words[0]):
        return None
    return str(words[0].decode().lower())


@dataclass(frozen=True)
class _Job:
    """What `fetch` was asked for, and one connection's worth of doing it."""

    url: str
    part: Path
    magic: bytes
    limit: int
    advice: str
    patience: Patience
    beat: Callable[[], None]

    def attempt(self) -> None:
        """One connection. OSError and HTTPException are failures of the network, KgdistError is final."""
        state = _resumable(self.url, self.part)
        offset = self.part.stat().st_size if state else 0
        if state and offset == state.total:
            return
        wanted = {"Range": f"bytes={offset}-", "If-Range": state.version} if state else {}
        try:
            response = urllib.request.urlopen(_request(self.url, wanted), timeout=self.patience.timeout)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            error.close()  # the file has become shorter than what we have of it
            raise self._changed() from error
        with response:
            if self.url.startswith("https:") and not response.url.startswith("https:"):
                raise KgdistError(f"{self.url}: leads to {response.url}, which is not encrypted; {self.advice}")
            if response.status == 206 and state:
                if not _continues(response.headers, offset, state):
                    raise self._changed()
                self._receive(response, b"", offset, state.total)
            elif response.status == 200:
                total = _length(response.headers)
                first = self._sniff(response, total)
                self._check_room(total)
                _forget(self.part)
                _remember(self.part, self.url, response.headers, total)
                self._receive(response, first, 0, total)
            else:
                raise KgdistError(f"{self.url}: the server gave the unexpected answer {response.status}; {self.advice}")

    def _changed(self) -> ConnectionError:
        _forget(self.part)
        return ConnectionError("the file on the server has changed since it was begun")

    def _sniff(self, response: Any, total: int | None) -> bytes:
        """The first bytes, which must be `magic`."""
        first: bytes = response.read(len(self.magic))
        if first == self.magic:
            return first
        if len(first) < len(self.magic) and (total is None or total > len(first)):
            raise ConnectionError("the connection was cut at once")
        html = first[:1] == b"<" or "html" in response.headers.get("Content-Type", "")
        page = "a web page (a log-in page of this network?)" if html else "something else"
        raise KgdistError(f"{self.url}: the server sent {page} instead of the archive; {self.advice}")

    def _check_room(self, total: int | None) -> None:
        if total is not None and total > self.limit:
            raise KgdistError(f"{self.url}: has {total:,} bytes, expected at most {self.limit:,}; {self.advice}")
        free = files.free_bytes(self.part.parent)
        if total is not None and total > free:
            raise KgdistError(f"{self.part.parent}: {total:,} bytes are needed to fetch {self.url}, {free:,} are free")

    def _receive(self, response: Any, first: bytes, offset: int, total: int | None) -> None:
        """Append the body to `part`. Raises ConnectionError if it ends early or comes too slowly."""
        most = self.limit if total is None else total
        size, mark, due = offset, offset, time.monotonic() + self.patience.timeout
        name = self.url.rpartition("/")[2]
        with _writing(self.part), self.part.open("ab") as file, bar(total=total, desc=name, unit="B", initial=offset) as progress:
            piece = first or _read(response)
            while piece:
                size += len(piece)
                if size > most:
                    raise KgdistError(f"{self.url}: the server sends more than {most:,} bytes; {self.advice}")
                file.write(piece)
                progress.update(len(piece))
                self.beat()
                if time.monotonic() > due:
                    if size - mark < self.patience.slowest:
                        raise _Cut(f"less than {self.patience.slowest} bytes came in {self.patience.timeout:g} s")
                    mark, due = size, time.monotonic() + self.patience.timeout
                piece = _read(response)
        if total is not None and size < total:
            raise ConnectionError(f"the connection was cut after {size:,} of {total:,} bytes")


class _Cut(Exception):
    """The network failed while a file was open; not an OSError, so that it is not taken for one of the disk."""


def _read(response: Any) -> bytes:
    try:
        return bytes(response.read1(PIECE))
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(_reason(error)) from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Failures of the disk become KgdistError, failures of the network ConnectionError."""
    try:
        yield
    except OSError as error:
        raise KgdistError(f"{path}: cannot be written ({error.strerror or error})") from error
    except _Cut as cut:
        raise ConnectionError(str(cut)) from cut


def _request(url: str, headers: Mapping[str, str] | None = None) -> urllib.request.Request:
    return urllib.request.Request(url, headers={"User-Agent": "kgdist", "Accept-Encoding": "identity", **(headers or {})})


def _version(headers: Mapping[str, str]) -> str | None:
    """What If-Range may be asked with: a strong ETag, or else a date."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() else None


def _continues(headers: Mapping[str, str], offset: int, state: _State) -> bool:
    """Whether a 206 answer is the rest of what we have; a server may change its mind about what it was asked."""
    place = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", headers.get("Content-Range", ""))
    if place is None or int(place[1]) != offset or int(place[2]) != state.total - 1:
        return False
    return place[3] in ("*", str(state.total)) and _version(headers) in (None, state.version)


def _remember(part: Path, url: str, headers: Mapping[str, str], total: int | None) -> None:
    version = _version(headers)
    if version and total:
        files.write_json(_note(part), {"url": url, "version": version, "total": total})


def _resumable(url: str, part: Path) -> _State | None:
    """What is known of a `part` that can be continued from this `url`."""
    try:
        note = files.read_json(_note(part))
        state = _State(note["url"], note["version"], note["total"])
        size = part.stat().st_size
    except (CheckpointError, OSError, LookupError, TypeError):
        return None
    sound = isinstance(state.version, str) and state.version.isprintable() and isinstance(state.total, int)
    return state if sound and state.url == url and 0 < size <= state.total else None


def _forget(part: Path) -> None:
    with _writing(part):
        part.unlink(missing_ok=True)
        _note(part).unlink(missing_ok=True)


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _passing(error: Exception) -> bool:
    """Whether it may work a little later."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in TRY_AGAIN
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return not isinstance(cause, ssl.SSLCertVerificationError | http.client.InvalidURL)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}".rstrip()
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate of the server is not accepted ({cause.verify_message})"
    text = (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__
    return " ".join(text.split())
