"""The scripts of DGL's three documents (the guide's chapter on its distributed API, the slides, the tutorial), with
`import kgdist as dgl`: what their printing had lost is put back, and what else differs is said in docs/from-dgl.md.

The same files run alone and on two machines with two trainers each.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.faults.jobs import ip_config, run
from tests.faults.scripts import ScriptJob
from tests.faults.sshd import Sshd
from tests.patience import patience

pytestmark = pytest.mark.timeout(240)
pytest.importorskip("torch_geometric")

DOCUMENTS = Path(__file__).parent / "documents"
SCRIPTS = ("guide", "slides", "tutorial")
PART_CONFIG = "4part_data/ogbn-products.json"
ACCURACY = re.compile(r"Epoch 9: Validation Accuracy ([0-9.]+)")


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents' graph in two partitions."""
    folder = tmp_path_factory.mktemp("documents")
    done = run([sys.executable, os.fspath(DOCUMENTS / "partition.py"), "2"], folder)
    assert done.returncode == 0 and "cut: " in done.stdout, done.stderr
    return folder


@pytest.fixture
def workspace(partitions: Path, tmp_path: Path) -> Path:
    """A folder with the graph and the scripts."""
    shutil.copytree(partitions, tmp_path, dirs_exist_ok=True)
    for script in SCRIPTS:
        shutil.copy(DOCUMENTS / f"{script}.py", tmp_path)
    return tmp_path


@pytest.mark.parametrize("script", ["tutorial", *(pytest.param(each, marks=pytest.mark.slow) for each in ("guide", "slides"))])
@pytest.mark.slow
def test_a_document_runs_alone(script: str, workspace: Path) -> None:
    done = run([sys.executable, f"{script}.py"], workspace)
    assert done.returncode == 0, done.stderr
    if script == "tutorial":
        assert float(ACCURACY.findall(done.stdout)[0]) > 0.8


def launched(workspace: Path, script: str, *words: str, **options: str) -> str:
    """What a launch on two machines prints, when it has ended well."""
    text = (DOCUMENTS / f"{script}.py").read_text()
    with ScriptJob(workspace, text, "--part_config", PART_CONFIG, *words, begin="", peer_timeout="15", **options) as job:
        return job.end(0, seconds=patience(150))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["slides", *(pytest.param(each, marks=pytest.mark.long) for each in ("guide", "tutorial"))])
def test_a_document_runs_on_two_machines(script: str, workspace: Path) -> None:
    ip_config(workspace, parts=2)
    printed = launched(workspace, script, "--num_samplers", "1" if script == "guide" else "0")
    if script == "tutorial":
        found = [float(each) for each in ACCURACY.findall(printed)]
        assert len(found) == 4 and sum(found) / 4 > 0.8
    assert printed.count("done 75") == 4 * (script == "guide")


@pytest.mark.long
def test_a_document_runs_over_ssh(sshd: Sshd, workspace: Path) -> None:
    ip_config(workspace, parts=2)
    options = sshd.options()
    reach = {"ssh_key": str(options.ssh_key), "ssh_port": str(options.ssh_port), "remote_python": str(options.remote_python)}
    printed = launched(workspace, "slides", backend="ssh", **reach)
    assert printed.count("loss 0.") + printed.count("loss 1.") == 4
