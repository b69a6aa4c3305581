"""Entities that a run has never seen, by the encoder that it has trained: a new run of the known ones and these.

An encoder makes rows of neighbourhoods and attributes, so it makes those of new entities, too. All rows are made again, of the
graph with the new triples: what is said of a known entity with a new one is heard by both.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kgdist.attributes.attribute_folder import NodeAttributes
from kgdist.attributes.unseen import Unseen
from kgdist.base.errors import CheckpointError, OptionError, UsageError
from kgdist.base.listed_folder import listed_folder
from kgdist.base.log import bar
from kgdist.data.dataset import Dataset
from kgdist.data.growing import without, write_named
from kgdist.data.vocabulary import Vocabulary
from kgdist.models.encoders.encode import beginnings, through_layers
from kgdist.models.encoders.encoder import TABLE, Encoder, attributes_of
from kgdist.models.encoders.message_graph import MessageGraph
from kgdist.nn import AttributeEmbedding
from kgdist.options.config import Config
from kgdist.runs import checkpoint, rundir
from kgdist.runs.opened import Opened, open_with_data

SINCE = ("test.json", "test.ranks.npz", "report.html")  # what later commands write into it
STARTS = ("mean", "zeros")  # what entities without attributes begin with, see `Trained.encode`
CLOSE = 1e-3  # of the largest number: how far rows may be off that are made again on another machine


class Newcomers(NamedTuple):
    """What is known of new entities."""

    entities: Vocabulary  # all of them, those of the run first
    triples: np.ndarray  # int32[T, 3], among all of them, none of them twice or trained on
    features: Unseen | None = None  # of those that are new, in their order


@dataclass(frozen=True)
class Trained:
    """A run with the encoder that has made its rows."""

    opened: Opened
    dataset: Dataset
    encoder: Encoder
    rows: torch.Tensor  # float32[E, encoder_dim], entities' own
    attributes: NodeAttributes | None

    @property
    def entities(self) -> Vocabulary:
        """Those that the run was trained on."""
        return self.dataset.entities

    def newcomers(self, entities: Vocabulary, triples: np.ndarray, features: Unseen | None) -> Newcomers:
        """The same without triples int32[T, 3] that the run was trained on already."""
        return Newcomers(entities, without(triples, self.dataset.train.array), features)

    def check(self) -> None:
        """Make the rows of the graph that the run was trained on. Raises CheckpointError where they are not the run's: triples or
        attributes have changed since, and what they say would be misheard."""
        made = self.encode(Newcomers(self.entities, np.zeros((0, 3), np.int32)), desc="checking")
        saved = self.opened.tables.rows["entity"]
        if float((made - saved).abs().max()) > CLOSE * max(1.0, float(saved.abs().max())):
            of = f"the triples of {self.dataset.name}" + (
                f" or the attributes in {self.opened.config.attributes}" * (self.attributes is not None)
            )
            raise CheckpointError(
                f"{self.opened.run.path}: its encoder makes other embeddings than it has saved; {of} were changed since, so name "
                "those that it was trained with (--data_path, --attributes), or train again"
            )

    @torch.no_grad()
    def encode(self, new: Newcomers, start: str = "mean", desc: str = "encoding") -> torch.Tensor:
        """float32[entities, entity_dim]: the rows of all, by all triples that the run was trained on and the new ones.

        Args:
            start: what new entities without attributes begin with, having no trained row: the mean of what known entities begin
                with, or zeros.
        """
        config, known, count = self.opened.config, len(self.entities), len(new.entities)
        triples = np.concatenate([self.dataset.train.array, new.triples])
        relations = len(self.dataset.relations)
        messages = MessageGraph.of(triples, count, relations, inverse=not config.no_inverse)
        begin = beginnings(self.encoder, self.rows)
        first = begin.mean(0) if start == "mean" else torch.zeros(begin.shape[1])
        own = first.expand(count - known, -1)
        if new.features is not None and self.encoder.attributes is not None:
            embedding = AttributeEmbedding(new.features.attributes, new.features.rows, config.encoder_dim)
            embedding.matrices = self.encoder.attributes.matrices
            made, there = embedding(np.arange(count - known))
            if config.own_rows and start == "mean" and not config.neighbor_dropout:  # which trains attributes without such rows
                made = made + self.rows.mean(0)
            own = torch.where(there[:, None], made, own)
        with bar(total=len(self.encoder.layers) * count, desc=desc, unit="entity") as shown:
            return through_layers(self.encoder, messages, torch.cat([begin, own]), shown.update)

    def alone(self, new: Newcomers) -> np.ndarray:
        """bool[new entities]: those of which nothing is known, neither a triple nor an attribute."""
        known, count = len(self.entities), len(new.entities)
        met = np.zeros(count, bool)
        met[new.triples[:, [0, 2]].reshape(-1)] = True
        if new.features is not None:
            met[known:] |= new.features.known
        return ~met[known:]

    def write(self, out: Path, new: Newcomers, rows: torch.Tensor, test: np.ndarray | None, *, force: bool = False) -> Config:
        """Make the run folder `out`, and return its options: embeddings, names, and the graph as a data set in it.

        Its triples to train on are those of the run and the new ones. With `test`, int[., 3], its test triples are those, and the
        run's own stay with the valid ones, so that they are known to rankings. Raises UsageError when `out` is in the way,
        KgdistError when it cannot be written.
        """
        opened, dataset = self.opened, self.dataset
        config = opened.run.config.replace(
            data_path=str(out.absolute()), format="built_in", data_files=(), delimiter="\t", header="no", quoted=False, split=(),
            has_edge_importance=False, data_url=None,
        )  # fmt: skip
        held = {name: [each.array] for name, each in dataset.splits.items() if name != "train"}
        if test is not None:
            held = {"valid": [part for parts in held.values() for part in parts], "test": [test]}
        splits = {"train": [dataset.train.array, new.triples]} | {name: parts for name, parts in held.items() if parts}
        about: dict[str, object] = {
            "run": str(opened.run.path.absolute()),
            "known": len(self.entities),
            "new": len(new.entities) - len(self.entities),
            "triples": len(new.triples),
        }
        tables = {name: table.numpy() for name, table in opened.tables.rows.items()} | {"entity": rows.numpy()}
        with listed_folder(out, about, force=force, listing=checkpoint.ENCODED, besides=SINCE) as folder:
            data = folder / config.dataset
            data.mkdir()
            write_named(data, splits, new.entities, dataset.relations)
            rundir.save_embeddings(folder, config, tables)
            rundir.save_settings(folder, config, new.entities, dataset.relations)
            if (labels := opened.run.path / rundir.LABELS).exists():
                shutil.copyfile(labels, folder / rundir.LABELS)
        return config


def open_trained(path: Path, *, data_path: str | None = None, attributes: str | None = None) -> Trained:
    """Open a run, the data that it was trained on and the weights of its encoder, which lie in its checkpoints.

    `data_path`, `attributes`: where these are now, if not where they were. Raises UsageError for a run without an encoder,
    CheckpointError for one whose checkpoints are gone, or are not those of its embeddings; OptionError for attributes that are
    not the run's.
    """
    run = rundir.open_run(path)
    if (made := checkpoint.encoded_from(path)) is not None:
        raise UsageError(f"{path}: was written by kgdist-encode, and has no encoder; what was trained is {made['run']}")
    if run.config.encoder == "none":
        raise UsageError(
            f"{path}: was trained without --encoder, so it has rows of the entities that it has seen and no others; train one "
            "with kgdist-train --encoder rgcn"
        )
    moved = {name: value for name, value in (("data_path", data_path), ("attributes", attributes)) if value is not None}
    if attributes is not None and run.config.attributes is None:
        raise OptionError("--attributes", f"{path} was trained without attributes; drop the flag")
    config = run.config.replace(gpu=(-1,), num_proc=1, mix_cpu_gpu=False, async_update=False, compute_dtype="float32", **moved)
    opened, dataset = open_with_data(run, config)
    found = None
    if config.attributes is not None:
        if not Path(config.attributes).is_dir():
            raise OptionError(
                "--attributes", f"{config.attributes}, which the run was trained with, is not there; say where it is"
            )
        found = attributes_of(config, len(dataset.entities))
        if found.entities.digest != dataset.entities.digest:
            message = f"{config.attributes} is of other entities than the run, or has them in another order"
            raise OptionError("--attributes", f"{message}; name the folder that it was trained with")
    saved = _checkpoint_of(opened)
    relations = len(dataset.relations)
    encoder = Encoder(config, relations if config.no_inverse else 2 * relations, found)
    weights = torch.from_numpy(np.array(saved.arrays[TABLE]))
    if weights.shape != encoder.weights().shape:
        message = f"an encoder on it has {encoder.weights().shape[1]:,} weights, and that of {path} has {weights.shape[1]:,}"
        where = config.attributes if found is not None else path
        raise OptionError(
            "--attributes" if found is not None else "--data_path", f"{where}: {message}; name what it was trained with"
        )
    encoder.use(weights)
    encoder.requires_grad_(requires_grad=False)
    return Trained(opened, dataset, encoder, torch.from_numpy(np.array(saved.arrays["entity"])), found)


def _checkpoint_of(opened: Opened) -> checkpoint.Checkpoint:
    """The rows and weights of which the run's embeddings were made: those of the best validation, or of a checkpoint.

    Tables that no encoder makes are saved as they are, by which it is known.
    """
    path = opened.run.path
    folders = [path / "best", *(folder for _, folder in checkpoint.numbered(path))]
    there = [folder for folder in folders if folder.is_dir()]
    if not there:
        raise CheckpointError(
            f"{path}: has no checkpoint (best or ckpt-<step>), where the weights of its encoder are; name the folder of the "
            "training"
        )
    for folder in there:
        saved = checkpoint.opened(folder)
        same = [np.array_equal(saved.arrays.get(name, ()), rows) for name, rows in opened.tables.rows.items() if name != "entity"]
        if TABLE in saved.arrays and all(same):
            saved.read({})
            return saved
    names, words = ", ".join(folder.name for folder in there), rundir.resume_command("kgdist-train", path, opened.run.config)
    raise CheckpointError(
        f"{path}: its embeddings are not those of its checkpoints ({names}); was it interrupted? Finish it with {words}"
    )
