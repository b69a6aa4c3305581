"""The walk-through of the document over a real sshd on loopback, and every option as the remote processes have it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgdist.options import parse
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import from_json
from kgdist.options.model_file import bring
from kgdist.options.of_encoders import EncoderOptions
from tests.faults.jobs import command, ip_config, run, workspace
from tests.faults.sshd import Sshd
from tests.own_models import as_before

pytestmark = pytest.mark.timeout(300)

DOCUMENT = """--path {path} --ip_config {path}/ip_config.txt --num_client_proc 1 --model_name TransE_l2 --dataset toy
    --data_path {path}/data --hidden_dim 400 --gamma 19.9 --lr 0.25 --batch_size 1000 --neg_sample_size 200 --max_step 20
    --log_interval 10 --batch_size_eval 16 --test -adv --regularization_coef 1.00E-09 --num_thread 1"""


def reach(sshd: Sshd) -> list[str]:
    """The flags that lead to it."""
    options = sshd.options()
    return ["--ssh_key", str(options.ssh_key), "--ssh_port", str(options.ssh_port), "--remote_python", str(options.remote_python)]


@pytest.mark.slow
def test_the_documents_commands_from_partition_to_the_model_on_the_first_machine(sshd: Sshd, tmp_path: Path) -> None:
    path = workspace(tmp_path / "my task", parts=4)  # a blank: no shell reads it
    words = shlex.split(DOCUMENT.format(path=shlex.quote(str(path))))
    done = run(command("dist_train", *words, "--copy", *reach(sshd)), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = path / "ckpts" / "TransE_l2_toy_0"
    assert np.load(folder / "toy_TransE_l2_entity.npy", allow_pickle=False).shape == (120, 400)
    assert json.loads((folder / "config.json").read_text())["regularization_coef"] == 1e-9
    for number in range(4):
        assert f"machine_{number} [proc 0][Train](20/20) average pos_loss:" in done.stdout
    assert "Test average HITS@10 :" in done.stdout
    again = run(command("eval", str(folder)), tmp_path)
    assert re.findall(r"Test average .*", again.stdout) == re.findall(r"Test average .*", done.stdout)


OWN = str(Path(__file__).parents[1] / "paired.py")
# Options that are carried out by the launcher alone, or name where it finds things.
HERE = {"config", "preset", "dry_run", "quiet", "json", "debug", "job", "control", "backend", "copy", "resume"}
HERE |= {"num_client_proc", "path", "ray_address", "ray_placement", "ray_wait", "storage", "init_from", "init_vectors"}
FIXED = {"dataset", "data_path", "save_path", "ip_config"} | {name for name in OPTIONS if name.startswith("ssh_")}
FIXED |= {"remote_python", "jump_host", "accept_new_host_keys"}
GROUPS: list[dict[str, Any]] = [
    {
        "model_name": "DistMult", "hidden_dim": 12, "gamma": 7.5, "double_ent": True, "double_rel": True, "init": "normal",
        "max_step": 4, "batch_size": 48, "lr": 0.03, "optimizer": "adagrad", "lr_schedule": "cosine", "lr_warmup": 2, "seed": 5,
        "loss_genre": "Hinge", "margin": 2.5, "pairwise": True, "regularization_coef": 1e-9, "regularization_norm": 2,
        "neg_sample_size": 24, "neg_deg_sample": True, "test": True, "valid": True, "eval_interval": 2, "early_stop_patience": 9,
        "batch_size_eval": 4, "neg_sample_size_eval": 20, "neg_deg_sample_eval": True, "eval_percent": 0.5,
        "no_eval_filter": True, "rank_ties": "pessimistic", "no_save_emb": True, "log_interval": 2, "num_proc": 2,
        "num_thread": 2, "compute_dtype": "bfloat16", "force_sync_interval": 3, "negatives": "local", "peer_timeout": 33.0,
        "stall_timeout": 99.0, "max_restarts": 1, "local_update": "owner", "transport_dtype": "bf16",
        "transport_security": "curve", "max_inflight": 5, "pull_ahead": 3,
    },
    {
        "model_name": "RotatE", "max_epoch": 1.5, "neg_adversarial_sampling": True, "adversarial_temperature": 0.7,
        "checkpoint_interval": "2", "huge_pages": True, "tensorboard": True, "format": "raw_udd_hrt", "has_edge_importance": True,
    },
    {
        "model_name": "ComplEx", "hidden_dim": 12, "loss_genre": "Softmax", "label_smoothing": 0.1, "regularizer": "n3",
        "relation_regularization_coef": 1e-3, "init_scale": 0.05, "neg_sampler": "typed",
        "mask_known": True, "bernoulli": True, "subsampling": True, "answer_weight": 0.3, "reciprocal": True,
        "relation_loss": 0.5,
        "entity_dropout": 0.1, "relation_dropout": 0.2, "lr_schedule": "plateau", "plateau_factor": 0.4, "plateau_patience": 1,
        "valid": True, "eval_interval": 10, "max_step": 20, "batch_size": 64, "neg_sample_size": 16,
    },
    {
        "model_name": "PairRE", "hidden_dim": 16, "max_step": 20, "batch_size": 64, "neg_sample_size": 16, "test": True,
        "hits": [3, 7],
    },
    {
        "model_name": "Paired", "model_file": OWN, "hidden_dim": 16, "max_step": 20, "batch_size": 64, "neg_sample_size": 16,
        "freeze": "entities",
    },
]  # fmt: skip


def test_every_option_of_the_command_is_tried_here() -> None:
    encoders = {each.name for each in dataclasses.fields(EncoderOptions)}  # test_gnn.py has these
    covered = HERE | FIXED | encoders | {name for group in GROUPS for name in group}
    assert covered >= {row.name for row in parse.options("dist-train")}
    for group in GROUPS:
        assert all(value != OPTIONS[name].default for name, value in group.items())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_options_are_what_they_were_given_as_in_the_remote_processes(sshd: Sshd, tmp_path: Path, number: int) -> None:
    path = workspace(tmp_path, weighted=True)
    ip_config(path, parts=2)
    group = dict(GROUPS[number])
    words: list[str] = []
    for name, value in group.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        words += [f"--{name}", *map(str, values)]
    places = ["--path", str(path), "--dataset", "toy", "--data_path", "data", "--save_path", "runs", "--debug"]
    done = run(command("dist_train", *places, *words, *reach(sshd)), path)
    assert done.returncode == 0, done.stdout + done.stderr
    trainers = 2 * group.get("num_proc", 1)
    found = re.findall(r"machine_(\d) trainer (\d) has the options (\{.*\})", done.stdout)
    assert len(found) == trainers and {machine for machine, _, _ in found} == {"0", "1"}
    with as_before():
        if "model_file" in group:
            bring(group["model_file"])
        for _, _, text in found:
            there = json.loads(text)
            for name, value in group.items():
                assert there[name] == value, name
            assert there["save_path"] == "runs" and there["dataset"] == "toy"
            assert from_json(there).lr == Config(**{name: group[name] for name in ("lr",) if name in group}).lr
    assert (path / "runs").is_dir()
