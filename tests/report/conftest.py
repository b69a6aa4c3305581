"""A run on a graph whose names are as bad as names can be, with its report; and a look into a page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from kgdist.cli import train as train_command
from tests.cli.graphs import FILES, random_splits, write

SCRIPT = "<script>window.hacked = 1</script>"
HOSTILE = [
    SCRIPT,
    '"><img src=x onerror="window.hacked = 2">',
    "</script></style></title><!-- <b>bold",
    "%{x} $x^2$ {{y}} <a href='javascript:window.hacked = 3'>link</a>",
    "a-name-without-a-place-to-break-" * 8,
    "имя\u202egnirts 名前 😀 &lt;&amp;",
]
RELATION = "/film/film/release_date_s./film/film_regional_release_date/film_release_distribution_medium</script>"
WORDS = (
    "--hidden_dim 8 --gamma 4 --batch_size 16 --neg_sample_size 8 --lr 0.1 --max_step 40 --log_interval 20 --model_name DistMult "
    "--seed 3 --valid --eval_interval 20 --test --report --quiet"
).split()


def train(folder: Path, *words: str) -> Path:
    """A run on the graph of `folder`, made in `folder/ckpts`."""
    runs = folder / "ckpts"
    before = set(runs.iterdir()) if runs.is_dir() else set()
    source = ["--data_path", str(folder), "--dataset", "toy", "--format", "raw_udd_hrt", "--data_files", *FILES]
    assert train_command.main([*source, "--save_path", str(runs), *WORDS, *words]) == 0
    (made,) = set(runs.iterdir()) - before
    return made


def graph(folder: Path) -> None:
    """Write a random graph of 30 entities, the hostile names among them."""
    names = dict(zip((f"e{number}" for number in range(30)), HOSTILE, strict=False)) | {"r0": RELATION}
    splits = [[[names.get(name, name) for name in triple] for triple in split] for split in random_splits()]
    for name, split in zip(FILES, splits, strict=True):
        write(folder / name, split)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run."""
    folder = tmp_path_factory.mktemp("hostile")
    graph(folder)
    return train(folder)


class Seen(HTMLParser):
    """What a page holds, as a browser reads it: elements with their attributes, and text outside of scripts and styles."""

    def __init__(self, page: Path | str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.broken = False
        self.feed(page if isinstance(page, str) else page.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "wbr":  # a place to break a name
            self.broken = True
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.broken = False
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open and self.open[-1] not in ("script", "style"):
            if self.broken and self.texts:
                self.texts[-1] += data
            else:
                self.texts.append(data)
        self.broken = False

    def with_class(self, name: str) -> int:
        """How many elements have that class."""
        return sum(name in (attributes.get("class") or "").split() for _, attributes in self.tags)
