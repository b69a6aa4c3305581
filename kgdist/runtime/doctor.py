"""Findings: whether this machine has what kgdist needs or can use, each with advice in words that one can act on.

Nothing is changed here but for compiled loops, which are kept for the next run. `kgdist.cli.doctor` prints the findings.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import mmap
import os
import platform
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

from kgdist.base.errors import one_line
from kgdist.base.files import free_bytes
from kgdist.base.machine import free_memory, memory_limit, processor, usable_cores
from kgdist.runtime.ip_config import Machine, read_cluster
from kgdist.version import __version__

STANDS_ON = ("torch", "numpy", "numba", "pyarrow", "pyzmq", "paramiko", "pymetis")
ROOM = 1 << 30  # bytes; less than that, of memory or on a disk, is said
FILES = 1024  # descriptors: a server has one for each trainer of the job, and some to spare
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*?(?:;.*extra == [\"']([^\"']+)[\"'])?$")

Check = Callable[[], tuple[str, str]]  # -> what it found, and advice where there is something to do; raises for a problem


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found about one thing. `advice` is empty when there is nothing to do."""

    name: str
    state: str  # ok, note (kgdist can do without it), problem (it cannot)
    found: str
    advice: str = ""


def version_of(package: str) -> str | None:
    """The installed version of a package, which is not imported; None when it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> list[str]:
    """kgdist and of the libraries it uses, a line each."""
    try:
        import zmq

        library = f" (libzmq {zmq.zmq_version()})"
    except ImportError:
        library = " (cannot be loaded)"
    lines = [f"kgdist {__version__}", f"Python {platform.python_version()} on {platform.system()} {platform.release()}"]
    lines += [f"{name} {version_of(name) or 'not installed'}{library * (name == 'pyzmq')}" for name in STANDS_ON]
    return [*lines, f"CPU {processor()[0]}, {usable_cores()} of {os.cpu_count()} cores to use"]


def examine(ip_config: str | None = None) -> list[Finding]:
    """All findings, in the order of what a training meets first. `ip_config`: machines whose ports are tried as well.

    Raises DataError when that file cannot be used.
    """
    machines = read_cluster(ip_config) if ip_config is not None else []
    return [look(name) for name in CHECKS] + [ports(machine) for machine in machines]


def look(name: str) -> Finding:
    """What one of CHECKS finds. That it fails itself is a problem, too, which hides none of the others."""
    try:
        found, advice = CHECKS[name]()
    except Exception as error:
        mend = MENDS.get(name, "this should work; please report it")
        return Finding(name, "problem", one_line(f"{type(error).__name__}: {error}"), mend)
    return Finding(name, "note" if advice else "ok", found, advice)


def _requirements() -> Iterator[tuple[str, str | None]]:
    """(package, extra or None) of everything that kgdist says it needs or can use."""
    found = (_REQUIREMENT.match(line) for line in importlib.metadata.requires("kgdist") or ())
    yield from ((match[1], match[2]) for match in found if match and match[2] not in ("dev", "docs"))


def _packages() -> tuple[str, str]:
    if missing := sorted({name for name, extra in _requirements() if extra is None and version_of(name) is None}):
        raise ImportError(f"not installed: {', '.join(missing)}")
    return ", ".join(f"{name} {version_of(name)}" for name in STANDS_ON), ""


def _extras() -> tuple[str, str]:
    """What kgdist can do without."""
    found = [(name, extra, version_of(name)) for name, extra in _requirements() if extra is not None]
    there = ", ".join(dict.fromkeys(f"{name} {version}" for name, _, version in found if version is not None))  # ray is of three
    missing = [(name, extra) for name, extra, version in found if version is None]
    if not missing:
        return there, ""
    names, wanted = dict.fromkeys(name for name, _ in missing), ",".join(dict.fromkeys(extra for _, extra in missing))
    return f"{there or 'none'}; without {', '.join(names)}", f"pip install 'kgdist[{wanted}]' for all"


def _torch() -> tuple[str, str]:
    """Which build there is, and whether it sees the GPUs that the system has."""
    import torch

    found = f"{torch.__version__}, for " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return f"{found}; GPUs: {', '.join(names)}", ""
    if not (there := len(list(Path("/dev").glob("nvidia[0-9]*")))):
        return f"{found}; no GPU here", ""
    driver = "look at nvidia-smi: the driver may be too old for this build, or CUDA_VISIBLE_DEVICES hides the GPU"
    build = "install the CUDA build of torch to train with --gpu (pytorch.org, Get started)"
    return f"{found}; {there} GPUs are there, but torch cannot use them", driver if torch.version.cuda else build


def _cpu() -> tuple[str, str]:
    (name, flags), cores, there = processor(), usable_cores(), os.cpu_count() or 1
    sets = {"AVX2": "avx2", "AVX-512": "avx512f", "bfloat16": "avx512_bf16", "AMX": "amx_bf16"}
    has = ", ".join(shown for shown, flag in sets.items() if flag in flags) or "no vector units that Linux reports"
    kept = " (taskset or the container's quota keeps the others from this process)" if cores < there else ""
    slow = platform.machine() in ("x86_64", "AMD64") and flags and "avx2" not in flags
    advice = "without AVX2 training is several times slower; a virtual machine can often pass it on"
    return f"{name}: {has}; {cores} of {there} cores to use{kept}", advice if slow else ""


def _memory() -> tuple[str, str]:
    free, limit = free_memory(), memory_limit()
    if free is None:
        return "this system does not tell how much is free", ""
    found = f"{free / 1e9:.1f} GB free" + (f" of the {limit / 1e9:.1f} GB that the container may take" if limit else "")
    return found, "close other programs, or take a smaller --hidden_dim" if free < ROOM else ""


def _kernels() -> tuple[str, str]:
    """Whether loops compile, and whether the compiled code can be kept."""
    import numpy as np

    from kgdist.kernels import jit
    from kgdist.kernels.hashing import unique

    found, places = unique(np.array([7, 3, 7], np.int64))
    if found.tolist() != [7, 3] or places.tolist() != [0, 1, 0]:
        raise RuntimeError("a compiled loop gives wrong results")
    folder = os.environ["NUMBA_CACHE_DIR"]
    if jit.cached():
        return f"compiled, and kept in {folder}", ""
    advice = "set NUMBA_CACHE_DIR to a folder that can be written, or each run compiles for half a minute"
    return f"compiled, but {folder} cannot be written", advice


def _shared_memory() -> tuple[str, str]:
    """Whether processes can share memory."""
    from kgdist.kvstore.shared_memory import SharedArray

    shared = SharedArray.allocate((mmap.PAGESIZE,), "u1")
    shared.array[:] = 1
    shared.close()
    return "memfd" if hasattr(os, "memfd_create") else "files without a name", ""


def _disk() -> tuple[str, str]:
    """Room, and the right to write, in the folder where runs go."""
    folder, free = Path.cwd(), free_bytes(Path.cwd())
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder}: cannot be written", "name another folder with --save_path and --data_path"
    advice = "a large run takes several GB: make room, or name another --save_path"
    return f"{folder}: {free / 1e9:.1f} GB free", advice if free < ROOM else ""


def _open_files() -> tuple[str, str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = ["unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in (soft, hard)]
    few = soft != resource.RLIM_INFINITY and soft < FILES
    return f"{shown[0]} (at most {shown[1]})", f"ulimit -n {FILES} before a job on several machines" if few else ""


def _ssh_keys() -> tuple[str, str]:
    """What starting processes on other machines takes."""
    has = ["an agent (ssh-add -l shows its keys)"] if os.environ.get("SSH_AUTH_SOCK") else []
    has += [f"key file {path.stem}" for path in sorted((Path.home() / ".ssh").glob("id_*.pub"))]
    advice = "only for several machines: ssh-keygen, then ssh-copy-id to each of them"
    return "; ".join(has) or "no agent, and no key file in ~/.ssh", "" if has else advice


def ports(machine: Machine) -> Finding:
    """Whether the ports of a machine are free, when it is this one."""
    from kgdist.runtime.ports import port_problems  # here: libraries that cannot be imported are told before

    problems = port_problems(machine)
    numbers = f"{machine.ports[0]}" + (f" to {machine.ports[-1]}" if machine.servers > 1 else "")
    if any("is not an address of this machine" in problem for problem in problems):
        return Finding(machine.name, "ok", f"another machine; kgdist doctor there tries its ports {numbers}")
    if problems:
        advice = "check the line in the file: the address, and a first port from which on ports are free"
        return Finding(machine.name, "problem", "; ".join(problems), advice)
    return Finding(machine.name, "ok", f"this machine; ports {numbers} are free")


CHECKS: dict[str, Check] = {
    "packages": _packages,
    "torch": _torch,
    "CPU": _cpu,
    "memory": _memory,
    "compiled loops": _kernels,
    "shared memory": _shared_memory,
    "disk": _disk,
    "open files": _open_files,
    "extras": _extras,
    "ssh keys": _ssh_keys,
}
MENDS = {  # what to do about a problem; any other should be none
    "packages": "pip install them, or kgdist again",
    "torch": "pip install --force-reinstall torch",
    "compiled loops": "pip install --force-reinstall numba llvmlite",
    "shared memory": "allow memfd_create in the container's seccomp profile, or train with --worker thread",
}
