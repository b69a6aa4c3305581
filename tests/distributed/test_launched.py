"""One script, launched on two machines with two trainers each, and run by hand: a distributed graph is the same in both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kgdist.graphs.in_memory import graph
from kgdist.partition.partition_graph import partition_graph
from tests.faults.scripts import ScriptJob
from tests.patience import patience

SCRIPT = """
import json, os, sys
import torch
import kgdist as dgl
from kgdist.base.errors import KgdistError

def initializer(shape, dtype):
    return torch.full(shape, 0.5, dtype=dtype)

dgl.distributed.initialize("ip_config.txt")
g = dgl.distributed.DistGraph("g", part_config="g.json")
rank, trainers = dgl.distributed.rank(), dgl.distributed.get_num_clients()
nodes = dgl.distributed.node_split(g.ndata["train_mask"], g.get_partition_book())
assert set(nodes.tolist()) <= set(torch.nonzero(g.ndata["train_mask"][:]).flatten().tolist())

test = dgl.distributed.DistTensor((g.number_of_nodes(), 2), torch.float32, name="test")
test[nodes] = torch.full((len(nodes), 2), 1.0 + rank)
g.ndata["test"] = test
g.barrier()
assert test.count_nonzero() == 2 * g.ndata["train_mask"].count_nonzero()

emb = dgl.distributed.DistEmbedding(g.number_of_nodes(), 4, init_func=initializer)
optimizer = dgl.distributed.SparseAdagrad([emb], lr=0.25)
loss = torch.sum(emb(nodes) + 1)
loss.backward()
optimizer.step()
g.barrier()
moved = (emb.weight[:] == 0.25).all(1)
assert torch.equal(moved, g.ndata["train_mask"][:].bool()), emb.weight[:]
try:
    emb.save(".")
except KgdistError as error:
    assert "something else is there" in str(error), error
else:
    raise AssertionError("what the first trainer cannot do fails for all")
emb.save("rows")

sampler = dgl.dataloading.MultiLayerNeighborSampler([3, 2])
every = torch.arange(g.number_of_nodes())
found, features = [], g.ndata["x"][:]
dropped = dgl.distributed.DistTensor((g.number_of_nodes(), 2), torch.float32)
del dropped  # workers of the loader, forked before anybody knows, let trainers see to it
loader = dgl.dataloading.NodeDataLoader(g, every, sampler, batch_size=16, seed=3, num_workers=int(sys.argv[1]))
for inputs, seeds, blocks in loader:
    assert torch.equal(g.ndata["x"][inputs], features[inputs])
    found += [block.edata[dgl.EID].tolist() for block in blocks]
told = {"nodes": nodes.tolist(), "blocks": found, "trainers": trainers}
open(f"told.{trainers}.{rank}", "w").write(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_script_is_the_same_by_hand_and_on_machines(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = graph((torch.randint(0, 60, (400,)), torch.randint(0, 60, (400,))), num_nodes=60)
    whole.ndata["x"] = torch.arange(60.0).repeat_interleave(3).reshape(60, 3)
    whole.ndata["train_mask"] = torch.rand(60) < 0.5
    partition_graph(whole, "g", 2, tmp_path, part_method="random")
    with ScriptJob(tmp_path, SCRIPT.replace("sys.argv[1]", "2"), begin="", part_config="g.json") as job:
        job.end(0)
    (tmp_path / "script.py").write_text(SCRIPT)
    alone = subprocess.run(
        [sys.executable, "script.py", "0"],
        cwd=tmp_path,
        timeout=patience(100),
        env={**os.environ},
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0, alone.stderr
    told = [json.loads((tmp_path / f"told.4.{rank}").read_text()) for rank in range(4)]
    by_hand = json.loads((tmp_path / "told.1.0").read_text())
    assert all(each["blocks"] == by_hand["blocks"] for each in told), "the same blocks, bit for bit"
    assert sorted(node for each in told for node in each["nodes"]) == by_hand["nodes"]
    assert max(len(each["nodes"]) for each in told) - min(len(each["nodes"]) for each in told) <= 1
