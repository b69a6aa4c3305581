"""Tiny graphs in files, and the two commands run on them in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgdist.cli import eval as eval_command
from kgdist.cli import train as train_command
from kgdist.options.built_in import BUILT_IN
from kgdist.runs import checkpoint

Triple = tuple[str, str, str]
FILES = ("train.tsv", "valid.tsv", "test.tsv")
MODELS = tuple(BUILT_IN)
SMALL = "--hidden_dim 8 --gamma 4 --batch_size 16 --neg_sample_size 8 --lr 0.1 --max_step 20 --log_interval 10".split()


def write(path: Path, triples: Sequence[Sequence[object]]) -> None:
    """One triple (or longer row) a line, tab between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in triples))


def random_splits(entities: int = 30, relations: int = 4, train: int = 150, seed: int = 5) -> list[list[Triple]]:
    """Train, valid and test without repetition; 150, 12 and 12 random triples."""
    rng = np.random.default_rng(seed)
    numbers = rng.choice(entities * relations * entities, train + 24, replace=False)
    names = [(f"e{n // relations // entities}", f"r{n // entities % relations}", f"e{n % entities}") for n in numbers.tolist()]
    return [names[:train], names[train : train + 12], names[train + 12 :]]


def grid_splits(side: int = 5) -> list[list[Triple]]:
    """Steps right, left, up and down on a grid; held out are some whose way back is in train."""
    triples, held = [], []
    for x in range(side):
        for y in range(side):
            for name, (dx, dy) in {"right": (1, 0), "left": (-1, 0), "up": (0, 1), "down": (0, -1)}.items():
                if 0 <= x + dx < side and 0 <= y + dy < side:
                    target = held if name in ("left", "down") and (3 * x + y) % 4 == 0 else triples
                    target.append((f"{x},{y}", name, f"{x + dx},{y + dy}"))
    return [triples, held[:2], held[2:]]


def cored_splits(core: int = 40, ring: int = 600) -> list[list[Triple]]:
    """800 random triples among `core` entities, twice as many as `ring` in a ring around; 250 of the former, 20 of the latter."""
    inner, valid, test = random_splits(core, 3, train=1026)
    names = [f"o{n}" for n in range(ring)]
    outer = [(names[n - ahead], f"r{ahead}", names[n]) for n in range(ring) for ahead in (1, 2)]
    return [inner[:800] + outer[20:], inner[800:] + valid + test + outer[:20], test]


class Bench:
    """A graph in `<root>/data`, runs in `<root>/ckpts`, and the commands."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.data, self.ckpts, self.capsys = root, root / "data", root / "ckpts", capsys
        self.use(random_splits())

    def use(self, splits: Sequence[Sequence[Sequence[object]]]) -> None:
        """Write these splits over the ones there are."""
        for name, split in zip(FILES, splits, strict=False):
            write(self.data / name, split)

    def source(self, *files: str) -> list[str]:
        """The flags that name the graph."""
        names = files or FILES
        return ["--data_path", str(self.data), "--dataset", "toy", "--format", "raw_udd_hrt", "--data_files", *names]

    def flags(self, *words: str) -> list[str]:
        """A whole command line of kgdist-train; `words` come last and so win."""
        small = SMALL if "--max_epoch" not in words else [word for word in SMALL if word not in ("--max_step", "20")]
        return [*self.source(), "--save_path", str(self.ckpts), *small, *words]

    def runs(self) -> set[Path]:
        return set(self.ckpts.iterdir()) if self.ckpts.is_dir() else set()

    def train(self, *words: str) -> Path:
        """Train a new run; its folder."""
        before = self.runs()
        assert train_command.main(self.flags(*words)) == 0, self.capsys.readouterr().err
        (made,) = self.runs() - before
        return made

    def resume(self, run: Path, *words: str) -> None:
        """Go on with a run, from its own options."""
        before = self.runs()
        assert train_command.main(["--resume", str(run), *words]) == 0, self.capsys.readouterr().err
        assert self.runs() == before

    def eval(self, run: Path, *words: str) -> dict[str, Any]:
        """The metrics that kgdist-eval saves in the run."""
        (run / "test.json").unlink(missing_ok=True)
        assert eval_command.main([str(run), *words]) == 0, self.capsys.readouterr().err
        return metrics(run)

    def out(self) -> str:
        """What has been printed on stdout since the last look."""
        return str(self.capsys.readouterr().out)

    def refused(self, command: Callable[[Sequence[str]], int], words: Sequence[str]) -> str:
        """Run what must end with exit code 2, one line of error and no new file among the runs; that line."""
        before = tree(self.ckpts)
        self.capsys.readouterr()
        code = command(words)
        lines = self.capsys.readouterr().err.splitlines()
        assert code == 2, lines
        assert [line.startswith("error: ") for line in lines].count(True) == 1 and lines[-1].startswith("error: "), lines
        assert "Traceback" not in "".join(lines)
        assert tree(self.ckpts) == before
        return str(lines[-1])

    def train_refused(self, *words: str) -> str:
        return self.refused(train_command.main, self.flags(*words))

    def resume_refused(self, run: Path, *words: str) -> str:
        return self.refused(train_command.main, ["--resume", str(run), *words])

    def eval_refused(self, run: Path, *words: str) -> str:
        return self.refused(eval_command.main, [str(run), *words])


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` with its bytes; folders too."""
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")} if folder.is_dir() else {}


def metrics(run: Path, file: str = "test.json") -> dict[str, Any]:
    """A saved report without its duration."""
    report: dict[str, Any] = json.loads((run / file).read_text())
    report.pop("seconds")
    return report


def embeddings(run: Path) -> dict[str, np.ndarray]:
    """The run's .npy files by table."""
    return {path.stem.rpartition("_")[2]: np.load(path) for path in run.glob("*.npy")}


def state(run: Path) -> dict[str, bytes]:
    """Embeddings, and rows and optimiser state of the last checkpoint, bit for bit."""
    saved = checkpoint.latest(run)
    found = {f"{path.name}": path.read_bytes() for path in run.glob("*.npy")}
    assert found
    return (
        found | {key: np.ascontiguousarray(array).tobytes() for key, array in saved.arrays.items()} | {"step": b"%d" % saved.step}
    )


def rows(run: Path, kind: str) -> list[dict[str, Any]]:
    """The rows of one kind in metrics.jsonl."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]
