"""docs/distributed-graph.md followed from its graph to machines, as a reader would: its own files, its own commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kgdist.distributed import current
from tests.docs_blocks import ROOT, Block, Reader, blocks, expand
from tests.faults.jobs import command, ip_config, run
from tests.faults.sshd import Sshd
from tests.patience import patience

PAGE = "docs/distributed-graph.md"
pytest.importorskip("torch_geometric")


def under(heading: str) -> list[Block]:
    """The blocks of a section."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    at = text.index(f"\n## {heading}\n") + 1
    first, last = (text.count("\n", 0, place) for place in (at, text.index("\n## ", at)))
    return [block for block in blocks(PAGE) if first < block.line <= last + 1]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_its_script_runs_on_machines(sshd: Sshd, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "_current", [])
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    machines = under("On several machines")
    made = [*under("Make a graph"), *under("Divide it"), *under("GraphSAGE")]
    for block in (*(each for each in made if each.kind == "python"), *(each for each in machines if each.kind == "bash")):
        reader.follow(block)
    ip_config(home / "papers", parts=2)
    options = sshd.options()
    reach = [
        "--ssh_key",
        str(options.ssh_key),
        "--ssh_port",
        str(options.ssh_port),
        "--remote_python",
        str(options.remote_python),
    ]
    lines = [line for block in machines if block.kind == "bash parsed" for line in block.commands]
    (copy,) = (expand(line) for line in lines if line.startswith("kgdist-copy"))
    sent = run([*command("copy", *copy[1:]), *reach], tmp_path)
    assert sent.returncode == 0, sent.stderr
    (launch,) = (expand(line) for line in lines if line.startswith("kgdist-launch"))
    more = ["--backend", "local", "--peer_timeout", str(patience(15.0))]
    done = run(command("launch", *more, *launch[1:]), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.findall(r"accuracy of validation: (0\.\d+|1\.00)", done.stdout + done.stderr)
    assert len(accuracy) == 1 and float(accuracy[0]) > 0.8
