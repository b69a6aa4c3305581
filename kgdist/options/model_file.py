"""Score functions of the user's own: which names there are besides the built-in ones, and the files that bring them.

A file is imported when the user names it (--model_file), never because a saved run names it. What the classes must be is
kgdist.models.registry's business; this file loads no library, so that a command knows the names before it reads its options.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from kgdist.base.errors import KgdistError, OptionError
from kgdist.options.config import OPTIONS
from kgdist.options.option import show

FLAG = "--model_file"
MODEL = OPTIONS["model_name"]


OWN: dict[str, str] = {}  # name -> file or module, and name of the class: the same again is a new version of it
_brought: dict[Path, str] = {}  # file -> its sha256 when it was imported


def announce(name: str, origin: str) -> None:
    """Let --model_name take `name`."""
    OWN[name] = origin
    OPTIONS["model_name"] = dataclasses.replace(MODEL, choices=(*MODEL.choices, *OWN))


def digest_of(file: str | Path) -> str:
    """sha256 of a file of score functions. Raises OptionError when it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise OptionError(FLAG, f"{file}: cannot be read ({error.strerror or error})") from error


def bring(file: str) -> None:
    """Import `file`, once while it stays as it is; its classes register themselves.

    Raises OptionError when it is not there, is not a Python file, fails (with the line) or registers nothing.
    """
    path = Path(file).expanduser().resolve()
    digest = digest_of(path)
    if _brought.get(path) == digest:
        return
    if path.suffix != ".py":
        raise OptionError(FLAG, f"{path}: is not a Python file (.py)")
    name = f"kgdist_model_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where classes look for their module
    before = dict(OWN)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise OptionError(FLAG, _what_failed(path, error)) from error
    if before == OWN and not any(origin.startswith(f"{path}:") for origin in OWN.values()):
        raise OptionError(FLAG, f"{path}: registers no score function; write @kgdist.register above its class")
    _brought[path] = digest


def _what_failed(path: Path, error: Exception) -> str:
    if isinstance(error, KgdistError):
        return f"{path}: {error}"
    if isinstance(error, SyntaxError):
        return f"{path}:{error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}{f':{lines[-1]}' if lines else ''}: {type(error).__name__}: {error}"


def bring_named(words: Sequence[str]) -> None:
    """Import the file that a command line names, before the rest of it is read: it may name the models of that file.

    `words` with flags in full (kgdist.options.parse.expand). Raises OptionError.
    """
    file = None
    for place, word in enumerate(words):
        if word == "--":
            break
        if word == FLAG and place + 1 < len(words):
            file = words[place + 1]
        elif word.startswith(f"{FLAG}="):
            file = word.removeprefix(f"{FLAG}=")
    if file:
        bring(file)


def missing(name: object, file: object) -> str:
    """What to do about a saved run of the model `name`; "" when it is known here. `file`: as the run says."""
    if not isinstance(name, str) or name in OPTIONS["model_name"].choices:
        return ""
    where = file if isinstance(file, str) and file else "FILE.py"
    return f"; if {show(name)} is one of your own, name the file that registers it: {FLAG} {where} (in Python: model_file=...)"
