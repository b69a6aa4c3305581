"""kgdist-export on runs that were trained, on a run of DGL-KE's, and on what is no run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli import export as export_command
from tests.cli.graphs import Bench, tree


def exported(bench: Bench, run: Path, *words: str) -> list[str]:
    """Run the command; the lines it prints."""
    bench.out()
    assert export_command.main([str(run), *words]) == 0, bench.capsys.readouterr().err
    return bench.out().splitlines()


def refused(bench: Bench, *words: str) -> str:
    return bench.refused(export_command.main, words)


def test_a_trained_run_in_word2vec(bench: Bench) -> None:
    run = bench.train("--model_name", "RotatE", "-de")
    files = exported(bench, run, "--to", "word2vec")
    assert str(run / "export/word2vec/entity.txt") in files and len(files) == 5
    count, *lines = (run / "export/word2vec/entity.txt").read_text().splitlines()
    rows = np.load(run / "toy_RotatE_entity.npy")
    assert count == f"{len(rows)} {rows.shape[1]}"
    names = (run / "entities.tsv").read_text().splitlines()
    for line, name, row in zip(lines, names, rows, strict=True):
        word, *numbers = line.split(" ")
        assert word == name.split("\t")[1] and np.array_equal(np.array(numbers, np.float32), row)


def test_out_and_force(bench: Bench) -> None:
    run, out = bench.train(), bench.root / "vectors/here"
    exported(bench, run, "--out", str(out))
    assert "is there already; --force replaces it" in refused(bench, str(run), "--out", str(out))
    exported(bench, run, "--out", str(out), "--to", "parquet", "--tables", "entity", "--force")
    assert sorted(path.name for path in out.iterdir()) == ["entities.tsv", "entity.parquet", "export.json"]


def test_a_run_without_maps_is_exported_by_number(bench: Bench) -> None:
    run = bench.train()
    for name in ("entities.tsv", "relations.tsv"):
        (run / name).unlink()
    exported(bench, run, "--to", "word2vec")
    assert export_command.main([str(run), "--to", "projector"]) == 0
    assert "holds no names of its entities and relations; their numbers stand for them" in bench.capsys.readouterr().err
    assert (run / "export/word2vec/entity.txt").read_text().splitlines()[1].startswith("0 ")
    assert json.loads((run / "export/word2vec/export.json").read_text())["names"] is False


def test_maps_that_lie_with_the_data_are_found(bench: Bench) -> None:
    run = bench.train()
    for name in ("entities.tsv", "relations.tsv"):
        (run / name).rename(bench.data / name)
    exported(bench, run)
    assert tree(run / "export/npy")[str(run / "export/npy/entities.tsv")] == (bench.data / "entities.tsv").read_bytes()


def test_what_is_no_whole_run_is_refused(bench: Bench) -> None:
    run = bench.train()
    assert "--blank: has no effect here" in refused(bench, str(run), "--blank", "-")
    assert "no such run folder" in refused(bench, str(bench.root / "nothing"))
    assert "did you mean npy?" in refused(bench, str(run), "--to", "npz")
    entity = run / "toy_TransE_entity.npy"
    rows = np.load(entity)
    np.save(entity, rows.astype(object), allow_pickle=True)
    assert "not a readable .npy array" in refused(bench, str(run))
    np.save(entity, rows[:, :3])
    assert "expected float32[" in refused(bench, str(run))
    np.save(entity, np.float32(3))
    assert "expected float32[" in refused(bench, str(run))
    entity.write_bytes(entity.read_bytes()[:100])
    assert "not a readable .npy array" in refused(bench, str(run))
    entity.unlink()
    assert "toy_TransE_entity.npy: no such file" in refused(bench, str(run))
    (run / "toy_TransE_relation.npy").unlink()
    message = f"_entity.npy: no such file; the run was interrupted at step 20: finish it with kgdist-train --resume {run}"
    assert message in refused(bench, str(run))
    (run / "entities.tsv").unlink()
    assert message in refused(bench, str(run))
    (run / "config.json").write_text("{")
    assert "config.json: not readable as JSON" in refused(bench, str(run))


@pytest.mark.parametrize("to", ["npy", "dglke"])
def test_a_folder_that_cannot_be_made(bench: Bench, to: str) -> None:
    run = bench.train()
    assert "name another folder" in refused(bench, str(run), "--to", to, "--out", str(run / "config.json/inside"))
