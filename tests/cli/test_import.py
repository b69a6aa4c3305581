"""kgdist-import: folders as DGL-KE and PyKEEN leave them become runs that the other commands take."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kgdist.cli import convert as convert_command
from kgdist.cli import export as export_command
from kgdist.cli import import_ as import_command
from kgdist.cli.kgdist import main as umbrella
from tests.cli.graphs import FILES, Bench, embeddings, tree, write
from tests.exchange.test_adopt import save

OLD = {"model_name": "model", "hidden_dim": "emb_size", "max_step": "max_train_step"}


def imported(bench: Bench, *words: str) -> Path:
    """Run the command; the run it makes."""
    before = bench.runs()
    assert import_command.main([*words, "--save_path", str(bench.ckpts)]) == 0, bench.capsys.readouterr().err
    (made,) = bench.runs() - before
    assert bench.out().endswith(f"saved in {made}\n")
    return made


def refused(bench: Bench, *words: str) -> str:
    return bench.refused(import_command.main, [*words, "--save_path", str(bench.ckpts)])


def dglke(bench: Bench, run: Path, *, old: bool = False) -> Path:
    """The folder that DGL-KE would have left of `run`, in the words of release 0.1 if `old`, and its maps beside the data."""
    out = bench.root / "theirs"
    assert export_command.main([str(run), "--to", "dglke", "--out", str(out)]) == 0
    for name in ("entities.tsv", "relations.tsv"):
        (out / name).rename(bench.data / name)
    if old:
        saved = json.loads((out / "config.json").read_text())
        keys = ("dataset", "model", "emb_size", "gamma", "lr", "batch_size", "double_ent", "double_rel", "emap_file", "rmap_file")
        (out / "config.json").write_text(json.dumps({key: saved[key] for key in keys}))
    bench.out()
    return out


@pytest.mark.parametrize("model", ["TransR", "RotatE"])
def test_a_folder_of_dglke_becomes_a_run(bench: Bench, model: str) -> None:
    run = bench.train("--model_name", model, "--test")
    metrics = bench.eval(run)
    made = imported(bench, str(dglke(bench, run)))
    assert (made / "entities.tsv").read_bytes() == (run / "entities.tsv").read_bytes()
    theirs = embeddings(run)
    assert all((rows == theirs[name]).all() for name, rows in embeddings(made).items())
    assert bench.eval(made)["all"] == metrics["all"]


def test_a_folder_of_its_first_release(bench: Bench) -> None:
    run = bench.train("--model_name", "ComplEx")
    metrics = bench.eval(run)
    theirs = dglke(bench, run, old=True)
    assert "--entity_mfile and --rel_mfile" in refused(bench, str(theirs), "--data_path", str(bench.root))
    made = imported(bench, str(theirs), *bench.source())
    assert bench.eval(made)["all"] == metrics["all"]
    for name in ("entities.tsv", "relations.tsv"):
        (bench.data / name).rename(bench.root / name)
    assert "lie neither there nor in --data_path" in refused(bench, str(theirs), *bench.source())
    maps = ("--entity_mfile", str(bench.root / "entities.tsv"), "--rel_mfile", str(bench.root / "relations.tsv"))
    made = imported(bench, str(theirs), *bench.source(), *maps)
    assert made.name == "ComplEx_toy_2" and bench.eval(made)["all"] == metrics["all"]


def test_names_of_ids_come_from_the_dictionaries(bench: Bench) -> None:
    ids = ["--data_files", *FILES, "--to", "udd_hrt", "--out", str(bench.root / "ids")]
    assert convert_command.main(["--data_path", str(bench.data), *ids]) == 0
    own = ("--data_path", str(bench.root / "ids"), "--format", "udd_hrt", "--data_files", "entities.tsv", "relations.tsv", *FILES)
    run = bench.train(*own)
    theirs = dglke(bench, run)
    made = imported(bench, str(theirs))
    assert (made / "entities.tsv").read_bytes() == (run / "entities.tsv").read_bytes()
    (bench.root / "ids/entities.tsv").unlink()
    assert "entities.tsv: no such file" in refused(bench, str(theirs))


def test_a_model_of_pykeen_becomes_a_run(bench: Bench) -> None:
    save(bench.root / "model", "ComplEx")
    bench.use([[("dog.n.01", "is a", "a,b")], [("a,b", "x\ty", "a,b")], [("a,b", '"of"', "dog.n.01")]][:1])
    made = imported(bench, str(bench.root / "model"), *bench.source("train.tsv"))
    assert made.name == "ComplEx_toy_0"
    assert umbrella(["export", str(made), "--to", "word2vec"]) == 0
    bench.out()
    assert umbrella(["import", str(bench.root / "model"), "--save_path", str(bench.root / "others")]) == 0
    assert (bench.root / "others/ComplEx_pykeen_0/relations.tsv").read_text() == '0\tis a\n1\t"of"\n2\tx\ty\n'


def test_the_example_says_what_is_understood(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of examples/from_pykeen/README.md, word for word, on arrays such as its program writes."""
    page = (Path(__file__).resolve().parents[2] / "examples/from_pykeen/README.md").read_text().replace("\\\n", "")
    lines = [line.split() for line in page.splitlines() if line.startswith("kgdist-")]
    monkeypatch.chdir(bench.root)
    save(bench.root / "my_pykeen_model", "RESCAL")
    for name in ("train", "valid", "test"):
        write(bench.data / f"{name}.txt", [("dog.n.01", "is a", "a,b"), ("a,b", '"of"', "a,b")])
    assert [words[0] for words in lines] == ["kgdist-import", "kgdist-eval"]
    for words in lines:
        assert umbrella([words[0].removeprefix("kgdist-"), *words[1:]]) == 0, bench.capsys.readouterr().err
    assert "Test average MRR" in bench.out()


def test_a_pickle_is_not_read(bench: Bench) -> None:
    folder = bench.root / "model"
    folder.mkdir()
    folder.joinpath("trained_model.pkl").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    assert "examples/from_pykeen/arrays.py, run where PyKEEN is installed, writes it; pickles are not read" in refused(
        bench, str(folder)
    )
    assert "pwned" not in {path.name for path in Path.cwd().iterdir()}


def test_what_cannot_be_taken_over(bench: Bench) -> None:
    run = bench.train()
    assert "is a run of kgdist already" in refused(bench, str(run))
    assert "--model_path: say which folder" in refused(bench)
    assert "no such folder" in refused(bench, str(bench.root / "nothing"))
    assert "not the model of DGL-KE (config.json), PyKEEN" in refused(bench, str(bench.data))
    assert "--entity_mfile: goes with --rel_mfile" in refused(bench, str(run), "--rel_mfile", "x")
    theirs = dglke(bench, run)
    whole = tree(theirs)
    for name, spoil, message in (
        ("toy_TransE_entity.npy", None, "toy_TransE_entity.npy: no such file"),
        ("toy_TransE_entity.npy", whole[str(theirs / "toy_TransE_entity.npy")][:50], "not a readable .npy array"),
        ("toy_TransE_entity.npy", whole[str(theirs / "toy_TransE_relation.npy")], "expected float32[30, 8]"),
        ("config.json", b"{}", "not the config.json of a run"),
    ):
        copy = bench.root / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(theirs, copy)
        (copy / name).unlink()
        if spoil is not None:
            (copy / name).write_bytes(spoil)
        assert message in refused(bench, str(copy))
    bench.data.joinpath("entities.tsv").write_text("0\ta\n")
    assert "expected float32[1, 8]" in refused(bench, str(theirs))
