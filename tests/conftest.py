"""What every test gets: one thread, repeatable hypothesis, real graphs where they are at hand, and a look at what it left behind.

A test that leaves a process, a thread, shared memory or a temporary file fails, whatever its own assertions said. The check knows
no part of kgdist; it looks at the system before and after.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import signal
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # read by the libraries when they are first imported

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # below nohup; trainings would do as it does, and be none the wiser
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import hypothesis  # noqa: E402
import pytest  # noqa: E402

from tests.family import alive, children, words_of  # noqa: E402
from tests.patience import SLOWNESS, patience  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = patience(10.0)  # seconds in which what a test started may still end by itself
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # one for each Python, ends with it
POOLS = ("tqdm_monitor", "pytest_timeout", "execnet", "pydevd")  # threads of tools
OURS = ("kgdist", "psm_", "sem.mp-", "torch_")  # names in /dev/shm

hypothesis.settings.register_profile("kgdist", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.register_profile(
    "search", deadline=None, max_examples=2000
)  # HYPOTHESIS_PROFILE=search: look for new failures
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kgdist"))


def pytest_configure(config: pytest.Config) -> None:
    """Take in the orphans of this process, so that the grandchildren a test leaves are seen as well (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a suite in the background of a shell: its tests of Ctrl-C still count
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a test may take is said for a machine that is not slow."""
    if SLOWNESS == 1 or not config.pluginmanager.hasplugin("timeout"):
        return
    usual = float(config.getini("timeout"))
    for item in items:
        own = item.get_closest_marker("timeout")
        seconds = usual if own is None else float(own.args[0])
        item.add_marker(pytest.mark.timeout(patience(seconds)), append=False)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What libraries and tests consist of is never garbage: looking through it anew takes a third of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """torch takes its threads from the machine, not from the environment, when something else set them."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of its own for all that asks the system for a temporary file, here and in the processes started from here."""
    tmp_path_factory.getbasetemp()  # settled before the variable changes
    folder = Path(tempfile.mkdtemp(prefix="kgt-"))
    before = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    yield folder
    tempfile.tempdir = before[1]
    if before[0] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[0]
    shutil.rmtree(folder, ignore_errors=True)


class Leftovers:
    """What this process holds right now, by kind; `new_since` names what was not there before."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.found = {
            "process": _children(),
            "thread": {t.ident or 0: t.name for t in threading.enumerate() if t.is_alive() and not t.name.startswith(POOLS)},
            "shared memory": _shared_memory(),
            "temporary file": {
                p.name: p.name
                for p in temporary.iterdir()
                if not p.name.startswith(("pymp-", "torchinductor", "torch_geometric.", "__pycache__"))
            },
        }

    def new_since(self, before: Leftovers) -> dict[str, dict[int | str, str]]:
        """kind -> key -> description of everything that is here now and was not there before."""
        new = {kind: {k: v for k, v in now.items() if k not in before.found[kind]} for kind, now in self.found.items()}
        return {kind: things for kind, things in new.items() if things}


def _children() -> dict[int | str, str]:
    """pid -> command line of the living children of this process."""
    named = {pid: words_of(pid).strip() for pid in children(os.getpid())}
    return {
        pid: f"{pid} ({words[:200]})"
        for pid, words in named.items()
        if alive(pid) and not any(helper in words for helper in HELPERS)  # it may have ended meanwhile, without a word left
    }


def _shared_memory() -> dict[int | str, str]:
    """Anonymous files of this process and named segments that it owns; other workers of the same test run make segments, too."""
    found: dict[int | str, str] = {}
    for link in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            if (target := os.readlink(link)).startswith("/memfd:kgdist"):
                found[f"fd {link.name}"] = f"descriptor {link.name} -> {target}"
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with contextlib.suppress(OSError):
            found.update({name: f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith(OURS)})
    return found


@pytest.fixture(autouse=True)
def nothing_left(temporary_files: Path) -> Iterator[None]:
    """Fail the test that leaves something behind, and remove it, so that the next test starts clean."""
    before = Leftovers(temporary_files)
    yield
    left = Leftovers(temporary_files).new_since(before)
    deadline = time.monotonic() + PATIENCE
    while left and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
        left = Leftovers(temporary_files).new_since(before)
    if not left:
        return
    for pid in left.get("process", {}):
        with contextlib.suppress(OSError):
            os.kill(int(pid), signal.SIGKILL)
    for name in left.get("temporary file", {}):
        path = temporary_files / str(name)
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    pytest.fail(
        "left behind: " + "; ".join(f"{kind} {', '.join(things.values())}" for kind, things in left.items()), pytrace=False
    )


def _archives() -> Path | None:
    """The folder of real graphs: $KGDIST_DATA, or shared/data beside this checkout."""
    for folder in (os.environ.get("KGDIST_DATA"), ROOT.parent / "shared" / "data"):
        if folder and Path(folder).is_dir():
            return Path(folder)
    return None


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`shared_data("UMLS")` is the folder of that real graph, unpacked once for all workers; without it the test is skipped."""
    # Workers of one run have sibling folders below a common parent; a lone process has only its own.
    own = tmp_path_factory.getbasetemp()
    cache = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "graphs"

    def unpack(name: str) -> Path:
        archives = _archives()
        if archives is None:
            pytest.skip(f"the graph {name} is not at hand: set KGDIST_DATA to the folder that has {name}.tar.xz")
        archive = archives / f"{name}.tar.xz"
        if not archive.is_file():
            pytest.skip(f"{archive}: no such file")
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{name}.lock"):
            if not (cache / name).is_dir():
                with tempfile.TemporaryDirectory(dir=cache) as fresh, tarfile.open(archive) as tar:
                    tar.extractall(fresh, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
                    os.replace(Path(fresh) / name, cache / name)
        return cache / name

    return unpack


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, waiting at most a minute for another worker."""
    import fcntl

    with path.open("w") as file:
        deadline = time.monotonic() + patience(60)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path}: held by another worker for over a minute") from None
                time.sleep(0.05)
        yield
