"""What people read is plain English, and written one way: the pages, `--help`, and every text that a command may print.

`tests/odd_phrases.tsv` has what was found odd so far, with what is better; add a line when you find more. Spelling is
codespell's (`make lint`, `.codespellrc`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs import reference

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
MADE = {*(f"docs/{name}" for name in reference.pages()), "docs/scaling.md"}  # from tables whose numbers are typed, or measured
ROWS = [line.split("\t") for line in (ROOT / "tests/odd_phrases.tsv").read_text(encoding="utf-8").splitlines()[1:]]
ODD = [(re.compile(pattern), better) for pattern, better in ROWS]
ANY = re.compile("|".join(pattern for pattern, _ in ROWS))


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


def test_the_rules_see_what_they_forbid() -> None:
    assert odd("127.0.0.1 is no\n address of this machine") == ["'is no address': better is not a ..."]
    assert odd("it is no longer there, and rules it out") == []
    assert next(printed(ROOT / "kgdist/version.py"))[1].count(".") == 2
    assert prose("a `0.5` b\n```text\n0.5\n```\nc") == "a ` b\n\n\n\nc"
