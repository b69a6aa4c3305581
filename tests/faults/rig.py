"""Two machines on this host that a job reaches over SSH: each has an sshd of its own and, where asked for, a disk and a network.

All processes of a job, on both machines, carry a mark in their environment, so what is left of it is found wherever it went.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kgdist.runtime.ip_config import read_cluster
from tests.family import alive as alive
from tests.family import descendants, words_of
from tests.faults.disks import Disk, mounted
from tests.faults.jobs import SMALL, Job, ip_config
from tests.faults.netns import Node, network
from tests.faults.sshd import Sshd, free_port, make_key

MARK = "KGT_MARK"
OURS = ("kgdist", "psm_", "sem.mp-", "torch_")  # names in /dev/shm
PORT = 30050  # of the servers where every machine has an address of its own
_COUNT = itertools.count()
# A machine's own file system: what is mounted at the first path is there at the second as well, for this machine alone.
OWN_DISK = ("unshare", "-m", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh")


def marked(mark: str) -> set[int]:
    """The living processes that carry that mark."""
    word, found = f"{MARK}={mark}".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if word in path.read_bytes().split(b"\0") and alive(pid := int(path.parent.name)):
                found.add(pid)
    return found


class MarkedJob(Job):
    """A job whose processes are those that carry `mark`.

    Args:
        places: machine -> where its --save_path is to be seen from here.
    """

    def __init__(self, folder: Path, *words: str, mark: str, places: Mapping[int, Path], **more: Any) -> None:
        self.mark, self.places = mark, places
        super().__init__(folder, *words, variables={MARK: mark, "TMPDIR": str(folder / "tmp")}, **more)

    def _family(self) -> set[int]:
        return marked(self.mark) - {self.process.pid}

    def checkpoints(self, machine: int) -> set[int]:
        """Steps of the checkpoints that a machine has now."""
        found = self.places[machine].glob(f"*/machine_{machine}/ckpt-*")
        return {int(path.name.removeprefix("ckpt-")) for path in found}

    def launcher(self) -> int:
        """The process of the command itself, which some tests start through a shell."""
        (found,) = [
            pid for pid in marked(self.mark) if re.match(r"\S*python\S* .*cli\.", words_of(pid)) and "agent" not in words_of(pid)
        ]
        return found


class OneMachine(MarkedJob):
    """A kgdist-train of the same graph."""

    name = "train"

    def flags(self, backend: str, options: dict[str, str]) -> list[str]:
        """Its command line."""
        given = SMALL | {"dataset": "toy", "data_path": "data", "format": "raw_udd_hrt"} | options
        files = [str(self.folder / "data" / "toy" / f"{split}.tsv") for split in ("train", "valid", "test")]
        return [*(text for name, value in given.items() for text in (f"--{name}", value)), "--data_files", *files]

    def checkpoints(self, machine: int) -> set[int]:
        """Steps of the checkpoints that there are now."""
        return {int(path.name.removeprefix("ckpt-")) for path in self.places[machine].glob("*/ckpt-*")}


class Rig:
    """See `rig`. `disks` and `nodes` are by machine; `servers` are the sshds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, f"{os.getpid()}-{next(_COUNT)}-{time.monotonic_ns()}"
        self.disks: dict[int, Disk] = {}
        self.nodes: list[Node] = []
        self.servers: list[Sshd] = []
        self.reach: dict[str, Any] = {}
        self._shared = set(os.listdir("/dev/shm"))

    @property
    def places(self) -> dict[int, Path]:
        """machine -> where its --save_path is to be seen from here."""
        return {n: self.disks[n].path if n in self.disks else self.folder / "ckpts" for n in range(2)}

    def job(self, *words: str, **options: Any) -> MarkedJob:
        """Start one."""
        kind = MarkedJob if self.servers else OneMachine
        return kind(self.folder, *words, mark=self.mark, places=self.places, **(self.reach | options))

    def own_disk(self, machine: int) -> tuple[str, ...]:
        """Words before a command of that machine, by which it saves to its own disk, if it has one."""
        return (*OWN_DISK, str(self.disks[machine].path), str(self.folder / "ckpts")) if machine in self.disks else ()

    def session(self, machine: int) -> list[int]:
        """The sshd processes that serve the launcher's session on a machine."""
        process = self.servers[machine].process
        assert process is not None
        return [pid for pid in descendants(process.pid) if "sshd" in words_of(pid)]

    def left(self, *, half: bool = True) -> str:
        """What there is of the jobs of this rig now, in words; empty when nothing. `half`: half-written checkpoints, too."""
        found = [f"{pid} {' '.join(words_of(pid).split()[2:5])}" for pid in sorted(marked(self.mark))]
        found += [f"/dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - self._shared if name.startswith(OURS)]
        found += [f"temporary file {path.name}" for path in (self.folder / "tmp").iterdir()]
        for place in set(self.places.values()) if half else ():
            found += [f"half-written {path.name}" for pattern in ("*/.*", "*/machine_*/.*") for path in place.glob(pattern)]
        if self.servers and not self.nodes:
            machines = read_cluster(str(self.folder / "ip_config.txt"))
            found += [f"port {m.address}:{m.port}" for m in machines if listening(m.address, m.port)]
        return ", ".join(found)

    def end(self) -> None:
        """Wake and end every process that carries the mark, whatever state it is in."""
        for disk in self.disks.values():
            disk.thaw()
        deadline = time.monotonic() + 10.0
        while (pids := marked(self.mark)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def listening(address: str, port: int) -> bool:
    """Whether anybody listens at that address of IPv4."""
    name = f"{int.from_bytes(bytes(map(int, address.split('.'))), 'little'):08X}:{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1] == name and line.split()[3] == "0A" for line in lines)


@contextlib.contextmanager
def rig(
    folder: Path, data: Path, *, machines: int = 2, net: bool = False, disks: Mapping[int, tuple[str, int]] | None = None
) -> Iterator[Rig]:
    """Two machines at the new folder `folder` with the partitions below `data`; all that ran there is ended with the block.

    Args:
        machines: 1 for jobs of kgdist-train, without sshd.
        net: in network namespaces, whose packets can be lost; otherwise 127.0.0.1 and 127.0.0.2.
        disks: machine -> kind and megabytes of a disk of its own for what it saves.

    Raises Missing where this host does not have what it takes.
    """
    folder.mkdir(parents=True)
    made = Rig(folder)
    (folder / "data").symlink_to(data)
    (folder / "tmp").mkdir()
    (folder / "ckpts").mkdir()
    with contextlib.ExitStack() as stack:
        for machine, (kind, size) in (disks or {}).items():
            made.disks[machine] = stack.enter_context(mounted(folder / f"disk_{machine}", kind, size))
        if net:
            made.nodes = stack.enter_context(network(2)).nodes
        if machines == 1:
            made.reach["inside"] = made.own_disk(0)
        else:
            _reach_by_ssh(made, stack)
        stack.callback(made.end)
        yield made


def _reach_by_ssh(made: Rig, stack: contextlib.ExitStack) -> None:
    """Give both machines an address and an sshd."""
    folder, table = made.folder, made.folder / "ip_config.txt"
    if made.nodes:
        table.write_text("".join(f"{node.address} {PORT} 1\n" for node in made.nodes))
        made.reach["inside"] = made.nodes[0].inside
    else:
        ip_config(folder, parts=2)
        first, second = table.read_text().splitlines()
        table.write_text(f"{first}\n{second.replace('127.0.0.1', '127.0.0.2')}\n")
    key, lines = make_key(folder / "key"), []
    for n, machine in enumerate(read_cluster(str(table))):
        server = Sshd(
            folder / f"sshd_{n}",
            user_key=key,
            address=machine.address,
            port=22 if made.nodes else free_port(machine.address),
            inside=(*(made.nodes[n].inside if made.nodes else ()), *made.own_disk(n)),
            variables=f"{MARK}={made.mark} TMPDIR={folder}/tmp",
        )
        stack.callback(server.stop)
        made.servers.append(server.start())
        lines.append(f"Host {machine.address}\n  Port {server.port}\n")
    (folder / "known_hosts").write_text("".join(server.known for server in made.servers))
    lines.append(f"Host *\n  IdentityFile {key}\n  UserKnownHostsFile {folder}/known_hosts\n")
    (folder / "ssh_config").write_text("".join(lines))
    made.reach |= {"backend": "ssh", "ssh_config": str(folder / "ssh_config"), "remote_python": sys.executable}
