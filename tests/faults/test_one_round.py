"""What keeps a job from starting is told in one round: machines that can be asked are asked, whatever is wrong with others."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kgdist.version import __version__
from tests.faults.jobs import ROOT, Job, workspace
from tests.faults.sshd import Sshd, free_port, make_key
from tests.patience import patience

pytestmark = pytest.mark.timeout(300)

# What is wrong with a machine, and the lines that tell it.
TOLD = {
    "port": [r"127\.0\.0\.{host} \(port {closed} of 127.*\): ssh: connecting failed: Connection refused; try: ssh -p {closed} "],
    "password": [
        r"127\.0\.0\.{host} .*: ssh: .* was not let in \(tried: the server takes only .*password.*\); add its public key"
    ],
    "changed": [r"127\.0\.0\.{host} .*: its host key .* is not the one of .*known_hosts:\d+"],
    "unknown": [r"127\.0\.0\.{host} .*: its host key \(.*SHA256:.*\) is unknown"],
    "python": [r"machine_{n} \(127\.0\.0\.{host}\): its agent has no program .*python.*; name its Python by --remote_python"],
    "module": [
        r"machine_{n} \(127\.0\.0\.{host}\): its agent ended with .* 1: .*No module named 'kgdist'; install kgdist there, or"
    ],
    "release": [
        rf"machine_{{n}} \(127\.0\.0\.{{host}}\): has kgdist 0\.0\.7, and here it is {re.escape(__version__)}; kgdist must be"
    ],
    "flipped": [r"machine_{n} \(127\.0\.0\.{host}\): .*partition_{n}.*; or send it with --copy"],
    "lacking": [r"machine_{n} \(127\.0\.0\.{host}\): .*partition_{n}/valid\.npy: .*; or send it with --copy"],
    "taken": [r"machine_{n} \(127\.0\.0\.{host}\): 127\.0\.0\.{host}:{taken} is in use \(pid {pid}\)"],
}
PASSWORD = "PubkeyAuthentication no\n PasswordAuthentication yes"
NO_PYTHON = "ForceCommand exit 127"
OTHER = 'ForceCommand PYTHONPATH={other}:$PYTHONPATH sh -c "$SSH_ORIGINAL_COMMAND"'
NO_MODULE = "ForceCommand echo \"ModuleNotFoundError: No module named 'kgdist'\" >&2; exit 1"


class Cluster:
    """Machines 127.0.0.1, 127.0.0.2, ... behind one sshd, each with its own faults."""

    def __init__(self, folder: Path, faults: list[str], make_sshd: Callable[..., Sshd], home: Path) -> None:
        self.faults = [words.split() for words in faults]
        self.closed, self.taken = free_port(), socket.socket()
        self.taken.bind(("0.0.0.0", 0))
        self.space = workspace(folder / "space", parts=len(faults))
        self._break_partitions()
        other = folder / "other"
        if self._with("release"):
            shutil.copytree(ROOT / "kgdist", other / "kgdist", ignore=shutil.ignore_patterns("__pycache__"))
            version = other / "kgdist" / "version.py"
            version.write_text(version.read_text().replace(__version__, "0.0.7"))
        more = "".join(f"ListenAddress 127.0.0.{n + 1}\n" for n in range(1, len(faults)))
        for fault, setting in (("password", PASSWORD), ("python", NO_PYTHON), ("release", OTHER), ("module", NO_MODULE)):
            for n in self._with(fault):
                more += f"Match LocalAddress 127.0.0.{n + 1}\n {setting.format(other=other)}\n"
        self.sshd = make_sshd(lines=more, known=False)
        self._write_ssh_files(home / ".ssh", folder)

    def _with(self, fault: str) -> Iterable[int]:
        return [n for n, faults in enumerate(self.faults) if fault in faults]

    def _break_partitions(self) -> None:
        place = self.space / "data" / "toy"
        for n in self._with("flipped"):
            file = place / f"partition_{n}" / "train.npy"
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
        for n in self._with("lacking"):
            (place / f"partition_{n}" / "valid.npy").unlink()
        ports = [self.taken.getsockname()[1] if "taken" in faults else free_port() for faults in self.faults]
        lines = [f"127.0.0.{n + 1} {port} 1\n" for n, port in enumerate(ports)]
        (self.space / "ip_config.txt").write_text("".join(lines))

    def _write_ssh_files(self, ssh: Path, folder: Path) -> None:
        key = self.sshd.known.split()[1:]
        stranger = make_key(folder / "stranger")
        wrong = Path(f"{stranger}.pub").read_text().split()[:2]
        known = [
            f"[127.0.0.{n + 1}]:{self.sshd.port} {' '.join(wrong if 'changed' in faults else key)}\n"
            for n, faults in enumerate(self.faults)
            if "unknown" not in faults
        ]
        (ssh / "known_hosts").write_text("".join(known))
        (ssh / "config").write_text(
            "".join(f"Host 127.0.0.{n + 1}\n Port {self.closed}\n" for n in self._with("port"))
            + f"Host *\n Port {self.sshd.port}\n"
        )

    def expected(self) -> list[str]:
        """The lines that must be told, in their order."""
        values = {"closed": self.closed, "taken": self.taken.getsockname()[1], "pid": os.getpid()}
        return [
            line.replace("{n}", str(n)).replace("{host}", str(n + 1)).format(**values)
            for n, faults in enumerate(self.faults)
            for fault in TOLD
            if fault in faults
            for line in TOLD[fault]
        ]

    def check(self, *words: str) -> None:
        """Start the job: all is told, in the order of the machines, and nothing has begun."""
        expected = self.expected()
        options = [
            "--ssh_key",
            str(self.sshd.user_key),
            "--ssh_config",
            str(Path(os.environ["HOME"]) / ".ssh" / "config"),
            *words,
        ]
        with self.taken:
            self.taken.listen()
            with Job(self.space, *options, backend="ssh", peer_timeout="15") as job:
                text = job.end(2, patience(90))
        told = [line for line in job.lines if re.match("(?i:error): ", line)]
        assert len(told) == len(expected), text
        for line, pattern in zip(told, expected, strict=True):
            assert re.match(f"(?i:error): {pattern}", line), (line, pattern)
        assert told[-1].endswith(f"({len(expected)} problem{'s' * (len(expected) > 1)}; nothing was started)")
        assert not (self.space / "ckpts").exists()


@pytest.mark.slow
def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path, make_sshd: Callable[..., Sshd], home: Path) -> None:
    faults = ["", "port", "python", "release", "password", "changed", "flipped taken", "lacking", "module", "unknown"]
    Cluster(tmp_path, faults, make_sshd, home).check()


CASES = {
    "A": ["", "port", "python", "flipped taken"],
    "B2": ["", "", "python", "python"],
    "C": ["", "lacking", "", "flipped taken"],
    "D": ["", "port", "password", ""],
    "E": ["", "", "changed", ""],
    "F": ["", "release", "release", ""],
    "G": ["unknown", "unknown", "unknown", "unknown"],
    "copy": ["taken", "port", "python", "release"],
}
WORDS = {"E": ["--accept_new_host_keys"], "copy": ["--copy"]}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_whatever_the_combination(case: str, tmp_path: Path, make_sshd: Callable[..., Sshd], home: Path) -> None:
    Cluster(tmp_path, CASES[case], make_sshd, home).check(*WORDS.get(case, []))
