"""What all commands have in common: help, version, refusals, colours, closed pipes, quiet, JSON."""

from __future__ import annotations

import configparser
import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgdist.base import log
from kgdist.base.log import bar
from kgdist.cli import eval as eval_command
from kgdist.cli import kgdist as umbrella
from kgdist.cli import partition, train
from kgdist.options.commands import TEXTS
from kgdist.version import __version__
from tests.cli.graphs import Bench
from tests.patience import patience

ROOT = Path(__file__).resolve().parents[2]


def scripts() -> dict[str, str]:
    """Command -> module, as pyproject.toml installs them."""
    project = configparser.RawConfigParser(strict=False, allow_no_value=True)
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project.read_string(text[text.index("[project.scripts]") : text.index("[tool.setuptools.dynamic]")])
    return {name: target.strip('" ').partition(":")[0] for name, target in project["project.scripts"].items()}


SCRIPTS = scripts()
INNER = {f"kgdist {name}": f"kgdist.cli.{name}" for name in ("doctor", "completion")}
COMMANDS = pytest.mark.parametrize(("name", "module"), [*SCRIPTS.items(), *INNER.items()], ids=[*SCRIPTS, *INNER])


def call(module: str, *words: str) -> int:
    """Run a command in this process; argparse leaves after --help."""
    try:
        return int(importlib.import_module(module).main(words))
    except SystemExit as leaving:
        return int(leaving.code or 0)


def test_every_command_is_one_of_the_umbrella() -> None:
    assert set(SCRIPTS) - {"kgdist"} == {f"kgdist-{name}" for name in TEXTS if f"kgdist {name}" not in INNER}


@COMMANDS
def test_help_version_and_an_unknown_flag(name: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(module, "--help") == 0
    helped = capsys.readouterr()
    assert helped.out.startswith(f"usage: {name} ") and helped.err == ""
    assert call(module, "--version") == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{name} {__version__}"
    assert call(module, "--versoin") == 2
    refused = capsys.readouterr()
    assert refused.out == "" and refused.err == "error: --versoin: no such option; did you mean --version?\n"


@pytest.mark.parametrize("command", ["train", "tune"])
def test_a_training_of_nothing_is_refused_with_a_first_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"kgdist.cli.{command}") == 2
    refused = capsys.readouterr()
    assert refused.err.startswith("error: say what to ") and "--dataset wordnet --model_name ComplEx" in refused.err


@COMMANDS
def test_closed_pipes_and_colours(name: str, module: str) -> None:
    with contextlib.ExitStack() as stack:
        gone = stack.enter_context(started(module, ["--help"], gone=True))
        terminals: list[tuple[dict[str, str], bool]] = [({"TERM": "xterm"}, True)]
        if name in ("kgdist", "kgdist-train"):  # what a terminal is asks one function, for all of them
            terminals += [({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
        shown_by = [(stack.enter_context(started(module, ["--bad"], **settings)), red) for settings, red in terminals]
        process, _ = gone
        assert process.stderr is not None and process.stderr.read() == b"" and process.wait(60) in (0, 1)
        for (process, terminal), red in shown_by:
            shown = everything(terminal)
            assert process.wait(60) == 2
            assert shown.startswith(b"\x1b[31merror: \x1b[0m--bad" if red else b"error: --bad")
            assert red or b"\x1b" not in shown


@contextlib.contextmanager
def started(module: str, words: list[str], *, gone: bool = False, **environment: str) -> Iterator[tuple[Any, int]]:
    """The command in a process of its own: its stdout a pipe that nobody reads, or its stderr a terminal, which we hold."""
    own = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")} | environment
    ours, theirs = os.pipe() if gone else os.openpty()
    if gone:
        os.close(ours)
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env=own,
        stdin=subprocess.DEVNULL,
        stdout=theirs if gone else subprocess.DEVNULL,
        stderr=subprocess.PIPE if gone else theirs,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait(60)
        if process.stderr is not None:
            process.stderr.close()
        if not gone:
            os.close(ours)


def everything(terminal: int) -> bytes:
    """What is written to a terminal until its last writer has gone."""
    read = b""
    with contextlib.suppress(OSError):  # EIO: nobody writes any more
        while piece := os.read(terminal, 1 << 16):
            read += piece
    return read


def test_the_umbrella(bench: Bench) -> None:
    assert umbrella.main([]) == 0
    shown = bench.out()
    assert all(re.search(rf"^  {name} +\w", shown, re.MULTILINE) for name in TEXTS)
    assert umbrella.main(["--version"]) == 0
    names = [line.split()[0] for line in bench.out().splitlines()]
    assert names == ["kgdist", "Python", "torch", "numpy", "numba", "pyarrow", "pyzmq", "paramiko", "pymetis", "CPU"]
    assert umbrella.main(["train", *bench.flags("--test")]) == 0
    assert "Test average MRR" in bench.out()
    assert umbrella.main(["trian"]) == 2
    assert bench.capsys.readouterr().err == "error: trian: no such command; did you mean train?\n"


def test_asking_for_versions_imports_little() -> None:
    code = "import sys; from kgdist.cli import kgdist; kgdist.main(['--version']); print(*{'torch', 'numba'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize("more", [[], ["--preset"]])
def test_files_that_are_not_there_are_told_before_torch_is_imported(more: list[str], tmp_path: Path) -> None:
    words = ["--dataset", "mine", "--data_path", str(tmp_path), "--format", "raw_udd_hrt", "--data_files", "a.tsv", *more]
    code = f"import sys; from kgdist.cli import train; print(train.main({words}), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60))
    assert done.stdout == "2 False\n" and done.stderr.startswith(f"error: {tmp_path / 'a.tsv'}: no such file")


def the_one_object(bench: Bench) -> dict[str, Any]:
    """What stands on stdout after a command with --json: one line, an object."""
    captured = bench.capsys.readouterr()
    (line,) = captured.out.splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_json_is_one_object_and_words_go_elsewhere(bench: Bench) -> None:
    bench.capsys.readouterr()
    assert train.main(bench.flags("--test", "--valid", "--json", "--neg_sample_size", "5")) == 0
    captured = bench.capsys.readouterr()
    (line,) = captured.out.splitlines()
    trained = json.loads(line)
    run = Path(trained["run"])
    assert trained["interrupted"] is False and trained["test"] == json.loads((run / "test.json").read_text())
    assert "Test average MRR" in captured.err and "rounded up" in captured.err
    assert eval_command.main([str(run), "--json"]) == 0
    assert the_one_object(bench)["test"]["all"] == trained["test"]["all"]
    assert partition.main([*bench.source(), "-k", "2", "--method", "random", "--verify", "--json"]) == 0
    assert sum(the_one_object(bench)["sizes"]["triples"]) == 150
    assert partition.main([*bench.source(), "--verify", "--json"]) == 0
    assert the_one_object(bench)["verified"] is True
    assert train.main(bench.flags("--json", "--lr", "-1")) == 2
    assert bench.out() == ""


def test_quiet_partitioning_says_results_only(bench: Bench) -> None:
    words = [*bench.source(), "-k", "2", "--method", "random", "--dry_run"]
    assert partition.main(words) == 0 and "MiB of memory" in bench.out()
    assert partition.main([*words, "--quiet"]) == 0
    quiet = bench.capsys.readouterr()
    assert "MiB" not in quiet.out and "triples" in quiet.out and quiet.err == ""


def test_bars_are_for_terminals_and_never_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            monkeypatch.setenv("TERM", "xterm")
            for quiet, drawn in ((False, True), (True, False)):
                log.setup(quiet=quiet)
                with bar(total=1, desc="work") as shown:
                    assert shown.disable is not drawn
            log.setup()
            log.log.warning("a warning")
            monkeypatch.setenv("TERM", "dumb")
            log.log.warning("another")
            with bar(total=1, desc="work") as shown:
                assert shown.disable
        assert everything(ours).replace(b"\r", b"") == b"\x1b[33mWARNING:\x1b[0m a warning\nWARNING: another\n"
    finally:
        os.close(ours)
        monkeypatch.undo()
        log.setup()


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_stream_that_is_closed_from_the_start(stream: str) -> None:
    command = f"exec {sys.executable} -m kgdist.cli.train --bad {stream}>&-"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, timeout=patience(60))
    assert done.returncode == 2 and b"Traceback" not in done.stderr
