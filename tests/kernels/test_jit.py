"""The compiler's conditions: late import, a cache that may be missing, a Numba that may be missing, loops that are vectors."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kgdist.kernels import choice

SCORE = """
import sys, torch
from kgdist.kernels.compare import L1_NORM
for _ in range(2):
    print(float(L1_NORM.cross(torch.ones(1, 1, 3), torch.zeros(1, 1, 3))))
print("numba" in sys.modules)
"""
VECTORS = """
import re, numpy as np
from kgdist.kernels import jit, l1, modulus
q, grad = np.zeros((4, 32), np.float32), np.zeros((4, 4), np.float32)
for module in (l1, modulus):
    module.forward(q, q, grad)
    module.backward(q, q, grad, q.copy(), q.copy())
    for kernel in (module.forward, module._backward):
        (assembly,) = kernel.inspect_asm().values()
        print(len(re.findall(r"(?:add|sub)ps", assembly)), bool(jit.DISJOINT))
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "KGDIST_KERNELS")}
    env = kept | {"PYTHONPATH": os.fspath(Path(__file__).resolve().parents[2])} | environment
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100, check=False)


def test_numba_is_imported_only_when_a_kernel_is_needed() -> None:
    code = "import sys; from kgdist.kernels import adagrad, compare, rank, sample; print('numba' in sys.modules)"
    assert run(code).stdout == "False\n"


def test_the_cache_lies_in_the_users_cache_folder(tmp_path: Path) -> None:
    result = run(SCORE, XDG_CACHE_HOME=os.fspath(tmp_path))
    assert (result.returncode, result.stdout) == (0, "-3.0\n-3.0\nTrue\n"), result.stderr
    assert list((tmp_path / "kgdist" / "numba").rglob("*.nbi"))


def test_compiling_is_told_once_and_only_when_it_happens(tmp_path: Path) -> None:
    told = "import logging; logging.basicConfig(level='INFO')\n" + SCORE
    first, second = (run(told, XDG_CACHE_HOME=os.fspath(tmp_path)).stderr for _ in range(2))
    assert first.count("compiling the loops of this run, once for this machine") == 1 and "compiling" not in second
    (tmp_path / "file").write_text("")
    assert "anew each time, for" in run(told, XDG_CACHE_HOME=os.fspath(tmp_path / "file")).stderr


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(SCORE, XDG_CACHE_HOME=os.fspath(tmp_path / "file"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "-3.0\n-3.0\nTrue\n", "")


def test_without_numba_torch_does_the_work_and_says_so_once() -> None:
    result = run("import sys, logging; logging.basicConfig(); sys.modules['numba'] = None" + SCORE)
    assert (result.returncode, result.stdout) == (0, "-3.0\n-3.0\nTrue\n"), result.stderr  # the bar to its import
    assert result.stderr.count("Numba cannot be used") == 1


def test_torch_can_be_asked_for() -> None:
    assert run(SCORE, KGDIST_KERNELS="torch").stdout == "-3.0\n-3.0\nFalse\n"


def test_a_word_that_is_no_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGDIST_KERNELS", "cuda")
    with pytest.raises(ValueError, match="numba or torch"):
        choice.numba()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 assembly")
def test_the_loops_are_vectors(tmp_path: Path) -> None:
    """A compiler that does not know that rows are apart does one number at a time, without a word and ten times slower."""
    (tmp_path / "file").write_text("")  # no cache: compiled code that was cached has no assembly to look at
    result = run(VECTORS, XDG_CACHE_HOME=os.fspath(tmp_path / "file"))
    assert result.returncode == 0, result.stderr
    found = [line.split() for line in result.stdout.splitlines()]
    assert len(found) == 4
    assert all(promised == "True" for _, promised in found)
    assert all(int(vectors) >= 4 for vectors, _ in found), found
