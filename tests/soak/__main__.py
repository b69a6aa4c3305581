"""`make soak`: faults and attacks at random, for some minutes, under a real job of two machines, held against an unfailed one.

By a seed: processes killed, stopped for a moment and for longer than anything survives unnoticed; packets swallowed; strangers at
the servers' ports; a disk that freezes; a terminal that takes no output. A ledger of the store runs beside the job under the same
faults. Then the job is stopped, resumed to its end and tested, and the same number of steps is trained in peace. Fails when the
two differ, the ledger is wrong, anything is left, or memory grows; writes benchmarks/results/soak.md.

Networks and disks take root; without, what they would do is left out, and said.
"""

from __future__ import annotations

import re
import signal
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import zmq

from tests.faults.disks import Missing
from tests.faults.jobs import ROOT, workspace
from tests.faults.rig import MARK, PORT, Rig, rig
from tests.faults.sshd import free_port
from tests.soak.command import asked, machine
from tests.soak.events import PATIENCE, STALL, WEIGHTS, Event, Storm, T
from tests.soak.ledger import Books, Count

RESULT = ROOT / "benchmarks" / "results" / "soak.md"
OPTIONS = {
    "hidden_dim": "100", "batch_size": "256", "neg_sample_size": "64", "gamma": "12", "lr": "0.1", "log_interval": "20",
    "checkpoint_interval": "200", "peer_timeout": f"{T:g}", "stall_timeout": f"{STALL:g}", "max_restarts": "1000",
    "local_update": "owner",
}  # fmt: skip
CLOSE = 0.02  # how far the two MRRs may be apart
GROWTH = 1.0  # MB a minute of the launcher
SERVER = 128 << 20  # bytes by which a server may grow while strangers flood it
MOST = 2000  # seconds that training in peace may take


def machines(stack: ExitStack, folder: Path, data: Path) -> tuple[Rig, str]:
    """The best that this host allows, and what it does not allow."""
    whole = {"net": True, "disks": {1: ("loop", 64)}}
    try:
        return stack.enter_context(rig(folder / "rig", data, **whole)), ""  # type: ignore[arg-type]
    except Missing as why:
        return stack.enter_context(rig(folder / "plain", data)), str(why)


def run(folder: Path, seconds: float, seed: int) -> str:
    """Both jobs; the report. Raises AssertionError."""
    data = workspace(folder / "toy", entities=2000, relations=10, triples=40000, held_out=0.02) / "data"
    with ExitStack() as stack:
        made, why = machines(stack, folder, data)
        with ExitStack() as beside:
            ends = [(node.address, PORT + 100) for node in made.nodes] or [("127.0.0.1", free_port()) for _ in range(2)]
            inside = [node.inside for node in made.nodes] or [(), ()]
            books = Books(beside, list(zip(inside, ends, strict=True)), {MARK: made.mark + "-ledger"}, folder / "ledger.log")
            with made.job(max_step="100000000", **OPTIONS) as job:
                job.saved(seconds=300)
                storm = Storm(made, job, books, seed)
                storm.rage(seconds)
                job.saved(seconds=300)
                audited = settle(books)
                job.process.send_signal(signal.SIGINT)
                text = job.end(130, 60)
        done = max(int(n) for n in re.findall(r"^machine_\d .*\[Train\]\((\d+)/", text, re.MULTILINE)) + 1000
        (run_name,) = re.findall(r"--resume (\S+)", text.splitlines()[-1])
        with made.job("--resume", run_name, "--test", max_step=str(done), **OPTIONS) as job:
            shaken = mrr(job.end(0, MOST))
        with made.job("--test", max_step=str(done), **OPTIONS) as job:
            calm = mrr(job.end(0, MOST))
        left = leftovers(made)
    slope, grown = growth(storm, seconds)
    assert not left, f"left: {left}"
    assert abs(shaken - calm) < CLOSE, f"MRR {shaken} against {calm} of the unfailed run"
    assert slope < GROWTH, f"the launcher grows by {slope:.2f} MB a minute"
    assert grown < SERVER, f"a server grew by {grown >> 20} MiB"
    attempts = len(re.findall(r"; attempt \d+ of", text))
    return report(storm, audited, why, seconds, attempts, done, (shaken, calm), (slope, grown))


def settle(books: Books) -> Count:
    """Let the ledger come to an audit after the last fault."""
    before, deadline = books.count.audits, time.monotonic() + 2 * PATIENCE
    while books.count.audits == before:
        assert time.monotonic() < deadline, "the ledger's trainers do not come to an end"
        books.look()
        time.sleep(0.05)
    return books.count


def leftovers(made: Rig) -> str:
    """What is left some seconds after the last end."""
    deadline = time.monotonic() + 10
    while (left := made.left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def growth(storm: Storm, seconds: float) -> tuple[float, int]:
    """MB a minute of the launcher once it has settled (0 for a short run); bytes of the largest server over the median one."""
    late = [(at / 60, size / 1e6) for at, size, _ in storm.memory if at > 60]
    slope = float(np.polyfit(*np.array(late).T, 1)[0]) if seconds >= 300 else 0.0
    servers = [size for _, _, size in storm.memory if size]
    return slope, max(servers) - int(statistics.median(servers))


def mrr(text: str) -> float:
    """Of the test."""
    return float(re.findall(r"Test average MRR : ([0-9.]+)", text)[0])


def report(
    storm: Storm,
    count: Count,
    why: str,
    seconds: float,
    attempts: int,
    steps: int,
    mrrs: tuple[float, float],
    grown: tuple[float, int],
) -> str:
    """As markdown."""
    lines = [
        "# Soak",
        "",
        f"{seconds / 60:g} minutes, {len(storm.events)} faults and attacks (seed {storm.seed}); {attempts} times the job went",
        "back to its last checkpoint. Two machines on this host over ssh, one server and one trainer each, all updates by their",
        f"owners, 2,000 entities, 38,400 triples, TransE_l2, a checkpoint every {OPTIONS['checkpoint_interval']} steps,",
        f"`--peer_timeout {T:g}`, `--stall_timeout {STALL:g}`. *training again*: seconds after the end of the fault until both",
        "machines told of more steps. Written by `make soak`.",
        *([f"Left out here: {why}."] if why else []),
        "",
        f"- **Ledger**: {count.audits} audits, {count.pushes:,} pushes of {count.incarnations} incarnations of trainers,",
        f"  {count.returns} returns after a server was lost: every row holds what was applied, to the unit, and nothing was",
        "  confirmed that was not.",
        f"- **MRR** after {steps:,} steps of each trainer {mrrs[0]:.4f}; in peace, with equal steps, {mrrs[1]:.4f}.",
        "- **Left**: no process, port, shared memory, half-written checkpoint or temporary file.",
        f"- **Memory**: the launcher grew by {grown[0]:.2f} MB a minute; the largest server was {grown[1] / 2**20:.0f} MiB over",
        f"  the median, with {storm.strangers:,} connections of strangers.",
        "",
        "| what | times | noticed | training again: median, most |",
        "|---|---:|---:|---:|",
    ]
    for what in WEIGHTS:
        mine = [event for event in storm.events if event.what == what]
        spans = [event.again for event in mine if event.again is not None]
        told = f"{statistics.median(spans):.1f} s, {max(spans):.1f} s" if spans else ""
        lines.append(f"| {what} | {len(mine)} | {sum(bool(event.noticed) for event in mine)} | {told} |")
    lines += ["", "| at | what | machine | lasted | noticed | training again |", "|---:|---|---:|---:|---|---:|"]
    lines += [line(event) for event in storm.events]
    return "\n".join([*lines, "", machine(f"libzmq {zmq.zmq_version()}"), ""])


def line(event: Event) -> str:
    """Of the table."""
    again = "next one first" if event.again is None else f"{event.again:.1f} s"
    return f"| {event.at:.0f} s | {event.what} | {event.machine} | {event.lasted:.1f} s | {event.noticed} | {again} |"


def main() -> None:
    """Run it."""
    options = asked("soak", __doc__, 600)
    with tempfile.TemporaryDirectory(prefix="kgdist-soak-") as folder:
        text = run(Path(folder), options.seconds, options.seed)
    print(text)
    if options.seconds >= 600:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
