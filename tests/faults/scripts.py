"""Users' scripts on several "machines" of this host, as kgdist-launch runs them, and their processes by role and rank."""

from __future__ import annotations

from pathlib import Path

from tests.family import parent
from tests.faults.jobs import Job, ip_config, wait
from tests.patience import patience

# What a script of the tests begins with: the place of this trainer, and a table of two machines.
START = """
import os, signal, sys, time
from pathlib import Path
from kgdist import distributed as kd
from kgdist.distributed.context import job
from kgdist.distributed.initialisers import mapped

def rows(shape, dtype):
    import torch
    return torch.full(shape, 3, dtype=dtype)

def table(name, row=(2,), dtype="float32", init=rows):
    code = {"float32": "<f4", "int64": "<i8"}[dtype]
    number, handles = job().create(name, {"dtype": dtype}, {"": (code, row)}, [0, 3, 5], init)
    return number, mapped(handles[""])

def say(*words):
    print(os.environ["KGDIST_ROLE"], os.environ["RANK"], *words, flush=True)
"""


class ScriptJob(Job):
    """One kgdist-launch of a script whose text follows on START, with two machines of one server and two trainers each."""

    name = "launch"

    def __init__(self, folder: Path, text: str, *words: str, begin: str = START, **options: str) -> None:
        (folder / "script.py").write_text(begin + text)
        if not (folder / "ip_config.txt").exists():
            ip_config(folder, parts=2)
        super().__init__(folder, *words, "python3 script.py", **options)

    def flags(self, backend: str, options: dict[str, str]) -> list[str]:
        given = {"peer_timeout": "5", "workspace": str(self.folder), "num_trainers": "2"} | options
        given["peer_timeout"] = str(patience(float(given["peer_timeout"])))
        return ["--backend", backend, *(text for name, value in given.items() for text in (f"--{name}", value))]

    def one(self, role: str, rank: int) -> int:
        """The process of that role and rank, once it is there."""
        return int(str(wait(lambda: self.first(role, rank), 30.0, self)))

    def first(self, role: str, rank: int) -> int | None:
        """That process, if it is there by now; not one that it has forked, which has its environment."""
        wanted = {f"KGDIST_ROLE={role}".encode(), f"RANK={rank}".encode()}

        def is_one(pid: int) -> bool:
            try:
                return wanted <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            except OSError:
                return False

        pids = set(filter(is_one, self.pids()))
        return next((pid for pid in pids if parent(pid) not in pids), None)
