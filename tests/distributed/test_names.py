"""Names of DGL's distributed API that are modules there, as attributes and in `from ... import ...`."""

from __future__ import annotations

import subprocess
import sys

import kgdist
from tests.patience import patience


def test_modules_of_dgl_2_are_importable() -> None:
    from kgdist.distributed.nn import DistEmbedding  # type: ignore[import-not-found]
    from kgdist.distributed.optim import SparseAdagrad, SparseAdam, SparseSGD  # type: ignore[import-not-found]

    own = kgdist.distributed
    assert (DistEmbedding, SparseAdagrad) == (own.DistEmbedding, own.SparseAdagrad)
    assert (own.nn.DistEmbedding, own.optim.SparseAdam, own.optim.SparseSGD) == (DistEmbedding, SparseAdam, SparseSGD)


def test_all_names_are_there() -> None:
    assert all(getattr(kgdist.distributed, name) is not None for name in kgdist.distributed.__all__)


def test_who_looks_at_all_modules_imports_nothing() -> None:
    code = "import sys, inspect, kgdist.distributed.optim; inspect.getmodule(inspect); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(60), check=True)
    assert done.stdout == "False\n"
