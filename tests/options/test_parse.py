"""The command line: DGL-KE's spellings and prefixes, bad values, precedence, and help."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import OptionError, UsageError
from kgdist.base.machine import usable_cores
from kgdist.options.commands import SHORT, SYNONYMS, TEXTS
from kgdist.options.config import Config
from kgdist.options.parse import Parsed, expand, layered, options, parse, parser, processes

# DGL-KE's flags, typed in independently of the table
FLAGS = {
    "train": """model_name data_path dataset format data_files delimiter save_path no_save_emb max_step batch_size batch_size_eval
        neg_sample_size neg_deg_sample neg_deg_sample_eval neg_sample_size_eval eval_percent no_eval_filter log_interval:-log
        eval_interval test num_proc num_thread force_sync_interval hidden_dim lr gamma:-g double_ent:-de double_rel:-dr
        neg_adversarial_sampling:-adv adversarial_temperature:-a regularization_coef:-rc regularization_norm:-rn pairwise:-pw
        loss_genre margin:-m gpu mix_cpu_gpu valid rel_part async_update has_edge_importance""",
    "eval": """model_name data_path dataset format data_files delimiter model_path batch_size_eval neg_sample_size_eval
        neg_deg_sample_eval hidden_dim gamma:-g eval_percent no_eval_filter gpu mix_cpu_gpu double_ent:-de double_rel:-dr num_proc
        num_thread""",
    "dist-train": """model_name data_path dataset format save_path no_save_emb max_step batch_size batch_size_eval
        neg_sample_size neg_deg_sample neg_deg_sample_eval neg_sample_size_eval eval_percent no_eval_filter log_interval:-log
        eval_interval test num_proc num_thread force_sync_interval hidden_dim lr gamma:-g double_ent:-de double_rel:-dr
        neg_adversarial_sampling:-adv adversarial_temperature:-a regularization_coef:-rc regularization_norm:-rn pairwise:-pw
        loss_genre margin:-m path ssh_key ip_config num_client_proc valid has_edge_importance""",
}


def reference_parser(command: str) -> argparse.ArgumentParser:
    """argparse as DGL-KE uses it; every flag takes nothing here, for only its spelling matters."""
    made = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    for word in [*FLAGS[command].split(), "help:-h"]:
        name, _, short = word.partition(":")
        made.add_argument(*([short] if short else []), f"--{name}", dest=name, action="store_true")
    return made


def meaning(reference: argparse.ArgumentParser, text: str) -> str | None:
    """The one flag that `text` means to argparse, or None."""
    try:
        (name,) = vars(reference.parse_args([text]))
    except SystemExit:
        return None
    return str(name)


@pytest.mark.parametrize("command", ["train", "eval", "dist-train"])
def test_every_prefix_that_means_one_flag_to_dglke_means_it_here(command: str) -> None:
    reference = reference_parser(command)
    ours = {flag: row.name for row in options(command) for flag in row.flags} | {"-h": "help", "--help": "help"}
    spellings = [
        text for word in FLAGS[command].split() for name, _, short in [word.partition(":")] for text in (f"--{name}", short)
    ]
    prefixes = {text[:end] for text in [*spellings, "--help", "-h"] for end in range(2, len(text) + 1)} - {"--"}
    meanings = {prefix: name for prefix in prefixes if (name := meaning(reference, prefix))}
    assert (
        len(meanings) > 100
        and meanings["--he"] == "help"
        and meanings.get("--max") == ("max_step" if command != "eval" else None)
    )
    for prefix, name in meanings.items():
        (full,) = expand(command, [prefix])
        assert ours[full] == name, prefix


@pytest.mark.parametrize("command", ["train", "eval", "dist-train"])
def test_every_spelling_and_every_unambiguous_prefix_of_ours_works(command: str) -> None:
    flags = {flag: row.name for row in options(command) for flag in row.flags} | {"--help": "help"}
    for flag, name in flags.items():
        assert expand(command, [flag]) == [flag]
        for end in range(3, len(flag)):
            meant = {other for text, other in flags.items() if text.startswith(flag[:end])}
            if meant == {name} and flag.startswith("--"):
                assert flags[expand(command, [flag[:end]])[0]] == name


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--model RotatE", "model_name", "RotatE"),
        ("--no_save", "no_save_emb", True),
        ("--no_save_embed", "no_save_emb", True),
        ("--max 7", "max_step", 7),
        ("--max_epoch 1.5", "max_epoch", 1.5),
        ("--num_p 3", "num_proc", 3),
        ("--regularization_c 0", "regularization_coef", 0.0),
        ("-log 5", "log_interval", 5),
        ("-lo 5", "log_interval", 5),
        ("-g12.5", "gamma", 12.5),
        ("-g=12.5", "gamma", 12.5),
        ("-de", "double_ent", True),
        ("-adv", "neg_adversarial_sampling", True),
        ("-adv=false", "neg_adversarial_sampling", False),
        ("--test=false", "test", False),
        ("--tes=True", "test", True),
        ("--gpu 0 1 2", "gpu", (0, 1, 2)),
        ("--gpu -1", "gpu", (-1,)),
        ("--neg_sample_size_eval -1", "neg_sample_size_eval", -1),
        ("--data_files a.txt b.txt --header", "data_files", ("a.txt", "b.txt")),
        ("--lr 1 --lr 2", "lr", 2.0),
        ("--regularization_coef=1e-9", "regularization_coef", 1e-9),
    ],
)
def test_spellings(line: str, name: str, value: Any) -> None:
    parsed = parse("train", line.split())
    assert parsed.explicit[name] == value == getattr(parsed.config, name)
    assert type(parsed.explicit[name]) is type(value)


@pytest.mark.parametrize(
    "text", ["nan", "inf", "-inf", "-1", "-1e-3", "0", "1e400", "1e-400", "0x10", "", "1_0", "one", "1,5", "٣", "1e", " 1"]
)
def test_a_number_that_cannot_be_is_refused_by_option_and_range(text: str) -> None:
    for flags in (["--lr", text], [f"--lr={text}"]):
        with pytest.raises(OptionError, match=r"^--lr: must be a (finite )?number > 0, not ") as caught:
            parse("train", flags)
        assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["0", "-1", "1.0", "1e3", "0x10", "nan", "", "1_0", "9" * 5000, "2147483648"])
def test_an_integer_that_cannot_be_is_refused_by_option_and_range(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--hidden_dim: must be an integer >= 1 and <= 1000000, not ") as caught:
        parse("train", ["--hidden_dim", text])
    assert len(str(caught.value)) < 200


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False))
def test_floats_survive_the_command_line_exactly(value: float) -> None:
    assert parse("train", ["--lr", repr(value)]).config.lr == value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--modle_name x", "--modle_name: no such option; did you mean --model_name?"),
        ("--batch-size 3", "--batch-size: no such option; did you mean --batch_size?"),
        ("--zzz", "--zzz: no such option; see kgdist-train --help"),
        ("-q", "-q: no such option; see kgdist-train --help"),
        ("--num 1", "--num: could be --num_proc, --num_thread; write more of it"),
        ("--model_path x", "--model_path: not an option of kgdist-train, but of kgdist-eval"),
        ("--!test", "--!test: no such option; did you mean --test?"),
        (
            "--loss_genre hinge",
            "--loss_genre: must be one of Hinge, Logistic, Logsigmoid, BCE, Softmax, not 'hinge'; did you mean Hinge?",
        ),
        ("--test=1", "--test: must be true or false, not '1'"),
        ("--learning_rate 3", "--learning_rate: no such option; here it is called --lr"),
        ("--num-epochs 3", "--num-epochs: no such option; here it is called --max_epoch"),
    ],
)
def test_a_wrong_flag_is_named_with_the_closest(line: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        parse("train", line.split())


@pytest.mark.parametrize("line", ["stray", "--lr", "--gpu", "--test yes", "-- --lr"])
def test_argparse_refusals_are_usage_errors_of_one_line(line: str) -> None:
    with pytest.raises(UsageError, match=r"; see kgdist-train --help$") as caught:
        parse("train", line.split())
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


@given(
    st.lists(
        st.one_of(st.text(max_size=8), st.sampled_from(["--lr", "-adv", "--", "-g", "--gpu", "-1", "=", "--te"])), max_size=5
    )
)
def test_any_command_line_is_understood_or_refused_on_purpose(argv: list[str]) -> None:
    try:
        parsed = parse("train", argv)
    except UsageError as error:
        assert str(error)
    except SystemExit as leave:  # --help
        assert leave.code == 0 and any(word.startswith(("-h", "--h")) for word in argv)
    else:
        assert isinstance(parsed.config, Config)


@given(st.data())
def test_what_is_given_is_explicit_and_the_rest_default(data: st.DataObject) -> None:
    samples = {"lr": "0.5", "max_step": "3", "model_name": "RotatE", "test": None, "gpu": "-1", "data_url": "file:x"}
    chosen = data.draw(st.sets(st.sampled_from(sorted(samples))))
    argv = [word for name in chosen for word in (f"--{name}", samples[name]) if word is not None]
    parsed = parse("train", argv)
    assert set(parsed.explicit) == chosen
    assert parsed.config == Config(**parsed.explicit)


def test_precedence_is_defaults_preset_file_flags(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model_name: ComplEx\ndataset: wn18\npreset: true\nlr: 0.3\ngamma: 150\nneg_adversarial_sampling: false\n")
    parsed = parse("train", ["--config", str(file), "--lr", "0.4", "--num_proc", "1"])
    config = parsed.config
    assert config.lr == 0.4  # flag over file
    assert config.gamma == 150 and not config.neg_adversarial_sampling  # file over preset
    assert config.hidden_dim == 512 and config.max_step == 20000  # preset over default
    assert config.margin == 1.0  # default
    assert "hidden_dim" not in parsed.explicit and {"lr", "gamma", "model_name"} <= set(parsed.explicit)
    assert "preset changed by you: --lr" in parsed.notes
    assert f"preset changed by --config {file}: --gamma --neg_adversarial_sampling" in parsed.notes


@pytest.mark.parametrize(
    ("command", "given", "cores", "expected", "said"),
    [
        ("train", {}, 4, 1, "--num_proc 4 uses 4 (each does --max_step steps)"),
        ("train", {"max_epoch": 2.0}, 4, 1, "they divide the epochs"),
        ("train", {}, 1, 1, None),
        ("train", {"preset": True}, 4, 4, "--num_proc 4"),
        ("train", {"preset": True}, 96, 8, "--num_proc 8"),
        ("train", {"preset": True}, 1, 1, None),
        ("train", {"preset": True, "max_epoch": 2.0}, 4, 4, "--num_proc 4"),
        ("train", {"preset": True, "seed": 0}, 4, 1, "--num_proc 4 uses 4"),
        ("train", {"preset": True, "max_step": 9}, 4, 1, "--num_proc 4 uses 4"),
        ("train", {"preset": True, "num_proc": 3}, 4, 3, None),
        ("train", {"num_thread": 2}, 4, 1, None),
        ("train", {"gpu": (0, 1)}, 4, 1, None),
        ("train", {"resume": "run"}, 4, 1, None),
        ("eval", {}, 4, 4, None),
        ("eval", {"num_proc": 2}, 4, 2, None),
        ("eval", {"gpu": (0,)}, 4, 1, None),
    ],
)
def test_how_many_processes_there_are_when_none_are_asked_for(
    command: str, given: dict[str, Any], cores: int, expected: int, said: str | None
) -> None:
    number, notes = processes(command, Config(**given), given, cores)
    assert number == expected and len(notes) == (said is not None)
    assert said is None or said in notes[0]


def test_a_preset_divides_its_steps_over_the_cores() -> None:
    words = "--model ComplEx --dataset wn18 --preset".split()
    parsed, one = parse("train", words), parse("train", [*words, "--seed", "0"])
    assert one.config.num_proc == 1 and parsed.config.num_proc == min(8, usable_cores())
    assert parsed.config.max_step == -(-one.config.max_step // parsed.config.num_proc)
    assert "num_proc" not in parsed.explicit


def test_a_higher_level_replaces_steps_by_epochs_and_the_reverse(tmp_path: Path) -> None:
    parsed = parse("train", "--model ComplEx --dataset wn18 --preset --max_epoch 3".split())
    assert parsed.config.max_epoch == 3.0 and "max_step" not in parsed.explicit
    file = tmp_path / "a.yaml"
    file.write_text("max_epoch: 3\n")
    parsed = parse("train", ["--config", str(file), "--max_step", "9"])
    assert parsed.config.max_step == 9 and parsed.config.max_epoch is None and "max_epoch" not in parsed.explicit
    assert layered({"max_step": 1, "lr": 1.0}, {"max_epoch": 2.0}) == {"lr": 1.0, "max_epoch": 2.0}


def test_resume_takes_the_run_and_the_users_own_words() -> None:
    run = Config(lr=0.3, max_epoch=4, gpu=(0,), resume="older", debug=True, preset=True, num_proc=4)
    parsed = parse("train", ["--resume", "run", "--max_step", "5"])
    again = parsed.over(run)
    assert (again.lr, again.gpu, again.num_proc, again.max_step, again.max_epoch) == (0.3, (0,), 4, 5, None)
    assert (again.resume, again.debug, again.preset) == ("run", False, "none")
    assert parse("train", ["--resume", "run"]).over(run).max_epoch == 4.0


def test_evaluation_takes_model_and_data_from_the_run_but_not_its_machine_or_protocol() -> None:
    run = Config(model_name="RotatE", double_ent=True, hidden_dim=7, gamma=3, dataset="wn18", gpu=(0,), mix_cpu_gpu=True,
                 num_proc=8,
                 no_eval_filter=True, neg_sample_size_eval=10, data_path="here")  # fmt: skip
    config = parse("eval", ["--model_path", "run", "--gamma", "4"]).over(run)
    assert (config.model_name, config.double_ent, config.hidden_dim, config.dataset, config.data_path) == (
        "RotatE",
        True,
        7,
        "wn18",
        "here",
    )
    assert config.gamma == 4.0 and config.model_path == "run"
    assert (config.gpu, config.mix_cpu_gpu, config.num_proc, config.no_eval_filter, config.neg_sample_size_eval) == (
        (-1,),
        False,
        usable_cores(),
        False,
        -1,
    )
    assert Parsed("eval", run, {}).over(run).gamma == 3.0


@pytest.mark.parametrize("command", ["train", "eval"])
def test_help_names_every_option_its_default_and_an_example(command: str) -> None:
    text = parser(command).format_help()
    flat = " ".join(text.split())
    for row in options(command):
        assert all(re.search(rf"(?<![\w-]){re.escape(flag)}(?!\w)", text) for flag in row.flags)
        assert row.help in flat.replace("- ", "-") or row.help in flat
        assert f"\n{row.group}:\n" in text
    default = "12" if command == "train" else "the run's"
    assert "!" not in text and f"kgdist-{command} --" in text and f"(default: {default})" in flat


@pytest.mark.parametrize("command", SHORT)
def test_h_is_short_and_names_where_the_rest_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser(command).parse_args(["-h"])
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 70 and f"of its {len(options(command))} options; --help shows all." in text
    for name in SHORT[command].split():
        assert re.search(rf"--{name}\b", text)
    assert 9 <= len(SHORT[command].split()) <= 12


def test_synonyms_are_no_options_and_mean_one_that_there_is() -> None:
    names = {row.name for command in TEXTS for row in options(command)}
    assert set(SYNONYMS.values()) <= names
    for word, meant in SYNONYMS.items():
        for command in TEXTS:
            rows = {row.name for row in options(command)}
            if meant in rows and word not in {flag.lstrip("-") for row in options(command) for flag in row.flags}:
                try:
                    expand(command, [f"--{word}"])
                except OptionError as error:
                    assert f"called --{meant}" in str(error) or "could be" in str(error)


def test_kgdist_eval_names_no_defaults_that_a_run_has_in_their_place() -> None:
    text = " ".join(parser("eval").format_help().split())
    assert "(default: the run's)" in text and "(default: all cores)" in text and "(default: FB15k)" not in text


@pytest.mark.parametrize("word", ["-h", "--help", "--he"])
def test_help_leaves_with_zero(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("train", [word])
    assert caught.value.code == 0 and "usage: kgdist-train [options]" in capsys.readouterr().out
