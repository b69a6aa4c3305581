"""What a run was made of: its options in order of interest, the command that repeats it, versions and machine."""

from __future__ import annotations

import os
import platform
import shlex
from pathlib import Path
from typing import Any

from kgdist.base.machine import processor, usable_cores
from kgdist.options.config import OPTIONS, Config
from kgdist.runtime.doctor import version_of
from kgdist.version import __version__

STANDS_ON = ("torch", "numpy", "numba", "pyarrow", "pyzmq", "plotly")
_HIDDEN = ("model_path", "resume", "config", "preset")  # about an invocation, or another command


def shown(value: Any) -> str:
    """The value of an option as one would type it."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "tab" if value == "\t" else f"{value:.12g}" if isinstance(value, float) else str(value)


def command_of(config: Config) -> str:
    """The command that trained it: kgdist-dist-train for what several machines trained."""
    return "dist-train" if config.num_client_proc is not None else "train"


def options(config: Config) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """(name, value, default) of the options that differ from their defaults, then (name, value) of the others."""
    changed, same = [], []
    for name, row in OPTIONS.items():
        if command_of(config) not in row.commands or name in _HIDDEN or not row.sticky:
            continue
        value = getattr(config, name)
        if value == row.default or (name == "data_path" and _near(value) == row.default):
            same.append((name, shown(row.default)))
        else:
            changed.append((name, shown(_near(value) if name == "data_path" else value), shown(row.default)))
    return changed, same


def command(config: Config) -> list[str]:
    """A command line that trains the same again, from the current folder: the command, then each flag with its values."""
    parts = [f"kgdist-{command_of(config)}"]
    for name, row in OPTIONS.items():
        value = getattr(config, name)
        if name == "data_path":
            value = _near(value)
        if value == row.default or command_of(config) not in row.commands or name in _HIDDEN or not row.sticky:
            continue
        values = list(map(str, value)) if isinstance(value, tuple) else [] if row.kind is bool else [str(value)]
        parts.append(shlex.join([row.flag if value is not False else f"{row.flag}=false", *values]))
    return parts


def _near(path: str) -> str:
    """Relative to the current folder, if it is in there: config.json has absolute folders."""
    here = os.path.relpath(path) if Path(path).is_absolute() else path
    return path if here.startswith("..") else here


def versions() -> list[tuple[str, str]]:
    """kgdist, Python and the libraries, those that are there."""
    libraries = [(name, version) for name in STANDS_ON if (version := version_of(name)) is not None]
    return [("kgdist", __version__), ("Python", platform.python_version()), *libraries]


def machine() -> list[tuple[str, str]]:
    """This machine; that it is the one of the training is for the caller to know."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = usable_cores()
    return [
        ("processor", processor()[0]),
        ("cores", f"{cores} to use, {os.cpu_count()} in all"),
        ("memory", f"{memory / 2**30:.0f} GiB"),
        ("system", f"{platform.system()} {platform.release()}"),
    ]
