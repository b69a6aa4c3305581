"""kgdist-partition: what it prints and writes, and what it refuses in one line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli import partition as command
from kgdist.distributed.current import use
from kgdist.distributed.dist_graph import DistGraph
from kgdist.distributed.standalone import Standalone
from kgdist.partition.edges_verify import open_edges
from kgdist.partition.expansion import Reach
from kgdist.partition.partition_graph import open_partitions
from kgdist.partition.verify import open_all
from tests.cli.graphs import FILES, Bench, random_splits, tree, write


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
    files = [Path(file) for file in common.source["data_files"]]  # a run on partitions that lie elsewhere finds the data by it
    assert files == [bench.data.absolute() / name for name in FILES]
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
        ("-k 2 --method fennel", "--method: must be one of metis, streaming, random, dglke, hdrf, dbh, not 'fennel'"),
        ("-k 2 --balance work", "--balance: must be one of triples, entities, not 'work'"),
        ("-k 2 --seed -1", "--seed: must be an integer >= 0"),
        ("-k 2 --hidden_dim 4", "--hidden_dim: not an option of kgdist-partition"),
        ("--verify --seed 3", "--seed: has no effect here"),
        ("--verify --method random", "--method: has no effect here"),
        ("--method dglke --balance entities", "--balance: has no effect here"),
        ("--method dglke", "has no text partitions partition_0"),
        ("-k 2 --dry_run --verify", "--verify: there is nothing to read after --dry_run; drop one of them"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(bench: Bench, words: str, message: str) -> None:
    assert message in refused(bench, *words.split())


def test_a_folder_that_cannot_be_written_is_named(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bench.capsys.readouterr()
    assert command.main(flags(bench, "-k", "2", "--out", str(tmp_path / "file" / "below"))) == 1
    assert "the partitions cannot be written" in bench.capsys.readouterr().err


def test_quiet_prints_no_notes(bench: Bench) -> None:
    bench.capsys.readouterr()
    assert command.main(flags(bench, "-k", "2", "--quiet")) == 0
    assert bench.capsys.readouterr().err == ""


def test_triples_become_a_graph_with_features_and_the_owners_that_triples_have(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = np.arange(60.0, dtype=np.float32).reshape(30, 2)
    np.save(tmp_path / "text.npy", features)
    run(bench, "-k", "3")
    triples = open_all(bench.data / "toy")
    named = f"text={tmp_path / 'text.npy'}"
    out = run(bench, "-k", "3", "--layout", "graph", "--features", named, "--out", str(tmp_path / "graph"), "--verify")
    assert "verified: every node and edge of toy is in exactly one of 3 partitions" in out
    for part, mine in zip(triples, open_partitions(tmp_path / "graph" / "toy.json"), strict=True):
        assert mine.node_ids["_N"].tolist() == part.entities.tolist()  # new ids are the same
        (etype,) = mine.book.canonical_etypes
        assert (mine.node_features["_N"]["text"].numpy() == features[part.entities]).all()
        first = mine.range("_N")[0]
        tails = first + np.repeat(np.arange(len(part.entities)), np.diff(mine.starts[etype]))
        relations = mine.edge_features[etype]["etype"].numpy()
        links = part.book.original_relations()
        there = sorted((h, links[r], t) for h, r, t in part.train.array.tolist())
        assert sorted(zip(mine.sources[etype].tolist(), relations.tolist(), tails.tolist(), strict=True)) == there
    assert "verified" in run(bench, "--layout", "graph", "--features", named, "--out", str(tmp_path / "graph"), "--verify")
    np.save(tmp_path / "text.npy", features[1:])
    monkeypatch.setattr("kgdist.partition.assign.assign", lambda *_, **__: pytest.fail("it was divided"))
    words = ("-k", "3", "--layout", "graph", "--features", named)
    assert "has 29 rows, and toy has 30 entities" in refused(bench, *words, "--out", str(tmp_path / "other"))
    assert "is a partition of triples, which kgdist-dist-train trains on" in refused(bench, "-k", "3", "--layout", "graph")


def test_a_graph_of_triples_is_read_back_in_names(bench: Bench) -> None:
    run(bench, "-k", "3", "--layout", "graph")  # into the data set's own folder
    root = bench.data / "toy"
    use(Standalone())
    graph = DistGraph("toy", part_config=root / "toy.json")
    names = {}
    for kind in ("entities", "relations"):
        rows = [line.split("\t") for line in (root / f"toy.{kind}.tsv").read_text().splitlines()]
        assert [int(number) for number, _ in rows] == list(range(len(rows)))
        names[kind] = np.array([name for _, name in rows])
    sources, destinations = graph.edges()
    ends = [names["entities"][graph.original_nodes(end).numpy()] for end in (sources, destinations)]
    found = list(zip(ends[0], names["relations"][graph.edata["etype"][:].numpy()], ends[1], strict=True))
    train = random_splits()[0]
    assert [tuple(map(str, found[edge])) for edge in np.argsort(graph.original_edges().numpy())] == train
    use(Standalone())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--features", "a=b.npy", "-k", "2"], "--features: needs --layout graph"),
        (["--features", "a", "--layout", "graph", "-k", "2"], "--features: must be NAME=FILE.npy"),
        (["--metadata", "m.json", "-k", "2", "--out", "x"], "contradicts --metadata, which names the files of the graph"),
    ],
)
def test_options_of_graphs_have_their_place(bench: Bench, words: list[str], message: str) -> None:
    assert message in refused(bench, *words)


@pytest.mark.parametrize("method", [None, "dbh", "metis"])
def test_triples_are_divided_with_what_encoders_need(bench: Bench, method: str | None) -> None:
    words = ["--edges", *(["--method", method] if method else [])]
    trial = run(bench, "-k", "3", *words, "--dry_run")
    assert not (bench.data / "toy").exists()
    out = run(bench, "-k", "3", *words, "--verify")
    opened = open_edges(bench.data / "toy", verify=True)
    common = opened[0].manifest.common
    assert (common.method, common.reach) == (method or "hdrf", Reach(2, (), True, 0))
    rows = [[int(cell.replace(",", "")) for cell in re.findall(r"[\d,]+(?= |$)", line)] for line in out.splitlines()[2:5]]
    assert [row[1] for row in rows] == common.sizes["core"] and sum(common.sizes["core"]) == 150
    assert f"an entity is a core entity of {common.sizes['replication']:.3f} partitions" in out
    assert "verified: every triple of toy is core in exactly one of the 3 partitions" in out
    assert re.search(r"assigning [\d.]+ s, expanding [\d.]+ s, writing [\d.]+ s, verifying [\d.]+ s; at most", out)
    assert trial.splitlines()[:7] == out.splitlines()[:7]
    assert "core in exactly one" in run(bench, "--edges", "--verify")
    assert "a partition of triples with all that encoders need of others; wanted is one of triples" in refused(bench, "--verify")


def test_hops_fanouts_and_direction_arrive(bench: Bench) -> None:
    words = ["-k", "2", "--edges", "--expand", "3", "--fanout", "-1", "4", "2", "--no_inverse", "--seed", "9"]
    out = run(bench, *words)
    assert open_edges(bench.data / "toy")[0].manifest.common.reach == Reach(3, (-1, 4, 2), False, 9)
    assert "hop 3" in out
    assert "is a partition of triples with all that encoders need of others, which is not replaced" in refused(bench, "-k", "2")
    run(bench, "-k", "2", "--edges", "--expand", "0")
    assert [len(part.support) for part in open_edges(bench.data / "toy")] == [0, 0]


def test_a_partition_that_is_nearly_the_graph_is_warned_of(bench: Bench) -> None:
    bench.capsys.readouterr()
    assert command.main(flags(bench, "-k", "2", "--edges", "--dry_run")) == 0
    assert re.search(r"partition \d has \d+ % of all triples, core and support", bench.capsys.readouterr().err)


def test_valid_and_test_are_taken_from_train(bench: Bench) -> None:
    words = [*bench.source("train.tsv"), "--split", ".8", ".1", ".1", "-k", "2"]
    assert command.main([*words, "--edges", "--verify", "--out", str(bench.root / "edges")]) == 0
    assert command.main([*words, "--method", "random", "--verify"]) == 0
    common = open_edges(bench.root / "edges")[0].manifest.common
    assert common.splits == {"train": 120, "valid": 15, "test": 15} and common.source["split"] == [0.8, 0.1, 0.1]
    assert open_all(bench.data / "toy")[0].manifest.common.digest == common.digest


@pytest.mark.parametrize("words", [[], ["--edges"]])
def test_a_file_is_no_place_and_that_is_said_at_once(bench: Bench, words: list[str]) -> None:
    (bench.root / "taken").write_text("mine")
    assert "taken is a file; name a folder" in refused(bench, "-k", "2", *words, "--out", str(bench.root / "taken"))
    assert (bench.root / "taken").read_text() == "mine" and "hop" not in bench.capsys.readouterr().out


def test_a_chunked_graph_needs_a_place(bench: Bench) -> None:
    assert "--metadata: needs --out" in bench.refused(command.main, ["--metadata", "m.json", "-k", "2"])
    assert "m.json: no such file" in bench.refused(
        command.main, ["--metadata", "m.json", "-k", "2", "--out", str(bench.root / "x")]
    )
