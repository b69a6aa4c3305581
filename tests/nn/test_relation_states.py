"""Layers that hand relations on, CompGCN's and RelGNN's: their formulas edge by edge, with all gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kgdist
import kgdist.nn as dglnn
from kgdist.base.errors import UsageError
from tests.nn.formulas import Pairs
from tests.nn.test_convs import IN, PAIRS, N, close, rows, where

R, OUT = 6, 5
Twin = Callable[[Any, Pairs, list[int], torch.Tensor, torch.Tensor, int], torch.Tensor]


def correlation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of Nickel et al. 2016: component k is the sum over i of a_i b_(i + k)."""
    size = len(a)
    return torch.stack([sum((a[i] * b[(i + k) % size] for i in range(size)), a.new_zeros(())) for k in range(size)])


COMPOSED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sub": torch.sub,
    "mul": torch.mul,
    "ccorr": correlation,
}


def comp_twin(layer: Any, pairs: Pairs, kinds: list[int], x: torch.Tensor, states: torch.Tensor, count: int) -> torch.Tensor:
    compose, made = COMPOSED[layer.comp_fn], []
    for v in range(count):
        met = [(u, r) for (u, to), r in zip(pairs, kinds, strict=True) if to == v]
        total = compose(x[v], layer.loop_rel[0]) @ layer.W_loop
        for u, r in met:
            total = total + compose(x[u], states[r]) @ layer.W[int(r >= R // 2) if len(layer.W) > 1 else 0] / len(met)
        made.append(total / 2 + layer.bias)
    return torch.stack(made)


def attention_twin(layer: Any, pairs: Pairs, kinds: list[int], x: torch.Tensor, states: torch.Tensor, count: int) -> torch.Tensor:
    made = []
    for v in range(count):
        met = [(u, r) for (u, to), r in zip(pairs, kinds, strict=True) if to == v]
        own = x[v] @ layer.W_0
        if not met:
            made.append(own + layer.bias)
            continue
        logits = [layer.p @ (x[v] @ layer.W) + layer.q @ (x[u] @ layer.W) + layer.s @ states[r] for u, r in met]
        share = torch.nn.functional.leaky_relu(torch.stack(logits), 0.2).softmax(0)
        come = sum((a * (x[u] @ layer.M + states[r] @ layer.N) for a, (u, r) in zip(share, met, strict=True)), torch.zeros(OUT))
        b = torch.stack([torch.tanh(layer.S(each)) @ layer.k for each in (own, come)]).softmax(0)
        made.append(b[0] * own + b[1] * come + layer.bias)
    return torch.stack(made)


LAYERS: dict[str, tuple[Callable[[], Any], Twin]] = {
    "sub": (lambda: dglnn.CompGraphConv(IN, OUT, R, "sub"), comp_twin),
    "mul": (lambda: dglnn.CompGraphConv(IN, OUT, R, "mul"), comp_twin),
    "ccorr": (lambda: dglnn.CompGraphConv(IN, OUT, R, "ccorr"), comp_twin),
    "no inverses": (lambda: dglnn.CompGraphConv(IN, OUT, R, inverse=False), comp_twin),
    "attention": (lambda: dglnn.RelGNNConv(IN, OUT, R), attention_twin),
}


def relations_of(count: int) -> torch.Tensor:
    return torch.randint(R - 1, (count,), generator=torch.Generator().manual_seed(3))  # the last one has no edges


@pytest.mark.parametrize("name", LAYERS)
@given(pairs=PAIRS, whole=st.booleans())
def test_the_formula(name: str, pairs: Pairs, whole: bool) -> None:
    make, twin = LAYERS[name]
    layer = make().double()
    graph, edges, _, count = where(pairs, whole)
    kinds = relations_of(len(edges))
    x = rows(graph.num_nodes() if whole else graph.num_src_nodes()).requires_grad_()
    states = rows(R, seed=7).requires_grad_()
    for parameter in (layer.bias, getattr(layer, "loop_rel", layer.bias)):
        parameter.data.normal_(generator=torch.Generator().manual_seed(1))
    found, handed = layer(graph, x, kinds, states)
    expected = twin(layer, edges, kinds.tolist(), x, states, count)
    close(found, expected)
    close(handed, states @ (layer.W_rel if name != "attention" else layer.U))
    wanted, pull = [x, states, *layer.parameters()], torch.randn_like(expected)
    got, want = (torch.autograd.grad(each, wanted, pull, materialize_grads=True) for each in (found, expected))
    for one, other in zip(got, want, strict=True):
        close(one, other)


@pytest.mark.parametrize("name", LAYERS)
def test_sources_and_destinations_can_have_rows_of_their_own(name: str) -> None:
    layer, graph = LAYERS[name][0](), kgdist.graph(([0, 1, 1], [1, 2, 2]), num_nodes=N)
    x, states, kinds = rows(N).float(), rows(R).float(), torch.tensor([0, 5, 0], dtype=torch.int32)
    assert torch.equal(layer(graph, (x, x), kinds, states)[0], layer(graph, x, kinds, states)[0])
    before = layer.W_0.clone() if name == "attention" else layer.W_loop.clone()
    layer.reset_parameters()
    assert not torch.equal(before, layer.W_0 if name == "attention" else layer.W_loop)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: dglnn.CompGraphConv(4, 6, R, "add"), "comp_fn='add': there are sub, mul, ccorr"),
        (lambda: dglnn.CompGraphConv(4, 6, 0), "num_rels: must be an integer >= 1, not 0"),
        (lambda: dglnn.RelGNNConv(4, 6, 0), "num_rels: must be an integer >= 1, not 0"),
        (lambda: asked("mul", [0, 6], R), "relations 0 to 6: there are 6, numbered from 0"),
        (lambda: asked("attention", [0], R), r"the relation of each of 2 edges, an int, not int64\[1\]"),
        (lambda: asked("attention", [0, 1], 2), r"relations are float32\[2, 4\]: give \[6, 4\]"),
        (lambda: asked("sub", [0, 1], 2), r"relations are float32\[2, 4\]: give \[6, 4\]"),
    ],
)
def test_what_cannot_be_is_refused(wrong: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wrong()


def asked(name: str, kinds: list[int], states: int) -> Any:
    graph = kgdist.graph(([0, 1], [1, 2]), num_nodes=N)
    return LAYERS[name][0]()(graph, rows(N).float(), torch.tensor(kinds), rows(states).float())
