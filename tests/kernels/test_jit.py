"""The compiler's conditions: late import, a cache that may be missing, a Numba that may be broken, loops that are vectors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgdist.kernels import jit
from tests.patience import patience

SCORE = """
import sys, torch
from kgdist.kernels.comparators import L1_NORM
for _ in range(2):
    print(float(L1_NORM.cross(torch.ones(1, 1, 3), torch.zeros(1, 1, 3))))
print("numba" in sys.modules)
"""
VECTORS = """
import re, numpy as np, torch
from kgdist.kernels import euclid, gradients, jit, l1, loss, matrices, modulus, pairs, query, rows, scaled
from kgdist.base.types import Side
f, x, one, places, square = np.float32, np.zeros((4, 32), np.float32), np.zeros(4, np.float32), np.arange(4), torch.zeros(1, 4, 4)
def new():
    return x.copy()
for module in (l1, modulus):
    module.forward(x, x, square[0].numpy())
    module.backward(x, x, square[0].numpy(), new(), new())
scaled.forward(x, x, places, x, square[0].numpy())
scaled.backward(x, x, places, x, square[0].numpy(), new(), new(), new())
scaled.unit(x, new(), one)
scaled.unit_back(x, one, new())
given = one, x, np.ones((4, 32), np.bool_), one, loss.Rule(f(0), f(1), False, f(1), f(1))
loss.pointwise(*given, one.copy(), new())
loss.pairwise(*given, one.copy(), new())
for kind in query.KINDS:
    relations = new()[:, :16].copy() if kind == "rotate" else new()
    subject = query.VectorQuery(kind, Side.TAIL, x, places, relations, places)
    subject.forward(new())
    subject.backward(x, new(), relations.copy())
for kind in pairs.KINDS:
    subject = pairs.Pairs(kind, x, x, places)
    subject.forward(one)
    subject.backward(one, one, new(), new())
penalty = gradients.Penalty(1.0, 3)
penalty.rows(x, new(), one.copy(), places=places, counts=one)
penalty.gather(x, places, x, new(), one.copy())
penalty.settle(x, places, 0, new(), one.copy())
q, c = torch.rand(1, 4, 32), torch.rand(1, 4, 32)
euclid.slopes(q, c, euclid.scores(q, c), square)
table, ids = torch.zeros(4, 32), torch.arange(4)
rows.adagrad_rows(table, torch.zeros(4), ids, table.clone(), 0.1)
rows.gather_rows(table, ids)
for transpose in (False, True):
    subject = matrices.Matrices(np.zeros((4, 32, 32), f), places, transpose=transpose)
    subject.forward(x, places, new())
    subject.backward(x, places, x, new(), np.zeros((4, 32, 32), f))
for module in (l1, modulus, scaled, loss, query, pairs, gradients, euclid, rows, matrices):
    for name, kernel in vars(module).items():
        if getattr(kernel, "signatures", ()):
            codes = kernel.inspect_llvm().values()
            loops = min(len(re.findall(r"^vector\\.body\\d*:", code, re.MULTILINE)) for code in codes)
            copies = all("llvm.memcpy" in code for code in codes)
            print(module.__name__.rpartition(".")[2] + "." + name, loops, bool(jit.promise()), copies)
"""
LOOPS = {  # that matter: those over the numbers of a row, or the scores of a positive
    "l1.forward": 1,
    "l1._backward": 1,
    "modulus.forward": 1,
    "modulus._backward": 1,
    "scaled.forward": 1,
    "scaled._backward": 1,
    "scaled.unit": 2,
    "scaled.unit_back": 2,
    "loss.pointwise": 5,
    "loss.pairwise": 4,
    "query._plain_forward": 2,
    "query._plain_backward": 2,
    "query._turn": 1,
    "query._halves_forward": 2,
    "query._halves_backward": 3,
    "pairs._forward": 4,
    "pairs._backward": 3,
    "pairs._modulus_backward": 1,
    "gradients._rows": 3,
    "gradients._gather": 4,
    "gradients._settle": 5,
    "euclid._distances": 1,
    "euclid._find": 1,
    "euclid._norms": 1,
    "euclid._weights": 1,
    "rows._adagrad": 2,
    "matrices._forward": 2,
    "matrices._backward_rows": 2,
    "matrices._backward_matrices": 2,
}


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "KGDIST_KERNELS")}
    env = kept | {"PYTHONPATH": os.fspath(Path(__file__).resolve().parents[2])} | environment
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=patience(100), check=False
    )


def test_numba_is_imported_only_when_a_kernel_is_needed() -> None:
    code = """
import importlib, pkgutil, sys, kgdist.kernels
first = [importlib.import_module("kgdist.kernels." + name) for name in ("adjacency", "random", "hashing")]
print("torch" in sys.modules)  # data are read and split without it
found = [importlib.import_module("kgdist.kernels." + module.name) for module in pkgutil.iter_modules(kgdist.kernels.__path__)]
print(len(found) > 10, "numba" in sys.modules)
"""
    assert run(code).stdout == "False\nTrue False\n"


def test_the_first_call_puts_the_compiled_loops_of_a_file_in_the_places_of_their_names() -> None:
    """So later calls cost what Numba's do. Loops that were imported by name before, and threads that come first together, too."""
    code = """
import threading, numpy as np
from kgdist.kernels import adjacency, jit, random, rows
early, failures = random.mix, []
def draw():
    try:
        assert len(random.uniform_ids(1, 2, 3, 4, 5)) == 4
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=draw) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(60)
waiting = lambda module: [name for name, each in vars(module).items() if isinstance(each, jit.Loop)]
print(failures, waiting(random), isinstance(early, jit.Loop), early(np.uint64(1)) == random.mix(np.uint64(1)))
print(len(waiting(adjacency)) > 5, "mix" in waiting(adjacency), len(waiting(rows)) > 3)
"""
    assert run(code).stdout == "[] [] True True\nTrue True True\n"


def test_the_cache_lies_in_the_users_cache_folder(tmp_path: Path) -> None:
    result = run(SCORE, XDG_CACHE_HOME=os.fspath(tmp_path))
    assert (result.returncode, result.stdout) == (0, "-3.0\n-3.0\nTrue\n"), result.stderr
    assert list((tmp_path / "kgdist" / "numba").rglob("*.nbi"))


@pytest.mark.slow
def test_compiling_is_told_once_and_only_when_it_happens(tmp_path: Path) -> None:
    told = "import logging; logging.basicConfig(level='INFO')\n" + SCORE
    first, second = (run(told, XDG_CACHE_HOME=os.fspath(tmp_path)).stderr for _ in range(2))
    assert first.count("compiling the loops of this run, once for this machine") == 1 and "compiling" not in second
    (tmp_path / "file").write_text("")
    assert "again each time, because" in run(told, XDG_CACHE_HOME=os.fspath(tmp_path / "file")).stderr


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(SCORE, XDG_CACHE_HOME=os.fspath(tmp_path / "file"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "-3.0\n-3.0\nTrue\n", "")


@pytest.mark.slow
def test_a_full_disk_costs_the_cache_and_nothing_else(tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))\n" + SCORE
    result = run(full, XDG_CACHE_HOME=os.fspath(tmp_path))
    assert (result.returncode, result.stdout) == (0, "-3.0\n-3.0\nTrue\n"), result.stderr


def test_numba_that_somebody_has_imported_before_compiles_the_same(tmp_path: Path) -> None:
    """torch_geometric imports it: its loops would round otherwise and be kept elsewhere."""
    intel = "from kgdist.kernels import jit; jit.processor = lambda: ('Intel(R) Xeon(R)', frozenset({'avx512f'}))\n"
    told = "\nimport numba; print(numba.config.CPU_FEATURES[-16:], numba.config.CACHE_DIR)"
    result = run("import numba\n" + intel + SCORE + told, XDG_CACHE_HOME=os.fspath(tmp_path))
    assert result.stdout.splitlines()[-1] == f",-prefer-256-bit {tmp_path / 'kgdist' / 'numba'}", result.stderr


def test_a_signal_waits_for_the_loop_that_is_being_compiled(tmp_path: Path) -> None:
    """It is raised right after, once, and the loop is whole."""
    code = """
import os, signal
import numpy as np
from kgdist.kernels import jit, random
from kgdist.runtime.interrupt import Interrupts
jit.load()
from numba.core import event
class Press(event.Listener):
    def on_start(self, event): os.kill(os.getpid(), signal.SIGINT)
    def on_end(self, event): print("compiled")
event.register("numba:compile", Press())
with Interrupts() as interrupts, interrupts.immediate():
    try:
        random.uniform_ids(1, 2, 3, 4, 5)
        print("nothing")
    except KeyboardInterrupt:
        print("interrupted", jit.compiling.depth)
"""
    result = run(code, XDG_CACHE_HOME=os.fspath(tmp_path))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == "interrupted 0" and "compiled" in lines[:-1] and "nothing" not in lines


@pytest.mark.slow
def test_without_numba_one_line_says_what_to_do() -> None:
    """torch still scores where it is asked to."""
    broken = "import sys; sys.modules['numba'] = None" + SCORE
    result = run(broken)
    assert result.returncode == 1 and "KgdistError: Numba, which compiles the loops, cannot be imported" in result.stderr
    assert result.stderr.rstrip().endswith("pip install --force-reinstall numba llvmlite")
    assert run(broken, KGDIST_KERNELS="torch").stdout == "-3.0\n-3.0\nTrue\n"  # the bar to its import


@pytest.mark.slow
def test_intels_wide_vectors_are_asked_for_and_the_users_word_counts() -> None:
    intel = "from kgdist.kernels import jit; jit.processor = lambda: ('Intel(R) Xeon(R)', frozenset({'avx512f'}))\n"
    features = "\nimport numba; print(str(numba.config.CPU_FEATURES)[-16:])"
    assert run(intel + SCORE + features).stdout == "-3.0\n-3.0\nTrue\n,-prefer-256-bit\n"
    assert run(intel + SCORE + features, NUMBA_CPU_FEATURES="+sse2").stdout.endswith("\n+sse2\n")
    assert not jit.wide_vectors("AMD EPYC", frozenset({"avx512f"})) and not jit.wide_vectors(
        "Intel(R) Xeon(R)", frozenset({"avx2"})
    )


def test_torch_can_be_asked_for() -> None:
    assert run(SCORE, KGDIST_KERNELS="torch").stdout == "-3.0\n-3.0\nFalse\n"


def test_a_word_that_is_no_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "WANTED", "cuda")
    with pytest.raises(ValueError, match="numba or torch"):
        jit.compiled()


@pytest.mark.slow
def test_the_loops_are_vectors(tmp_path: Path) -> None:
    """A compiler that does not know that rows are apart does one number at a time, without a word and ten times slower."""
    (tmp_path / "file").write_text("")  # no cache: compiled code that was cached has no text to look at
    result = run(VECTORS, XDG_CACHE_HOME=os.fspath(tmp_path / "file"))
    assert result.returncode == 0, result.stderr
    found = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert found["rows.copy_rows"][2] == "True"  # its loop became a copy
    assert all(promised == "True" for _, promised, _ in found.values())
    loops = {name: int(found[name][0]) for name in LOOPS}
    assert all(loops[name] >= least for name, least in LOOPS.items()), loops
