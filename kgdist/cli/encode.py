"""kgdist-encode: entities that a run has never seen, by its encoder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgdist.base.errors import KgdistError, OptionError, counted
from kgdist.base.log import log, result, say
from kgdist.base.machine import usable_cores
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import EncodeOptions

if TYPE_CHECKING:
    import numpy as np

    from kgdist.runs.grown import Newcomers, Trained


@command()
def main(argv: Sequence[str]) -> int:
    options: EncodeOptions = parse.parse_tool("encode", argv)
    import torch

    from kgdist.base.listed_folder import check_replaceable
    from kgdist.runs.grown import LISTING, SINCE, open_trained

    set_up_log(options)
    out = Path(options.out if options.out is not None else f"{options.model_path.rstrip('/')}_encoded")
    check_replaceable(out, options.force, LISTING, SINCE)
    threads = options.num_thread or usable_cores()
    torch.set_num_threads(threads)
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
    about = {"run": str(out), "known": known, "new": len(new.entities) - known, "triples": len(new.triples)}
    if test is not None:
        about["test"] = ranked(out, config, threads)
    result(about)
    return 0


def newcomers(options: EncodeOptions, trained: Trained) -> Newcomers:
    """What the files say. Raises DataError (file:line), OptionError."""
    import numpy as np

    from kgdist.attributes.unseen import names_in, transform_unseen
    from kgdist.data.growing import Growing, read_named
    from kgdist.data.vocabulary import Vocabulary

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
        triples = read_named(Path(options.triples), spec_of(options), growing)
    entities, _ = growing.vocabularies()
    features = None
    if file is not None and trained.attributes is not None:
        added = Vocabulary.from_names(entities.take(np.arange(known, len(entities))))
        features = transform_unseen(file, trained.attributes, added)
    return trained.newcomers(entities, triples, features)


def spec_of(options: EncodeOptions) -> Any:
    """How the rows of --triples and --test are laid out."""
    from kgdist.data.read.columns import Spec
    from kgdist.data.read.formats import Format, check_delimiter

    check_delimiter(options.delimiter)
    return Spec(Format.parse(options.format).order, options.delimiter, options.header, None)


def held_out(options: EncodeOptions, trained: Trained, new: Newcomers) -> np.ndarray | None:
    """int32[T, 3]: the triples of --test. Raises DataError (file:line) for a name that nothing is known of."""
    if options.test is None:
        return None
    from kgdist.data.growing import known_names, read_named

    where = ("the run, in --triples or in --entities", f"the run {options.model_path}")
    return read_named(Path(options.test), spec_of(options), known_names(new.entities, trained.dataset.relations, where))


def tell(options: EncodeOptions, trained: Trained, new: Newcomers) -> None:
    """Say what is there, and warn of what is not."""
    import numpy as np

    known = len(trained.entities)
    count = len(new.entities) - known
    say(f"{options.model_path}: {known} entities; new: {count}, with {counted(len(new.triples), 'triple')}")
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


def ranked(out: Path, config: Any, threads: int) -> dict[str, Any]:
    """The report of the test triples, among all entities; saved as test.json. What fails is said with what to do: the run is
    there."""
    from kgdist.base.files import write_json
    from kgdist.evaluation.evaluator import Evaluator
    from kgdist.runs import rundir
    from kgdist.runs.opened import open_with_data

    everybody = {"neg_sample_size_eval": -1, "neg_deg_sample_eval": False, "eval_percent": 1.0, "no_eval_filter": False}
    config = config.replace(gpu=(-1,), num_proc=1, num_thread=threads, compute_dtype="float32", **everybody)
    opened, dataset = open_with_data(rundir.open_run(out), config)
    report = Evaluator(dataset, config).run(opened.model, opened.tables, "test")
    try:
        write_json(out / "test.json", report)
    except KgdistError as error:
        log.warning("%s; the metrics above are complete", error)
    return report


if __name__ == "__main__":
    sys.exit(main())
