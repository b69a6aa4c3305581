"""The blocks of the pages: found, said what they are, and run.

Every fenced block says by its first words what it is:

- ```bash            is run, line by line, as a reader would type it, in one folder for each page
- ```bash parsed     is read by the parser of its command and not run: it needs other machines, or is one example of many
- ```python          is run after what stands above it, in the same folder, and sees the names of those blocks; one that begins
                     with `# NAME.py` is that file
- ```text, or no word: what is printed, and drawings

Commands run in this process through their entry points. So that a page may show real sizes, `SMALLER` is put behind the words
that a page shows, for the later of two equal flags counts; `SMALL` does it to `kgdist.train`. Data sets that would be
downloaded are small graphs of that name.
"""

from __future__ import annotations

import glob
import importlib
import importlib.machinery
import itertools
import os
import re
import shlex
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kgdist
from kgdist.api import functions
from kgdist.kernels import jit
from kgdist.options import parse
from tests.cli.graphs import random_splits, write
from tests.exchange.test_adopt import save
from tests.patience import patience

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
KINDS = ("bash", "bash parsed", "python", "text", "yaml", "", "{toctree}", "{eval-rst}")
PROGRAMS = ("printf", "cat", "head", "ls", "mkdir", "cut", "cp", "awk")  # of the system, with their pipes and redirections
ELSEWHERE = ("ssh-keygen", "ssh-copy-id")  # what a block that is parsed only may hold beside our commands

COMPILED = jit.cached()  # where the loops are kept is settled before a page has a home folder of its own
_TRAIN = "--hidden_dim 16 --batch_size 128 --neg_sample_size 32 --log_interval 10 --eval_interval 10 --eval_percent .02"
SMALLER = {"train": f"{_TRAIN} --num_proc 1", "eval": "--eval_percent .02 --num_proc 1"}
SMALLER["tune"] = "--hidden_dim 16 --eval_percent .02 --trials 2 --validations 1 --jobs 1"
STEPS = ("--max_step", "20")  # for a training that says its length so, or not at all
SMALL = {"hidden_dim": 16, "batch_size": 128, "neg_sample_size": 32, "eval_interval": 10, "eval_percent": 0.02}
SMALL |= {"num_proc": 1, "max_step": 20}
FEW = 40  # the step at which a training that goes on ends


@dataclass(frozen=True)
class Block:
    """A fenced block: `kind` is what stands behind the opening fence."""

    page: str
    line: int
    kind: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its lines, continued ones put together, comments and blanks left out."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(name: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)(`{3,}|~{3,})([^`\n]*)\n(.*?)^\1\2$", text, re.MULTILINE | re.DOTALL):
        yield Block(name, text.count("\n", 0, found.start()) + 1, found[3].strip(), textwrap.dedent(found[4]))


def section(name: str) -> dict[str, str]:
    """The keys of a table of pyproject.toml, with what begins right of them."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split(f"[{name}]\n")[1].split("\n[")[0]
    return dict(re.findall(r'^([\w-]+) = "?([^"\n]+)', text, re.MULTILINE))


def scripts() -> dict[str, str]:
    """Command -> its entry point."""
    return section("project.scripts")


def ours(line: str) -> str | None:
    """The command of kgdist in a line, without what a shell does with it and remarks behind three blanks; None if none."""
    found = re.match(r"(?:again |eval \"\$\()?(kgdist(?:-[a-z-]+)?(?:\s.*?)?)(?=\)|\s[|>&(]|\s{3}|$)", line)
    return found[1] if found else None


def called(words: Sequence[str]) -> list[str]:
    """The command's own name, and its words: `kgdist train --lr 1` and `kgdist-train --lr 1` are the same."""
    return list(words[1:]) if words[0] == "kgdist" else [words[0].removeprefix("kgdist-"), *words[1:]]


def read_words(words: Sequence[str]) -> None:
    """Read the words by their command's parser, and no file that they name. Raises UsageError, OptionError."""
    command, *rest = called(words)
    parse.parser(command).parse_args(rest)


def expand(line: str) -> list[str]:
    """The words of a line as a shell has them: ~ and patterns of files written out."""
    words = []
    for word, quoted in zip(shlex.split(line), shlex.split(line, posix=False), strict=True):
        if quoted[0] in "'\"":
            words.append(word)
        else:
            word = os.path.expanduser(word)
            words += sorted(glob.glob(word)) or [word]
    return words


def small_train(data: Any = None, **options: Any) -> kgdist.Run:
    """`kgdist.train` as pages call it, smaller."""
    return functions.train(data, **options | SMALL)


def smaller(words: Sequence[str]) -> list[str]:
    """What is put behind the words of a page."""
    command = called(words)[0]
    if "--resume" in words:
        return ["--max_step", str(FEW)]
    steps = STEPS if command in ("train", "tune") and "--max_epoch" not in words else ()
    less = SMALLER.get(command, "")
    if "--candidates" in words:  # of which no sample is drawn
        less = less.replace("--neg_sample_size 32", "")
    return [*less.split(), *steps]


class Reader:
    """One who types the blocks of a page in `folder`, which is also the home folder; `as_written`: nothing is made smaller."""

    def __init__(self, folder: Path, *, as_written: bool = False) -> None:
        self.folder = folder
        self.as_written = as_written
        self.module = types.ModuleType("page")
        for place in ("data/FB15k", "my_task/FB15k"):
            for split, triples in zip(("train", "valid", "test"), random_splits(), strict=True):
                write(folder / place / f"{split}.txt", triples)
        for split, triples in zip(("train", "valid", "test"), random_splits(), strict=True):
            write(folder / f"{split}.tsv", triples)
        write(folder / "graph.tsv", list(itertools.chain(*random_splits())))
        save(folder / "my_pykeen_model", "ComplEx")

    def follow(self, block: Block) -> None:
        """Run a block. Raises AssertionError with the line that does not end well."""
        if block.kind == "python":
            named = re.match(r"# (\w+\.py)\n", block.text)
            file = self.folder / (named[1] if named else f"block_{block.line}.py")
            file.write_text(block.text, encoding="utf-8")
            if named:
                return
            importlib.machinery.SourceFileLoader("page", str(file)).exec_module(self.module)
            return
        for line in block.commands:
            code = self.type(line)
            assert code == 0, f"{block.page}:{block.line}: {line} ends with {code}"

    def type(self, line: str) -> int:
        """Run one line; its exit code. Raises AssertionError for a line that no rule covers."""
        first = line.split()[0]
        if ours(line) == line:
            words = expand(line)
            module, _, function = scripts()[first].partition(":")
            return int(
                getattr(importlib.import_module(module), function)([*words[1:], *([] if self.as_written else smaller(words))])
                or 0
            )
        if first in PROGRAMS:
            return subprocess.run(["bash", "-c", line], timeout=patience(60), stdout=subprocess.DEVNULL).returncode
        if first == "python3":
            command = [sys.executable, *line.split()[1:]]
            return subprocess.run(command, timeout=patience(120), stdout=subprocess.DEVNULL).returncode
        if first == "make":
            return 0 if re.search(rf"^{line.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE) else 2
        if first == "pip":
            return self.install(line)
        raise AssertionError(f"no rule says how to try: {line}")

    def install(self, line: str) -> int:
        """`pip install` of this project in its sources, for no registry has it, with extras that it has."""
        found = re.fullmatch(r"pip install '?\.(?:\[([\w,]+)\])?'?", line)
        asked = set((found[1] or "").split(",")) - {""} if found else {"?"}
        return 0 if asked <= set(section("project.optional-dependencies")) else 2
