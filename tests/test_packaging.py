"""What a user installs: the wheel has the graph that ships with it, its types and its terms, and every command starts."""

from __future__ import annotations

import configparser
import importlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.patience import patience

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The package, built from a copy, for building writes into the source tree."""
    if not all(map(importlib.util.find_spec, ("pip", "setuptools"))):
        pytest.skip("pip and setuptools are not both here to build a wheel with")
    source, out = tmp_path_factory.mktemp("source") / "kgdist", tmp_path_factory.mktemp("wheel")
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "kgdist", source / "kgdist", ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(out),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(100))
    assert done.returncode == 0, done.stdout + done.stderr
    return zipfile.ZipFile(next(out.glob("kgdist-*.whl")))


def test_the_wheel_has_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    there = {str(p.relative_to(ROOT)) for p in (ROOT / "kgdist").rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    packed = {name for name in wheel.namelist() if name.startswith("kgdist/")}
    assert {name for name in there if not Path(name).name.startswith(".")} == packed
    assert {"kgdist/py.typed", "kgdist/data/builtin/wordnet/wordnet.zip", "kgdist/data/builtin/wordnet/LICENSE"} <= packed


def test_every_command_of_the_wheel_exists(wheel: zipfile.ZipFile) -> None:
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(next(n for n in wheel.namelist() if n.endswith("entry_points.txt"))).decode())
    assert len(scripts["console_scripts"]) >= 2
    for name, target in scripts["console_scripts"].items():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), name
