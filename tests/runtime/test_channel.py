"""What holds for every kind of channel, tried on a child of this process and on a process over a real sshd."""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.runtime.channels import channel as channel_file
from kgdist.runtime.channels.channel import Channel, Ending, Heard, LocalChannel
from kgdist.runtime.channels.ssh import SshChannel
from kgdist.runtime.processes.child import Child
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.runtime.processes.pipes import Lines, message_of, readable
from tests.family import alive
from tests.faults.commands import until
from tests.faults.sshd import Sshd
from tests.patience import patience

PEER = "tests.faults.peer"
LIMIT = patience(30.0)


class Talk:
    """A channel to the peer and what was heard on it."""

    def __init__(self, opened: Channel, events: queue.Queue[Heard]) -> None:
        self.channel, self.events = opened, events
        self.logs: list[str] = []
        self.hello = self.message()

    def message(self) -> dict[str, Any]:
        """The next message; lines for people are kept in `logs`."""
        kind, value = self.next()
        assert kind == "message", value
        return dict(value)

    def next(self) -> tuple[str, Any]:
        """The next message or the end."""
        while True:
            heard = self.events.get(timeout=LIMIT)
            assert heard.machine == self.channel.number
            if heard.kind != "log":
                return heard.kind, heard.value
            self.logs.append(heard.value)

    def closed(self) -> Ending:
        """The end, which must be the next thing and the last."""
        kind, value = self.next()
        assert kind == "closed", value
        assert self.channel._done.wait(timeout=LIMIT)
        assert self.events.empty()
        assert isinstance(value, Ending)
        return value

    def gone(self) -> bool:
        """Whether the process is."""
        return not alive(self.hello["pid"])


@pytest.fixture(params=["local", "ssh"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of channel."""
    return str(request.param)


@pytest.fixture
def talk(kind: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Talk]]:
    """`talk()` opens a channel of that kind to another peer."""
    made: list[Channel] = []

    def start(bound: int = 0, **more: Any) -> Talk:
        events: queue.Queue[Heard] = queue.Queue(bound)
        if kind == "local":
            made.append(LocalChannel(3, "machine_3 (here)", events, module=PEER, **more))
        else:
            server: Sshd = request.getfixturevalue("sshd")
            made.append(SshChannel.open(server.machine(3), server.options(), events, module=PEER, **more))
        return Talk(made[-1], events)

    yield start
    for one in made:
        one.close(1.0)


def test_messages_go_and_come_in_order(talk: Callable[..., Talk]) -> None:
    t = talk()
    values = [1e-9, 0.1 + 0.2, "é\n\u2028\0", {"a": [None, True, -(2**53)]}, []]
    for value in values:
        t.channel.send({"echo": value})
    assert [t.message()["echo"] for _ in values] == values


def test_large_messages_both_ways(talk: Callable[..., Talk]) -> None:
    t = talk()
    text = "0123456789" * 500_000
    t.channel.send({"echo": text, "size": text})
    assert t.message()["echo"] == text
    assert t.message()["size"] == len(text)


def test_the_exit_code_and_the_last_words(talk: Callable[..., Talk]) -> None:
    t = talk()
    t.channel.send({"stderr": "no space left", "exit": 7})
    ending = t.closed()
    assert (ending.code, ending.words, ending.last) == (7, "ended with exit code 7", "no space left")
    t.channel.send({"echo": 1})  # to nobody, and no error
    t.channel.close(0.1)
    assert t.events.empty() and t.gone()


def test_an_end_by_signal(talk: Callable[..., Talk], kind: str) -> None:
    t = talk()
    t.channel.send({"kill": "SIGKILL"})
    ending = t.closed()
    assert ending.code is None
    assert ending.words.startswith("was killed by signal SIGKILL" if kind == "local" else "was killed by a signal")


def test_lines_for_people(talk: Callable[..., Talk]) -> None:
    t = talk()
    t.channel.send({"stderr": "warning\n\n 10%\r 20%\r\n\x1b[31mred\x07 \udcff".encode("utf-8", "replace").decode()})
    t.channel.send({"print": "[1, 2]"})
    t.channel.send({"print": '{"echo": '})
    t.channel.send({"exit": 0})
    assert t.closed().code == 0
    assert sorted(t.logs) == sorted(["warning", " 20%", "\\x1b[31mred\\x07 ?", "[1, 2]", '{"echo": '])


def test_much_on_stderr_holds_up_nothing(talk: Callable[..., Talk]) -> None:
    t = talk()
    t.channel.send({"noise": 4_000_000})
    assert t.message() == {"noise": 4_000_000}
    t.channel.send({"stderr": "y" * 200_000, "exit": 0})
    t.closed()
    assert t.logs[:40_000] == ["x" * 99] * 40_000
    assert "".join(t.logs[40_000:]) == "y" * 200_000 and max(map(len, t.logs)) <= 3 * channel_file.LOG_LONGEST


def test_closing_ends_the_process_by_its_stdin(talk: Callable[..., Talk]) -> None:
    t = talk()
    t.channel.send({"echo": "x" * 1_000_000})  # what was sent before still arrives
    begun = time.monotonic()
    t.channel.close(20.0)
    assert time.monotonic() - begun < patience(15.0)
    assert t.message()["echo"] == "x" * 1_000_000
    assert t.closed().code == 0
    assert t.gone()


def test_a_process_that_stays_is_asked_to_end() -> None:
    events: queue.Queue[Heard] = queue.Queue()
    t = Talk(LocalChannel(0, "machine_0 (here)", events, module=PEER), events)
    t.channel.send({"linger": 300})
    t.channel.close(0.3)
    assert t.closed().words.startswith("was killed by signal SIGTERM")
    assert t.gone()


def test_a_process_that_will_not_is_made_to(talk: Callable[..., Talk], kind: str) -> None:
    t = talk()
    t.channel.send({"ignore": ["SIGTERM", "SIGHUP", "SIGPIPE"]})
    assert "ignored" in t.message()
    t.channel.send({"linger": 300})
    t.channel.close(0.3)
    ending = t.closed()
    assert ending.code is None
    if kind == "local":
        assert t.gone()
    else:  # out of our reach; an agent ends by itself, see there
        os.kill(t.hello["pid"], signal.SIGKILL)
    until("the process is gone", t.gone)


def test_a_peer_that_does_not_read_is_given_up(talk: Callable[..., Talk]) -> None:
    t = talk(patience=1.0)
    t.channel.send({"sleep": 300})
    begun = time.monotonic()
    for _ in range(3):
        t.channel.send({"echo": "x" * 10_000_000})
    assert time.monotonic() - begun < patience(5.0)  # sending itself does not wait
    ending = t.closed()
    assert ending.code is None and "read nothing for 1 seconds" in ending.words
    _end(t)


def test_what_waits_to_be_sent_is_bounded(talk: Callable[..., Talk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_file, "LONGEST", 30_000_000)
    t = talk()
    t.channel.send({"sleep": 300})
    for _ in range(4):
        t.channel.send({"echo": "x" * 10_000_000})
    assert "does not read" in t.closed().words
    _end(t)


def test_a_message_without_end_is_given_up(talk: Callable[..., Talk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_file, "LONGEST", 1_000_000)
    t = talk()
    t.channel.send({"long": 3_000_000})
    assert "a line of more than" in t.closed().words
    _end(t)


@pytest.mark.parametrize("value", [math.nan, math.inf, b"", object()], ids=["nan", "inf", "bytes", "object"])
def test_what_is_not_json_is_refused(value: object) -> None:
    events: queue.Queue[Heard] = queue.Queue()
    with LocalChannel(0, "machine_0", events, module=PEER) as opened, pytest.raises((ValueError, TypeError)):
        opened.send({"echo": value})


def test_closing_when_nobody_reads_the_queue(talk: Callable[..., Talk]) -> None:
    t = talk(bound=1)
    t.channel.send({"noise": 4_000_000})
    t.channel.close(1.0)
    assert t.channel._done.is_set()
    until("the process is gone", t.gone)


def test_a_process_that_leaves_its_pipes_to_another(talk: Callable[..., Talk], kind: str) -> None:
    t = talk()
    t.channel.send({"leave": 300})
    pid = t.message()["left"]
    try:
        assert t.closed().code == 0
    finally:
        os.kill(pid, signal.SIGKILL)


TRAPS = ("queue", "json", "re", "kgdist", "numpy", "torch", "numba")


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules of names that ours import, for a Python that does not know PYTHONSAFEPATH (3.10)."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    folder = tmp_path / "traps"
    folder.mkdir()
    for name in TRAPS:
        (folder / f"{name}.py").write_text("raise SystemExit('a module of the working folder was imported')")
    return folder


def test_an_agent_takes_no_modules_of_the_working_folder(traps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(traps)
    events: queue.Queue[Heard] = queue.Queue()
    with LocalChannel(3, "machine_3 (here)", events) as opened:
        assert "hello" in Talk(opened, events).hello


def test_nor_of_the_home_folder_of_its_machine(traps: Path, make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd(lines=f'ForceCommand cd {traps} && sh -c "$SSH_ORIGINAL_COMMAND"')
    events: queue.Queue[Heard] = queue.Queue()
    with SshChannel.open(server.machine(3), server.options(), events) as opened:
        assert "hello" in Talk(opened, events).hello


def test_nor_does_a_worker(traps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(traps)
    forks = ForkServer(threads=1)
    child, heard = Child(forks), list[dict[str, Any]]()
    try:
        child.send({"role": "share"})  # a job without options
        until("it has understood the job", lambda: bool(heard.extend(child.events()) or heard))
        assert list(heard[0]) == ["error", "traceback", "code"] and "KeyError" in heard[0]["error"]
    finally:
        child.close(time.monotonic() + LIMIT)
        forks.close()


def test_channels_share_a_queue() -> None:
    events: queue.Queue[Heard] = queue.Queue()
    channels = [LocalChannel(number, f"machine_{number}", events, module=PEER) for number in range(3)]
    for opened in channels:
        opened.send({"echo": opened.number})
    for opened in channels:
        opened.close()
    heard: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    while not events.empty():
        one = events.get(timeout=1)
        heard[one.machine].append((one.kind, one.value))
    for number, said in heard.items():
        assert [kind for kind, _ in said] == ["message", "message", "closed"]
        assert said[1][1] == {"echo": number} and said[2][1].code == 0


OWNER = """
    import queue, sys, time
    from kgdist.runtime.channels.channel import LocalChannel
    from kgdist.runtime.ip_config import Machine
    from kgdist.runtime.channels.ssh import SshChannel, SshOptions
    kind, port, key, python = sys.argv[1:]
    events = queue.Queue()
    if kind == "local":
        LocalChannel(0, "here", events, module="tests.faults.peer")
    else:
        options = SshOptions(ssh_port=int(port), ssh_key=key, remote_python=python)
        SshChannel.open(Machine("127.0.0.1", 1, 1, 0), options, events, module="tests.faults.peer")
    print(events.get(timeout=30).value["pid"], flush=True)
    time.sleep(300)
"""


def test_a_killed_owner_leaves_no_process(kind: str, request: pytest.FixtureRequest) -> None:
    words = [kind, "0", "-", sys.executable]
    if kind == "ssh":
        server: Sshd = request.getfixturevalue("sshd")
        words = [kind, str(server.port), str(server.user_key), sys.executable]
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", textwrap.dedent(OWNER), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env=os.environ | {"PYTHONPATH": root}) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert alive(pid)
        owner.kill()
        until("the process of a killed owner is gone", lambda: not alive(pid), 10.0)


def _end(t: Talk) -> None:
    if not t.gone():  # over ssh a process that sleeps sees the end of its stdin later
        os.kill(t.hello["pid"], signal.SIGKILL)
    until("the process is gone", t.gone)


@given(st.lists(st.binary(max_size=20) | st.just(b"\n"), max_size=20), st.lists(st.integers(0, 30), max_size=20))
def test_lines_do_not_depend_on_the_pieces(words: list[bytes], cuts: list[int]) -> None:
    data = b"".join(words)
    lines, found = Lines(), []
    rest = data
    for cut in cuts:
        found += lines.feed(rest[:cut])
        rest = rest[cut:]
        assert lines.size == len((data[: len(data) - len(rest)]).rpartition(b"\n")[2])
    found += lines.feed(rest)
    assert [*found, lines.rest()] == data.split(b"\n")


@given(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: ("{" + text).encode()))
def test_any_line_is_a_message_or_text(line: bytes) -> None:
    message = message_of(line)
    assert message is None or isinstance(message, dict)
    assert all(letter.isprintable() or letter == "\t" for letter in readable(line))


def test_nesting_without_end_is_no_message() -> None:
    assert message_of(b'{"a":' * 200_000) is None
