"""The table of options: every setting of kgdist, declared once.

`Config` is a frozen dataclass; each field states its default, kind, allowed values, help, DGL-KE short flag and commands. The
command line, YAML, JSON and docs/options.md are views of it (`kgdist.options.parse`, `kgdist.options.configfile`). A value that
cannot be is refused when the object is built; options that contradict one another, by `kgdist.options.contradictions`. Names,
short flags and defaults are those of DGL-KE.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from kgdist.options import interval
from kgdist.options.built_in import BUILT_IN
from kgdist.options.cluster import ClusterOptions, PartitionOptions
from kgdist.options.of_brought import BroughtOptions
from kgdist.options.of_encoders import EncoderOptions
from kgdist.options.of_files import HEADER, QUOTED, clean_delimiter, clean_format
from kgdist.options.of_objectives import ObjectiveOptions
from kgdist.options.of_other_tests import OtherTestOptions
from kgdist.options.option import Option, option, table, whole_path

_BOTH = ("train", "dist-train", "eval")
_TRAIN = ("train", "dist-train")
_HERE = ("train", "eval")  # reading files, and GPUs: not when many machines train on partitions
_ALONE = ("train",)
_EVAL = ("eval",)
_PARTITION = ("partition",)

_data = partial(option, group="data")
_model = partial(option, group="model")
_training = partial(option, group="training")
_evaluation = partial(option, group="evaluation")
_output = partial(option, group="output")
_start = partial(option, group="start")
_hardware = partial(option, group="hardware")


def _plain_name(text: str) -> str:
    if text in (".", "..") or any(letter in "/\\:" or not letter.isprintable() for letter in text):
        raise ValueError(f"must be a plain name, without slashes or colons, not {text[:60]!r}")
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ClusterOptions, PartitionOptions, EncoderOptions, ObjectiveOptions, OtherTestOptions, BroughtOptions):
    """All options of a run, typed and checked. Raises OptionError for a value that cannot be."""

    # ---- data
    dataset: str = _data(
        "FB15k",
        "name of a built-in data set, or a name of your choice for your own data",
        clean=_plain_name,
        dglke=(*_BOTH, "copy", "partition"),
        metavar="NAME",
    )
    data_path: str = _data(
        "data",
        "folder of the data; built-in sets are looked for, or downloaded, below it",
        dglke=(*_BOTH, "copy", "partition"),
        metavar="FOLDER",
    )
    format: str = _data(
        "built_in",
        "built_in; raw_udd_hrt: your own triples as names; udd_hrt: as integer ids. hrt is the order of the columns "
        "head, relation, tail: any order of the three letters",
        clean=clean_format,
        dglke=(*_BOTH, "partition"),
    )
    data_files: tuple[str, ...] = _data(
        (),
        "your own files. raw_udd: train [valid [test]]; udd: entities relations train [valid [test]]",
        dglke=(*_HERE, "partition"),
        metavar="FILE",
    )
    delimiter: str = _data(
        "\t",
        "what separates the columns of your own files",
        clean=clean_delimiter,
        dglke=(*_HERE, "partition"),
        metavar="TEXT",
    )
    header: str = _data(
        "no",
        "whether the first line of each of your own files is a header, and skipped: no; yes, the same as --header alone; auto, "
        "where it names columns (head relation tail and the like, or words instead of ids)",
        **HEADER,
        ours=(*_HERE, "partition"),
    )
    quoted: bool = _data(False, QUOTED, ours=(*_HERE, "partition"))
    has_edge_importance: bool = _data(
        False,
        "the fourth column of your own files is the weight of the triple, > 0; it multiplies both the positive and the "
        "negative part of its loss",
        dglke=_TRAIN,
        ours=_PARTITION,
    )
    split: tuple[float, ...] = _data(
        (),
        "shares of train, valid and test, such as 0.8 0.1 0.1, for data without valid and test: the same triples in every run. "
        "A share of 0: no such split",
        low=0,
        high=1,
        ours=(*_HERE, "partition"),
        metavar="SHARE",
    )
    data_url: str | None = _data(
        None, "where built-in sets are downloaded from, instead of the usual place", ours=(*_HERE, "partition"), metavar="URL"
    )

    # ---- model
    model_name: str = _model("TransE", "score function; TransE is TransE_l2", choices=tuple(BUILT_IN), dglke=_BOTH)
    model_file: str | None = _model(
        None,
        "import this Python file first: it registers score functions of your own (kgdist.register) for --model_name. Several "
        "machines need it at the same place",
        clean=whole_path,
        ours=_BOTH,
        metavar="FILE.py",
        sticky=False,
    )
    hidden_dim: int = _model(400, "embedding size d", low=1, high=1_000_000, dglke=_BOTH, metavar="D")
    gamma: float = _model(
        12.0,
        "margin of TransE, TransR, RotatE and PairRE (score = gamma - distance) and, for every model, the initial range of "
        "the embeddings, (gamma + 2) / hidden_dim",
        short="-g",
        above=0,
        dglke=_BOTH,
    )
    double_ent: bool = _model(
        False, "entities have 2d numbers (complex ones; RotatE needs it and gets it by itself)", short="-de", dglke=_BOTH
    )
    double_rel: bool = _model(
        False, "relations have 2d numbers (two vectors; PairRE needs it and gets it by itself)", short="-dr", dglke=_BOTH
    )
    init: str = _model(
        "uniform",
        "initial values: uniform in +-(gamma + 2) / hidden_dim, as in DGL-KE; normal, with that range as three standard "
        "deviations; xavier, uniform in +-sqrt(6 / (rows + columns))",
        choices=("uniform", "normal", "xavier"),
        ours=_TRAIN,
    )

    # ---- training
    max_step: int = _training(80000, "number of steps (batches) of each process", low=1, dglke=_TRAIN)
    max_epoch: float | None = _training(
        None, "length of the training in passes over the train split, instead of --max_step", above=0, high=1e6, ours=_TRAIN
    )
    batch_size: int = _training(
        1024,
        "positive triples per step, rounded up to a multiple of --neg_sample_size if that is smaller; with --candidates all, "
        "queries",
        low=1,
        dglke=_TRAIN,
    )
    lr: float = _training(
        0.01,
        "learning rate. Row-wise Adagrad works best with 0.01 (TransE_l1) to 0.1 (DistMult, ComplEx), Adam with much less",
        above=0,
        dglke=_TRAIN,
    )
    optimizer: str = _training(
        "adagrad_row",
        "adagrad_row keeps one number per embedding (DGL-KE); adagrad one per element; adam two per element; sgd none",
        choices=("adagrad_row", "adagrad", "sgd", "adam"),
        ours=_TRAIN,
    )
    lr_schedule: str = _training(
        "constant",
        "how the learning rate changes: constant; linear or cosine, down to 0; step, a tenth after half of the steps; plateau, "
        "reduced whenever the validation MRR stops improving (--plateau_factor)",
        choices=("constant", "linear", "cosine", "step", "plateau"),
        ours=_TRAIN,
    )
    lr_warmup: int = _training(0, "steps over which the learning rate first rises from 0 to --lr", low=0, ours=_TRAIN)
    seed: int = _training(
        0,
        "seed of all randomness. In one process the same seed gives the same embeddings, so where one is given, even 0, --preset "
        "trains in one",
        low=0,
        high=2**63 - 1,
        ours=(*_BOTH, "partition"),
    )

    # ---- evaluation
    test: bool = _evaluation(False, "evaluate on the test split after training", dglke=_TRAIN)
    valid: bool = _evaluation(False, "evaluate on the valid split every --eval_interval steps", dglke=_TRAIN)
    eval_interval: int = _evaluation(
        0, "steps between two validations; 0: a tenth of the training, but at most 10,000", low=0, dglke=_TRAIN
    )
    early_stop_patience: int = _evaluation(
        0, "stop after this many validations without a better MRR, and keep the best; 0: never. Needs --valid", low=0, ours=_TRAIN
    )
    batch_size_eval: int = _evaluation(
        8, "test triples ranked at a time; affects speed and memory only, never the result", low=1, dglke=_BOTH
    )
    neg_sample_size_eval: int = _evaluation(
        -1, "rank among this many random entities; -1: among all, the exact figure", low=1, besides=(-1,), dglke=_BOTH
    )
    neg_deg_sample_eval: bool = _evaluation(
        False, "rank among the entities of the batch's other triples too; needs --no_eval_filter and a sample", dglke=_BOTH
    )
    eval_percent: float = _evaluation(
        1.0, "fraction of the split that is evaluated, 1 for all of it", above=0, high=1, dglke=_BOTH
    )
    no_eval_filter: bool = _evaluation(False, "raw ranks: known true triples stay among the candidates", dglke=_BOTH)
    rank_ties: str = _evaluation(
        "realistic",
        "which rank to print when candidates tie with the true entity: pessimistic (DGL-KE), after them; optimistic, before "
        "them; realistic, the mean of both. All three are saved",
        choices=("realistic", "optimistic", "pessimistic"),
        ours=_BOTH,
    )

    hits: tuple[int, ...] = _evaluation(
        (1, 3, 10),
        "the k of HITS@k, the share of ranks of at most k, in all that is printed and saved; 1, 3 and 10 are always among them",
        low=1,
        least=1,
        ours=_BOTH,
        metavar="K",
    )

    # ---- output
    save_path: str = _output(
        "ckpts", "folder of the runs; this one becomes <model>_<dataset>_<number> below it", dglke=_TRAIN, metavar="FOLDER"
    )
    model_path: str = _output("ckpts", "folder of the trained run", dglke=_EVAL, metavar="RUN")
    no_save_emb: bool = _output(False, "do not save the embeddings", synonyms=("--no_save_embed",), dglke=_TRAIN)
    log_interval: int = _output(1000, "steps between two log lines", short="-log", low=1, dglke=_TRAIN)
    checkpoint_interval: str = _output(
        "10m",
        "minutes (10m) or steps (1000) between two checkpoints; 0: only at the end and when interrupted. Minutes are "
        "lengthened if checkpoints would take more than a hundredth of the time",
        **interval.ASKED,
        ours=_TRAIN,
    )
    report: bool = _output(
        False,
        "write report.html into the run folder: curves, metrics, relations, examples and a map of the embeddings, in one file "
        "(needs the extra kgdist[viz]). Training then records at least a hundred points of each curve",
        ours=_HERE,
    )
    tensorboard: bool = _output(False, "also write the curves for TensorBoard (several machines: on this one)", ours=_TRAIN)
    quiet: bool = _output(
        False, "print results, warnings and errors only", ours=(*_BOTH, "copy", "server", "client", "partition"), sticky=False
    )
    debug: bool = _output(
        False,
        "print everything, and the traceback of an error",
        ours=(*_BOTH, "copy", "server", "client", "partition"),
        sticky=False,
    )

    json: bool = _output(
        False,
        "print the result as one JSON object, and nothing else, on stdout; messages go to stderr",
        ours=(*_BOTH, "partition"),
        sticky=False,
    )

    # ---- where options and weights come from
    config: str | None = _start(
        None,
        "read options from this YAML file, one per line (lr: 0.1), or take those of a run, from its folder or config.json; flags "
        "given beside it win",
        ours=(*_BOTH, "partition"),
        metavar="FILE.yaml or RUN",
        sticky=False,
    )
    preset: str = _start(
        "none",
        "use options that are known to work for this model and data set, and print them; --config and flags win. published (the "
        "same as --preset alone): DGL-KE's, our own of similar cost, or for any other graph a rule by its sizes; fast: nearly "
        "the best known ranks, from small models; best: the best known ranks, in an hour or more",
        choices=("none", "published", "fast", "best"),
        bare="published",
        ours=_TRAIN,
        sticky=False,
    )
    resume: str | None = _start(
        None, "continue this run from its last checkpoint, with its options", ours=_TRAIN, metavar="RUN", sticky=False
    )
    init_from: str | None = _start(
        None,
        "start a new run from the embeddings of this one; names that it does not have start at random",
        ours=_TRAIN,
        metavar="RUN",
        clean=whole_path,
        sticky=False,
        again=True,
    )

    yes: bool = _start(
        False,
        "start a training with --candidates all even if, at the speed measured first, it would take more than a day",
        ours=_ALONE,
        sticky=False,
    )

    # ---- hardware
    gpu: tuple[int, ...] = _hardware(
        (-1,), "numbers of the GPUs to use; -1: train on the CPU", low=-1, high=1023, least=1, dglke=_HERE, metavar="GPU"
    )
    mix_cpu_gpu: bool = _hardware(False, "keep the entity table in CPU memory and compute on the GPU", dglke=_HERE)
    num_proc: int = _hardware(
        1,
        "number of processes, each of which does --max_step steps. When not given, evaluation uses all cores; training uses one "
        "process, or, with --preset (whose steps are divided) and without --seed, one for each core, up to 8",
        low=1,
        high=4096,
        dglke=_BOTH,
    )
    num_thread: int = _hardware(1, "threads of each process", low=1, high=4096, dglke=_BOTH)
    worker: str = _hardware(
        "process",
        "what --num_proc counts: processes, or threads of one process, which need less memory, and no root for --huge_pages",
        choices=("process", "thread"),
        ours=_ALONE,
    )
    huge_pages: bool = _hardware(
        False, "keep the tables on huge pages, for speed; prints a line if the system does not allow it", ours=_TRAIN
    )
    compute_dtype: str = _hardware(
        "float32",
        "number type of matrix products in training; bfloat16 is faster where the CPU or GPU has it. Rows, losses and ranks stay "
        "float32",
        choices=("float32", "bfloat16"),
        ours=_TRAIN,
    )
    force_sync_interval: int = _hardware(
        -1,
        "steps after which the processes wait for one another, so that none runs ahead; -1: 1000 for several processes, 100 for "
        "several machines (effect on accuracy and with slow machines: docs/reliability.md, A slow trainer)",
        low=1,
        besides=(-1,),
        dglke=_TRAIN,
    )
    rel_part: bool = _hardware(False, "give all triples of a relation to one process if the work stays even", dglke=_ALONE)
    async_update: bool = _hardware(False, "update entities while the GPU computes the next step", dglke=_ALONE)

    def __post_init__(self) -> None:
        for name, row in OPTIONS.items():
            object.__setattr__(self, name, row.check(getattr(self, name)))

    @property
    def cores(self) -> int:
        """See ReachOptions."""
        return self.num_proc * self.num_thread

    @property
    def entity_dim(self) -> int:
        """Numbers per entity, D."""
        return self.hidden_dim * (2 if self.double_ent else 1)

    @property
    def relation_dim(self) -> int:
        """Numbers per relation, R (RESCAL and TransR keep a matrix of R x D besides or instead)."""
        return self.hidden_dim * (2 if self.double_rel else 1)

    @property
    def init_range(self) -> float:
        """Half-width of the uniform initial values, (gamma + 2) / hidden_dim (DGL-KE); hidden_dim is not doubled."""
        return (self.gamma + 2.0) / self.hidden_dim

    @property
    def run_name(self) -> str:
        """Start of the run folder's name."""
        return f"{self.model_name}_{self.dataset}"

    def replace(self, **changes: Any) -> Config:
        """A copy with other values, checked again."""
        return dataclasses.replace(self, **changes)


# As they stand in --help and in pages: what a first training needs comes first; those that are not named follow.
_GROUPS = ("data", "model", "training", "loss", "negative samples", "evaluation", "output", "start", "hardware", "encoder")


def _place(item: tuple[str, Option]) -> int:
    group = item[1].group
    return _GROUPS.index(group) if group in _GROUPS else len(_GROUPS)


OPTIONS: dict[str, Option] = dict(sorted(table(Config).items(), key=_place))
