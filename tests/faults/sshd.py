"""A real sshd on loopback: a port, host keys, user keys and configuration of its own in a temporary folder, as root or not.

It lets in this user with its own key, and the processes it starts find this checkout of kgdist.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgdist.kvstore.places import OUTGOING
from kgdist.runtime.channels.ssh_config import SshOptions
from kgdist.runtime.ip_config import Machine
from tests.family import descendants
from tests.patience import patience

ROOT = Path(__file__).resolve().parents[2]
LIMIT = patience(60.0)


def program(name: str) -> str:
    """Path of one of OpenSSH's programs; skips without it."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"no {name} here: apt-get install openssh-server")
    return found


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A new key pair at `path` and `path`.pub."""
    words = [program("ssh-keygen"), "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(words, check=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
    return path


def free_port(address: str = "127.0.0.1", count: int = 1) -> int:
    """The first of some ports in a row that nobody has at this moment, and that no outgoing connection will be given."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    while True:
        first = random.SystemRandom().randrange(10_000, OUTGOING - count)
        try:
            for port in range(first, first + count):
                with socket.socket(family) as sock:
                    sock.bind((address, port))
        except OSError:
            continue
        return first


class Sshd:
    """One server. `user_key` is let in; `lines` are added to its sshd_config, `variables` to the environment of its sessions."""

    def __init__(
        self,
        folder: Path,
        *,
        user_key: Path,
        address: str = "127.0.0.1",
        lines: str = "",
        inside: tuple[str, ...] = (),
        port: int | None = None,
        variables: str = "",
    ):
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):  # where the package's start script would make it
                Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.address = address
        self.user_key = user_key
        self.host_key = make_key(folder / "host_key")
        self.inside = inside  # words before its command line: a network namespace
        self.port = port or (22 if inside else free_port(address))
        shutil.copy(f"{user_key}.pub", folder / "authorized_keys")
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.config = folder / "sshd_config"
        self.config.write_text(
            f"ListenAddress {address}\nPort {self.port}\nHostKey {self.host_key}\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPermitRootLogin yes\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nSubsystem sftp internal-sftp\nMaxStartups 100\nMaxSessions 100\n"
            f'SetEnv "PYTHONPATH={paths}" {variables}\n{lines}\n'
        )
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Sshd:
        """Start it, and wait until it listens."""
        words = [*self.inside, program("sshd"), "-D", "-e", "-f", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + LIMIT
        while "Server listening" not in (text := self.log.read_text(errors="replace")):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                pytest.skip(f"sshd does not start here: {text.strip()[-300:]}")
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """End it and what it has started."""
        if self.process is None:
            return
        for pid in [*reversed(descendants(self.process.pid)), self.process.pid]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=LIMIT)
        self.process = None

    @property
    def name(self) -> str:
        """How known_hosts calls it."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"

    @property
    def known(self) -> str:
        """Its line of known_hosts."""
        return f"{self.name} {' '.join(Path(f'{self.host_key}.pub').read_text().split()[:2])}\n"

    def options(self, **more: Any) -> SshOptions:
        """Options that lead to it."""
        given: dict[str, Any] = {"ssh_port": self.port, "ssh_key": str(self.user_key), "remote_python": sys.executable}
        return SshOptions(**(given | more))

    def machine(self, number: int = 0) -> Machine:
        """A machine that is reached through it."""
        return Machine(self.address, 30050 + 10 * number, 1, number)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder for ssh's files, and no agent."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def make_sshd(tmp_path: Path, home: Path) -> Iterator[Callable[..., Sshd]]:
    """`make_sshd()` starts another server; its key is known in `home` unless `known=False`."""
    made: list[Sshd] = []

    def make(*, known: bool = True, **more: Any) -> Sshd:
        key = made[0].user_key if made else make_key(tmp_path / "user_key")
        made.append(Sshd(tmp_path / f"sshd_{len(made)}", user_key=key, **more).start())
        if known:
            with (home / ".ssh" / "known_hosts").open("a") as file:
                file.write(made[-1].known)
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def sshd(make_sshd: Callable[..., Sshd]) -> Sshd:
    """One server whose key is known."""
    return make_sshd()


def me() -> str:
    """The name of this user."""
    return getpass.getuser()
