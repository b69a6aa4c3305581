"""Data of nodes and edges: columns by name, and how `g.ndata`, `g.edata`, `g.nodes[type].data` look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from kgdist.base.errors import UnknownName, UsageError, counted
from kgdist.graphs.structure import EType

Type = TypeVar("Type")  # a name of nodes, or the three of edges
Ends = tuple[torch.Tensor, torch.Tensor]  # sources and destinations
FORMS = ("uv", "eid", "all")


def as_tensor(values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of a tensor, an array (its memory shared where that can be) or a list."""
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()  # torch warns of memory that it may write and must not
    return torch.as_tensor(values, dtype=dtype)


class Frame(MutableMapping[str, torch.Tensor]):
    """The data of nodes or edges of one type: name -> tensor [rows, ...]. What is assigned may be anything that makes a tensor.

    Raises UsageError for one of other rows.
    """

    def __init__(self, rows: int, what: str) -> None:
        self.rows, self.what = rows, what
        self._columns: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._columns:
            raise self._unknown(name)
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __setitem__(self, name: str, values: Any) -> None:
        try:
            column = as_tensor(values)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"{name!r}: a {type(values).__name__} makes no tensor of numbers ({reason})") from error
        if column.dim() == 0 or len(column) != self.rows:
            shape = tuple(column.shape)
            raise UsageError(f"{name!r} has the shape {shape}: {self.what} data has a row for each of {self.rows}")
        self._columns[name] = column

    def __delitem__(self, name: str) -> None:
        if name not in self._columns:
            raise self._unknown(name)
        del self._columns[name]

    def _unknown(self, name: str) -> UnknownName:
        return UnknownName(f"{self.what}: there is no data {name!r}, there is {', '.join(map(str, self)) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        columns = (f"{name}: {tuple(column.shape)} {column.dtype}" for name, column in self.items())
        return f"{{{', '.join(columns)}}}"

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Frame:
        """The same on another device."""
        moved = Frame(self.rows, self.what)
        moved._columns = {name: column.to(device, non_blocking=non_blocking) for name, column in self._columns.items()}
        return moved


class Frames(MutableMapping[str, Any], Generic[Type]):
    """The data of several types: name -> {type: tensor}, of the types that have it."""

    def __init__(self, frames: Mapping[Type, Frame], find: Callable[[Any], Type]) -> None:
        self._frames, self._find = frames, find

    def __getitem__(self, name: str) -> dict[Type, torch.Tensor]:
        found = {kind: frame[name] for kind, frame in self._frames.items() if name in frame}
        if not found:
            raise UnknownName(f"there is no data {name!r} of any type, there is {', '.join(map(str, self)) or 'none'}")
        return found

    def __setitem__(self, name: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise UsageError(f"{name!r}: there are {counted(len(self._frames), 'type')} here: give a dictionary of type to data")
        for kind, column in values.items():
            self._frames[self._find(kind)][name] = column

    def __delitem__(self, name: str) -> None:
        for kind in self[name]:
            del self._frames[kind][name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for frame in self._frames.values() for name in frame))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{kind!r}: {frame!r}" for kind, frame in self._frames.items() if frame) + "}"


def looked_at(frames: Mapping[Type, Frame], find: Callable[[Any], Type]) -> Frame | Frames[Type]:
    """The one frame there is, or all of them by type."""
    return next(iter(frames.values())) if len(frames) == 1 else Frames(frames, find)


class View(Generic[Type]):
    """`g.nodes[type].data`."""

    def __init__(self, frames: Mapping[Type, Frame], find: Callable[[Any], Type]) -> None:
        self._frames, self._find = frames, find

    def __getitem__(self, kind: Any) -> OfOneType:
        return OfOneType(self._frames[self._find(kind)])


class NodeView(View[str]):
    """And `g.nodes(type)`: the ids of a type, int64[n]; on `device`."""

    def __init__(self, frames: Mapping[str, Frame], find: Callable[[Any], str], device: torch.device | None = None) -> None:
        super().__init__(frames, find)
        self._device = device

    def __call__(self, ntype: str | None = None) -> torch.Tensor:
        return torch.arange(self._frames[self._find(ntype)].rows, device=self._device)


class EdgeView(View[EType]):
    """And `g.edges(form, order, etype)`: the edges of a type; `ends` gives their sources and destinations by id."""

    def __init__(
        self,
        frames: Mapping[EType, Frame],
        find: Callable[[Any], EType],
        ends: Callable[[EType], Ends],
        device: torch.device | None = None,
    ) -> None:
        super().__init__(frames, find)
        self._ends, self._device = ends, device

    def __call__(self, form: Any = "uv", order: str | None = "eid", etype: Any = None) -> Any:
        """Edges, int64[E] each.

        Args:
            form: "uv": (sources, destinations); "eid": ids; "all": (sources, destinations, ids). An edge type may stand in its
                place: "uv" of that type.
            order: "eid": by id; "srcdst": by source, then by destination, then by id.

        Raises UsageError for another form or order, and for a type that is not there.
        """
        if form not in FORMS:
            if etype is not None:
                raise UsageError(f"form={form!r}: edges are told as one of {', '.join(FORMS)}")
            form, etype = "uv", form
        if order not in (None, "eid", "srcdst"):
            raise UsageError(f"order={order!r}: edges are sorted by eid or srcdst")
        kind, by_id = self._find(etype), order != "srcdst"
        if form == "uv" and by_id:
            return self._ends(kind)
        ids = torch.arange(self._frames[kind].rows, device=self._device)
        if form == "eid" and by_id:
            return ids
        u, v = self._ends(kind)
        if not by_id:
            ids = torch.argsort(v, stable=True)
            ids = ids[torch.argsort(u[ids], stable=True)]
            u, v = u[ids], v[ids]
        return {"uv": (u, v), "eid": ids, "all": (u, v, ids)}[form]


class OfOneType:
    """`g.nodes[type]`: nothing but its `data`."""

    def __init__(self, data: Frame) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"data={self.data!r}"
