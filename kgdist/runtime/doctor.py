"""Is this machine fit for kgdist? One finding for everything that it needs or can use, with advice in words one can act on.

A finding is `ok`, a `note` (something that kgdist can do without) or a `problem` (something that it needs). Nothing is changed
here but for compiled loops, which are kept for the next run. How findings are printed is the business of `kgdist.cli.doctor`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import mmap
import os
import platform
import re
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from kgdist.base.errors import one_line
from kgdist.base.files import free_bytes
from kgdist.base.machine import processor, usable_cores
from kgdist.runtime.ip_config import Machine, read_cluster
from kgdist.version import __version__

STANDS_ON = ("torch", "numpy", "numba", "pyarrow", "pyzmq", "paramiko", "pymetis")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*?(?:;.*extra == [\"']([^\"']+)[\"'])?$")
_ROOM = 1 << 30  # bytes; less than that on a disk is said
_FILES = 1024  # descriptors: a server has one for each trainer of the job, and some to spare
_CGROUP = Path("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was found about one thing. `advice` is empty when there is nothing to do."""

    name: str
    state: str  # ok, note, problem
    found: str
    advice: str = ""


def version_of(package: str) -> str | None:
    """The installed version of a package, which is not imported; None when it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> list[str]:
    """kgdist and what it stands on, a line each."""
    lines = [f"kgdist {__version__}", f"Python {platform.python_version()} on {platform.system()} {platform.release()}"]
    for name in STANDS_ON:
        more = f" (libzmq {_libzmq()})" if name == "pyzmq" else ""
        lines.append(f"{name} {version_of(name) or 'not installed'}{more}")
    return [*lines, f"CPU {processor()[0]}, {usable_cores()} of {os.cpu_count()} cores to use"]


def _libzmq() -> str:
    try:
        import zmq
    except ImportError:
        return "cannot be loaded"
    return zmq.zmq_version()


def examine(ip_config: str | None = None) -> list[Finding]:
    """All findings, in the order of what a training meets first. `ip_config`: machines whose ports are tried as well.

    Raises DataError when that file cannot be used.
    """
    machines = read_cluster(ip_config) if ip_config is not None else []
    checks: list[Callable[[], Iterator[Finding]]] = [
        packages, pytorch, cpu, memory, kernels, shared_memory, huge_pages, disks, open_files, extras, ssh,
    ]  # fmt: skip
    found = [finding for check in checks for finding in _guarded(check)]
    for machine in machines:
        found.append(ports(machine))
    return found


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that fails itself is a finding, too."""
    try:
        yield from check()
    except Exception as error:  # whatever it is, the other checks are of use
        name = check.__name__.replace("_", " ")
        yield Finding(name, "problem", one_line(f"{type(error).__name__}: {error}"), "this should work; please report it")


# ---------------------------------------------------------------------------------------------------------------- packages
def _requirements() -> Iterator[tuple[str, str | None]]:
    """(package, extra or None) of everything that kgdist says it needs or can use."""
    for line in importlib.metadata.requires("kgdist") or ():
        if match := _REQUIREMENT.match(line):
            yield match[1], match[2]


def packages() -> Iterator[Finding]:
    """What kgdist cannot do without."""
    missing = sorted({name for name, extra in _requirements() if extra is None and version_of(name) is None})
    if missing:
        yield Finding("packages", "problem", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
        return
    yield Finding("packages", "ok", ", ".join(f"{name} {version_of(name)}" for name in STANDS_ON))


def extras() -> Iterator[Finding]:
    """What kgdist can do without."""
    wanted: dict[str, list[str]] = {}
    for name, extra in _requirements():
        if extra is not None and extra not in ("dev", "docs"):
            wanted.setdefault(extra, []).append(name)
    for extra, names in wanted.items():
        missing = [name for name in names if version_of(name) is None]
        if missing:
            yield Finding(f"extra {extra}", "note", f"not installed: {', '.join(missing)}", f"pip install 'kgdist[{extra}]'")
        else:
            yield Finding(f"extra {extra}", "ok", ", ".join(f"{name} {version_of(name)}" for name in names))


def pytorch() -> Iterator[Finding]:
    """Which build of torch there is, and whether it sees the GPUs that the system has."""
    try:
        import torch
    except ImportError as error:
        advice = "pip install --force-reinstall torch"
        yield Finding("torch", "problem", one_line(f"cannot be imported: {error}"), advice)
        return
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs"
    found = f"{torch.__version__}, {build}"
    nvidia = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        yield Finding("torch", "ok", f"{found}; GPUs: {', '.join(names)}")
    elif nvidia and torch.version.cuda:
        advice = "look at nvidia-smi: the driver may be too old for this build, or CUDA_VISIBLE_DEVICES hides the GPU"
        yield Finding("torch", "note", f"{found}; {len(nvidia)} GPUs are there, but torch cannot use them", advice)
    elif nvidia:
        advice = "install the CUDA build of torch to train with --gpu (pytorch.org, Get started)"
        yield Finding("torch", "note", f"{found}; {len(nvidia)} GPUs are there", advice)
    else:
        yield Finding("torch", "ok", f"{found}; no GPU here")


# ---------------------------------------------------------------------------------------------------------------- the machine
def cpu() -> Iterator[Finding]:
    """What the processor can, and how much of it this process may use."""
    name, flags = processor()
    sets = {"AVX2": "avx2", "AVX-512": "avx512f", "bfloat16": "avx512_bf16", "AMX": "amx_bf16"}
    has = [shown for shown, flag in sets.items() if flag in flags]
    cores, there = usable_cores(), os.cpu_count() or 1
    found = f"{name}: {', '.join(has) or 'no vector units that Linux tells of'}; {cores} of {there} cores to use"
    if platform.machine() in ("x86_64", "AMD64") and "avx2" not in flags and flags:
        yield Finding(
            "CPU", "note", found, "without AVX2 training is several times slower; a virtual machine can often pass it on"
        )
    elif cores < there:
        yield Finding("CPU", "ok", found, "the others are kept from this process by taskset or the container's quota")
    else:
        yield Finding("CPU", "ok", found)


def memory() -> Iterator[Finding]:
    """How much is free, and how much a container allows."""
    from kgdist.runtime.checks import free_memory

    free = free_memory()
    if free is None:
        yield Finding("memory", "note", "this system does not tell how much is free")
        return
    limit = _cgroup("memory.max")
    left = min(free, max(limit - (_cgroup("memory.current") or 0), 0)) if limit is not None else free
    found = f"{left / 1e9:.1f} GB free" + (f" of the {limit / 1e9:.1f} GB that the container may take" if limit else "")
    advice = "close other programs, or take a smaller --hidden_dim" if left < _ROOM else ""
    yield Finding("memory", "note" if advice else "ok", found, advice)


def _cgroup(name: str) -> int | None:
    try:
        return int((_CGROUP / name).read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max", or no such limit
        return None


def kernels() -> Iterator[Finding]:
    """Whether loops compile, and whether the compiled code can be kept."""
    try:
        import numpy as np

        from kgdist.kernels import jit
        from kgdist.kernels.unique import unique

        found, places = unique(np.array([7, 3, 7], np.int64))
        if found.tolist() != [7, 3] or places.tolist() != [0, 1, 0]:
            raise RuntimeError("a compiled loop gives wrong results")
    except Exception as error:  # Numba, LLVM or the cache may fail in many ways
        advice = "pip install --force-reinstall numba llvmlite"
        yield Finding("compiled loops", "problem", one_line(f"{type(error).__name__}: {error}"), advice)
        return
    folder = os.environ["NUMBA_CACHE_DIR"]
    if jit.cached():
        yield Finding("compiled loops", "ok", f"compiled, and kept in {folder}")
    else:
        advice = "set NUMBA_CACHE_DIR to a folder that can be written, or each run compiles for half a minute"
        yield Finding("compiled loops", "note", f"compiled, but {folder} cannot be written", advice)


def shared_memory() -> Iterator[Finding]:
    """Whether memory can be shared between processes (memfd), and how large /dev/shm is, which libraries use."""
    from kgdist.kvstore.shared_memory import SharedArray

    try:
        shared = SharedArray.allocate((mmap.PAGESIZE,), "u1")
        shared.array[:] = 1
        shared.close()
    except OSError as error:
        advice = "allow memfd_create in the container's seccomp profile, or train with --worker thread"
        yield Finding("shared memory", "problem", f"refused: {error.strerror or error}", advice)
        return
    kind = "memfd" if hasattr(os, "memfd_create") else f"files in {tempfile.gettempdir()}"
    shm = Path("/dev/shm")
    size = f"; /dev/shm has {shutil.disk_usage(shm).total / 1e9:.2f} GB, which kgdist does not need" if shm.is_dir() else ""
    yield Finding("shared memory", "ok", kind + size)


def huge_pages() -> Iterator[Finding]:
    """Whether --huge_pages would be honoured, for threads and for processes."""
    from kgdist.kvstore.shared_memory import huge_pages_refused

    for name, shared in (("huge pages of one process", False), ("huge pages of several processes", True)):
        reason = huge_pages_refused(shared=shared)
        if reason is None:
            yield Finding(name, "ok", "allowed: --huge_pages makes large tables faster")
        else:
            found, _, advice = reason.partition("; ")
            yield Finding(name, "note", found, f"for a few percent of speed on large tables: {advice}" if advice else "")


def disks() -> Iterator[Finding]:
    """Room, and the right to write, where runs and temporary files go."""
    for name, folder in (("disk, this folder", Path.cwd()), ("disk, temporary files", Path(tempfile.gettempdir()))):
        free, found = free_bytes(folder), f"{folder}: {free_bytes(folder) / 1e9:.1f} GB free"
        if not os.access(folder, os.W_OK | os.X_OK):
            yield Finding(name, "note", f"{folder}: cannot be written", "name another folder with --save_path and --data_path")
        elif free < _ROOM:
            yield Finding(name, "note", found, "a large run takes several GB: make room, or name another --save_path")
        else:
            yield Finding(name, "ok", found)


def open_files() -> Iterator[Finding]:
    """How many descriptors a process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = ["unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in (soft, hard)]
    few = soft != resource.RLIM_INFINITY and soft < _FILES
    advice = f"ulimit -n {_FILES} before a job on several machines" if few else ""
    yield Finding("open files", "note" if few else "ok", f"{shown[0]} (at most {shown[1]})", advice)


# ---------------------------------------------------------------------------------------------------------------- other machines
def ssh() -> Iterator[Finding]:
    """What starting processes on other machines takes: a key, by agent or file, and, here, a server for the others."""
    agent = bool(os.environ.get("SSH_AUTH_SOCK"))
    files = [path.stem for path in sorted((Path.home() / ".ssh").glob("id_*.pub"))]
    has = (["an agent (ssh-add -l shows its keys)"] if agent else []) + ([f"key files {', '.join(files)}"] if files else [])
    if has:
        yield Finding("ssh keys", "ok", "; ".join(has))
    else:
        yield Finding(
            "ssh keys",
            "note",
            "no agent, and no key file in ~/.ssh",
            "only for several machines: ssh-keygen, then ssh-copy-id to each of them",
        )
    client = shutil.which("ssh")
    found = client or "not found; kgdist brings its own (paramiko)"
    yield Finding("ssh client", "ok", found)
    try:
        with socket.create_connection(("127.0.0.1", 22), timeout=2) as connection:
            connection.settimeout(2)
            banner = connection.recv(100).decode("latin-1").strip()
        yield Finding("ssh server", "ok", f"answers on port 22: {banner}")
    except OSError:
        advice = "only if others shall start processes here: install and start an SSH server, or use --backend manual"
        yield Finding("ssh server", "note", "nothing answers on port 22 of this machine", advice)


def ports(machine: Machine) -> Finding:
    """Whether the ports of a machine are free, when it is this one."""
    from kgdist.runtime.cluster.preflight import port_problems

    problems = port_problems(machine)
    numbers = f"{machine.ports[0]}" + (f" to {machine.ports[-1]}" if machine.servers > 1 else "")
    if any("is no address of this machine" in problem for problem in problems):
        return Finding(machine.name, "ok", f"another machine; kgdist doctor there tries its ports {numbers}")
    if problems:
        advice = "check the line in the file: the address, and a first port from which on ports are free"
        return Finding(machine.name, "problem", "; ".join(problems), advice)
    return Finding(machine.name, "ok", f"this machine; ports {numbers} are free")
