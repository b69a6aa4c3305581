"""`make soak-script`: kills at random under GraphSAGE on two machines of this host, launch after launch, for a minute or more.

Each launch trains for ever, with two trainers a machine, each with a process that samples, and loses one process by SIGKILL at a
random moment: before all are there, or in the midst of an epoch. A script is not resumed by itself: what is promised is its end.
Fails when one launch does not end in time, ends well, names no process or more than one, or leaves a process, shared memory or a
file; writes benchmarks/results/soak_script.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.family import children, descendants, words_of
from tests.faults.jobs import ROOT, ip_config, wait
from tests.faults.sage import partitioned, training
from tests.faults.scripts import ScriptJob
from tests.soak.command import asked, machine

RESULT = ROOT / "benchmarks" / "results" / "soak_script.md"
TOLD = 180.0  # seconds from which on the table is kept
PEER = 5.0  # --peer_timeout
SLACK = 15.0  # seconds more until the last process is gone: two cores, and a dozen processes that end
START = 8.0  # seconds within which those die that are not let come to training
AGAIN = 10  # samplers that are killed at most
SEEN = 7.0  # seconds within which a trainer sees that its sampler is gone: torch looks every 5
EPOCHS = 3.0  # seconds of training after which others do
TEXT = training(workers=1, epochs=1_000_000)
CACHES = ("__pycache__", "torch_geometric.", "torchinductor", "pymp-")  # of Python, PyG (the code that it has written) and torch
ROLES = ("trainer", "sampler", "server", "agent", "launcher")


class Kill(NamedTuple):
    """One of them.

    Attributes:
        trained: whether all trainers had trained by then.
        ended: seconds until the last process was gone.
        told: the line of the error.
    """

    role: str
    trained: bool
    ended: float
    told: str


def pid_of(job: ScriptJob, role: str, rank: int) -> int | None:
    """A process of that role, if there is one by now."""
    if role == "launcher":
        return job.process.pid
    if role == "agent":
        agents = sorted(pid for pid in children(job.process.pid) if "agent" in words_of(pid))
        return agents[rank % 2] if len(agents) == 2 else None
    kind = "trainer" if role == "sampler" else role
    pid = job.first(kind, rank % 2 if role == "server" else rank)
    return next(iter(children(pid)), None) if pid is not None and role == "sampler" else pid


def launch(folder: Path, role: str, chance: random.Random) -> Kill:
    """One launch, and its end. Raises AssertionError."""
    trained, rank = role == "sampler" or chance.random() < 0.7, chance.randrange(4)
    with ScriptJob(
        folder, training(workers=1, epochs=1_000_000), begin="", part_config="g.json", peer_timeout=f"{PEER:g}"
    ) as job:
        if trained:
            job.until("epoch 0", times=4)
        time.sleep(chance.uniform(0, EPOCHS if trained else START))
        at = 0.0
        for _ in range(AGAIN if role == "sampler" else 1):  # one whose epoch was over is missed by nobody: the next one, then
            pid = wait(lambda: job.process.poll() is not None or pid_of(job, role, rank), 60.0, job)
            if job.process.poll() is not None:
                break
            at = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(str(pid)), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(timeout=SEEN)
                break
        job.process.wait(timeout=PEER + SLACK)
        wait(lambda: not descendants(os.getpid()), PEER + SLACK, job)
        ended = time.monotonic() - at
        text = job.text
    errors = [line for line in text.split("\n") if line.startswith("error: ")]
    assert job.process.returncode != 0, text
    assert len(errors) == (role != "launcher"), text
    return Kill(role, trained, ended, errors[0] if errors else "")


def left(folder: Path) -> dict[str, set[str]]:
    """What there is now and might be left, by where."""
    places = {"/dev/shm": Path("/dev/shm"), "the folder of the script": folder, "temporary files": Path(tempfile.gettempdir())}
    return {name: {each.name for each in place.iterdir() if not each.name.startswith(CACHES)} for name, place in places.items()}


def run(folder: Path, seconds: float, seed: int, show: Callable[[str], None]) -> list[Kill]:
    """Kill for so long. Raises AssertionError."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
    partitioned(folder)
    ip_config(folder, parts=2)
    (folder / "script.py").touch()
    before, chance, kills = left(folder), random.Random(seed), list[Kill]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        kills.append(launch(folder, ROLES[len(kills) % len(ROLES)], chance))
        for place, names in left(folder).items():
            assert names == before[place], (
                f"{place}: {names - before[place]} is left of the launch whose {kills[-1].role} was killed"
            )
        show(f"{kills[-1].role}, {kills[-1].ended:.1f} s: {kills[-1].told}")
    return kills


def report(kills: list[Kill], seconds: float, seed: int) -> str:
    """As markdown."""
    lines = [
        "# Kills under a script",
        "",
        f"{seconds:g} seconds, {len(kills)} launches of GraphSAGE with embeddings (seed {seed}), each of which lost one process",
        "by SIGKILL: two machines on this host, on each a server and two trainers with a process that samples,",
        f"`DistributedDataParallel`, `SparseAdagrad`, `--peer_timeout {PEER:g}`. Each ended with an exit code other than 0 and",
        "one line that names who was killed (a launcher that is killed says nothing), and left no process, no shared memory",
        "and no file. Written by `make soak-script`.",
        "",
        "| who was killed | times | while training | until the last process was gone: median, most |",
        "|---|---:|---:|---:|",
    ]
    for role in ROLES:
        mine = [kill for kill in kills if kill.role == role]
        if mine:
            spans = [kill.ended for kill in mine]
            told = f"{statistics.median(spans):.1f} s, {max(spans):.1f} s"
            lines.append(f"| {role} | {len(mine)} | {sum(kill.trained for kill in mine)} | {told} |")
    return "\n".join([*lines, "", machine(), ""])


def main() -> None:
    """Run it."""
    options = asked("soak-script", __doc__, 300)
    with tempfile.TemporaryDirectory(prefix="kgdist-soak-") as name:
        folder = Path(name)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "temporary")
        (folder / "temporary").mkdir()
        kills = run(folder / "script", options.seconds, options.seed, lambda line: print(line, flush=True))
    text = report(kills, options.seconds, options.seed)
    print(text)
    if options.seconds >= TOLD:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
