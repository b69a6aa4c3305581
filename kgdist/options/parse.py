"""The command line's view of the table of options: a parser, and layers of precedence.

Short flags and prefixes are those of DGL-KE: a prefix that means one flag there means it here too, whatever has been added since.
Precedence: defaults < --preset < --config file < flags. The pages of docs/ that show options are written by `docs/reference.py`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from kgdist.base.errors import OptionError, UsageError
from kgdist.base.machine import usable_cores
from kgdist.options import presets
from kgdist.options.commands import EXAMPLES, POSITIONAL, SHORT, SYNONYMS, TEXTS, called
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import read_options
from kgdist.options.contradictions import EXCLUSIVE, OF_TOOLS, every, of_a_command_line, of_a_run, of_tuning, refuse
from kgdist.options.model_file import bring, bring_named
from kgdist.options.of_tuning import TUNE_BESIDES, TUNE_GROUPS
from kgdist.options.option import Option, closest, is_number, show, table
from kgdist.options.resolve import named, processes
from kgdist.options.tools import TOOLS, TuneOptions
from kgdist.version import __version__

_NEGATIVE = re.compile(r"-(\.?[0-9].*|inf|infinity|nan)", re.IGNORECASE)  # a value, although it starts with a dash
_OFF = "--!"  # internal spelling of --switch=false
_INHERITED = ("data", "model", "training", "loss", "negative samples")  # what kgdist-eval takes from a run


def table_of(command: str) -> Mapping[str, Option]:
    """The table that the options of `command` stand in: the run's, or its own if it works on what a training left."""
    return table(TOOLS[command]) if command in TOOLS else OPTIONS


def options(command: str) -> list[Option]:
    """The options that `command` has, in the order of the table."""
    rows = [row for row in table_of(command).values() if command in TOOLS or command in row.commands]
    if command == "tune":
        rows += [
            row for row in OPTIONS.values() if "train" in row.commands and (row.group in TUNE_GROUPS or row.name in TUNE_BESIDES)
        ]
    return rows


# ---------------------------------------------------------------------------------------------------------------- the parser
class Parser(argparse.ArgumentParser):
    """argparse that raises UsageError instead of leaving, and expands prefixes by DGL-KE's own flags."""

    command = "train"

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.replace(_OFF, '--')}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, after `expand`."""
        return super().parse_known_args(expand(self.command, sys.argv[1:] if args is None else args), namespace)


class _Brief(argparse.Action):
    """-h: the options of SHORT, the first examples, and where the rest is."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> NoReturn:
        print(brief(parser.command) if isinstance(parser, Parser) else parser.format_help())
        parser.exit()


def brief(command: str) -> str:
    """What -h says."""
    rows, names = {row.name: row for row in options(command)}, SHORT[command].split()
    examples = EXAMPLES[command].split("\n\n")[0]
    made = _bare(command, f"{examples}\n\nThese are {len(names)} of its {len(rows)} options; --help shows all.")
    group = made.add_argument_group("most used")
    for name in names:
        _add(group, rows[name], command)
    return made.format_help()


def _bare(command: str, epilog: str) -> Parser:
    """A parser without options."""
    made = Parser(
        prog=called(command),
        usage="%(prog)s [options]"
        + (f" [{given[1]}{' ...' * table_of(command)[given[0]].many}]" if (given := POSITIONAL.get(command)) else ""),
        description=TEXTS[command],
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    made.command = command
    return made


def parser(command: str) -> Parser:
    """The parser of one command; values that were not given are absent from its namespace."""
    made = _bare(command, EXAMPLES[command])
    if command in SHORT:
        made.add_argument("-h", action=_Brief, nargs=0, help="show the most used options and exit")
        made.add_argument("--help", action="help", help="show this message and exit")
    else:
        made.add_argument("-h", "--help", action="help", help="show this message and exit")
    made.add_argument("--version", action="version", version=f"{called(command)} {__version__}", help="show the version and exit")
    if command in POSITIONAL:
        name, metavar = POSITIONAL[command]
        row = table_of(command)[name]
        nargs = "*" if row.many else "?"
        made.add_argument(name, nargs=nargs, type=row.read, metavar=metavar, help=f"the same as --{name} {metavar}")
    groups: dict[str, Any] = {}
    for row in options(command):
        group = groups.get(row.group) or groups.setdefault(row.group, made.add_argument_group(row.group))
        _add(group, row, command)
        if row.kind is bool:
            made.add_argument(_OFF + row.name, dest=row.name, action="store_false", help=argparse.SUPPRESS)
    return made


def _add(group: Any, row: Option, command: str) -> None:
    """One option, and what its help says."""
    if row.kind is bool:
        group.add_argument(*row.flags, dest=row.name, action="store_true", help=row.help.replace("%", "%%"))
        return
    text = f"{row.help} (default: {default_text(row, command)})".replace("%", "%%")
    metavar = row.metavar or ("{" + ",".join(row.choices) + "}" if row.choices else {int: "N", float: "X"}.get(row.kind, "TEXT"))
    shape: dict[str, Any] = {"nargs": "+"} if row.many else {}
    if row.bare is not None:
        shape = {"nargs": "?", "const": row.bare}
    group.add_argument(*row.flags, dest=row.name, type=row.read, metavar=metavar, help=text, **shape)


def default_text(row: Option, command: str = "") -> str:
    """A default as a user would type it; of kgdist-eval where it comes from."""
    if command == "eval" and row.name == "num_proc":
        return "all cores"
    if command == "eval" and row.sticky and row.group in _INHERITED:
        return "the run's"
    if row.default is None or row.default == ():
        return "none"
    if isinstance(row.default, tuple):
        return " ".join(map(str, row.default))
    return "tab" if row.default == "\t" else f"{row.default:g}" if row.kind is float else str(row.default)


def expand(command: str, argv: Sequence[str]) -> list[str]:
    """Full spellings for the prefixes in `argv`. Raises OptionError for an unknown or ambiguous flag.

    Also ties a negative number to the flag before it and rewrites `--switch=false`.
    """
    words: list[str] = []
    rows = {spelling: row for row in options(command) for spelling in row.flags}
    row: Option | None = None
    for place, word in enumerate(argv):
        if word == "--":
            return words + list(argv[place:])
        if _NEGATIVE.fullmatch(word):
            if row is not None and row.kind is not bool and not row.many and words[-1] in row.flags:
                words[-1] += f"={word}"
            else:
                words.append(word)
            continue
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        name, equals, value = word.partition("=")
        full = _full(command, name, rows)
        row = rows.get(full)
        if row is not None and row.kind is bool and equals:
            words.append(full if row.read(value) else _OFF + row.name)
        elif row is not None and row.bare is not None and not equals and command in POSITIONAL and _own(row, argv[place + 1 :]):
            words.append(f"{full}={row.bare}")  # the next word is the command's own
        else:
            words.append(full + equals + value)
    return words


def _own(row: Option, words: Sequence[str]) -> bool:
    """Whether the word after the flag of an option that may stand alone is no value of it."""
    return bool(words) and not row.takes(words[0])


def _full(command: str, name: str, rows: Mapping[str, Option]) -> str:
    if name in rows or name in ("-h", "--help", "--version"):
        return name
    if not name.startswith("--"):
        hits = [flag for flag in rows if flag.startswith(name) and not flag.startswith("--")]
        glued = any(name.startswith(flag) and is_number(name[len(flag) :]) for flag in rows if not flag.startswith("--"))
        if len(hits) == 1 or glued:  # glued: -g12
            return name if glued else hits[0]
    else:
        reference = {row.name: row.flag for flag, row in rows.items() if command in row.dglke and flag.startswith(name)}
        if "--help".startswith(name):
            reference["help"] = "--help"
        added = {row.name: row.flag for flag, row in rows.items() if flag.startswith(name)}
        hits = list((reference or added).values())
        if len(hits) == 1:
            return hits[0]
    shown = show(name)[1:-1]
    if hits:
        raise OptionError(shown, f"could be {', '.join(hits)}; write more of it")
    meant = SYNONYMS.get(name.removeprefix("--").replace("-", "_").lower(), "")
    if f"--{meant}" in rows:
        raise OptionError(shown, f"no such option; here it is called --{meant}")
    near = closest(name, [*rows, "--help", "--version"]) or closest(name.replace("-", "_").replace("__", "--", 1), rows)
    plain = name.removeprefix("--")
    elsewhere = OPTIONS[plain].commands if plain in OPTIONS else ()
    if 0 < len(elsewhere) < 4:
        raise OptionError(shown, f"not an option of {called(command)}, but of {' and '.join(map(called, elsewhere))}")
    if plain in table_of(command) or elsewhere:
        raise OptionError(shown, f"not an option of {called(command)}" + (f"; did you mean {near}?" if near else ""))
    raise OptionError(shown, f"no such option; did you mean {near}?" if near else f"no such option; see {called(command)} --help")


# ---------------------------------------------------------------------------------------------------------------- layers
@dataclass(frozen=True)
class Parsed:
    """A command line, understood: `config` in full, `explicit` what the user set by flag or file, `notes` to print."""

    command: str
    config: Config
    explicit: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def over(self, base: Config) -> Config:
        """The options of a saved run `base` with the user's own over them.

        kgdist-eval takes model and data from the run, not its machine or its way of evaluating; --resume takes everything.
        """
        eligible = {
            name: getattr(base, name)
            for name, row in OPTIONS.items()
            if row.sticky and (self.command != "eval" or row.group in _INHERITED)
        }
        own = {"num_proc": self.config.num_proc} if self.command == "eval" else {}
        return Config(**layered(eligible, own, self.explicit))


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; one that sets --max_epoch also takes away an earlier --max_step, and the reverse."""
    values: dict[str, Any] = {}
    for layer in layers:
        for pair in EXCLUSIVE:
            for mine, other in (pair, pair[::-1]):
                if mine in layer and other not in layer:
                    values.pop(other, None)
        values.update(layer)
    return values


def _given(command: str, argv: Sequence[str]) -> dict[str, Any]:
    """The options that a command line sets, by name; the file that brings models of the user's own is imported first."""
    bring_named(expand(command, argv))
    return vars(parser(command).parse_args(argv))


# Of a preset, what holds beside its own choice alone: threads that share all entities, coefficients of a penalty.
_OF = {"candidates": ("num_thread",), "regularizer": ("regularization_coef", "relation_regularization_coef")}
Recipe = Callable[[Config], presets.Preset]  # the preset of a graph that has no row


def parse(
    command: str, argv: Sequence[str], machines: Callable[[Config], int] = lambda config: 1, recipe: Recipe | None = None
) -> Parsed:
    """Understand a command line. Raises UsageError or OptionError (exit code 2).

    Most contradictions are left to `kgdist.options.resolve`, which wants the final options (after --resume).
    `machines` tells how many machines share the steps of a preset, `recipe` what --preset means for a graph without one.
    """
    return understand(command, _given(command, argv), machines, recipe)


def understand(
    command: str,
    given: Mapping[str, Any],
    machines: Callable[[Config], int] = lambda config: 1,
    recipe: Recipe | None = None,
) -> Parsed:
    """The same for options that are values already, by name (Python's way in). Raises UsageError or OptionError."""
    given = {name: OPTIONS[name].check(value) for name, value in given.items()}
    file = read_options(given["config"], command, bring) if given.get("config") else {}
    explicit = layered(file, given)
    config = Config(**explicit)
    refuse(of_a_command_line(config, explicit))
    row = _row(config, explicit, recipe)
    if row is not None and row.options.get("candidates") == "all" and command not in OPTIONS["candidates"].commands:
        more = "take --preset alone, or --loss_genre Softmax --neg_sample_size 1000"
        raise OptionError(
            "--preset", f"{config.preset} trains against all entities, which kgdist-train does on one machine; {more}"
        )
    kept, left_out = beside(row.values(), explicit) if row else ({}, [])
    taken = {**kept, **explicit}
    shared = taken.get("candidates") == "all"
    said = taken.keys() - ({"max_step"} - explicit.keys())  # the preset's steps are those of all processes
    default, notes = processes(command, config, said, usable_cores(), shared=shared)
    if config.num_client_proc is not None:  # DGL-KE's word for it when there are several machines
        default = config.num_client_proc
        explicit["num_proc"] = default
    config = config.replace(num_proc=default)
    if row is None:
        return Parsed(command, config, explicit, tuple(notes))
    # Against all entities processes become threads, which share each step.
    several = 1 if shared else max(config.num_proc, len(config.gpu)) * machines(config)
    notes += row.notes(several)
    whole = row.values(several)
    preset = {name: whole[name] for name in kept}
    if left_out:
        notes.append(f"left out of the preset, because your options contradict it: {' '.join(left_out)}")
    changed = [name for name, value in explicit.items() if name in whole and value != whole[name]]
    of_file = file.keys() - given.keys()
    for by, filed in (("you", False), (f"--config {config.config}", True)):
        if own := [f"--{name}" for name in changed if (name in of_file) is filed]:
            notes.append(f"preset changed by {by}: {' '.join(own)}")
    return Parsed(command, Config(**layered(preset, {"num_proc": default}, explicit)), explicit, tuple(notes))


def _row(config: Config, explicit: Mapping[str, Any], recipe: Recipe | None) -> presets.Preset | None:
    """The preset that is asked for. Raises OptionError when there is none."""
    if config.preset == "none":
        return None
    config = named(config, explicit, [])  # files of one's own are not FB15k
    asked = config.model_name, config.dataset, config.encoder, config.preset
    if recipe is not None and config.preset == "published" and config.encoder == "none" and not presets.known(*asked):
        return recipe(config)
    return presets.find(*asked)


def beside(preset: Mapping[str, Any], explicit: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What of a preset the user's own options leave room for, and the flags of the rest.

    Contradictions among the user's own are left to `kgdist.options.resolve`.
    """
    whole = preset
    preset, left_out = {name: value for name, value in preset.items() if name not in explicit}, []

    def problems(without: str = "") -> list[tuple[str, str]]:
        rest = {name: value for name, value in preset.items() if name != without}
        return every(of_a_run(Config(**layered(rest, explicit)), {**rest, **explicit}))  # as if all were the user's

    while found := problems():

        def mends(name: str, found: list[tuple[str, str]] = found) -> bool:
            """Without it the first problem is gone, and no option of the user's lacks what it had."""
            left = problems(name)
            return found[0] not in left and not any(each not in found and each[0] in explicit for each in left)

        cause = next((name for name in (found[0][0], *preset) if name in preset and mends(name)), None)
        if cause is None:
            break
        del preset[cause]
        left_out.append(f"--{cause}")
    for owner, names in _OF.items():
        usual = OPTIONS[owner].default
        if {**preset, **explicit}.get(owner, usual) != whole.get(owner, usual):
            left_out += [f"--{name}" for name in names if preset.pop(name, None) is not None]
    return preset, left_out


def parse_tool(command: str, argv: Sequence[str]) -> Any:
    """Understand the command line of a command that has a table of its own: its options, an object of `TOOLS[command]`.

    Raises UsageError or OptionError (exit code 2).
    """
    given = {name: value for name, value in _given(command, argv).items() if value != []}
    options = TOOLS[command](**given)
    if command in OF_TOOLS:
        refuse(OF_TOOLS[command](options, given))
    return options


def parse_tune(argv: Sequence[str], recipe: Recipe | None = None) -> tuple[TuneOptions, frozenset[str], Parsed]:
    """The same for kgdist-tune: its own options, which of them the user set, and the options of its trainings.

    A training has one process unless the user says more: cores are for trials. Raises UsageError or OptionError (exit code 2).
    """
    given = _given("tune", argv)
    own = {name: given.pop(name) for name in table(TuneOptions) if name in given}
    unasked: dict[str, Any] = {"num_proc": 1}
    if own.get("search") is None and not {"config", "encoder"} & given.keys():
        unasked["preset"] = "published"  # what the search begins with
    parsed = understand("train", {**unasked, **given}, recipe=recipe)
    parsed = replace(
        parsed, explicit={name: value for name, value in parsed.explicit.items() if name in given or name not in unasked}
    )
    options = TuneOptions(**own)
    refuse(of_tuning(options, parsed.config))
    return options, frozenset(own), parsed
