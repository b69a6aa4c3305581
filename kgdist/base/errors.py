"""Every error kgdist raises on purpose, and the exit code each one means.

    KgdistError                 1   something failed while running
    ├── UsageError              2   the command line or a file given by the user is wrong
    │   ├── OptionError         2   one option, named
    │   ├── UnknownName         2   data of a graph that is not there; a KeyError, too
    │   ├── DataError           2   one place in a data file: path[:line]
    │   └── CheckpointError     2   a run or checkpoint folder cannot be used
    ├── ProtocolError           1   a message from another process is not one of ours
    ├── WorkerError             1   a process of this run died
    ├── EvaluationError         1   some triples could not be ranked
    ├── Diverged                1   the loss is no number any more
    └── PeersLost               3   other machines are gone

A message is one line: where, what is wrong, what to do. `kgdist.cli` prints it after ``error:`` and exits with `exit_code`;
``--debug`` shows the traceback as well.
"""

from __future__ import annotations

import os
from typing import Any


def one_line(text: str) -> str:
    """`text` with line breaks spelled out: file names may hold them."""
    return text.replace("\n", "\\n").replace("\r", "\\r")


def counted(count: int, noun: str) -> str:
    """`1 machine`, `2 machines`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def _made_again(kind: type[KgdistError], args: tuple[Any, ...], values: dict[str, Any]) -> KgdistError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


class KgdistError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray and multiprocessing hand errors on; some are made of more than their line.
        return _made_again, (type(self), self.args, self.__dict__)


class UsageError(KgdistError):
    """The command, or a file it names, cannot be used as given."""

    exit_code = 2


class OptionError(UsageError):
    """An option is unknown, out of range or contradicts another one."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(one_line(f"{option}: {message}"))
        self.option = option


class DataError(UsageError):
    """A data file is wrong at one place; `line` counts from 1."""

    def __init__(self, path: str | os.PathLike[str], message: str, *, line: int | None = None) -> None:
        place = f"{os.fspath(path)}:{line}" if line is not None else os.fspath(path)
        super().__init__(one_line(f"{place}: {message}"))
        self.path = os.fspath(path)
        self.line = line


class UnknownName(UsageError, KeyError):
    """There is nothing of that name in a mapping; who asks it as a mapping finds a KeyError."""

    __str__ = Exception.__str__  # that of KeyError shows a text in quotes


class CheckpointError(UsageError):
    """A run folder or checkpoint is missing, damaged or of another kind."""


class ProtocolError(KgdistError):
    """A message from another process breaks the rules of kgdist.kvstore.messages."""


class WorkerError(KgdistError):
    """A process of this run ended before its work was done."""


class EvaluationError(KgdistError):
    """Some triples could not be ranked: their embeddings are no numbers."""


class Diverged(KgdistError):
    """The loss is no number any more: what was trained since the last checkpoint is not worth keeping."""


class PeersLost(KgdistError):
    """Other machines of this run can no longer be reached."""

    exit_code = 3
