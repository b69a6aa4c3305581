"""kgdist completion: a script by which a shell completes the commands, their options and what these may be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from kgdist.base.errors import UsageError
from kgdist.base.log import say
from kgdist.cli.command import command
from kgdist.data.builtin.catalog import BUILTIN
from kgdist.options import parse
from kgdist.options.commands import OF_UMBRELLA, TEXTS
from kgdist.options.tools import CompletionOptions


def described(command: str, shtab: Any) -> parse.Parser:
    """The parser of a command, with the words and the kinds of files that its options take, as shtab wants to know them.

    The parser itself checks values by the table of options, so it has no need of them.
    """
    made = parse.parser(command)
    rows = {row.name: row for row in parse.options(command)}
    for action in made._actions:
        row = rows.get(action.dest)
        if row is None or row.kind is bool:
            continue
        if row.choices:
            action.choices = row.choices
        elif row.name == "dataset":
            action.choices = tuple(BUILTIN)  # or the name of one's own
        elif row.metavar in ("FOLDER", "RUN"):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif row.metavar is not None and row.metavar.startswith("FILE"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return made


def umbrella(shtab: Any) -> argparse.ArgumentParser:
    """The parser of `kgdist`, with those of all commands below it. It describes; nothing is parsed with it."""
    made = argparse.ArgumentParser(prog="kgdist")
    made.add_argument("--version", action="version", version="", help="show the versions of kgdist and of the libraries it uses")
    below = made.add_subparsers()
    for name, text in TEXTS.items():
        inner = below.add_parser(name, help=text.partition(". ")[0].rstrip("."))
        inner.__dict__.update(described(name, shtab).__dict__ | {"prog": f"kgdist {name}"})
    return made


@command()
def main(argv: Sequence[str]) -> int:
    options: CompletionOptions = parse.parse_tool("completion", argv)
    try:
        import shtab
    except ImportError as error:
        raise UsageError("completion needs the package shtab; pip install 'kgdist[completion]'") from error
    parsers = [umbrella(shtab), *(described(name, shtab) for name in TEXTS if name not in OF_UMBRELLA)]
    for made in parsers:
        say(shtab.complete(made, options.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
