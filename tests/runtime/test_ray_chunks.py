"""kgdist-preprocess --executor ray, with real Ray: the bytes of any other way, on a cluster of its own or one that is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgdist.attributes import open_attributes
from kgdist.cli import preprocess as preprocess_command
from kgdist.runtime.ports import free_port
from tests.attributes.entities import rows, schema, write_tsv
from tests.patience import patience
from tests.runtime.rays import TOKEN, cluster_of, processes

ray = pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The attributes of 300 entities, in 6 chunks."""
    path = write_tsv(tmp_path / "e.tsv", [row | {"entity": f"e{number}"} for number, row in enumerate(rows(300))])
    return ["--entities", str(path), "--schema", str(schema(tmp_path)), "--chunk_size", "50"]


def run(words: list[str], out: Path, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kgdist.cli.preprocess", *words, "--out", str(out), "--json", *more]
    root = os.fspath(Path(__file__).resolve().parents[2])
    env = os.environ | {"PYTHONPATH": root} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=patience(120), check=False)


def digests(folder: Path) -> object:
    """Of every file, each as it was written."""
    opened = open_attributes(folder)
    opened.verify()
    return opened.manifest["digests"]


@pytest.mark.long
def test_a_cluster_of_its_own_gives_the_same_bytes_and_goes(words: list[str], tmp_path: Path) -> None:
    assert run(words, tmp_path / "local").returncode == 0
    for workers in ("1", "2"):
        done = run(words, tmp_path / workers, "--executor", "ray", "--num_workers", workers, **TOKEN)
        assert done.returncode == 0, done.stderr
        assert digests(tmp_path / workers) == digests(tmp_path / "local")
        assert json.loads(done.stdout)["node_types"]["person"]["rows"] == 300
    assert not list(Path(tempfile.gettempdir()).glob("ray*"))


@pytest.fixture
def cluster() -> Iterator[str]:
    with cluster_of(2) as address:
        yield address


@pytest.mark.long
def test_a_cluster_that_is_there_is_used_and_stays(words: list[str], tmp_path: Path, cluster: str) -> None:
    """Also when a process of it is killed while it works: Ray begins its task again."""
    assert run(words, tmp_path / "local").returncode == 0
    started = subprocess.Popen(
        [sys.executable, "-m", "kgdist.cli.preprocess", *words, "--out", str(tmp_path / "ray"), "--executor", "ray",
         "--ray_address", cluster, "--quiet"],
        env=os.environ | TOKEN | {"PYTHONPATH": os.fspath(Path(__file__).resolve().parents[2])},
    )  # fmt: skip
    deadline = time.monotonic() + patience(60)
    while started.poll() is None and time.monotonic() < deadline:
        if found := processes(b"ray::work"):
            os.kill(found[0], signal.SIGKILL)
            break
        time.sleep(0.02)
    assert started.wait(patience(100)) == 0
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")
    other = run(words, tmp_path / "no", "--executor", "ray", "--ray_address", cluster, **TOKEN | {"RAY_AUTH_TOKEN": "8" * 64})
    assert other.returncode == 2 and "Traceback" not in other.stderr and other.stderr.splitlines()[-1].startswith("error: --ray")
    assert run(words, tmp_path / "again", "--executor", "ray", "--ray_address", cluster, **TOKEN).returncode == 0


def test_nobody_at_the_address(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = f"127.0.0.1:{free_port(())}"
    assert preprocess_command.main([*words, "--out", str(tmp_path / "no"), "--executor", "ray", "--ray_address", nobody]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: --ray_address: {nobody}: no Ray there") and not (tmp_path / "no").exists()


def test_without_ray_one_line_says_what_brings_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert preprocess_command.main([*words, "--out", str(tmp_path / "no"), "--executor", "ray"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: --executor ray needs Ray") and line.endswith("pip install 'kgdist[ray]'")
