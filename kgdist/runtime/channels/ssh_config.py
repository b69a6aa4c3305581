"""How one host is reached over SSH: the options of the command line, before ssh_config, before OpenSSH's defaults.

Pure: texts and mappings in, a `Login` out. `kgdist.runtime.channels.ssh` reads the files and connects.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kgdist.base.errors import OptionError, UsageError, one_line
from kgdist.runtime.processes.forkserver import program

_SPEC = re.compile(r"(?:(?P<user>[^@]+)@)?(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^@:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")
_NAME = re.compile(r"[^\s\0-\x1f'\"`$\\;&<>|(){}-][^\s\0-\x1f'\"`$\\;&<>|(){}]*")  # of users and hosts, after OpenSSH's own rule
_SECTION = re.compile(r"(?i)(host|match)\b")
_INCLUDE = re.compile(r"(?i)include(?:\s*=\s*|\s+)(.+)")
_DEPTH = 16  # of files that include files, as in OpenSSH


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """The options that say how machines are reached; their meaning stands in `kgdist.options.cluster`."""

    ssh_user: str | None = None
    ssh_port: int | None = None
    ssh_key: str | None = None
    ssh_config: str | None = None
    jump_host: str | None = None
    remote_python: str | None = None
    accept_new_host_keys: bool = False

    @classmethod
    def of(cls, config: Any) -> SshOptions:
        """The part of a `kgdist.options.config.Config` that they are."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})

    @property
    def python(self) -> str:
        """Path of the machines' Python: unless it is given, that of this process."""
        return self.remote_python or sys.executable


@dataclass(frozen=True)
class Login:
    """One host, and how to get in."""

    host: str  # as asked for
    address: str  # name or address to connect to
    port: int
    user: str
    keys: tuple[str, ...]  # private key files to try, in order
    named: bool  # whether somebody named those files; otherwise they are OpenSSH's usual ones
    only: bool  # of the agent's keys only those that belong to these files
    jump: str | None  # [user@]host[:port] of the host between
    alias: str  # what known_hosts calls it
    known_hosts: tuple[Path, ...]  # files of trusted host keys; new ones are added to the first
    hashed: bool  # whether new lines of known_hosts hide the name

    @property
    def shown(self) -> str:
        """For messages: the host, and how it is called when it differs."""
        place = self.address if self.port == 22 else f"port {self.port} of {self.address}"
        return self.host if place == self.host else f"{self.host} ({place})"

    @property
    def command(self) -> str:
        """What a person would type to get in."""
        port = f"-p {self.port} " if self.port != 22 else ""
        jump = f"-J {self.jump} " if self.jump else ""
        return f"ssh {jump}{port}{self.user}@{self.host}"


def login_of(spec: str, lookup: Callable[[str], Mapping[str, Any]], options: SshOptions, *, jumping: bool = False) -> Login:
    """How to reach `spec`, a host or [user@]host[:port]; `lookup` gives ssh_config's settings of a host, in lower case.

    A jump host (`jumping`) has its own user and port. Raises UsageError for what is not supported: it names it.
    """
    user, host, port = _parts(spec)
    found = lookup(host)

    def said(name: str, default: str) -> str:
        value = found.get(name)
        return default if value is None else str(value)

    if not jumping:
        user, port = options.ssh_user or user, options.ssh_port or port
    user = user or said("user", "") or (jumping and options.ssh_user) or _this_user()
    for what, value in (("user", user), ("host", host), ("HostName", said("hostname", host))):
        if not _NAME.fullmatch(value):
            raise UsageError(one_line(f"{host[:60]}: ssh: {what} {value[:60]!r} has letters that no {what.lower()} has"))
    if said("proxycommand", "none").lower() != "none" and not options.jump_host:
        raise UsageError(f"{host}: ssh_config gives a ProxyCommand, which is not supported; name the host between by --jump_host")
    jump = said("proxyjump", "none")
    if jumping and jump.lower() != "none" and _parts(jump)[1] != host:  # a pattern like * names it as its own jump host
        raise UsageError(f"{host}: ssh_config reaches this jump host through {jump}; one jump is supported")
    jump = "none" if jumping else options.jump_host or jump
    if "," in jump:
        raise UsageError(f"{host}: one jump host is supported, not {jump!r}")
    config_port = said("port", "22")
    if port is None and not (config_port.isascii() and config_port.isdigit() and 1 <= int(config_port) <= 65535):
        raise UsageError(f"{host}: ssh_config gives the port {config_port!r}; expected 1 to 65535")
    named = [options.ssh_key] if options.ssh_key else list(found.get("identityfile", ()))
    files = [*_paths(said("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"))]
    files += _paths(said("globalknownhostsfile", "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"))
    address = said("hostname", host)
    return Login(
        host=host,
        address=address,
        port=port or int(config_port),
        user=user,
        keys=tuple(os.path.expanduser(key) for key in named or [f"~/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")]),
        named=bool(named),
        only=bool(options.ssh_key) or said("identitiesonly", "no").lower() == "yes",
        jump=None if jump.lower() == "none" else jump,
        alias=said("hostkeyalias", address),
        known_hosts=tuple(files),
        hashed=said("hashknownhosts", "no").lower() == "yes",
    )


def with_includes(text: str, folder: Path, warn: Callable[[str], None], depth: int = 0) -> str:
    """`text` of an ssh_config with the files that it includes; those inside a Host or Match section are only warned of.

    paramiko's parser knows no Include. After an included file the rest counts for all hosts again, as in OpenSSH.
    """
    lines: list[str] = []
    for number, line in enumerate(text.split("\n")):
        bare = line.strip()
        if _SECTION.match(bare):
            rest = text.split("\n")[number:]
            if any(_INCLUDE.fullmatch(other.strip()) for other in rest):
                warn("an Include after the first Host or Match of ssh_config is not read; move it to the top of the file")
            return "\n".join([*lines, *(other for other in rest if not _INCLUDE.fullmatch(other.strip()))])
        include = _INCLUDE.fullmatch(bare)
        if include is None:
            lines.append(line)
            continue
        for pattern in include[1].split():
            for path in sorted(glob.glob(os.path.join(folder, os.path.expanduser(pattern.strip('"'))))):
                if depth < _DEPTH and os.path.isfile(path):
                    inner = Path(path).read_text(encoding="utf-8", errors="replace")
                    lines += [with_includes(inner, folder, warn, depth + 1), "Host *"]
    return "\n".join(lines)


def remote_command(python: str, module: str) -> str:
    """The one command that is ever given to a machine's login shell; only the interpreter's path comes from the user.

    Single quotes mean the same to sh, csh and fish. Modules of the home folder are not imported. Raises OptionError.
    """
    path = python.removeprefix("~/")  # the command starts in the home folder
    if not path or path.startswith("-") or "=" in path or any(not letter.isprintable() for letter in path):
        raise OptionError("--remote_python", f"expected the path of a Python, not {python[:60]!r}")
    quoted = "'" + path.replace("'", "'\"'\"'") + "'"
    return f"exec {quoted} -c '{program(module)}'"


def _parts(spec: str) -> tuple[str | None, str, int | None]:
    """User, host and port of [user@]host[:port]; a bare IPv6 address is a host."""
    if spec.count(":") > 1 and "[" not in spec and "@" not in spec:
        return None, spec, None
    match = _SPEC.fullmatch(spec.removeprefix("ssh://"))
    if match is None or (match["port"] and not 1 <= int(match["port"]) <= 65535):
        raise UsageError(one_line(f"expected [user@]host[:port], not {spec[:60]!r}"))
    return match["user"], match["v6"] or match["host"], int(match["port"]) if match["port"] else None


def _paths(words: str) -> list[Path]:
    return [Path(os.path.expanduser(word.strip('"'))) for word in words.split() if word.lower() != "none"]


def _this_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError) as error:  # a user without a name, in some containers
        raise OptionError("--ssh_user", "this system has no name for you; give the user of the machines") from error
