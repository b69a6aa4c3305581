"""The course of a training, over any validations, full disks and wishes to leave: what is published and saved in the end."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import EvaluationError, KgdistError
from kgdist.evaluation.ranks import METRICS, Ties
from kgdist.options.config import Config
from kgdist.runtime import course
from kgdist.runtime.course import Course, better_than
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.observe import Observer
from kgdist.runtime.start import NEVER
from kgdist.training.callbacks import STOP, Callbacks, Saved, Validation

EVERY, TOTAL = 10, 50
FAILS = -1.0  # instead of an MRR: nothing could be ranked


class Rows:
    """A place whose rows are the number of the step that they are of."""

    folder, where, command, hint = None, "the run folder", "go on", "; go on"

    def __init__(self, mrrs: dict[int, float], full: int, leave: int | None) -> None:
        self.mrrs, self.full, self.leave = mrrs, full, leave  # `full`: so many writes at the end find no room
        self.interrupts = Interrupts()
        self.rows, self.best = 0, dict(NEVER)
        self.kept: int | None = None
        self.saved: list[int] = []
        self.published: int | None = None
        self.ended = False

    @property
    def unsaved(self) -> bool:
        return not self.saved

    def evaluate(self, split: str) -> dict[str, Any]:
        if split == "valid" and self.rows == self.leave:
            self.interrupts.asked = True
            raise KeyboardInterrupt
        if (mrr := self.mrrs[self.rows]) == FAILS:
            raise EvaluationError("no numbers")
        found = dict.fromkeys(METRICS, mrr) | {"mr": 1.0}
        protocol = {"filter": [], "entities": 9, "sampled": 0, "in_batch": False, "batch": 8, "fraction": 1.0, "triples": 5}
        report = {
            "split": split,
            "ties": "realistic",
            "candidates": {"mean": 9.0},
            "protocol": protocol,
            "count": 10,
            "sides": {},
        }
        return report | {"all": {ties.value: found for ties in Ties}}

    def _room(self) -> list[str]:
        if self.ended and self.full > 0:
            self.full -= 1
            return ["the disk is full"]
        return []

    def save(self, step: int) -> list[str]:
        if not (problems := self._room()):
            self.saved.append(step)
        return problems

    def save_best(self, step: int, mrr: float) -> list[str]:
        if not (problems := self._room()):
            self.kept, self.best = self.rows, better_than(self.best, mrr, step)
        return problems

    def take_best(self) -> list[str]:
        assert self.kept is not None
        self.rows = self.kept
        return []

    def publish(self) -> list[str]:
        if not (problems := self._room()):
            self.published = self.rows
        return problems

    def write(self, name: str, value: dict[str, Any]) -> list[str]:
        return []

    def rest(self) -> None:
        pass

    def memory(self) -> str:
        return "memory: none"


def trained(place: Rows, callbacks: Callbacks, folder: Path, **options: Any) -> tuple[Course, int]:
    """Take the course up to its end; and the step at which that was."""
    config = Config(valid=True, eval_interval=EVERY, checkpoint_interval="0", quiet=True, **options)
    made = Course(config, place, TOTAL, place.interrupts, Observer(config, folder, total=TOTAL), callbacks)
    made.begin(0)
    for step in range(1, TOTAL + 1):
        place.rows = step
        if step % EVERY == 0 and step < TOTAL:
            made.meet(step)
        if made.stopping():
            break
    place.ended = True
    return made, place.rows


@pytest.fixture(scope="module", autouse=True)
def _no_pause() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course, "AGAIN", 0.0)
        yield


MRRS = st.lists(st.sampled_from([FAILS, 0.1, 0.2, 0.3, 0.4]), min_size=TOTAL, max_size=TOTAL)


@given(mrrs=MRRS, full=st.integers(0, 3), patience=st.integers(0, 2), stop=st.sampled_from([None, 20, 30]))
def test_the_best_rows_are_published(
    mrrs: list[float], full: int, patience: int, stop: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def answer(event: object) -> object:
        heard.append(event)
        return STOP if isinstance(event, Validation) and event.step == stop else None

    heard: list[Any] = []
    place = Rows({step: mrrs[step - 1] for step in range(1, TOTAL + 1)}, full, None)
    made, last = trained(place, Callbacks([answer]), tmp_path_factory.getbasetemp(), early_stop_patience=patience)
    result = made.finish(last)
    looked = [step for step in {*range(EVERY, last + 1, EVERY), last} if place.mrrs[step] != FAILS]
    best = min(looked, key=lambda step: (-place.mrrs[step], step), default=last)
    assert not result.interrupted and place.published == best and place.saved[-1] == last
    assert [event.step for event in heard if isinstance(event, Validation)] == sorted(looked)
    assert [event.step for event in heard if isinstance(event, Saved)] == place.saved
    assert place.best["step"] == (best if looked else 0)
    worse = last - best if looked else 0
    if last < TOTAL and last != stop:
        assert patience and worse >= patience * EVERY


@pytest.mark.parametrize(("best", "patience", "told"), [(10, 0, True), (20, 0, True), (30, 0, False), (10, 2, False)])
def test_a_training_whose_best_came_early_says_so(
    best: int, patience: int, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Rows({step: 0.4 - abs(step - best) / 1000 for step in range(1, TOTAL + 1)}, 0, None)
    made, last = trained(place, Callbacks(), tmp_path, early_stop_patience=patience)
    capsys.readouterr()
    made.finish(last)
    rest = f"the {TOTAL - best} steps after that brought nothing better; --early_stop_patience 3 ends such a training sooner"
    assert (rest in capsys.readouterr().out) is told


@given(mrrs=MRRS, patience=st.integers(0, 3), factor=st.sampled_from([0.1, 0.5]))
def test_the_rate_is_lowered_when_validations_no_longer_improve(
    mrrs: list[float], patience: int, factor: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = Rows({step: mrrs[step - 1] for step in range(1, TOTAL + 1)}, 0, None)
    folder = Path(tempfile.mkdtemp(dir=tmp_path_factory.getbasetemp()))
    options = {"lr_schedule": "plateau", "plateau_patience": patience, "plateau_factor": factor, "lr": 0.2}
    made, last = trained(place, Callbacks(), folder, **options)
    made.observer.close()
    best, bad, wanted = -1.0, 0, []  # as ReduceLROnPlateau of PyTorch counts
    for step in range(EVERY, last, EVERY):
        if (mrr := place.mrrs[step]) == FAILS:
            continue
        best, bad = (mrr, 0) if mrr > best else (best, bad + 1)
        if bad > patience:
            bad = 0
            wanted.append((step, pytest.approx(0.2 * factor ** (len(wanted) + 1))))
    assert place.best["lowered"] == len(wanted)
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    assert [(line["step"], line["lr"]) for line in lines if line["kind"] == "rate"] == wanted


@given(
    mrrs=MRRS, killed=st.sampled_from([10, 20, 30, 40]), lost=st.sampled_from([10, 20, 30, 40]),
    left=st.sampled_from([None, 10, 30, 40]), patience=st.integers(0, 2), stop=st.integers(0, 3),
)  # fmt: skip
def test_a_run_that_is_killed_or_left_counts_as_one_that_is_not(
    mrrs: list[float],
    killed: int,
    lost: int,
    left: int | None,
    patience: int,
    stop: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Its best rows may be newer than the checkpoint, which has the counts, and validations since then come again; one that
    Ctrl-C has met is made up for."""
    options = {"lr_schedule": "plateau", "plateau_patience": patience, "early_stop_patience": stop}
    folder = tmp_path_factory.getbasetemp()

    def go(place: Rows, first: int, last: int) -> Course:
        config = Config(valid=True, eval_interval=EVERY, checkpoint_interval=str(EVERY), quiet=True, **options)
        made = Course(config, place, TOTAL, place.interrupts, Observer(config, folder, total=TOTAL), Callbacks())
        made.begin(first)
        for step in range(first or EVERY, last + 1, EVERY):
            if made.stopping():
                break
            place.rows = step
            made.meet(step)
        return made

    def taken(place: Rows, best: dict[str, Any]) -> None:
        """The checkpoint with this, beside the best rows as they are."""
        place.best = json.loads(json.dumps(best)) | {name: place.best[name] for name in ("mrr", "step")}

    whole, place = (Rows({step: mrrs[step - 1] for step in range(1, TOTAL + 1)}, 0, None) for _ in range(2))
    go(whole, 0, TOTAL - EVERY)
    saved = max(0, killed - lost)
    if not go(place, 0, saved).early:
        counts = dict(place.best)
        go(place, saved, killed)
        taken(place, counts if saved else NEVER)
        place.leave = left if left is not None and left > saved else None
        made, last = go(place, saved, TOTAL - EVERY), place.rows
        if place.interrupts.asked:
            assert made.finish(last).interrupted
            place.interrupts.asked, place.leave = False, None
            go(place, last, TOTAL - EVERY)
    assert {**place.best, "validated": 0} == {**whole.best, "validated": 0} and place.rows == whole.rows


@given(mrrs=MRRS, leave=st.sampled_from([10, 30, TOTAL]), full=st.integers(0, 2))
def test_who_leaves_can_go_on(mrrs: list[float], leave: int, full: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = Rows({step: mrrs[step - 1] for step in range(1, TOTAL + 1)}, full if leave < TOTAL else 0, leave)
    made, last = trained(place, Callbacks(), tmp_path_factory.getbasetemp())
    assert last == leave
    if place.full == 1:  # rows and state find no room, the embeddings do
        with pytest.raises(KgdistError, match=f"full; the embeddings of step {leave} are saved in the run folder"):
            made.finish(last)
        assert place.published == leave
        return
    result = made.finish(last)  # where neither did, it has waited for room: nothing else is saved
    if leave < TOTAL:
        assert result.interrupted and place.saved == [leave] and place.published is None
    else:  # a wish to leave the last validation: the checkpoint is there, and what was best is published
        assert place.saved == [TOTAL] and place.published in (TOTAL, place.kept)


@pytest.mark.parametrize("error", [KgdistError("the machine is gone"), RuntimeError("a bug")])
def test_what_no_validation_may_raise_ends_the_course(error: Exception, tmp_path: Path) -> None:
    place = Rows(dict.fromkeys(range(TOTAL + 1), 0.1), 0, None)

    def broken(split: str) -> dict[str, Any]:
        raise error

    made, last = trained(place, Callbacks(), tmp_path)
    place.evaluate = broken  # type: ignore[method-assign]
    with pytest.raises(type(error), match=str(error)):
        made.finish(last)
    assert place.saved == [TOTAL]
    assert place.published == (TOTAL if isinstance(error, RuntimeError) else None)  # a lost machine cannot be asked
