"""kgdist-tune: search for options that give the best validation MRR."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgdist.base.errors import KgdistError, OptionError, UsageError, counted
from kgdist.base.machine import usable_cores
from kgdist.base.text_table import TextTable
from kgdist.cli.command import command, recipe_of, set_up_log
from kgdist.models.registry import settle
from kgdist.options import parse
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import read_yaml
from kgdist.options.resolve import most_jobs, with_all_answers

if TYPE_CHECKING:
    from kgdist.tuning.rounds import Done, Round
    from kgdist.tuning.space import Space
    from kgdist.tuning.study import Row
    from kgdist.tuning.trials import Asked, SearchFolder

_GOES_ON = ": the search in {} has another; leave it out to go on with that one, or take another --out"


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    if not argv:
        raise UsageError("say what to search on: --dataset wordnet --model_name ComplEx; see kgdist-tune -h")
    options, given, parsed = parse.parse_tune(argv, recipe_of)
    from kgdist.base import log
    from kgdist.data.dataset import open_dataset
    from kgdist.data.vectors import EntityVectors
    from kgdist.report import run_facts
    from kgdist.runtime.checks import check_splits
    from kgdist.tuning import rounds, trials
    from kgdist.tuning import space as spaces
    from kgdist.tuning.study import best_of

    set_up_log(options)
    if options.report:
        from kgdist.report.charts import require

        require("--report")  # now, not after the search
    folder = trials.SearchFolder(Path(options.out))
    earlier = folder.recall()
    if earlier is None:
        folder.check_new()
    for note in parsed.notes if earlier is None else ():  # a search that goes on has its options, not those that are noted
        log.tell(note)
    explicit = set(parsed.explicit)
    base = with_all_answers(parsed.config.replace(valid=True, config=None), explicit)
    if options.search is not None:
        space = spaces.read_space(options.search)
        for name in sorted(space.keys() & explicit):
            raise OptionError(f"--{name}", f"is searched by {options.search}; leave it out in one of the two")
        for name in trials.idle_in_all(base, space):
            why = "means nothing beside the options that all trials have; leave it out, or search those, too"
            raise OptionError(f"--{name}", f"is searched by {options.search}, but {why}")
    else:
        space, base = spaces.usual(base, explicit)
        space = spaces.holding(space, first_trial(base))
    one = most_jobs(base, explicit, usable_cores(), options.trials) if "seed" in explicit else None  # also when it goes on
    now = trials.Asked(base, space, options.validations, options.rounds, options.trials, options.jobs or one)
    if earlier is not None:
        now = _same(earlier, now, options.out, given, explicit)
        log.tell(f"the search in {options.out} goes on")
    base, space = now.options, now.space
    if not space:
        usual = " ".join(f"--{name}" for name in spaces.usual(base, ())[0] if name in explicit)
        raise UsageError(f"nothing is left to search; leave out one of {usual}, or name other options in a file: --search FILE")
    searched = {"entity_types"} if "neg_sampler" in space else set()  # trials that draw otherwise have no use for types
    settle(base, explicit - searched)  # refuses contradictions; notes are for the trials
    dataset = open_dataset(base)
    if not len(dataset.splits.get("valid", ())):
        why = f"{dataset.name} has no valid triples, and by their ranks trials are judged; give a file of them, too"
        raise OptionError("--data_files", why)
    check_splits(base, dataset)
    if base.init_vectors:
        EntityVectors(base.init_vectors, dataset.entities).check()  # else every trial fails by itself
    plan = rounds.plan(dataset, now.trials, now.rounds, rounds.FEWEST / base.eval_percent)
    jobs = now.jobs or most_jobs(base, explicit, usable_cores(), now.trials)
    what = f"{now.trials} trials, {jobs} at a time, of {base.model_name} on {dataset.name}"
    first = first_trial(base)
    if outside := [name for name in space if name in first and not space[name].has(first[name])]:
        values = " ".join(f"--{name} {first[name]}" for name in outside)
        log.tell(f"the preset is none of the trials, for the search leaves out its {values}")
        first = first if len(plan) == 1 else {}  # in rounds the first trial is trained to its end, as the preset's
    log.tell(f"searching {', '.join(space)}: {what}{_cost(plan, known=bool(first))}")
    with folder.owned():
        folder.remember(now)
        found, interrupted = rounds.search(
            folder, base, space, plan, dataset, jobs=jobs, validations=now.validations, first=first
        )
    for number, done in enumerate(found[:-1] if len(found) == len(plan) else found, 1):
        ahead = best_of(done.rows)
        log.say(f"round {number}: {done.round}; {'none to its end' if ahead is None else f'the best: {ahead}'}")
    rows = found[-1].rows
    best = best_of(rows) if len(found) == len(plan) else None
    for line in _summary(rows):
        log.say(line)
    if best is not None:
        log.say(f"best: {best}")
        train = shlex.join(["kgdist-train", "--config", str(folder.best), "--test"])
        log.say(f"its run: {folder.run(best.number)}; train with its options: {train}")
        log.say(f"in full: {' '.join(run_facts.command(Config(**read_yaml(folder.best, 'train'))))} --test")
    if options.report:
        report_or_warn(folder, base, space, found, whole=len(found) == len(plan))
    elif best is not None:
        log.tell(f"a page of the search: {_call(options.out, now)} --report")
    if interrupted:
        log.say(f"interrupted; go on with: {_call(options.out, now)}")
    elif best is None:
        raise KgdistError(f"none of {len(rows)} trials was trained to its end; let it go on with more --trials")
    run_of_best = None if best is None else _json(best) | {"config": str(folder.best), "run": str(folder.run(best.number))}
    told = [{**_plain(done.round), "trials": [_json(row) for row in done.rows]} for done in found]
    log.result({"best": run_of_best, "trials": [_json(row) for row in rows], "rounds": told, "interrupted": interrupted})
    return 130 if interrupted else 0


def report_or_warn(folder: SearchFolder, base: Config, space: Space, found: Sequence[Done], *, whole: bool) -> None:
    """Write the page and say so; when it cannot be written that is a warning, for the search is saved."""
    from kgdist.base.log import log, say
    from kgdist.report.search_report import write_search_report

    try:
        say(f"report: {write_search_report(folder, base, space, found, whole=whole)}")
    except KgdistError as error:
        log.warning("no report: %s; the search is saved", error)


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


def first_trial(base: Config) -> Mapping[str, Any]:
    """The options of the first trial: those of the preset, where the search begins with one, and the spread that --gamma gives
    first values where it names none."""
    if base.preset == "none":
        return {}
    return dataclasses.asdict(base) | ({"init_scale": base.init_range} if base.init_scale is None else {})


def _cost(plan: Sequence[Round], *, known: bool) -> str:
    """What several rounds come to, for people; `known`: the preset is one of the trials, and trained in the last round, too."""
    if len(plan) == 1:
        return ""
    counts = " + ".join(str(each.trials) for each in plan)
    cost = sum(each.trials * each.triples * each.epochs for each in plan)
    whole = sum(not each.core for each in plan[:-1])
    why = f"; {whole} before the last on the whole graph, for no smaller part tells trials apart" if whole else ""
    more = ", the preset's among them" if known else ""
    return f", in {len(plan)} rounds of {counts} that cost about {cost + known:.3g} trainings together{more}{why}"


def _plain(each: Round) -> dict[str, Any]:
    return {"core": each.core, "triples": each.triples, "entities": each.entities, "epochs": each.epochs}


def _call(out: str, asked: Asked) -> str:
    """The command that goes on with the search in the folder `out`, which brings no model of one's own by itself."""
    own = ["--model_file", asked.options.model_file] if asked.options.model_file else []
    return shlex.join(["kgdist-tune", "--out", out, *own, "--trials", str(asked.trials)])


def _same(earlier: Asked, now: Asked, out: str, given: Collection[str], explicit: set[str]) -> Asked:
    """What the search in the folder `out` was asked for. Raises OptionError where the user now asks for something else."""
    names = [name for name in OPTIONS if name not in ("config", "save_path", "quiet", "debug", "json")]
    names = names if explicit - {"config", "model_file"} else [*explicit & {"model_file"}]  # which alone only brings the model
    names.sort(key=lambda name: name not in explicit)  # of what differs, what the user has named before what follows from it
    changed = [(name, getattr(now.options, name), getattr(earlier.options, name)) for name in names]
    own = ("validations", "rounds", *(["trials"] if earlier.rounds > 1 else []))
    changed += [(name, getattr(now, name), getattr(earlier, name)) for name in own if name in given]
    changed = [(name, new, old) for name, new, old in changed if new != old]
    other_space = "search" in given and now.space != earlier.space
    if changed and (not other_space or changed[0][0] in explicit | set(given)):
        name, new, old = changed[0]
        raise OptionError(f"--{name}", f"{new} now, but {old} before{_GOES_ON.format(out)}")
    if other_space:
        raise OptionError("--search", f"describes another space than before{_GOES_ON.format(out)}")
    jobs = now.jobs if "jobs" in given else earlier.jobs or now.jobs
    return earlier._replace(jobs=jobs, trials=earlier.trials if earlier.rounds > 1 else now.trials)


if __name__ == "__main__":
    sys.exit(main())
