"""What people read is plain English, and written one way: the pages, `--help`, and every text that a command may print.

`tests/odd_phrases.tsv` has what was found odd so far, with what is better; add a line when you find more. Spelling is
codespell's (`make lint`, `.codespellrc`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs import reference
from kgdist.options.commands import EXAMPLES
from tests import docs_blocks
from tests.docs_blocks import blocks

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
MADE = {*(f"docs/{name}" for name in reference.pages()), "docs/scaling.md"}  # from tables whose numbers are typed, or measured
ROWS = [line.split("\t") for line in (ROOT / "tests/odd_phrases.tsv").read_text(encoding="utf-8").splitlines()[1:]]
ODD = [(re.compile(pattern), better) for pattern, better in ROWS]
ANY = re.compile("|".join(pattern for pattern, _ in ROWS))
SHELL_WIDTH = 90  # columns that a line to copy may take: a block of the site shows no more without scrolling


def prose(text: str) -> str:
    """A page without blocks and `code`, its lines where they were."""
    text = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2$", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "`", text)


def printed(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string of a Python file that is not a docstring; {} stands for what is filled in."""
    inside = set()  # parts of an f-string, and docstrings; a node comes before those in it
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr):
            inside.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            inside.update(map(id, node.values))
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def odd(text: str) -> list[str]:
    """What is odd in a text, and what is better."""
    text = " ".join(text.split())
    if text.count(" ") < 2 or not ANY.search(text):
        return []
    return [f"{found[0]!r}: better {better}" for pattern, better in ODD for found in pattern.finditer(text)]


def test_no_phrase_that_was_found_odd() -> None:
    found = []
    for page in PAGES:
        for paragraph in re.split(r"\n\s*\n|\n(?=[|#-])", prose(page.read_text(encoding="utf-8"))):
            found += [f"{page.relative_to(ROOT)}: {each}" for each in odd(paragraph)]
    for path in sorted((ROOT / "kgdist").rglob("*.py")):
        found += [f"{path.relative_to(ROOT)}:{line}: {each}" for line, text in printed(path) for each in odd(text)]
    for path in sorted((ROOT / "kgdist").rglob("templates/*.html")):
        found += [f"{path.relative_to(ROOT)}: {each}" for each in odd(path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_numbers_are_written_one_way() -> None:
    """.528, not 0.528, in prose and tables; what is typed or printed (`code`, blocks, generated pages) keeps its zero."""
    found = []
    for page in PAGES:
        if str(page.relative_to(ROOT)) not in MADE:
            for number, line in enumerate(prose(page.read_text(encoding="utf-8")).splitlines(), 1):
                if re.search(r"(?<![\d.\w])0\.\d(?!\.|\d*\.\d)", line.replace("DGL-KE 0.1", "").replace("(0.1 and later)", "")):
                    found.append(f"{page.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def long_shell_lines(name: str) -> Iterator[str]:
    """Lines of a page's shell blocks that are too long; in a block without a language, only those of our commands."""
    for block in blocks(name):
        if not block.kind or block.kind.startswith("bash"):
            ours = False
            for number, line in enumerate(block.text.splitlines(), block.line + 1):
                ours = ours or block.kind != "" or line.lstrip("$ ").startswith("kgdist")
                if ours and len(line) > SHELL_WIDTH:
                    yield f"{name}:{number}: {len(line)} columns: {line.strip()}"
                ours = ours and line.endswith("\\")


def test_lines_to_copy_are_short() -> None:
    """Longer ones are broken by a backslash."""
    found = [line for page in PAGES for line in long_shell_lines(str(page.relative_to(ROOT)))]
    for command, text in EXAMPLES.items():
        found += [f"{command} --help: {line}" for line in text.splitlines() if line[:2] == "  " and len(line) > SHELL_WIDTH]
    assert not found, "\n".join(found)


def test_lines_of_the_readme_are_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 130 and not line.startswith(("|", "  <img", "  <source"))] == []


def test_the_rules_see_what_they_forbid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\n{0}\n```\n\n```\n{0}\nkgdist-x \\\n{0}\n```\n".format("x" * 91))
    monkeypatch.setattr(docs_blocks, "ROOT", tmp_path)
    assert [line.split(":")[1] for line in long_shell_lines("page.md")] == ["2", "8"]
    assert odd("127.0.0.1 is no\n address of this machine") == ["'is no address': better is not a ..."]
    assert odd("it is no longer there, and rules it out") == []
    assert next(printed(ROOT / "kgdist/version.py"))[1].count(".") == 2
    assert prose("a `0.5` b\n```text\n0.5\n```\nc") == "a ` b\n\n\n\nc"
