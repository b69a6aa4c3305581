"""Small graphs of every awkward kind, and hypothesis strategies of them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from kgdist.graphs.in_memory import Graph, graph, heterograph

LIKES, OWNS, KNOWS, NEVER = (
    ("person", "likes", "thing"),
    ("person", "owns", "thing"),
    ("person", "knows", "person"),
    ("a", "b", "c"),
)


def random_graph(nodes: int = 60, edges: int = 500, seed: int = 0) -> Graph:
    """Loops, repeated edges, nodes without any (the last ten), and one that a third of all edges lead to."""
    rng = np.random.default_rng(seed)
    sources, destinations = rng.integers(0, nodes - 10, edges), rng.integers(0, nodes - 10, edges)
    destinations[rng.random(edges) < 0.33] = 3
    sources[:20], destinations[:20] = 5, 7
    sources[20:25] = destinations[20:25]
    return graph((sources, destinations), num_nodes=nodes)


def typed_graph(seed: int = 0) -> Graph:
    """Two types with edges, one that has nodes and no edges, one without nodes."""
    rng = np.random.default_rng(seed)
    edges = {
        LIKES: (rng.integers(0, 30, 200), rng.integers(0, 12, 200)),
        OWNS: (rng.integers(0, 30, 40), rng.integers(0, 12, 40)),
        KNOWS: (rng.integers(0, 30, 90), rng.integers(0, 30, 90)),
        NEVER: ([], []),
    }
    return heterograph(edges, {"person": 30, "thing": 12, "a": 4, "c": 0})


@st.composite
def graphs(draw: st.DrawFn, most_nodes: int = 12, most_edges: int = 40) -> Graph:
    """Any graph of one type."""
    nodes = draw(st.integers(1, most_nodes))
    ends = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=most_edges))
    return graph(([s for s, _ in ends], [d for _, d in ends]), num_nodes=nodes)
