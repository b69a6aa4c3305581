"""The pages in a real browser, from a telephone's width to a large screen's, in light and dark: nothing overlaps, nothing is
pale, nothing sticks out, nothing goes wrong, and no name runs as code."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgdist.cli import inspect as inspect_command
from kgdist.cli import preprocess as preprocess_command
from kgdist.report.comparison import compare, write_page
from kgdist.report.search_report import write_search_report
from kgdist.tuning.trials import SearchFolder
from tests.attributes.entities import SCHEMA, rows, schema, write_jsonl
from tests.cli.graphs import FILES
from tests.report.browser import Browser, browser, program
from tests.report.conftest import HOSTILE
from tests.report.test_search_report import two_rounds
from tests.tuning.worlds import SPACE

MEASURE = (Path(__file__).parent / "measure.js").read_text(encoding="utf-8")
WIDTHS = (390, 620, 900, 1600)

# Whether what the Tab key visits stands in the order in which it is read, and can be seen when it is visited.
FOCUS = """[...document.querySelectorAll("a[href], button, summary, input")].filter((node) => node.checkVisibility()).every(
    (node) => node.tabIndex === 0 && (node.focus(), document.activeElement === node)
        && getComputedStyle(node).outlineStyle !== "none")"""

pytestmark = pytest.mark.skipif(program() is None, reason="no Chromium is installed to look at the page with")


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser."""
    with browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture(scope="module")
def compared(hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two runs, one of them called as badly as a folder can be."""
    folder = tmp_path_factory.mktemp("compared")
    other = folder / HOSTILE[0].replace("/", "")
    other.mkdir()
    text = (hostile / "config.json").read_text().replace('"seed": 3', '"seed": 4').replace('"lr": 0.1', '"lr": 0.25')
    (other / "config.json").write_text(text)
    (other / "metrics.jsonl").write_text((hostile / "metrics.jsonl").read_text())
    write_page(compare([hostile, other]), folder / "compared.html")
    return folder / "compared.html"


@pytest.fixture(scope="module")
def attributes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of attributes of every kind, and of one whose name and words are as bad as can be."""
    folder, bad = tmp_path_factory.mktemp("attributes"), HOSTILE[4]
    made = [{**row, bad: HOSTILE[number % len(HOSTILE)]} for number, row in enumerate(rows(90))]
    declared = schema(folder, SCHEMA + f'  "{bad}": {{kind: categorical}}\n')
    words = ["--entities", write_jsonl(folder / "e.jsonl", made), "--schema", declared, "--out", folder / "out"]
    assert preprocess_command.main([str(word) for word in (*words, "--report", folder / "page.html", "--quiet")]) == 0
    return folder / "page.html"


@pytest.fixture(scope="module")
def inspected(hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a graph of bad names, with every finding but a header, and more links than are seen at once."""
    folder = tmp_path_factory.mktemp("inspected")
    train, valid, test = ((hostile.parents[1] / name).read_text().splitlines(True) for name in FILES)
    turned = [line.rstrip("\n").split("\t") for line in train]
    more = [f"{t}\t{r} {number}\t{h}\n" for number in range(5) for h, r, t in turned]
    for name, lines in zip(FILES, ([*train, *more, train[0]], [*valid, train[1]], [*test, "cafÃ©\tr1\tnobody\n"]), strict=True):
        (folder / name).write_text("".join(lines))
    words = [*(str(folder / name) for name in FILES), "--report", str(folder / "page.html"), "--quiet"]
    assert inspect_command.main(words) == 0
    return folder / "page.html"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a search in two rounds, some of whose trials were stopped and one of which failed."""
    folder = tmp_path_factory.mktemp("searched")
    base, found = two_rounds(folder)
    return write_search_report(SearchFolder(folder), base, SPACE, found, whole=True)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "name", [pytest.param("report", marks=pytest.mark.slow), "compared", "attributes", "inspected", "searched"]
)
def test_a_page_looks_right(name: str, hostile: Path, eyes: Browser, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    eyes.problems.clear()
    page = hostile / "report.html" if name == "report" else request.getfixturevalue(name)
    eyes.open(page, width=WIDTHS[0], dark=False)
    grounds = set()
    for dark in (False, True):
        eyes.scheme(dark=dark)  # while the page is open: charts follow
        for width in WIDTHS:
            eyes.resize(width, 900)
            eyes.settle()
            for unfold in (False, True):
                eyes.ask(f"document.querySelectorAll('details').forEach((part) => {{ part.open = {str(unfold).lower()} }})")
                seen = eyes.ask(MEASURE)
                assert seen["found"] == [], (width, dark, unfold)
                assert seen["texts"] > 30
            grounds.add((dark, seen["colour"]))
    assert len(grounds) == 2
    assert eyes.ask(FOCUS)
    eyes.photograph(tmp_path / "page.png")
    image = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", image[16:24])[0] == WIDTHS[-1] and len(image) > 20_000
    assert eyes.ask("window.hacked ?? null") is None
    assert eyes.problems == []


@pytest.mark.timeout(240)
def test_a_legend_switches_its_line(hostile: Path, eyes: Browser) -> None:
    eyes.open(hostile / "report.html", width=900, dark=False)
    count = "document.querySelector('.chart').querySelectorAll('.scatterlayer .trace').length"
    before = eyes.ask(count)
    eyes.ask("document.querySelector('.legend button').click()")
    eyes.wait(f"{count} === {before - 1}")
    assert eyes.ask("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    eyes.ask("document.querySelector('.legend button').click()")
    eyes.wait(f"{count} === {before}")


@pytest.mark.timeout(240)
def test_faults_are_seen(eyes: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        """<!doctype html><html data-drawn="yes"><body style="margin:0"><header>one</header><main style="margin-left:9px">
        <p style="position:absolute;top:100px;left:10px">these words</p>
        <p style="position:absolute;top:102px;left:30px">and those</p>
        <p style="color:#bbb">pale</p><p style="white-space:nowrap;width:10px">"""
        + "long " * 200
        + """</p><div class="card" style="height:50px">a</div><div class="card" style="margin-top:-20px">b</div>
        <div class="chart"></div></main><footer>x</footer><script>console.error("a problem"); fetch("http://127.0.0.1:9/")</script>
        </body></html>"""
    )
    eyes.problems.clear()
    eyes.open(page, width=400, dark=False)
    kinds = {text.split(":")[0] for text in eyes.ask(MEASURE)["found"]}
    assert kinds == {
        "the page scrolls sideways", "sticks out", "overlap", "cards overlap", "a chart is not drawn", "pale",
        "header, main and footer do not stand below one another",
    }  # fmt: skip
    assert any("a problem" in text for text in eyes.problems) and any("the page loads" in text for text in eyes.problems)
