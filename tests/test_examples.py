"""The examples do what their pages say: every command of a page is run as it stands there, on a copy of the folder."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def commands(page: Path) -> list[list[str]]:
    """The kgdist commands in the blocks of a page, as words."""
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("kgdist-")]


def run(words: list[str]) -> int:
    """Call the entry point of a command in this process; returns its exit code."""
    main = importlib.import_module(f"kgdist.cli.{words[0].removeprefix('kgdist-')}").main
    return int(main(words[1:]))


def test_train_own_triples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLES / "train_own_triples", folder, ignore=shutil.ignore_patterns(".kgdist", "runs"))
    monkeypatch.chdir(folder)
    train, evaluate = commands(folder / "README.md")

    assert run(train) == 0
    metrics = json.loads((folder / "runs/TransE_l2_borders_0/test.json").read_text())
    assert metrics["sides"]["tail"]["realistic"]["mrr"] > 0.6  # chance is below 0.1
    capsys.readouterr()

    assert run(evaluate) == 0
    printed = capsys.readouterr().out
    assert "Test average MRR :" in printed
    assert "raw" in printed
