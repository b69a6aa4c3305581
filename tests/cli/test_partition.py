"""kgdist-partition: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli import partition as command
from kgdist.partition.verify import open_all
from tests.cli.graphs import Bench, tree, write


def flags(bench: Bench, *words: str) -> list[str]:
    return [*bench.source(), *words]


def run(bench: Bench, *words: str) -> str:
    """Its standard output."""
    bench.capsys.readouterr()
    code = command.main(flags(bench, *words))
    captured = bench.capsys.readouterr()
    assert code == 0, captured.err
    return str(captured.out)


def refused(bench: Bench, *words: str) -> str:
    before = tree(bench.data)
    line = bench.refused(command.main, flags(bench, *words))
    assert {name for name in tree(bench.data) if ".kgdist" not in name} == {name for name in before if ".kgdist" not in name}
    return line


@pytest.mark.parametrize("spelling", ["-k 3", "--num-parts 3", "--num_parts 3", "--num-p=3"])
@pytest.mark.parametrize("method", ["metis", "streaming", "random"])
def test_it_writes_partitions_and_prints_their_sizes(bench: Bench, spelling: str, method: str) -> None:
    out = run(bench, *spelling.split(), "--method", method, "--verify")
    opened = open_all(bench.data / "toy", verify=True)
    common = opened[0].manifest.common
    assert (opened[0].name, len(opened), common.method, common.balance, common.seed) == ("toy", 3, method, "triples", 0)
    rows = [[int(cell.replace(",", "")) for cell in line.split()] for line in out.splitlines() if re.match(r" *\d+ ", line)]
    sizes = common.sizes
    assert rows == [
        list(row) for row in zip(range(3), *(sizes[name] for name in ("entities", "halo", "triples", "relations")), strict=True)
    ]
    assert sum(row[1] for row in rows) == 30 and sum(row[3] for row in rows) == 150
    assert f"cut: {sizes['cut']} of 150 triples" in out
    assert "verified: every triple of toy is in exactly one of the 3 partitions" in out
    assert re.search(r"assigning [\d.]+ s, writing [\d.]+ s, verifying [\d.]+ s; at most [\d,]+ MiB of memory", out)


def test_a_trial_prints_the_same_table_and_writes_nothing(bench: Bench) -> None:
    trial = run(bench, "-k", "3", "--dry_run")
    assert not (bench.data / "toy").exists() and "written" not in trial
    real = run(bench, "-k", "3")
    assert [line for line in trial.splitlines() if "assigning" not in line] == [
        line for line in real.splitlines() if "assigning" not in line and "written" not in line
    ]


def test_out_seed_and_balance_arrive(bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "a folder" / "$(id)"
    run(bench, "-k", "2", "--method", "random", "--seed", "7", "--balance", "entities", "--out", str(out))
    common = open_all(out)[0].manifest.common
    assert (common.seed, common.balance) == (7, "entities") and not (bench.data / "toy").exists()
    first = [partition.entities.tolist() for partition in open_all(out)]
    run(bench, "-k", "2", "--method", "random", "--seed", "8", "--balance", "entities", "--out", str(out))
    assert [partition.entities.tolist() for partition in open_all(out)] != first
    run(bench, "-k", "2", "--method", "random", "--seed", "7", "--balance", "entities", "--out", str(out))
    assert [partition.entities.tolist() for partition in open_all(out)] == first


def test_verify_alone_reads_what_is_there(bench: Bench) -> None:
    assert "has no folders partition_0" in refused(bench, "--verify")
    run(bench, "-k", "3")
    assert "verified: every triple of toy is in exactly one of the 3 partitions" in run(bench, "--verify")
    file = bench.data / "toy" / "partition_1" / "train.npy"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    assert f"{file}: its content has changed" in refused(bench, "--verify")


def test_text_partitions_are_written_read_and_taken_over(bench: Bench, tmp_path: Path) -> None:
    out = run(bench, "-k", "3", "--layout", "dglke", "--verify")
    assert sorted(file.name for file in (bench.data / "toy" / "partition_2").iterdir()) == [
        *("local_to_global.txt", "partition_book.txt", "relation_count.txt", "train.txt")
    ]
    table = [line for line in out.splitlines() if re.match(r" *\d+ |cut", line)]
    assert [line for line in run(bench, "--layout", "dglke", "--verify").splitlines() if line in table] == table
    assert "partition_0 is there already, and such text partitions" in refused(bench, "--method", "dglke")
    assert "--num_parts: there are 3 text partitions, not 2; drop it" in refused(bench, "--method", "dglke", "-k", "2")
    assert "a text partition; kgdist-partition --method dglke takes it over" in refused(bench, "--verify")
    run(bench, "--method", "dglke", "--out", str(tmp_path / "ours"), "--verify")
    opened = open_all(tmp_path / "ours")
    for partition in opened:
        book = (bench.data / "toy" / "partition_0" / "partition_book.txt").read_text().split()
        assert partition.entities.tolist() == [entity for entity, at in enumerate(book) if int(at) == partition.part]
    assert opened[0].manifest.common.method == "dglke"


def test_weights_are_kept(bench: Bench) -> None:
    rows = [(f"e{i}", "r", f"e{(i * 7 + 3) % 20}", i % 5 + 0.5) for i in range(60)]
    write(bench.data / "train.tsv", rows)
    words = ["--data_path", str(bench.data), "--dataset", "toy", "--format", "raw_udd_hrt", "--data_files", "train.tsv"]
    assert command.main([*words, "--has_edge_importance", "-k", "4", "--verify"]) == 0
    opened = open_all(bench.data / "toy")
    weights = np.concatenate([partition.train.weights for partition in opened if partition.train.weights is not None])
    assert sorted(weights.tolist()) == sorted(row[3] for row in rows)


def test_header_and_delimiter_arrive(bench: Bench) -> None:
    (bench.data / "train.csv").write_text("head,relation,tail\n" + "".join(f"a{i},r,a{i + 1}\n" for i in range(9)))
    words = ["--data_path", str(bench.data), "--format", "raw_udd_hrt", "--data_files", "train.csv", "--delimiter", ","]
    assert command.main([*words, "--header", "-k", "2"]) == 0
    opened = open_all(bench.data / "train")
    assert opened[0].book.num_entities == 10 and list(opened[0].vocabularies()[1]) == ["r"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--num_parts: say how many partitions: -k 4 for four machines"),
        ("-k 0", "--num_parts: must be an integer >= 1 and <= 65535, not 0"),
        ("-k -3", "--num_parts: must be an integer >= 1 and <= 65535, not -3"),
        ("-k four", "--num_parts: must be an integer >= 1 and <= 65535, not 'four'"),
        ("-k 2.0", "--num_parts: must be an integer >= 1 and <= 65535, not '2.0'"),
        ("-k 31", "--num_parts: 31 partitions of 30 entities: some would be empty; take fewer"),
        ("-k 2 --method fennel", "--method: must be one of metis, streaming, random, dglke, not 'fennel'"),
        ("-k 2 --balance work", "--balance: must be one of triples, entities, not 'work'"),
        ("-k 2 --seed -1", "--seed: must be an integer >= 0"),
        ("-k 2 --hidden_dim 4", "--hidden_dim: not an option of kgdist-partition"),
        ("--verify --seed 3", "--seed: has no say here"),
        ("--verify --method random", "--method: has no say here"),
        ("--method dglke --balance entities", "--balance: has no say here"),
        ("--method dglke", "has no text partitions partition_0"),
        ("-k 2 --dry_run --verify", "--verify: there is nothing to read after --dry_run; drop one of them"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(bench: Bench, words: str, message: str) -> None:
    assert message in refused(bench, *words.split())


def test_a_folder_that_cannot_be_written_is_named(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bench.capsys.readouterr()
    assert command.main(flags(bench, "-k", "2", "--out", str(tmp_path / "file"))) == 1
    assert "the partitions cannot be written" in bench.capsys.readouterr().err


def test_quiet_prints_no_notes(bench: Bench) -> None:
    bench.capsys.readouterr()
    assert command.main(flags(bench, "-k", "2", "--quiet")) == 0
    assert bench.capsys.readouterr().err == ""
