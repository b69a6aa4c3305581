"""Workers side by side: a shared update is the mean of theirs, and copies of a row are equal to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from kgdist.kvstore.tables import MemoryTables
from kgdist.runtime.processes.forkserver import environment
from tests.faults.sshd import free_port
from tests.patience import patience
from tests.training import peer

LIMIT = patience(60.0)


def start(world: int, *words: str) -> list[subprocess.Popen[str]]:
    """So many processes that torch.distributed lets find each other."""
    found = environment(1) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1", 1)), "WORLD_SIZE": str(world)}
    return [
        subprocess.Popen(
            [sys.executable, *words], env=found | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]


def ends(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """The exit code of each, and what it said on stderr."""
    try:
        return [(process.wait(LIMIT), process.communicate()[1]) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.slow
def test_an_update_is_the_mean_of_all_and_copies_are_equal(tmp_path: Path, world: int) -> None:
    for code, said in ends(start(world, "-m", "tests.training.peer", str(tmp_path))):
        assert code == 0, said
    whole = MemoryTables.create(peer.SHAPES, "adagrad")
    for step in range(peer.STEPS):
        found = [peer.updates_of(rank, step) for rank in range(world)]
        for name, (rows, width) in peer.SHAPES.items():
            grads, squares, met = torch.zeros(rows, width), torch.zeros(rows), torch.zeros(rows, dtype=torch.bool)
            for each in found:
                ids = torch.from_numpy(each[name].ids)
                grads[ids] += each[name].grads / world
                met[ids] = True
                if name in peer.SQUARED:
                    squares[ids] += torch.as_tensor(each[name].squares) / world**2
            ids = torch.nonzero(met).flatten()
            own = squares[ids] if name in peer.SQUARED else None
            whole.apply(name, ids, grads[ids], peer.RATES.get(name, 0.1), own)
    for rank in range(world):
        with np.load(tmp_path / f"{rank}.npz") as rows:
            for key, array in whole.arrays().items():
                own = array[peer.entities_of(rank)] if key.startswith("entity") else array
                np.testing.assert_allclose(rows[key], own, rtol=1e-5, atol=1e-6, err_msg=key)
                with np.load(tmp_path / "0.npz") as first:
                    same = first[key]
                    if key.startswith("entity"):
                        of_first = np.argsort(peer.entities_of(0))
                        same = same[of_first[peer.entities_of(rank)]]
                    assert np.array_equal(rows[key], same), f"{key} of workers 0 and {rank}"


def test_an_environment_that_names_nobody_is_said() -> None:
    words = [sys.executable, "-c", "from kgdist.training.peers import Peers; Peers(5)"]
    done = subprocess.run(words, env=environment(1), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert "UsageError: torch.distributed finds no others: " in done.stderr and "RANK" in done.stderr.splitlines()[-1]


ENDS = """
import os, sys, traceback
import numpy as np
import torch
from kgdist.base.errors import PeersLost
from kgdist.kvstore.tables import MemoryTables
from kgdist.training.peers import Peers, PeerTables
from tests.training import peer

def work(last):  # what the second worker still shares of its step
    peers = Peers(60.0)
    tables = MemoryTables.create(peer.SHAPES, "adagrad")
    shared, shares = PeerTables(tables, peers, None, peer.ENTITIES), 0

    def counted(share):
        def counting(values):
            nonlocal shares
            if peers.rank == 1 and shares == last:
                os._exit(0)
            shares += 1
            return share(values)
        return counting

    shared.push(peer.updates_of(0, 0), 0.1)
    before = {key: array.copy() for key, array in tables.arrays().items()}
    peers.each, peers.sum, shares = counted(peers.each), counted(peers.sum), 0
    try:
        shared.push(peer.updates_of(0, 1), 0.1)
        print("pushed", shares, flush=True)
        return True
    except PeersLost:
        assert all(np.array_equal(array, before[key]) for key, array in tables.arrays().items())
        print("lost", shares, flush=True)
        return False
    finally:
        peers.leave()

alone = MemoryTables.create(peer.SHAPES, "adagrad")
for name, found in peer.updates_of(0, 0).items():  # loads what a push needs, once for all of them
    alone.apply(name, torch.from_numpy(found.ids), found.grads, 0.1, found.squares)

for last, port in enumerate(sys.argv[1:]):  # each time two processes that are new but for their imports
    os.environ["MASTER_PORT"] = port
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 2 if work(last) else 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 2)
    if code == 2:  # it has shared all of its step
        break
"""


MOST = 30  # more than a step shares


@pytest.mark.slow
def test_where_a_worker_is_lost_in_a_step_nothing_of_that_step_is_there() -> None:
    """Of whatever table it was: else a checkpoint of what was trained would hold weights of one step and rows of another."""
    processes = start(2, "-c", ENDS, *map(str, range(first := free_port("127.0.0.1", MOST), first + MOST)))
    try:
        said, errors = processes[0].communicate(timeout=LIMIT)
        assert [process.wait(LIMIT) for process in processes] == [0, 0], said + errors
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=LIMIT)
    *lost, pushed = said.splitlines()
    assert lost == [f"lost {last + 1}" for last in range(len(lost))] and pushed == f"pushed {len(lost)}", said + errors
    assert len(lost) + 1 > len(peer.SHAPES)


WAITS = """
import os, sys, time
from kgdist.training.peers import Peers
peers = Peers(float(sys.argv[1]))
print("there", flush=True)
if peers.rank == 1:
    time.sleep(600)
peers.sums(1)
"""


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.slow
def test_whoever_is_gone_or_late_is_missed(ended: bool) -> None:
    processes = start(2, "-c", WAITS, "600" if ended else "2")
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "there\n"
        if ended:
            os.kill(processes[1].pid, signal.SIGKILL)
        begun = time.monotonic()
        code = processes[0].wait(LIMIT)
        said = processes[0].communicate()[1]
        assert code == 1 and "kgdist.base.errors.PeersLost: another worker has ended, or does not answer: " in said
        assert time.monotonic() - begun < patience(20.0)
    finally:
        for process in processes:
            process.kill()
            process.wait(LIMIT)
