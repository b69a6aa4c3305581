"""kgdist-emb-sim: the most similar embeddings, of a run or of any .npy file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kgdist.base.errors import CheckpointError, DataError, OptionError
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import EmbSimOptions

if TYPE_CHECKING:
    import numpy as np
    import torch

    from kgdist.data.labels import Labels
    from kgdist.data.vocabulary import Vocabulary
    from kgdist.predict.similar import SimilarPairs, SimilarSearch
    from kgdist.runs.opened import Opened


@command()
def main(argv: Sequence[str]) -> int:
    options: EmbSimOptions = parse.parse_tool("emb-sim", argv)
    import numpy as np

    from kgdist.base import log
    from kgdist.base.files import check_output
    from kgdist.base.machine import usable_cores
    from kgdist.predict.answers import TERMINAL, Column, cells, labelled, write_answers
    from kgdist.predict.lists import things
    from kgdist.predict.similar import MEASURES, SimilarSearch

    set_up_log(options)
    output = options.output or (TERMINAL if options.left or options.right else "result.tsv")
    if output != TERMINAL:
        check_output("--output", output)
    place, table, known, opened = _embeddings(options)
    thing = things(options.kind, len(table), known, raw_data=options.raw_data, ids=options.ids, mfile=options.mfile)
    if thing.names is not None:
        thing = replace(thing, labels=_labels(options, thing.names, opened))
    elif options.labels is not None:
        raise OptionError("--labels", "labels are of names, and these are ids; leave out --ids, or say the names (--mfile)")
    lists = [
        None if source is None else thing.read(source) if isinstance(source, str) else thing.words(flag, source)
        for source, flag in zip(options.sources(), ("--left", "--right"), strict=True)
    ]
    try:
        measure = MEASURES[options.sim_func](table)
    except ValueError as error:  # a row that is not finite
        message = f"{error}, so nothing can be compared; the training diverged: train again with a smaller --lr"
        raise DataError(place, message) from error
    search = SimilarSearch(measure, threads=options.num_thread or usable_cores())
    plain = options.json or output != TERMINAL
    columns = [*(Column(end, thing.names if plain else thing.shown) for end in EmbSimOptions.LISTS), Column("score")]
    blocks: Iterable[Sequence[np.ndarray]] = (
        [part.left, part.right, part.scores.astype(np.float32)] for part in _answers(options, search, lists)
    )
    if plain:
        columns, blocks = labelled(columns, dict.fromkeys(EmbSimOptions.LISTS, thing.labels), blocks)
    if options.json and output == TERMINAL:
        titles = [column.title for column in columns]
        rows = [row for block in blocks for row in zip(*map(cells, columns, block), strict=True)]
        log.result({"answers": [dict(zip(titles, row, strict=True)) for row in rows]})
        return 0
    count = write_answers(output, columns, blocks)
    if output != TERMINAL:
        log.tell(f"{count} answers in {output}")
        log.result({"output": output, "answers": count})
    return 0


def _labels(options: EmbSimOptions, names: Vocabulary, opened: Opened | None) -> Labels:
    """The labels of the rows called `names`."""
    from kgdist.data.vocabulary import Vocabulary
    from kgdist.runs.rundir import labels_of

    place = ("entity", "relation").index(options.kind)
    if opened is None or opened.vocabularies is None:
        nothing = Vocabulary.from_names([])
        return labels_of(None, *((names, nothing) if options.kind == "entity" else (nothing, names)), options.labels)[place]
    found = labels_of(opened.run.path, *opened.vocabularies, options.labels)[place]
    return found.of_rows(names, len(names) // len(opened.vocabularies[place]))


def _embeddings(options: EmbSimOptions) -> tuple[str, torch.Tensor, Vocabulary | None, Opened | None]:
    """(where they lie, float32[n,d] on the device asked for, their names if the run knows them, the run if it is one)."""
    if options.model_path is not None:
        from kgdist.runs.opened import open_model

        opened = open_model(options.model_path, gpu=options.gpu)
        names = opened.row_names(options.kind) if opened.vocabularies is not None else None
        return options.model_path, opened.tables.rows[options.kind], names, opened
    import numpy as np
    import torch

    from kgdist.base.files import load_npy
    from kgdist.options.resolve import require_gpus

    assert options.emb_file is not None
    if options.gpu >= 0:
        require_gpus([options.gpu])
    array = load_npy(options.emb_file, mmap=True)
    if array.ndim != 2 or array.dtype.kind != "f" or not array.size:
        message = f"expected embeddings float32[n, d], found {array.dtype}{list(array.shape)}"
        raise CheckpointError(f"{options.emb_file}: {message}")
    device = torch.device("cpu") if options.gpu < 0 else torch.device("cuda", options.gpu)
    return options.emb_file, torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(device), None, None


def _answers(options: EmbSimOptions, search: SimilarSearch, lists: Sequence[np.ndarray | None]) -> Iterator[SimilarPairs]:
    """The answers, as they come."""
    from kgdist.base.log import log

    left, right = lists
    if options.exec_mode == "pairwise":
        assert left is not None and right is not None
        if len(left) != len(right):
            lengths = f"{len(left):,} left and {len(right):,} right ones"
            raise OptionError("--exec_mode", f"pairwise reads lists of one length side by side, but there are {lengths}")
        most = len(left)
    else:
        most = search.pairs(left, right, each=options.exec_mode == "batch_left")
    if options.topK > most:
        each = " for each on the left" if options.exec_mode == "batch_left" else ""
        log.info("--topK %d: there are only %d pairs%s", options.topK, most, each)
    if options.exec_mode == "pairwise":
        assert left is not None and right is not None
        yield search.best_of(left, right, options.topK)
    elif options.exec_mode == "batch_left":
        yield from search.best_of_each(left, right, options.topK)
    else:
        yield search.best(left, right, options.topK)


if __name__ == "__main__":
    sys.exit(main())
