"""docs/tutorial.md as it stands there: nothing is made smaller, the server is a process, and what is told comes true."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kgdist.distributed import current
from tests.docs_blocks import ROOT, Reader, blocks
from tests.patience import patience


def served(words: list[str], folder: Path, path: str) -> list[dict[str, str]]:
    """What a server, started by the page's words at a port that is free, answers to the page's question."""
    command = [sys.executable, "-m", "kgdist.cli.serve", *words, "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+?:\d+", process.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address[0] + path, timeout=patience(30)) as answer:
            return list(json.load(answer)["answers"])
    finally:
        process.terminate()
        process.communicate(timeout=patience(30))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_tutorial_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(current, "_current", [])
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, as_written=True)
    page = list(blocks("docs/tutorial.md"))
    for block in page:
        if block.kind == "bash":
            reader.follow(block)
    printed = capsys.readouterr().out
    for told in ("2,746 train, 343 valid, 343 test", "found nothing that would distort results"):
        assert told in printed
    told_page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    assert "".join((tmp_path / "places.tsv").read_text(encoding="utf-8").splitlines(keepends=True)[:3]) in told_page
    (steps,) = re.findall(r"validated at step (\d+ of \d+)", told_page)
    assert f"validated at step {steps}" in printed
    run = tmp_path / "ckpts/ComplEx_places_0"
    metrics = json.loads((run / "test.json").read_text())
    assert metrics["all"]["realistic"]["mrr"] > 0.3  # .3665 as told
    assert (run / "report.html").stat().st_size > 100_000
    asked = [line for line in printed.splitlines() if "has_part  danube.n.01" in line]
    assert len(asked) == 8 and len({"romania.n.01", "hungary.n.01", "austria.n.01"} & {line.split()[0] for line in asked}) >= 2
    assert re.search(r"oslo.n.01  (trondheim|bergen|stavanger).n.01", printed)

    (serve,) = (block for block in page if block.kind == "bash parsed")
    _, start, ask = serve.commands
    question = shlex.split(ask)[1].partition("8080")[2]
    answers = served(shlex.split(start)[1:], tmp_path, question)
    assert [answer["head"] for answer in answers] == [line.split()[0] for line in asked[:3]]
