"""How large the package is, and how it hangs together: `python scripts/house.py` prints a table, and what breaks a limit.

Lines and files by folder; rooms (folders and loose files; each folder of runtime/ is one of its own); arrows and floors (imports
between the rooms, and the longest way up, runtime/ being one: fewer than the layers of docs/architecture.md, for a layer may
import none of the one below); imports inside functions; blocks of eight equal lines. The limits were set when the folders were
planned, before several features; a figure beyond one is marked, and nothing fails.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kgdist"
LIMITS = {"lines": 27_000, "files": 190, "loose files at the top": 2, "rooms": 28, "blocks of 8 equal lines": 0}
BLOCK = 8


def room(path: Path) -> str:
    """The folder that a file is in, below runtime/ the inner one; a loose file is a room of its own."""
    parts = path.relative_to(PACKAGE).parts
    if len(parts) == 1:
        return parts[0]
    return "/".join(parts[:2]) if parts[0] == "runtime" and len(parts) > 2 else parts[0]


def imported(path: Path) -> tuple[set[Path], int]:
    """The files of the package that a file imports, and how many of its imports stand inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found, inside = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            inside |= {each.lineno for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom)}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kgdist":
            for alias in node.names:
                names = f"{node.module}.{alias.name}".split(".")
                for depth in (len(names), len(names) - 1):
                    file = ROOT.joinpath(*names[:depth]).with_suffix(".py")
                    if file.exists():
                        found.add(file)
                        break
    return found, len(inside)


def floors(graph: dict[str, set[str]]) -> int:
    """The longest way up. Raises ValueError for a circle."""
    height: dict[str, int] = {}

    def of(name: str, below: tuple[str, ...] = ()) -> int:
        if name in below:
            raise ValueError(" -> ".join((*below[below.index(name) :], name)))
        if name not in height:
            height[name] = 1 + max((of(other, (*below, name)) for other in graph[name]), default=0)
        return height[name]

    return max(map(of, graph))


def equal_blocks(files: list[Path]) -> list[str]:
    """Places of blocks that stand in more than one, imports and signatures of protocols apart."""
    seen: dict[str, list[str]] = defaultdict(list)
    for path in files:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        code = [
            (number, line)
            for number, line in enumerate(lines, 1)
            if line and not re.match(r"(from|import|#|\"\"\"|[)\]}])", line)
        ]
        for at in range(len(code) - BLOCK + 1):
            block = "\n".join(line for _, line in code[at : at + BLOCK])
            seen[block].append(f"{path.relative_to(ROOT)}:{code[at][0]}")
    return [" = ".join(places) for places in seen.values() if len(places) > 1]


def main() -> int:
    """Print it."""
    files = sorted(PACKAGE.rglob("*.py"))
    sizes: dict[str, list[int]] = defaultdict(list)
    graph: dict[str, set[str]] = defaultdict(set)
    inside = 0
    for path in files:
        home = room(path)
        sizes[home].append(len(path.read_text(encoding="utf-8").splitlines()))
        others, count = imported(path)
        inside += count
        graph[home.split("/")[0]] |= {room(other).split("/")[0] for other in others} - {home.split("/")[0]}
    print(f"{'room':<20} {'files':>5} {'lines':>6}")
    for home, lines in sorted(sizes.items(), key=lambda each: -sum(each[1])):
        print(f"{home:<20} {len(lines):>5} {sum(lines):>6}")
    arrows = sum(map(len, graph.values()))
    loose = [home for home in sizes if home.endswith(".py")]
    blocks = equal_blocks(files)
    whole = {name: room for name, room in graph.items() if name != "__init__.py"}
    found = {
        "lines": sum(map(sum, sizes.values())),
        "files": len(files),
        "loose files at the top": len(loose),
        "rooms": len(sizes),
        "arrows": arrows,
        "imports inside functions": inside,
        "blocks of 8 equal lines": len(blocks),
    }
    for name, value in found.items():
        limit = LIMITS.get(name)
        print(
            f"{name:<28} {value:>6}" + (f"   (limit {limit}{'' if value <= limit else ': BEYOND'})" if limit is not None else "")
        )
    try:
        print(f"{'floors':<28} {floors({name: others & whole.keys() for name, others in whole.items()}):>6}")
    except ValueError as circle:
        print(f"rooms go round: {circle}")
    for block in blocks:
        print(f"equal: {block}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
