"""Getting in over a real sshd: keys, host keys, a host between, and every way in which it does not work."""

from __future__ import annotations

import base64
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgdist.base.errors import KgdistError, UsageError
from kgdist.runtime.channels.channel import Heard
from kgdist.runtime.channels.known_hosts import KnownHosts
from kgdist.runtime.channels.ssh import SshChannel, SshOptions, connect
from kgdist.runtime.ip_config import Machine
from tests.family import descendants
from tests.faults.sshd import Sshd, make_key, me, program
from tests.patience import patience

PEER = "tests.faults.peer"


def refused(server: Sshd, **more: Any) -> str:
    """The one line with which a connection is refused."""
    with pytest.raises(UsageError) as caught:
        connect(server.machine(), server.options(**more)).close()
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    return str(caught.value)


def works(server: Sshd, **more: Any) -> None:
    """Log in, and see that commands run."""
    with connect(server.machine(), server.options(**more)) as connection:
        session = connection.execute("echo $((6 * 7))")
        assert session.recv(100) == b"42\n"


def test_login_with_a_key(sshd: Sshd) -> None:
    works(sshd)


def test_a_wrong_key(sshd: Sshd, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    line = refused(sshd, ssh_key=str(other))
    assert line.startswith(
        f"127.0.0.1 (port {sshd.port} of 127.0.0.1): ssh: {me()} was not let in (tried: {other}); add its public"
    )
    assert "--ssh_key" in line


def test_keys_that_are_none(sshd: Sshd, tmp_path: Path) -> None:
    assert f"tried: {tmp_path}/none: no such file" in refused(sshd, ssh_key=str(tmp_path / "none"))
    (tmp_path / "text").write_text("hello")
    assert "text: not a private key" in refused(sshd, ssh_key=str(tmp_path / "text"))
    locked = make_key(tmp_path / "locked", passphrase="secret")
    assert "has a passphrase; add it to the agent by ssh-add" in refused(sshd, ssh_key=str(locked))
    assert "no key was found" in refused(sshd, ssh_key=None)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_the_usual_keys_of_the_home_folder(kind: str, sshd: Sshd, home: Path) -> None:
    key = make_key(home / ".ssh" / f"id_{kind}", kind)
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(Path(f"{key}.pub").read_text())
    works(sshd, ssh_key=None)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """An ssh-agent; `agent(key)` adds a key to it."""
    path = f"/tmp/kgt-agent-{os.getpid()}" if len(str(tmp_path)) > 80 else str(tmp_path / "agent")
    process = subprocess.Popen([program("ssh-agent"), "-D", "-a", path], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", path)
    deadline = time.monotonic() + 20
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.02)
    yield lambda key: subprocess.run([program("ssh-add"), "-q", str(key)], check=True, timeout=20, capture_output=True) and None
    process.terminate()
    process.wait(timeout=20)
    Path(path).unlink(missing_ok=True)


def test_keys_of_the_agent(sshd: Sshd, agent: Callable[[Path], None], tmp_path: Path) -> None:
    for number in range(3):
        agent(make_key(tmp_path / f"other{number}"))
    assert "agent key other0; agent key other1; agent key other2" in refused(sshd, ssh_key=None)
    agent(sshd.user_key)
    works(sshd, ssh_key=None)
    assert "agent key" not in refused(sshd, ssh_key=str(tmp_path / "other0"))  # that one alone was asked for


def test_an_agent_that_is_gone(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    works(sshd)


# Host keys.


def test_an_unknown_host_key_is_refused(make_sshd: Callable[..., Sshd], home: Path) -> None:
    server = make_sshd(known=False)
    line = refused(server)
    assert "its host key (ssh-ed25519 SHA256:" in line and "is unknown" in line
    assert f"run `ssh -p {server.port} {me()}@127.0.0.1` once" in line and "--accept_new_host_keys" in line
    assert not (home / ".ssh" / "known_hosts").exists()


def test_accept_new_remembers(make_sshd: Callable[..., Sshd], home: Path) -> None:
    server = make_sshd(known=False)
    works(server, accept_new_host_keys=True)
    known = KnownHosts.read([home / ".ssh" / "known_hosts"])  # hashed, where the system's ssh_config says so
    blob = base64.b64decode(server.known.split()[2])
    assert len(known.lines) == 1 and known.judge("127.0.0.1", server.port, blob).word == "known"
    works(server)


def test_a_changed_host_key_is_always_refused(sshd: Sshd, home: Path, tmp_path: Path) -> None:
    other = make_key(tmp_path / "impostor")
    path = home / ".ssh" / "known_hosts"
    text = f"# mine\n{sshd.name} {' '.join(Path(f'{other}.pub').read_text().split()[:2])}\n"
    path.write_text(text)
    for accept in (False, True):
        line = refused(sshd, accept_new_host_keys=accept)
        assert f"is not the one of {path}:2; if the machine was reinstalled, delete that line" in line
    assert path.read_text() == text


def test_a_host_known_by_another_kind_of_key_is_not_new(sshd: Sshd, home: Path, tmp_path: Path) -> None:
    other = make_key(tmp_path / "impostor", "ecdsa")
    (home / ".ssh" / "known_hosts").write_text(f"{sshd.name} {' '.join(Path(f'{other}.pub').read_text().split()[:2])}\n")
    assert "is not the one of" in refused(sshd, accept_new_host_keys=True)


def test_the_known_kind_of_key_is_asked_for(make_sshd: Callable[..., Sshd], home: Path, tmp_path: Path) -> None:
    rsa = make_key(tmp_path / "rsa_host_key", "rsa")
    server = make_sshd(known=False, lines=f"HostKey {rsa}")
    (home / ".ssh" / "known_hosts").write_text(f"{server.name} {' '.join(Path(f'{rsa}.pub').read_text().split()[:2])}\n")
    works(server)


def test_a_revoked_host_key_is_refused(sshd: Sshd, home: Path) -> None:
    path = home / ".ssh" / "known_hosts"
    path.write_text(sshd.known + "@revoked * " + sshd.known.split(" ", 1)[1])
    assert f"is revoked by {path}:2" in refused(sshd, accept_new_host_keys=True)


def test_authorities_are_left_out_with_a_warning(
    sshd: Sshd, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgdist.base.log.log.propagate", True)
    authority = " ".join(Path(f"{make_key(tmp_path / 'ca')}.pub").read_text().split()[:2])
    path = home / ".ssh" / "known_hosts"
    path.write_text(f"@cert-authority * {authority}\n{sshd.known}")
    works(sshd)
    assert caplog.records == []
    path.write_text(f"@cert-authority * {authority}\n")
    assert "is unknown" in refused(sshd)
    assert f"{path}:1: @cert-authority is not supported" in caplog.text


# The way there.


def test_ssh_config_is_read(sshd: Sshd, home: Path) -> None:
    (home / ".ssh" / "config").write_text(
        f"Host gpu*\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.user_key}\n  User {me()}\n"
    )
    with connect(Machine("gpu7", 1, 1, 0), SshOptions()) as connection:
        assert connection.login.shown == f"gpu7 (port {sshd.port} of 127.0.0.1)"
    file = home / "other"
    shutil.move(home / ".ssh" / "config", file)
    connect(Machine("gpu7", 1, 1, 0), SshOptions(ssh_config=str(file))).close()
    with pytest.raises(UsageError, match="nowhere: cannot be read"):
        connect(Machine("gpu7", 1, 1, 0), SshOptions(ssh_config=str(home / "nowhere")))
    file.write_text('Host "open\n')
    with pytest.raises(UsageError, match="other: not understood as ssh configuration"):
        connect(Machine("gpu7", 1, 1, 0), SshOptions(ssh_config=str(file)))


def test_a_jump_host(make_sshd: Callable[..., Sshd], home: Path) -> None:
    target, gate = make_sshd(), make_sshd()
    works(target, jump_host=f"{me()}@127.0.0.1:{gate.port}")
    assert "Accepted publickey" in gate.log.read_text() and "direct-tcpip" not in target.log.read_text()
    (home / ".ssh" / "config").write_text(f"Host gate\n HostName 127.0.0.1\n Port {gate.port}\nHost 127.0.0.1\n ProxyJump gate\n")
    works(target)
    target.stop()
    line = refused(target)
    assert f"ssh through gate (port {gate.port} of 127.0.0.1): connecting failed" in line and "ssh -J gate" in line
    gate.stop()
    assert "gate" in refused(target) and "Connection refused" in refused(target)


def test_an_unknown_jump_host_is_refused(make_sshd: Callable[..., Sshd]) -> None:
    target, gate = make_sshd(), make_sshd(known=False)
    line = refused(target, jump_host=f"127.0.0.1:{gate.port}")
    assert f"port {gate.port} of 127.0.0.1" in line and "is unknown" in line


def test_more_than_one_jump_is_refused_by_name(sshd: Sshd) -> None:
    assert "one jump host is supported, not 'a,b'" in refused(sshd, jump_host="a,b")


def test_nobody_there(sshd: Sshd) -> None:
    sshd.stop()
    line = refused(sshd)
    assert "connecting failed: Connection refused" in line and f"try: ssh -p {sshd.port} " in line


def test_a_name_that_leads_nowhere() -> None:
    with pytest.raises(UsageError, match=r"^no-such-host\.invalid: ssh: connecting failed: "):
        connect(Machine("no-such-host.invalid", 1, 1, 0), SshOptions(ssh_user="me"))


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b"SSH-1.5-x\r\n"], ids=repr)
def test_a_peer_that_is_no_sshd(says: bytes, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        taken: list[socket.socket] = []

        def serve() -> None:
            sock, _ = server.accept()
            taken.append(sock)
            sock.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        begun = time.monotonic()
        machine, options = Machine("127.0.0.1", 1, 1, 0), SshOptions(ssh_port=server.getsockname()[1], ssh_user="me")
        silent = says in (b"", b"SSH-2.0-x\r\n")
        with pytest.raises(UsageError, match="ssh: exchanging keys failed: " + ("no answer in time" if silent else "")):
            connect(machine, options, timeout=1.0)
        assert time.monotonic() - begun < patience(10)
        thread.join(timeout=20)
        for sock in taken:
            sock.close()


def test_an_sshd_that_freezes(sshd: Sshd, home: Path) -> None:
    assert sshd.process is not None
    os.kill(sshd.process.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(UsageError, match="exchanging keys failed: no answer in time"):
            connect(sshd.machine(), sshd.options(), timeout=1.0)
        assert time.monotonic() - begun < patience(10)
    finally:
        os.kill(sshd.process.pid, signal.SIGCONT)


def test_closing_is_prompt_when_the_link_is_dead(sshd: Sshd) -> None:
    events: queue.Queue[Heard] = queue.Queue()
    opened = SshChannel.open(sshd.machine(), sshd.options(), events, module=PEER)
    assert events.get(timeout=30).kind == "message"
    assert sshd.process is not None
    frozen = descendants(sshd.process.pid)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        opened.close(0.5)
        assert time.monotonic() - begun < patience(8)
        last = [events.get(timeout=10)]
        while not events.empty():
            last.append(events.get(timeout=10))
        assert last[-1].kind == "closed"
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


def test_a_frozen_server_that_is_sent_much_is_given_up(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgdist.runtime.channels.ssh.PATIENCE", 2.0)
    events: queue.Queue[Heard] = queue.Queue()
    assert sshd.process is not None
    with SshChannel.open(sshd.machine(), sshd.options(), events, module=PEER, patience=2.0) as opened:
        assert events.get(timeout=30).kind == "message"
        frozen = descendants(sshd.process.pid)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            opened.send({"echo": "x" * 30_000_000})
            heard = events.get(timeout=30)
            assert heard.kind == "closed" and heard.value.code is None
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)


def test_the_server_going_away_ends_the_channel(sshd: Sshd) -> None:
    events: queue.Queue[Heard] = queue.Queue()
    with SshChannel.open(sshd.machine(), sshd.options(), events, module=PEER):
        assert events.get(timeout=30).kind == "message"
        sshd.stop()
        kinds = [events.get(timeout=30)]
        while kinds[-1].kind != "closed":
            kinds.append(events.get(timeout=30))
        assert kinds[-1].value.code is None


def test_ipv6(make_sshd: Callable[..., Sshd]) -> None:
    try:
        server = make_sshd(address="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    works(server)


# What is executed.


def test_a_python_that_is_not_there(sshd: Sshd) -> None:
    events: queue.Queue[Heard] = queue.Queue()
    with SshChannel.open(sshd.machine(), sshd.options(remote_python="/nowhere/python"), events, module=PEER):
        heard = events.get(timeout=30)
        while heard.kind != "closed":
            heard = events.get(timeout=30)
    assert (heard.value.code, heard.value.words) == (127, "has no program /nowhere/python; name its Python by --remote_python")


@pytest.mark.parametrize("python", ["python3; touch {}", "$(touch {})", "`touch {}`", "python3' ; touch {} '", "x || touch {}"])
def test_nothing_of_the_path_is_executed(python: str, sshd: Sshd, tmp_path: Path) -> None:
    events: queue.Queue[Heard] = queue.Queue()
    marked = tmp_path / "pwned"
    with SshChannel.open(sshd.machine(), sshd.options(remote_python=python.format(marked)), events, module=PEER):
        heard = events.get(timeout=30)
        while heard.kind != "closed":
            heard = events.get(timeout=30)
    assert heard.value.code == 127 and not marked.exists()


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("jump_host", "host -oProxyCommand=touch {}"),
        ("jump_host", "-oProxyCommand=touch${{IFS}}{}"),
        ("ssh_user", "-oProxyCommand=touch {}"),
        ("ssh_user", "me;touch {}"),
    ],
)
def test_nothing_of_the_options_is_executed(where: str, value: str, sshd: Sshd, tmp_path: Path) -> None:
    marked = tmp_path / "pwned"
    refused(sshd, **{where: value.format(marked)})
    assert not marked.exists()


def test_a_server_without_sftp(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd()
    text = server.config.read_text().replace("Subsystem sftp internal-sftp\n", "")
    server.stop()
    server.config.write_text(text)
    server.log.write_text("")
    server.start()
    with connect(server.machine(), server.options()) as connection, pytest.raises(KgdistError, match="no SFTP; .*Subsystem sftp"):
        connection.upload(server.config, "nowhere", 0, lambda size: None)
