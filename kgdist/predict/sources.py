"""Where the lists of a question come from: files, words of the command line, or all there are. It reads none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kgdist.base.errors import OptionError

Source = str | tuple[str, ...] | None  # of a list: a file, words, or all there are


def sources(
    format: str | None, words: Mapping[str, tuple[str, ...]], files: Sequence[str], *, kinds: str, asks: str, more: str = ""
) -> list[Source]:
    """The source of each list, in the order of `words` (option -> what was given with it).

    `format`: a letter or * for each list, joined by _, or one * for all. `kinds`, `asks` and `more` word the refusals: what the
    lists are of, what a * does, what else could be given. Raises OptionError when options contradict one another, or nothing is
    asked.
    """
    if format is None:
        if files:
            raise OptionError("--data_files", f"needs --format, which says whether they list {kinds}")
        if not any(words.values()):
            first, *others, last = [f"--{name}" for name in words]
            flags = f"{', '.join([first, *others])} or {last}"
            raise OptionError(first, f"nothing is asked: give {flags}, or --format and --data_files{more}")
        return [given or None for given in words.values()]
    letters = ["*"] * len(words) if format == "*" else format.split("_")
    left, found, wanted = list(files), list[Source](), 0
    for letter, (name, given) in zip(letters, words.items(), strict=True):
        if letter == "*" and given:
            raise OptionError(f"--{name}", f"--format {format} {asks} all of them; write its letter for the *")
        wanted += letter != "*" and not given
        found.append(None if letter == "*" else given or (left.pop(0) if left else ""))
    if wanted != len(files):
        raise OptionError("--data_files", f"--format {format} takes {wanted} lists from files, not {len(files)}")
    return found
