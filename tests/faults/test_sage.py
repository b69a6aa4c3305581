"""What a graph network's script does wrong, or is done to it: one error from the right process, and the end of all others."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.family import children
from tests.faults.jobs import ip_config, wait
from tests.faults.sage import OPEN, partitioned, training
from tests.faults.scripts import ScriptJob

pytestmark = pytest.mark.timeout(240)

# what a trainer does -> what it is told; each is refused at once, and the script goes on.
REFUSED = {
    "dgl.distributed.initialize()": "initialize() was called before; once is enough",
    "dgl.distributed.node_split(torch.ones(7), h.get_partition_book(), ntype='paper')": "a mask of 7 nodes, but there are 240",
    "dgl.distributed.node_split(torch.ones(240), h.get_partition_book(), ntype='cat')": "there is no node type 'cat'",
    "dgl.distributed.node_split(torch.ones(240), h.get_partition_book())": "there are several node types",
    "h.num_nodes('cat')": "cat",
    "h.num_edges('cites')": "cites",
    "h.find_edges([0], 'cites')": "cites",
    "h.nodes['cat'].data": "cat",
    "g.ndata['x'][[0, 240]]": "row 240 is not there, there are 240 rows",
    "g.ndata['x'][torch.ones(3, dtype=bool)]": "a mask of shape (3,), but there are 240 rows",
    "g.find_edges([1500])": "1500",
    "g.in_degrees([240])": "240",
    "dgl.sampling.sample_neighbors(g, [240], 3)": "240",
    "next(iter(dgl.dataloading.NodeDataLoader(g, torch.tensor([240]), two, num_workers=1)))": "240",
    "dgl.distributed.DistGraph('other', part_config='g.json')": "has the partitions of graph 'g', not of 'other'",
    "dgl.distributed.DistGraph('away', part_config='away.json')": "away.json",
    "dgl.distributed.DistTensor((7, 2), torch.float32, name='seven')": "7 rows",
    "dgl.distributed.DistTensor((240, 2), torch.complex64, name='odd')": "its dtype is one of",
}
WRONG = """
h = dgl.distributed.DistGraph("h", part_config="typed/h.json")
two = dgl.dataloading.MultiLayerNeighborSampler([2])
for number, (what, told) in enumerate(REFUSED.items()):
    try:
        value = eval(what)
    except KgdistError as error:
        right = told in str(error) and "\\n" not in str(error)
        say("refused" if right else "wrong", what, type(error).__name__, error)
    except Exception as error:
        say("wrong", what, repr(error))
    else:
        say("wrong", what, value)
for _ in range(2):  # left early, with processes that have made more
    for batch in dgl.dataloading.NodeDataLoader(g, torch.arange(240), two, batch_size=4, num_workers=1):
        break
assert not [each for each in os.listdir("/proc") if each.isdigit() and parent(int(each)) == os.getpid()]
g.barrier()
say("done")
"""
PARENT = """
def parent(pid):
    try:
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
"""


def error_of(text: str) -> str:
    """Its one line."""
    (found,) = [line for line in text.split("\n") if line.startswith("error: ")]
    return found


@pytest.mark.slow
def test_what_is_refused_says_why_and_the_script_goes_on(tmp_path: Path) -> None:
    partitioned(tmp_path)
    partitioned(tmp_path / "typed", name="h", typed=True)
    text = f"{OPEN}\nREFUSED = {REFUSED!r}\n{PARENT}{WRONG}"
    with ScriptJob(tmp_path, text, begin="", part_config="g.json", num_trainers="1") as job:
        printed = job.end(0)
    assert " wrong " not in printed and printed.count(" done") == 2, printed
    assert printed.count(" refused ") == 2 * len(REFUSED)


def test_a_graph_before_initialize_is_one_clear_error(tmp_path: Path) -> None:
    partitioned(tmp_path)
    text = "import kgdist\nkgdist.distributed.DistGraph('g', part_config='g.json')"
    with ScriptJob(tmp_path, text, begin="", part_config="g.json", num_trainers="1") as job:
        printed = job.end(1, 60)
    what = r"call kgdist.distributed.initialize\(\) first: this script was started by kgdist-launch"
    assert re.fullmatch(rf"error: machine_[01] \(127.0.0.1\): trainer [01] .*{what}", error_of(printed)), printed


# Each job writes its own number to all rows of features and of an embedding, meets the others, and reads what is there.
OWN = """
value = float(os.environ["MINE"])
emb = dgl.distributed.DistEmbedding(g.num_nodes(), 4, "emb", initializer)
share = dgl.distributed.node_split(torch.ones(240, dtype=torch.bool))
g.ndata["x"][share], emb.weight[share] = value, value
g.barrier()
say("there")
while value == 1 and not os.path.exists("go"):
    time.sleep(0.05)
g.barrier()
assert (g.ndata["x"][:] == value).all() and (emb.weight[:] == value).all()
say("kept", value)
"""


@pytest.mark.long
def test_jobs_of_one_graph_on_one_host_do_not_meet(tmp_path: Path) -> None:
    partitioned(tmp_path)
    ip_config(tmp_path, parts=2)
    (tmp_path / "ip_config.txt").rename(tmp_path / "first.txt")
    text = OPEN.replace('initialize("ip_config.txt")', "initialize()") + OWN
    given = {"begin": "", "part_config": "g.json", "num_trainers": "1"}
    with ScriptJob(tmp_path, text, "--extra_envs", "MINE=1", "--num_samplers", "0", ip_config="first.txt", **given) as first:
        first.until("there", times=2)
        (tmp_path / "ip_config.txt").write_text((tmp_path / "first.txt").read_text())
        with ScriptJob(tmp_path, text, "--extra_envs", "MINE=2", "--num_samplers", "0", **given) as refused:
            printed = refused.end(2, 60)
        assert re.search(r"127.0.0.1:\d+ is in use \(pid \d+\)", error_of(printed)) and "trainer 0:" not in printed, printed
        ip_config(tmp_path, parts=2)
        with ScriptJob(tmp_path, text, "--extra_envs", "MINE=2", "--num_samplers", "0", **given) as second:
            assert second.end(0).count("kept 2.0") == 2
        (tmp_path / "go").touch()
        assert first.end(0).count("kept 1.0") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "code", "line"),
    [
        pytest.param(
            *("sampler", 1, r"machine_1 \(127.0.0.1\): trainer 1 failed: .*a process that makes batches has died"),
            marks=pytest.mark.long,
        ),
        ("server", 3, r"machine_1 \(127.0.0.1\): server 1 was killed by signal SIGKILL"),
        pytest.param(
            *("agent", 3, r"machine_[01] \(127.0.0.1\): its agent was killed by signal SIGKILL"), marks=pytest.mark.long
        ),
    ],
)
def test_who_is_killed_while_trainers_sample_is_named(tmp_path: Path, who: str, code: int, line: str) -> None:
    partitioned(tmp_path)
    text = training(workers=1, epochs=100_000)
    with ScriptJob(tmp_path, text, begin="", part_config="g.json", num_trainers="1") as job:
        job.until("epoch 0", times=2)
        server, trainer = job.one("server", 1), job.one("trainer", 1)
        if who == "agent":
            job.kill("agent")
        elif who == "server":
            os.kill(server, signal.SIGKILL)
        else:
            os.kill(int(str(wait(lambda: next(iter(children(trainer)), None), 30.0, job))), signal.SIGKILL)
        printed = job.end(code, 30)
    assert re.search(line, error_of(printed)), printed
