"""A user's script on several machines: what its processes are given, what trainers do together, and how all of it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kgdist.runtime.processes.forkserver import environment
from tests.family import alive, parent
from tests.faults.jobs import command, run, wait
from tests.faults.sage import partitioned
from tests.faults.scripts import START, ScriptJob
from tests.faults.sshd import Sshd
from tests.patience import patience

pytestmark = pytest.mark.timeout(180)

CALM = """
import torch
import torch.distributed as dist

say("starts")
kd.initialize("ip_config.txt", num_workers=1)
assert kd.role() == "trainer" and job().clients == 8 and job().client(0) == 2 * kd.rank() + 1
dist.init_process_group("gloo")
sent = torch.ones(2) * (kd.rank() + 1)
dist.all_reduce(sent)
assert sent.tolist() == [10, 10] and dist.get_world_size() == kd.get_num_clients() == 4
kd.barrier("made")
number, feat = table("feat")
assert feat.shape == ((3, 2), (2, 2))[job().machine] and (feat == 3).all()
dist.barrier()  # all have read what the initialiser made
if os.environ["LOCAL_RANK"] == "0":
    feat[0] = 7
kd.barrier()
again, same = table("feat", init=None)
assert again == number and (same[0] == 7).all(), "memory of one machine is one memory"
for _ in range(2):
    job().drop("feat")
kd.barrier()
assert table("feat")[0] > number and (table("feat", init=None)[1] == 3).all()
try:
    table("feat", dtype="int64")
except kd_error as error:
    say("refused:", error)
try:
    job().create("x", {}, {"": ("<f4", [1])}, [0, 3, 5], lambda shape, dtype: None)
except kd_error as error:
    say("refused:", error)
say("done", os.environ["OMP_NUM_THREADS"], os.environ["MINE"], os.getcwd())
""".replace("kd_error", "__import__('kgdist').base.errors.UsageError")


@pytest.mark.slow
def test_a_script_trains_together_and_makes_tables_by_name(tmp_path: Path) -> None:
    with ScriptJob(tmp_path, CALM, "--extra_envs", "MINE=a b", "PYTHONPATH=/nowhere", "--num_omp_threads", "3") as job:
        text = job.end(0)
    for rank in range(4):
        who = f"machine_{rank // 2} trainer {rank}: trainer {rank}"
        assert f"{who} done 3 a b {tmp_path}" in text
        assert f"{who} refused: 'feat' is there already, as <f4[5, 2], not <i8[5, 2]; take another name" in text
        assert f"{who} refused: init_func <lambda> is looked up by its name in the servers: write it with def" in text
    assert "machine_1 server 1: server 1 starts" in text and "server 1 done" not in text


@pytest.mark.slow
def test_a_script_that_needs_no_servers_has_none_and_alone_it_is_alone(tmp_path: Path) -> None:
    text = 'say(kd.role(), os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"])\n'
    with ScriptJob(tmp_path, text, num_trainers="1") as job:
        printed = job.end(0)
    assert "machine_1 trainer 1: trainer 1 trainer 2 127.0.0.1" in printed and "server 0:" not in printed
    with ScriptJob(tmp_path, "if os.environ['RANK'] == '1': sys.exit('no way')", num_trainers="1") as job:
        printed = job.end(1)
    assert printed.endswith("error: machine_1 (127.0.0.1): trainer 1 ended with exit code 1: no way")
    alone = 'kd.initialize("nothing", num_workers=2)\nkd.barrier()\n'
    alone += "print(kd.role(), kd.rank(), kd.get_num_clients(), kd.num_workers())"
    (tmp_path / "alone.py").write_text(START + alone)
    done = run([sys.executable, "alone.py"], tmp_path)
    assert done.stdout.split() == ["standalone", "0", "1", "2"], done.stderr


FAILURES = {  # what a script does -> exit code, and the one line
    "if kd.rank() == 1: raise ValueError('too bad')": (1, r"machine_1 \(127.0.0.1\): trainer 1 failed: ValueError: too bad$"),
    "if kd.rank() == 0: os.kill(os.getpid(), 9)": (3, r"machine_0 \(127.0.0.1\): trainer 0 was killed by signal SIGKILL"),
    "if kd.rank() == 1: sys.exit(0)\nkd.barrier('late')": (
        1,
        r"trainer 1 \(machine_1 .*\) has ended, and trainer 0 \(machine_0 .*\) is at the barrier 'late' and waits for it$",
    ),
    "if kd.rank() == 0: sys.exit(0)\nraise RuntimeError('Connection closed by peer')": (
        3,
        r"RuntimeError: Connection closed by peer; trainer 0 \(.*\) had ended before: let all make as many steps",
    ),
    "import argparse\nif kd.rank() == 1: argparse.ArgumentParser(prog='x').error('--timeout: too long')": (
        2,
        r"machine_1 \(127.0.0.1\): trainer 1 ended with exit code 2: x: error: --timeout: too long$",
    ),
    "table('a', (2 + (kd.rank() == 1),))": (
        1,
        r"trainer \d .* makes the tensor 'a' \(<f4\[5, [23]\]\), but trainer \d .* makes the tensor 'a' \(<f4\[5, [23]\]\); all ",
    ),
}


QUICK = (0, 2, 3)  # one of each exit code but that of a script's own, and the one that asks who was first


@pytest.mark.parametrize(
    "number", [number if number in QUICK else pytest.param(number, marks=pytest.mark.slow) for number in range(len(FAILURES))]
)
@pytest.mark.slow
def test_what_fails_is_one_line_and_the_end_of_all(tmp_path: Path, number: int) -> None:
    what, (code, line) = list(FAILURES.items())[number]
    text = f"kd.initialize()\nkd.barrier()\n{what}\nkd.barrier('last')\ntime.sleep(60)"
    with ScriptJob(tmp_path, text, num_trainers="1") as job:
        printed = job.end(code, 60)
    (error,) = [line for line in printed.split("\n") if line.startswith("error: ")]
    assert re.search(line, error), printed


@pytest.mark.parametrize(
    ("how", "code", "line"),
    [
        ("server", 3, r"error: machine_1 \(127.0.0.1\): server 1 was killed by signal SIGKILL"),
        ("ctrl-c", 130, "interrupted$"),
        pytest.param("server that hangs", 3, r"error: machine_1 .*: server 1 has done nothing for", marks=pytest.mark.slow),
        pytest.param("agent", 3, r"error: machine_[01] .*: its agent was killed by signal SIGKILL", marks=pytest.mark.slow),
        pytest.param("launcher", -9, "", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_server_an_agent_or_a_launcher_that_is_killed_ends_the_job(tmp_path: Path, how: str, code: int, line: str) -> None:
    endless = "kd.initialize()\nsay('there')\nimport subprocess\nsubprocess.Popen(['setsid', 'sleep', '600'])\n"
    endless += "kd.barrier()\ntime.sleep(600)"
    with ScriptJob(tmp_path, endless, num_trainers="1") as job:
        job.until("there", times=2)
        job.pids()
        if how.startswith("server"):
            os.kill(job.one("server", 1), signal.SIGSTOP if "hangs" in how else signal.SIGKILL)
        elif how == "agent":
            job.kill("agent")
        else:
            os.kill(job.process.pid, signal.SIGKILL if how == "launcher" else signal.SIGINT)
        text = job.end(code, 30)
    assert re.search(line, text.replace("\n", " ")), text


@pytest.mark.long
def test_a_flood_of_words_is_cut_short_and_a_server_that_never_serves_is_named(tmp_path: Path) -> None:
    text = "if kd.role() == 'server': sys.exit(0)\nfor n in range(150_000): print('x' * 60)\nkd.initialize()"
    with ScriptJob(tmp_path, text, num_trainers="1") as job:
        printed = job.end(1, 60)
    assert re.search(r"\[\d+ lines left out: more than 1.0 MB a second\]", printed) and len(printed) < 30_000_000
    assert re.search(r"error: machine_\d .*: server \d ended with exit code 1: it ran the script to its end: kgdist", printed)


@pytest.mark.slow
def test_over_ssh_with_partitions_that_are_looked_at_before(sshd: Sshd, tmp_path: Path) -> None:
    options = sshd.options()
    reach = {"ssh_key": str(options.ssh_key), "ssh_port": str(options.ssh_port), "remote_python": str(options.remote_python)}
    given = {"backend": "ssh", "num_trainers": "1", "part_config": "data/g.json"} | reach
    text = "kd.initialize()\nkd.barrier()\nsay(job().part_config, len(job().graph), job().machine)"
    partitioned(tmp_path / "data", parts=3)
    with ScriptJob(tmp_path, text, **given) as job:
        printed = job.end(2, 60)
    assert "machine_0 (127.0.0.1): --ip_config lists 2 machines, but g.json is of 3 partitions" in printed
    partitioned(tmp_path / "data")
    (tmp_path / "data" / "partition_1").rename(tmp_path / "aside")
    with ScriptJob(tmp_path, text, **given) as job:
        printed = job.end(2, 60)
    assert f"machine_1 (127.0.0.1): {tmp_path}/data/partition_1: no such folder here" in printed
    (tmp_path / "aside").rename(tmp_path / "data" / "partition_1")
    with ScriptJob(tmp_path, text, **given) as job:
        printed = job.end(0)
    assert f"machine_1 trainer 1: trainer 1 {tmp_path}/data/g.json 64 1" in printed


def test_a_partition_of_another_graph_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for seed in (0, 1):
        partitioned(tmp_path / f"of_{seed}", seed=seed)
    shutil.rmtree(tmp_path / "of_0" / "partition_1")
    (tmp_path / "of_1" / "partition_1").rename(tmp_path / "of_0" / "partition_1")
    with ScriptJob(tmp_path, "say('started')", num_trainers="1", part_config="of_0/g.json") as job:
        printed = job.end(2, 60)
    line = rf"machine_1 \(127.0.0.1\): {tmp_path}/of_0/partition_1: is partition 1 of graph \w+..., but .* names partition 1 "
    assert re.search(line, printed) and "trainer 0:" not in printed, printed
    shutil.rmtree(tmp_path / "of_0" / "partition_1")
    shutil.copytree(tmp_path / "of_0" / "partition_0", tmp_path / "of_0" / "partition_1")
    (tmp_path / "of_0" / "partition_0" / "halo.0.npy").unlink()
    with ScriptJob(tmp_path, "say('started')", num_trainers="1", part_config="of_0/g.json") as job:
        printed = job.end(2, 60)
    line = r"partition_1: is partition 0 of graph (\w+)..., but .*/g.json names partition 1 of graph \1...;"
    assert re.search(line, printed), printed
    assert "partition_0/halo.0.npy: missing; make or copy the partition again" in printed and "trainer 0:" not in printed


@pytest.mark.long
def test_processes_of_a_frozen_agent_leave_by_themselves(tmp_path: Path) -> None:
    """As do those of a machine whose network is cut: nobody can reach the agent either."""
    with ScriptJob(tmp_path, "kd.initialize()\nsay('there')\ntime.sleep(600)", num_trainers="1", peer_timeout="3") as job:
        job.until("there", times=2)
        left = [job.one("trainer", 1), job.one("server", 1)]
        os.kill(job.process.pid, signal.SIGSTOP)  # who would end the agent, here
        os.kill(parent(parent(left[0])), signal.SIGSTOP)  # between them is the keeper
        wait(lambda: not any(map(alive, left)), 15.0, job)
        job.pids()


@pytest.mark.slow
def test_a_script_begins_again_as_often_as_is_asked(tmp_path: Path) -> None:
    text = "kd.initialize()\nmark = Path('killed')\nif kd.rank() == 1 and not mark.exists():\n"
    text += "    mark.touch(); os.kill(os.getpid(), 9)\nkd.barrier()\nsay('done')"
    with ScriptJob(tmp_path, text, num_trainers="1", max_restarts="1") as job:
        printed = job.end(0, 90)
    assert "trainer 1 was killed by signal SIGKILL; the system may have run out of memory; attempt 2 of 2 follows" in printed
    assert printed.count("done") == 2


@pytest.mark.long
def test_trainers_that_wait_too_long_end_the_job_by_the_name_of_the_other(tmp_path: Path) -> None:
    text = "kd.initialize()\nif kd.rank() == 0: time.sleep(600)\nkd.barrier('late')"
    with ScriptJob(tmp_path, text, num_trainers="1", stall_timeout="3", peer_timeout="1") as job:
        printed = job.end(1, 60)
    waits = r"trainer 1 \(machine_1 .*\) is at the barrier 'late' and "
    assert re.search(waits + r"waits for trainer 0 \(machine_0", printed)
    assert re.search("error: " + waits + r"has waited 3 s \(--stall_timeout\) for trainer 0 \(machine_0", printed)


@pytest.mark.long
def test_agents_that_were_started_by_hand_run_a_script_too(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    text = "kd.initialize()\nassert (table('x')[1] == 3).all()\nkd.barrier()\nsay('done')"
    with ScriptJob(tmp_path, text, backend="manual", num_trainers="1", job=str(file)) as job:
        wait(file.exists, 30.0, job)
        words = [command(role, str(file), "--machine", str(n)) for role in ("server", "client") for n in range(2)]
        by_hand = [subprocess.Popen(each, cwd=tmp_path, env=environment(1), stdout=subprocess.DEVNULL) for each in words]
        printed = job.end(0)
        assert [process.wait(timeout=patience(60.0)) for process in by_hand] == [0] * 4
    assert "machine_0 trainer 0: trainer 0 done" in printed and "machine_1 trainer 1: trainer 1 done" in printed
