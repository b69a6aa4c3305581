"""One of several workers that train a graph encoder, each on a partition of its own:

    torchrun --nproc_per_node 2 worker.py FOLDER [STEPS]

FOLDER has the partitions, partition_0 and following, as kgdist-partition --edges made them.
"""

import sys
from pathlib import Path

import kgdist

folder = Path(sys.argv[1]).absolute()


def heard(event: object) -> object:
    """The first worker hears how it goes, and may end it."""
    if isinstance(event, kgdist.Validation):
        print(f"step {event.step} of {event.total}: MRR {event.mrr:.3f}")
        return kgdist.STOP if event.mrr > 0.9 else None
    return None


result = kgdist.train_gnn(
    {
        "path": str(folder.parent),
        "data_path": ".",
        "dataset": folder.name,
        "model_name": "DistMult",
        "encoder": "compgcn",
        "hidden_dim": 64,
        "encoder_dim": 32,
        "batch_size": 1024,
        "neg_sample_size": 256,
        "gamma": 8,
        "lr": 0.1,
        "neg_adversarial_sampling": True,
        "regularization_coef": 0,
        "max_step": int(sys.argv[2]) if len(sys.argv) > 2 else 400,
        "valid": True,
        "eval_interval": 20,
        "quiet": True,
    },
    callbacks=[heard],
)
if result.folder is not None:  # the other workers know of none
    print(kgdist.load(result.folder).predict(head="dog.n.01", relation="hypernym", k=3))
