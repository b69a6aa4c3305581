"""What is refused of one option because of another: for every command its rows, read from top to bottom.

A value that cannot be is refused by its own row of the table of options. What needs the world (files, data, a saved run, memory,
GPUs, machines) is refused where that is known, and what a score function asks of others by its class.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable, Collection, Iterator
from pathlib import PurePath
from typing import Any

from kgdist.base.errors import OptionError, counted
from kgdist.options.config import Config
from kgdist.options.of_encoders import EncoderOptions
from kgdist.options.option import show, wrong_shares
from kgdist.options.tools import (
    ConvertOptions,
    EmbSimOptions,
    EncodeOptions,
    ExportOptions,
    ImportOptions,
    InspectOptions,
    LaunchOptions,
    Lists,
    PredictOptions,
    PreprocessOptions,
    ServeOptions,
    SplitOptions,
    TuneOptions,
)

Given = Collection[str]  # names of the options that the user set, as opposed to defaults and presets
Rows = Iterator[tuple[object, str, str]]  # whether it is so, whose line the error is, and why it cannot be

EXCLUSIVE = (("max_step", "max_epoch"),)  # at one level only one of them; a higher level's choice replaces the lower one's
PLATEAU = ("plateau_factor", "plateau_patience")  # of no other schedule
MOST_CUT = 64  # partitions of triples: those that an entity is in are the bits of a word
FILES = {"raw_udd": (1, 3, "train [valid [test]]"), "udd": (3, 5, "entities relations train [valid [test]]")}


def every(rows: Rows) -> list[tuple[str, str]]:
    """All that are so: the option that the error is of, and why it cannot be."""
    return [(option, reason) for broken, option, reason in rows if broken]


def refuse(rows: Rows) -> None:
    """Raise OptionError for the first that is so."""
    for broken, option, reason in rows:
        if broken:
            raise OptionError(f"--{option}", reason)


# ---------------------------------------------------------------------------------------------------------------- runs
def of_a_command_line(o: Config, given: Given) -> Rows:
    """Of what the user has set, before anything is filled in."""
    several = o.num_client_proc is not None and o.num_proc != o.num_client_proc
    yield "num_proc" in given and several, "num_proc", "means the same as --num_client_proc; give one of them"
    alone = "says where the files of --part_config go; give that one, too"
    yield o.rel_data_path is not None and o.part_config is None, "rel_data_path", alone
    graphs = "contradicts --part_config, which names the graph"
    yield o.part_config is not None and "dataset" in given, "dataset", graphs
    manual = "manual reaches no machine; copy what it needs to each by your own means"
    placed = o.backend in ("ray", "ray-train")
    for name in ("ray_address", "ray_placement", "ray_wait"):
        yield name in given and not placed, name, "goes with --backend ray; add that, or drop it"
    if not o.resume:  # else the run says whether it has an encoder
        yield from of_a_backend(o)
    one = "has no effect with --backend ray-train, which places one worker for each partition; drop it"
    yield o.backend == "ray-train" and "num_client_proc" in given, "num_client_proc", one
    yield placed and "ip_config" in given, "ip_config", "has no effect with --backend ray, which places the machines; drop it"
    shared = "knows no machine before Ray has placed it; put the partitions where all nodes see them, or name a --storage"
    yield placed and o.copy and o.storage is None, "copy", shared
    of_scripts = "is for trainings; put a script's files where all machines see them"
    yield o.storage is not None and (o.part_config or o.script_folder) is not None, "storage", of_scripts
    yield o.backend == "manual" and (o.part_config or o.script_folder) is not None, "backend", manual


def of_a_backend(o: Config) -> Rows:
    """Of who starts the workers of a run whose options are known."""
    encoders = "ray-train runs the workers of graph encoders: name one with --encoder, or take --backend ray"
    yield o.backend == "ray-train" and o.encoder == "none", "backend", encoders


def of_a_run(o: Config, given: Given) -> Rows:
    """Of training and kgdist-eval."""
    for one, other in EXCLUSIVE:
        yield {one, other} <= {*given}, one, f"contradicts --{other}; give one of them"
    start = "contradicts --init_from: go on with a run, or start a new one from its embeddings"
    yield o.resume and o.init_from, "resume", start
    yield o.resume and o.init_vectors, "resume", "contradicts --init_vectors: a run that goes on has its rows; drop one of them"
    yield (
        o.init_vectors and o.init_from,
        "init_vectors",
        "contradicts --init_from, which has rows of entities, too; drop one of them",
    )
    yield o.resume and o.preset != "none", "resume", "contradicts --preset: a run that goes on keeps its options"
    own = f"has no place beside --resume: the run goes on in its own folder, {o.resume}; drop it"
    yield o.resume and "save_path" in given, "save_path", own
    yield o.debug and o.quiet, "debug", "contradicts --quiet"
    yield o.early_stop_patience and not o.valid, "early_stop_patience", "needs --valid, whose MRR it watches"
    losses = f"is not defined for --loss_genre {o.loss_genre}; add --loss_genre Logistic or Hinge"
    yield o.pairwise and o.loss_genre not in ("Logistic", "Hinge"), "pairwise", losses
    weighs = "contradicts --neg_adversarial_sampling, which weighs the negatives' own losses; drop one of them"
    yield o.pairwise and o.neg_adversarial_sampling, "pairwise", weighs
    yield from of_an_evaluation(o)
    yield from _of_files(o)
    yield from _of_an_encoder(o, given)
    yield from _of_an_objective(o, given)
    on_cpu = o.gpu == (-1,)
    for name in ("mix_cpu_gpu", "async_update"):
        yield on_cpu and getattr(o, name), name, "needs a GPU: add --gpu 0, or drop it to train on the CPU"
    asked = " ".join(map(str, o.gpu))
    yield -1 in o.gpu and not on_cpu, "gpu", f"-1 means the CPU and cannot be mixed with GPUs, not {asked}"
    yield len({*o.gpu}) < len(o.gpu), "gpu", f"each GPU once, not {asked}; several processes share one with --num_proc"


def _of_an_objective(o: Config, given: Given) -> Rows:
    """Of the loss, its candidates, and what keeps rows small."""
    softmax, everybody = o.loss_genre == "Softmax", o.candidates == "all"
    weighs = "contradicts --loss_genre Softmax, which weighs candidates by their scores already; drop one of them"
    yield softmax and o.neg_adversarial_sampling, "neg_adversarial_sampling", weighs
    single = "has no margin between a triple and all entities; take Softmax, or BCE for binary losses"
    yield everybody and o.loss_genre == "Hinge", "loss_genre", single
    drawn = "is about negatives that are drawn, and with --candidates all every entity is one; drop it"
    for name in ("pairwise", "neg_adversarial_sampling", "neg_deg_sample", "neg_sample_size", "neg_sampler", "entity_types"):
        yield everybody and name in given and getattr(o, name) is not False, name, drawn
    for name in ("answers", "k_vs_all", "yes"):
        yield not everybody and name in given, name, "goes with --candidates all; add that, or drop it"
    yield (
        everybody and o.encoder != "none",
        "candidates",
        "all needs the rows of all entities in each step, and --encoder makes few",
    )
    yield everybody and o.async_update, "async_update", "contradicts --candidates all, which needs the rows of the step before"
    yield everybody and o.rel_part, "rel_part", "divides triples among processes, and --candidates all has one; drop it"
    smooth = "is for --loss_genre Softmax, or --candidates all"
    yield o.label_smoothing and not (softmax or everybody), "label_smoothing", smooth
    yield o.label_smoothing >= 1, "label_smoothing", f"is a share, below 1, not {o.label_smoothing:g}"
    norms = f"is the exponent of --regularizer lp; {o.regularizer} has its own"
    yield o.regularizer != "lp" and "regularization_norm" in given, "regularization_norm", norms
    yield o.init_scale is not None and o.init == "xavier", "init_scale", "contradicts --init xavier, whose range is its own"
    trained = o.num_parts is None and not o.verify and o.method != "dglke"  # else it is kgdist-partition that reads them
    untyped = trained and "entity_types" in given and o.entity_types is not None and o.neg_sampler != "typed"
    yield untyped, "entity_types", "goes with --neg_sampler typed; add that"
    own = o.neg_sampler == "typed" and o.neg_deg_sample
    yield own and softmax, "neg_sampler", "typed draws stand for other entities than those of --neg_deg_sample; drop one of them"
    sorted_ = "deals triples out by relation, and a chunk's own entities stand for others; drop it, or --neg_deg_sample"
    yield softmax and o.neg_deg_sample and o.rel_part, "rel_part", sorted_
    blind = o.lr_schedule == "plateau" and not o.valid and {"lr_schedule", "valid"} & set(given)  # kgdist-eval has no --valid
    yield blind, "lr_schedule", "plateau watches validations; add --valid"
    early = f"ends a training before its rate is lowered, after {counted(o.plateau_patience + 1, 'validation')}; take more"
    never = o.lr_schedule == "plateau" and 0 < o.early_stop_patience <= o.plateau_patience + 1
    yield never, "early_stop_patience", early
    for name in PLATEAU:
        yield o.lr_schedule != "plateau" and name in given, name, "goes with --lr_schedule plateau; add that, or drop it"


def _of_an_encoder(o: Config, given: Given) -> Rows:
    """Of the graph network in front of a score function."""
    names = [each.name for each in dataclasses.fields(EncoderOptions) if each.name != "encoder"]
    for name in names if o.encoder == "none" and not o.edges and o.num_parts is None else ():
        yield name in given, name, "goes with --encoder; name one, or drop it"
    if o.encoder == "none":
        return
    hops = f"needs a number for each of the {o.num_layers} layers (--num_layers), not {len(o.fanout)}"
    yield o.fanout and len(o.fanout) != o.num_layers, "fanout", hops
    yield o.relation_blocks and not o.num_bases, "relation_blocks", "needs --num_bases, how many blocks there are"
    for name, owner in (("num_bases", "rgcn"), ("relation_blocks", "rgcn"), ("num_heads", "gat")):
        yield o.encoder != owner and name in given, name, f"is an option of --encoder {owner}; drop it"
    alone = "goes with --attributes: without these all entities have rows; drop it"
    yield o.own_rows and o.attributes is None, "own_rows", alone
    shared = "is about a parameter store, and workers of --encoder share gradients by torch.distributed; drop it"
    for name in ("local_update", "transport_dtype", "pull_ahead", "max_inflight", "transport_security"):
        yield name in given, name, shared
    stored = "is where trainings without --encoder keep partitions and checkpoints; put these where all machines see them"
    yield o.storage is not None, "storage", stored
    by_hand = "manual knows no workers of --encoder; start them by torchrun (kgdist.train_gnn)"
    yield o.backend == "manual", "backend", by_hand
    yield o.init_from, "init_from", "begins with rows of a run, but an encoder makes them; drop one of them"
    vectors = "begins with vectors as rows, but an encoder makes those; give it the vectors as --attributes"
    yield o.init_vectors, "init_vectors", vectors
    yield o.freeze != "none", "freeze", "keeps rows of entities, but an encoder makes them; drop one of them"
    yield o.async_update, "async_update", "contradicts --encoder, which needs the rows of the step before; drop it"


def of_an_evaluation(o: Config) -> Rows:
    """Of its protocol."""
    yield o.neg_deg_sample_eval and not o.no_eval_filter, "neg_deg_sample_eval", "needs --no_eval_filter"
    sample = "adds entities to a sample, so it needs --neg_sample_size_eval N; now all entities are ranked already"
    yield o.neg_deg_sample_eval and o.neg_sample_size_eval < 0, "neg_deg_sample_eval", sample


def _of_files(o: Config) -> Rows:
    count, kind = len(o.data_files), o.format.rpartition("_")[0]
    if o.format == "built_in":
        yield count, "data_files", "own files need --format raw_udd_hrt (names) or udd_hrt (integer ids)"
    else:
        low, high, what = FILES[kind]
        yield not low <= count <= high, "data_files", f"--format {o.format} takes {low} to {high} files ({what}), not {count}"


def of_partitioning(o: Config, given: Given) -> Rows:
    """Of kgdist-partition, besides."""
    read = o.num_parts is None and o.verify and o.method != "dglke"
    none = o.num_parts is None and not o.verify and o.method != "dglke"
    yield none, "num_parts", "say how many partitions: -k 4 for four machines"
    yield o.dry_run and o.verify, "verify", "there is nothing to read after --dry_run; drop one of them"
    taken = {"balance": read or o.method == "dglke", "method": read, "seed": read or o.method == "dglke"}
    for name, idle in {**taken, "expand": read, "fanout": read, "no_inverse": read, "entity_types": read}.items():
        yield idle and name in given, name, "has no effect here: partitions are taken as they are; drop it"
    yield from _of_edges(o, given)
    held = "is for --layout kgdist and --edges: others hold no types; drop it"
    typeless = o.layout != "kgdist" or o.metadata is not None or o.method == "dglke"
    yield o.entity_types is not None and typeless, "entity_types", held
    yield o.features and o.layout != "graph", "features", "needs --layout graph: triples alone are what the other layouts hold"
    strange = next((text for text in o.features if not all(text.partition("="))), None)
    yield strange is not None, "features", f"must be NAME=FILE.npy, not {show(strange)}"
    if o.metadata is None:
        return
    yield o.out is None, "metadata", "needs --out, the folder that gets the partitions"
    for name in ("dataset", "data_path", "format", "data_files", "delimiter", "header", "quoted", "data_url", "features"):
        yield name in given, name, "contradicts --metadata, which names the files of the graph; drop it"
    yield o.has_edge_importance, "has_edge_importance", "contradicts --metadata: weights are data of its edges; drop it"
    yield "layout" in given and o.layout != "graph", "layout", "contradicts --metadata: a graph is written as one; drop it"
    yield o.method == "dglke", "method", "dglke takes over partitions of a data set, not of --metadata"
    yield o.dry_run, "dry_run", "is for data sets: a graph's table is counted from what was written"


def _of_edges(o: Config, given: Given) -> Rows:
    """Of kgdist-partition --edges."""
    for name in ("expand", "fanout", "no_inverse") if not o.edges else ():
        yield name in given, name, "goes with --edges; add that, or drop it"
    divides = f"{o.method} divides triples; add --edges"
    yield not o.edges and o.method in ("hdrf", "dbh"), "method", divides
    if not o.edges:
        return
    yield o.layout != "kgdist", "edges", f"contradicts --layout {o.layout}; drop one of them"
    yield o.metadata is not None, "edges", "contradicts --metadata: triples of a data set are divided; drop one of them"
    both = f"{o.method} divides entities alone; with --edges take hdrf, dbh, random or metis"
    yield o.method in ("streaming", "dglke"), "method", both
    evens = f"has no effect here: {o.method} evens out triples; drop it"
    yield "balance" in given and o.method != "metis", "balance", evens
    yield (o.num_parts or 1) > MOST_CUT, "num_parts", f"--edges makes {MOST_CUT} partitions at most, not {o.num_parts}"
    hops = f"needs a number for each of the {o.expand} hops (--expand), not {len(o.fanout)}"
    yield o.fanout and len(o.fanout) != o.expand, "fanout", hops


# ---------------------------------------------------------------------------------------------------------------- tools
def of_predicting(o: PredictOptions, given: Given) -> Rows:
    yield from _of_lists(o, kinds="heads, relations or tails", asks="asks for")
    all_three = "triplet_wise reads heads, relations and tails side by side; --format h_r_t has all three"
    yield o.exec_mode == "triplet_wise" and not all(map(o.listed, o.LISTS)), "exec_mode", all_three
    yield from _of_names(o, {"--entity_mfile": o.entity_mfile, "--rel_mfile": o.rel_mfile})
    both = "searches all heads or all tails, but both are listed; leave it out"
    yield o.index and o.listed("head") and o.listed("tail"), "index", both


def of_comparing_embeddings(o: EmbSimOptions, given: Given) -> Rows:
    missing = o.model_path is None and o.emb_file is None
    yield missing, "emb_file", "name an .npy file of embeddings, or the folder of a run instead"
    beside = f"is there beside the run {o.model_path}; give one of them"
    yield o.model_path is not None and o.emb_file is not None, "emb_file", beside
    of_run = "says which embeddings of a run, and --emb_file is a file; leave it out"
    yield o.emb_file is not None and "kind" in given, "kind", of_run
    yield from _of_lists(o, kinds="left or right ones", asks="compares with", more=", or --format '*'")
    both = "pairwise reads lists of left and right ones side by side; --format l_r has both"
    yield o.exec_mode == "pairwise" and not all(map(o.listed, o.LISTS)), "exec_mode", both
    yield from _of_names(o, {"--mfile": o.mfile})


def _of_lists(o: Lists, *, kinds: str, asks: str, more: str = "") -> Rows:
    """Of lists, given in files or here. `kinds`: what they are of; `asks`: what a * does; `more`: what else could be given."""
    here = {name: getattr(o, name) for name in o.LISTS}
    if o.format is None:
        yield o.data_files, "data_files", f"needs --format, which says whether they list {kinds}"
        *flags, last = [f"--{name}" for name in here]
        asked = f"nothing is asked: give {', '.join(flags)} or {last}, or --format and --data_files{more}"
        yield not any(here.values()), o.LISTS[0], asked
        return
    for name, words in here.items():
        yield words and not o.listed(name), name, f"--format {o.format} {asks} all of them; write its letter for the *"
    wanted = sum(o.listed(name) and not words for name, words in here.items())
    count = len(o.data_files)
    yield wanted != count, "data_files", f"--format {o.format} takes {wanted} lists from files, not {count}"


def _of_names(o: PredictOptions | EmbSimOptions, files: dict[str, str | None]) -> Rows:
    """Of what says how lists are written; `files` of names, by flag."""
    named = next((flag for flag, file in {"--raw_data": o.raw_data, **files}.items() if file), "")
    yield o.ids and named, "ids", f"says that the lists hold ids, {named} that they hold names"


def of_exporting(o: ExportOptions, given: Given) -> Rows:
    yield "blank" in given and o.to != "word2vec", "blank", "has no effect here: only --to word2vec changes names; drop it"


def of_converting(o: ConvertOptions, given: Given) -> Rows:
    built_in = o.input_format == "built_in"
    yield o.output_path is None, "output_path", "say which folder to write"
    which = "say which data set; --input_format built_in reads the folder <data_path>/<dataset>"
    yield built_in and o.dataset is None, "dataset", which
    yield not built_in and "dataset" in given, "dataset", "goes with --input_format built_in; other formats take --data_files"


def of_splitting(o: SplitOptions, given: Given) -> Rows:
    yield o.file is None, "file", "say which file of triples is to be divided"
    yield o.output_path is None, "output_path", "say which folder to write"
    wrong = wrong_shares(o.ratio)
    yield bool(wrong), "ratio", wrong
    yield sum(o.ratio[1:]) == 0, "ratio", "holds nothing out; give valid or test a share, or train on the file as it is"
    yield not o.format.startswith("raw_udd_"), "format", "the file has names, in three columns: raw_udd_XYZ"


def of_inspecting(o: InspectOptions, given: Given) -> Rows:
    yield not o.data, "data", "say what to look at: files of train, valid and test, a folder, or a known data set"
    yield len(o.data) > 3, "data", f"takes three files at most, of train, valid and test, not {len(o.data)}"


def of_importing(o: ImportOptions, given: Given) -> Rows:
    yield o.model_path is None, "model_path", "say which folder the model is in"
    yield (o.entity_mfile is None) != (o.rel_mfile is None), "entity_mfile", "goes with --rel_mfile: give both, or neither"


def of_preprocessing(o: PreprocessOptions, given: Given) -> Rows:
    yield not o.entities, "entities", "say which file has the entities"
    count = len(o.entities)
    yield o.draft_schema and count > 1, "draft_schema", f"guesses from one file, not from {count}: call it for each"
    yield o.draft_schema and len(o.schema) > 1, "schema", "one file gets the schema that is drafted"
    if o.draft_schema:
        idle = ("fit_on", "dataset", "data_path", "format", "data_files", "delimiter", "header", "quoted")
        for name in (*idle, "executor", "num_workers", "ray_address", "gpu", "chunk_size", "out", "report"):
            yield name in given, name, "has no effect here: --draft_schema writes a schema and nothing else; drop one of them"
        return
    yield not o.schema, "schema", "say what the columns are; --draft_schema guesses a first one"
    yield len(o.schema) != count, "schema", f"one for each file of --entities: not {len(o.schema)} for {count}"
    inside = o.report is not None and PurePath(o.out) in PurePath(o.report).parents
    yield inside, "report", "put it beside --out, which holds attributes and nothing else"
    yield o.num_workers is not None and o.executor == "local", "num_workers", "needs --executor process, or ray"
    yield o.ray_address is not None and o.executor != "ray", "ray_address", "needs --executor ray"
    yield o.gpu >= 0 and o.executor != "local", "gpu", "goes with --executor local: one process computes on it"
    for name in ("data_path", "format", "data_files", "delimiter", "header", "quoted"):
        yield o.dataset is None and name in given, name, "says where a data set is; give its name, too: --dataset"
    own = "own files need --format raw_udd_hrt (names) or udd_hrt (integer ids)"
    yield o.format == "built_in" and o.data_files, "data_files", own
    yield o.dataset is not None and o.format != "built_in" and not o.data_files, "data_files", f"--format {o.format} needs them"


def of_encoding(o: EncodeOptions, given: Given) -> Rows:
    nothing = o.triples is None and o.entities is None
    yield nothing, "triples", "say what is known of the new entities: --triples, --entities with their attributes, or both"
    names = "new entities have names, and no ids yet: raw_udd_XYZ"
    yield not o.format.startswith("raw_udd_"), "format", names
    for name in ("format", "delimiter", "header", "quoted"):
        idle = o.triples is None and o.test is None and name in given
        yield idle, name, "says what --triples and --test are, and there is neither; drop it"


def of_launching(o: LaunchOptions, given: Given) -> Rows:
    yield o.backend == "ray-train", "backend", "ray-train runs the workers of kgdist-dist-train --encoder; scripts take ray"


def of_tuning(o: TuneOptions, of_trials: Config) -> Rows:
    """Of kgdist-tune."""
    least = 2 ** (o.rounds - 1)
    few = f"{o.rounds} rounds that leave half of the trials at most begin with {least} or more, not {o.trials}"
    yield o.trials < least, "trials", few
    attributes = "are of the entities of the whole graph, and --rounds begin on parts of it; drop one of them"
    yield o.rounds > 1 and of_trials.attributes is not None, "attributes", attributes


def of_serving(o: ServeOptions, given: Given) -> Rows:
    """Of kgdist-serve."""
    reached = "can be reached by others: give --token_file FILE, whose line they must know"
    yield not is_loopback(o.host) and o.token_file is None, "host", f"{o.host} {reached}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than localhost may lead anywhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


OF_TOOLS: dict[str, Callable[[Any, Given], Rows]] = {
    "predict": of_predicting,
    "emb-sim": of_comparing_embeddings,
    "export": of_exporting,
    "convert": of_converting,
    "import": of_importing,
    "split": of_splitting,
    "inspect": of_inspecting,
    "preprocess": of_preprocessing,
    "encode": of_encoding,
    "launch": of_launching,
    "serve": of_serving,
}
