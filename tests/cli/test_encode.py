"""kgdist-encode: rows of entities that no training has seen are those that the encoder makes of the whole graph, and every later
command reads the run that holds them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kgdist
from kgdist.attributes.attribute_folder import open_attributes
from kgdist.base.errors import OptionError
from kgdist.cli import emb_sim, export, predict
from kgdist.cli import encode as encode_command
from kgdist.cli import preprocess as preprocess_command
from kgdist.cli import train as train_command
from kgdist.data.dataset import load_dataset
from kgdist.models.encoders.encode import encode
from kgdist.models.encoders.encoder import Encoder
from kgdist.models.encoders.message_graph import MessageGraph
from kgdist.options.configfile import read_run
from kgdist.options.of_encoders import ENCODERS
from kgdist.runs import checkpoint
from tests.attributes.entities import rows, schema, write_tsv
from tests.cli.graphs import FILES, Bench, Triple, embeddings, metrics, random_splits, tree, write
from tests.cli.test_encoders import words

HELD = ("e3", "e17")


def names_of(*splits: list[Triple]) -> list[str]:
    return sorted({name for split in splits for head, _, tail in split for name in (head, tail)})


class Inductive:
    """A graph without two of its entities, their triples, and everybody's attributes."""

    def __init__(self, bench: Bench, *, attributes: bool = True) -> None:
        self.bench = bench
        train, valid, test = random_splits()
        self.whole = train

        def away(split: list[Triple]) -> list[Triple]:
            return [triple for triple in split if not {triple[0], triple[2]} & set(HELD)]

        kept = [away(split) for split in (train, valid, test)]
        known = names_of(kept[0])
        kept[1:] = [[each for each in split if {each[0], each[2]} <= set(known)] for split in kept[1:]]
        bench.use(kept)
        self.known = known
        given = [each for each in train if {each[0], each[2]} & set(HELD)]
        self.given, self.asked = given[2:], given[:2]
        self.triples, self.test = bench.root / "new.tsv", bench.root / "asked.tsv"
        write(self.triples, self.given)
        write(self.test, self.asked)
        everybody = [*known, *HELD]
        table = [row | {"entity": name} for row, name in zip(rows(len(everybody)), everybody, strict=True)]
        table[-1]["country"] = "nowhere else"  # never seen when it was fitted
        table[-1]["population"] = "12"
        self.table = table
        self.new = write_tsv(bench.root / "held.tsv", table[-2:])
        self.folder = bench.root / "features"
        if attributes:
            of_known = write_tsv(bench.root / "known.tsv", table[:-2])
            made = ["--entities", str(of_known), "--schema", str(schema(bench.root)), "--out", str(self.folder)]
            assert preprocess_command.main([*made, *bench.source()]) == 0

    def encode(self, run: Path, *more: str, out: str = "grown") -> Path:
        folder = self.bench.root / out
        assert encode_command.main([str(run), "--out", str(folder), *more]) == 0, self.bench.capsys.readouterr().err
        return folder


@pytest.fixture
def inductive(bench: Bench) -> Inductive:
    return Inductive(bench)


def brute_force(inductive: Inductive, run: Path, grown: Path, triples: list[Triple], whole: Path | None) -> np.ndarray:
    """What the encoder of `run` makes of the graph of the run and `triples`, all read as one data set, with one folder of
    attributes that all of its entities have: by ids of the grown run."""
    config = read_run(run)
    names = [line.split("\t")[1] for line in (grown / "entities.tsv").read_text().splitlines()]
    relations = [line.split("\t")[1] for line in (grown / "relations.tsv").read_text().splitlines()]
    every = [line.split("\t") for line in (inductive.bench.data / "train.tsv").read_text().splitlines()] + [
        list(t) for t in triples
    ]
    ids = np.array([(names.index(head), relations.index(relation), names.index(tail)) for head, relation, tail in every])
    messages = MessageGraph.of(ids, len(names), len(relations), inverse=not config.no_inverse)
    saved = checkpoint.latest(run)
    attributes = None
    if whole is not None:
        (attributes,) = open_attributes(whole).values()
        assert list(attributes.entities) == names
    encoder = Encoder(config, messages.num_relations, attributes)
    encoder.use(torch.from_numpy(np.array(saved.arrays["encoder"])))
    own = torch.from_numpy(np.array(saved.arrays["entity"]))
    begin = encoder.begin(np.arange(len(own)), own) if attributes is not None else own
    mean = begin.detach().mean(0, keepdim=True)
    return encode(encoder, messages, torch.cat([own, mean.repeat(len(names) - len(own), 1)])).numpy()


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.slow
def test_without_anything_new_the_rows_are_the_runs_own(bench: Bench, encoder: str) -> None:
    run = bench.train(*words(encoder, "--seed", "3"))
    folder = bench.root / "same"
    known = bench.data / FILES[0]  # nothing new is said
    assert encode_command.main([str(run), "--triples", str(known), "--out", str(folder)]) == 0
    assert "no entity is new" in bench.capsys.readouterr().err
    made, own = embeddings(folder), embeddings(run)
    assert made.keys() == own.keys()
    for name in own:
        np.testing.assert_allclose(made[name], own[name], atol=1e-5)
    assert json.loads((folder / "encoded.json").read_text())["triples"] == 0
    assert (folder / "entities.tsv").read_bytes() == (run / "entities.tsv").read_bytes()


@pytest.mark.parametrize("encoder", ["rgcn", "compgcn", "sage"])
def test_an_entity_held_out_gets_the_row_that_the_encoder_makes_of_the_whole_graph(bench: Bench, encoder: str) -> None:
    inductive = Inductive(bench, attributes=False)
    run = bench.train(*words(encoder))
    grown = inductive.encode(run, "--triples", str(inductive.triples))
    made = embeddings(grown)
    assert made["entity"].shape == (len(inductive.known) + 2, 8)
    np.testing.assert_allclose(made["entity"], brute_force(inductive, run, grown, inductive.given, None), atol=1e-5)
    assert np.array_equal(made["relation"], embeddings(run)["relation"])
    names = [line.split("\t")[1] for line in (grown / "entities.tsv").read_text().splitlines()]
    assert names[: len(inductive.known)] == [line.split("\t")[1] for line in (run / "entities.tsv").read_text().splitlines()]
    assert set(names[-2:]) == set(HELD)


@pytest.mark.parametrize("given", [True, False])
def test_attributes_are_those_of_the_transforms_that_were_fitted(inductive: Inductive, given: bool) -> None:
    """Held against a folder that `kgdist-preprocess --fit_on` makes of everybody, fitted on the known ones."""
    bench = inductive.bench
    run = bench.train(*words("sage", "--attributes", str(inductive.folder)))
    triples = ["--triples", str(inductive.triples)] if given else []
    grown = inductive.encode(run, "--entities", str(inductive.new), *triples)
    err = bench.capsys.readouterr().err
    assert "1 words were not there when attributes were fitted: they are nothing" in err
    names = [line.split("\t")[1] for line in (grown / "entities.tsv").read_text().splitlines()]
    by_name = {row["entity"]: row for row in inductive.table}
    everybody = write_tsv(bench.root / "everybody.tsv", [by_name[name] for name in names])
    fit_on = bench.root / "known.txt"
    fit_on.write_text("\n".join(inductive.known) + "\n")
    whole = bench.root / "whole"
    made = ["--entities", str(everybody), "--schema", str(schema(bench.root)), "--out", str(whole), "--fit_on", str(fit_on)]
    assert preprocess_command.main(made) == 0
    expected = brute_force(inductive, run, grown, inductive.given if given else [], whole)
    np.testing.assert_allclose(embeddings(grown)["entity"], expected, atol=1e-5)


def test_every_later_command_reads_the_new_run(inductive: Inductive) -> None:
    bench = inductive.bench
    run = bench.train(*words("rgcn", "--attributes", str(inductive.folder), "--test"))
    before = tree(run)
    more = ["--entities", str(inductive.new), "--triples", str(inductive.triples), "--test", str(inductive.test)]
    grown = inductive.encode(run, *more)
    assert tree(run) == before
    ranked = metrics(grown)
    assert ranked["count"] == 2 * len(inductive.asked) and ranked["protocol"]["filter"] == ["train", "valid", "test"]
    assert f"Test average MRR : {ranked['all']['realistic']['mrr']:.6f}\n" in bench.out()
    assert bench.eval(grown) == ranked
    known = load_dataset(path=grown, name="toy")
    lines = sum((len((bench.data / name).read_text().splitlines()) for name in ("valid.tsv", "test.tsv")), 0)
    assert known.valid is not None and len(known.valid) == lines  # those of the run stay known to rankings
    assert len(known.train) == len((bench.data / "train.tsv").read_text().splitlines()) + len(inductive.given)
    answers = bench.root / "answers.tsv"
    assert predict.main([str(grown), "--head", HELD[0], "--relation", "r1", "--exclude_known", "--output", str(answers)]) == 0
    assert answers.read_text().splitlines()[1].startswith(f"{HELD[0]}\tr1\t")
    assert emb_sim.main([str(grown), "--left", HELD[1], "--output", str(bench.root / "alike.tsv")]) == 0
    assert export.main([str(grown), "--to", "word2vec", "--out", str(bench.root / "vectors")]) == 0
    again = inductive.encode(run, *more, "--force")
    assert metrics(again) == ranked


def test_a_run_keeps_its_test_triples_where_no_others_are_given(inductive: Inductive) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage"))
    grown = inductive.encode(run, "--triples", str(inductive.triples))
    assert not (grown / "test.json").exists()
    assert bench.eval(grown)["count"] == 2 * len((bench.data / "test.tsv").read_text().splitlines())


def test_the_weights_are_those_of_the_best_validation_where_that_was_chosen(bench: Bench) -> None:
    train, valid, _ = random_splits()
    bench.use([train, valid, valid])
    rates = ["--lr", "0.5", "--encoder_lr", "0.3", "--max_step", "100", "--early_stop_patience", "1"]
    run = bench.train(*words("sage", "--valid", "--eval_interval", "5", *rates))
    assert checkpoint.opened(run / "best").step < checkpoint.latest(run).step
    folder = bench.root / "same"
    assert encode_command.main([str(run), "--triples", str(bench.data / FILES[0]), "--out", str(folder)]) == 0
    np.testing.assert_allclose(embeddings(folder)["entity"], embeddings(run)["entity"], atol=1e-5)


def test_what_nothing_is_known_of_begins_with_the_mean_or_with_zeros(inductive: Inductive) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage", "--attributes", str(inductive.folder)))
    empty = bench.root / "empty.tsv"
    write_tsv(empty, [{**dict.fromkeys(inductive.table[0], None), "entity": name} for name in ("new one", "new two")])
    grown = inductive.encode(run, "--entities", str(empty))
    err = bench.capsys.readouterr().err
    assert f"2 of 2 new entities have no attributes in {empty}: they begin with the mean of what known ones begin with" in err
    assert "2 of 2 new entities have neither triples nor attributes, such as 'new one': their rows are alike" in err
    made = embeddings(grown)["entity"][-2:]
    np.testing.assert_allclose(made[0], made[1], atol=1e-6)  # the last rows of a product may be summed in another order
    zeros = embeddings(inductive.encode(run, "--entities", str(empty), "--start", "zeros", out="zeros"))["entity"][-2:]
    assert not np.allclose(zeros, made)
    np.testing.assert_allclose(zeros[0], zeros[1], atol=1e-6)


def test_known_entities_keep_the_attributes_that_they_have(inductive: Inductive) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage", "--attributes", str(inductive.folder)))
    others = [inductive.table[0] | {"population": "77"}, inductive.table[-1]]
    mixed = write_tsv(bench.root / "mixed.tsv", others)
    made = embeddings(inductive.encode(run, "--entities", str(mixed)))["entity"]
    assert (
        f"{mixed}: 1 of its entities are the run's own, and keep the attributes that they have" in bench.capsys.readouterr().err
    )
    np.testing.assert_allclose(made[:-1], embeddings(run)["entity"], atol=1e-5)
    alone = write_tsv(bench.root / "alone.tsv", others[:1])
    same = embeddings(inductive.encode(run, "--entities", str(alone), out="same"))["entity"]
    np.testing.assert_allclose(same, embeddings(run)["entity"], atol=1e-5)


def test_python_makes_the_same(inductive: Inductive) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage", "--attributes", str(inductive.folder)))
    grown = inductive.encode(run, "--triples", str(inductive.triples), "--entities", str(inductive.new))
    found = kgdist.load(run).encode(bench.root / "python", triples=inductive.triples, entities=inductive.new)
    assert np.array_equal(embeddings(found.path)["entity"], embeddings(grown)["entity"])
    assert len(found.entities) == len(inductive.known) + 2
    with pytest.raises(OptionError, match="say what is known of the new entities"):
        kgdist.load(run).encode(bench.root / "no")


def test_the_result_as_one_object(inductive: Inductive) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage"))
    bench.out()
    grown = inductive.encode(run, "--triples", str(inductive.triples), "--test", str(inductive.test), "--json")
    said = json.loads(bench.out())
    assert {name: said[name] for name in ("run", "known", "new", "triples")} == {
        "run": str(grown),
        "known": len(inductive.known),
        "new": 2,
        "triples": len(inductive.given),
    }
    assert said["test"]["all"] == metrics(grown)["all"]


def test_triples_may_come_in_other_forms(inductive: Inductive) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage"))
    plain = embeddings(inductive.encode(run, "--triples", str(inductive.triples)))["entity"]
    other = bench.root / "other.csv"
    other.write_text("relation,tail,head\n" + "".join(f"{r},{t},{h}\n" for h, r, t in [*inductive.given, inductive.given[0]]))
    more = ["--format", "raw_udd_rth", "--delimiter", ",", "--header"]
    again = inductive.encode(run, "--triples", str(other), *more, out="other")
    assert (again / "entities.tsv").read_bytes() == (inductive.bench.root / "grown" / "entities.tsv").read_bytes()
    np.testing.assert_allclose(embeddings(again)["entity"], plain, atol=1e-6)  # and a triple that appears twice counts once


# ---------------------------------------------------------------------------------------------------------------- what is refused
@pytest.fixture
def refused(inductive: Inductive) -> Iterator[Any]:
    bench = inductive.bench

    def ask(*more: str) -> str:
        line = bench.refused(encode_command.main, [*more, "--out", str(bench.root / "no")])
        assert not (bench.root / "no").exists()
        return line.removeprefix("error: ")

    yield ask


def test_runs_that_cannot_encode_are_refused(inductive: Inductive, refused: Any) -> None:
    bench, triples = inductive.bench, ["--triples", str(inductive.triples)]
    plain = bench.train("--model_name", "DistMult")
    assert refused(str(plain), *triples) == (
        f"{plain}: was trained without --encoder, so it has rows of the entities that it has seen and no others; train one with "
        "kgdist-train --encoder rgcn"
    )
    run = bench.train(*words("sage"))
    assert refused(str(run), *triples, "--entities", str(inductive.new)) == (
        f"--entities: {run} was trained without --attributes, so it has no use for any; drop it"
    )
    bare = bench.root / "bare"
    shutil.copytree(run, bare, ignore=shutil.ignore_patterns("ckpt-*", "best"))
    assert "has no checkpoint (best or ckpt-<step>), where the weights of its encoder are" in refused(str(bare), *triples)
    strange = bench.root / "strange"
    shutil.copytree(run, strange)
    path = next(strange.glob("*_relation.npy"))
    np.save(path, np.load(path) + 1)
    assert "its embeddings are not those of its checkpoints (ckpt-20)" in refused(str(strange), *triples)
    assert refused(str(bench.root / "nowhere"), *triples).endswith("no such run folder")


def test_data_that_has_changed_since_is_refused(inductive: Inductive, refused: Any) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage"))
    lines = (bench.data / "train.tsv").read_text().splitlines(keepends=True)
    (bench.data / "train.tsv").write_text("".join(lines[: len(lines) // 2]))
    line = refused(str(run), "--triples", str(inductive.triples))
    assert "its encoder makes other embeddings than it has saved; the triples of toy were changed since" in line


def test_wrong_lines_are_named(inductive: Inductive, refused: Any) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage"))
    bad = bench.root / "bad.tsv"
    write(bad, [("e1", "r1", "x"), ("x", "unheard", "e2")])
    assert refused(str(run), "--triples", str(bad)) == (
        f"{bad}:2: relation 'unheard' is not in the run {run}, which has rows of the relations it was trained on"
    )
    write(bad, [("e1", "r1", "e2"), ("e1", "r1")])
    assert refused(str(run), "--triples", str(bad)).startswith(f"{bad}:2: ")
    write(bad, [("e3", "r1", "e2"), ("somebody", "r1", "e2")])
    line = refused(str(run), "--triples", str(inductive.triples), "--test", str(bad))
    assert line == f"{bad}:2: head 'somebody' is not in the run, in --triples or in --entities"
    assert refused(str(run), "--triples", str(bench.root / "none.tsv")).endswith("no such file, expected triples")


def test_attributes_that_do_not_fit_are_refused(inductive: Inductive, refused: Any) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage", "--attributes", str(inductive.folder)))
    short = bench.root / "short.tsv"
    write_tsv(short, [{name: value for name, value in row.items() if name != "height"} for row in inductive.table[-2:]])
    assert refused(str(run), "--entities", str(short)) == (
        f"{short}:1: has no column 'height', which is an attribute in {inductive.folder}; add it, its fields empty "
        "where nothing is known"
    )
    wrong = bench.root / "wrong.tsv"
    write_tsv(wrong, [inductive.table[-1] | {"population": "many"}])
    assert refused(str(run), "--entities", str(wrong)).startswith(f"{wrong}:2: column 'population': ")
    write_tsv(wrong, [inductive.table[-1], inductive.table[-1]])
    assert refused(str(run), "--entities", str(wrong)) == f"{wrong}:3: entity 'e17' appears twice"
    write_tsv(wrong, [inductive.table[-1] | {"image": "1 2"}])
    assert refused(str(run), "--entities", str(wrong)).startswith(f"{wrong}:2: column 'image': a vector of 2 numbers")

    other = bench.root / "other"
    reordered = write_tsv(bench.root / "reordered.tsv", inductive.table[-3::-1])
    assert preprocess_command.main(["--entities", str(reordered), "--schema", str(schema(bench.root)), "--out", str(other)]) == 0
    line = refused(str(run), "--entities", str(inductive.new), "--attributes", str(other))
    assert line == (
        f"--attributes: {other} is of other entities than the run, or has them in another order; name the folder that it was "
        "trained with"
    )
    values = [row | {"country": "fr", "population": "3"} for row in inductive.table[:-2]]
    changed = write_tsv(bench.root / "changed.tsv", values)
    again = ["--entities", str(changed), "--schema", str(schema(bench.root)), "--out", str(other), "--force", *bench.source()]
    assert preprocess_command.main(again) == 2  # an attribute that is equal for all cannot be fitted
    values = [row | {"country": "fr" if place % 2 else "de"} for place, row in enumerate(inductive.table[:-2])]
    write_tsv(changed, values)
    assert preprocess_command.main(again) == 0
    line = refused(str(run), "--entities", str(inductive.new), "--attributes", str(other))
    assert line.startswith(f"--attributes: {other}: an encoder on it has ") and line.endswith("; name what it was trained with")
    shutil.rmtree(inductive.folder)
    line = refused(str(run), "--entities", str(inductive.new))
    assert line == f"--attributes: {inductive.folder}, which the run was trained with, is not there; say where it is"


def test_a_folder_that_does_not_say_its_columns_is_to_be_made_again(inductive: Inductive, refused: Any) -> None:
    run = inductive.bench.train(*words("sage", "--attributes", str(inductive.folder)))
    manifest = json.loads((inductive.folder / "manifest.json").read_text())
    for each in manifest["node_types"].values():
        del each["key"]
    (inductive.folder / "manifest.json").write_text(json.dumps(manifest))
    line = refused(str(run), "--entities", str(inductive.new))
    assert line.endswith("does not say how its columns were read; make it again by kgdist-preprocess, of the same files")


def test_what_is_in_the_way_stays(inductive: Inductive) -> None:
    bench = inductive.bench
    run = bench.train(*words("sage"))
    call = [str(run), "--triples", str(inductive.triples), "--out", str(run)]
    assert bench.refused(encode_command.main, [*call, "--force"]).endswith("holds other files already; name a new folder")
    grown = inductive.encode(run, "--triples", str(inductive.triples))
    line = bench.refused(encode_command.main, [*call[:-1], str(grown)])
    assert line.endswith(f"{grown}: is there already; --force replaces it")
    line = bench.refused(encode_command.main, [str(grown), *call[1:-1], str(bench.root / "twice")])
    assert line.endswith(f"{grown}: was written by kgdist-encode, and has no encoder; what was trained is {run}")
    line = bench.refused(train_command.main, ["--resume", str(grown)])
    assert line.endswith(f"{grown}: was written by kgdist-encode, so it cannot be trained further; what was trained is {run}")
