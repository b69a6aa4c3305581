"""What Ctrl-C, SIGTERM and SIGHUP mean: once, finish the step and save; Ctrl-C twice, leave now.

Systems send SIGTERM and SIGHUP more than once: schedulers to a script that passes it on and to its children as well, a terminal
that is closed by itself and by its shell. Only a person who presses Ctrl-C is impatient.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from kgdist.kernels.jit import compiling


class Interrupts:
    """While active, the first signal sets `asked` (or raises KeyboardInterrupt where `at_once` is set). A second one raises if
    one of them was Ctrl-C and it is not SIGHUP; `leaving` says so to other threads. SIGHUP that was ignored before (nohup) stays
    ignored."""

    def __init__(self) -> None:
        self.asked = False
        self.leaving = False
        self.at_once = False
        self._pressed = False  # Ctrl-C
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def immediate(self) -> Iterator[None]:
        """While the block runs the first signal raises as well: there is nothing to finish. So does one that came before."""
        before, self.at_once = self.at_once, True
        try:
            if self.asked:
                raise KeyboardInterrupt
            yield
        finally:
            self.at_once = before

    def _handle(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        self._pressed |= number == signal.SIGINT
        if self.at_once or (again and self._pressed and number != signal.SIGHUP):
            self.leaving = True
            if not compiling.postpones():
                raise KeyboardInterrupt
