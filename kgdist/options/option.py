"""What one option is: its name, kind, default, allowed values, help, and the commands that have it.

An `Option` knows how to read itself from text (a command line) and how to check a typed value (YAML, JSON, Python). It does not
know argparse, files or the other options: the table of all options is `kgdist.options.config`, its views are
`kgdist.options.parse` and `kgdist.options.configfile`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

from kgdist.base.errors import OptionError

INT_MAX = 2**31 - 1
_INT = re.compile(r"[+-]?[0-9]{1,40}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLS = {"true": True, "false": False}


def is_integer(text: str) -> bool:
    """A plain decimal integer: no 0x, no underscores, no blanks."""
    return _INT.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """A plain decimal number, also 1e-9: no nan, inf, 0x, underscores or blanks."""
    return _FLOAT.fullmatch(text) is not None


def number(text: str) -> int | float | str:
    """The number that `text` writes in decimal; `text` itself when it is none, or none that a double can hold (1e400, 1e-400)."""
    if is_integer(text):
        return int(text)
    if not is_number(text):
        return text
    value = float(text)
    lost = math.isinf(value) or (value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]) is not None)
    return text if lost else value


def show(value: object) -> str:
    """`repr` of what a user gave, short enough for one line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def words_of(value: Any) -> list[str]:
    """The value of an option as words of a command line: 100.0 is 100 there."""
    several = value if isinstance(value, tuple) else (value,)
    return [str(each).removesuffix(".0") if isinstance(each, float) else str(each) for each in several]


def closest(name: str, names: Iterable[str]) -> str | None:
    """The most similar of `names`, or None when nothing is near."""
    hits = difflib.get_close_matches(name[:100], list(names), n=1, cutoff=0.6)
    return hits[0] if hits else None


def unknown_option(name: str, names: Iterable[str]) -> OptionError:
    """The error of a keyword that is none of the options `names`."""
    near = closest(name, names)
    return OptionError(name, "no such option" + (f"; did you mean {near}?" if near else "; see docs/options.md"))


def whole_path(text: str) -> str:
    """A path from the root on, ~ resolved: what a run keeps is found from any folder."""
    return os.path.abspath(os.path.expanduser(text))


def page_file(path: str) -> str:
    """The name of an HTML page. Raises ValueError for another one."""
    if PurePath(path).suffix.lower() != ".html":
        raise ValueError(f"must end in .html, not {path[-60:]!r}")
    return path


@dataclasses.dataclass(frozen=True)
class Option:
    """One row of the table. `kind` is str, int, float or bool; `many` a tuple of them; `optional` allows None (= not set).

    `low`/`high` are inclusive, `above` is exclusive, `besides` are numbers allowed although out of range. `bare` is what the flag
    alone means, and `true` in Python, YAML and JSON; `false` there is the default. `form` says what a text that `clean` reads
    must be; an integer may stand for it. `dglke` are the commands that have this flag in DGL-KE as well, `ours` those that have
    it only here. `sticky` False: belongs to one invocation, not to the run; `again`: but who makes the run again needs it.
    """

    name: str
    kind: type
    many: bool
    optional: bool
    default: Any
    help: str
    group: str
    short: str | None = None
    synonyms: tuple[str, ...] = ()
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None
    besides: tuple[int, ...] = ()
    least: int = 0
    bare: str | None = None
    form: str = ""
    clean: Callable[[str], str] | None = None
    dglke: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    sticky: bool = True
    again: bool = False

    @property
    def flag(self) -> str:
        """The long flag."""
        return f"--{self.name}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Every spelling, the short one first."""
        return (*([self.short] if self.short else []), self.flag, *self.synonyms)

    @property
    def made_again(self) -> bool:
        """Whether a run that is made again has it."""
        return self.sticky or self.again

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that have this option."""
        return self.dglke + self.ours

    @property
    def allowed(self) -> str:
        """The allowed values in words: "a number > 0"."""
        if self.kind is bool:
            return "true or false"
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind is str:
            return self.form or "text"
        noun = "an integer" if self.kind is int else "a number"
        parts = []
        if self.above is not None:
            parts.append(f"> {self.above:g}")
        if self.low is not None:
            parts.append(f">= {self.low:.12g}")
        if self.high is not None:
            parts.append(f"<= {self.high:.12g}" if self.high < 2**53 else "< 2**63")
        return " ".join([noun, " and ".join(parts)]).strip() + "".join(f", or {extra}" for extra in self.besides)

    def takes(self, word: str) -> bool:
        """Whether `word` is one of the values that this option chooses from."""
        return word in self.choices or word.lower() in _BOOLS

    def refuse(self, value: object) -> OptionError:
        """The error for a value that cannot be."""
        endless = self.kind is float and str(value).strip("+-.").lower() in ("inf", "infinity")
        allowed = self.allowed.replace("a number", "a finite number", 1) if endless else self.allowed
        message = f"must be {allowed}, not {show(value)}"
        near = closest(value, self.choices) if isinstance(value, str) else None
        return OptionError(self.flag, f"{message}; did you mean {near}?" if near else message)

    def read(self, text: str) -> Any:
        """One value from text, checked. Raises OptionError."""
        value: Any = text
        if self.bare is not None and text.lower() in _BOOLS:
            return self.bare if _BOOLS[text.lower()] else self.default
        if self.kind is bool:
            value = _BOOLS.get(text.lower(), text)
        elif self.kind in (int, float):
            value = number(text)
            if self.kind is int and isinstance(value, float):
                raise self.refuse(text)
        return self._one(value)

    def check(self, value: Any) -> Any:
        """A typed value, normalised (1 -> 1.0 for a float, list -> tuple). Raises OptionError."""
        if value is None and self.optional:
            return None
        if self.bare is not None and isinstance(value, bool):
            return self.bare if value else self.default
        if not self.many:
            return self._one(value)
        if not isinstance(value, (list, tuple)):
            raise OptionError(self.flag, f"must be a list, each {self.allowed}, not {show(value)}")
        if len(value) < self.least:
            raise OptionError(self.flag, f"needs at least {self.least} value{'s' if self.least > 1 else ''}")
        return tuple(self._one(item) for item in value)

    def _one(self, value: Any) -> Any:
        if self.kind is bool:
            if not isinstance(value, bool):
                raise self.refuse(value)
            return value
        if self.kind is str:
            return self._text(value)
        wanted = numbers.Integral if self.kind is int else numbers.Real
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise self.refuse(value)
        try:
            number = self.kind(value)
        except OverflowError as error:  # an integer beyond the largest double
            raise self.refuse(value) from error
        inside = self.kind is int or math.isfinite(number)
        inside = inside and (self.above is None or number > self.above)
        inside = inside and (self.low is None or number >= self.low)
        inside = inside and (self.high is None or number <= self.high)
        if not inside and number not in self.besides:
            raise self.refuse(value)
        return number

    def _text(self, value: Any) -> str:
        if self.form and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or (self.choices and value not in self.choices):
            raise self.refuse(value)
        if not value or "\0" in value:
            raise OptionError(self.flag, "must not be empty" if not value else "must not hold a NUL character")
        if self.clean is None:
            return value
        try:
            return self.clean(value)
        except ValueError as error:
            raise OptionError(self.flag, str(error)) from error


def option(default: Any, help: str, **facts: Any) -> Any:
    """A dataclass field that carries the facts of an `Option`; its name and kind come from the field itself."""
    return dataclasses.field(default=default, metadata={"help": help, **facts})


def table(owner: type) -> dict[str, Option]:
    """The options declared by the fields of the dataclass `owner`, in order."""
    hints = typing.get_type_hints(owner)
    rows: dict[str, Option] = {}
    for field in dataclasses.fields(owner):
        hint = hints[field.name]
        arguments = typing.get_args(hint)
        optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
        many = typing.get_origin(hint) is tuple
        kind = arguments[0] if arguments else hint
        facts = dict(field.metadata)
        if kind is int:
            facts.setdefault("high", INT_MAX)
        rows[field.name] = Option(name=field.name, kind=kind, many=many, optional=optional, default=field.default, **facts)
    return rows


def wrong_shares(shares: Sequence[float]) -> str:
    """Why `shares` cannot be those of train, valid and test; empty where they can."""
    if len(shares) == 3 and min(shares) >= 0 and shares[0] > 0 and abs(sum(shares) - 1) <= 1e-6:
        return ""
    given = " ".join(f"{share:g}" for share in shares)
    return f"needs three shares that add up to 1, of train (above 0), valid and test (.8 .1 .1), not {given}"
