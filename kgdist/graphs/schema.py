"""Names of node and edge types, and how short names of edge types are understood."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kgdist.base.errors import UsageError
from kgdist.graphs.structure import EType

NODES, EDGES = "_N", ("_N", "_E", "_N")  # the types of a graph with one of each, as DGL calls them
# What makes a graph of what another package calls so.
_MAKERS = {"torch_geometric": "kgdist.from_pyg(g)", "networkx": "kgdist.from_networkx(g)", "scipy": "kgdist.from_scipy(g)"}


def check_graph(g: Any, *methods: str) -> None:
    """Raises UsageError, which says how one is made of it, for what is no graph of ours: none with these methods."""
    if isinstance(g, type) or not all(callable(getattr(g, method, None)) for method in methods):
        maker = _MAKERS.get(type(g).__module__.partition(".")[0], "kgdist.graph((sources, destinations)) or kgdist.heterograph")
        kind = f"{type(g).__module__}.{type(g).__qualname__}".removeprefix("builtins.")
        raise UsageError(f"a graph is needed, not a {kind}: make one by {maker}")


class Schema:
    """The types of a graph. Edge types are looked up by their three names, or by the middle one where only one type has it."""

    def __init__(self, ntypes: Sequence[str], etypes: Iterable[EType]) -> None:
        self.ntypes, self.etypes = list(ntypes), list(etypes)
        self.numbers = {etype: number for number, etype in enumerate(self.etypes)}

    def ntype(self, name: str | None) -> str:
        """A node type by name; None is the only one. Raises UsageError where there is no such, or more than one."""
        if name is None:
            if len(self.ntypes) != 1:
                raise UsageError(f"of which node type? There are {', '.join(self.ntypes) or 'none'}")
            return self.ntypes[0]
        if name not in self.ntypes:
            raise UsageError(f"there is no node type {name!r}: there are {', '.join(self.ntypes) or 'none'}")
        return name

    def etype(self, name: Any) -> EType:
        """An edge type by its three names, or its middle one; None is the only one. Raises UsageError where there is no such, or
        more than one."""
        asked = tuple(name) if isinstance(name, list) else name
        plain = isinstance(asked, str | tuple)  # others may compare element by element
        found = self.etypes if name is None else [each for each in self.etypes if plain and asked in (each, each[1])]
        if len(found) != 1:
            several = ", ".join(":".join(each) for each in found or self.etypes) or "none"
            which = "of which edge type" if name is None else f"which edge type is {name!r}"
            raise UsageError(f"{which}? There are {several}" if found else f"there is no edge type {name!r}: there are {several}")
        return found[0]
