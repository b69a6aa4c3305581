"""Every row of kgdist.options.contradictions has a command line that it refuses, in one line that names the option."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgdist.base.errors import OptionError
from kgdist.options import contradictions as table
from kgdist.options import parse
from kgdist.options.config import OPTIONS
from kgdist.options.tools import TOOLS

IDLE = "has no say here: the partitions are taken as they are; drop it"
BOTH_ENDS = "searches all heads or all tails, but both are listed; leave it out"
NEEDS_GPU = "needs a GPU: add --gpu 0, or drop it to train on the CPU"
REFUSED = [
    ("copy", "--rel_data_path a", "--rel_data_path: says where the files of --part_config go; give that one, too"),
    ("copy", "--part_config a.json --dataset b", "--dataset: contradicts --part_config, which names the graph"),
    (
        "copy",
        "--script_folder a --backend manual",
        "--backend: manual reaches no machine; copy what it needs to each by your own means",
    ),
    (
        "dist-train",
        "--backend ray-train",
        "--backend: ray-train runs the workers of graph encoders: name one with --encoder, or take --backend ray",
    ),
    (
        "dist-train",
        "--backend ray-train --encoder sage --num_client_proc 2",
        "--num_client_proc: has no say with --backend ray-train, which places one worker for each partition; drop it",
    ),
    ("launch", "--backend ray-train x", "--backend: ray-train runs the workers of kgdist-dist-train --encoder; scripts take ray"),
    ("dist-train", "--ray_wait 3", "--ray_wait: goes with --backend ray; add that, or drop it"),
    (
        "dist-train",
        "--backend ray --ip_config a",
        "--ip_config: has no say with --backend ray, which places the machines; drop it",
    ),
    (
        "dist-train",
        "--backend ray --copy",
        "--copy: knows no machine before Ray has placed it; put the partitions where all nodes see them, or name a --storage",
    ),
    ("copy", "--script_folder a --storage b", "--storage: is for trainings; put a script's files where all machines see them"),
    ("train", "--encoder sage --own_rows", "--own_rows: goes with --attributes: without these all entities have rows; drop it"),
    (
        "dist-train",
        "--encoder sage --storage b",
        "--storage: is where trainings without --encoder keep partitions and checkpoints; put these where all machines see them",
    ),
    ("dist-train", "--num_client_proc 2 --num_proc 3", "--num_proc: means the same as --num_client_proc; give one of them"),
    ("train", "--max_step 9 --max_epoch 1", "--max_step: contradicts --max_epoch; give one of them"),
    (
        "train",
        "--resume a --init_from b",
        "--resume: contradicts --init_from: go on with a run, or start a new one from its embeddings",
    ),
    (
        "train",
        "--resume a --preset --dataset wn18",
        "--resume: contradicts --preset: a run that goes on keeps its options",
    ),
    (
        "train",
        "--resume runs/a --save_path b",
        "--save_path: has no place beside --resume: the run goes on in its own folder, runs/a; drop it",
    ),
    ("eval", "--debug --quiet", "--debug: contradicts --quiet"),
    ("train", "--early_stop_patience 2", "--early_stop_patience: needs --valid, whose MRR it watches"),
    (
        "train",
        "--pairwise --loss_genre BCE",
        "--pairwise: is not defined for --loss_genre BCE; add --loss_genre Logistic or Hinge",
    ),
    (
        "train",
        "-pw --loss_genre Hinge -adv",
        "--pairwise: contradicts --neg_adversarial_sampling, which weighs the negatives' own losses; drop one of them",
    ),
    ("train", "--num_layers 3", "--num_layers: goes with --encoder; name one, or drop it"),
    (
        "train",
        "--encoder sage --fanout 5",
        "--fanout: needs a number for each of the 2 layers (--num_layers), not 1",
    ),
    (
        "train",
        "--encoder rgcn --num_bases 0 --relation_blocks",
        "--relation_blocks: needs --num_bases, how many blocks there are",
    ),
    ("train", "--encoder gat --num_bases 3", "--num_bases: is an option of --encoder rgcn; drop it"),
    (
        "train",
        "--encoder gat --init_from a",
        "--init_from: begins with rows of a run, but an encoder makes them; drop one of them",
    ),
    (
        "dist-train",
        "--encoder sage --transport_dtype bf16",
        "--transport_dtype: is about a parameter store, and workers of --encoder share gradients by torch.distributed; drop it",
    ),
    (
        "dist-train",
        "--encoder sage --backend manual",
        "--backend: manual knows no workers of --encoder; start them by torchrun (kgdist.train_gnn)",
    ),
    (
        "train",
        "--encoder gat --async_update --gpu 0",
        "--async_update: contradicts --encoder, which needs the rows of the step before; drop it",
    ),
    ("eval", "--neg_deg_sample_eval --neg_sample_size_eval 9", "--neg_deg_sample_eval: needs --no_eval_filter"),
    (
        "eval",
        "--neg_deg_sample_eval --no_eval_filter",
        "--neg_deg_sample_eval: adds entities to a sample, so it needs --neg_sample_size_eval N; "
        "now all entities are ranked already",
    ),
    (
        "train",
        "--data_files a.tsv",
        "--data_files: own files need --format raw_udd_hrt (names) or udd_hrt (integer ids)",
    ),
    (
        "train",
        "--format raw_udd_hrt --data_files a b c d",
        "--data_files: --format raw_udd_hrt takes 1 to 3 files (train [valid [test]]), not 4",
    ),
    ("train", "--format raw_udd_hrt", "--data_files: --format raw_udd_hrt takes 1 to 3 files (train [valid [test]]), not 0"),
    (
        "train",
        "--format udd_trh --data_files a b",
        "--data_files: --format udd_trh takes 3 to 5 files (entities relations train [valid [test]]), not 2",
    ),
    (
        "train",
        "--format udd_hrt --data_files a b c d e f",
        "--data_files: --format udd_hrt takes 3 to 5 files (entities relations train [valid [test]]), not 6",
    ),
    ("eval", "--mix_cpu_gpu", f"--mix_cpu_gpu: {NEEDS_GPU}"),
    ("train", "--async_update", f"--async_update: {NEEDS_GPU}"),
    ("train", "--gpu -1 0", "--gpu: -1 means the CPU and cannot be mixed with GPUs, not -1 0"),
    ("train", "--gpu 0 0", "--gpu: each GPU once, not 0 0; several processes share one with --num_proc"),
    ("partition", "", "--num_parts: say how many partitions: -k 4 for four machines"),
    ("partition", "-k 2 --dry_run --verify", "--verify: there is nothing to read after --dry_run; drop one of them"),
    ("partition", "--verify --seed 3", f"--seed: {IDLE}"),
    ("partition", "--verify --method random", f"--method: {IDLE}"),
    ("partition", "--verify --balance entities", f"--balance: {IDLE}"),
    ("partition", "--method dglke --balance entities", f"--balance: {IDLE}"),
    ("partition", "--method dglke -k 2 --seed 1", f"--seed: {IDLE}"),
    ("partition", "-k 2 --features a=b", "--features: needs --layout graph: triples alone are what the other layouts hold"),
    ("partition", "-k 2 --layout graph --features a=", "--features: must be NAME=FILE.npy, not 'a='"),
    ("partition", "-k 2 --method hdrf", "--method: hdrf divides triples; add --edges"),
    ("partition", "-k 2 --expand 1", "--expand: goes with --edges; add that, or drop it"),
    ("partition", "-k 2 --fanout 1 1", "--fanout: goes with --edges; add that, or drop it"),
    ("partition", "-k 2 --no_inverse", "--no_inverse: goes with --edges; add that, or drop it"),
    ("partition", "-k 2 --edges --layout graph", "--edges: contradicts --layout graph; drop one of them"),
    (
        "partition",
        "-k 2 --edges --metadata m",
        "--edges: contradicts --metadata: triples of a data set are divided; drop one of them",
    ),
    (
        "partition",
        "-k 2 --edges --method streaming",
        "--method: streaming divides entities alone; with --edges take hdrf, dbh, random or metis",
    ),
    (
        "partition",
        "-k 2 --edges --method dbh --balance triples",
        "--balance: has no say here: dbh evens out triples; drop it",
    ),
    ("partition", "-k 65 --edges --method dbh", "--num_parts: --edges makes 64 partitions at most, not 65"),
    (
        "partition",
        "-k 2 --edges --method dbh --fanout 25",
        "--fanout: needs a number for each of the 2 hops (--expand), not 1",
    ),
    ("partition", "--verify --edges --expand 2", f"--expand: {IDLE}"),
    ("partition", "-k 2 --metadata m", "--metadata: needs --out, the folder that gets the partitions"),
    (
        "partition",
        "-k 2 --metadata m --out o --dataset d",
        "--dataset: contradicts --metadata, which names the files of the graph; drop it",
    ),
    (
        "partition",
        "-k 2 --metadata m --out o --has_edge_importance",
        "--has_edge_importance: contradicts --metadata: weights are data of its edges; drop it",
    ),
    (
        "partition",
        "-k 2 --metadata m --out o --layout dglke",
        "--layout: contradicts --metadata: a graph is written as one; drop it",
    ),
    (
        "partition",
        "-k 2 --metadata m --out o --method dglke",
        "--method: dglke takes over partitions of a data set, not of --metadata",
    ),
    (
        "partition",
        "-k 2 --metadata m --out o --dry_run",
        "--dry_run: is for data sets: a graph's table is counted from what was written",
    ),
    ("predict", "--data_files x", "--data_files: needs --format, which says whether they list heads, relations or tails"),
    (
        "predict",
        "run",
        "--head: nothing is asked: give --head, --relation or --tail, or --format and --data_files",
    ),
    (
        "predict",
        "--format h_r_* --tail e --data_files x y",
        "--tail: --format h_r_* asks for all of them; write its letter for the *",
    ),
    ("predict", "--format h_r_* --data_files x", "--data_files: --format h_r_* takes 2 lists from files, not 1"),
    (
        "predict",
        "--format h_r_* --head e --relation r --data_files x",
        "--data_files: --format h_r_* takes 0 lists from files, not 1",
    ),
    (
        "predict",
        "--head e --exec_mode triplet_wise",
        "--exec_mode: triplet_wise reads heads, relations and tails side by side; --format h_r_t has all three",
    ),
    ("predict", "--head e --ids --raw_data", "--ids: says that the lists hold ids, --raw_data that they hold names"),
    ("predict", "--head e --ids --rel_mfile f", "--ids: says that the lists hold ids, --rel_mfile that they hold names"),
    ("predict", "--head e --tail e --index", f"--index: {BOTH_ENDS}"),
    (
        "predict",
        "--format h_*_t --data_files a b --index",
        f"--index: {BOTH_ENDS}",
    ),
    ("emb-sim", "--left a", "--emb_file: name an .npy file of embeddings, or the folder of a run instead"),
    ("emb-sim", "run --emb_file f", "--emb_file: is there beside the run run; give one of them"),
    ("emb-sim", "--emb_file f --kind entity", "--kind: says which embeddings of a run, and --emb_file is a file; leave it out"),
    ("emb-sim", "run", "--left: nothing is asked: give --left or --right, or --format and --data_files, or --format '*'"),
    ("emb-sim", "run --data_files x", "--data_files: needs --format, which says whether they list left or right ones"),
    ("emb-sim", "run --format * --data_files x", "--data_files: --format * takes 0 lists from files, not 1"),
    (
        "emb-sim",
        "run --format l_* --left 1 --right 2",
        "--right: --format l_* compares with all of them; write its letter for the *",
    ),
    (
        "emb-sim",
        "run --left a --exec_mode pairwise",
        "--exec_mode: pairwise reads lists of left and right ones side by side; --format l_r has both",
    ),
    ("emb-sim", "run --left a --ids --mfile f", "--ids: says that the lists hold ids, --mfile that they hold names"),
    ("export", "--blank -", "--blank: has no say here: only --to word2vec changes names; drop it"),
    ("convert", "--data_files a", "--output_path: say which folder to write"),
    (
        "convert",
        "--out o --input_format built_in",
        "--dataset: say which data set; --input_format built_in reads the folder <data_path>/<dataset>",
    ),
    ("convert", "--out o --dataset d", "--dataset: goes with --input_format built_in; other formats take --data_files"),
    ("import", "", "--model_path: say which folder the model is in"),
    ("import", "m --rel_mfile f", "--entity_mfile: goes with --rel_mfile: give both, or neither"),
    (
        "encode",
        "run --test t",
        "--triples: say what is known of the new entities: --triples, --entities with their attributes, or both",
    ),
    ("encode", "run --triples t --format udd_hrt", "--format: new entities have names, and no ids yet: raw_udd_XYZ"),
    (
        "encode",
        "run --entities e --header",
        "--header: says what --triples and --test are, and there is neither; drop it",
    ),
    ("preprocess", "--schema s", "--entities: say which file has the entities"),
    ("preprocess", "--entities e f --draft_schema", "--draft_schema: guesses from one file, not from 2: call it for each"),
    ("preprocess", "--entities e --draft_schema --schema s t", "--schema: one file gets the schema that is drafted"),
    (
        "preprocess",
        "--entities e --draft_schema --out o",
        "--out: has no say here: --draft_schema writes a schema and nothing else; drop one of them",
    ),
    ("preprocess", "--entities e", "--schema: say what the columns are; --draft_schema guesses a first one"),
    ("preprocess", "--entities e f --schema s", "--schema: one for each file of --entities: not 1 for 2"),
    (
        "preprocess",
        "--entities e --schema s --out o --report o/r.html",
        "--report: put it beside --out, which holds attributes and nothing else",
    ),
    ("preprocess", "--entities e --schema s --num_workers 2", "--num_workers: needs --executor process, or ray"),
    (
        "preprocess",
        "--entities e --schema s --executor process --gpu 0",
        "--gpu: goes with --executor local: one process computes on it",
    ),
    ("preprocess", "--entities e --schema s --ray_address auto", "--ray_address: needs --executor ray"),
    (
        "preprocess",
        "--entities e --schema s --data_path d",
        "--data_path: says where a data set is; give its name, too: --dataset",
    ),
    (
        "preprocess",
        "--entities e --schema s --dataset d --data_files f",
        "--data_files: own files need --format raw_udd_hrt (names) or udd_hrt (integer ids)",
    ),
    (
        "preprocess",
        "--entities e --schema s --dataset d --format raw_udd_hrt",
        "--data_files: --format raw_udd_hrt needs them",
    ),
]
TAKEN = [
    ("train", "--max_step 9 --gpu 0 1 --mix_cpu_gpu"),
    ("train", "--pairwise --loss_genre Hinge"),
    ("train", "--valid --early_stop_patience 2 --format udd_hrt --data_files a b c"),
    ("eval", "--neg_deg_sample_eval --no_eval_filter --neg_sample_size_eval 9"),
    ("dist-train", "--num_client_proc 2 --num_proc 2"),
    ("partition", "--method dglke -k 2"),
    ("partition", "--verify --layout dglke"),
    ("partition", "--verify --edges"),
    ("partition", "-k 64 --edges --method hdrf --expand 3 --fanout -1 25 10 --no_inverse"),
    ("partition", "-k 2 --edges --method metis --balance entities"),
    ("partition", "-k 2 --layout graph --features a=b.npy c=d=e.npy"),
    ("partition", "--verify --metadata m --out o --layout graph"),
    ("predict", "--format h_r_t --head e --data_files x y --exec_mode triplet_wise"),
    ("predict", "--tail e --index --ids"),
    ("emb-sim", "run --format *"),
    ("emb-sim", "--emb_file f --format l_* --left 1 --raw_data --mfile f"),
    ("export", "--to word2vec --blank -"),
    ("convert", "--input_format built_in --dataset d --out o"),
    ("import", "m --entity_mfile e --rel_mfile r"),
    ("encode", "run --triples t --test u --format raw_udd_rht --header"),
    ("encode", "run --entities e"),
    ("preprocess", "--entities e --draft_schema --force"),
    ("preprocess", "--entities e --schema s --out o --report o.html"),
    ("preprocess", "--entities e f --schema s t --executor process --num_workers 2 --dataset d --fit_on i"),
]


def understood(command: str, words: str) -> None:
    if command in TOOLS:
        parse.parse_tool(command, words.split())
        return
    parsed = parse.parse(command, words.split())
    table.refuse(table.of_a_run(parsed.config, parsed.explicit))
    if command == "partition":
        table.refuse(table.of_partitioning(parsed.config, parsed.explicit))


@pytest.mark.parametrize(("command", "words", "line"), REFUSED)
def test_what_contradicts_is_refused_in_one_line(command: str, words: str, line: str) -> None:
    with pytest.raises(OptionError) as caught:
        understood(command, words)
    assert str(caught.value) == line and caught.value.option == line.partition(":")[0]
    assert caught.value.option[2:] in (TOOLS[command].__dataclass_fields__ if command in TOOLS else OPTIONS)


@pytest.mark.parametrize(("command", "words"), TAKEN)
def test_what_goes_together_is_taken(command: str, words: str) -> None:
    understood(command, words)


def test_every_row_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new row without a command line above fails here."""
    refusing: set[int] = set()

    def refuse(rows: Iterator[tuple[object, str, str]]) -> None:
        for broken, option, reason in rows:
            if broken:
                while (inner := rows.gi_yieldfrom) is not None:  # type: ignore[attr-defined]
                    rows = inner
                refusing.add(rows.gi_frame.f_lineno)  # type: ignore[attr-defined]
                raise OptionError(option, reason)

    monkeypatch.setattr(table, "refuse", refuse)
    monkeypatch.setattr(parse, "refuse", refuse)
    for command, words, _ in REFUSED:
        with pytest.raises(OptionError):
            understood(command, words)
    rows = [node for node in ast.walk(ast.parse(Path(table.__file__).read_text())) if isinstance(node, ast.Yield)]
    assert len(rows) > 30
    missed = [node.lineno for node in rows if not refusing & set(range(node.lineno, (node.end_lineno or 0) + 1))]
    assert not missed, f"no command line is refused by these lines of {table.__file__}: {missed}"
