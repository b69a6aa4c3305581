"""A real browser, driven over two pipes: pages at any width, in light and dark, measured and photographed.

It speaks the DevTools protocol of Chromium: one JSON object after another, each ended by a NUL. There is no driver to install.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.patience import patience

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = patience(60.0)  # seconds for one answer: machines under test are busy
FLAGS = (
    "--headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
    "--disable-extensions --disable-background-networking --disable-component-update --disable-sync --mute-audio"
)

ON_PIPES = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(commands, 3)  # where Chromium looks for them
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def program() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One process with one page. `problems` are the errors that the page has put on its console, and what it tried to load."""

    def __init__(self, process: subprocess.Popen[bytes], read: int, write: int) -> None:
        self.process, self.read, self.write = process, read, write
        self.rest = b""
        self.number = 0
        self.session: str | None = None
        self.problems: list[str] = []
        self.own = ("file:", "data:", "blob:")  # where pages may load from
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command and its result; raises RuntimeError for a refusal, TimeoutError when there is no answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._hear(answer)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self.read, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("the browser does not answer")
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(line))

    def _hear(self, event: dict[str, Any]) -> None:
        method, facts = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = facts["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(word.get("value", word.get("description"))) for word in facts["args"]))
        elif method == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.problems.append(facts["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not facts["request"]["url"].startswith(self.own):
            self.problems.append(f"the page loads {facts['request']['url'][:200]}")

    def open(self, page: Path | str, *, width: int, dark: bool, height: int = 900) -> None:
        """Load the page, a file or an address, and wait until it is whole."""
        self.scheme(dark=dark)
        self.resize(width, height)
        self.ask("delete document.documentElement?.dataset.drawn")  # of the page before
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        self.wait("document.documentElement?.dataset.drawn === 'yes'")

    def scheme(self, *, dark: bool) -> None:
        """What the reader's system prefers."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def settle(self) -> None:
        """Wait until the charts have taken the size of their boxes, and two pictures more."""
        self.wait(
            "[...document.querySelectorAll('.chart')].every((box) => "
            "Math.abs(box.querySelector('.main-svg').getBoundingClientRect().width - box.getBoundingClientRect().width) < 2)"
        )
        self.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int, height: int) -> None:
        """The size of the window, in its own pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.ask(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never came true: {condition}; {self.problems}")
            time.sleep(0.05)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page, as JSON."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """A key of the keyboard, down and up: Tab, Enter, ArrowDown, or a letter."""
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "ArrowUp": 38, "ArrowDown": 40}
        code = codes[key] if len(key) > 1 else ord(key.upper())
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def photograph(self, file: Path, *, whole: bool = True) -> None:
        """A PNG of the page: all of it, or what the window shows."""
        width, height = self.ask("[innerWidth, document.documentElement.scrollHeight]")
        if whole:
            self.resize(width, height)
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser that keeps its files in `folder` and ends with the block."""
    there, here = os.pipe(), os.pipe()  # to the browser, from the browser
    command = [sys.executable, "-ISc", ON_PIPES, str(there[0]), str(here[1]), str(program()), *FLAGS.split()]
    command.append(f"--user-data-dir={folder / 'profile'}")
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder)}
    process = subprocess.Popen(
        command, pass_fds=(there[0], here[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    os.close(there[0])
    os.close(here[1])
    try:
        made = Browser(process, here[0], there[1])
        yield made
        made.session = None
        made.call("Browser.close")
        process.wait(timeout=patience(60))
    finally:
        os.close(there[1])
        os.close(here[0])
        if process.poll() is None:
            process.kill()
            process.wait(timeout=patience(60))
