"""The compiler's conditions: late import, a cache that may be missing, a Numba that may be missing, loops that are vectors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgdist.kernels import choice
from tests.patience import patience

SCORE = """
import sys, torch
from kgdist.kernels.compare import L1_NORM
for _ in range(2):
    print(float(L1_NORM.cross(torch.ones(1, 1, 3), torch.zeros(1, 1, 3))))
print("numba" in sys.modules)
"""
VECTORS = """
import re, numpy as np, torch
from kgdist.kernels import bilinear, euclid_loops, jit, l1, loss, modulus, pairs, query, rows, uses
from kgdist.base.types import Side
f, x, one, places, square = np.float32, np.zeros((4, 32), np.float32), np.zeros(4, np.float32), np.arange(4), torch.zeros(1, 4, 4)
def new():
    return x.copy()
for module in (l1, modulus):
    module.forward(x, x, square[0].numpy())
    module.backward(x, x, square[0].numpy(), new(), new())
given = one, x, np.ones((4, 32), np.bool_), one, f(0), f(1), False, f(1)
loss.pointwise(*given, f(1), one.copy(), new(), new()[0])
loss.pairwise(*given, one.copy(), new())
for kind in query.KINDS:
    relations = new()[:, :16].copy() if kind == "rotate" else new()
    subject = query.VectorQuery(kind, Side.TAIL, x, places, relations, places)
    subject.forward(new())
    subject.backward(x, new(), relations.copy())
for kind in pairs.KINDS:
    pairs.forward(kind, x, x, places, one)
    pairs.backward(kind, x, x, places, one, one, new(), new())
uses.rows(x, np.arange(len(x)), new(), one, f(1), 3, one.copy())
uses.gather(x, places, x, f(1), 3, new(), one.copy())
uses.settle(x, places, 0, f(1), 3, new(), one.copy())
euclid_loops.distances(square, torch.zeros(1, 4, 32), torch.zeros(1, 4, 32), 0.0, 1.0)
euclid_loops.weights(square, square, torch.zeros(1, 4, 32), torch.zeros(1, 4, 32), 0.0)
table, ids = torch.zeros(4, 32), torch.arange(4)
rows.adagrad(table, torch.zeros(4), ids, table.clone(), None, 0.1, 1e-10)
rows.gather(table, ids, table.clone())
for transpose in (False, True):
    subject = bilinear.Matrices(np.zeros((4, 32, 32), f), places)
    subject.forward(x, places, new(), transpose=transpose)
    subject.backward(x, places, x, new(), np.zeros((4, 32, 32), f), transpose=transpose)
for module in (l1, modulus, loss, query, pairs, uses, euclid_loops, rows, bilinear):
    for name, kernel in vars(module).items():
        if getattr(kernel, "signatures", ()):
            codes = kernel.inspect_llvm().values()
            loops = min(len(re.findall(r"^vector\\.body\\d*:", code, re.MULTILINE)) for code in codes)
            copies = all("llvm.memcpy" in code for code in codes)
            print(module.__name__.rpartition(".")[2] + "." + name, loops, bool(jit.DISJOINT), copies)
"""
LOOPS = {  # that matter: those over the numbers of a row, or the scores of a positive
    "l1.forward": 1,
    "l1._backward": 1,
    "modulus.forward": 1,
    "modulus._backward": 1,
    "loss.pointwise": 5,
    "loss.pairwise": 2,
    "query._plain_forward": 2,
    "query._plain_backward": 2,
    "query._turn": 1,
    "query._halves_forward": 2,
    "query._halves_backward": 3,
    "pairs._forward": 4,
    "pairs._backward": 3,
    "pairs._modulus_backward": 1,
    "uses.rows": 3,
    "uses.gather": 4,
    "uses.settle": 5,
    "euclid_loops._distances": 1,
    "euclid_loops._find": 1,
    "euclid_loops._norms": 1,
    "euclid_loops._weights": 1,
    "rows._adagrad": 2,
    "bilinear._forward": 2,
    "bilinear._backward_rows": 2,
    "bilinear._backward_matrices": 2,
}


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "KGDIST_KERNELS")}
    env = kept | {"PYTHONPATH": os.fspath(Path(__file__).resolve().parents[2])} | environment
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=patience(100), check=False
    )


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
    monkeypatch.setattr(choice, "WANTED", "cuda")
    with pytest.raises(ValueError, match="numba or torch"):
        choice.numba()


def test_the_loops_are_vectors(tmp_path: Path) -> None:
    """A compiler that does not know that rows are apart does one number at a time, without a word and ten times slower."""
    (tmp_path / "file").write_text("")  # no cache: compiled code that was cached has no text to look at
    result = run(VECTORS, XDG_CACHE_HOME=os.fspath(tmp_path / "file"))
    assert result.returncode == 0, result.stderr
    found = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert found["rows._gather"][2] == "True"  # its loop became a copy
    assert all(promised == "True" for _, promised, _ in found.values())
    loops = {name: int(found[name][0]) for name in LOOPS}
    assert all(loops[name] >= least for name, least in LOOPS.items()), loops
