"""The layout covers every row once, machine by machine, and refuses what does not fit together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import KgdistError
from kgdist.kvstore.layout import Layout


@given(machines=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(1, 3)), min_size=1, max_size=5))
def test_every_row_has_one_owner_on_its_machine(machines: list[tuple[int, int, int]]) -> None:
    entities, relations, servers = zip(*machines, strict=True)
    bounds = {name: np.concatenate([[0], np.cumsum(n)]) for name, n in (("entity", entities), ("relation", relations))}
    layout = Layout.build({"entity": 8, "relation": 4}, bounds, servers)
    assert layout.machines == len(machines) and layout.servers == sum(servers)
    for name, counts in (("entity", entities), ("relation", relations)):
        owner = np.searchsorted(layout.starts[name], np.arange(layout.rows(name)), "right") - 1
        assert layout.rows(name) == sum(counts)
        for machine, count in enumerate(counts):
            first, last = layout.machine_range(name, machine)
            assert (first, last) == (bounds[name][machine], bounds[name][machine] + count)
            assert (layout.machine_of[owner[first:last]] == machine).all()
            shares = [len(range(*layout.range_of(name, s))) for s in layout.servers_of(machine)]
            assert sum(shares) == count and max(shares) - min(shares) <= 1
        for server in range(layout.servers):
            first, last = layout.range_of(name, server)
            assert (owner[first:last] == server).all() and (owner == server).sum() == last - first
    again = Layout.from_json(json.loads(json.dumps(layout.to_json())))
    assert again.to_json() == layout.to_json() and list(again.widths) == ["entity", "relation"]


def test_what_does_not_fit_is_refused() -> None:
    widths, bounds = {"entity": 4}, {"entity": np.array([0, 5, 9])}
    layout = Layout.build(widths, bounds, [1, 2])
    with pytest.raises(ValueError, match="2 machines, but 3"):
        Layout.build(widths, bounds, [1, 1, 1])
    with pytest.raises(ValueError, match="no machine 2"):
        layout.servers_of(2)
    with pytest.raises(ValueError, match="cannot be"):
        Layout.build(widths, {"entity": np.array([0, 5, 4])}, [1, 1])
    with pytest.raises(ValueError, match="every machine needs a server"):
        Layout.build(widths, bounds, [0, 1])
    for machines in ([], [1], [0, 2], [0, 1, 0]):
        with pytest.raises(ValueError, match="machines of servers"):
            Layout(widths, {"entity": np.zeros(len(machines) + 1, np.int64)}, np.array(machines, np.int64))
    with pytest.raises(KgdistError, match="longer than a message"):
        Layout.build({"entity": 1 << 25}, bounds, [1, 1])
