"""A real cluster of Ray on this host: a raylet for each node, in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgdist.runtime.ports import free_port
from tests.family import alive, descendants
from tests.patience import patience

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "7" * 64}  # as is Ray's default by now; its own file would be the user's
HEAD = "ray.head.default"  # as that kind of nodes is called
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
    own = Path(folder) / "tmp"  # where processes that Ray ends without a word leave files
    (own / "ray").mkdir(parents=True)
    command = [sys.executable, "-c", CODE, folder, *map(str, cpus)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | TOKEN | MARK | {"TMPDIR": str(own)},
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            family = descendants(process.pid)
            process.stdin.close()
            process.wait(patience(60))
            end(family)  # it ends them in good order, but where a test has killed what that takes
    shutil.rmtree(folder, ignore_errors=True)
    if made:
        shutil.rmtree(usual)


HOLD = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
group = ray.util.placement_group([{"CPU": 1}] * int(sys.argv[2]))
ray.get(group.ready())
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(address: str, cpus: int) -> Iterator[subprocess.Popen[str]]:
    """Somebody else's program that holds so many CPUs of a cluster, until it is killed or the block ends."""
    env = os.environ | TOKEN
    command = [sys.executable, "-c", HOLD, address, str(cpus)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and "held" in process.stdout.read(5)
            yield process
        finally:
            process.kill()


def growing(most: int, address: str) -> dict[str, Any]:
    """Settings of an autoscaler whose nodes are raylets on this host: none at first besides the head at `address`, and `most` at
    most."""
    nodes = {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": most}
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    provider = {"type": "fake_multinode", "use_node_id_as_ip": True, "gcs_address": address}
    provider |= {"disable_node_updaters": True, "disable_launch_config_check": True}
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "kgdist",
        "max_workers": most,
        "provider": provider,
        "available_node_types": {HEAD: head, "machine": nodes},
        "head_node_type": HEAD,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 1,
        **{key: {} for key in ("auth", "docker", "file_mounts")},
        **{key: [] for key in ("cluster_synced_files", "rsync_exclude", "rsync_filter", *(f"{each}_commands" for each in lists))},
        "file_mounts_sync_continuously": False,
    }


@contextlib.contextmanager
def started_by_hand(*cpus: int, grows: int = 0) -> Iterator[str]:
    """The address of a Ray whose nodes `ray start` has started, one after another; with `grows`, its autoscaler adds up to so
    many nodes of one CPU, as in `ray.cluster_utils.AutoscalingCluster`, which would end every Ray of this host first."""
    folder = Path(tempfile.mkdtemp(prefix="r-"))
    port = free_port(range(10001, 20000))  # which Ray gives to workers
    head = ["--head", "--port", str(port), "--num-cpus", str(cpus[0]), "--include-dashboard", "false", "--temp-dir", str(folder)]
    if grows:
        (folder / "autoscaling.json").write_text(json.dumps(growing(grows, f"127.0.0.1:{port}")))
        head.append(f"--autoscaling-config={folder / 'autoscaling.json'}")
    env = os.environ | TOKEN | MARK | {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
    nodes = [head, *(["--address", f"127.0.0.1:{port}", "--num-cpus", str(each)] for each in cpus[1:])]
    try:
        for words in nodes:
            ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats", *words]
            subprocess.run(ray, env=env, check=True, capture_output=True, timeout=patience(90))
        yield f"127.0.0.1:{port}"
    finally:
        end([pid for own in processes(b"") for pid in (own, *descendants(own))])  # titles have overwritten some marks
        shutil.rmtree(folder, ignore_errors=True)


def end(family: list[int]) -> None:
    """Kill what is left of these and of all `processes`."""
    deadline = time.monotonic() + patience(30)
    while (left := {*filter(alive, family), *processes(b"")}) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def processes(start: bytes) -> list[int]:
    """Those of a cluster that this process has made whose command line begins so."""
    found, marked = [], "=".join(*MARK.items()).encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if (folder / "cmdline").read_bytes().startswith(start) and marked in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found
