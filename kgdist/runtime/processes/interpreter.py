"""How a Python process of ours is started: what it is given to run, and its environment."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def program(module: str) -> str:
    """What `python -c` is given to run `main` of a module of ours.

    `-m` would look into the working folder first, where the user's own queue.py may lie, or another kgdist; on a machine reached
    over SSH that is the home folder. PYTHONSAFEPATH forbids it from Python 3.11 on only. `-c` makes the same place an empty first
    entry of the path, which is gone before anything is imported. A library that is missing is told in one line, without the
    traceback.
    """
    path = "sys.path[:] = filter(None, sys.path)"
    return f"import sys; {path}; sys.tracebacklimit = 0; from {module} import main; del sys.tracebacklimit; main()"


def environment(threads: int) -> dict[str, str]:
    """The environment of a process: `threads` intra-op threads, and kgdist found where this process has found it."""
    changed = os.environ | dict.fromkeys(THREADS, str(threads))
    folder = os.fspath(Path(__file__).resolve().parents[3])
    if folder not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):  # there every Python looks by itself
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    return changed
