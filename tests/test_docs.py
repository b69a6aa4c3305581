"""The pages are true: they build without a warning, what is generated is current, and every command in them runs or is parsed.

`tests/docs_blocks.py` says which blocks are run, and at which size.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kgdist
from docs import reference
from kgdist.base.errors import KgdistError
from kgdist.distributed import current
from kgdist.exchange.embeddings import TARGETS
from kgdist.models.registry import model_of, settle
from kgdist.options.built_in import BUILT_IN
from kgdist.options.config import OPTIONS, Config
from kgdist.options.tools import TOOLS
from tests.docs_blocks import (
    ELSEWHERE,
    KINDS,
    NAMES,
    ROOT,
    Block,
    Reader,
    blocks,
    expand,
    ours,
    read_words,
    scripts,
    small_train,
    smaller,
)
from tests.own_models import as_before
from tests.patience import patience

DOCS = ROOT / "docs"
# Several machines; a server; examples of --help.
MAY_BE_PARSED = re.compile(r"README.md|docs/(cluster|distributed-graph|ray|serving|tutorial).md|docs/commands/.*")
RUN = ("bash", "python")
LONG = ("docs/distributed-graph.md", "docs/encoders.md")  # pages whose blocks take more than some five seconds
PAGES_THAT_RUN = [
    pytest.param(name, marks=pytest.mark.slow) if name in LONG else name
    for name in NAMES
    if any(block.kind in RUN for block in blocks(name))
]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a page registers is gone after it."""
    with as_before():
        yield


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html", "-d", str(tmp_path / "trees")]
    done = subprocess.run(
        [*command, str(DOCS), str(tmp_path / "html")], cwd=ROOT, capture_output=True, text=True, timeout=patience(250)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = {str(path.relative_to(tmp_path / "html").with_suffix("")) for path in (tmp_path / "html").rglob("*.html")}
    assert made >= {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}


def test_generated_pages_are_current() -> None:
    made = reference.pages()
    there = {name: (DOCS / name).read_text(encoding="utf-8") for name in made if (DOCS / name).exists()}
    assert there == made, "python docs/reference.py"
    assert {f"commands/{path.name}" for path in (DOCS / "commands").iterdir()} == {name for name in made if "/" in name}


def test_every_command_has_a_page_with_all_its_options() -> None:
    made = reference.pages()
    assert {f"commands/{name.removeprefix('kgdist-')}.md" for name in scripts() if name != "kgdist"} <= set(made)
    assert all(f"`{flag}`" in made["options.md"] for row in OPTIONS.values() for flag in row.flags)
    for command in TOOLS:
        assert all(f"`{flag}`" in made[f"commands/{command}.md"] for row in reference.options(command) for flag in row.flags)


def test_every_name_of_the_python_api_is_documented() -> None:
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    assert [name for name in kgdist.__all__ if f"kgdist.{name}" not in page and name != "__version__"] == []


@pytest.mark.parametrize("name", ["options.md", "commands/train.md", "commands/predict.md"])
def test_tables_are_of_even_width(name: str) -> None:
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in reference.pages()[name].splitlines() if line.startswith("|")}
    assert widths <= ({6, 8} if name == "options.md" else {5})


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_run_or_parsed(name: str) -> None:
    found = list(blocks(name))
    fences = re.findall(r"^ *[`~]{3}", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(found), f"{name}: a block does not end, or not as it begins"
    for block in found:
        place = f"{name}:{block.line}"
        assert block.kind in KINDS, f"{place}: no rule for a block of {block.kind!r}"
        if block.kind == "bash parsed":
            assert MAY_BE_PARSED.fullmatch(name), f"{place}: let it run"
            assert any(map(ours, block.commands)) or block.commands[0].split()[0] in ELSEWHERE, place
            parsed(block)
        elif block.kind not in RUN:
            assert not any(ours(line.removeprefix("$ ")) and "[options]" not in line for line in block.commands), place


def parsed(block: Block) -> None:
    """Every command of kgdist in a block has flags and values that it takes."""
    text = block.text
    for variable, value in re.findall(r"\b([A-Z]+)=(\S+)", text):
        text = text.replace(f'"${variable}"', value)
    for line in filter(None, map(ours, Block(block.page, block.line, "bash", text).commands)):
        try:
            read_words(["1" if "$" in word else word for word in shlex.split(line)])
        except KgdistError as error:
            pytest.fail(f"{block.page}:{block.line}: {line}: {error}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PAGES_THAT_RUN)
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(kgdist, "train", small_train)
    monkeypatch.setattr(current, "_current", [])  # graphs and tensors that a page opens are gone after it
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    for block in blocks(name):
        if block.kind in RUN:
            reader.follow(block)
    if name == "docs/formats.md":  # which computes a score from the files
        found = kgdist.load(reader.module.run).score("dog.n.01", 0, "domestic_animal.n.01")
        assert reader.module.score == pytest.approx(found, rel=1e-5)


def test_the_table_of_memory_is_that_of_the_models() -> None:
    d = 6
    sizes = {"d": d, "2 d": 2 * d, "d²": d * d, "d + d²": d + d * d}
    rows = re.findall(r"^\| ([^|]+) \| ([2d² +]+) \| ([2d² +]+) \|$", (DOCS / "choosing.md").read_text(), re.MULTILINE)
    told = {name: (sizes[entity], sizes[relation]) for names, entity, relation in rows for name in re.findall(r"\w+", names)}
    for name in BUILT_IN:
        config, _ = settle(Config(model_name=name, hidden_dim=d))
        tables = model_of(config).tables(1, 1)
        widths = tables["entity"][1], sum(width for table, (_, width) in tables.items() if table != "entity")
        assert told["TransE_l2" if name == "TransE" else name] == widths, name


@pytest.mark.parametrize("name", NAMES)
def test_no_page_installs_from_a_registry(name: str) -> None:
    """None has it; what has been installed installs its extras by name in any folder, so messages may say that."""
    assert re.findall(r"pip install '?kgdist", (ROOT / name).read_text(encoding="utf-8")) == []


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", text)
    links = [link for pair in links for link in pair if link and "://" not in link]
    assert links and [link for link in links if not (ROOT / link).exists()] == []


def test_every_format_of_embeddings_is_explained() -> None:
    page = (DOCS / "formats.md").read_text(encoding="utf-8")
    assert [name for name in TARGETS if f"`{name}`" not in page] == []


def test_the_files_that_a_change_takes_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [
        re.findall(r"`([\w/.]+/[a-z_]+\.\w+)`", files)
        for _, files in re.findall(r"^\| ([a-z].*?) \| (.*) \|$", text, re.MULTILINE)
    ]
    assert len(rows) >= 20 and all(len(row) <= 3 for row in rows)
    lost = [path for row in rows for path in row if not (ROOT / "kgdist" / path).exists() and not (ROOT / path).exists()]
    assert lost == []


def test_the_rules_see_what_they_forbid(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    assert reader.type("pip install '.[docs]'") == 0 and reader.type("pip install '.[nothing]'") == 2
    assert reader.type("pip install kgdist") == 2
    assert reader.type("make docs") == 0 and reader.type("make nothing") == 2
    with pytest.raises(AssertionError, match="no rule"):
        reader.type("rm -r /nowhere")
    with pytest.raises(pytest.fail.Exception, match="no such option"):
        parsed(Block("page", 1, "bash parsed", "kgdist-train --no_such_flag 3\n"))
    assert expand("kgdist-predict 'h_r_*' ~/x")[1] == "h_r_*" and "~" not in expand("ls ~/x")[1]
    assert "--max_step" not in smaller(["kgdist-train", "--max_epoch", "3"])


def test_every_target_of_make_has_one_rule_and_pages_name_no_other() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    made = re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE)
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert sorted(made) == sorted(phony.split())
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.py")]
    named = {word for page in pages for word in re.findall(r"`make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert named <= set(made), named - set(made)
