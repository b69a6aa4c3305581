"""A run goes on with what its rows were trained for, or not at all: other partitions, other options, with real jobs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.faults.jobs import Job, command, graph, ip_config, run

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]
SHORT = {"max_step": "300", "checkpoint_interval": "100"}


def partition(space: Path) -> None:
    """Divide the graph `toy` of a workspace in two, in the place of what was there."""
    data = space / "data" / "toy"
    for old in data.glob("partition_*"):
        shutil.rmtree(old)
    files = [str(data / f"{split}.tsv") for split in ("train", "valid", "test")]
    read = ["--dataset", "toy", "--format", "raw_udd_hrt", "--data_path", str(space / "data"), "--data_files", *files]
    made = run(command("partition", *read, "-k", "2"), space)
    assert made.returncode == 0, made.stderr


def stamps(folder: Path) -> list[str]:
    """What the manifests of a run folder say, all of it."""
    return [path.read_text() for path in sorted(folder.glob("machine_*/*/manifest.json"))]


@pytest.mark.long
def test_another_partition_of_the_same_data(tmp_path: Path) -> None:
    (tmp_path / "data" / "toy").mkdir(parents=True)
    graph(tmp_path / "data" / "toy")
    ip_config(tmp_path, parts=2)
    partition(tmp_path)
    with Job(tmp_path, **SHORT) as job:
        job.end(0)
    (folder,) = (tmp_path / "ckpts").iterdir()
    before = stamps(folder)
    train = tmp_path / "data" / "toy" / "train.tsv"
    lines = train.read_text().splitlines(keepends=True)
    train.write_text("".join(reversed(lines)))  # tables of the same shapes, whose rows are of others
    partition(tmp_path)
    with Job(tmp_path, "--resume", folder.name, max_step="301") as job:
        text = job.end(2, 60)
    for machine in range(2):
        place = folder / f"machine_{machine}" / "ckpt-300"
        assert f"machine_{machine} (127.0.0.1): --resume: {place} was trained on another partition of the data (graph " in text
    assert text.count("put the partitions back that it was made with") == 2 and "(2 problems; nothing was started)" in text
    assert stamps(folder) == before

    train.write_text("".join(lines))
    partition(tmp_path)  # as it was
    with Job(tmp_path, "--resume", folder.name, max_step="400") as job:
        assert "at step 300 of 400" in job.end(0)


@pytest.mark.long
def test_options_that_give_rows_another_meaning(space: Path) -> None:
    options = SHORT | {"model_name": "RotatE", "gamma": "12"}
    with Job(space, "-de", **options) as job:
        job.end(0)
    (folder,) = (space / "ckpts").iterdir()
    before = stamps(folder)
    changed = options | {"gamma": "2", "max_step": "301"}
    with Job(space, "-de", "--resume", folder.name, **changed) as job:
        text = job.end(2, 60)
    assert [line for line in job.lines if "error" in line] == [
        f"error: --resume: {folder} was trained with --gamma 12.0, not 2.0"
    ]

    settings = (folder / "config.json").read_text()
    (folder / "config.json").unlink()  # as for a launcher that is not on the first machine
    with Job(space, "-de", "--resume", folder.name, **changed) as job:
        text = job.end(2, 60)
    for machine in range(2):
        place = folder / f"machine_{machine}" / "ckpt-300"
        assert f"machine_{machine} (127.0.0.1): --resume: {place} was trained with --gamma 12.0, not 2.0" in text
    assert stamps(folder) == before

    with Job(space, "-de", "--resume", folder.name, **options | {"max_step": "400", "lr": "0.01"}) as job:
        assert re.search("no config.json here.*\n(.*\n)*.*at step 300 of 400", job.end(0))
    assert json.loads((folder / "config.json").read_text())["gamma"] == json.loads(settings)["gamma"] == 12.0
