"""kgdist-dist-train and kgdist-launch on real Ray: machines that Ray places, killed actors, raylets and launchers."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kgdist.cli import copy as copy_command
from kgdist.cli import dist_train
from kgdist.cli import partition as partition_command
from kgdist.runtime.ports import free_port
from tests.patience import patience
from tests.runtime.rays import TOKEN, cluster_of, processes, started_by_hand

ROOT = os.fspath(Path(__file__).resolve().parents[2])
ACTOR = b"ray::Keeper"

pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a small graph in two partitions."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    lines = [f"e{draw.randrange(200)}\tr{draw.randrange(4)}\te{draw.randrange(200)}\n" for _ in range(3000)]
    for name, part in (("train", lines), ("valid", lines[:50]), ("test", lines[50:100])):
        (tmp_path / f"{name}.tsv").write_text("".join(part))
    files = ["train.tsv", "valid.tsv", "test.tsv"]
    words = ["--dataset", "g", "--format", "raw_udd_hrt", "--data_files", *files, "--data_path", ".", "-k", "2", "--quiet"]
    assert partition_command.main([*words, "--method", "random"]) == 0
    return tmp_path


def words_of(address: str, **more: str) -> list[str]:
    options = {
        **{"backend": "ray", "ray_address": address, "dataset": "g", "data_path": ".", "model_name": "TransE_l2"},
        **{"hidden_dim": "8", "batch_size": "32", "neg_sample_size": "4", "num_client_proc": "1", "max_step": "200"},
    }
    return [word for name, value in (options | more).items() for word in (f"--{name}", value)]


def started(module: str, *words: str, before: str = "") -> subprocess.Popen[str]:
    """A command in a process of its own, which says what it says to a pipe; `before` is Python that it runs first."""
    env = os.environ | TOKEN | {"PYTHONPATH": ROOT}
    code = f"{before}\nfrom kgdist.cli.{module} import main\nraise SystemExit(main())"
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process: subprocess.Popen[str], code: int) -> str:
    """Its words, once it has ended with `code`."""
    try:
        text, _ = process.communicate(timeout=patience(250))
    finally:
        process.kill()
    assert process.returncode == code, text
    return text


def until(done: Callable[[], object], what: str | Path) -> None:
    deadline = time.monotonic() + patience(200)
    while not done():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what.read_text()
        time.sleep(0.05)


def ours() -> list[int]:
    """Agents, servers and trainers."""
    found = []
    for pid in processes(os.fsencode(sys.executable)):
        with contextlib.suppress(OSError):
            if b"kgdist.runtime" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


SHORT = "from kgdist.runtime import ray_agents; ray_agents.BUSY = 2"  # seconds; a minute else


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_is_placed(space: Path) -> None:
    """With several raylets on this host; one law after another, for a cluster takes seconds to start."""
    with cluster_of(0, 1, 1) as address:  # the first node is the launcher's own
        text = finished(started("dist_train", *words_of(address), "--test", "--transport_security", "curve"), 0)
        assert "Test average MRR" in text and "encrypted (CURVE)" in text
        assert (space / "ckpts/TransE_l2_g_0/entities.tsv").exists()
        until(lambda: not ours() and not processes(ACTOR), "actors or agents are left")

        text = finished(started("dist_train", *words_of(address, num_client_proc="2")), 2)
        assert "the cluster has room for 0 of 2 machines with 2 CPUs, each on a node of its own" in text.splitlines()[-1]
        text = finished(started("dist_train", *words_of(address, num_client_proc="2", ray_wait="2"), before=SHORT), 2)
        assert "no place within" in text.splitlines()[-1]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_training_is_placed_anew(space: Path) -> None:
    with cluster_of(0, 1, 1) as address:
        placed_anew(space, address, "TransE_l2_g_0", ACTOR)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_training_goes_on_without_a_node_and_needs_no_common_workspace(space: Path) -> None:
    with cluster_of(0, 1, 1, 1) as address:
        shared = str(space / "shared")  # instead of a workspace that all nodes see
        assert copy_command.main(["--dataset", "g", "--data_path", str(space), "--storage", shared]) == 0
        own = ["--storage", shared, "--path", str(space / "own"), "--data_path", "."]
        finished(started("dist_train", *words_of(address, max_step="20"), *own), 0)
        assert (space / "own" / "g" / "partition_1").is_dir() and list(space.glob("shared/runs/*_g_0/*_entity.npy"))
        placed_anew(space, address, "TransE_l2_g_0", b"raylet")


def placed_anew(space: Path, address: str, run: str, victim: bytes) -> None:
    """The actor of one machine is killed, or the raylet that had started it: the job goes on at a checkpoint. Then the launcher
    is killed, and nothing is left running."""
    log = space / f"{run}.log"
    words = words_of(address, max_step="1000000", checkpoint_interval="300", peer_timeout="10", log_interval="100000")
    with log.open("w") as out:
        command = [sys.executable, "-m", "kgdist.cli.dist_train", *words]
        job = subprocess.Popen(command, env=os.environ | TOKEN | {"PYTHONPATH": ROOT}, stdout=out, stderr=out)
    try:
        until(lambda: all(list(space.glob(f"ckpts/{run}/machine_{n}/ckpt-*")) for n in (0, 1)), log)
        actor = processes(ACTOR)[0]
        os.kill(actor if victim is ACTOR else raylet_of(actor), signal.SIGKILL)
        until(lambda: f"resumed ckpts/{run}" in log.read_text(), log)
        assert "attempt 2 of" in log.read_text() and "raylet" not in log.read_text()  # Ray itself says nothing
    finally:
        job.kill()  # nobody tells anybody of it
        job.wait()
    until(lambda: not ours() and not processes(ACTOR), "actors or agents are left")


def raylet_of(pid: int) -> int:
    """The raylet that has started a worker."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


SCRIPT = """
import kgdist.distributed as dist
dist.initialize()
g = dist.DistGraph("g")
print(f"rank {g.rank()} of {dist.get_num_clients()} has {g.num_nodes()} nodes", flush=True)
g.barrier()
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_script_is_placed(space: Path) -> None:
    import torch

    from kgdist import distributed, graph

    g = graph((torch.arange(40), (torch.arange(40) * 7) % 40))
    distributed.partition_graph(g, "g", 2, space / "parts", part_method="random")
    (space / "script.py").write_text(SCRIPT)
    with cluster_of(2) as address:
        words = ["--backend", "ray", "--ray_address", address, "--ray_placement", "spread", "--part_config", "parts/g.json"]
        text = finished(started("launch", *words, "python3 script.py"), 0)
        for rank in (0, 1):
            assert f"rank {rank} of 2 has 40 nodes" in text
        until(lambda: not ours() and not processes(ACTOR), "actors or agents are left")
    finished(started("launch", "--backend", "ray", "python3 script.py"), 2)


SOON = "from kgdist.runtime import ray_session; ray_session.AWAY, ray_session.LOOK = 3.0, 0.5"


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", [b"gcs_server", b"raylet/raylet"])
def test_without_the_head_or_its_own_node_the_launcher_ends_with_a_line(space: Path, victim: bytes) -> None:
    """Ray would end it a minute later, without one; or let it wait for actors that never come."""
    with cluster_of(0, 1, 1) as address:  # the first node is the launcher's own
        words = words_of(address, max_step="1000000", checkpoint_interval="300", log_interval="100000", peer_timeout="6")
        job = started("dist_train", *words, before=SOON)
        try:
            until(lambda: list(space.glob("ckpts/*/machine_1/ckpt-*")), "no checkpoint")
            found = [pid for pid in processes(b"/") if victim in Path(f"/proc/{pid}/cmdline").read_bytes()]
            os.kill(min(found), signal.SIGKILL)
            last = finished(job, 3).splitlines()[-1]
        finally:
            job.kill()
        head = rf"error: --backend ray: the head of the cluster, {address}, is away for 3 s \(Connection refused\)"
        assert re.match(
            head if victim == b"gcs_server" else "error: --backend ray: the node of Ray on this machine was lost", last
        )
        until(lambda: not ours(), "agents are left")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_on_nodes_that_were_started_by_hand(space: Path) -> None:
    with started_by_hand(1, 1) as address:
        text = finished(started("dist_train", *words_of(address), "--test"), 0)
        assert "Test average MRR" in text and "waiting" not in text
        until(lambda: not ours() and not processes(ACTOR), "actors or agents are left")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_on_a_cluster_that_grows(space: Path) -> None:
    """From one node without CPUs to as many as are wanted."""
    with started_by_hand(0, grows=2) as address:
        text = finished(started("dist_train", *words_of(address)), 2)
        assert "the cluster has room for 0 of 2 machines" in text and "give --ray_wait" in text
        text = finished(started("dist_train", *words_of(address, ray_wait="120"), "--test"), 0)
        assert "Test average MRR" in text


def test_nobody_at_the_address(space: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = f"127.0.0.1:{free_port(())}"
    assert dist_train.main(words_of(nobody)) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: --ray_address: {nobody}: no Ray there")
    assert not (space / "ckpts").exists()


def test_without_ray_one_line_says_what_brings_it(
    space: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert dist_train.main(words_of("127.0.0.1:1")) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: --backend ray needs Ray") and line.endswith("pip install 'kgdist[ray]'")
