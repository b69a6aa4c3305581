"""kgdist doctor finds what is there, says what is not, and the exit code tells which of it is needed."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from kgdist.base import machine
from kgdist.cli import completion
from kgdist.cli import doctor as command
from kgdist.kernels import jit
from kgdist.runtime import doctor


def test_a_machine_that_runs_these_tests_is_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file = tmp_path / "ip_config.txt"
        file.write_text(f"127.0.0.1 {port} 1\n192.0.2.7 30000 2\n")
        assert command.main(["--ip_config", str(file), "--json"]) == 1  # but for the port
        report = json.loads(capsys.readouterr().out)
        assert command.main([]) == 0
    found = {finding["name"]: finding for finding in report["findings"]}
    assert [name for name, finding in found.items() if finding["state"] == "problem"] == ["machine_0 (127.0.0.1)"]
    assert f"{port} is in use" in found["machine_0 (127.0.0.1)"]["found"] and report["ok"] is False
    assert "another machine" in found["machine_1 (192.0.2.7)"]["found"]
    assert set(doctor.CHECKS) <= set(found)
    shown = capsys.readouterr()
    assert "ready: nothing required is missing" in shown.out and shown.err == ""
    advised = [finding for finding in report["findings"] if finding["advice"]]
    assert all(finding["state"] != "ok" for finding in advised)
    assert command.main(["--quiet"]) == 0
    assert not any(line.startswith("ok") for line in capsys.readouterr().out.splitlines())


def test_a_bad_file_of_machines_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.main(["--ip_config", str(tmp_path / "nothing")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name in ("pyzmq", "tensorboard", "shtab") else "1")
    packages, extras = doctor.look("packages"), doctor.look("extras")
    assert packages.state == "problem" and packages.found.endswith("not installed: pyzmq") and "pip install" in packages.advice
    assert extras.state == "note" and extras.found.endswith("; without tensorboard, shtab")
    assert extras.advice == "pip install 'kgdist[tensorboard,completion]' for all"


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.look("compiled loops").state == ("ok" if jit.cached() else "note")
    monkeypatch.setattr(jit, "cached", lambda: False)
    assert "NUMBA_CACHE_DIR" in doctor.look("compiled loops").advice


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: (256, 4096))
    finding = doctor.look("open files")
    assert (finding.state, finding.found) == ("note", "256 (at most 4096)") and "ulimit" in finding.advice


def test_a_check_that_fails_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "processor", lambda: 1 // 0)
    findings = {finding.name: finding for finding in doctor.examine()}
    assert findings["CPU"].state == "problem" and findings["CPU"].found.startswith("ZeroDivisionError: ")
    assert "report it" in findings["CPU"].advice and findings["memory"].state in ("ok", "note")


def test_a_container_with_little_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("500000000\n")
    (tmp_path / "memory.current").write_text("100000000\n")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    finding = doctor.look("memory")
    assert finding.state == "note" and finding.found == "0.4 GB free of the 0.5 GB that the container may take"
    (tmp_path / "memory.max").write_text("max\n")
    assert "container" not in doctor.look("memory").found


def test_what_a_processor_says_of_itself(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: A fine CPU\nflags\t\t: fpu avx2 avx512f\n\nprocessor\t: 1\nflags\t: none\n")
    assert machine.processor(file) == ("A fine CPU", frozenset({"fpu", "avx2", "avx512f"}))
    file.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert machine.processor(file)[1] == {"fp", "asimd"}
    assert machine.processor(tmp_path / "nothing")[1] == frozenset()


def test_completion_needs_its_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert completion.main(["bash"]) == 2
    assert "pip install 'kgdist[completion]'" in capsys.readouterr().err
