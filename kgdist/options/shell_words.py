"""Words of a command line that no shell reads: what only a shell would understand is refused."""

from __future__ import annotations

import re
import shlex

# Words by which a shell would be meant, where they stand without quotes: its operators, and what only it can do.
_OPERATOR = re.compile(r"&&?|\|\|?|;|.*;|[0-9]*(>>?|<<?).*|&>.*")
_OF_A_SHELL = {"cd", "export", "source", ".", "ulimit", "alias", "set", "eval", "exec"}
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def no_shell(text: str) -> str:
    """A command line that needs no shell to be understood. Raises ValueError for one that does, and for quotes around quotes."""
    try:
        words, quoted = shlex.split(text), shlex.split(text, posix=False)
    except ValueError:
        return text  # what quotes are wrong is said when it is run
    if len(words) == 1 and " " in words[0] and "/" not in words[0].split()[0]:
        raise ValueError(f"{words[0][:60]!r} is one word, so no program: take away the inner quotes")
    if words and _ASSIGNED.match(words[0]):
        raise ValueError(f"no shell reads it, so {words[0][:60]!r} is not a variable: give it by --extra_envs")
    needs = [word for word in quoted if _OPERATOR.fullmatch(word)] or [word for word in words[:1] if word in _OF_A_SHELL]
    if needs:
        shell = "a shell of your own, bash -c '...' with all of it between the quotes"
        raise ValueError(f"no shell reads it, so {needs[0][:60]!r} has no meaning: give {shell}")
    return text


def variable(text: str) -> str:
    """NAME=VALUE. Raises ValueError for anything else."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", text, re.DOTALL):
        raise ValueError(f"expected NAME=VALUE, not {text[:60]!r}; another option ends the list, so that the command can follow")
    return text
