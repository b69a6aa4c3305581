"""Machines reached over SSH: who they are, getting in, and a process there as a `Channel`. The only file that knows paramiko.

No laxer than OpenSSH: a host key must be known, `--accept_new_host_keys` takes keys of hosts never seen before, and a changed or
revoked key is refused always. Keys come from --ssh_key, ssh_config, the agent and ~/.ssh; passwords are not asked for. Every
wait has a deadline. What is executed is fixed (`remote_command`); everything else travels on stdin as data.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import paramiko

from kgdist.base.errors import KgdistError, PeersLost, UsageError, one_line
from kgdist.base.log import log
from kgdist.runtime.channels.channel import AGENT, PATIENCE, PIECE, TICK, Channel, Heard
from kgdist.runtime.channels.known_hosts import KnownHosts, check_host_key
from kgdist.runtime.channels.ssh_config import Login, SshOptions, login_of, remote_command, with_includes
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.processes.child import ending

TIMEOUT = 20.0  # seconds for each of: TCP, banner and keys, login, opening a channel
KEEPALIVE = 10  # seconds between two signs of life, so that a firewall keeps the connection and the system notices its end
KEYS_TRIED = 5  # of the agent: sshd ends the connection after 6 attempts

# It would print tracebacks of refused connections on stderr; the errors raised here say the same in one line.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class SshConnection:
    """A machine that has let us in. Close it; everything opened on it ends with it."""

    def __init__(self, login: Login, transport: paramiko.Transport, before: SshConnection | None = None) -> None:
        self.login = login
        self.transport = transport
        self._before = before  # the connection to the jump host that carries this one
        self._sftp: paramiko.SFTPClient | None = None

    def execute(self, command: str) -> paramiko.Channel:
        """Start `command` without a terminal. Raises KgdistError."""
        try:
            session = self.transport.open_session(timeout=TIMEOUT)
            session.settimeout(TIMEOUT)
            session.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise KgdistError(one_line(f"{self.login.shown}: ssh: no command could be started ({_reason(error)})")) from error
        return session

    def upload(self, source: Path, target: str, begin: int, count: Callable[[int], None]) -> None:
        """Send the bytes of `source` from `begin` on to the same place of the file `target`, which is made when `begin` is 0.

        `count` gets how many have left. Raises PeersLost when the connection is gone, KgdistError for all else.
        """
        try:
            if self._sftp is None:
                self._sftp = self._open_sftp()
            with source.open("rb") as here, self._sftp.open(target, "r+" if begin else "w") as there:
                there.set_pipelined(True)  # does not wait for each packet's answer; closing does
                here.seek(begin)
                there.seek(begin)
                for piece in iter(lambda: here.read(4 * PIECE), b""):
                    there.write(piece)
                    count(len(piece))
        except (paramiko.SSHException, EOFError, OSError) as error:
            reason = _reason(error)
            if reason == "Failure":  # SFTP 3 has no word for it
                reason = "cannot be written; the disk may be full"
            # The transport may take a moment to see that its connection is gone.
            gone = isinstance(error, (EOFError, TimeoutError, ConnectionError)) or str(error) == "Socket is closed"
            kind = PeersLost if gone or not self.transport.is_active() else KgdistError
            raise kind(one_line(f"{self.login.shown}: {target}: {reason}")) from error

    def _open_sftp(self) -> paramiko.SFTPClient:
        try:
            session = self.transport.open_session(timeout=TIMEOUT)
            session.settimeout(PATIENCE)
            session.invoke_subsystem("sftp")
        except paramiko.SSHException as error:
            if not self.transport.is_active():
                raise
            advice = "its sshd_config needs a line `Subsystem sftp internal-sftp`"
            raise KgdistError(f"{self.login.shown}: ssh: no SFTP; {advice}") from error
        return paramiko.SFTPClient(session)

    def close(self) -> None:
        """End the connection at once, however the other side is doing."""
        with contextlib.suppress(Exception):
            self.transport.close()
        with contextlib.suppress(Exception):
            self.transport.sock.close()
        if self._before is not None:
            self._before.close()

    def __enter__(self) -> SshConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def connect(machine: Machine, options: SshOptions, *, timeout: float = TIMEOUT) -> SshConnection:
    """Log in to a machine, over the jump host if there is one; `timeout` is for each step of it.

    Raises UsageError with one line that names the host and says what to do.
    """
    lookup = Lookup(options.ssh_config)
    login = login_of(machine.address, lookup, options)
    if login.jump is None:
        return _connect(login, None, options, timeout)
    before = _connect(login_of(login.jump, lookup, options, jumping=True), None, options, timeout)
    try:
        return _connect(login, before, options, timeout)
    except BaseException:
        before.close()
        raise


class Lookup:
    """ssh_config's settings of a host: of `path`, or of the user's and the system's file. Raises UsageError."""

    def __init__(self, path: str | None) -> None:
        files = [Path(path).expanduser()] if path else [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
        texts = []
        for file in files:
            try:
                if path or file.exists():
                    text = file.read_text(encoding="utf-8", errors="replace")
                    folder = Path("/etc/ssh") if file.is_relative_to("/etc/ssh") else Path("~/.ssh").expanduser()
                    texts.append(with_includes(text, folder, log.warning))
            except OSError as error:
                raise UsageError(one_line(f"{file}: cannot be read ({error.strerror or error})")) from error
        try:
            self._config = paramiko.SSHConfig.from_text("\nHost *\n".join(texts))
        except Exception as error:  # paramiko's own, and those of shlex for an open quote
            raise UsageError(one_line(f"{files[0]}: not understood as ssh configuration ({error})")) from error

    def __call__(self, host: str) -> Mapping[str, Any]:
        try:
            return self._config.lookup(host)
        except Exception as error:
            raise UsageError(one_line(f"{host}: ssh_config cannot be applied to it ({error})")) from error


def _connect(login: Login, before: SshConnection | None, options: SshOptions, timeout: float) -> SshConnection:
    sock: Any = None
    transport: paramiko.Transport | None = None
    step = "connecting"
    try:
        sock = _socket(login, before, timeout)
        step = "exchanging keys"
        transport = paramiko.Transport(sock)
        # `_greet` waits for the keys; were paramiko the first to lose patience, its words would not tell of a silent machine.
        transport.banner_timeout = transport.handshake_timeout = 2 * timeout
        transport.auth_timeout = transport.channel_timeout = timeout
        known = KnownHosts.read(login.known_hosts)
        _prefer(transport, known.kinds(login.alias, login.port))
        _greet(transport, timeout)
        key = transport.get_remote_server_key()
        check_host_key(login, known, key.get_name(), key.asbytes(), accept_new=options.accept_new_host_keys)
        step = "logging in"
        _log_in(login, transport)
        transport.set_keepalive(KEEPALIVE)
        return SshConnection(login, transport, before)
    except BaseException as error:
        for thing in (transport, sock):
            if thing is not None:
                with contextlib.suppress(Exception):
                    thing.close()
        if isinstance(error, paramiko.SSHException | OSError | EOFError):
            through = f" through {before.login.shown}" if before else ""
            message = f"{login.shown}: ssh{through}: {step} failed: {_reason(error)}; try: {login.command}"
            raise UsageError(one_line(message)) from error
        raise


def _socket(login: Login, before: SshConnection | None, timeout: float) -> Any:
    if before is not None:
        return before.transport.open_channel("direct-tcpip", (login.address, login.port), ("127.0.0.1", 0), timeout=timeout)
    sock = socket.create_connection((login.address, login.port), timeout=timeout)
    with contextlib.suppress(OSError, AttributeError):  # what is sent and not confirmed for that long ends the connection (Linux)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(PATIENCE * 1000))
    return sock


def _greet(transport: paramiko.Transport, timeout: float) -> None:
    """Agree on keys. Raises what paramiko raises, and TimeoutError."""
    agreed = threading.Event()  # without one, paramiko's own wait ends without a word
    transport.start_client(event=agreed)
    if not agreed.wait(timeout=timeout) or not transport.is_active():
        raise transport.get_exception() or TimeoutError()


def _prefer(transport: paramiko.Transport, kinds: list[str]) -> None:
    """Ask for keys of the kinds that are known first: the server chooses by our order."""
    wanted = [name for kind in kinds for name in (("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,))]
    security = transport.get_security_options()
    supported = tuple(security.key_types)
    first = tuple(name for name in wanted if name in supported)
    security.key_types = first + tuple(name for name in supported if name not in first)


def _log_in(login: Login, transport: paramiko.Transport) -> None:
    """Try the keys in turn. Raises UsageError that tells what was tried."""
    tried: list[str] = []
    for name, key in _keys(login, tried):
        try:
            more = transport.auth_publickey(login.user, key)
        except paramiko.BadAuthenticationType as error:
            tried.append(f"the server takes only {', '.join(error.allowed_types)}")
            break
        except paramiko.AuthenticationException as error:
            tried.append(f"{name}{'' if transport.is_active() else f' ({_reason(error)})'}")
            if not transport.is_active():
                break
        else:
            if not more:
                return
            tried.append(f"{name}, after which the server also wants {' or '.join(more)}")
            break
    advice = "add its public key to authorized_keys there, or name another by --ssh_key, --ssh_user or ssh_config"
    done = "; ".join(tried) or "no key was found; make one by ssh-keygen"
    raise UsageError(one_line(f"{login.shown}: ssh: {login.user} was not let in (tried: {done}); {advice}"))


def _keys(login: Login, tried: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
    """The keys to try: named files, the agent's, OpenSSH's usual files. What cannot be used is added to `tried`."""
    files: list[tuple[str, paramiko.PKey]] = []
    publics = set()
    for path in login.keys:
        with contextlib.suppress(OSError, ValueError, IndexError):
            publics.add(base64.b64decode(Path(path + ".pub").read_text(encoding="ascii").split()[1]))
        try:
            files.append((path, paramiko.PKey.from_path(path)))
        except OSError as error:
            if login.named:
                tried.append(f"{path}: {(error.strerror or str(error)).lower()}")
        except (paramiko.PasswordRequiredException, TypeError):  # cryptography's word for a missing passphrase
            tried.append(f"{path}: has a passphrase; add it to the agent by ssh-add")
        except Exception as error:
            tried.append(f"{path}: not a private key ({type(error).__name__}: {error})")
    if login.named:
        yield from files
    agent = _agent_keys(tried)
    if login.only:
        publics |= {key.asbytes() for _, key in files}
        agent = [(name, key) for name, key in agent if key.asbytes() in publics]
    own = {key.asbytes() for _, key in files} if login.named else set()
    yield from [(name, key) for name, key in agent if key.asbytes() not in own][:KEYS_TRIED]
    if not login.named:
        yield from files


def _agent_keys(tried: list[str]) -> list[tuple[str, paramiko.PKey]]:
    if not os.environ.get("SSH_AUTH_SOCK"):
        return []
    try:
        agent = paramiko.Agent()
        return [(f"agent key {getattr(key, 'comment', '') or key.get_name()}", key) for key in agent.get_keys()]
    except (paramiko.SSHException, OSError) as error:
        tried.append(f"the agent does not answer ({_reason(error)})")
        return []


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, EOFError):
        return "the connection was ended by the other side"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    file = getattr(error, "filename", None)
    return " ".join(f"{file}: {text}".split() if file else text.split())


class SshChannel(Channel):
    """A process on a machine over SSH: `main` of `module`, without a terminal.

    Its stdin closes with this channel, however that ends: a process that is to end with it watches for that.
    """

    remedy = "; install kgdist there, or name another Python by --remote_python"

    def __init__(
        self,
        number: int,
        name: str,
        events: queue.Queue[Heard],
        connection: SshConnection,
        *,
        python: str,
        module: str = AGENT,
        patience: float = PATIENCE,
    ) -> None:
        """Takes over `connection`, which is closed with it. Raises KgdistError."""
        super().__init__(number, name, events, patience=patience)
        self.connection = connection
        self._python = python
        try:
            self._session = connection.execute(remote_command(python, module))
        except BaseException:
            connection.close()
            raise
        self._session.settimeout(TICK)
        self._begin()

    @classmethod
    def open(cls, machine: Machine, options: SshOptions, events: queue.Queue[Heard], **more: Any) -> SshChannel:
        """Connect to a machine and start the process there. Raises UsageError, KgdistError."""
        connection = connect(machine, options)
        return cls(machine.number, machine.name, events, connection, python=options.python, **more)

    def _read(self, stream: int) -> bytes | None:
        try:
            return self._session.recv(PIECE) if stream == 1 else self._session.recv_stderr(PIECE)
        except TimeoutError:
            return None

    def _write(self, data: memoryview) -> int:
        try:
            return self._session.send(bytes(data))
        except TimeoutError:
            return 0

    def _end_input(self) -> None:
        self._session.shutdown_write()

    def _ending(self) -> tuple[int | None, str] | None:
        code = self._session.exit_status  # -1 while there is none
        if code == 127:
            return code, f"has no program {self._python}; name its Python by --remote_python"
        if code >= 0:
            return code, ending(code)
        if not self.connection.transport.is_active():
            return None, "was cut off" if self._closing else "cannot be reached any more"
        return (None, "was killed by a signal") if self._session.closed else None

    def _stop(self, *, force: bool) -> None:
        if force:  # before that there is nothing to ask with: sshd passes no signals on to a process of root
            self.connection.close()

    def _release(self) -> None:
        self.connection.close()
