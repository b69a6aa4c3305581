"""The threads of torch.distributed's gloo, which a process must let rest before it ends."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

PATIENCE = 1.0  # seconds at most that the end of a process waits for them


def let_gloo_rest() -> None:
    """Before Python ends, let gloo's threads let go of the tensors of their last work: a trainer in a hundred was killed by
    SIGABRT, for up to Python 3.13 a thread that asks for the interpreter while that ends takes the process with it (see pull
    request 179291 of pytorch/pytorch). To destroy the group does not end them: torch holds it, as default of functions that it
    imports later."""
    still, deadline = 0, time.monotonic() + PATIENCE
    while still < 2 and "torch.distributed" in sys.modules and time.monotonic() < deadline:
        states = list(filter(None, map(_state_for_gloo, Path("/proc/self/task").glob("*"))))
        if not states:
            return
        still = still + 1 if set(states) == {"S"} else 0
        time.sleep(0.005)  # the interpreter is theirs meanwhile


def _state_for_gloo(thread: Path) -> str:
    """Of one of gloo's, its state, as proc(5) calls it."""
    try:
        name, state = re.findall(r"\((.*)\) (.)", (thread / "stat").read_text())[0]
    except OSError:
        return ""
    return state if name.startswith("pt_gloo") else ""
