"""The options of the commands that work on what a training left: predict, emb-sim, export, convert, compare, encode, tune, serve.

Each command has a table of its own, for the same words mean other things there than in a training (`--format h_r_*`).
Names and defaults are those of DGL-KE's dglke_predict, dglke_emb_sim and dglke_convert where it has them.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import PurePath
from typing import Any, ClassVar, TypeVar

from kgdist.options.cluster import ReachOptions
from kgdist.options.of_brought import LabelOptions
from kgdist.options.of_entities import EntityOptions, NewEntityOptions
from kgdist.options.of_graphs import ConvertingOptions, InspectingOptions, SplittingOptions
from kgdist.options.of_serving import ServingOptions
from kgdist.options.of_tuning import TuningOptions
from kgdist.options.option import option, table
from kgdist.options.shell_words import no_shell, variable

Own = TypeVar("Own", bound="ToolOptions")
_what = partial(option, group="input")
_how = partial(option, group="options")
_output = partial(option, group="output")
_script = partial(option, group="script")
_json = partial(_output, False, "print the result as one JSON object, and nothing else, on stdout; messages go to stderr")


def _answers_file(path: str) -> str:
    kinds = (".tsv", ".txt", ".csv", ".json", ".parquet", ".pq")
    if (suffix := PurePath(path).suffix.lower()) and suffix not in kinds:
        raise ValueError(f"must end in {', '.join(kinds)}, not {path[-60:]!r}")
    return path


def _page_or_text(path: str) -> str:
    kinds = (".html", ".tsv", ".json", ".md")
    if PurePath(path).suffix.lower() not in kinds:
        raise ValueError(f"must end in {', '.join(kinds)}, not {path[-60:]!r}")
    return path


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """What all of these commands have. Raises OptionError for a value that cannot be."""

    quiet: bool = _output(False, "print results, warnings and errors only")
    debug: bool = _output(False, "print everything, and the traceback of an error")

    def __post_init__(self) -> None:
        for name, row in table(type(self)).items():
            object.__setattr__(self, name, row.check(getattr(self, name)))

    def replace(self: Own, **changes: Any) -> Own:
        """A copy with other values, checked again."""
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(ToolOptions):
    """What those have that open runs."""

    model_file: str | None = _what(
        None,
        "import this Python file first: it registers the score function of the run, if that is one of your own",
        metavar="FILE.py",
    )


class Lists:
    """What those have that read lists: from files in the order of the letters in --format, or given by options of their names."""

    LISTS: ClassVar[tuple[str, ...]]
    format: str | None
    data_files: tuple[str, ...]

    def listed(self, name: str) -> bool:
        """Whether this list is given; otherwise all there are stand instead."""
        return name[0] in self.format.split("_") if self.format is not None else bool(getattr(self, name))

    def sources(self) -> list[str | tuple[str, ...] | None]:
        """Of each list its file, its words, or None: all there are."""
        files = iter(self.data_files)
        return [getattr(self, name) or next(files) if self.listed(name) else None for name in self.LISTS]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictOptions(Lists, LabelOptions, RunOptions):
    """kgdist-predict."""

    LISTS = ("head", "relation", "tail")
    model_path: str = _what("ckpts", "folder of the trained run, ours or one that DGL-KE wrote", metavar="RUN")
    format: str | None = _what(
        None,
        "which lists the files hold: heads, relations, tails; * stands for all of them",
        choices=("h_r_t", "h_r_*", "h_*_t", "*_r_t", "h_*_*", "*_r_*", "*_*_t"),
    )
    data_files: tuple[str, ...] = _what(
        (), "lists of heads, relations, tails in the order of the letters in --format, one name or id per line", metavar="FILE"
    )
    head: tuple[str, ...] = _what((), "heads, here instead of in a file", metavar="NAME")
    relation: tuple[str, ...] = _what((), "relations, here instead of in a file", metavar="NAME")
    tail: tuple[str, ...] = _what((), "tails, here instead of in a file", metavar="NAME")
    raw_data: bool = _what(
        False, "the lists hold names (the default if the run knows names); --entity_mfile and --rel_mfile give other names"
    )
    ids: bool = _what(False, "the lists hold ids, even if the run knows names")
    entity_mfile: str | None = _what(None, "names of the entities: lines id<TAB>name", metavar="FILE")
    rel_mfile: str | None = _what(None, "names of the relations: lines id<TAB>name", metavar="FILE")
    exec_mode: str = _how(
        "all",
        "what the best answers are chosen from: all, all combinations together; batch_head, batch_rel, batch_tail, those of each "
        "head, relation or tail; triplet_wise, lists of equal length read side by side",
        choices=("all", "triplet_wise", "batch_head", "batch_rel", "batch_tail"),
    )
    topK: int = _how(10, "number of answers", low=1, synonyms=("--topk",))
    score_func: str = _how(
        "none",
        "none: scores as the model gives them (distances without gamma); logsigmoid: log(sigmoid(score)), gamma included",
        choices=("none", "logsigmoid"),
    )
    exclude_known: bool = _how(False, "leave out the triples of train, valid and test")
    explain: bool = _how(
        False,
        "say what each score means: the ranks of head and tail among all entities, and a probability, calibrated on valid "
        "triples and as many corrupted ones (Platt scaling, saved in the run), so right if half of all asked about are true",
    )
    index: bool = _how(
        False,
        "search an approximate index (needs the extra kgdist[index]), for dot and L2 models and large tables. Prints its recall",
    )
    data_path: str | None = _how(None, "folder of the run's data, if it has moved", metavar="FOLDER")
    gpu: int = _how(-1, "number of the GPU to use; -1: the CPU", low=-1, high=1023)
    num_thread: int | None = _how(None, "threads; all cores when not given", low=1, high=4096)
    output: str | None = _output(
        None,
        "where to write the answers: FILE.tsv, .csv, .json or .parquet, or - for a table on the terminal. When not given: "
        "result.tsv for lists from files, the terminal for --head, --relation and --tail",
        clean=_answers_file,
        metavar="FILE",
    )
    json: bool = _json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbSimOptions(Lists, LabelOptions, RunOptions):
    """kgdist-emb-sim."""

    LISTS = ("left", "right")
    model_path: str | None = _what(None, "folder of a run, instead of --emb_file and --mfile", metavar="RUN")
    emb_file: str | None = _what(None, "embeddings: an .npy file of float32[n, d]", metavar="FILE")
    mfile: str | None = _what(None, "names of the embeddings: lines id<TAB>name", metavar="FILE")
    kind: str = _what("entity", "which embeddings of --model_path to compare", choices=("entity", "relation"))
    format: str | None = _what(
        None,
        "which lists the files hold: left and right; * stands for all embeddings, none of which is compared with itself",
        choices=("l_r", "l_*", "*_r", "*"),
    )
    data_files: tuple[str, ...] = _what((), "lists of left and right, one name or id per line", metavar="FILE")
    left: tuple[str, ...] = _what((), "left side, here instead of in a file", metavar="NAME")
    right: tuple[str, ...] = _what((), "right side, here instead of in a file", metavar="NAME")
    raw_data: bool = _what(False, "the lists hold names (the default if names are known)")
    ids: bool = _what(False, "the lists hold ids, even if names are known")
    exec_mode: str = _how(
        "all",
        "what the most similar are chosen from: all, all pairs; pairwise, two lists side by side; batch_left, those of each left",
        choices=("all", "pairwise", "batch_left"),
    )
    topK: int = _how(10, "number of answers", low=1, synonyms=("--topk",))
    sim_func: str = _how(
        "cosine",
        "x.y / (|x| |y|); -|x - y| in the L2 or L1 norm; x.y; x.y / (|x|^2 + |y|^2 - x.y)",
        choices=("cosine", "l2", "l1", "dot", "ext_jaccard"),
    )
    gpu: int = _how(-1, "number of the GPU to use; -1: the CPU", low=-1, high=1023)
    num_thread: int | None = _how(None, "threads; all cores when not given", low=1, high=4096)
    output: str | None = _output(
        None,
        "where to write the answers: FILE.tsv, .csv, .json or .parquet, or - for a table on the terminal. When not given: "
        "result.tsv for lists from files, the terminal for --left and --right",
        clean=_answers_file,
        metavar="FILE",
    )
    json: bool = _json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(RunOptions):
    """kgdist-export."""

    model_path: str = _what("ckpts", "folder of the trained run", metavar="RUN")
    to: str = _what(
        "npy",
        "format to write: arrays with a file of names (npy, safetensors, parquet), vectors as text (word2vec), files for the "
        "TensorFlow projector, or a folder that DGL-KE reads",
        choices=("npy", "safetensors", "parquet", "word2vec", "projector", "dglke"),
    )
    tables: str = _what("both", "which embeddings to write", choices=("both", "entity", "relation"))
    blank: str = _what("_", "what replaces blanks in names for word2vec, where a name must be one word")
    out: str | None = _output(None, "folder to write; <RUN>/export/<to> when not given", metavar="FOLDER")
    force: bool = _output(False, "replace an earlier export")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions(ConvertingOptions, ToolOptions):
    """kgdist-convert."""

    output_format: str = _how(
        "raw_udd_hrt",
        "format to write: raw_udd_XYZ (names), udd_XYZ (ids and dictionaries), built_in, ntriples, parquet, pykeen or libkge",
        synonyms=("--to",),
    )
    output_delimiter: str = _how("\t", "what separates the columns of raw_udd and udd")
    base: str | None = _how(
        None,
        "N-Triples: prefix of names that are not IRIs, such as http://example.org/; removed again when N-Triples are read",
        metavar="IRI",
    )
    output_path: str | None = _output(None, "folder to write", metavar="FOLDER", synonyms=("--out",))
    force: bool = _output(False, "replace what an earlier kgdist-convert has written there")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitOptions(SplittingOptions, ToolOptions):
    """kgdist-split."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectOptions(InspectingOptions, ToolOptions):
    """kgdist-inspect."""

    json: bool = _json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportOptions(ToolOptions):
    """kgdist-import."""

    model_path: str | None = _what(
        None,
        "folder of the model: one of DGL-KE; one of LibKGE with checkpoint_best.pt (or a FILE.pt in it); or one of PyKEEN with "
        "the arrays that examples/from_pykeen/arrays.py writes",
        metavar="FOLDER",
    )
    entity_mfile: str | None = _what(None, "names of the entities, if they are not found: lines id<TAB>name", metavar="FILE")
    rel_mfile: str | None = _what(None, "names of the relations: lines id<TAB>name", metavar="FILE")
    data_path: str | None = _what(None, "folder of the data that the model was trained on, for kgdist-eval", metavar="FOLDER")
    dataset: str | None = _what(None, "name of the data set, and part of the name of the run", metavar="NAME")
    format: str | None = _what(None, "format of its files: built_in, raw_udd_XYZ or udd_XYZ")
    data_files: tuple[str, ...] = _what((), "its files: as for a training", metavar="FILE")
    delimiter: str | None = _what(None, "what separates the columns of the data files")
    save_path: str = _output("ckpts", "folder in which the run folder is made", metavar="FOLDER")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(RunOptions):
    """kgdist-compare."""

    runs: tuple[str, ...] = _what((), "folders of runs, or folders that hold runs", metavar="RUN")
    sort: str = _how("mrr", "the column to sort the runs by", metavar="NAME")
    output: str | None = _output(
        None,
        "FILE.html (tables and curves, one file), FILE.tsv, FILE.json, FILE.md; the terminal when not given",
        clean=_page_or_text,
        metavar="FILE",
    )
    json: bool = _json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreprocessOptions(EntityOptions, ToolOptions):
    """kgdist-preprocess."""

    json: bool = _json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodeOptions(NewEntityOptions, RunOptions):
    """kgdist-encode."""

    model_path: str = _what("ckpts", "folder of the trained run", metavar="RUN")
    json: bool = _json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneOptions(TuningOptions, ToolOptions):
    """kgdist-tune; besides, it takes the options of a training."""

    json: bool = _json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions(ServingOptions, RunOptions):
    """kgdist-serve."""

    model_path: str = _what("ckpts", "folder of the trained run", metavar="RUN")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions(ReachOptions, ToolOptions):
    """kgdist-launch."""

    command: str | None = _script(
        None,
        "the command line of every process, in quotes. If its first word is python3, that is the Python that runs kgdist on that "
        "machine; relative paths are below --path. No shell reads it",
        clean=no_shell,
        metavar="COMMAND",
    )
    num_trainers: int = _script(1, "trainers on each machine", synonyms=("--num_clients",), low=1, high=4096)
    num_samplers: int = _script(
        0, "sampling processes of each trainer, unless the script sets num_workers itself", low=0, high=4096
    )
    num_servers: int | None = _script(
        None, "servers on each machine whose line in --ip_config gives no number; 1 when not given", low=1, high=4096
    )
    part_config: str | None = _script(
        None,
        "the file <graph_name>.json that was written beside the partitions, below --path; the machine on line n has partition "
        "n. Without it, the script cannot open a graph by name",
        metavar="FILE.json",
    )
    num_omp_threads: int | None = _script(
        None, "OMP_NUM_THREADS of each process; an equal share of the machine's cores when not given", low=1, high=4096
    )
    extra_envs: tuple[str, ...] = _script((), "environment variables for every process", clean=variable, metavar="NAME=VALUE")
    stall_timeout: float = _script(
        1800.0,
        "seconds that trainers wait for others, at a barrier or when all create a tensor together, before the job ends and names "
        "those that are missing",
        low=1,
        high=604800,
    )
    max_restarts: int = _script(
        0,
        "how often to restart the whole job, from the script's first line, when a process or a machine is lost",
        low=0,
        high=1000,
    )

    @property
    def cores(self) -> int:
        """See ReachOptions."""
        return self.num_trainers * (self.num_omp_threads or 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorOptions(ToolOptions):
    """kgdist doctor."""

    ip_config: str | None = _what(None, "machines of a job; the ports of those that are this machine are tried", metavar="FILE")
    json: bool = _json()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionOptions(ToolOptions):
    """kgdist completion."""

    shell: str = _what("bash", "the shell to print a script for", choices=("bash", "zsh", "fish"))


TOOLS: dict[str, type[ToolOptions]] = {
    "predict": PredictOptions,
    "emb-sim": EmbSimOptions,
    "export": ExportOptions,
    "convert": ConvertOptions,
    "split": SplitOptions,
    "inspect": InspectOptions,
    "import": ImportOptions,
    "compare": CompareOptions,
    "preprocess": PreprocessOptions,
    "encode": EncodeOptions,
    "tune": TuneOptions,
    "serve": ServeOptions,
    "launch": LaunchOptions,
    "doctor": DoctorOptions,
    "completion": CompletionOptions,
}
