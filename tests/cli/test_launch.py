"""What kgdist-launch says of a command line that it cannot mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgdist.base.errors import OptionError
from kgdist.cli.launch import below_another, understood
from kgdist.options.tools import LaunchOptions


def test_a_command_without_quotes_is_asked_for_them() -> None:
    with pytest.raises(OptionError, match="^--command: put all of it into quotes, as the last word"):
        understood(["--num_trainers", "2", "python3", "train.py"])
    assert understood(["python3 train.py"]).command == "python3 train.py"


def test_a_file_of_this_folder_is_not_that_of_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / "parts").mkdir(parents=True)
    (tmp_path / "work" / "parts" / "g.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for file, strayed in (("work/parts/g.json", "work/parts/g.json"), ("parts/g.json", None), ("no.json", None), (None, None)):
        assert below_another(LaunchOptions(command="x", path="work", part_config=file)) == strayed
    assert below_another(LaunchOptions(command="x", path="elsewhere", part_config="work/parts/g.json")) is None
