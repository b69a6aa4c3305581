"""Which host keys are trusted: OpenSSH's known_hosts files, read line by line, and the judgement of one key.

paramiko's own reader fails on files with `@revoked` or `@cert-authority` lines and knows no wildcards, so this is the whole of
it: hashed names, `*`, `?`, `!`, `[host]:port`, both markers. A host that is known by a key of another kind only is not "new":
whoever stands between could offer that kind, so it counts as changed. Nothing here reaches a machine.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kgdist.base.errors import UsageError, one_line
from kgdist.base.log import log
from kgdist.runtime.channels.ssh_config import Login

_APPENDING = threading.Lock()  # machines are reached side by side, and each may add a line


@dataclass(frozen=True)
class HostKey:
    """One line of a known_hosts file."""

    place: str  # file:line
    marker: str  # "", "@revoked" or "@cert-authority"
    patterns: tuple[str, ...]
    kind: str  # ssh-ed25519, ssh-rsa, ...
    blob: bytes

    def names(self, host: str) -> bool:
        """Whether the line is about `host`, a name or `[name]:port` in lower case."""
        matching = [pattern for pattern in self.patterns if _matches(pattern, host)]
        return bool(matching) and not any(pattern.startswith("!") for pattern in matching)


@dataclass(frozen=True)
class HostVerdict:
    """What is to be thought of a key: "known", "unknown", "changed" or "revoked", and the line that says so."""

    word: str
    place: str = ""


class KnownHosts:
    """The lines of all files that hold for this user."""

    def __init__(self, lines: Iterable[HostKey]) -> None:
        self.lines = tuple(lines)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> KnownHosts:
        """Files that are not there are empty. Raises OSError for one that is there and cannot be read: it may revoke a key."""
        lines: list[HostKey] = []
        for path in paths:
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                continue
            lines += parse_known_hosts(text, str(path))
        return cls(lines)

    def about(self, host: str, port: int) -> list[HostKey]:
        """The lines about sshd on that port of that host."""
        name = host_name(host, port)
        return [line for line in self.lines if line.names(name)]

    def kinds(self, host: str, port: int) -> list[str]:
        """Kinds of keys by which the host is known, to ask it for one of those."""
        return list(dict.fromkeys(line.kind for line in self.about(host, port) if not line.marker))

    def judge(self, host: str, port: int, blob: bytes) -> HostVerdict:
        """What to think of the public key `blob` that the host has shown."""
        lines = self.about(host, port)
        bare = [line for line in self.lines if line.names(host.lower())]  # OpenSSH takes these, too, when they have this very key
        for line in (*lines, *bare):
            if line.marker == "@revoked" and line.blob == blob:
                return HostVerdict("revoked", line.place)
        plain = [line for line in lines if not line.marker]
        for line in (*plain, *(line for line in bare if not line.marker)):
            if line.blob == blob:
                return HostVerdict("known", line.place)
        if plain:
            return HostVerdict("changed", plain[0].place)
        authority = next((line.place for line in lines if line.marker == "@cert-authority"), "")
        return HostVerdict("unknown", authority)


def parse_known_hosts(text: str, name: str) -> list[HostKey]:
    """The lines of a file called `name`; what cannot be understood is skipped, as OpenSSH does: it makes no key known."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked", "@cert-authority"):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        found.append(HostKey(f"{name}:{number}", marker, tuple(fields[0].split(",")), fields[1], blob))
    return found


def host_name(host: str, port: int) -> str:
    """How known_hosts calls sshd on that port of that host."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def fingerprint(blob: bytes) -> str:
    """The key as `ssh` shows it: SHA256:..."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def remember(path: Path, host: str, port: int, kind: str, blob: bytes, *, hashed: bool = False) -> None:
    """Append a key, as OpenSSH's accept-new does. Raises OSError."""
    name = host_name(host, port)
    if hashed:
        salt = os.urandom(20)
        name = "|1|" + "|".join(base64.b64encode(part).decode() for part in (salt, _hash(salt, name)))
    with _APPENDING:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
            torn = size > 0 and file.read(1) != b"\n"
            file.write(b"\n" * torn + f"{name} {kind} {base64.b64encode(blob).decode()}\n".encode())
            file.flush()
            os.fsync(file.fileno())


def check_host_key(login: Login, known: KnownHosts, kind: str, blob: bytes, *, accept_new: bool) -> None:
    """Raises UsageError unless the key that a host has shown is known, or is new and `accept_new` (it is then remembered)."""
    verdict = known.judge(login.alias, login.port, blob)
    what = f"{login.shown}: ssh: its host key ({kind} {fingerprint(blob)})"
    if verdict.word == "known":
        return
    if verdict.word == "revoked":
        raise UsageError(one_line(f"{what} is revoked by {verdict.place}; it must not be used any more"))
    if verdict.word == "changed":
        advice = "if the machine was reinstalled, delete that line; if not, somebody may be listening"
        raise UsageError(one_line(f"{what} is not the one of {verdict.place}; {advice}"))
    if verdict.place:
        log.warning("%s: @cert-authority is not supported, so %s needs a host key of its own there", verdict.place, login.host)
    if not accept_new:
        raise UsageError(one_line(f"{what} is unknown; run `{login.command}` once and compare, or give --accept_new_host_keys"))
    try:
        remember(login.known_hosts[0], login.alias, login.port, kind, blob, hashed=login.hashed)
    except (OSError, IndexError) as error:
        log.warning("%s is accepted, but could not be saved (%s)", what, error)
    else:
        log.info("%s is new, and now in %s", what, login.known_hosts[0])


def _hash(salt: bytes, name: str) -> bytes:
    return hmac.new(salt, name.encode(), hashlib.sha1).digest()  # the format's choice; it hides names, it protects nothing


def _matches(pattern: str, host: str) -> bool:
    if pattern.startswith("|1|"):
        try:
            salt, code = (base64.b64decode(part, validate=True) for part in pattern[3:].split("|"))
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(_hash(salt, host), code)
    wildcards = re.escape(pattern.removeprefix("!").lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wildcards, host) is not None
