"""The other end of a channel in tests: does what the lines of JSON on its stdin say, and ends with its stdin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any


def say(**message: Any) -> None:
    """One message to the owner."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def obey(order: dict[str, Any]) -> None:
    """Do one thing."""
    for what, value in order.items():
        if what == "echo":
            say(echo=value)
        elif what == "size":
            say(size=len(value))
        elif what == "print":
            print(value, flush=True)
        elif what == "stderr":
            print(value, file=sys.stderr, flush=True)
        elif what == "noise":  # that many bytes, in lines of 100
            sys.stderr.write(("x" * 99 + "\n") * (value // 100))
            sys.stderr.flush()
            say(noise=value)
        elif what == "long":  # a line without end
            sys.stdout.write("{" * value)
            sys.stdout.flush()
        elif what == "environment":
            say(environment=dict(os.environ))
        elif what == "sleep":  # and not read
            time.sleep(value)
        elif what == "ignore":  # these signals
            for name in value:
                signal.signal(getattr(signal, name), signal.SIG_IGN)
            say(ignored=value)
        elif what == "linger":  # that long after stdin has ended
            for _ in sys.stdin:
                pass
            time.sleep(value)
        elif what == "leave":  # a process that holds the pipes of this one, which ends
            left = subprocess.Popen(["sleep", str(value)])
            say(left=left.pid)
            os._exit(0)
        elif what == "kill":
            os.kill(os.getpid(), getattr(signal, value))
        elif what == "exit":
            os._exit(value)


def main() -> None:
    """Say hello, then obey."""
    say(pid=os.getpid())
    for line in sys.stdin:
        obey(json.loads(line))
