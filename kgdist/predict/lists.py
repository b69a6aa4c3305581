"""What a user lists -> ids: files of one name or id a line, words of the command line, values of Python; and asking for them.

Whether a list holds names or ids is settled before it is read (`things`), never guessed from what stands in it. A name is
byte-exact, as everywhere; a label that one thing alone has will do for its name; blanks around an id are allowed. The same line
may come twice. Not the parser of dictionaries or triples: those have columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgdist.base.errors import DataError, OptionError, UsageError
from kgdist.base.log import log
from kgdist.data.known import KnownTriples
from kgdist.data.labels import Beside, ByLabel, Labels, Naming
from kgdist.data.names import is_text
from kgdist.data.read.columns import shown
from kgdist.data.read.dictionary import integers, not_integers, read_lines
from kgdist.data.read.lines import check_file
from kgdist.data.vocabulary import Vocabulary
from kgdist.options.option import is_integer
from kgdist.runs.rundir import labels_of

if TYPE_CHECKING:
    from kgdist.predict.engine import Answers, Predictor

Wanted = str | int | Iterable[Any]  # in Python: a name (str) or an id (int), or several

EACH = {"all": "all", "batch_head": "head", "batch_rel": "relation", "batch_tail": "tail"}  # mode -> whose best are asked for
SIDE_BY_SIDE = "triplet_wise"
PLURAL = {"entity": "entities", "relation": "relations"}


@dataclass(frozen=True)
class Things:
    """All entities, or all relations, and how lists write them: by name, or by id where `names` is None."""

    noun: str  # "entity" or "relation"
    count: int
    names: Vocabulary | None = None
    labels: Labels | None = None  # by which they may be asked for, too, where no other has the same

    @property
    def shown(self) -> Naming | None:
        """Names, with labels beside them if there are any, for people."""
        return Beside(self.names, self.labels) if self.names is not None and self.labels else self.names

    def read(self, path: str | Path) -> np.ndarray:
        """The file's lines as int64[n], n >= 1. Raises DataError with the line of the first that cannot be."""
        path, expected = Path(path), f"one {self.noun} {'id' if self.names is None else 'name'} a line"
        check_file(path, expected)
        lines = read_lines(path, expected)  # pa.LargeStringArray[n]
        if self.names is not None:
            ids = self._find(lines)
            bad = np.flatnonzero(ids < 0)
        else:
            found = integers(lines)
            ids = np.array([] if found is None else found, np.int64)
            bad = not_integers(lines) if found is None else np.flatnonzero(ids >= self.count)
        if len(bad):
            raise DataError(path, self._wrong(lines[int(bad[0])].as_py()), line=int(bad[0]) + 1)
        return ids

    def words(self, option: str, words: Sequence[str]) -> np.ndarray:
        """Words of the command line as int64[n]. Raises OptionError naming `option` for the first that cannot be."""
        for word in words:
            if not is_text(word):  # as Python reads bytes that it cannot
                raise OptionError(option, f"{shown(word)} is not UTF-8, as all names are")
        if self.names is not None:
            ids = self._find(list(words))
        else:
            ids = np.array([int(word) if is_integer(word) and len(word) <= 18 else -1 for word in words], np.int64)
        bad = np.flatnonzero((ids < 0) | (ids >= self.count))
        if len(bad):
            raise OptionError(option, self._wrong(words[int(bad[0])]))
        return ids

    def _find(self, texts: Any) -> np.ndarray:
        """int64[n]: the ids of names, and of labels where nothing has that name; -1 for what is neither."""
        assert self.names is not None
        ids = self.names.find(texts).astype(np.int64)
        return _by_label(ids, texts, self.labels)

    def _wrong(self, text: str) -> str:
        """What is wrong with a line or word that means nothing here."""
        allowed = f"0 to {self.count - 1}" if self.count else "none"
        if self.names is None:
            if is_integer(text.strip(" ")):
                return f"{self.noun} id {shown(text)[1:-1]} is out of range, allowed: {allowed}"
            said = f"{shown(text)} is not a valid {self.noun} id (an integer, {allowed})"
            return f"{said}; lists of names need --raw_data and known names"
        is_id = is_integer(text.strip(" ")) and 0 <= int(text) < self.count
        return unknown(self.noun, text, self.names, "; give --ids if that is an id" if is_id else "", labels=self.labels)


def things(
    noun: str,
    count: int,
    known: Vocabulary | None,
    *,
    raw_data: bool = False,
    ids: bool = False,
    mfile: str | None = None,
    flag: str = "--mfile",
) -> Things:
    """How lists of one noun are to be read.

    By name where names are `known` or `mfile` (lines `id<TAB>name`, given by the option `flag`) says them, unless `ids`.
    Raises OptionError for `raw_data` without names; DataError for an `mfile` of another length.
    """
    if mfile is not None:
        known = Vocabulary.read_tsv(mfile)
        if len(known) != count:
            raise DataError(
                mfile, f"names {len(known):,} {PLURAL[noun]}, but there are embeddings of {count:,}; is it another data set's?"
            )
    elif raw_data and known is None:
        raise OptionError("--raw_data", f"the names of the {PLURAL[noun]} are not known here; give {flag} FILE")
    return Things(noun, count, None if ids or known is None or known.count is not None else known)


def with_labels(folder: Path, entity: Things, relation: Things, file: str | None) -> tuple[Things, Things]:
    """The same with the labels in `file`, which the run in `folder` then keeps, or with those that it has kept.

    Raises OptionError for a file where things are asked for by id; DataError (file:line).
    """
    if entity.names is None or relation.names is None:
        if file is not None:
            raise OptionError(
                "--labels", "labels are of names, and these are ids; leave out --ids, or say the names (--entity_mfile)"
            )
        return entity, relation
    entities, relations = labels_of(folder, entity.names, relation.names, file)
    return replace(entity, labels=entities), replace(relation, labels=relations)


def _by_label(ids: np.ndarray, texts: Any, labels: Labels | None) -> np.ndarray:
    """`ids` int64[n] of `texts`, those that are -1 by label, if one thing alone has it."""
    rows = np.flatnonzero(ids < 0)
    if labels and len(rows):
        found, counts = labels.find(texts.take(rows) if hasattr(texts, "take") else [texts[row] for row in rows.tolist()])
        ids[rows] = np.where(counts == 1, found, -1)
    return ids


def ids_of(wanted: Wanted, names: Vocabulary, noun: str, labels: Labels | None = None) -> tuple[np.ndarray, bool]:
    """What a caller in Python names -> int64[n], and whether one alone was named. `noun`: "entity" or "relation".

    Raises UsageError naming the first that is not known, with names like it.
    """
    single = isinstance(wanted, str) or not isinstance(wanted, Iterable)
    several = [wanted] if single else list(wanted)  # type: ignore[arg-type]
    texts = [each for each in several if isinstance(each, str)]
    found = iter(_by_label(names.find(texts).astype(np.int64), texts, labels).tolist() if texts else [])
    ids = np.empty(len(several), np.int64)
    for place, each in enumerate(several):
        if isinstance(each, str):
            number = next(found)
            if number < 0:
                raise UsageError(unknown(noun, each, names, labels=labels))
        elif isinstance(each, int | np.integer) and not isinstance(each, bool):
            number = int(each)
            if not 0 <= number < len(names):
                raise UsageError(f"{noun} id {number} is out of range, allowed: 0 to {len(names) - 1}")
        else:
            raise UsageError(f"{each!r:.60} is not a valid {noun}: give a name (str) or an id (int)")
        ids[place] = number
    return ids, single


def unknown(noun: str, name: str, names: Vocabulary, otherwise: str = "", *, labels: Labels | None = None) -> str:
    """What to say of a name that is not among `names`: whose label it is, or those and labels like it, or `otherwise`."""
    if not labels:
        return f"no {noun} is called {shown(name)}{names.hint(name) or otherwise}"
    if int((count := labels.find([name])[1])[0]) > 1:
        return f"{int(count[0]):,} {PLURAL[noun]} have the label {shown(name)}: {labels.bearers(name)}; name one of them"
    near = list(dict.fromkeys([*names.near(name), *ByLabel(labels).texts.near(name)]))
    hint = f"; did you mean {' or '.join(map(shown, near))}?" if near else otherwise
    return f"no {noun} is called or labelled {shown(name)}{hint}"


def ask(
    predictor: Predictor, lists: Sequence[np.ndarray | None], mode: str, k: int, known: KnownTriples | None = None
) -> Iterator[Answers]:
    """The `k` best of the triples that `lists` of heads, relations and tails make (int[n] each; None: all there are).

    `mode` "all": of all combinations; "batch_head", "batch_rel", "batch_tail": for each head, relation or tail of the list, in
    its order; "triplet_wise": of the triples that stand side by side. Without those that are `known`. A `k` that is larger than
    what there is is made smaller, which is said in the log. Raises OptionError for lists that do not stand side by side.
    """
    counts = (predictor.num_entities, predictor.num_relations, predictor.num_entities)
    sizes = [count if ids is None else len(np.unique(ids)) for ids, count in zip(lists, counts, strict=True)]
    if mode == SIDE_BY_SIDE:
        heads, relations, tails = (ids for ids in lists if ids is not None)
        if not len(heads) == len(relations) == len(tails):
            lengths = f"{len(heads):,} heads, {len(relations):,} relations and {len(tails):,} tails"
            raise OptionError("--exec_mode", f"triplet_wise reads lists of one length side by side, but there are {lengths}")
        most = len(heads)
    else:
        own = {"head": 0, "relation": 1, "tail": 2}.get(EACH[mode])
        most = 1
        for place, size in enumerate(sizes):
            most *= 1 if place == own else size
    if k > most > 1:  # of a single triple nobody expects more
        each = "" if mode in ("all", SIDE_BY_SIDE) else f" for each {EACH[mode]}"
        log.info("--topK %d: only %d triples fit the question%s", k, most, each)
    if mode == SIDE_BY_SIDE:
        yield predictor.best_of(heads, relations, tails, k, known=known)
    else:
        yield from predictor.best(lists[0], lists[1], lists[2], k, each=EACH[mode], known=known)
