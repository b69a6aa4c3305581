"""Workers that train a graph encoder side by side: what they make together, and what becomes of it when one is lost."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.cli import partition
from kgdist.data.dataset import open_dataset
from kgdist.models.encoders.encode import encode
from kgdist.models.encoders.encoder import Encoding
from kgdist.options.config import OPTIONS
from kgdist.options.of_encoders import EncoderOptions
from kgdist.runs import checkpoint, rundir
from tests.family import descendants, words_of
from tests.faults.jobs import SMALL, Job, command, graph, here, ip_config, refused, run, types, wait
from tests.faults.sshd import Sshd
from tests.faults.test_over_ssh import reach

pytestmark = pytest.mark.timeout(240)
ENCODER = {"encoder": "rgcn", "model_name": "DistMult", "encoder_dim": "8", "num_bases": "2", "max_step": "24"}
FOREVER = "1000000"


def parts(folder: Path, count: int, *words: str, weighted: bool = False, typed: bool = False) -> Path:
    """A workspace with the graph `toy` in so many self-sufficient partitions, for machines of one worker each."""
    data = folder / "data" / "toy"
    data.mkdir(parents=True)
    graph(data, weighted=weighted)
    files = [str(data / f"{split}.tsv") for split in ("train", "valid", "test")]
    given = ["--dataset", "toy", "--format", "raw_udd_hrt", "--data_path", str(folder / "data"), "--data_files", *files]
    more = ["--has_edge_importance"] if weighted else []
    more += ["--entity_types", str(types(folder))] if typed else []
    assert partition.main([*given, *more, "-k", str(count), "--edges", "--quiet", *words]) == 0
    ip_config(folder, parts=count)
    return folder


def workers(job: Job) -> list[int]:
    """The processes of its workers, by rank."""
    found = [pid for pid in descendants(job.process.pid) if "kgdist.cli.gnn" in words_of(pid)]
    job.seen |= {*found, *descendants(job.process.pid)}
    return sorted(found, key=lambda pid: int(re.findall(rb"\0RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())[0]))


def check_embeddings(folder: Path, rows: str = "") -> None:
    """The run's entities are what its encoder makes of its rows, the last ones or those in a folder, on the whole graph."""
    opened = rundir.open_run(folder)
    data = open_dataset(opened.config, opened.vocabularies)
    sizes = len(data.entities), len(data.relations)
    encoding = Encoding.of(opened.config, data.train.array, *sizes)
    assert encoding is not None
    last = max(folder.glob("ckpt-*"), key=lambda path: int(path.name.removeprefix("ckpt-")))
    saved = checkpoint.load(folder / rows if rows else last).arrays
    encoding.encoder.use(torch.from_numpy(np.array(saved["encoder"])))
    made = encode(encoding.encoder, encoding.messages, torch.from_numpy(np.array(saved["entity"])))
    np.testing.assert_allclose(np.load(folder / "toy_DistMult_entity.npy"), made.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("machines", "each", "more"), [(2, 1, []), (1, 2, ["--expand", "2", "--fanout", "1", "2"])])
@pytest.mark.slow
def test_workers_make_one_run_that_all_commands_read(tmp_path: Path, machines: int, each: int, more: list[str]) -> None:
    path = parts(tmp_path, machines * each, *more)
    ip_config(path, parts=machines)
    options = ENCODER | {"num_client_proc": str(each), "eval_interval": "12", "checkpoint_interval": "12"}
    with Job(path, "--valid", "--test", "--json", **options) as job:
        text = job.end(0)
    result = json.loads(job.lines[-1])
    folder = path / result["run"]
    assert "kgdist-" not in text and result["test"]["all"]["realistic"]["mrr"] > 0.02 and not result["interrupted"]
    assert all(f"validated at step {step} of 24: MRR 0." in text for step in (12, 24)), text
    check_embeddings(folder)
    again = here("eval", str(folder), "--json", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["test"]["all"]["realistic"] == result["test"]["all"]["realistic"]
    (tmp_path / "new.tsv").write_text("new\tr0\te1\ne2\tr1\tnew\n")
    grown = here("encode", str(folder), "--triples", "new.tsv", "--out", "grown", folder=tmp_path)
    assert grown.returncode == 0, grown.stderr
    assert np.isfinite(np.load(tmp_path / "grown" / "toy_DistMult_entity.npy")[-1]).all()


@pytest.mark.long
def test_the_best_rows_are_encoded_by_all(tmp_path: Path) -> None:
    path = parts(tmp_path, 2)
    options = ENCODER | {"eval_interval": "6", "max_step": "60", "lr": "3", "encoder_lr": "1", "early_stop_patience": "2"}
    with Job(path, "--valid", **options) as job:
        text = job.end(0)
    assert re.search(r"kept: the embeddings of step \d+, with the best validation MRR", text), text
    check_embeddings(next(iter(path.glob("ckpts/*"))), "best")


@pytest.mark.slow
def test_a_worker_that_is_killed_is_begun_again_with_all_at_the_last_checkpoint(tmp_path: Path) -> None:
    path = parts(tmp_path, 2)
    with Job(path, **ENCODER | {"max_step": "400", "checkpoint_interval": "50"}) as job:
        wait(lambda: list(path.glob("ckpts/*/ckpt-*/manifest.json")), 60.0, job)
        os.kill(workers(job)[1], signal.SIGKILL)
        text = job.end(0)
    assert re.search(r"trainer 1 was killed by signal SIGKILL.*; attempt 2 of", text)
    assert re.search(r"resumed .* at step [1-9]\d+ of 400", text)
    (folder,) = path.glob("ckpts/*")
    check_embeddings(folder)


@pytest.mark.long
def test_what_is_lost_counts_anew_after_each_checkpoint(tmp_path: Path) -> None:
    """With one restart two workers may be lost, one after another, but not two without a checkpoint between."""
    path = parts(tmp_path, 2)
    with Job(path, **ENCODER | {"max_step": FOREVER, "checkpoint_interval": "40", "max_restarts": "1"}) as job:
        for attempt in (2, 3):
            before = newest(path)
            wait(lambda: newest(path) > before, 60.0, job)  # noqa: B023
            os.kill(workers(job)[1], signal.SIGKILL)
            job.until(f"attempt {attempt} of")
        wait(lambda: len(workers(job)) == 2, 60.0, job)
        os.kill(workers(job)[1], signal.SIGKILL)
        text = job.end(3)
    last = text.splitlines()[-1]
    assert re.search(
        r"error: .*trainer 1 was killed by .*; the last checkpoint is of step \d+, go on with: kgdist-dist-train", last
    )


def newest(path: Path) -> int:
    """The step of the last checkpoint of the run in a workspace."""
    return max((step for folder in path.glob("ckpts/*") for step, _ in checkpoint.numbered(folder)), default=0)


@pytest.mark.long
@pytest.mark.parametrize("who", ["launcher", "worker"])
def test_ctrl_c_saves_and_the_run_can_go_on(tmp_path: Path, who: str) -> None:
    path = parts(tmp_path, 2)
    with Job(path, **ENCODER | {"max_step": FOREVER, "log_interval": "5"}) as job:
        job.until(r"\[Train\]\(10/")
        os.kill(job.process.pid if who == "launcher" else workers(job)[1], signal.SIGINT if who == "launcher" else signal.SIGTERM)
        text = job.end(130)
    (hint,) = re.findall(r"interrupted at step (\d+); go on with: (.*)", text)
    step = int(hint[0])
    words = shlex.split(hint[1])
    assert words[0] == "kgdist-dist-train" and step >= 10
    more = ["--max_step", str(step + 3), "--backend", "local"]
    done = run(command("dist_train", *words[1:], *more), path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"at step {step} of {step + 3}" in done.stdout
    check_embeddings(next(iter(path.glob("ckpts/*"))))


@pytest.mark.long
def test_epochs_go_on_with_other_workers(tmp_path: Path) -> None:
    """Steps an epoch are halved by twice the workers: what was saved is of epochs."""
    path = parts(tmp_path, 1)
    options = ENCODER | {"eval_interval": "1000000", "batch_size": "60", "neg_sample_size": "15"}
    del options["max_step"]
    with Job(path, "--valid", **options, max_epoch="4") as job:
        job.end(0)
    (folder,) = path.glob("ckpts/*")
    assert [step for step, _ in checkpoint.numbered(folder)] == [80]  # 1,200 triples, 60 a step
    for workers, epochs, line, last in ((2, "8", "at step 40 of 80", 80), (1, "10", "at step 160 of 200", 200)):
        shutil.rmtree(path / "data" / "toy")
        (path / "data").rename(path / f"data_before_{workers}")
        parts(path, workers)
        resume = ["--resume", str(folder), "--max_epoch", epochs]
        done = run(command("dist_train", *resume, "--backend", "local", "--ip_config", str(path / "ip_config.txt")), path)
        assert done.returncode == 0 and line in done.stdout, done.stdout + done.stderr
        assert f"validated at step {last} of {last}" in done.stdout  # the best rows are of another step of that number
        assert checkpoint.numbered(folder)[0][0] == last
        check_embeddings(folder, "best" if "kept: the embeddings" in done.stdout else "")


BAD: dict[str, tuple[dict[str, str], str]] = {
    "too few workers": (
        {"num_client_proc": "2"},
        "toy is in 2 partitions, and there are 4 workers: one worker trains",
    ),
    "too many layers": ({"num_layers": "3"}, "--num_layers: the partitions reach 2 hops, and each layer needs one"),
    "security": ({"transport_security": "curve"}, "--transport_security: is about a parameter store"),
    "steps": ({"force_sync_interval": "5"}, "--force_sync_interval: has no effect: the workers of --encoder"),
    "by hand": ({"backend": "manual"}, "--backend: manual knows no workers of --encoder; start them by torchrun"),
    "attributes": ({"attributes": "/nowhere"}, "/nowhere"),
    "no weights": ({"has_edge_importance": "true"}, "--has_edge_importance: the triples of toy have no weights"),
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts(tmp_path_factory.mktemp("two"), 2)


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_one_line(two: Path, case: str) -> None:
    options, said = BAD[case]
    given = ENCODER | options
    words = ["--has_edge_importance"] if given.pop("has_edge_importance", None) else []
    backend = given.pop("backend", "local")
    assert said in refused(two, *words, backend=backend, **given)


@pytest.mark.slow
def test_a_partition_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    path = parts(tmp_path, 2)
    (second,) = path.glob("**/partition_1")
    shutil.rmtree(second)
    shutil.copytree(second.with_name("partition_0"), second)
    ip_config(path, parts=1)
    with Job(path, **ENCODER | {"num_client_proc": "2"}) as job:
        text = job.end(2)
    assert (
        "trainer 1 ended with exit code 2: data/toy/partition_1: is partition 0, not 1; make or copy the partitions again" in text
    )
    assert "attempt 2" not in text and "Traceback" not in text


def test_partitions_of_another_kind_are_refused(two: Path, tmp_path: Path) -> None:
    assert "a partition of triples with all that encoders need of others; wanted is" in refused(two, max_step="5")
    lines = (two / "data" / "toy").glob("partition_*")
    assert len(list(lines)) == 2


OPTIONS_GIVEN: dict[str, Any] = {
    "encoder": "relgnn", "num_layers": 1, "encoder_dim": 12, "encoder_lr": 0.02, "fanout": (4,), "dropout": 0.3,
    "weight_decay": 0.001, "neighbor_dropout": 0.25, "no_inverse": True, "model_name": "DistMult", "hidden_dim": 8, "max_step": 2,
    "max_grad_norm": 0.5, "negatives": "local",
}  # fmt: skip
OF_ONE_ENCODER = {"num_bases": 3, "relation_blocks": True, "num_heads": 2}


@pytest.mark.slow
def test_options_are_what_they_were_given_as_in_the_workers(tmp_path: Path) -> None:
    names = {each.name for each in dataclasses.fields(EncoderOptions)}
    assert names == OPTIONS_GIVEN.keys() & names | OF_ONE_ENCODER.keys() | {
        "attributes",
        "own_rows",
    }  # tests of one machine have these
    assert all(value != OPTIONS[name].default for name, value in OPTIONS_GIVEN.items())
    path = parts(tmp_path, 2, "--expand", "1", "--no_inverse", weighted=True)
    given = OPTIONS_GIVEN | {"has_edge_importance": True}
    switches = [f"--{name}" for name, value in given.items() if value is True]
    values = {n: " ".join(map(str, v)) if isinstance(v, tuple) else str(v) for n, v in given.items() if v is not True}
    with Job(path, "--debug", *switches, **values) as job:
        text = job.end(0)
    found = re.findall(r"worker (\d) has the options (\{.*\})", text)
    assert {rank for rank, _ in found} == {"0", "1"}
    for _, options in found:
        there = json.loads(options)
        assert {name: tuple(there[name]) if isinstance(there[name], list) else there[name] for name in given} == given


@pytest.mark.long
def test_machines_over_ssh_get_their_partitions_and_train(sshd: Sshd, tmp_path: Path) -> None:
    path = parts(tmp_path / "my task", 4)
    ip_config(path, parts=2)
    words = ["--path", str(path), "--ip_config", str(path / "ip_config.txt"), "--data_path", "data", "--dataset", "toy"]
    words += [word for name, value in (SMALL | ENCODER).items() for word in (f"--{name}", value)]
    done = run(command("dist_train", *words, "--copy", "--num_client_proc", "2", "--test", *reach(sshd)), path)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = re.findall(r"machine_(\d) .*partition_(\d): \d+ files, .* complete already", done.stdout)
    assert sorted(sent) == [("0", "0"), ("0", "1"), ("1", "2"), ("1", "3")], done.stdout
    assert "Test average MRR" in done.stdout
    check_embeddings(next(iter(path.glob("ckpts/*"))))
