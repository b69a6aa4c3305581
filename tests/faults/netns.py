"""Machines on one host: network namespaces with addresses of their own, joined by a switch; packets can be lost or swallowed.

The files are those of the host. Nothing of its own network is touched, so this host cannot reach them either: whatever talks to
a machine runs inside one (`Node.inside`). Needs root, `ip`, and for faults `nft`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.faults.disks import Missing
from tests.patience import patience

LIMIT = patience(60.0)
_COUNT = itertools.count()


def _run(*words: str, text: str = "") -> str:
    """Output of a command. Raises CalledProcessError."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=LIMIT, check=True)
    return done.stdout


class Node:
    """One machine of a `Network`."""

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace, self.address = namespace, address
        self.inside = ("ip", "netns", "exec", namespace)  # words before a command that is to run there

    def lose(self, percent: int = 100, port: int | None = None) -> None:
        """From now on that share of the packets to and from this machine (or that TCP port of it) vanish; 0: none."""
        rule = "drop" if percent >= 100 else f"numgen random mod 100 < {percent} drop"
        if port is not None:
            rule = f"tcp dport {port} {rule}; tcp sport {port} {rule}"
        chains = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; meta iif lo accept; meta oif lo accept; {rule}; }}\n"
            if percent
            else f"chain {hook} {{ type filter hook {hook} priority 0; }}\n"
            for hook in ("input", "output")
        )
        _run(*self.inside, "nft", "-f", "-", text=f"table inet kgt\ndelete table inet kgt\ntable inet kgt {{\n{chains}}}\n")

    def cut(self, per_mille: int, port: int) -> None:
        """From now on that many of a thousand packets to a TCP port of this machine end their connection by RST, on both sides;
        0: none."""
        rule = f"tcp dport {port} numgen random mod 1000 < {per_mille} counter reject with tcp reset;" if per_mille else ""
        chain = f"chain input {{ type filter hook input priority 1; {rule} }}"
        _run(*self.inside, "nft", "-f", "-", text=f"table inet kgc\ndelete table inet kgc\ntable inet kgc {{\n{chain}\n}}\n")

    def cuts(self) -> int:
        """How often that has happened since the last `cut`."""
        return sum(map(int, re.findall(r"counter packets (\d+)", _run(*self.inside, "nft", "list", "table", "inet", "kgc"))))

    def pids(self) -> list[int]:
        """The processes inside."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self.namespace).split()]


class Network:
    """`size` machines, 10.99.0.1 and so on."""

    def __init__(self, size: int) -> None:
        stem = f"kgt-{os.getpid()}-{next(_COUNT)}"
        self.switch = f"{stem}-switch"
        self.nodes = [Node(f"{stem}-{n}", f"10.99.0.{n + 1}") for n in range(size)]
        self._made: list[str] = []

    def up(self) -> Network:
        """Make it. Raises CalledProcessError where the system does not let us."""
        for name in (self.switch, *(node.namespace for node in self.nodes)):
            _run("ip", "netns", "add", name)
            self._made.append(name)
        _run("ip", "-n", self.switch, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", self.switch, "link", "set", "switch", "up")
        for n, node in enumerate(self.nodes):
            words = f"link add m{n} type veth peer name eth0 netns {node.namespace}"
            _run("ip", "-n", self.switch, *words.split())
            _run("ip", "-n", self.switch, *f"link set m{n} master switch up".split())
            _run("ip", "-n", node.namespace, *f"addr add {node.address}/24 dev eth0".split())
            for link in ("eth0", "lo"):
                _run("ip", "-n", node.namespace, "link", "set", link, "up")
        return self

    def down(self) -> None:
        """End what runs inside, and remove it by the names that were made."""
        made, self._made = self._made, []
        for node in self.nodes:
            if node.namespace in made:
                for pid in node.pids():
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
        for name in reversed(made):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", name)


@contextlib.contextmanager
def network(size: int) -> Iterator[Network]:
    """A network of so many machines while the block runs. Raises Missing where the system has or allows none."""
    for name, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(name) is None:
            raise Missing(f"no {name} here: apt-get install {package}")
    if os.geteuid() != 0:
        raise Missing("network namespaces need root")
    made = Network(size)
    try:
        try:
            made.up()
        except subprocess.CalledProcessError as error:
            raise Missing(f"no network namespaces here: {error.stderr.strip()}") from error
        yield made
    finally:
        made.down()


@pytest.fixture
def make_network() -> Iterator[Callable[[int], Network]]:
    """`make_network(2)` is a network of two machines; skips where the system has or allows none."""
    with contextlib.ExitStack() as stack:

        def make(size: int) -> Network:
            try:
                return stack.enter_context(network(size))
            except Missing as why:
                pytest.skip(str(why))

        yield make
