"""One file over HTTP to one place on disk: resumed, counted, checked, and whole when it has its name.

The bytes come in at `NAME.part`; beside it `NAME.part.json` remembers which version of the file they belong to. It unpacks
nothing, knows no data set, and takes no lock: one process at a time is the caller's business.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kgdist.base import files
from kgdist.base.errors import CheckpointError, DataError, KgdistError
from kgdist.base.log import log
from kgdist.base.progress import bar

MAGIC = b"PK"  # what an archive begins with
PIECE = 1 << 18
MIB = 1 << 20
TRY_AGAIN = {408, 416, 425, 429, 500, 502, 503, 504}  # answers that may be better a little later
NETWORK = (OSError, http.client.HTTPException)  # what urllib raises; failures of the disk are KgdistError


class Patience(NamedTuple):
    """How long to wait for a server."""

    timeout: float = 30.0  # seconds for connecting, and for any silence
    attempts: int = 4  # failures in a row that end it; at least a MiB of progress starts the row anew
    delay: float = 1.0  # seconds before the second attempt, doubled for each one more


PATIENCE = Patience()


class _Begun(NamedTuple):
    """What the bytes in `NAME.part` are a part of."""

    url: str
    version: str  # a strong ETag, or the time of the last change: what If-Range asks with
    total: int


def fetch(url: str, target: Path, *, sha256: str | None = None, limit: int, advice: str, patience: Patience = PATIENCE) -> None:
    """Fetch the archive at `url` to `target`, going on with what an earlier call has left.

    `sha256`: hex, checked if given. `limit`: the most bytes it can plausibly have. `advice`: the next step, said in every error.
    Raises KgdistError if it cannot be fetched, DataError if it is not what was asked for. What has arrived stays for the next
    call if the server names a version of it, and unless it was wrong.
    """
    part = target.with_name(target.name + ".part")
    job = _Job(url, part, limit, advice, patience.timeout)
    failures, furthest = 0, 0
    while True:
        try:
            job.attempt()
            break
        except NETWORK as error:
            reason, again = _reason(error), _passes(error)
            size = part.stat().st_size if part.exists() else 0
            failures = 1 if size >= furthest + MIB else failures + 1
            furthest = max(furthest, size)
            if not again or failures >= patience.attempts:
                times = f", {failures} times in a row" if failures > 1 else ""
                kept = f"; {size:,} bytes are kept, the same command goes on from there" if _begun(url, part) else ""
                if not kept:
                    _forget(part)
                raise job.failure(f"{reason}{times}{kept}") from error
            pause = patience.delay * 2 ** (failures - 1)
            log.warning("%s: %s; trying again in %.3g s", url, reason, pause)
            time.sleep(pause)
    if sha256 is not None and (found := files.sha256(part)) != sha256.lower():
        _forget(part)
        raise DataError(url, f"its sha256 is {found}, expected {sha256.lower()}; it is thrown away, {advice}")
    os.replace(part, target)
    _forget(part)


def fetch_sha256(url: str, patience: Patience = PATIENCE) -> str | None:
    """The hash that a mirror publishes at `url` as `hex [name]`, or None if it publishes none."""
    try:
        with urllib.request.urlopen(_request(url), timeout=patience.timeout) as response:
            word, *_ = response.read(4096).split() or [b""]
    except NETWORK as error:
        log.debug("%s: no hash there (%s)", url, error)
        return None
    return word.decode().lower() if re.fullmatch(rb"[0-9a-fA-F]{64}", word) else None


class _Job(NamedTuple):
    """What `fetch` was asked for."""

    url: str
    part: Path
    limit: int
    advice: str
    timeout: float

    def failure(self, what: str) -> KgdistError:
        """The error that no other attempt will mend."""
        return KgdistError(f"{self.url}: {what}; {self.advice}")

    def attempt(self) -> None:
        """One connection. Raises one of NETWORK where another may succeed, KgdistError where none will."""
        begun = _begun(self.url, self.part)
        size = self.part.stat().st_size if begun else 0
        if begun and size == begun.total:
            return
        wanted = {"Range": f"bytes={size}-", "If-Range": begun.version} if begun else {}
        try:
            response = urllib.request.urlopen(_request(self.url, wanted), timeout=self.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # the file has become shorter than what we have of it
                _forget(self.part)
            raise
        with response:
            if self.url.startswith("https:") and not response.url.startswith("https:"):
                raise self.failure(f"leads to {response.url}, which is not encrypted")
            if response.status == 206 and begun:
                if not _continues(response.headers, size, begun):
                    _forget(self.part)
                    raise ConnectionError("the file on the server has changed since it was begun")
                self._receive(response, b"", size, begun.total)
            elif response.status == 200:
                total = _length(response.headers)
                first = self._first(response, total)
                version = _version(response.headers)
                _forget(self.part)
                if version and total:
                    files.write_json(_note(self.part), _Begun(self.url, version, total)._asdict())
                self._receive(response, first, 0, total)
            else:
                raise self.failure(f"the server gave the unexpected answer {response.status}")

    def _first(self, response: Any, total: int | None) -> bytes:
        """The first bytes of an archive that has room here: a log-in page is not taken for one."""
        first: bytes = response.read(len(MAGIC))
        if len(first) < len(MAGIC) and (total is None or total > len(first)):
            raise ConnectionError("the connection was cut at once")
        if first != MAGIC:
            html = first[:1] == b"<" or "html" in response.headers.get("Content-Type", "")
            page = "a web page (a log-in page of this network?)" if html else "something else"
            raise self.failure(f"the server sent {page} instead of the archive")
        if total is not None and total > self.limit:
            raise self.failure(f"has {total:,} bytes, expected at most {self.limit:,}")
        files.check_room(self.part, total or 0)
        return first

    def _receive(self, response: Any, piece: bytes, size: int, total: int | None) -> None:
        """Append `piece` and the rest of the body to `part`, which has `size` bytes."""
        most, name = self.limit if total is None else total, self.url.rpartition("/")[2]
        with bar(total=total, desc=name, unit="B", initial=size) as progress:
            while piece := piece or response.read1(PIECE):
                size += len(piece)
                if size > most:
                    raise self.failure(f"the server sends more than {most:,} bytes")
                try:
                    with self.part.open("ab") as file:
                        file.write(piece)
                except OSError as error:
                    raise KgdistError(f"{self.part}: cannot be written ({error.strerror or error})") from error
                progress.update(len(piece))
                piece = b""
        if total is not None and size < total:
            raise ConnectionError(f"the connection was cut after {size:,} of {total:,} bytes")


def _request(url: str, headers: Mapping[str, str] | None = None) -> urllib.request.Request:
    return urllib.request.Request(url, headers={"User-Agent": "kgdist", "Accept-Encoding": "identity", **(headers or {})})


def _version(headers: Mapping[str, str]) -> str | None:
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() else None


def _continues(headers: Mapping[str, str], size: int, begun: _Begun) -> bool:
    """Whether a 206 answer is the rest of what we have; a server may change its mind about what it was asked."""
    place, _, total = headers.get("Content-Range", "").rpartition("/")
    same = place == f"bytes {size}-{begun.total - 1}" and total in ("*", str(begun.total))
    return same and _version(headers) in (None, begun.version)


def _begun(url: str, part: Path) -> _Begun | None:
    """What is known of a `part` that can be continued from this `url`."""
    try:
        note: Any = files.read_json(_note(part))
        begun, size = _Begun(**note), part.stat().st_size
    except (CheckpointError, OSError, TypeError):
        return None
    sound = isinstance(begun.version, str) and begun.version.isprintable() and isinstance(begun.total, int)
    return begun if sound and begun.url == url and 0 < size <= begun.total else None


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _passes(error: Exception) -> bool:
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
