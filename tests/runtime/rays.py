"""A real cluster of Ray on this host: a raylet for each node, in processes of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.patience import patience

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "7" * 64}  # as is Ray's default by now; its own file would be the user's
MARK = {"KGDIST_TEST_CLUSTER": uuid.uuid4().hex}
CODE = """
import sys
from ray.cluster_utils import Cluster
folder, *cpus = sys.argv[1:]
made = Cluster(initialize_head=True, head_node_args={"num_cpus": int(cpus[0]), "include_dashboard": False, "temp_dir": folder})
for each in cpus[1:]:
    made.add_node(num_cpus=int(each))
print(made.address, flush=True)
sys.stdin.read()
made.shutdown()
"""


@contextlib.contextmanager
def cluster_of(*cpus: int) -> Iterator[str]:
    """The address of a Ray that somebody has started, of nodes with so many CPUs; it is stopped with the block.

    All that it starts is of `processes`, which are of this process's clusters alone: others run beside it.
    """
    folder, usual = tempfile.mkdtemp(prefix="r-"), Path(tempfile.gettempdir()) / "ray"
    made = not usual.exists()
    usual.mkdir(exist_ok=True)  # which Ray expects
    command = [sys.executable, "-c", CODE, folder, *map(str, cpus)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | TOKEN | MARK,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(patience(60))
    shutil.rmtree(folder, ignore_errors=True)
    if made:
        shutil.rmtree(usual)


def processes(start: bytes) -> list[int]:
    """Those of a cluster that this process has made whose command line begins so."""
    found, marked = [], "=".join(*MARK.items()).encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if (folder / "cmdline").read_bytes().startswith(start) and marked in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found
