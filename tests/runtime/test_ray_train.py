"""Ray Train runs the workers of a graph encoder: the same training as by the own launcher, begun again when one is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli import partition as partition_command
from tests.faults.jobs import command, graph, ip_config, run
from tests.patience import patience
from tests.runtime.rays import TOKEN, cluster_of, held, processes
from tests.runtime.test_ray_agents import ROOT, SHORT, finished, started

pytest.importorskip("ray.train.torch", reason="Ray Train is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
SMALL = ["--dataset", "toy", "--encoder", "rgcn", "--model_name", "DistMult", "--hidden_dim", "8", "--encoder_dim", "8"]
SMALL += ["--num_bases", "2", "--batch_size", "64", "--neg_sample_size", "16", "--lr", "0.1", "--gamma", "8"]


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """A workspace with a small graph in two self-sufficient partitions."""
    data = tmp_path / "data" / "toy"
    data.mkdir(parents=True)
    graph(data)
    files = [str(data / f"{split}.tsv") for split in ("train", "valid", "test")]
    words = ["--dataset", "toy", "--format", "raw_udd_hrt", "--data_path", str(tmp_path / "data"), "--data_files", *files]
    assert partition_command.main([*words, "-k", "2", "--edges", "--quiet"]) == 0
    ip_config(tmp_path, parts=2)
    return tmp_path


def by_ray(address: str, path: Path, *words: str, before: str = "") -> subprocess.Popen[str]:
    places = ["--path", str(path), "--data_path", "data", "--ray_address", address, "--ray_placement", "spread"]
    return started("dist_train", *places, "--backend", "ray-train", *SMALL, *words, before=before)


def test_it_is_the_training_of_the_own_launcher_to_the_bit(space: Path) -> None:
    steps = ["--max_step", "30", "--checkpoint_interval", "15", "--log_interval", "10", "--valid", "--eval_interval", "15"]
    with cluster_of(1, 1, 1) as address:
        text = finished(by_ray(address, space, *steps, "--save_path", "ray", "--test"), 0)
        made = {path.name: np.load(path) for path in space.glob("ray/*/toy_DistMult_*.npy")}  # before it goes on
        small = finished(by_ray(address, space, *steps, "--num_thread", "2"), 2)
    assert "Reporting training result" not in text and "Test average MRR" in text
    assert len(small.splitlines()) == 1 and "--backend ray-train: the cluster has room for 0 of 2 machines" in small
    words = [*SMALL, *steps, "--save_path", "own", "--test", "--path", str(space), "--data_path", "data", "--backend", "local"]
    own = run(command("dist_train", *words), space)
    assert own.returncode == 0, own.stderr
    values = re.compile(r"average .*")
    assert values.findall(text) == values.findall(own.stdout)
    assert len(made) == 2
    for name, rows in made.items():
        assert np.array_equal(rows, np.load(space / "own" / "DistMult_toy_0" / name))
    assert json.loads((space / "ray" / "DistMult_toy_0" / "config.json").read_text())["data_path"] == str(space / "data")
    kept = list((space / "ray" / ".ray_train").glob("*/checkpoint_*/DistMult_toy_0/ckpt-30/manifest.json"))
    assert kept and all((each.parents[1] / "best" / "manifest.json").exists() for each in kept), (
        "what Ray Train keeps is a run folder"
    )


@pytest.mark.long
def test_a_run_says_what_it_is_of_and_what_its_workers_find_is_heard(space: Path) -> None:
    """From wherever it goes on, and where its last checkpoint is damaged."""
    with cluster_of(1, 1, 1) as address:
        finished(by_ray(address, space, "--max_step", "30", "--checkpoint_interval", "15", "--save_path", "ray"), 0)
        damaged = space / "ray" / "DistMult_toy_0" / "ckpt-30" / "entity.npy"
        damaged.write_bytes(damaged.read_bytes()[:-4])
        places = ["--path", str(space), "--ray_address", address, "--ray_placement", "spread"]
        more = started("dist_train", *places, "--backend", "ray-train", "--resume", "ray/DistMult_toy_0", "--max_step", "40")
        text = finished(more, 0)
    assert re.search(r"WARNING: worker 0: .*ckpt-30.*; trying the checkpoint before it", text)
    assert "at step 15 of 40" in text


STEPS = ["--max_step", "120", "--checkpoint_interval", "20", "--log_interval", "20"]


@pytest.mark.long
def test_a_worker_that_is_killed_is_begun_again_from_what_ray_keeps(space: Path) -> None:
    with cluster_of(1, 1, 1) as address:
        process = by_ray(address, space, *STEPS)
        kill_a_worker(space / "ckpts", process)
        text = finished(process, 0)
    said = re.findall(r"WARNING: worker . was lost \(.*\); all begin again at the checkpoint of step (\d+), attempt 2 of 4", text)
    resumed = re.findall(r"resumed .*DistMult_toy_0 at step (\d+) of 120", text)
    assert len(said) == len(resumed) == 1 and 20 <= int(said[0]) <= int(resumed[0]), text


@pytest.mark.long
def test_a_worker_that_is_killed_once_too_often_ends_the_training(space: Path) -> None:
    with cluster_of(1, 1, 1) as address:
        process = by_ray(address, space, *STEPS, "--max_restarts", "0")
        kill_a_worker(space / "ckpts", process)
        once = finished(process, 3)
    assert "begin again" not in once
    last = (
        r"error: --backend ray-train: worker . was lost \(.*\), after 1 attempt; the last checkpoint is of step \d+, go on with: "
    )
    assert re.match(last, once.splitlines()[-1]), once


def kill_a_worker(place: Path, process: subprocess.Popen[str]) -> None:
    """Of the training of a process, once Ray Train keeps a checkpoint of it."""
    kept = ".ray_train/*/checkpoint_*/DistMult_toy_0/ckpt-*/manifest.json"
    deadline = time.monotonic() + patience(100)
    while not list(place.glob(kept)):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    (worker, *_) = processes(b"ray::RayTrainWorker")
    os.kill(worker, signal.SIGKILL)


@pytest.mark.long
def test_what_no_other_attempt_mends_is_one_line(space: Path) -> None:
    """Options and data that are wrong for a worker, and CPUs that others use."""
    with cluster_of(0, 1, 1) as address:
        with held(address, 1) as other:
            text = finished(by_ray(address, space, "--max_step", "5", before=SHORT), 2)
            assert (
                text.splitlines()[-1]
                == "error: --backend ray-train: no place within 2 s: 2 machines with 1 CPU, which others use"
            )
            process = by_ray(address, space, "--max_step", "5", "--attributes", "/nowhere")
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "INFO: waiting up to 60 s for Ray: 2 machines with 1 CPU, which others use\n"
            other.kill()
            text = finished(process, 2)
        assert text.splitlines()[-1].startswith("error: worker 0: /nowhere") and "begin again" not in text


ALONE = """
import os, sys
import ray
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from kgdist.runtime.ray_train import train_worker

ray.init(address=sys.argv[1], log_to_driver=False)
config = {"dataset": "wordnet", "encoder": "sage", "model_name": "DistMult", "hidden_dim": 8, "encoder_dim": 8, "batch_size": 64,
          "neg_sample_size": 16, "max_step": 8, "checkpoint_interval": "4", "log_interval": 4,
          "save_path": os.path.abspath("ray")}
made = TorchTrainer(train_worker, train_loop_config={"config": config, "run": "one"}, torch_config=TorchConfig(backend="gloo"),
                    scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
                    run_config=train.RunConfig(name="one", storage_path=os.path.abspath("kept")))
found = made.fit()
print(found.metrics["step"], sorted(found.metrics))
import kgdist
kgdist.train(**config | {"save_path": os.path.abspath("own")})
"""


@pytest.mark.long
def test_one_worker_is_one_process_to_the_bit(tmp_path: Path) -> None:
    with cluster_of(0, 2) as address:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(ALONE), address],
            cwd=tmp_path, env=os.environ | TOKEN | {"PYTHONPATH": ROOT}, capture_output=True, text=True,
            timeout=patience(150), check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 ['loss', 'step', 'triples_per_second']" in done.stdout
    for name in ("wordnet_DistMult_entity.npy", "wordnet_DistMult_relation.npy"):
        (one,), (other,) = ((tmp_path / folder).glob(f"*/{name}") for folder in ("ray", "own"))
        assert np.array_equal(np.load(one), np.load(other))
