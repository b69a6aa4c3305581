"""kgdist: the one name that leads to all commands: `kgdist train` is kgdist-train; and to versions, doctor and completion."""

from __future__ import annotations

import importlib
import keyword
import sys
from collections.abc import Sequence

from kgdist.base.errors import UsageError
from kgdist.base.log import say
from kgdist.cli.command import command
from kgdist.options.commands import TEXTS, called
from kgdist.options.option import closest, show


def overview() -> str:
    """What --help says: every command in a line."""
    width = max(map(len, TEXTS))
    lines = [f"  {name:{width}}  {text.partition('. ')[0].rstrip('.')}" for name, text in TEXTS.items()]
    return "\n".join(
        [
            "usage: kgdist COMMAND [options]",
            "",
            "Knowledge-graph embeddings: train, evaluate, predict, on one machine or many.",
            "",
            "commands:",
            *lines,
            "",
            "options:",
            "  -h, --help     show this and exit",
            "  --version      show the versions of kgdist and of the libraries it uses",
            "",
            f"kgdist COMMAND --help says more of each. `kgdist train` and `{called('train')}` are the same.",
        ]
    )


@command()
def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        say(overview())
        return 0
    name, *rest = argv
    if name in ("-V", "--version", "version"):
        from kgdist.runtime.doctor import versions

        say("\n".join(versions()))
        return 0
    if name not in TEXTS:
        near = closest(name, [*TEXTS, "--version", "--help"])
        what = "option" if name.startswith("-") else "command"
        raise UsageError(f"{show(name)[1:-1]}: no such {what}; " + (f"did you mean {near}?" if near else "see kgdist --help"))
    module = name.replace("-", "_") + "_" * keyword.iskeyword(name)  # import_: no module can be called import
    command = importlib.import_module(f"kgdist.cli.{module}")
    return int(command.main(rest))


if __name__ == "__main__":
    sys.exit(main())
