"""New entities, as files tell of them -> a new run: the way of kgdist-encode, and of `Run.encode`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kgdist.attributes.unseen import names_in, transform_unseen
from kgdist.base.errors import OptionError, counted
from kgdist.base.listed_folder import check_replaceable
from kgdist.base.log import log, say
from kgdist.data.dataset import HEADER
from kgdist.data.growing import Growing, among, known_names, read_named
from kgdist.data.read.columns import Spec
from kgdist.data.read.formats import Format, check_delimiter
from kgdist.data.vocabulary import Vocabulary
from kgdist.options.config import Config
from kgdist.options.tools import EncodeOptions
from kgdist.runs.checkpoint import ENCODED
from kgdist.runs.grown import SINCE, Newcomers, Trained, open_trained

SHOWN = 5  # names of new entities: one that is misspelt would else go unseen


def encode(options: EncodeOptions) -> tuple[Path, Config, dict[str, object]]:
    """Make the new run; its folder, its options, and what there is in it: `run`, and how many entities were `known` and are
    `new`, and how many `triples` were heard besides.

    Raises UsageError, CheckpointError, DataError (file:line), OptionError; KgdistError when it cannot be written.
    """
    out = Path(options.out if options.out is not None else f"{options.model_path.rstrip('/')}_encoded")
    check_replaceable(out, options.force, ENCODED, SINCE)
    trained = open_trained(Path(options.model_path), data_path=options.data_path, attributes=options.attributes)
    if options.entities is not None and trained.attributes is None:
        raise OptionError(
            "--entities", f"{options.model_path} was trained without --attributes, so it has no use for any; drop it"
        )
    new = newcomers(options, trained)
    test = held_out(options, trained, new)
    tell(options, trained, new)
    trained.check()
    rows = trained.encode(new, options.start)
    config = trained.write(out, new, rows, test, force=options.force)
    say(f"saved in {out}")
    known = len(trained.entities)
    return out, config, {"run": str(out), "known": known, "new": len(new.entities) - known, "triples": len(new.triples)}


def newcomers(options: EncodeOptions, trained: Trained) -> Newcomers:
    """What the files say. Raises DataError (file:line), OptionError."""
    relations, known = trained.dataset.relations, len(trained.entities)
    growing = Growing(
        trained.entities, relations, f"the run {options.model_path}, which has rows of the relations it was trained on"
    )
    file = Path(options.entities) if options.entities is not None else None
    if file is not None and trained.attributes is not None:
        names = names_in(file, trained.attributes)
        growing.add(names)
        if own := int((trained.entities.find(names) >= 0).sum()):
            log.warning("%s: %d of its entities are the run's own, and keep the attributes that they have", file, own)
    triples = np.zeros((0, 3), np.int32)
    if options.triples is not None:
        triples = read_named(Path(options.triples), spec_of(options, trained), growing)
    entities, _ = growing.vocabularies()
    features = None
    if file is not None and trained.attributes is not None:
        added = Vocabulary.from_names(entities.take(np.arange(known, len(entities))))
        features = transform_unseen(file, trained.attributes, added)
    return trained.newcomers(entities, triples, features)


def spec_of(options: EncodeOptions, trained: Trained) -> Spec:
    """How the rows of --triples and --test are laid out; weights, which messages have no use for, may be there where the run had
    some."""
    check_delimiter(options.delimiter, options.quoted)
    return Spec(
        Format.parse(options.format).order,
        options.delimiter,
        HEADER[options.header],
        None if trained.opened.config.has_edge_importance else False,
        quoted=options.quoted,
    )


def held_out(options: EncodeOptions, trained: Trained, new: Newcomers) -> np.ndarray | None:
    """int32[T, 3]: the triples of --test. Raises DataError (file:line) for a name that nothing is known of."""
    if options.test is None:
        return None
    where = ("the run, in --triples or in --entities", f"the run {options.model_path}")
    test = read_named(Path(options.test), spec_of(options, trained), known_names(new.entities, trained.dataset.relations, where))
    heard = among(test, np.concatenate([trained.dataset.train.array, new.triples]))
    if heard.any():
        told = "the encoder hears them, so their ranks say nothing of triples that are not known"
        log.warning("%s: %d of %d triples are in --triples, or were trained on: %s", options.test, heard.sum(), len(test), told)
    return test


def tell(options: EncodeOptions, trained: Trained, new: Newcomers) -> None:
    """Say what is there, and warn of what is not."""
    known = len(trained.entities)
    count = len(new.entities) - known
    names = [repr(new.entities[known + place]) for place in range(min(count, SHOWN))] + ["..."] * (count > SHOWN)
    some = f" ({', '.join(names)})" if count else ""
    say(f"{options.model_path}: {known} entities; new: {count}{some}, with {counted(len(new.triples), 'triple')}")
    if not count:
        log.warning("no entity is new: all of them are the run's own")
    if new.features is not None:
        without, unseen = int((~new.features.known).sum()), new.features.unseen
        if without:
            problem = "%d of %d new entities have no attributes in %s: they begin with %s"
            log.warning(problem, without, count, options.entities, beginning(options))
        if unseen:
            log.warning("%s: %d words were not there when attributes were fitted: they are nothing", options.entities, unseen)
    alone = np.flatnonzero(trained.alone(new))
    if len(alone):
        example = new.entities[known + int(alone[0])]
        log.warning(
            "%d of %d new entities have neither triples nor attributes, such as %r: their rows are alike",
            len(alone),
            count,
            example,
        )


def beginning(options: EncodeOptions) -> str:
    """In words."""
    return "the mean of what known ones begin with" if options.start == "mean" else "zeros"
