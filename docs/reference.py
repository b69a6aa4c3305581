"""The pages of docs/ that follow from the tables of options: docs/options.md, and one page for each command.

`python docs/reference.py` writes them below docs/ of the working folder. What --help says on a terminal is
`kgdist.options.parse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from kgdist.base.files import atomic_write
from kgdist.options import presets
from kgdist.options.commands import EXAMPLES, POSITIONAL, TEXTS, called
from kgdist.options.config import OPTIONS
from kgdist.options.option import INT_MAX, Option
from kgdist.options.parse import default_text, options

_ORIGIN = {"predict": "dglke_predict", "emb-sim": "dglke_emb_sim", "convert": "dglke_convert"}  # with tables of their own
_GENERATED = "Generated from the tables of options by `python docs/reference.py`."
_EXITS = """\
`--help` says the same on the terminal. A flag may be shortened while it stays unambiguous. An error is one line on stderr that
begins with `error:`. Exit codes: 0 done; 1 failed while running; 2 an option, a file or a machine is not in order;
3 machines were lost (`kgdist-dist-train`); 130 interrupted."""


def pages() -> dict[str, str]:
    """Path below docs/ -> text of every generated page."""
    commands = {f"commands/{command}.md": command_page(command) for command in TEXTS}
    return {"options.md": options_page(), "commands/index.md": index_page()} | commands


def index_page() -> str:
    """docs/commands/index.md: the commands, with one line on each."""
    lines = ["# Commands", "", *_table(("command", "what it does"))]
    lines += [_row((f"[{called(command)}]({command}.md)", _plain(text))) for command, text in TEXTS.items()]
    lines += ["", _EXITS, "", "```{toctree}", ":hidden:", "", *TEXTS, "```"]
    return "\n".join(lines) + "\n"


def command_page(command: str) -> str:
    """docs/commands/<command>.md: what it does, examples, and its options by group."""
    usage = f"{called(command)} [options]" + (f" [{POSITIONAL[command][1]}]" if command in POSITIONAL else "")
    lines = [f"# {called(command)}", "", _plain(TEXTS[command]), "", "```text", usage, "```", *_examples(EXAMPLES[command])]
    if command in POSITIONAL:
        name, metavar = POSITIONAL[command]
        lines += ["", f"`{metavar}` is the same as `--{name} {metavar}`."]
    if command in _ORIGIN:
        lines += ["", f"Names and defaults are those of DGL-KE's `{_ORIGIN[command]}` where it has them."]
    groups: dict[str, list[Option]] = {}
    for row in options(command):
        groups.setdefault(row.group, []).append(row)
    for group in sorted(groups, key="output".__eq__):  # what all commands have comes last
        lines += ["", f"## {group.capitalize()}", "", *_table(("option", "default", "allowed", "meaning"))]
        lines += [_row((_names(row), _default(row, command), _allowed(row), _plain(row.help))) for row in groups[group]]
    return "\n".join(lines) + "\n"


def options_page() -> str:
    """docs/options.md: every option of a run, whatever the command, and the presets."""
    lines = [
        "# Options",
        "",
        _GENERATED,
        "Every option works as a flag (`--lr 0.1`), in a `--config` file (`lr: 0.1`) and from Python (`Config(lr=0.1)`).",
        "Precedence: defaults < `--preset` < `--config` < flags. Options marked + are not in DGL-KE. Commands that come",
        "after a training have [tables of their own](commands/index.md).",
    ]
    group = ""
    for row in OPTIONS.values():
        if row.group != group:
            group = row.group
            lines += ["", f"## {group.capitalize()}", "", *_table(("option", "commands", "default", "allowed", "meaning"))]
        names = _names(row) + ("" if row.dglke else " +")
        lines.append(_row((names, ", ".join(row.commands), _default(row), _allowed(row), _plain(row.help))))
    columns = ("data set", "model", "`--preset`", "flags", "steps or epochs", "published", "source")
    lines += ["", "## Presets", "", *_table(columns)]
    for preset in presets.ROWS:
        words = preset.flags().split(" --max_step ")[0]
        published = str(preset.published) if preset.published else ""
        length = str(preset.steps) if preset.steps is not None else f"{preset.options['max_epoch']:g} epochs"
        cells = (preset.dataset, preset.name, preset.kind, f"`{words}`", length, published, preset.source)
        lines.append(_row(map(_plain, cells)))
    return "\n".join(lines) + "\n"


def _table(names: tuple[str, ...]) -> tuple[str, str]:
    return _row(names), "|" + "---|" * len(names)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _names(row: Option) -> str:
    return ", ".join(f"`{flag}`" for flag in reversed(row.flags))


def _default(row: Option, command: str = "") -> str:
    text = default_text(row, command)
    return f"`{'off' if row.kind is bool and not text.startswith('the run') else text}`"


def _allowed(row: Option) -> str:
    if row.kind is bool:
        return "switch"
    words = ", ".join(f"`{choice}`" for choice in row.choices) if row.choices else row.allowed
    words = f"`{row.metavar}`" if words == "text" and row.metavar else words.replace(f" and <= {INT_MAX}", "")
    return ("one or more, each " if row.many else "") + words


def _plain(text: str) -> str:
    """Text as Markdown that shows it as it is, but for `code` in it."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        for sign in "<*":
            parts[place] = parts[place].replace(sign, "\\" + sign)
    return "`".join(parts)


def _examples(text: str) -> Iterator[str]:
    """The examples of --help: indented commands as a block that tests parse and do not run, prose as it is."""
    inside = False
    for line in text.splitlines():
        block = line.startswith("  ")
        if block != inside:
            yield from ("", "```bash parsed" if "kgdist" in line else "```yaml") if block else ("```", *([""] if line else []))
            inside = block
        if line.startswith("example"):
            yield ""
            line = line.capitalize()
        yield line[2:] if block else _plain(line)
    if inside:
        yield "```"


if __name__ == "__main__":
    for place, page in pages().items():
        Path("docs", place).parent.mkdir(exist_ok=True)
        with atomic_write(Path("docs", place), "w") as stream:
            stream.write(page)
