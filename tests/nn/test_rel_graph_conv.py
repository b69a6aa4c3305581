"""R-GCN's layer: the paper's formula edge by edge, and its gradients; PyG's layer; one line for what cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import given
from hypothesis import strategies as st

import kgdist
import kgdist.nn as dglnn
from kgdist.base.errors import UsageError
from tests.nn import formulas
from tests.nn.test_convs import PAIRS, N, close, rows, weights_of, where

R, IN, OUT = 5, 4, 6
KINDS: dict[str, dict[str, Any]] = {
    "free": {},
    "basis": {"regularizer": "basis", "num_bases": 2},
    "as many as relations": {"regularizer": "basis"},
    "blocks": {"regularizer": "bdd", "num_bases": 2},
}


def relations_of(count: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(R - 1, (count,), generator=torch.Generator().manual_seed(seed))  # the last one has no edges


def dense(layer: dglnn.RelGraphConv) -> torch.Tensor:
    """The matrix of each relation, float64[R, in, out]."""
    return torch.stack([torch.block_diag(*blocks) for blocks in layer.matrices()])


@pytest.mark.parametrize("kind", KINDS)
@given(pairs=PAIRS, whole=st.booleans(), norm=st.sampled_from(["mean", "given", None]))
def test_the_formula(kind: str, pairs: formulas.Pairs, whole: bool, norm: str | None) -> None:
    graph, edges, _, count = where(pairs, whole)
    sources = graph.num_nodes() if whole else graph.num_src_nodes()
    relations, layer = relations_of(len(edges)), dglnn.RelGraphConv(IN, OUT, R, **KINDS[kind]).double()
    x = rows(sources, IN).requires_grad_()
    weights = weights_of(len(edges)).requires_grad_()
    told: Any = weights[:, None] if norm == "given" else norm
    c: Any = {"mean": None, "given": weights, None: torch.ones(len(edges)).double()}[norm]
    expected = formulas.relational(edges, relations.tolist(), x, dense(layer), count, c)
    expected = expected + x[:count] @ layer.loop_weight + layer.h_bias
    made = layer(graph, x, relations, told)
    close(made, expected)
    wanted = [x, *layer.parameters(), *([weights] if norm == "given" else [])]
    pull = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad(y, wanted, pull, materialize_grads=True) for y in (made, expected)), strict=True):
        close(one, other)


@pytest.mark.parametrize("regularizer", ["basis", "bdd", None])
def test_it_is_pygs_layer(regularizer: str | None) -> None:
    pairs = torch.randint(N, (2, 40), generator=torch.Generator().manual_seed(0))
    graph, relations = kgdist.graph((pairs[0], pairs[1]), num_nodes=N), relations_of(40)
    layer = dglnn.RelGraphConv(IN, OUT, R, regularizer, 2)
    theirs = pyg.RGCNConv(
        IN, OUT, R, num_bases=2 if regularizer == "basis" else None, num_blocks=2 if regularizer == "bdd" else None
    )
    weight = layer.W.detach().squeeze(1) if regularizer != "bdd" else layer.W.detach()
    theirs.weight.data.copy_(weight)
    if layer.coeff is not None:
        theirs.comp.data.copy_(layer.coeff)
    theirs.root.data.copy_(layer.loop_weight)
    x = rows(N, IN).float()
    torch.testing.assert_close(layer(graph, x, relations, "mean"), theirs(x, pairs, relations), rtol=1e-5, atol=1e-5)


@given(pairs=PAIRS, seed=st.integers(0, 100))
def test_the_order_of_edges_means_nothing(pairs: formulas.Pairs, seed: int) -> None:
    layer, relations = dglnn.RelGraphConv(IN, OUT, R, self_loop=False, layer_norm=True).double(), relations_of(len(pairs))
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    ends = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T
    one = layer(kgdist.graph((ends[0], ends[1]), num_nodes=N), rows(N, IN), relations, "mean")
    other = layer(kgdist.graph((ends[0][order], ends[1][order]), num_nodes=N), rows(N, IN), relations[order], "mean")
    close(one, other)


def test_norms_activations_and_dropout_come_in_their_order() -> None:
    torch.manual_seed(0)
    graph, relations = kgdist.graph(([0, 1, 2], [1, 1, 0]), num_nodes=N), torch.tensor([0, 0, 3], dtype=torch.int32)
    plain = dglnn.RelGraphConv(IN, OUT, R, self_loop=False, bias=False)
    layer = dglnn.RelGraphConv(IN, OUT, R, activation=torch.relu, dropout=0.5, layer_norm=True)
    layer.W.data.copy_(plain.W.data)
    x = rows(N, IN).float()
    inner = torch.nn.functional.layer_norm(plain(graph, x, relations), (OUT,)) + layer.h_bias + x @ layer.loop_weight
    torch.testing.assert_close(layer.eval()(graph, x, relations), torch.relu(inner))
    dropped = layer.train()(graph, (x, x), relations)
    assert int((dropped == 0).sum()) > 0 and bool(((dropped == 0) | torch.isclose(dropped, 2 * torch.relu(inner))).all())
    layer.reset_parameters()
    assert not torch.equal(layer.W, plain.W)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: dglnn.RelGraphConv(4, 6, R, "l2"), "regularizer='l2': there are basis, bdd, and None"),
        (lambda: dglnn.RelGraphConv(4, 6, R, "bdd", 4), "of 4 and 6 features no equal blocks can be made"),
        (lambda: dglnn.RelGraphConv(4, 6, R, "bdd"), "num_bases: must be an integer >= 1, not None"),
        (lambda: dglnn.RelGraphConv(4, 6, 0), "num_rels: must be an integer >= 1, not 0"),
        (lambda: asked(torch.tensor([0, 5])), "relations 0 to 5: there are 5, numbered from 0"),
        (lambda: asked(torch.tensor([0])), r"the relation of each of 2 edges, an int, not int64\[1\]"),
        (lambda: asked(torch.tensor([0.0, 1.0])), r"an int, not float32\[2\]"),
        (lambda: asked(torch.tensor([0, 1]), "sum"), "norm='sum': give 'mean'"),
        (lambda: asked(torch.tensor([0, 1]), torch.ones(3)), r"norm is of the shape \[3\]: give a number for each of 2 edges"),
    ],
)
def test_what_cannot_be_is_refused(wrong: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        wrong()


def asked(relations: torch.Tensor, norm: Any = None) -> torch.Tensor:
    return dglnn.RelGraphConv(IN, OUT, R)(kgdist.graph(([0, 1], [1, 2]), num_nodes=N), rows(N, IN).float(), relations, norm)
