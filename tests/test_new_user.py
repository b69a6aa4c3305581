"""The first hour of a new user, with the commands as installed: train the graph that ships, look at the report, ask by name,
leave out what is known, take the vectors elsewhere.

Smaller than the pages say (800 steps of 60 numbers), so that it is quick; asked of the answers is what even such a run knows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.patience import patience

RUN = "ckpts/RotatE_wordnet_0"


def command(folder: Path, line: str) -> str:
    """Run an installed command in `folder`; what it printed."""
    name, *words = line.split()
    script = Path(sys.executable).with_name(name)
    if not script.exists():
        pytest.skip("the commands of kgdist are not installed beside this Python")
    settings = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([str(script), *words], cwd=folder, env=settings, capture_output=True, text=True, timeout=patience(100))
    assert done.returncode == 0, done.stderr
    return done.stdout


def word2vec(file: Path) -> dict[str, np.ndarray]:
    """A plain reader of the text format: `words width`, then a word and its numbers in each line."""
    first, *lines = file.read_text(encoding="utf-8").splitlines()
    count, width = map(int, first.split())
    vectors = {word: np.array(numbers, np.float32) for word, *numbers in map(str.split, lines)}
    assert len(vectors) == len(lines) == count and {len(vector) for vector in vectors.values()} == {width}
    return vectors


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_from_training_to_using(tmp_path: Path) -> None:
    small = "--seed 0 --num_proc 1 --max_step 800 --hidden_dim 60"
    printed = command(tmp_path, f"kgdist-train --dataset wordnet --model_name RotatE --preset {small} --test --report")
    assert (
        f"saved in {RUN}" in printed and json.loads((tmp_path / RUN / "test.json").read_text())["all"]["realistic"]["mrr"] > 0.4
    )
    page = (tmp_path / RUN / "report.html").read_text(encoding="utf-8")
    assert "RotatE on wordnet" in page and "hypernym" in page

    ask = f"kgdist-predict {RUN} --head dog.n.01 --relation hypernym --topk 10"
    every, fresh = ([row.split() for row in command(tmp_path, line).splitlines()[1:]] for line in (ask, f"{ask} --exclude_known"))
    known = {"canine.n.02", "domestic_animal.n.01"}  # the two hypernyms that the graph has
    assert {tail for _, _, tail, _ in every[:2]} == known
    assert len(every) == len(fresh) == 10 and not known & {tail for _, _, tail, _ in fresh}
    assert every[2:] == fresh[:8]  # the others, in the same order

    command(tmp_path, f"kgdist-export {RUN} --to word2vec --out vectors")
    vectors = word2vec(tmp_path / "vectors/entity.txt")
    rows = np.load(tmp_path / RUN / "wordnet_RotatE_entity.npy", allow_pickle=False)
    names = [line.split("\t")[1] for line in (tmp_path / RUN / "entities.tsv").read_text(encoding="utf-8").splitlines()]
    assert list(vectors) == names and np.array_equal(np.stack(list(vectors.values())), rows)
