"""kgdist-tune: search for options that give the best validation MRR."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.machine import usable_cores
from kgdist.cli.command import run
from kgdist.options import parse
from kgdist.options.config import OPTIONS, Config
from kgdist.options.resolve import resolve
from kgdist.options.tools import TuneOptions


def tune(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    options, given, parsed = parse.parse_tune(argv)
    from kgdist.base import log
    from kgdist.runtime.checks import check_splits
    from kgdist.runtime.job import open_dataset
    from kgdist.tuning import search
    from kgdist.tuning import space as spaces
    from kgdist.tuning.study import library
    from kgdist.tuning.trials import Folder

    log.setup(debug=options.debug, quiet=options.quiet, json=options.json)
    library()
    folder = Folder(Path(options.out))
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
    resolve(base, explicit)  # refuses contradictions; notes are for the trials
    dataset = open_dataset(base)
    check_splits(base, dataset)
    jobs = _jobs(options, base, explicit)
    log.tell(f"searching {', '.join(space)}: {options.trials} trials, {jobs} at a time, of {base.model_name} on {dataset.name}")
    with search.owned(folder):
        folder.remember(base, space, options.validations)
        work = search.Search(
            folder,
            base,
            space,
            trials=options.trials,
            jobs=jobs,
            validations=options.validations,
            triples=len(dataset.train),
        )
        first = {name: getattr(base, name) for name in space} if base.preset else {}
        outcome = work.run(first)
    best = outcome.best
    for line in search.summary(outcome.rows):
        log.say(line)
    if best is not None:
        log.say(f"best: {search.told(best)}")
        log.say(f"its run: {folder.run(best.number)}; train with its options: kgdist-train --config {folder.best} --test")
    if outcome.interrupted:
        log.say(f"interrupted; go on with: kgdist-tune --out {options.out} --trials {options.trials}")
    elif best is None:
        raise KgdistError(f"none of {len(outcome.rows)} trials was trained to its end; let it go on with more --trials")
    log.result(
        {
            "best": None if best is None else _row(best) | {"config": str(folder.best), "run": str(folder.run(best.number))},
            "trials": [_row(row) for row in outcome.rows],
            "interrupted": outcome.interrupted,
        }
    )
    return 130 if outcome.interrupted else 0


def _row(row: Any) -> dict[str, Any]:
    return dataclasses.asdict(row) | {"params": dict(row.params)}


def _jobs(options: TuneOptions, base: Config, explicit: Collection[str]) -> int:
    """--jobs where the user has not set it: all cores, unless the search is to be repeatable or the GPU is to be shared."""
    if options.jobs is not None:
        return options.jobs
    if "seed" in explicit or base.gpu != (-1,):
        return 1
    return max(1, min(parse.MOST, usable_cores() // (base.num_proc * base.num_thread), options.trials))


def _same(earlier: Any, options: TuneOptions, given: Collection[str], now: tuple[Config, Any], explicit: set[str]) -> Any:
    """What the search in the folder was asked for. Raises OptionError where the user now asks for something else."""
    from kgdist.tuning.space import to_json

    base, space, validations = earlier
    goes_on = f"the search in {options.out} has another; leave it out to go on with that one, or take another --out"
    if explicit - {"config"}:
        ignored = {"config", "save_path", "quiet", "debug", "json"}
        for name in OPTIONS.keys() - ignored:
            if getattr(now[0], name) != getattr(base, name):
                raise OptionError(f"--{name}", f"{getattr(now[0], name)} now, but {getattr(base, name)} before: {goes_on}")
    if "search" in given and to_json(now[1]) != to_json(space):
        raise OptionError("--search", f"describes another space than before: {goes_on}")
    if "validations" in given and options.validations != validations:
        raise OptionError("--validations", f"{options.validations} now, but {validations} before: {goes_on}")
    return base, space, validations


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(tune, argv, detached=True)


if __name__ == "__main__":
    sys.exit(main())
