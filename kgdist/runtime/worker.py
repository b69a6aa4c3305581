"""One training process: `python -m kgdist.runtime.worker`, started by `kgdist.runtime.processes`.

It imports what it needs, reads its job as one line of JSON on stdin, trains, and writes events (see `kgdist.runtime.workers`) as
lines of JSON on stdout. When stdin closes, the process that owns it is gone, and it ends at once.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from kgdist.errors import KgdistError


def _end_with_owner() -> None:
    """Leave when the owner closes the pipe or dies; nothing is worth finishing without it."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)


def main() -> None:
    """Run one job to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    faulthandler.register(signal.SIGUSR1)
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody's print may break the protocol

    def send(**event: Any) -> None:
        try:
            events.write(json.dumps(event) + "\n")
            events.flush()
        except BrokenPipeError:  # the owner is gone
            os._exit(1)

    code = 0
    try:
        from kgdist.kernels import choice
        from kgdist.runtime.job import train_share  # takes a second or two, in which the owner prepares the job

        choice.numba()
        line = sys.stdin.buffer.readline()
        if not line:
            os._exit(1)
        job = json.loads(line)
        threading.Thread(target=_end_with_owner, daemon=True).start()
        send(done=train_share(job, lambda line: send(say=line)))
    except KgdistError as error:
        code = error.exit_code
        send(error=str(error), traceback="", code=code)
    except BaseException as error:  # whatever it is, the owner must hear of it
        code = 1
        send(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc(), code=code)
    sys.stderr.flush()
    os._exit(code)  # the watching thread sits in a read that no one will end, and holds a lock that an orderly exit wants


if __name__ == "__main__":
    main()
