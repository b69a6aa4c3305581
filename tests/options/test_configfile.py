"""Options in files: YAML that is right, YAML that attacks, and config.json in three dialects."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import CheckpointError, DataError, OptionError, UsageError
from kgdist.base.files import write_json
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import from_json, read_run, read_yaml, run_json, to_json
from kgdist.options.option import Option
from kgdist.options.parse import parse

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n\x85\u2028\u2029\ufeff"), min_size=1, max_size=12
)
NAMED = {
    "dataset": st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9 ._-]{0,8}", fullmatch=True),
    "format": st.sampled_from(["built_in", "udd_trh"]),
    "checkpoint_interval": st.one_of(
        st.integers(0, 10**9 - 1).map(str), st.integers(1, 10**9).map(lambda n: f"{n / 1000:.12g}m")
    ),
}


def values_of(row: Option) -> st.SearchStrategy[Any]:
    """All values that an option can have."""
    if row.kind is bool:
        one: st.SearchStrategy[Any] = st.booleans()
    elif row.choices:
        one = st.sampled_from(row.choices)
    elif row.kind is int:
        one = st.integers(int(row.low or 0), int(row.high or 0))
    elif row.kind is float:
        low = row.above if row.above is not None else row.low
        one = st.floats(low, row.high, exclude_min=row.above is not None, allow_nan=False, allow_infinity=False)
    else:
        one = NAMED.get(row.name, TEXT.filter(lambda text: "\\t" not in text))
    if row.many:
        one = st.lists(one, min_size=max(row.least, 1), max_size=3).map(tuple)
    return st.one_of(st.none(), one) if row.optional else one


CONFIGS = st.fixed_dictionaries({}, optional={name: values_of(row) for name, row in OPTIONS.items()}).map(
    lambda values: Config(**values)
)


@settings(max_examples=30)
@given(CONFIGS)
def test_json_round_trip_is_exact(config: Config) -> None:
    assert from_json(json.loads(json.dumps(to_json(config), allow_nan=False))) == config
    saved = json.loads(json.dumps(run_json(config, version="1.2"), allow_nan=False))
    assert from_json(saved) == config


class Quoted(yaml.SafeDumper):
    """Writes all text in quotes: unquoted, 1e5 is text to YAML 1.1 and a number to YAML 1.2."""


Quoted.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def write(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "options.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@settings(max_examples=30)
@given(CONFIGS)
def test_yaml_that_a_yaml_library_writes_is_read_exactly(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(config).items()
        if "train" in OPTIONS[name].commands and name not in ("config", "resume") and value not in ((), None)
    }
    file = tmp_path_factory.getbasetemp() / "round.yaml"
    file.write_text(yaml.dump(values, Dumper=Quoted, allow_unicode=True), encoding="utf-8")
    back = {**dataclasses.asdict(Config()), **read_yaml(file, "train")}
    others = {name: row.default for name, row in OPTIONS.items() if "train" not in row.commands}
    expected = {**dataclasses.asdict(config), "config": None, "resume": None, **others}
    assert back == expected


def test_a_file_that_users_write(tmp_path: Path) -> None:
    text = (
        "\ufeff# my run\nmodel_name: RotatE   # complex\nlr: 1e-9\nregularization_coef: .5\ngpu: [0, 1]\ndata_files:\n- a b.txt\n"
        "- 'c'\ntest: true\nmax_epoch: 2\ndelimiter: \"\\t\"\ndata_url: null\nmax_step: 007\n"
    )
    values = read_yaml(write(tmp_path, text.replace("\n", "\r\n")), "train")
    assert values == {
        "model_name": "RotatE", "lr": 1e-9, "regularization_coef": 0.5, "gpu": (0, 1), "data_files": ("a b.txt", "c"),
        "test": True, "max_epoch": 2.0, "delimiter": "\t", "max_step": 7,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "~", "{}", "null\n"])
def test_an_empty_file_sets_nothing(tmp_path: Path, text: str) -> None:
    assert read_yaml(write(tmp_path, text), "train") == {}


BOMB = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("lr: 0.1\nlrr: 1\n", 2, "lrr: no such option; did you mean lr?"),
        ("lr: 0.1\n\nlr: 0.2\n", 3, "lr: set already in line 1"),
        ("data_url: null\ndata_url: x\n", 2, "data_url: set already in line 1"),
        ("model_path: x\n", 1, "model_path: not an option of kgdist-train"),
        ("config: x\n", 1, "config: a file cannot name another one"),
        ("resume: x\n", 1, "resume: give it as a flag"),
        ("<<: {lr: 1}\n", 1, "<<: no such option"),
        ("lr: !!python/object/apply:os.system ['touch x']\n", 1, "lr: tags (tag:yaml.org,2002:python/object/apply"),
        ("lr: !!float 1\n", 1, "lr: tags (tag:yaml.org,2002:float)"),
        ("!!map {lr: 1}\n", 1, "tags (tag:yaml.org,2002:map)"),
        ("!x lr: 1\n", 1, "tags (!x)"),
        ("dataset: &a x\ndata_path: *a\n", 1, "dataset: anchors (&a)"),
        ("dataset: x\ndata_path: *a\n", 2, "data_path: aliases (*a)"),
        (BOMB, 1, "a: anchors (&a)"),
        ("data_files: " + "[" * 100_000, 1, "data_files: nested too deep"),
        ("{" * 100_000, 1, "nested too deep"),
        ("lr: {a: {b: 1}}\n", 1, "lr: must be a number > 0, not {'a': {'b': 1}}"),
        ("lr: [1]\n", 1, "lr: must be a number > 0, not [1]"),
        ("data_files: [a, [b]]\n", 1, "data_files: must be text, not ['b']"),
        ("data_files:\n- !x b\n", 2, "data_files: tags (!x)"),
        ("gpu: {a: 1}\n", 1, "gpu: must be a list, each an integer >= -1 and <= 1023, not {'a': 1}"),
        ("gpu: 0\n", 1, "gpu: must be a list, each an integer"),
        ("gpu: []\n", 1, "gpu: needs at least 1 value"),
        ("gpu: [0, x]\n", 1, "gpu: must be an integer >= -1 and <= 1023, not 'x'"),
        ("test: yes\n", 1, "test: must be true or false, not 'yes'"),
        ("test: 'true'\n", 1, "test: must be true or false, not 'true'"),
        ("test: 1\n", 1, "test: must be true or false, not 1"),
        ("test:\n", 1, "test: must be true or false, not None"),
        ("max_step: 1.5\n", 1, "max_step: must be an integer >= 1 and <= 2147483647, not 1.5"),
        ("max_step: 0x10\n", 1, "max_step: must be an integer >= 1 and <= 2147483647, not '0x10'"),
        ("max_step: true\n", 1, "max_step: must be an integer >= 1 and <= 2147483647, not True"),
        ("max_step: '5'\n", 1, "max_step: must be an integer >= 1 and <= 2147483647, not '5'"),
        ("lr: .nan\n", 1, "lr: must be a number > 0, not '.nan'"),
        ("lr: .inf\n", 1, "lr: must be a finite number > 0, not '.inf'"),
        ("lr: 1e400\n", 1, "lr: must be a number > 0, not '1e400'"),
        ("regularization_coef: 1e-400\n", 1, "regularization_coef: must be a number >= 0, not '1e-400'"),
        ("dataset: 15\n", 1, 'dataset: must be text, not 15; put it in "quotes"'),
        ("dataset: ../x\n", 1, "dataset: must be a plain name"),
        ("model_name: rotate\n", 1, "model_name: must be one of TransE, "),
        ("? [a]\n: 1\n", 1, "expected the name of an option"),
        ("- lr\n", 1, "expected one option per line, such as lr: 0.1"),
        ("lr 0.1\n", 1, "expected one option per line, such as lr: 0.1"),
        ("lr: 1\n---\nlr: 2\n", 2, "a second document starts here"),
        ("lr: 1\n\tgpu: 2\n", 2, "not YAML ("),
        ("lr: [1\n", 2, "not YAML ("),
        ("dataset: 'x\n", 2, "not YAML ("),
        ("lr: 1\nbad: : x\n", 2, "not YAML ("),
    ],
)
def test_what_is_wrong_is_told_by_file_line_and_option(tmp_path: Path, text: str, line: int, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(DataError) as caught:
        read_yaml(file, "train")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"{file}:") and message in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"lr: \xff\n", "not UTF-8 at byte 4"), (b"lr: 1\x00\n", "not YAML"), (b"#" * ((1 << 20) + 1), "larger than 1 MiB")],
)
def test_bytes_that_are_no_options(tmp_path: Path, raw: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_yaml(write(tmp_path, raw), "train")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(DataError, match="cannot be read"):
            read_yaml(path, "train")


@given(st.one_of(st.text(max_size=60), st.binary(max_size=60), st.lists(st.sampled_from(
    ["lr", ": ", "1", "\n", "  ", "- ", "[", "]", "{", "}", "&a ", "*a", "!!x ", "'", '"', "---\n", "? ", "#", "gpu", ",", "|\n"]
), max_size=25).map("".join)))  # fmt: skip
def test_any_bytes_are_read_or_refused_on_purpose(tmp_path_factory: pytest.TempPathFactory, content: str | bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    file.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    try:
        assert set(read_yaml(file, "train")) <= set(OPTIONS)
    except DataError as error:
        assert "\n" not in str(error).replace(str(file), "")


HEAD = {  # a config.json of DGL-KE, later dialect: all its flags, computed ones, and its own spelling of emp_file
    "model_name": "RotatE", "data_path": "data", "dataset": "wn18", "format": "built_in", "data_files": None, "delimiter": "\t",
    "save_path": "ckpts/RotatE_wn18_0", "no_save_emb": False, "max_step": 24000, "batch_size": 2048, "batch_size_eval": 16,
    "neg_sample_size": 64, "neg_deg_sample": True, "neg_deg_sample_eval": False, "neg_sample_size_eval": 40943, "eval_percent": 1,
    "no_eval_filter": False, "log_interval": 1000, "eval_interval": 10000, "test": True, "num_proc": 1, "num_thread": 1,
    "force_sync_interval": -1, "hidden_dim": 256, "lr": 0.0025, "gamma": 9.0, "double_ent": True, "double_rel": False,
    "neg_adversarial_sampling": True, "adversarial_temperature": 1.0, "regularization_coef": 2e-07, "regularization_norm": 3,
    "pairwise": False, "loss_genre": "Logsigmoid", "margin": 1.0, "gpu": [0], "mix_cpu_gpu": False, "valid": False,
    "rel_part": False, "async_update": False, "has_edge_importance": False, "eval_filter": True,
    "soft_rel_part": False, "strict_rel_part": False,
    "num_workers": 8, "num_test_proc": 1, "emp_file": "entities.dict", "rmap_file": "relations.dict",
}  # fmt: skip
EARLY = {
    "dataset": "wn18", "model": "RotatE", "emb_size": 256, "max_train_step": 24000, "batch_size": 2048, "neg_sample_size": 64,
    "lr": 0.0025, "gamma": 9.0, "double_ent": True, "double_rel": False, "neg_adversarial_sampling": True,
    "adversarial_temperature": 1.0, "regularization_coef": 2e-07, "regularization_norm": 3, "emap_file": "e", "rmap_file": "r",
}  # fmt: skip


def test_both_dialects_of_dglke_are_read() -> None:
    later, early = from_json(HEAD), from_json(EARLY)
    for name, value in HEAD.items():
        if name in OPTIONS and value is not None:
            assert getattr(later, name) == (tuple(value) if isinstance(value, list) else value)
    shared = {name: getattr(later, name) for name in EARLY if name in OPTIONS}
    assert shared == {name: getattr(early, name) for name in shared}
    assert (early.model_name, early.hidden_dim, early.max_step) == ("RotatE", 256, 24000)
    assert later.data_files == () and early.neg_deg_sample is False


def test_a_single_gpu_number_is_read_as_a_list() -> None:
    assert from_json({**HEAD, "gpu": -1}).gpu == (-1,)


def test_what_is_saved_speaks_all_dialects() -> None:
    config = Config(model_name="RotatE", hidden_dim=256, max_step=24000, lr=0.0025, dataset="wn18")
    saved = run_json(config, version="1.2", entities="e.tsv", relations="r.tsv")
    assert set(HEAD) - set(saved) == {"eval_filter", "soft_rel_part", "strict_rel_part", "num_workers", "num_test_proc"}
    assert set(EARLY) <= set(saved)
    assert (
        saved["kgdist_version"] == "1.2" and saved["emp_file"] == saved["emap_file"] == "e.tsv" and saved["rmap_file"] == "r.tsv"
    )
    assert (saved["model"], saved["emb_size"], saved["max_train_step"]) == ("RotatE", 256, 24000)


def test_a_run_with_inverse_relations_is_refused_by_those_who_know_none() -> None:
    """They look a model up by either name, and ignore options that they do not have."""
    config = Config(model_name="ComplEx", reciprocal=True)
    saved = run_json(config, version="1")
    assert saved["model_name"] == saved["model"] == "ComplEx with inverse relations"
    for key in ("model_name", "model"):
        read = from_json({name: value for name, value in saved.items() if name not in ({"model_name", "model"} - {key})})
        assert (read.model_name, read.reciprocal) == ("ComplEx", True)
    older = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items() if name in OPTIONS}
    with pytest.raises(OptionError, match="model_name: must be one of .*, not 'ComplEx with inverse relations'"):
        Config(**older | {"reciprocal": False})


def test_a_run_is_read_from_its_folder_or_file(tmp_path: Path) -> None:
    config = Config(lr=1 / 3, gpu=(0, 3))
    write_json(tmp_path / "config.json", run_json(config, version="1"))
    assert read_run(tmp_path) == read_run(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "names no model"),
        ('{"lr": 1}', "names no model"),
        ("{", "not readable as JSON"),
        ('{"model": "X"}', "model_name: must be one of"),
        ('{"model": "RotatE", "lr": NaN}', "lr: must be a number > 0, not nan"),
        ('{"model": "RotatE", "hidden_dim": "9"}', "hidden_dim: must be an integer"),
        ('{"model": "RotatE", "dataset": "../../x"}', "dataset: must be a plain name"),
    ],
)
def test_a_damaged_config_is_refused_by_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_run(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value) and isinstance(caught.value, UsageError)


def test_a_run_repeats_itself_by_config(tmp_path: Path) -> None:
    run = Config(
        model_name="ComplEx", dataset="wn18", lr=1 / 3, max_epoch=2.0, valid=True, save_path="elsewhere", eval_percent=0.5
    )
    write_json(tmp_path / "config.json", run_json(run, version="1"))
    for path in (tmp_path, tmp_path / "config.json"):
        again = parse("train", ["--config", str(path), "--gamma", "3"])
        assert again.config == run.replace(save_path=Config().save_path, config=str(path), gamma=3.0)
        assert "max_step" not in again.explicit and "save_path" not in again.explicit
    with pytest.raises(OptionError, match=r"^--lr: not an option of kgdist-partition"):
        parse("partition", ["--lr", "1"])
    assert parse("partition", ["--config", str(tmp_path), "-k", "2"]).config.dataset == "wn18"
