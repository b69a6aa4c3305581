"""Layers: DGL's formulas edge by edge, PyG's layers where they are the same, on blocks and on graphs."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from hypothesis import given
from hypothesis import strategies as st

import kgdist
import kgdist.nn as dglnn
from kgdist.base.errors import UsageError
from kgdist.sampling.blocks import Block
from kgdist.sampling.neighbours import in_subgraph, to_block
from tests.nn import formulas
from tests.nn.formulas import Pairs

N, IN, OUT, HEADS = 6, 4, 3, 2
PAIRS = st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), max_size=24)
LONELY = {"allow_zero_in_degree": True}


def graph_of(pairs: Pairs) -> kgdist.Graph:
    sources, destinations = zip(*pairs, strict=True) if pairs else ((), ())
    return kgdist.graph((list(sources), list(destinations)), num_nodes=N)


def block_of(pairs: Pairs, seeds: list[int]) -> Block:
    """The block of all edges to some nodes."""
    ids = torch.tensor(seeds)
    return to_block(in_subgraph(graph_of(pairs), ids), ids)


def pairs_of(block: Block) -> Pairs:
    return list(zip(*(ends.tolist() for ends in block.edges()), strict=True))


def rows(count: int = N, width: int = IN, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights_of(count: int) -> torch.Tensor:
    return torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5


def close(made: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(made, expected, rtol=1e-9, atol=1e-12)


def where(pairs: Pairs, whole: bool) -> tuple[Any, Pairs, torch.Tensor, int]:
    """A graph, or the block of nodes 4, 0 and 2; its edges, rows of its sources, and how many destinations it has."""
    if whole:
        return graph_of(pairs), pairs, rows(), N
    block = block_of(pairs, [4, 0, 2])
    return block, pairs_of(block), rows()[block.srcdata[kgdist.NID]], 3


@given(PAIRS, st.booleans(), st.booleans(), st.booleans())
def test_sage_mean(pairs: Pairs, whole: bool, weighted: bool, bias: bool) -> None:
    place, local, x, count = where(pairs, whole)
    layer = dglnn.SAGEConv(IN, OUT, "mean", bias=bias).double()
    weights = weights_of(len(local)) if weighted else None
    found = formulas.mean(local, x, count, weights)
    expected = layer.conv.lin_l(found) + layer.conv.lin_r(x[:count])
    close(layer(place, x, edge_weight=weights), expected)
    close(layer(place, (x, x[:count]), edge_weight=weights), expected)
    assert (layer.conv.lin_l.bias is not None) == bias


@given(PAIRS, st.booleans())
def test_sage_gcn(pairs: Pairs, whole: bool) -> None:
    place, local, x, count = where(pairs, whole)
    layer = dglnn.SAGEConv(IN, OUT, "gcn").double()
    close(layer(place, x), layer.conv.lin_l(formulas.gcn(local, x, x[:count])))


@given(PAIRS, st.booleans())
def test_sage_pool(pairs: Pairs, whole: bool) -> None:
    place, local, x, count = where(pairs, whole)
    layer = dglnn.SAGEConv(IN, OUT, "pool").double()
    found = formulas.pool(local, layer.conv.lin(x).relu(), count)
    close(layer(place, x), layer.conv.lin_l(found) + layer.conv.lin_r(x[:count]))


@given(PAIRS, st.booleans(), st.sampled_from(["both", "right", "left", "none"]), st.booleans(), st.booleans())
def test_graph_convolution(pairs: Pairs, whole: bool, norm: str, weighted: bool, weight: bool) -> None:
    place, local, x, count = where(pairs, whole)
    layer = dglnn.GraphConv(IN, OUT if weight else IN, norm=norm, weight=weight, **LONELY).double()
    weights = weights_of(len(local)) if weighted else None
    bias = layer.bias if layer.conv is None else layer.conv.bias
    torch.nn.init.normal_(bias)
    found = formulas.convolution(local, x if layer.conv is None else layer.conv.lin(x), count, norm, weights)
    close(layer(place, x, edge_weight=weights), found + bias)


@given(PAIRS, st.booleans(), st.sampled_from(["", "own", "same"]), st.booleans())
def test_graph_attention(pairs: Pairs, whole: bool, residual: str, two: bool) -> None:
    place, local, x, count = where(pairs, whole)
    out = IN // HEADS if residual == "same" else OUT
    layer = dglnn.GATConv((IN, IN) if two else IN, out, HEADS, residual=bool(residual), negative_slope=0.3, **LONELY).double()
    conv = layer.conv
    torch.nn.init.normal_(conv.bias)
    left, right = (conv.lin_src, conv.lin_dst) if two else (conv.lin, conv.lin)
    rows_left, rows_right = left(x).view(-1, HEADS, out), right(x[:count]).view(-1, HEADS, out)
    found, attention = formulas.attention(local, rows_left, rows_right, conv.att_src[0], conv.att_dst[0], 0.3)
    expected = found + conv.bias.view(HEADS, out)
    if residual:
        assert (layer.res_fc is None) == (residual == "same")
        own = x[:count] if layer.res_fc is None else layer.res_fc(x[:count])
        expected = expected + own.view(-1, HEADS, out)
    made, shares = layer(place, x, get_attention=True)
    close(made, expected)
    close(shares, attention.unsqueeze(-1))


@pytest.mark.parametrize("whole", [True, False])
def test_layers_of_pyg_make_the_same(whole: bool) -> None:
    pairs = [(0, 4), (1, 4), (5, 4), (3, 0), (0, 0), (2, 2), (1, 2), (4, 5), (5, 1), (2, 3)]
    place, local, x, count = where(pairs, whole)
    edge_index, size = torch.tensor(local).T.contiguous(), (len(x), count)
    ours, theirs = dglnn.SAGEConv(IN, OUT, "mean").double(), pyg.SAGEConv(IN, OUT).double()
    theirs.load_state_dict(ours.conv.state_dict())
    close(ours(place, x), theirs((x, x[:count]), edge_index, size=size))
    attention, their_attention = (
        dglnn.GATConv(IN, OUT, HEADS).double(),
        pyg.GATConv(IN, OUT, HEADS, add_self_loops=False).double(),
    )
    their_attention.load_state_dict(attention.conv.state_dict())
    close(attention(place, x).flatten(1), their_attention((x, x[:count]), edge_index, size=size))


def test_a_graph_with_loops_is_kipf_and_wellings() -> None:
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1), (3, 4), (4, 3)]
    layer, theirs = dglnn.GraphConv(IN, OUT).double(), pyg.GCNConv(IN, OUT).double()
    theirs.load_state_dict(layer.conv.state_dict())
    close(layer(kgdist.add_self_loop(graph_of(pairs)), rows()), theirs(rows(), torch.tensor(pairs).T))


@pytest.mark.parametrize(
    "make",
    [
        lambda: dglnn.SAGEConv(IN, OUT, "mean"),
        lambda: dglnn.SAGEConv(IN, OUT, "gcn"),
        lambda: dglnn.SAGEConv(IN, OUT, "pool"),
        lambda: dglnn.GraphConv(IN, OUT, **LONELY),
        lambda: dglnn.GATConv(IN, OUT, HEADS, **LONELY),
    ],
)
def test_gradients_are_those_of_finite_differences(make: Callable[[], torch.nn.Module]) -> None:
    block = block_of([(0, 4), (1, 4), (3, 0), (0, 0), (1, 2), (1, 2), (5, 4)], [4, 0, 2])
    layer, x = make().double(), rows(block.num_src_nodes()).requires_grad_()
    assert torch.autograd.gradcheck(lambda given, *_: layer(block, given), (x, *layer.parameters()))


def test_dropout_is_for_training_and_of_what_is_said() -> None:
    block, x = block_of([(0, 4), (1, 4), (3, 0), (5, 2)], [4, 0, 2]), rows(6).float()
    for layer in (dglnn.SAGEConv(IN, OUT, "mean", feat_drop=1.0), dglnn.GATConv(IN, OUT, HEADS, feat_drop=1.0)):
        used = x[: block.num_src_nodes()]
        bias = layer.conv.lin_l.bias if isinstance(layer, dglnn.SAGEConv) else layer.conv.bias.view(HEADS, OUT)
        close(layer(block, used), bias.expand_as(layer(block, used)))
        layer.eval()
        assert not torch.equal(layer(block, used), bias.expand_as(layer(block, used)))


def test_norm_and_activation_are_called_on_the_result() -> None:
    block, x = block_of([(0, 4), (1, 0)], [4, 0, 2]), rows(4)[:4]
    layer = dglnn.SAGEConv(IN, OUT, "mean", activation=torch.relu, norm=lambda made: made + 7).double()
    plain = dglnn.SAGEConv(IN, OUT, "mean").double()
    plain.load_state_dict(layer.state_dict())
    close(layer(block, x), plain(block, x).relu() + 7)


def test_nodes_without_edges_are_refused_unless_allowed() -> None:
    block = block_of([(0, 4)], [4, 0, 2])
    for layer in (dglnn.GraphConv(IN, OUT), dglnn.GATConv(IN, OUT, HEADS)):
        with pytest.raises(UsageError, match="no edge leads to 2 of 3 nodes: add loops by kgdist.add_self_loop"):
            layer(block, rows(3).float())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: dglnn.SAGEConv(IN, OUT, "lstm"), "aggregator_type='lstm': there are mean, gcn, pool"),
        (lambda: dglnn.SAGEConv((IN, 5), OUT, "gcn"), "4 features and 5 do not fit"),
        (lambda: dglnn.GraphConv(IN, OUT, norm="two"), "norm='two': there are both, right, left, none"),
        (lambda: dglnn.GraphConv(IN, OUT, weight=False), "4 features stay as many: out_feats=3 cannot be"),
        (lambda: dglnn.HeteroGraphConv({}, aggregate="most"), "aggregate='most': there are sum"),
        (lambda: dglnn.SAGEConv(IN, OUT, "mean")(block_of([(0, 4)], [4]), rows(3).float()), "3 rows for 2 source nodes"),
        (
            lambda: dglnn.SAGEConv(IN, OUT, "pool")(block_of([(0, 4)], [4]), rows(2).float(), torch.ones(1)),
            "leave edge_weight out",
        ),
    ],
)
def test_what_cannot_be_is_said(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


def test_without_pyg_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "torch_geometric":
            raise ModuleNotFoundError("No module named 'torch_geometric'")
        return real(name, *rest)

    for name in [name for name in sys.modules if name.startswith("kgdist.nn.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(dglnn.__dict__, "GATConv", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UsageError, match=r"No module named 'torch_geometric'\); pip install 'kgdist\[gnn\]'"):
        _ = dglnn.GATConv


def test_the_name_that_dgl_gives_the_folder() -> None:
    import kgdist.nn.pytorch as named

    assert {getattr(named, name) for name in named.__all__} == {getattr(dglnn, name) for name in named.__all__}
    assert dglnn.pytorch is named
