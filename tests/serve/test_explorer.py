"""The page to explore in a real browser, from a telephone's width up, in light and dark, by the keyboard alone; no name runs as
code, and whoever has no token sees nothing."""

from __future__ import annotations

import itertools
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patience
from tests.report.browser import Browser, browser, program
from tests.report.conftest import HOSTILE, RELATION, graph
from tests.report.test_looks import MEASURE
from tests.serve.rig import TOKEN, Served, served, trained

pytestmark = [
    pytest.mark.skipif(program() is None, reason="no Chromium is installed to look at the page with"),
    pytest.mark.timeout(patience(120)),
]
FOCUS = "(document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.textContent)"
WHOLE = "document.documentElement.dataset.drawn === 'yes'"


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser."""
    with browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a graph whose names are as bad as names can be."""
    with served(trained(tmp_path_factory.mktemp("bad"), graph=graph)) as made:
        yield made


def open_page(eyes: Browser, server: Served, entity: str | None = None, *, width: int = 1280, dark: bool = False) -> None:
    """The page of an entity, or the first."""
    eyes.problems.clear()
    eyes.call("Page.navigate", url="about:blank")  # or else only the part after # would change
    eyes.own = (f"http://127.0.0.1:{server.port}/", "data:", "about:")
    rest = "" if entity is None else "#" + urllib.parse.urlencode({"entity": entity})
    eyes.open(f"{eyes.own[0]}{rest}", width=width, dark=dark)


def type_text(eyes: Browser, text: str) -> None:
    for letter in text:
        eyes.press(letter)


def texts(eyes: Browser, selector: str) -> list[str]:
    return list(eyes.ask(f"[...document.querySelectorAll({selector!r})].map((node) => node.textContent)"))


@pytest.mark.parametrize("name", [HOSTILE[1], HOSTILE[4], None], ids=["code", "long", "first"])
def test_the_page_looks_right(name: str | None, bad: Served, eyes: Browser, tmp_path: Path) -> None:
    open_page(eyes, bad, name, width=390)
    eyes.ask("document.querySelectorAll('.more, [aria-expanded=false][aria-controls^=why]').forEach((button) => button.click())")
    eyes.wait(WHOLE)
    grounds = set()
    for dark in (False, True):
        eyes.scheme(dark=dark)
        for width in (390, 1280):
            eyes.resize(width, 900)
            eyes.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            seen = eyes.ask(MEASURE)
            assert seen["found"] == [], (width, dark)
            grounds.add((dark, seen["colour"]))
    assert len(grounds) == 2
    eyes.photograph(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert eyes.ask("window.hacked ?? null") is None
    assert eyes.problems == []
    if name is not None:
        assert texts(eyes, "#title") == [name]
        assert len(texts(eyes, "#facts li, #likely li, #similar li")) > 20 and len(texts(eyes, ".why ol")) > 5
        assert RELATION in {each[2:] for each in texts(eyes, "#facts h4, #likely small")}


def test_what_is_shown_is_what_the_server_says(bad: Served, eyes: Browser) -> None:
    open_page(eyes, bad, "e7")
    known = bad.ask("/facts?entity=e7")[1]
    others = [row["tail"] if row["head"] == "e7" else row["head"] for row in known["facts"]]
    assert sorted(texts(eyes, "#facts li a")) == sorted(others)
    similar = bad.ask("/similar?entity=e7&k=10")[1]["answers"]
    assert texts(eyes, "#similar li a") == [row["entity"] for row in similar]
    pairs = {(row["relation"], row["head"] == "e7") for row in known["facts"]}
    asked = [{"relation": relation, "head" if of_head else "tail": "e7"} for relation, of_head in pairs]
    found = bad.ask("/predict", {"k": 4, "exclude_known": True, "questions": asked})[1]["results"]
    rows = [row for each in found for row in each["answers"] if row["head"] != row["tail"]]
    likely = {
        (row["tail"], f"→ {row['relation']}") if row["head"] == "e7" else (row["head"], f"← {row['relation']}"): row["score"]
        for row in rows
    }
    told = list(zip(texts(eyes, "#likely li a"), texts(eyes, "#likely small"), strict=True))
    best = sorted(likely.values(), reverse=True)[:10]
    assert [likely[row] for row in told] == best and len(set(told)) == 10  # equal ones in any order
    probabilities = sorted((row["probability"] for row in rows), reverse=True)
    assert texts(eyes, "#likely b") == [f"{round(100 * each)}%" for each in probabilities[:10]]
    assert len(texts(eyes, "#map circle")) == 30  # it and all others


def test_labels_go_before_names(run: Path, tmp_path: Path, eyes: Browser) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    lines = [f"e{number}\tLabel {number} <i>of</i> it\n" for number in range(0, 30, 2)]
    (copy / "labels.tsv").write_text("".join(lines) + "r0\tis near\n")
    with served(copy) as made:
        open_page(eyes, made)
        eyes.ask("document.getElementById('entity').focus()")
        type_text(eyes, "label 12")
        eyes.wait("document.querySelectorAll('#entities li').length === 1")
        eyes.press("Enter")
        eyes.wait(f"document.title.startsWith('Label 12') && {WHOLE}")
        assert texts(eyes, "#title .label") == ["Label 12 <i>of</i> it"] and texts(eyes, "#title .id") == ["e12"]
        assert eyes.ask("decodeURIComponent(location.hash)") == "#entity=e12"
        shown = dict(zip(texts(eyes, "#similar li a .id"), texts(eyes, "#similar li a .label"), strict=True))
        assert shown and all(label == f"Label {name[1:]} <i>of</i> it" for name, label in shown.items())
        assert eyes.problems == [] and eyes.ask(MEASURE)["found"] == []


def test_all_is_reached_by_keyboard(server: Served, eyes: Browser) -> None:
    open_page(eyes, server)
    eyes.press("/")
    assert eyes.ask(FOCUS) == "entity"
    type_text(eyes, "e2")
    options = "[...document.querySelectorAll('#entities [role=option]')]"
    eyes.wait(f"{options}.length > 3 && !document.getElementById('entities').hidden")
    eyes.press("Escape")
    assert eyes.ask("document.getElementById('entities').hidden")
    type_text(eyes, "1")
    eyes.wait(f"{options}.length === 1 && !document.getElementById('entities').hidden")
    eyes.press("ArrowDown")
    marked = "document.getElementById(document.getElementById('entity').getAttribute('aria-activedescendant'))"
    assert eyes.ask(f"{marked}.textContent") == "e21" and eyes.ask(f"{marked}.getAttribute('aria-selected')") == "true"
    eyes.press("Enter")
    eyes.wait(f"document.title.startsWith('e21') && {WHOLE}")
    assert eyes.ask(FOCUS) == "title"

    focused: list[str] = []  # from the title to the end of the page, each with its place and a mark that can be seen
    places: list[Any] = []
    for _ in range(200):
        eyes.press("Tab")
        if eyes.ask("document.activeElement === document.body"):
            break
        focused.append(eyes.ask(FOCUS))
        places.append(
            eyes.ask(
                "(() => { const box = document.activeElement.getBoundingClientRect();"
                "const style = getComputedStyle(document.activeElement);"
                "return [document.activeElement.closest('section').getAttribute('aria-labelledby'), box.top + scrollY,"
                " style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2]; })()"
            )
        )
    cards = [card for card, *_ in places]
    assert list(dict.fromkeys(cards)) == ["facts-title", "likely-title", "similar-title"]
    assert all(seen for *_, seen in places)
    for card in set(cards):  # downwards, in each
        tops = [top for each, top, _ in places if each == card]
        assert all(later >= earlier - 12 for earlier, later in itertools.pairwise(tops))
    shown = len(texts(eyes, "#facts li:not([hidden]) a")), len(texts(eyes, "#likely li")), len(texts(eyes, "#similar li"))
    assert len(focused) >= 2 * shown[0] + 2 * shown[1] + shown[2] + 2 and {"relation", "side"} <= set(focused)

    eyes.ask("document.querySelector('#likely button').focus()")
    eyes.press("Enter")
    eyes.wait("document.querySelector('#likely button').getAttribute('aria-expanded') === 'true'")
    (told,) = texts(eyes, "#likely .why:not([hidden]) > p:first-child")
    assert "probability" in told and "not in the data" in told and "among tails" in told
    assert 0 < len(texts(eyes, "#likely .why:not([hidden]) ol li")) <= 5
    eyes.press("Enter")
    assert eyes.ask("document.querySelector('#likely .why').hidden")

    eyes.ask("document.getElementById('relation').focus()")  # another relation than those of its facts
    type_text(eyes, "r3")
    eyes.press("Enter")
    eyes.wait(f"{WHOLE} && [...document.querySelectorAll('#likely small')].every((each) => each.textContent === '→ r3')")
    wanted = server.ask("/predict?head=e21&relation=r3&k=10&exclude_known=true")[1]["answers"]
    assert texts(eyes, "#likely li a") == [row["tail"] for row in wanted]

    eyes.ask("document.querySelector('#similar a').focus()")
    other = eyes.ask(FOCUS)
    eyes.press("Enter")
    eyes.wait(f"document.title.startsWith('{other} ') && {WHOLE}")
    eyes.ask("history.back()")
    eyes.wait(f"document.title.startsWith('e21 ') && {WHOLE}")
    assert eyes.problems == []


def test_an_unknown_name_is_answered_with_links_to_near_ones(server: Served, eyes: Browser) -> None:
    open_page(eyes, server, "E12 ")
    message = "document.getElementById('message')"
    assert "no entity is called" in eyes.ask(f"{message}.textContent") and "e12" in texts(eyes, "#message a")
    eyes.ask(f"[...{message}.querySelectorAll('a')].find((link) => link.textContent === 'e12').click()")
    eyes.wait(f"document.title.startsWith('e12 ') && {WHOLE} && {message}.hidden")


def test_a_token_is_asked_once_and_what_is_not_there_is_said(tmp_path: Path, eyes: Browser) -> None:
    run = trained(tmp_path)
    shutil.rmtree(tmp_path / "data")
    with served(run, TOKEN.encode(), max_k=3, max_questions=2) as server:
        open_page(eyes, server)
        assert eyes.ask(FOCUS) == "token" and eyes.ask("document.getElementById('search').hidden")
        assert eyes.ask(MEASURE)["found"] == []
        type_text(eyes, "wrong")
        eyes.press("Enter")
        eyes.wait(f"!document.getElementById('message').hidden && {WHOLE}")
        type_text(eyes, TOKEN)
        eyes.press("Enter")
        eyes.wait(f"document.getElementById('door').hidden && {WHOLE}")
        assert eyes.ask(FOCUS) == "entity" and texts(eyes, "#some a") and eyes.ask("document.getElementById('message').hidden")
        eyes.ask("document.querySelector('#some a').click()")
        eyes.wait(f"!document.getElementById('found').hidden && {WHOLE}")
        eyes.call("Page.reload")
        eyes.wait(f"document.getElementById('title')?.textContent && {WHOLE}")
        assert "--data_path" in eyes.ask("document.getElementById('facts-caption').textContent")
        assert texts(eyes, "#likely b") and "not calibrated" in eyes.ask("document.getElementById('likely-caption').textContent")
        assert eyes.problems == []


def test_a_browser_may_do_nothing_else_with_it(server: Served) -> None:
    connection = server.connect()
    for path, kind in {"/": "text/html", "/explorer.css": "text/css", "/explorer.js": "text/javascript"}.items():
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.read() and answer.status == 200 and answer.headers["content-type"] == f"{kind}; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';") and "unsafe" not in policy
    connection.close()
