"""The compiled loops of a training step, each beside its plain torch twin and the roof above it: `make bench-kernels`.

One thread, the shapes of a step: 5 chunks of 200 positives and 200 negatives, dim 400, as many relations as such a step of FB15k
meets. A loop and its twin run in turn in one process; a figure is the median of its calls. The twin of a loop that gives
gradients is the plain formula with autograd; that of a comparator multiplies by `torch.bmm` as it is.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from roofs import CHUNKS, DIM, GEMM_FLOPS, HEADER, N, P, Roofs, big_table, draws, machine, measure

from kgdist.base.types import Side
from kgdist.kernels import jit, loss
from kgdist.kernels.comparators import COMPARATORS, Comparator
from kgdist.kernels.gemm import Out, Products
from kgdist.kernels.hashing import unique
from kgdist.kernels.matrices import Matrices, grouped_matmul
from kgdist.kernels.pairs import Pairs
from kgdist.kernels.query import KINDS, VectorQuery
from kgdist.kernels.rows import adagrad_rows, gather_rows
from kgdist.models.base import Model
from kgdist.models.registry import make_model
from kgdist.training.losses import batch_loss

B, RELATIONS, MATRIX = CHUNKS * P, 268, 100
ROW = DIM * 4  # bytes
FEWEST, MOST = 5, 60  # calls
Call = Callable[[], object]


class Case(NamedTuple):
    """One line: what it is, the loop, its twin, and its work in FLOP or in bytes read and written (the other is 0)."""

    name: str
    loop: Call
    twin: Call
    flops: float = 0.0
    size: float = 0.0


class Plain(Products):
    """Products by torch as it is."""

    def multiply(self, a: torch.Tensor, b: torch.Tensor, out: Out = None) -> torch.Tensor:
        return torch.bmm(a, b) if out is None else torch.bmm(a, b, out=out)

    def subtract(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        out.baddbmm_(a, b, alpha=-1)


def compare(name: str, comparator: Comparator) -> list[Case]:
    """Forward and backward.

    L1 counts a difference and a sum for each number, backward a comparison and two sums; the modulus counts 8 operations for a
    complex number, 13 backward, with the root as one.
    """
    q, c, grad = torch.randn(CHUNKS, P, DIM), torch.randn(CHUNKS, N, DIM), torch.randn(CHUNKS, P, N)
    out, out_q, out_c = torch.empty(CHUNKS, P, N), torch.empty_like(q), torch.empty_like(c)
    scores = comparator.scores(q, c).clone()

    def forward() -> None:
        comparator.scores(q, c, out)

    def backward() -> None:
        comparator.slopes(q, c, scores, grad, out_q, out_c)

    twin = copy.copy(comparator)
    if twin.products is not None:
        twin.products = Plain()

    def slow(call: Call) -> Call:
        def plain() -> None:
            jit.WANTED = "torch"
            call()
            jit.WANTED = "numba"

        return plain

    numbers = CHUNKS * P * N * DIM
    work = {"dot": (2, 4), "l2": (2, 4), "l1": (2, 3), "modulus": (4, 6.5)}[name]
    plain = slow(lambda: twin.scores(q, c)), slow(lambda: twin.slopes(q, c, scores, grad))
    return [
        Case(f"{name}, forward", forward, plain[0], work[0] * numbers),
        Case(f"{name}, backward", backward, plain[1], work[1] * numbers),
    ]


def losses() -> list[Case]:
    """Log-sigmoid with self-adversarial weights, and pairwise; values and gradients."""
    positive, negative = torch.randn(B), torch.randn(B, N)
    grad, grad_scores = np.empty(B, np.float32), np.empty((B, N), np.float32)
    keep, weights, number = np.empty((0, N), np.bool_), np.empty(0, np.float32), np.float32
    rule = loss.Rule(number(0), number(np.inf), hinge=False, margin=number(1), temperature=number(1))
    given = positive.numpy(), negative.numpy(), keep, weights, rule, grad, grad_scores

    def plain(*, pairwise: bool) -> None:
        leaves = [each.clone().requires_grad_() for each in (positive, negative)]
        value = batch_loss(leaves[0], leaves[1], pairwise=pairwise, temperature=None if pairwise else 1.0)
        torch.autograd.grad(value.total, leaves)

    return [
        Case(
            "loss, adversarial",
            lambda: loss.pointwise(*given),
            lambda: plain(pairwise=False),
            size=8.0 * B * N,
        ),
        Case(
            "loss, pairwise",
            lambda: loss.pairwise(*given),
            lambda: plain(pairwise=True),
            size=8.0 * B * N,
        ),
    ]


def queries(kind: str, model: Model) -> Case:
    """Forward and backward: 3 rows, then 6, a positive."""
    rows, relations = torch.randn(2 * B, DIM), torch.randn(RELATIONS, model.relation_dim)
    anchors, index = torch.randint(2 * B, (B,)), torch.randint(RELATIONS, (B,))
    out, grad, grad_rows = np.empty((B, DIM), np.float32), torch.randn(B, DIM), np.zeros((2 * B, DIM), np.float32)
    grad_uses = np.empty((B, model.relation_dim), np.float32)

    def loop() -> None:
        arrays = rows.numpy(), anchors.numpy(), relations.numpy(), index.numpy()
        query = VectorQuery(kind, Side.TAIL, *arrays, scale=model.phase_scale)
        query.forward(out)
        query.backward(grad.numpy(), grad_rows, grad_uses)

    def twin() -> None:
        leaves = [rows.clone().requires_grad_(), relations[index].requires_grad_()]
        torch.autograd.grad(model.query(leaves[0][anchors], leaves[1], Side.TAIL), leaves, grad)

    return Case(f"query {kind}", loop, twin, size=9.0 * B * ROW)


def matrices() -> Case:
    """RESCAL's query of dim 100, forward and backward: each matrix read twice, its gradient written once."""
    rows, relations = torch.randn(2 * B, MATRIX), torch.randn(RELATIONS, MATRIX * MATRIX)
    anchors, index = torch.randint(2 * B, (B,)), torch.arange(B) % RELATIONS  # every relation has triples
    out, grad, grad_rows = np.empty((B, MATRIX), np.float32), torch.randn(B, MATRIX), np.zeros((2 * B, MATRIX), np.float32)
    grad_relations = np.empty((RELATIONS, MATRIX, MATRIX), np.float32)

    def loop() -> None:
        query = Matrices(relations.numpy().reshape(-1, MATRIX, MATRIX), index.numpy())
        query.forward(rows.numpy(), anchors.numpy(), out)
        query.backward(rows.numpy(), anchors.numpy(), grad.numpy(), grad_rows, grad_relations, fresh=True)

    def twin() -> None:
        leaves = [rows.clone().requires_grad_(), relations.clone().requires_grad_()]
        found = grouped_matmul(leaves[0][anchors], leaves[1].view(-1, MATRIX, MATRIX), index, transpose=False)
        torch.autograd.grad(found, leaves, grad)

    return Case("query bilinear, dim 100", loop, twin, size=3.0 * relations.nbytes)


def positives(name: str, comparator: Comparator) -> Case:
    """Queries with the positives, forward and backward: 2 rows, then 6."""
    q, rows, places = torch.randn(B, DIM), torch.randn(2 * B, DIM), torch.randperm(2 * B)[:B]
    scores, grad = np.empty(B, np.float32), torch.randn(B)
    grad_q, grad_rows = np.zeros((B, DIM), np.float32), np.zeros((2 * B, DIM), np.float32)

    def loop() -> None:
        pairs = Pairs(name, q.numpy(), rows.numpy(), places.numpy())
        pairs.forward(scores)
        pairs.backward(scores, grad.numpy(), grad_q, grad_rows)

    def twin() -> None:
        leaves = [q.clone().requires_grad_(), rows.clone().requires_grad_()]
        torch.autograd.grad(comparator.pair(leaves[0], leaves[1][places]), leaves, grad)

    return Case(f"pairs {name}", loop, twin, size=8.0 * B * ROW)


def rows_of(table: torch.Tensor) -> list[Case]:
    """3000 rows at random from 1 GB: copied; and updated, which reads the row and the gradient and writes the row."""
    ids = draws(len(table), 32)
    state, grads, out = torch.ones(len(table)), torch.randn(3000, DIM), torch.empty(3000, DIM)
    turn = iter(range(1 << 60))

    def some() -> torch.Tensor:
        return ids[next(turn) % len(ids)]

    def plain_update() -> None:
        chosen = some()
        state.index_add_(0, chosen, grads.square().mean(1))
        table.index_add_(0, chosen, grads / (state[chosen].sqrt() + 1e-10).unsqueeze(1), alpha=-0.1)

    gather = Case(
        "gather 3000 rows", lambda: gather_rows(table, some(), out), lambda: torch.index_select(table, 0, some(), out=out),
        size=2.0 * 3000 * ROW,
    )  # fmt: skip
    update = Case(
        "Adagrad on 3000 rows", lambda: adagrad_rows(table, state, some(), grads, 0.1), plain_update, size=3.0 * 3000 * ROW
    )
    return [gather, update]


def dedup() -> Case:
    """The ids of a step: 2000 ends of positives, 1000 draws."""
    ids = np.random.default_rng(0).integers(14951, size=3000)
    return Case("unique, 3000 ids", lambda: unique(ids), lambda: np.unique(ids, return_inverse=True))


def timed(case: Case, budget: float) -> tuple[float, float]:
    """Seconds of the loop and of its twin, in turn, for `budget` seconds in all."""
    found: dict[Call, list[float]] = {case.loop: [], case.twin: []}
    for call in found:
        call()
    started = perf_counter()
    while len(found[case.twin]) < FEWEST or (perf_counter() - started < budget and len(found[case.twin]) < MOST):
        for call, times in found.items():
            before = perf_counter()
            call()
            times.append(perf_counter() - before)
    return statistics.median(found[case.loop]), statistics.median(found[case.twin])


def line(case: Case, roofs: Roofs, budget: float) -> str:
    """Of the table."""
    loop, twin = timed(case, budget)
    rate, share = "", ""
    if case.flops:
        rate, share = f"{case.flops / loop / 1e9:.1f} GFLOP/s", f"{case.flops / loop / 1e9 / roofs.products:.0%} of GEMM"
    elif case.size:
        rate, share = f"{case.size / loop / 1e9:.1f} GB/s", f"{case.size / loop / 1e9 / roofs.copy:.0%} of copy"
    return f"| {case.name} | {loop * 1e3:.3f} | {twin * 1e3:.3f} | {twin / loop:.1f} | {rate} | {share} |"


def cases(table: torch.Tensor) -> list[Case]:
    """All lines."""
    names = {"translate": "TransE_l2", "diagonal": "DistMult", "complex": "ComplEx", "rotate": "RotatE", "simple": "SimplE"}
    sizes = {kind: {"hidden_dim": DIM, "entity_dim": DIM, "relation_dim": DIM // (1 + (kind == "rotate"))} for kind in KINDS}
    models = {kind: make_model(names[kind], gamma=12.0, **sizes[kind]) for kind in KINDS}
    return [
        *(case for name in ("dot", "l2", "l1", "modulus") for case in compare(name, COMPARATORS[name])),
        *losses(),
        *(queries(kind, model) for kind, model in models.items()),
        matrices(),
        *(positives(name, comparator) for name, comparator in COMPARATORS.items()),
        *rows_of(table),
        dedup(),
    ]


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.5, help="for one line of the table")
    parser.add_argument("--table", type=float, default=1024, help="MiB, far more than the caches hold")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "kernels.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = big_table(int(options.table * 2**20))
    roofs = [measure(count, table) for count in dict.fromkeys((1, os.cpu_count() or 1))]
    lines = [
        "# Compiled loops",
        "",
        "One thread; a step of 1000 positives in 5 chunks of 200 with 200 negatives each, dim 400. Medians; loop and plain torch",
        "run in turn. Bytes are those of rows read and written, most of which lie in a cache: a share may be over 100 %. L1 and",
        "the modulus cannot reach GEMM's rate, for an addition is half of a multiply-add. Written by `make bench-kernels`.",
        "",
        "| loop | ms | plain torch, ms | ratio | rate | of the roof |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    busy = [os.getloadavg()[0]]
    for case in cases(table):
        lines.append(line(case, roofs[0], options.seconds))
        print(lines[-1], flush=True)
    busy.append(os.getloadavg()[0])
    lines += ["", f"Roofs, in the same run (GEMM: {CHUNKS} x [{P},{DIM}] x [{DIM},{N}], {GEMM_FLOPS / 1e6:.0f} MFLOP):", ""]
    lines += [*HEADER, *(row for each in roofs for row in each.lines()), "", f"Machine: {machine()}.", ""]
    lines += [f"Load of the machine (1 is this run alone): {busy[0]:.1f} at first, {busy[1]:.1f} at the end.", ""]
    text = "\n".join(lines)
    options.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
