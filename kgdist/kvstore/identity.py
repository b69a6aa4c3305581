"""What both sides of a connection must agree on, as HELLO and WELCOME say it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kgdist.base.errors import ProtocolError, one_line


@dataclass(frozen=True)
class Identity:
    """What both sides of a connection must agree on; a hash is any text that is equal where the thing is."""

    version: str  # of kgdist
    run: str
    attempt: int
    config: str  # hash of the effective options
    graph: str  # hash of the partitioned graph

    def text(self, role: str, rank: int) -> str:
        """The body of HELLO and WELCOME."""
        return json.dumps(vars(self) | {"role": role, "rank": rank})

    def difference(self, text: str) -> str | None:
        """What the other side's body does not share, both values named, or None. Raises ProtocolError if it is no such body."""
        theirs = read_body(text)
        for key, mine in vars(self).items():
            if theirs[key] != mine:
                return f"{key} is {one_line(str(theirs[key]))[:80]} there and {one_line(str(mine))[:80]} here"
        return None


BODY = {"version": str, "run": str, "attempt": int, "config": str, "graph": str, "role": str, "rank": int}


def read_body(text: str) -> dict[str, Any]:
    """The JSON of HELLO or WELCOME as a flat dictionary. Raises ProtocolError."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("HELLO is not JSON") from error
    if not isinstance(body, dict) or body.keys() != BODY.keys() or any(type(body[k]) is not kind for k, kind in BODY.items()):
        raise ProtocolError(f"HELLO must say {', '.join(BODY)}, and nothing else")
    return body
