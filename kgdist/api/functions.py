"""Training, loading and data sets from Python: `kgdist.train`, `kgdist.load`, `kgdist.load_dataset`.

The options are those of the command line by name (docs/options.md), and so is what is done with them. What comes back is a
`kgdist.Run`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kgdist.api.run import Run
from kgdist.base import log
from kgdist.base.errors import OptionError, UsageError
from kgdist.data import dataset
from kgdist.data.dataset import Dataset
from kgdist.options.config import OPTIONS
from kgdist.options.model_file import bring
from kgdist.options.option import unknown_option
from kgdist.options.parse import understand
from kgdist.training.callbacks import Callback

_CONSOLE = ("debug", "json")  # manners of a command
_NAMED = (
    "dataset", "data_path", "format", "data_files", "delimiter", "header", "quoted", "data_url", "has_edge_importance", "split",
)  # fmt: skip


def load(
    path: str | os.PathLike[str], *, model_file: str | None = None, data_path: str | os.PathLike[str] | None = None, gpu: int = -1
) -> Run:
    """Open a trained run, ours or one that DGL-KE wrote. Nothing is read but options and names; embeddings are memory-mapped.

    Args:
        path: its folder, such as "ckpts/RotatE_wordnet_0".
        model_file: Python file that registers its score function, when that is one of your own.
        data_path: where its data lies now, if it has moved; needed to evaluate, and for `exclude_known`.
        gpu: number of the GPU to keep its embeddings on; -1: memory-mapped, on the CPU.
    Raises CheckpointError for a folder that is no run or half of one.

    >>> run = kgdist.load("ckpts/RotatE_wordnet_0")
    >>> run.predict(head="dog.n.01", relation="hypernym", k=3)
    """
    if model_file is not None:
        bring(model_file)
    from kgdist.runs.opened import open_model

    return Run(open_model(Path(path), data_path=None if data_path is None else os.fspath(data_path), gpu=gpu))


def load_dataset(data: Any, *, valid: Any = None, test: Any = None, **options: Any) -> Dataset:
    """Load a graph: a known one by name, your own from files, or from memory.

    Args:
        data: one of
            a name, "wordnet" or "FB15k": looked for below `data_path` ("data"), unpacked or downloaded;
            a folder (a Path, or a str with a slash) with train.txt, .tsv or .parquet, and valid and test if there are any;
            a file of triples (`format="raw_udd_hrt"` unless you say another), with `valid` and `test` files;
            triples in memory: rows of (head, relation, tail), an array [T, 3], or a table (pandas, polars, pyarrow, a dict of
            columns) with columns head, relation, tail, or these first. Text is names, integers are ids 0 .. n-1. They are
            written once, as Parquet, below `data_path`, where a run finds them again.
        valid, test: the other splits, in the form of `data`; not for a name or a folder.
        options: data options of the command line by name: dataset (what it shall be called), data_path, format, delimiter,
            header, quoted, has_edge_importance, data_url, split (shares of train, valid and test: (.8, .1, .1)).
    Raises DataError (file and line), UsageError, OptionError.

    >>> graph = kgdist.load_dataset([("anna", "likes", "bo"), ("bo", "likes", "cy")], test=[("anna", "likes", "cy")])
    >>> len(graph.entities), graph.entities.id("bo"), graph.train.array
    """
    for name in options:
        if name not in _NAMED:
            raise unknown_option(name, _NAMED)
    known = _named(data, valid, test, options)
    checked = {name: OPTIONS[name].check(known.get(name, OPTIONS[name].default)) for name in _NAMED}
    return dataset.load_dataset(
        path=checked["data_path"],
        name=checked["dataset"],
        format=checked["format"],
        files=list(checked["data_files"]) or None,
        delimiter=checked["delimiter"],
        header=checked["header"],
        quoted=checked["quoted"],
        weighted=checked["has_edge_importance"],
        data_url=checked["data_url"],
        split=checked["split"],
    )


def train(data: Any = None, *, callbacks: Iterable[Callback] = (), **options: Any) -> Run:
    """Train, and return the run. The folder on disk is the one that kgdist-train makes.

    Args:
        data: as in `load_dataset`, or what that returned; not given: as `dataset` and the other options say.
        callbacks: functions that get `kgdist.Progress` (every `log_interval` steps) and `kgdist.Validation`, and may return
            `kgdist.STOP` to end the training. One that raises ends it, too: it is saved, and the exception comes out of here.
        options: every option of kgdist-train by name (docs/options.md). `quiet=True` prints nothing. Where `data` is files or
            triples, `valid` and `test` may be the splits themselves, which then are validated on and tested, too.

    Raises OptionError, DataError and others of kgdist.base.errors; KeyboardInterrupt after Ctrl-C, when all is saved:
    `kgdist.train(resume=folder)` goes on.

    Works in notebooks, threads and scripts without `if __name__ == "__main__"`: workers are processes of their own that do not
    import the caller. They know a score function of your own by `model_file`, or share this process with `worker="thread"`.

    >>> run = kgdist.train(model_name="RotatE", dataset="wordnet", preset=True)
    >>> run = kgdist.train(frame, model_name="ComplEx", hidden_dim=200, max_epoch=20, lr=0.1, seed=1, valid=held_out)
    """
    given = _options(data, options)
    if given.get("no_save_emb"):
        raise OptionError("--no_save_emb", "a Run is made of what was saved; drop it")
    if given.get("model_file"):
        bring(given["model_file"])
    import torch

    from kgdist.report.charts import require
    from kgdist.report.report import report_or_warn
    from kgdist.runs.opened import open_model
    from kgdist.runtime import local
    from kgdist.runtime.told import ready, recipe_of

    threads = torch.get_num_threads()
    try:
        with log.silence() if given.get("quiet") else contextlib.nullcontext():
            config = ready(understand("train", given, recipe=recipe_of))
            if config.report:
                require("--report")  # now, not after the training
            result = local.train(config, callbacks)
            if config.report and result.folder is not None and not result.interrupted:
                report_or_warn(result.folder, config)
    finally:
        torch.set_num_threads(threads)  # a training sets it for itself
    assert result.folder is not None
    if result.interrupted:
        raise KeyboardInterrupt(f"saved; go on with kgdist.train(resume={str(result.folder)!r})")
    return Run(open_model(result.folder))


def _options(data: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a training by name, those of its data among them."""
    given = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    names = [row.name for row in OPTIONS.values() if "train" in row.commands]
    for name in given:
        if name in _CONSOLE:
            raise OptionError(name, "is for commands; from Python, set the level of logging.getLogger('kgdist')")
        if name not in names:
            raise unknown_option(name, names)
    splits = {name: given[name] for name in ("valid", "test") if not isinstance(given.get(name, False), bool)}
    if data is None:
        if splits:
            raise OptionError(next(iter(splits)), "takes True or False, unless the first argument is triples or a file")
        return given
    for name in splits:
        given[name] = True
    own = {name: value for name, value in given.items() if name in _NAMED}
    return given | _named(data, splits.get("valid"), splits.get("test"), own)


def _named(data: Any, valid: Any, test: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The data options that mean `data`; triples in memory are written."""
    if isinstance(data, Dataset):
        _alone("a data set", valid, test)
        return {**data.source}
    if not isinstance(data, str | os.PathLike):
        return _written({"train": data, "valid": valid, "test": test}, options)
    path = Path(data)
    if path.is_file():
        files = [data, *(split for split in (valid, test) if split is not None)]
        if valid is None and test is not None:
            raise UsageError("test: files come as train, valid, test; give valid as well")
        usual = {"format": "raw_udd_hrt", "dataset": path.name.split(".")[0] or "data", "data_path": "."}
        return {**usual, **options, "data_files": tuple(os.path.abspath(file) for file in files)}
    _alone("a name or a folder", valid, test)
    if isinstance(data, str) and not {os.sep, os.altsep} & set(data):
        return {**options, "dataset": data}
    if not path.is_dir():
        raise UsageError(f"{data}: no such file or folder")
    return {**options, "dataset": path.resolve().name, "data_path": str(path.resolve().parent)}


def _alone(what: str, *splits: Any) -> None:
    if any(split is not None for split in splits):
        raise UsageError(f"{what} has its own valid and test triples; here they are True or False")


def _written(splits: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    from kgdist.data.memory import write_triples  # only here: it takes pyarrow

    for name in ("format", "data_files", "delimiter", "header", "quoted", "data_url"):
        if name in options:
            raise OptionError(name, "has no place beside triples in memory")
    names = {
        name: OPTIONS[name].check(options.get(name, default)) for name, default in (("dataset", "triples"), ("data_path", "data"))
    }
    folder, weighted = write_triples(names["data_path"], names["dataset"], splits)
    if options.get("has_edge_importance", weighted) != weighted:
        what = "the train triples have no fourth column" if not weighted else "the train triples have weights; drop the column"
        raise OptionError("has_edge_importance", what)
    return {**names, "dataset": folder, "has_edge_importance": weighted}
