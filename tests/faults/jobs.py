"""Whole jobs of kgdist-dist-train as a user starts them, on a small graph in several partitions, and their processes by role."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.cli import partition
from kgdist.runtime.processes.forkserver import environment
from tests.family import alive, descendants, parent, words_of
from tests.faults.sshd import free_port
from tests.patience import patience

ROOT = Path(__file__).resolve().parents[2]
LIMIT = patience(100.0)
SMALL = {
    "model_name": "TransE_l2",
    "hidden_dim": "16",
    "gamma": "8",
    "lr": "0.1",
    "batch_size": "64",
    "neg_sample_size": "16",
    "log_interval": "1000",
    "regularization_coef": "1e-7",
}


def graph(
    folder: Path,
    *,
    entities: int = 120,
    relations: int = 5,
    triples: int = 1500,
    seed: int = 0,
    weighted: bool = False,
    held_out: float = 0.1,
) -> None:
    """A graph with structure: tails follow from heads and relations. Files train.tsv, valid.tsv, test.tsv of names, of which
    the last two have the share `held_out` of the triples each."""
    rng = np.random.default_rng(seed)
    heads, links = rng.integers(entities, size=triples), rng.integers(relations, size=triples)
    tails = (heads + 7 * links + rng.integers(2, size=triples)) % entities
    weight = "\t1.5" if weighted else ""
    lines = [f"e{h}\tr{r}\te{t}{weight}\n" for h, r, t in zip(heads, links, tails, strict=True)]
    cuts = (round(triples * (1 - 2 * held_out)), round(triples * (1 - held_out)))
    for split, part in (("train", lines[: cuts[0]]), ("valid", lines[cuts[0] : cuts[1]]), ("test", lines[cuts[1] :])):
        (folder / f"{split}.tsv").write_text("".join(part))


def command(name: str, *words: str) -> list[str]:
    """One of kgdist's commands as this Python runs it."""
    return [sys.executable, "-m", f"kgdist.cli.{name}", *words]


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT, env=environment(1), check=False)


def here(name: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As `run`, in this process: for a command that is no part of what may fail, without the seconds that a new process takes."""
    main = importlib.import_module(f"kgdist.cli.{name}").main
    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess([name, *words], code, out.getvalue(), err.getvalue())


def flags_of(folder: Path, backend: str, options: dict[str, str]) -> list[str]:
    """The command line of a kgdist-dist-train in a workspace: the options of SMALL, and these."""
    given = SMALL | {"peer_timeout": "5", "dataset": "toy", "data_path": "data", "path": str(folder)} | options
    given |= {name: str(patience(float(given[name]))) for name in given.keys() & {"peer_timeout", "stall_timeout"}}
    return ["--backend", backend, *(text for name, value in given.items() for text in (f"--{name}", value))]


def refused(folder: Path, *words: str, backend: str = "local", **options: str) -> str:
    """The one line by which a job that must not begin is refused, before it has started anybody: so it runs in this process."""
    done = here("dist_train", *flags_of(folder, backend, options), *words, folder=folder)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(lines) == 1, done.stdout + done.stderr
    return lines[0]


def workspace(
    folder: Path, *, parts: int = 2, servers: int = 1, address: str = "127.0.0.1", weighted: bool = False,
    typed: bool = False, **shape: Any,
) -> Path:  # fmt: skip
    """A folder with the graph `toy` in `parts` partitions, and an ip_config.txt with ports that are free now."""
    data = folder / "data" / "toy"
    data.mkdir(parents=True)
    graph(data, weighted=weighted, **shape)
    files = [str(data / f"{split}.tsv") for split in ("train", "valid", "test")]
    words = ["--dataset", "toy", "--format", "raw_udd_hrt", "--data_path", str(folder / "data"), "--data_files", *files]
    more = ["--has_edge_importance"] if weighted else []
    more += ["--entity_types", str(types(folder))] if typed else []
    assert partition.main([*words, *more, "-k", str(parts), "--quiet"]) == 0
    ip_config(folder, parts=parts, servers=servers, address=address)
    return folder


def types(folder: Path) -> Path:
    """A file with types of the entities of `graph`: of each, whether its number is even, and its first digit."""
    file, kinds = folder / "types.tsv", [(f"e{n}", kind) for n in range(120) for kind in (f"even{n % 2}", f"digit{str(n)[0]}")]
    file.write_text("".join(f"{entity}\t{kind}\n" for entity, kind in kinds))
    return file


def ip_config(folder: Path, *, parts: int, servers: int = 1, address: str = "127.0.0.1") -> None:
    """Write ip_config.txt with `parts` machines on `address`."""
    each = servers + 1  # and one for --control
    first = free_port(address, parts * each)
    ports = range(first, first + parts * each, each)
    (folder / "ip_config.txt").write_text("".join(f"{address} {port} {servers}\n" for port in ports))


class Job:
    """One kgdist-dist-train in `folder`, while it runs. Its output is in `lines`; leaving the block ends it by force.

    Args:
        words, options: of its command line, besides those of SMALL.
        inside: words before the command: a network namespace.
        before: Python that the launcher runs first, for constants of its own that are too long for a test.
        variables: of its environment, besides those of this process.

    Attributes:
        reading: while it is not set, nobody reads what the launcher prints, as in a terminal after Ctrl-S.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        backend: str = "local",
        inside: tuple[str, ...] = (),
        before: str = "",
        variables: dict[str, str] | None = None,
        **options: str,
    ) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.times: list[float] = []  # of time.monotonic(), when each line was read
        started = [sys.executable, "-c", f"{before}\nfrom kgdist.cli.dist_train import main\nraise SystemExit(main())"]
        self.process = subprocess.Popen(
            [*inside, *(started if before else command(self.name)), *self.flags(backend, options), *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(1) | (variables or {}),
        )
        self.reading = threading.Event()
        self.reading.set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.seen: set[int] = set()  # processes that it has had

    name = "dist_train"

    def flags(self, backend: str, options: dict[str, str]) -> list[str]:
        """Its command line."""
        return flags_of(self.folder, backend, options)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            while not self.reading.wait(timeout=1.0):
                pass
            self.times.append(time.monotonic())
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        """All it has printed."""
        return "\n".join(self.lines)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        pids = self.pids()
        self.reading.set()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=LIMIT)
        for pid in pids | self.seen:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)

    def until(self, pattern: str, seconds: float = 120.0, *, times: int = 1) -> str:
        """Wait for the first line with `pattern`, or for that many; the last of them."""

        def found() -> str | None:
            lines = [line for line in self.lines if re.search(pattern, line)]
            return lines[times - 1] if len(lines) >= times else None

        return str(wait(found, seconds, self))

    def checkpoints(self, machine: int) -> set[int]:
        """Steps of the checkpoints that a machine has now."""
        return {int(found.name.removeprefix("ckpt-")) for found in self.folder.glob(f"ckpts/*/machine_{machine}/ckpt-*")}

    def saved(self, count: int = 1, *, seconds: float = 120.0) -> int:
        """Wait until both machines have a checkpoint that is newer than all there are now, `count` times; the last one's step."""
        for _ in range(count):
            before = max(self.checkpoints(0) | self.checkpoints(1), default=-1)
            wait(lambda old=before: min(max(self.checkpoints(n), default=-1) for n in range(2)) > old, seconds, self)
        return max(self.checkpoints(0) & self.checkpoints(1), default=-1)

    def pids(self, role: str = "") -> set[int]:
        """Its processes besides the launcher, or those whose command line has `role` (agent, server-0, trainer-1-0)."""
        found = self._family()
        self.seen |= found
        return {pid for pid in found if re.search(rf"runtime\.agent|{role}" if role == "agent" else role, words_of(pid))}

    def _family(self) -> set[int]:
        """The processes below the launcher."""
        return set(descendants(self.process.pid))

    def kill(self, role: str, how: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to one process of that role, the one started first, when there is one; its number."""
        pid = int(wait(lambda: next(iter(sorted(self.pids(role))), None), 30.0, self))
        os.kill(pid, how)
        return pid

    def trainer(self, machine: int) -> int:
        """A trainer of a machine, while that trains."""
        return int(wait(lambda: next(iter(self.pids(f"trainer-{machine}-")), None), 30.0, self))

    def agent(self, machine: int) -> int:
        """The agent of a machine, while that trains."""
        return parent(parent(self.trainer(machine)))  # between them is the process that has forked it

    def end(self, code: int, seconds: float = LIMIT) -> str:
        """Wait for its end with that exit code, and for that of all its processes; what it has printed."""
        self.pids()
        self.process.wait(timeout=seconds)
        self._reader.join(timeout=LIMIT)
        assert self.process.returncode == code, self.text
        self.gone()
        return self.text

    def gone(self, seconds: float = 10.0) -> None:
        """None of its processes is left."""
        wait(lambda: not any(map(alive, self.seen)), seconds, self)


def wait(what: Callable[..., object], seconds: float, job: Job | None = None) -> object:
    """The first value of `what` that is true; fails after `seconds`."""
    deadline = time.monotonic() + patience(seconds)
    while not (found := what()):
        text = job.text if job is not None else ""
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s:\n{text}"
        time.sleep(0.02)
    return found
