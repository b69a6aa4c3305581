"""One process of `tests.faults.store_roles`, and all that it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.patience import patience

ROOT = Path(__file__).resolve().parents[2]


class Role:
    """A server or a trainer of the store.

    Args:
        inside: words before its command: a network namespace.
        variables: of its environment, besides those of this process.
        log: where it writes what goes wrong; here, without.
    """

    def __init__(
        self,
        job: dict[str, Any],
        fds: list[int],
        *,
        inside: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self.said: list[dict[str, Any]] = []
        errors = log.open("ab") if log is not None else None
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-m", "tests.faults.store_roles"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, pass_fds=fds, text=True,
            env=os.environ | (variables or {}),
        )  # fmt: skip
        if errors is not None:
            errors.close()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def ask(self) -> None:
        """Let a server say what it has applied."""
        assert self.process.stdin is not None
        self.process.stdin.write("state\n")
        self.process.stdin.flush()

    def fact(self, key: str) -> Any:
        """The last value of a fact, or None."""
        return next((facts[key] for facts in reversed(self.said) if key in facts), None)

    def end(self, *, kill: bool = False) -> None:
        """Close its stdin, or kill it; wait for it."""
        if kill:
            self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=patience(60))
        self._thread.join(timeout=patience(60))
        assert self.process.stdout is not None
        self.process.stdout.close()
