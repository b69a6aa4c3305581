"""kgdist-predict: the likeliest triples of given heads, relations and tails, or of all there are."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import PredictOptions

if TYPE_CHECKING:
    import numpy as np

    from kgdist.data.dataset import Dataset
    from kgdist.predict.engine import Predictor
    from kgdist.predict.explain import Calibration
    from kgdist.runs.opened import Opened

MEANING = """\
head_rank, tail_rank: the answer's place among all entities when that end is asked for, other known triples left out.
probability: the share of triples with this score that are true, if half of all asked about are (Platt scaling; fitted to {} valid
and {} corrupted triples, log loss {:.3f}; guessing gives 0.693). Among top-ranked candidates the share is lower."""


@command()
def main(argv: Sequence[str]) -> int:
    options: PredictOptions = parse.parse_tool("predict", argv)
    from kgdist.base import log
    from kgdist.base.files import check_output
    from kgdist.base.machine import usable_cores
    from kgdist.data.dataset import open_dataset
    from kgdist.predict.answers import TERMINAL, Column, cells, labelled, write_answers
    from kgdist.predict.engine import Predictor
    from kgdist.predict.lists import things, with_labels
    from kgdist.runs.opened import open_model

    set_up_log(options)
    output = options.output or ("result.tsv" if options.data_files else TERMINAL)
    if output != TERMINAL:
        check_output("--output", output)
    opened = open_model(options.model_path, data_path=options.data_path, gpu=options.gpu)
    dataset, names = None, opened.vocabularies
    if options.exclude_known or options.explain or (names is None and options.data_path is not None):
        dataset = open_dataset(opened.config, names, judged=())
        opened.require(dataset)
        names = names or (dataset.entities, dataset.relations)
    entities, relations = names or (None, None)
    how = {"raw_data": options.raw_data, "ids": options.ids}
    entity = things("entity", opened.num_entities, entities, **how, mfile=options.entity_mfile, flag="--entity_mfile")
    relation = things("relation", opened.num_relations, relations, **how, mfile=options.rel_mfile, flag="--rel_mfile")
    entity, relation = with_labels(opened.run.path, entity, relation, options.labels)
    lists: list[np.ndarray | None] = []
    for source, kind, flag in zip(options.sources(), (entity, relation, entity), ("--head", "--relation", "--tail"), strict=True):
        ids = None if source is None else kind.read(source) if isinstance(source, str) else kind.words(flag, source)
        lists.append(ids)
    predictor = Predictor.of(opened, options.num_thread or usable_cores())
    if options.index:
        from kgdist.predict.index import open_index

        found = open_index(opened.run.path, predictor)
        log.tell(found.words())
        predictor.index = found
    plain = options.json or output != TERMINAL
    ends = {"head": entity, "relation": relation, "tail": entity}
    columns = [*(Column(end, of.names if plain else of.shown) for end, of in ends.items()), Column("score")]
    calibration = None
    if options.explain:
        assert dataset is not None
        calibration = _calibrated(opened, predictor, dataset)
        columns += [Column("head_rank"), Column("tail_rank"), *([Column("probability")] if calibration else [])]
    blocks: Iterable[Sequence[np.ndarray]] = _blocks(options, predictor, lists, dataset, calibration)
    if plain:
        columns, blocks = labelled(columns, {end: of.labels for end, of in ends.items()}, blocks)
    if options.json and output == TERMINAL:
        titles = [column.title for column in columns]
        rows = [row for block in blocks for row in zip(*map(cells, columns, block), strict=True)]
        log.result({"answers": [dict(zip(titles, row, strict=True)) for row in rows]})
        return 0
    count = write_answers(output, columns, blocks)
    if calibration is not None:
        log.tell(MEANING.format(calibration.positives, calibration.negatives, calibration.log_loss))
    if output != TERMINAL:
        log.tell(f"{count} answers in {output}")
        log.result({"output": output, "answers": count})
    return 0


def _blocks(
    options: PredictOptions,
    predictor: Predictor,
    lists: Sequence[np.ndarray | None],
    dataset: Dataset | None,
    calibration: Calibration | None,
) -> Iterator[list[np.ndarray]]:
    """Columns of answers, as they come: heads, relations, tails, scores, and what explains them."""
    import numpy as np

    from kgdist.data.known import KnownTriples
    from kgdist.predict.explain import log_sigmoid, ranks
    from kgdist.predict.lists import ask

    splits = [] if dataset is None else [split.array for split in dataset.splits.values()]
    known = None
    if options.exclude_known:
        known = KnownTriples.among(splits, predictor.num_entities, predictor.num_relations, lists)
    for block in ask(predictor, lists, options.exec_mode, options.topK, known):
        plain = options.score_func == "none"
        scores = block.scores - predictor.model.offset if plain else log_sigmoid(block.scores)
        columns = [block.heads, block.relations, block.tails, scores.astype(np.float32)]
        if options.explain:
            columns += ranks(predictor, block, splits)
            if calibration is not None:
                columns.append(calibration.probability(block.scores).astype(np.float32))
        yield columns


def _calibrated(opened: Opened, predictor: Predictor, dataset: Dataset) -> Calibration | None:
    """The run's calibration; None, with a warning, where there are no valid triples."""
    from kgdist.base import log
    from kgdist.data.known import KnownTriples
    from kgdist.predict.explain import calibration_of
    from kgdist.runs import rundir

    valid = dataset.splits.get("valid")
    if valid is None or not len(valid):
        log.log.warning("%s has no valid triples, so scores cannot be calibrated: ranks only, no probability", dataset.name)
        return None
    splits = [split.array for split in dataset.splits.values()]
    known = KnownTriples.build(splits, opened.num_entities, opened.num_relations, asked=valid.array)
    files = list(rundir.array_names(opened.config).values())
    return calibration_of(opened.run.path, files, valid.array, predictor, known)


if __name__ == "__main__":
    sys.exit(main())
