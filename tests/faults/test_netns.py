"""The network of the other fault tests does what they think, and a channel over SSH notices when it fails."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from tests.faults.netns import Network, Node
from tests.faults.sshd import ROOT, Sshd

KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()"


def reaches(node: Node, address: str, port: int, patience: float) -> bool:
    """Whether a TCP connection from that machine comes about."""
    words = [*node.inside, sys.executable, "-c", KNOCK, address, str(port), str(patience)]
    return subprocess.run(words, capture_output=True, timeout=30, check=False).returncode == 0


LAUNCHER = """
    import queue, sys, time
    from kgdist.runtime.channels import ssh
    from kgdist.runtime.ip_config import Machine
    ssh.PATIENCE, ssh.KEEPALIVE = 2.0, 1
    address, user_key = sys.argv[1:]
    events = queue.Queue()
    options = ssh.SshOptions(ssh_key=user_key, remote_python=sys.executable)
    opened = [ssh.SshChannel.open(Machine(address, 1, 1, n), options, events, module="tests.faults.peer") for n in range(2)]
    assert {events.get(timeout=30).kind for _ in opened} == {"message"}
    print("up", flush=True)
    sys.stdin.readline()  # the network is gone
    began = time.monotonic()
    opened[0].close(0.5)
    print(time.monotonic() - began, flush=True)
    while (heard := events.get(timeout=30)).machine == 0:
        pass
    print(heard.kind, heard.value.words, flush=True)
    opened[1].close(0.5)
"""


def test_a_channel_notices_a_network_that_swallows_everything(
    make_network: Callable[[int], Network], make_sshd: Callable[..., Sshd], home: Path
) -> None:
    network = make_network(2)
    first, second = network.nodes
    server = make_sshd(address=second.address, inside=second.inside)
    assert reaches(first, second.address, 22, 10.0) and not reaches(first, second.address, 23, 10.0)
    words = [*first.inside, sys.executable, "-c", textwrap.dedent(LAUNCHER), second.address, str(server.user_key)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as launcher:
        assert launcher.stdin is not None and launcher.stdout is not None
        assert launcher.stdout.readline() == "up\n"
        second.lose()
        assert not reaches(first, second.address, 22, 0.5)
        launcher.stdin.write("\n")
        launcher.stdin.flush()
        assert float(launcher.stdout.readline()) < 8.0  # it had 0.5 s, and connections are only dropped, not agreed to end
        assert launcher.stdout.readline() == "closed cannot be reached any more\n"
        assert launcher.wait(timeout=30) == 0
    second.lose(0)
    assert reaches(first, second.address, 22, 10.0)


def test_nothing_is_left_of_a_network(make_network: Callable[[int], Network]) -> None:
    network = make_network(3)
    names = [network.switch, *(node.namespace for node in network.nodes)]
    sleeper = subprocess.Popen([*network.nodes[2].inside, "sleep", "300"])
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30, check=True).stdout
    assert all(name in listed for name in names)
    network.nodes[0].lose(10)
    network.down()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=30, check=True).stdout
    assert not any(name in listed for name in names)
    assert sleeper.wait(timeout=30) != 0
