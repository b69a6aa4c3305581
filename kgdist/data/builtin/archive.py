"""A zip archive of one data set: fetched over HTTP, resumed and checked, and unpacked without trusting it.

The bytes come in at `NAME.part`; beside it `NAME.part.json` remembers which version of the file they belong to. Nothing is ever
written outside of the folder to fill; links, odd names and more bytes than announced are refused before the first file is made.
It knows no data set, and takes no lock: one process at a time is the caller's business.
"""

from __future__ import annotations

import errno
import http.client
import os
import re
import ssl
import stat
import struct
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kgdist.base import files
from kgdist.base.errors import CheckpointError, DataError, KgdistError
from kgdist.base.log import bar, log

MAGIC = b"PK"  # what an archive begins with
PIECE, MIB = 1 << 18, 1 << 20
TRY_AGAIN = {408, 416, 425, 429, 500, 502, 503, 504}  # answers that may be better a little later
NETWORK = (OSError, http.client.HTTPException)  # what urllib raises; failures of the disk are KgdistError
MAX_MEMBERS = 1000
MARGIN = 16 << 20  # bytes of the disk that stay free
# Besides its own error, zipfile lets through what its parts make of damaged bytes.
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError)
LITTER = ("__MACOSX/", ".DS_Store")  # what archives made on a Mac carry along


class Patience(NamedTuple):
    """How long to wait for a server."""

    timeout: float = 30.0  # seconds for connecting, and for any silence
    attempts: int = 4  # failures in a row that end it; at least a MiB of progress starts the row anew
    delay: float = 1.0  # seconds before the second attempt, doubled for each one more


PATIENCE = Patience()


class _Hopeless(Exception):
    """What no other attempt will mend."""


def fetch(url: str, target: Path, *, sha256: str | None = None, limit: int, advice: str, patience: Patience = PATIENCE) -> None:
    """Fetch the archive at `url` to `target`, going on with what an earlier call has left.

    `sha256`: hex, checked if given. `limit`: the most bytes it can plausibly have. `advice`: the next step, said in every error.
    Raises KgdistError if it cannot be fetched, DataError if it is not what was asked for. What has arrived stays for the next
    call if the server names a version of it, and unless it was wrong.
    """
    part = target.with_name(target.name + ".part")
    failures, furthest = 0, 0
    while True:
        try:
            _attempt(url, part, limit, patience.timeout)
            break
        except _Hopeless as error:
            raise KgdistError(f"{url}: {error}; {advice}") from error
        except NETWORK as error:
            reason, again = _judged(error)
            if getattr(error, "code", 0) == 416:  # the file has become shorter than what we have of it
                _forget(part)
            size = part.stat().st_size if part.exists() else 0
            failures = 1 if size >= furthest + MIB else failures + 1
            furthest = max(furthest, size)
            if not again or failures >= patience.attempts:
                times = f", {failures} times in a row" if failures > 1 else ""
                kept = f"; {size:,} bytes are kept, the same command goes on from there" if _begun(url, part) else ""
                if not kept:
                    _forget(part)
                raise KgdistError(f"{url}: {reason}{times}{kept}; {advice}") from error
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


def _attempt(url: str, part: Path, limit: int, timeout: float) -> None:
    """Append what one connection gives. Raises one of NETWORK where another may give more, _Hopeless where none will."""
    begun = _begun(url, part)
    version, total = begun or ("", None)
    size, piece = part.stat().st_size if begun else 0, b""
    if size == total:
        return
    wanted = {"Range": f"bytes={size}-", "If-Range": version} if begun else {}
    with urllib.request.urlopen(_request(url, wanted), timeout=timeout) as response:
        if url.startswith("https:") and not response.url.startswith("https:"):
            raise _Hopeless(f"leads to {response.url}, which is not encrypted")
        found = _version(response.headers)
        if response.status == 206 and total is not None:
            # A server may change its mind about what it was asked.
            places = {f"bytes {size}-{total - 1}/{whole}" for whole in (total, "*")}
            if response.headers.get("Content-Range") not in places or found not in (None, version):
                _forget(part)
                raise ConnectionError("the file on the server has changed since it was begun")
        elif response.status == 200:
            length = response.headers.get("Content-Length", "")
            size, total, piece = 0, int(length) if length.isascii() and length.isdigit() else None, response.read(len(MAGIC))
            _refuse_other(piece, total, limit, response.headers)
            files.check_room(part, total or 0)
            _forget(part)
            if found and total:
                files.write_json(_note(part), {"url": url, "version": found, "total": total})
        else:
            raise _Hopeless(f"the server gave the unexpected answer {response.status}")
        most = limit if total is None else total
        with bar(total=total, desc=url.rpartition("/")[2], unit="B", initial=size) as progress:
            while piece := piece or response.read1(PIECE):
                size += len(piece)
                if size > most:
                    raise _Hopeless(f"the server sends more than {most:,} bytes")
                try:
                    with part.open("ab") as file:
                        file.write(piece)
                except OSError as error:
                    raise KgdistError(f"{part}: cannot be written ({error.strerror or error})") from error
                progress.update(len(piece))
                piece = b""
    if total is not None and size < total:
        raise ConnectionError(f"the connection was cut after {size:,} of {total:,} bytes")


def _refuse_other(first: bytes, total: int | None, limit: int, headers: Mapping[str, str]) -> None:
    """Raise, as `_attempt` does, for an answer that begins otherwise than an archive, or is larger than it can be."""
    if len(first) < len(MAGIC) and (total is None or total > len(first)):
        raise ConnectionError("the connection was cut at once")
    if first != MAGIC:
        html = first[:1] == b"<" or "html" in headers.get("Content-Type", "")
        page = "a web page (a log-in page of this network?)" if html else "something else"
        raise _Hopeless(f"the server sent {page} instead of the archive")
    if total is not None and total > limit:
        raise _Hopeless(f"has {total:,} bytes, expected at most {limit:,}")


def _request(url: str, headers: Mapping[str, str] | None = None) -> urllib.request.Request:
    return urllib.request.Request(url, headers={"User-Agent": "kgdist", "Accept-Encoding": "identity", **(headers or {})})


def _version(headers: Mapping[str, str]) -> str | None:
    """A strong ETag, or the time of the last change: what If-Range asks with."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _begun(url: str, part: Path) -> tuple[str, int] | None:
    """(version, bytes in all) of the file whose beginning is in `part`, if it can be continued from this `url`."""
    try:
        note = files.read_json(_note(part))
        version, total, size = note["version"], note["total"], part.stat().st_size
        sound = note["url"] == url and isinstance(version, str) and version.isprintable() and isinstance(total, int)
        return (version, total) if sound and 0 < size <= total else None
    except (CheckpointError, OSError, LookupError, TypeError):
        return None


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _judged(error: Exception) -> tuple[str, bool]:
    """A failure of the network in words, and whether it may pass."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"the server answered {error.code} {error.reason}".rstrip(), error.code in TRY_AGAIN
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "no answer in time", True
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate of the server is not accepted ({cause.verify_message})", False
    text = (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__
    return " ".join(text.split()), not isinstance(cause, http.client.InvalidURL)


def unpack(archive: Path, folder: Path, *, limit: int) -> None:
    """Unpack `archive` into the empty `folder`; a folder at the top of all members is taken away.

    `limit` is the most bytes that the data set can plausibly have. Raises DataError for an archive that is damaged or hostile,
    KgdistError if the disk is too small or cannot be written; `folder` may then be half filled.
    """
    if not archive.is_file():
        raise DataError(archive, "no such file")
    try:
        with zipfile.ZipFile(archive) as zipped:
            members = _checked(archive, zipped)
            need = sum(member.file_size for member in members.values())
            if need > limit:
                raise DataError(archive, f"would unpack to {need:,} bytes, this data set has at most {limit:,}; not unpacked")
            files.check_room(folder, need + MARGIN)
            with bar(total=need, desc=f"unpacking {archive.name.lstrip('.')}", unit="B") as progress:
                for name, member in members.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    left = member.file_size  # the size in the directory of an archive is only a claim
                    with zipped.open(member) as source, (folder / name).open("xb") as target:
                        while (piece := source.read(PIECE)) and (left := left - len(piece)) >= 0:
                            target.write(piece)
                            progress.update(len(piece))
                    if left != 0:
                        raise zipfile.BadZipFile(f"{member.filename!r} does not have the size that is announced")
    except DAMAGE as error:
        raise DataError(archive, f"not a sound zip archive ({error})") from error
    except OSError as error:
        if error.errno == errno.EINVAL:  # a place in the archive before its start
            raise DataError(archive, f"not a sound zip archive ({error.strerror})") from error
        raise KgdistError(f"{folder}: cannot be written ({error.strerror or error})") from error


def _checked(archive: Path, zipped: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Path inside the folder -> member, for the files of the archive. Raises DataError for members that no data set has."""
    members = [member for member in zipped.infolist() if not member.filename.startswith(LITTER[0])]
    members = [member for member in members if not member.is_dir() and Path(member.filename).name != LITTER[1]]
    if not 0 < len(members) <= MAX_MEMBERS:
        raise DataError(archive, f"holds {len(members)} files, expected 1 to {MAX_MEMBERS}")
    tops = {member.filename.partition("/")[0] for member in members}
    skip = 1 if len(tops) == 1 and all("/" in member.filename for member in members) else 0
    found: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        name = member.filename
        parts = name.split("/")
        # orig_filename still has what zipfile cut off (NUL) or turned round (a backslash, on some systems).
        if any(part in ("", ".", "..") for part in parts) or ":" in name or set("\\\0") & set(member.orig_filename):
            raise DataError(archive, f"refused, its member {member.orig_filename!r} would leave the folder or has an odd name")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise DataError(archive, f"refused, its member {name!r} is a link or a device, not a file")
        if member.flag_bits & 1:
            raise DataError(archive, f"refused, its member {name!r} is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(archive, f"its member {name!r} is compressed in an unusual way; pack it again with plain zip")
        if found.setdefault("/".join(parts[skip:]), member) is not member:
            raise DataError(archive, f"refused, it holds {name!r} twice")
    return found
