"""A search on less than the graph: successive halving over k-cores and epochs together (GraSH, Kochsiek et al. 2022).

The first round trains all trials on a small and well-connected part of the graph and for few epochs, each later one the best of
the round before on a larger part and for more, the last one a single trial on the whole graph and to the end. Trials become fewer
as they become dearer, so each round costs about one training, and what they cost is saved in equal parts by triples and epochs
(FB15k-237 ComplEx, 64 trials, valid MRR: .2936; with half as many triples and twice the epochs .2870, in four rounds .2911).
Options are chosen at random, as in GraSH: who learns from trials that are short and on a small part finds what is best there, and
sends but that, many times over, to the next round. Options that are known to be good may not be so there, and are trained in the
last round whatever became of them, for one training more: so no search ends below them.

A part is the largest k-core of no more than its share of the triples. Cores can be far apart: where that one is much smaller,
epochs are more, all there are at most; where even the innermost one is larger, or the one that fits holds too few valid triples
to tell trials apart, it is the next that will do, perhaps the whole graph, and epochs are fewer. Ranks are comparable within a
round only.

The last round is a search of its own in the folder, as one without others; those before have folders below `rounds/`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import KgdistError, counted
from kgdist.base.files import whole_folders
from kgdist.base.log import tell
from kgdist.data.dataset import Dataset, open_dataset
from kgdist.data.subgraph import FILES, FORMAT, Subgraph
from kgdist.options.config import Config
from kgdist.tuning.kcore import core_numbers, core_sizes
from kgdist.tuning.space import Space
from kgdist.tuning.study import Row, Search, best_of
from kgdist.tuning.trials import SearchFolder, Share

FEWEST = 200  # valid triples that are ranked: the MRR of as many is off by .02


class Round(NamedTuple):
    """What one round is to be."""

    trials: int
    cost: float  # of a trial, a share of a whole training
    core: int  # which k-core; 0: the whole graph
    triples: float  # share of them
    entities: float
    part: Subgraph | None = None

    @property
    def epochs(self) -> float:
        """Share of them."""
        return min(1.0, self.cost / self.triples)

    def __str__(self) -> str:
        graph = f"the {self.core}-core, {self.triples:.1%} of the triples" if self.core else "the whole graph"
        epochs = "all epochs" if self.epochs == 1 else f"{self.epochs:.1%} of the epochs"
        return f"{counted(self.trials, 'trial')} on {graph}, {epochs}"

    def config(self, base: Config, folder: SearchFolder) -> Config:
        """The options of its trials."""
        if base.max_epoch is not None:
            base = base.replace(max_epoch=base.max_epoch * self.epochs)
        else:
            base = base.replace(max_step=max(1, math.ceil(base.max_step * self.triples * self.epochs)))
        base = base.replace(lr_warmup=math.ceil(base.lr_warmup * self.triples * self.epochs))  # as large a part of the steps
        if self.part is None:
            return base
        where = {"data_path": str(folder.graph.absolute()), "format": FORMAT, "data_files": FILES}
        return base.replace(**where, delimiter="\t", header="no", quoted=False, data_url=None, split=())


def trials_of(trials: int, rounds: int) -> list[int]:
    """How many each round has: the same part of the round before, down to one."""
    return [round(trials ** (later / (rounds - 1))) for later in range(rounds - 1, -1, -1)] if rounds > 1 else [trials]


def plan(dataset: Dataset, trials: int, rounds: int, fewest: float = FEWEST) -> list[Round]:
    """The rounds, of which all but the last are on k-cores of at least `fewest` valid triples, if there are such."""
    if rounds == 1:
        return [Round(trials, 1.0, 0, 1.0, 1.0)]
    train, total = dataset.train.array, len(dataset.train)
    counts = trials_of(trials, rounds)
    cores = core_numbers(train, len(dataset.entities), int(total / math.sqrt(trials)))
    sizes = core_sizes(train, cores)
    return [_round(dataset, cores, sizes, count, fewest) for count in counts]


def _round(dataset: Dataset, cores: np.ndarray, sizes: np.ndarray, trials: int, fewest: float) -> Round:
    cost = 1 / trials
    for core in range(min(int((sizes > math.sqrt(cost) * sizes[0]).sum()), len(sizes) - 1), 0, -1):
        if sizes[core] == sizes[0]:
            break
        part = Subgraph(dataset, cores >= core)
        if part.valid >= fewest:
            return Round(trials, cost, core, part.train / len(dataset.train), part.entities / len(cores), part)
    return Round(trials, cost, 0, 1.0, 1.0)


class Done(NamedTuple):
    """What became of a round."""

    round: Round
    rows: list[Row]


def search(
    folder: SearchFolder,
    base: Config,
    space: Space,
    rounds: Sequence[Round],
    dataset: Dataset,
    *,
    jobs: int,
    validations: int,
    first: Mapping[str, Any],
) -> tuple[list[Done], bool]:
    """Train what is left of all rounds; the first trial of a new search has the options `first`, as far as they are searched.

    Trials are validated at their end alone, but in the last round. Returns the rounds that were begun, and whether it was
    interrupted. Raises KgdistError when no trial of a round gets anywhere, or nothing can be written.
    """
    found: list[Done] = []
    ranked: list[Mapping[str, Any]] = [first] if first else []
    were = ""
    for number, each in enumerate(rounds, 1):
        last = number == len(rounds)
        home = folder if last else folder.round(number)
        trials, spared = each.trials if number == 1 else min(each.trials, len(ranked)), 1
        if first and last and number > 1:
            known = next(row.params for row in found[0].rows if row.number == 0)
            if known not in ranked[:trials]:
                ranked = [*ranked[:trials], known, *(params for params in ranked[trials:] if params != known)]
                trials, spared, were = trials + 1, trials + 1, f"{were}, and the preset"
        if len(rounds) > 1:
            tell(f"round {number} of {len(rounds)}: {each}{were}")
        with contextlib.nullcontext() if last else home.owned():
            _write(each, home)
            config = each.config(base, home)
            data = dataset if each.part is None else open_dataset(config)
            while True:
                work = Search(
                    home,
                    config,
                    space,
                    trials=trials,
                    jobs=min(jobs, trials),
                    validations=validations if last else 1,
                    triples=data.train,
                    share=Share(each.triples, each.entities),
                    title="tune" if len(rounds) == 1 else f"round {number}",
                    hopeless=None if number == 1 else len(ranked),
                    learning=len(rounds) == 1,
                )
                interrupted = work.run(ranked, spared)
                rows = work.rows()
                best = best_of(rows)
                if interrupted or best is not None or number == 1 or trials == len(ranked):
                    break
                trials += 1  # all have failed that were better
        found.append(Done(each, rows))
        if interrupted or best is None:
            break
        if not last:
            home.strip(best.number)
        done = sorted((row for row in rows if row.state == "finished"), key=lambda row: (-(row.mrr or 0), row.number))
        ranked = [row.params for row in done]
        following = ", ".join(str(row.number) for row in done[: rounds[number].trials]) if not last else ""
        were = f": the best of the round before, {following}"
    return found, interrupted


def _write(each: Round, folder: SearchFolder) -> None:
    """Its part of the graph, once. Raises KgdistError where it cannot be written."""
    if each.part is None or folder.graph.exists():
        return
    try:
        with whole_folders([folder.graph], sync=False) as (made,):
            each.part.write(made)
    except OSError as error:
        raise KgdistError(f"{folder.graph}: {error.strerror or error}; the same call goes on") from error
