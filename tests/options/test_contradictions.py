"""Every row of kgdist.options.contradictions has a command line that it refuses, in one line that names the option."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgdist.base.errors import OptionError
from kgdist.options import contradictions as table
from kgdist.options import parse
from kgdist.options.config import OPTIONS, Config
from kgdist.options.tools import TOOLS
from tests.options.refused import REFUSED

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
    ("partition", "-k 2 --entity_types a"),
    ("partition", "-k 2 --edges --entity_types a"),
    ("train", "--lr_schedule plateau --valid --early_stop_patience 4"),
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
    ("tune", "--trials 4 --rounds 3"),
    ("preprocess", "--entities e --draft_schema --force"),
    ("preprocess", "--entities e --schema s --out o --report o.html"),
    ("preprocess", "--entities e f --schema s t --executor process --num_workers 2 --dataset d --fit_on i"),
]


def understood(command: str, words: str) -> None:
    if command == "tune":
        parse.parse_tune(words.split())
        return
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
    assert caught.value.option[2:] in {row.name for row in parse.options(command)} | {*OPTIONS}


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


def test_types_of_a_run_wait_for_draws_that_use_them() -> None:
    """--resume and the trials of a search may draw uniformly although the options beside them name types."""
    typed = Config(entity_types="types.tsv", neg_sampler="uniform")
    table.refuse(table.of_a_run(typed, {"lr"}))
    with pytest.raises(OptionError, match=r"^--entity_types: goes with --neg_sampler typed"):
        table.refuse(table.of_a_run(typed, {"entity_types"}))
