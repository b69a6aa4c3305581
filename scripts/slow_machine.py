"""A machine ten times slower: `python scripts/slow_machine.py COMMAND...` gives every process below COMMAND a tenth of a core.

    python scripts/slow_machine.py .venv/bin/python -m pytest -x tests/laws

Each process runs for 10 ms of every 100 and is stopped (SIGSTOP) in between, one after another, as on a machine that is far too
busy. What the command itself stops stays stopped until the command lets it go on (but for a stop that comes at the very moment of
one of ours: the system makes one of the two); what ends is forgotten; a process in a sandbox of its own is left alone; nothing is
left stopped, also when this script is killed. The command sees KGDIST_TEST_SLOWNESS=10, by which the tests stretch their limits
(`tests/patience.py`), and no PYTHONUNBUFFERED, with which Python loses what a stop cuts short. Ends with the command's exit code.
Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

SLOWNESS = 10  # one share in this many
SHARE = 0.01  # seconds that a process runs at a time
MARK = "KGDIST_SLOW_MACHINE"  # in the environment of all that is slowed
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: daemons below the command stay below this process
PENDING_STOP = 1 << (signal.SIGSTOP - 1)


class Seen(NamedTuple):
    """A process at a glance. `born` tells it from a later one of the same number."""

    parent: int
    state: str
    born: str


def look(pid: int) -> Seen | None:
    """None if it is gone, or as good as gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else Seen(int(fields[1]), fields[0], fields[19])


def below(root: int) -> dict[int, str]:
    """The processes that `root` has started, they and theirs, oldest first: when each was born."""
    seen = {int(name): one for name in os.listdir("/proc") if name.isdigit() and (one := look(int(name))) is not None}
    parents, found = {root}, {}
    for _ in seen:
        new = {pid: one.born for pid, one in seen.items() if one.parent in parents and pid not in found}
        if not new:
            break
        found |= new
        parents = set(new)
    return dict(sorted(found.items(), key=lambda each: (int(each[1]), each[0])))


def send(pid: int, what: signal.Signals) -> None:
    """To a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, what)


def status(pid: int | str, name: str) -> str:
    """A line of its status, empty where there is none."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.split()[1]
    return ""


def stopped_by_others(pid: int) -> bool:
    """Whether a stopped process has been told to stop once more: not by us, who tell it once."""
    return bool(int(status(pid, "ShdPnd") or "0", 16) & PENDING_STOP)


def in_a_sandbox(pid: int) -> bool:
    """Whether it has forbidden itself calls of the system: sshd before somebody is let in. A wait that was stopped goes on by a
    call that such sandboxes do not know (restart_syscall), and the system ends who makes it."""
    return int(status(pid, "Seccomp_filters") or 0) > int(status("self", "Seccomp_filters") or 0)


class Slowed:
    """One process: running, held by us, or left to whoever else has stopped it."""

    def __init__(self, pid: int, born: str, turn: int) -> None:
        self.pid, self.born, self.turn = pid, born, turn
        self.held = False

    def tick(self, turn: int) -> bool:
        """Stop it, let it go on, or leave it alone; False when it is gone."""
        seen = look(self.pid)
        if seen is None or seen.born != self.born:
            return False
        if self.held and turn == self.turn:
            if seen.state != "T" or not stopped_by_others(self.pid):
                send(self.pid, signal.SIGCONT)
            self.held = False
        elif not self.held and turn != self.turn and seen.state not in "Tt" and not in_a_sandbox(self.pid):
            send(self.pid, signal.SIGSTOP)
            self.held = True
        return True

    def free(self) -> None:
        """At the end: stopped it is left only by others."""
        seen = look(self.pid)
        if self.held and seen is not None and seen.born == self.born and not stopped_by_others(self.pid):
            send(self.pid, signal.SIGCONT)


GUARD = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
if not sys.stdin.buffer.read(1):
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if sys.argv[1].encode() in file.read():
                    os.kill(int(name), signal.SIGCONT)
        except OSError:
            pass
"""


def reap(command: int) -> None:
    """Let go of daemons that have ended; the command itself is its Popen's."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None and ended.si_pid != command:
        os.waitpid(ended.si_pid, 0)


def slow(command: subprocess.Popen[bytes], spared: set[int]) -> None:
    """Until it ends."""
    slowed: dict[int, Slowed] = {}
    tick = 0
    try:
        while command.poll() is None:
            if tick % SLOWNESS == 0:
                reap(command.pid)
                for pid, born in below(os.getpid()).items():
                    if pid not in spared and pid not in slowed:
                        slowed[pid] = Slowed(pid, born, len(slowed) % SLOWNESS)
            slowed = {pid: one for pid, one in slowed.items() if one.tick(tick % SLOWNESS)}
            tick += 1
            time.sleep(SHARE)
    finally:
        for one in slowed.values():
            one.free()


def main() -> int:
    """Run the command."""
    if len(sys.argv) < 2:
        print("usage: slow_machine.py COMMAND...", file=sys.stderr)
        return 2
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    mark = str(uuid.uuid4())
    environment = os.environ | {MARK: mark, "KGDIST_TEST_SLOWNESS": str(SLOWNESS)}
    environment.pop("PYTHONUNBUFFERED", None)
    guard = subprocess.Popen([sys.executable, "-c", GUARD, f"{MARK}={mark}"], stdin=subprocess.PIPE, start_new_session=True)
    command = subprocess.Popen(sys.argv[1:], env=environment)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, _: send(command.pid, signal.Signals(number)))
    slow(command, {guard.pid})
    guard.communicate(b".", timeout=60)
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


if __name__ == "__main__":
    sys.exit(main())
