"""What the trainers of a script do together, and who has not come: barriers and tensors. No sockets here, and no clocks.

All trainers do the same things in the same order. So whatever the first of them asks for is what the others must ask for next,
and two that ask for different things, or one that ends while others wait for it, are an error that names both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kgdist.base.errors import KgdistError


class Call(NamedTuple):
    """One thing that a trainer asks for, and the number by which it knows the answer."""

    rank: int
    number: int
    what: str  # barrier, create, initialize
    value: dict[str, Any]


@dataclass
class Shared:
    """A table that all trainers have made together, and whether its owners have it."""

    number: int
    call: Call
    users: int = 0
    made: set[int] = field(default_factory=set)  # machines


@dataclass
class Agreement:
    """Between `trainers`; `name` is how messages call one of them."""

    trainers: int
    name: Callable[[int], str]
    gone: set[int] = field(default_factory=set)
    calls: dict[int, Call] = field(default_factory=dict)  # rank -> what it waits for; all ask for the same
    tables: dict[str, Shared] = field(default_factory=dict)
    numbers: int = 0

    def ask(self, call: Call) -> list[Call] | None:
        """Take a call; those of all trainers when this was the last. Raises KgdistError."""
        first = next(iter(self.calls.values()), None)
        if first is not None and asked(first) != asked(call):
            one, other = (f"{self.name(each.rank)} {told(each)}" for each in (first, call))
            raise KgdistError(f"{one}, but {other}; all trainers do the same in the same order")
        self.calls[call.rank] = call
        self._check()
        if len(self.calls) < self.trainers:
            return None
        done, self.calls = list(self.calls.values()), {}
        return done

    def end(self, rank: int) -> None:
        """A trainer has ended. Raises KgdistError when others wait for it."""
        self.gone.add(rank)
        self._check()

    def _check(self) -> None:
        if self.calls and self.gone:
            waiting, ended = next(iter(self.calls.values())), min(self.gone)
            raise KgdistError(f"{self.name(ended)} has ended, and {self.name(waiting.rank)} {told(waiting)} and waits for it")

    @property
    def missing(self) -> list[int]:
        """Those for whom others wait."""
        return [rank for rank in range(self.trainers) if rank not in self.calls] if self.calls else []

    @property
    def waiting(self) -> str:
        """What they wait for, in words."""
        return next((self.name(call.rank) + " " + told(call) for call in self.calls.values()), "")

    def problem(self, calls: list[Call]) -> str:
        """What one of those who have met at a barrier could not do for all; empty where nothing went wrong."""
        failed = next((call for call in calls if call.value.get("problem")), None)
        return "" if failed is None else f"{self.name(failed.rank)}: {failed.value['problem']}"

    def create(self, calls: list[Call]) -> tuple[Shared, str]:
        """The table that all have asked for, a new one or that of its name with so many users more; why not, where it is there as
        another one."""
        call = calls[0]
        name = call.value["name"]
        there = self.tables.get(name)
        if there is None:
            self.numbers += 1
            there = self.tables[name] = Shared(self.numbers, call)
        elif not same(there.call.value, call.value):
            return there, f"{name!r} is there already, as {shape(there.call.value)}, not {shape(call.value)}; take another name"
        there.users += len(calls)
        return there, ""

    def drop(self, name: str) -> Shared | None:
        """A trainer needs it no more: the table, when none does."""
        there = self.tables.get(name)
        if there is None:
            return None
        there.users -= 1
        return self.tables.pop(name) if there.users <= 0 else None


def asked(call: Call) -> tuple[str, dict[str, Any]]:
    """What must be equal for all trainers."""
    return call.what, {key: value for key, value in call.value.items() if key != "problem"}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two tables are the same, but for what they were filled with."""
    return {**one, "init": ""} == {**other, "init": ""}


def shape(value: dict[str, Any]) -> str:
    """A table in words: float32[100, 4]."""
    bounds, arrays = value["bounds"], value["arrays"]
    dtype, row = next(iter(arrays.values()), ("", []))
    if not arrays:
        return f"{value['spec']}"[:200]
    words = f"{dtype}{[bounds[-1] if bounds else 0, *row]}"
    return words if len(arrays) == 1 else f"{words} of {value['spec']}"[:200]


def told(call: Call) -> str:
    """What a trainer does, in words that follow its name."""
    if call.what == "create":
        return f"makes the tensor {call.value['name']!r} ({shape(call.value)})"
    name = call.value.get("name", "")
    return f"is at the barrier {name!r}" if name else "is at a barrier" if call.what == "barrier" else f"calls {call.what}()"
