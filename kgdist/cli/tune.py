"""kgdist-tune: search for options that give the best validation MRR."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgdist.base.errors import KgdistError, OptionError, counted
from kgdist.base.machine import usable_cores
from kgdist.base.text_table import TextTable
from kgdist.cli.command import command, set_up_log
from kgdist.models.registry import settle
from kgdist.options import parse
from kgdist.options.config import OPTIONS, Config
from kgdist.options.resolve import most_jobs
from kgdist.options.tools import TuneOptions

if TYPE_CHECKING:
    from kgdist.tuning.space import Space
    from kgdist.tuning.study import Row

    Asked = tuple[Config, Space, int]  # options, space and number of validations

_GOES_ON = ": the search in {} has another; leave it out to go on with that one, or take another --out"


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    options, given, parsed = parse.parse_tune(argv)
    from kgdist.base import log
    from kgdist.data.dataset import open_dataset
    from kgdist.runtime.checks import check_splits
    from kgdist.tuning import space as spaces
    from kgdist.tuning.study import Search, best_of
    from kgdist.tuning.trials import SearchFolder

    set_up_log(options)
    folder = SearchFolder(Path(options.out))
    explicit = set(parsed.explicit)
    base = parsed.config.replace(valid=True, config=None)
    if options.search is not None:
        space = spaces.read_space(options.search)
        for name in sorted(space.keys() & explicit):
            raise OptionError(f"--{name}", f"is searched by {options.search}; leave it out in one of the two")
    else:
        space, base = spaces.usual(base, explicit)
    if (earlier := folder.recall()) is not None:
        base, space, validations = _same(earlier, options, given, (base, space), explicit)
        options = options.replace(validations=validations)
        log.tell(f"the search in {options.out} goes on")
    settle(base, explicit)  # refuses contradictions; notes are for the trials
    dataset = open_dataset(base)
    check_splits(base, dataset)
    jobs = options.jobs or most_jobs(base, explicit, usable_cores(), options.trials)
    log.tell(f"searching {', '.join(space)}: {options.trials} trials, {jobs} at a time, of {base.model_name} on {dataset.name}")
    asked = {"trials": options.trials, "jobs": jobs, "validations": options.validations, "triples": len(dataset.train)}
    with folder.owned():
        folder.remember(base, space, options.validations)
        search = Search(folder, base, space, **asked)
        interrupted = search.run({name: getattr(base, name) for name in space} if base.preset != "none" else {})
    rows = search.rows()
    best = best_of(rows)
    for line in _summary(rows):
        log.say(line)
    if best is not None:
        log.say(f"best: {best}")
        log.say(f"its run: {folder.run(best.number)}; train with its options: kgdist-train --config {folder.best} --test")
    if interrupted:
        log.say(f"interrupted; go on with: kgdist-tune --out {options.out} --trials {options.trials}")
    elif best is None:
        raise KgdistError(f"none of {len(rows)} trials was trained to its end; let it go on with more --trials")
    run_of_best = None if best is None else _json(best) | {"config": str(folder.best), "run": str(folder.run(best.number))}
    log.result({"best": run_of_best, "trials": [_json(row) for row in rows], "interrupted": interrupted})
    return 130 if interrupted else 0


def _json(row: Row) -> dict[str, Any]:
    return dataclasses.asdict(row) | {"params": dict(row.params)}


def _summary(rows: list[Row], most: int = 10) -> list[str]:
    """The best trials as a table for people, and how many ended how."""
    shown = sorted((row for row in rows if row.mrr is not None), key=lambda row: (row.state != "finished", -(row.mrr or 0)))[
        :most
    ]
    lines = []
    if shown:
        names = list(shown[0].params)
        cells = [[row.number, row.mrr, row.state, *(row.params.get(name) for name in names)] for row in shown]
        lines = TextTable(["trial", "MRR", "state", *names], sys.stdout).lines(list(zip(*cells, strict=True)))
    counts = {state: sum(row.state == state for row in rows) for state in ("finished", "stopped", "failed", "unfinished")}
    ends = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return [*lines, f"{counted(len(rows), 'trial')}: {ends}"]


def _same(earlier: Asked, options: TuneOptions, given: Collection[str], now: tuple[Config, Space], explicit: set[str]) -> Asked:
    """What the search in the folder was asked for. Raises OptionError where the user now asks for something else."""
    base, space, validations = earlier
    names = [name for name in OPTIONS if name not in ("config", "save_path", "quiet", "debug", "json")]
    changed = [(name, getattr(now[0], name), getattr(base, name)) for name in names if explicit - {"config"}]
    changed += [("validations", options.validations, validations)] if "validations" in given else []
    for name, new, old in changed:
        if new != old:
            raise OptionError(f"--{name}", f"{new} now, but {old} before{_GOES_ON.format(options.out)}")
    if "search" in given and now[1] != space:
        raise OptionError("--search", f"describes another space than before{_GOES_ON.format(options.out)}")
    return earlier


if __name__ == "__main__":
    sys.exit(main())
