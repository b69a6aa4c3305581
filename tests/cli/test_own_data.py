"""kgdist-split and kgdist-inspect on files that are made with one fault each: that fault is found, and no other."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli import eval as evaluate
from kgdist.cli import inspect, predict, split, train
from kgdist.data import dataset as dataset_module
from kgdist.data.dataset import load_dataset
from tests.report.conftest import Seen

Triple = tuple[str, str, str]
Files = dict[str, list[Triple]]


def clean() -> Files:
    """A graph with nothing wrong: 3 relations without inverses or duplicates, all entities in train."""
    rng = np.random.default_rng(5)
    rows = rng.integers(0, (40, 3, 40), (500, 3)).tolist()
    triples = sorted({(f"e{h}", f"r{r}", f"e{t}") for h, r, t in rows if h != t})
    order = rng.permutation(len(triples))
    mixed = [triples[place] for place in order]
    train, held_out = mixed[:-60], mixed[-60:]
    return {"train": train, "valid": held_out[:30], "test": held_out[30:]}


def write(folder: Path, files: Files) -> list[str]:
    for name, triples in files.items():
        (folder / f"{name}.tsv").write_text("".join("\t".join(triple) + "\n" for triple in triples))
    return [str(folder / f"{name}.tsv") for name in files]


def _header(files: Files) -> None:
    files["train"].insert(0, ("head", "relation", "tail"))


def _quotes(files: Files) -> None:
    for name, triples in files.items():
        files[name] = [(f'"{h}"', f'"{r}"', f'"{t}"') for h, r, t in triples]


def _repeated(files: Files) -> None:
    files["train"] += files["train"][:7]


def _in_train(files: Files) -> None:
    files["train"] += files["test"][:9]


def _inverse(files: Files) -> None:
    files["train"] += [(t, "inverse of r1", h) for part in files.values() for h, r, t in part if r == "r1"]


def _unseen(files: Files) -> None:
    files["test"].append(("nobody", "r1", "e1"))


def _encoding(files: Files) -> None:
    files["train"].append(("cafÃ©", "r1", "e1"))


FAULTS: dict[str, tuple[Callable[[Files], None], str]] = {
    "header": (_header, r"looks like the names of columns \(head relation tail\): --header"),
    "quotes": (_quotes, "100% of the names are in quotation marks"),
    "repeated": (_repeated, "train: 7 triples of"),
    "in train": (_in_train, "9 of 30 test triples are also in train"),
    "inverse": (_inverse, r"(valid|test) triples \(.*\) are in train in another form"),
    "unseen": (_unseen, "1 entity and 0 relations that train lacks"),
    "encoding": (_encoding, "another encoding"),
}


def found(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert inspect.main([*words, "--json"]) == 0
    findings: list[str] = json.loads(capsys.readouterr().out)["findings"]
    return findings


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_and_no_other(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = clean()
    assert found(write(tmp_path, files), capsys) == []
    break_it, said = FAULTS[name]
    break_it(files)
    (tmp_path / name).mkdir()
    findings = found(write(tmp_path / name, files), capsys)
    assert all(re.search(said, each) for each in findings)
    assert len(findings) == (2 if name == "inverse" else 1), findings  # of valid, and of test


def test_a_header_that_is_declared_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = clean()
    for triples in files.values():
        triples.insert(0, ("subject", "predicate", "object"))
    words = write(tmp_path, files)
    assert "looks like the names of columns" in found(words, capsys)[0]
    assert found([*words, "--header"], capsys) == []


def test_headers_and_quotes_are_taken_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = clean()
    _quotes(files)
    _header(files)
    words = write(tmp_path, files)
    assert len(found(words, capsys)) == 2
    assert found(["--header", "auto", "--quoted", *words], capsys) == []
    assert inspect.main(["--header", words[0], "--json"]) == 0  # the next word is a file
    assert json.loads(capsys.readouterr().out)["splits"]["train"]["triples"] == len(files["train"]) - 1
    assert split.main([words[0], "--header", "auto", "--quoted", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    parts = [(tmp_path / "out" / f"{name}.tsv").read_text().splitlines() for name in files]
    assert sorted(itertools.chain(*parts)) == sorted("\t".join(triple).replace('"', "") for triple in files["train"][1:])
    capsys.readouterr()
    (tmp_path / "bad.tsv").write_text('"a"\tr\tb\n"c\tr\td\n')
    assert split.main([str(tmp_path / "bad.tsv"), "--quoted", "--out", str(tmp_path / "none")]) == 2
    assert "bad.tsv:2: the quotation mark that opens field 1 is never closed" in capsys.readouterr().err


def test_for_people_and_of_a_known_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = clean()
    _inverse(files)
    assert inspect.main(write(tmp_path, files)) == 0
    shown = capsys.readouterr().out
    assert "40 entities, 4 relations" in shown and "inverse" in shown and "! " in shown and "--no_leaks" in shown
    (tmp_path / "empty.tsv").write_text("")
    assert inspect.main([str(tmp_path / "empty.tsv")]) == 2
    assert "empty.tsv" in capsys.readouterr().err
    assert inspect.main([str(tmp_path / "nothing.tsv")]) == 2


def test_the_page_and_what_it_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = clean()
    _inverse(files)
    words = [*write(tmp_path, files), "--report", str(tmp_path / "page.html"), "--json"]
    assert inspect.main(words) == 0
    facts = json.loads(capsys.readouterr().out)
    degrees = Counter(end for h, _, t in files["train"] for end in (h, t))
    for each in facts["degree"]["counts"]:
        assert each["entities"] == sum(each["lowest"] <= degree <= each["highest"] for degree in degrees.values())
    assert sum(each["entities"] for each in facts["degree"]["counts"]) == facts["entities"] == len(degrees)
    often = Counter(r for _, r, _ in files["train"])
    assert {each["relation"]: each["triples"] for each in facts["frequent"]} == often
    assert sum(facts["category_triples"].values()) == len(files["train"])
    seen = Seen(tmp_path / "page.html")
    shown = " ".join(seen.texts)
    assert seen.open == [] and "The data set train" in shown and "inverse of r1" in shown
    assert all(str(each).split(": kgdist-split")[0] in shown for each in facts["findings"])
    (tmp_path / "is_a_folder.html").mkdir()
    capsys.readouterr()
    assert inspect.main([*words[:-3], "--report", str(tmp_path / "is_a_folder.html")]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: --report: ") and "is a folder" in err and not out  # before the work


def test_what_was_split_is_clean_and_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = clean()
    _inverse(files)
    _repeated(files)
    everything = list(itertools.chain(*files.values()))
    (file,) = write(tmp_path, {"graph": everything})
    assert split.main([file, "--out", str(tmp_path / "out"), "--no_leaks"]) == 0
    said = capsys.readouterr().out
    assert "7 repeated triples left out" in said and "train" in said
    parts = [(tmp_path / "out" / f"{name}.tsv") for name in ("train", "valid", "test")]
    lines = [part.read_text().splitlines() for part in parts]
    assert sorted(itertools.chain(*lines)) == sorted({"\t".join(triple) for triple in everything})
    assert found([str(part) for part in parts], capsys) == []
    assert found([str(tmp_path / "out")], capsys) == []  # the folder, as it was written
    assert inspect.main([str(tmp_path / "out"), "--delimiter", ","]) == 2 and "--delimiter" in capsys.readouterr().err
    for words in ([str(tmp_path / "out"), str(parts[1])], ["wordnet", str(parts[1])]):
        assert inspect.main(words) == 2
        assert f"{words[0]}: " in (refused := capsys.readouterr().err) and "give files of train, valid and test" in refused
    assert split.main([file, "--out", str(tmp_path / "out")]) == 2 and "--force" in capsys.readouterr().err
    (tmp_path / "few.tsv").write_text("a\tr\tb\nc\tr\td\n")
    assert split.main([str(tmp_path / "few.tsv"), "--out", str(tmp_path / "none")]) == 2
    assert "leaves no triple for valid and test" in capsys.readouterr().err and not (tmp_path / "none").exists()


def test_weights_and_names_with_tabs_are_split_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weighed = {(f"an\t{h}", r, f"an\t{t}"): number + 1.0 for number, (h, r, t) in enumerate(itertools.chain(*clean().values()))}
    rows = [f'"{h}",{r},"{t}",{weight:g}\n' for (h, r, t), weight in weighed.items()]
    again = rows[3].replace(",4\n", ",9\n")  # a triple that is there twice has the first weight
    (tmp_path / "graph.csv").write_text("".join([*rows, again]))
    words = [str(tmp_path / "graph.csv"), "--delimiter", ",", "--quoted", "--quiet", "--out", str(tmp_path / "mine")]
    assert split.main(words) == 2 and "give --has_edge_importance" in capsys.readouterr().err
    words += ["--has_edge_importance"]
    assert split.main(words) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith("error: head 'an\\t") and "choose another --output_delimiter" in said
    )  # no line: it is none of the file
    assert not [*(tmp_path / "mine").glob("*.tsv")]
    assert split.main([*words, "--output_delimiter", "|"]) == 0
    own = {"format": "raw_udd_hrt", "files": [f"{name}.tsv" for name in clean()], "delimiter": "|"}
    data = load_dataset(path=tmp_path / "mine", name="mine", weighted=True, **own)
    entities, relations, read = [*data.entities], [*data.relations], {}
    for part in data.splits.values():
        assert part.weights is not None
        for (h, r, t), weight in zip(part.array.tolist(), part.weights.tolist(), strict=True):
            read[entities[h], relations[r], entities[t]] = weight
    assert read == weighed


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (_header, "looks like the names of columns (head relation tail); --header auto"),
        (_quotes, "100% of the names are in quotation marks, which become part of them; --quoted"),
        (_repeated, "of the training triples are repeated"),
        (_in_train, "15.00% of the valid and test triples are also in train"),
        (_inverse, "in another form"),
    ],
)
def test_a_training_warns_of_what_endangers_its_result(
    fault: Callable[[Files], None], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = clean()
    for broken in (False, True):
        if broken:
            fault(files)
        (tmp_path / str(broken)).mkdir()
        write(tmp_path / str(broken), files)
        caplog.clear()
        load_dataset(path=tmp_path / str(broken), name="own", format="raw_udd_hrt", files=[f"{name}.tsv" for name in files])
        assert [said in record.getMessage() for record in caplog.records] == [True] * broken


def test_a_split_whose_data_were_read_can_be_replaced_and_an_old_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("graph.tsv").write_text("".join("\t".join(triple) + "\n" for triple in itertools.chain(*clean().values())))
    assert split.main(["graph.tsv", "--out", "mine"]) == 0 == inspect.main(["mine"])
    words = "--dataset mine --data_path . --max_step 5 --hidden_dim 4 --batch_size 8 --neg_sample_size 4".split()
    assert train.main(words) == 0
    capsys.readouterr()
    assert evaluate.main(["ckpts/TransE_mine_0"]) == 0 and "have changed since" not in capsys.readouterr().err
    assert split.main(["graph.tsv", "--out", "mine", "--seed", "5", "--force"]) == 0, capsys.readouterr().err
    assert evaluate.main(["ckpts/TransE_mine_0"]) == 0
    assert "WARNING: ckpts/TransE_mine_0: . are not the data that it was trained on" in capsys.readouterr().err.replace(
        str(tmp_path), "."
    )
    (tmp_path / "mine" / "notes.txt").touch()
    assert split.main(["graph.tsv", "--out", "mine", "--force"]) == 2
    assert "mine/notes.txt: was not written by the command that wrote mine; move it" in capsys.readouterr().err


@pytest.mark.parametrize("leaking", [False, True])
def test_a_split_says_when_other_forms_answer_what_it_holds_out(
    leaking: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = clean()
    if leaking:
        _inverse(files)
    file = tmp_path / "graph.tsv"
    file.write_text("".join("\t".join(triple) + "\n" for triple in itertools.chain(*files.values())))
    for number, words in enumerate(([], ["--no_leaks"])):
        assert split.main([str(file), "--out", str(tmp_path / f"out{number}"), *words]) == 0
        said = capsys.readouterr().err
        assert ("in another form, by inverse, symmetric or duplicate relations; --no_leaks" in said) is (leaking and not words)


def test_who_only_asks_a_run_hears_nothing_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What distorts a result is said once where one is made: not in answers, nor again by the report of a training."""
    files = clean()
    _repeated(files)
    write(tmp_path, files)
    said: list[str] = []
    monkeypatch.setattr(dataset_module.log, "warning", lambda text, *words: said.append(text % words))
    words = f"--dataset own --data_path {tmp_path} --format raw_udd_hrt --data_files train.tsv valid.tsv test.tsv".split()
    words += f"--save_path {tmp_path / 'ckpts'} --max_step 5 --hidden_dim 4 --batch_size 8 --neg_sample_size 4 --report".split()
    assert train.main(words) == 0
    assert len([line for line in said if "are repeated" in line]) == 1
    for command, asked, told in ((evaluate, [], 1), (predict, ["--head", "e1", "--relation", "r1", "--exclude_known"], 0)):
        monkeypatch.setattr(dataset_module, "_told", set())  # as in a process of its own
        said.clear()
        place = ["--model_path"] if command is evaluate else []
        assert command.main([*place, str(tmp_path / "ckpts" / "TransE_own_0"), *asked]) == 0
        assert len([line for line in said if "are repeated" in line]) == told


def test_a_header_of_another_file_and_quoted_relations_are_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = clean()
    files["test"].insert(0, ("head", "relation", "tail"))
    for name in files:
        files[name] = [(h, f'"{r}"', t) for h, r, t in files[name]]
    findings = found(write(tmp_path, files), capsys)
    assert any("names of columns" in each for each in findings) and any("quotation marks" in each for each in findings)
