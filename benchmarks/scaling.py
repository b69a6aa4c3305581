"""What more machines bring, computed from measured costs: `make scaling`, after `make bench-scaling`.

Nothing is measured here: results/scaling.json holds what was, `scaling_model` the arithmetic. Writes docs/scaling.md, and the
measurements beside what the model says of them to results/scaling.md.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scaling_model import ENDS, TERMS, WORDS, Costs, Job, Traffic, best, different, fit, least_squares, needs

HERE = Path(__file__).parent
COUNTS = (1, 2, 4, 8, 16, 32, 64)
MOST = COUNTS[-1]
OPEN = {"curve": False}
COLUMNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("as it comes: encrypted", {}),
    ("not encrypted", OPEN),
    ("bfloat16", OPEN | {"dtype": "bf16"}),
    ("negatives from here", OPEN | {"local": True}),
)
NAMES = {"trainer": "trainer", "trainer_io": "its libzmq", "servers": "servers", "servers_io": "their libzmq"}


def traffic_of(row: Mapping[str, Any]) -> Traffic:
    """What a step of a measured row had to do with its machines; all its rows lie elsewhere."""
    machines, rows, steps = row["machines"], row["rows"], row.get("pull_ahead", 1)
    pulls, pushes = different(steps * row["pulled"], machines) / steps, different(rows, machines)
    ways = {"dtype": row.get("dtype", "fp32"), "curve": row.get("curve", False)}
    return Traffic(machines, pulls, pulls + pushes, row["pulled"], rows, row.get("dim", 400), **ways)


def costs_of(measured: Mapping[str, Any]) -> Costs:
    """The model, fitted."""
    fitted = [row for row in measured["messages"] if row["fitted"]]
    ends = fit([traffic_of(row) for row in fitted], [row["found"] for row in fitted])

    def line(rows: Sequence[Mapping[str, float]], of: str) -> tuple[float, float]:
        """Through milliseconds over a number, neither part below nothing."""
        terms = np.array([[1.0, row[of]] for row in rows])
        took = np.array([row["ms"] for row in rows])
        first, each = least_squares(terms / took[:, None], np.ones(len(took)))
        return float(first), float(each)

    spread = statistics.median(row["spread"] for row in measured["arithmetic"])
    arithmetic, meeting = line(measured["arithmetic"], "batch"), line(measured["meetings"], "machines")
    return Costs(ends, arithmetic, measured["row_here"], spread, meeting)


def foretold(costs: Costs, row: Mapping[str, Any]) -> dict[str, float]:
    """End -> milliseconds of a core a step, by the model."""
    traffic = traffic_of(row)
    found = {end: float(traffic.terms() @ costs.ends[end]) for end in ENDS}
    if "fitted" not in row:  # a whole step, with its arithmetic
        found["trainer"] += costs.arithmetic[0] + costs.arithmetic[1] * 1000 - costs.here * row["rows"]
    return found


def errors(costs: Costs, rows: Sequence[Mapping[str, Any]], ends: Sequence[str]) -> str:
    """`median, worst` of how far the sum of these ends is off."""
    off = []
    for row in rows:
        told = foretold(costs, row)
        off.append(abs(sum(told[end] for end in ends) / sum(row["found"][end] for end in ends) - 1))
    return f"{statistics.median(off):.0%}, {max(off):.0%}"


def machine_line(measured: Mapping[str, Any]) -> str:
    """What it was measured on."""
    busy = "; it had other work, so every cost is too high" if measured["load"] > 4 else ""
    return paragraph(f"Machine: {measured['machine']}. Load while measuring {measured['load']:.0f}{busy}.")


def paragraph(*parts: str) -> str:
    """One paragraph, or item of a list, in lines of 130 letters."""
    return textwrap.fill(" ".join(parts), 130, subsequent_indent="  " if parts[0] == "-" else "", break_on_hyphens=False)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """As Markdown, all columns but the first to the right."""
    return [
        "| " + " | ".join(head) + " |",
        "|" + "|".join(["---", *["---:"] * (len(head) - 1)]) + "|",
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]


def cell(job: Job, costs: Costs, trainers: Sequence[int] = ()) -> str:
    """Million triples/s (trainers + servers; what limits: what takes most of it)."""
    found = best(job, costs, trainers)
    limit = found.limit + (f": {found.most}" if found.most else "")
    seats = f"{found.trainers} + {found.servers}" if job.machines > 1 else str(found.trainers)
    return f"{found.rate / 1e6:.1f} ({seats}; {limit})"


def prices(costs: Costs) -> list[str]:
    """What one of each costs."""
    units = {"number, fp32": "1,000 numbers, fp32", "number, bf16": "1,000 numbers, bf16", "byte, CURVE": "1,000 bytes, CURVE"}
    rows = []
    for number, term in enumerate(TERMS):
        scale = 1e6 if term in units else 1000
        rows.append([units.get(term, term), *(f"{scale * costs.ends[end][number]:.2f}" for end in ENDS)])
    return table(["microseconds of a core for each", *(NAMES[end] for end in ENDS)], rows)


def breakdown(job: Job, costs: Costs) -> list[str]:
    """What a step costs whom."""
    shares = costs.shares(job)
    words = ["arithmetic", *dict.fromkeys(WORDS.values())]
    rows = []
    for word in words:
        cells = [sum(value for term, value in shares[end].items() if WORDS.get(term, term) == word) for end in ENDS]
        rows.append([word, *(f"{value:.2f}" for value in (*cells, sum(cells)))])
    sums = [sum(shares[end].values()) for end in ENDS]
    rows.append(["together", *(f"{value:.2f}" for value in (*sums, sum(sums)))])
    return table(["milliseconds of a core a step", *(NAMES[end] for end in ENDS), "all"], rows)


def options(costs: Costs) -> list[str]:
    """What each option brings on the most machines."""
    base = Job(MOST, **OPEN)
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("nothing", {}),
        ("`--transport_security curve`, as it comes", {"curve": True}),
        ("`--transport_dtype bf16`", {"dtype": "bf16"}),
        ("`--pull_ahead 2`", {"pull_ahead": 2}),
        ("`--pull_ahead 4`", {"pull_ahead": 4}),
        ("`--negatives local`", {"local": True}),
        ("`--batch_size 2000`", {"batch": 2000}),
        ("`--batch_size 4000`", {"batch": 4000}),
        ("`--force_sync_interval 1000`", {"interval": 1000}),
        ("a cut like Freebase's", {"cut": 0.087}),
        ("a cut as at random", {"cut": 1.0}),
        ("10 Gbit/s", {"gigabits": 10}),
        ("25 Gbit/s", {"gigabits": 25}),
        ("10 Gbit/s, `--transport_dtype bf16`", {"gigabits": 10, "dtype": "bf16"}),
        ("32 cores a machine", {"cores": 32}),
    )
    first = best(base, costs).rate
    rows = []
    for name, change in ways:
        job = replace(base, **change)
        rows.append([name, cell(job, costs), f"{best(job, costs).rate / first:.2f}"])
    return table([f"{MOST} machines, not encrypted, and", "million triples/s", "of the first"], rows)


def page(measured: Mapping[str, Any]) -> str:
    """docs/scaling.md."""
    costs = costs_of(measured)
    job = Job(MOST, **OPEN)
    far = needs(job)
    asked, curve, together = (best(replace(job, **change), costs, [14]) for change in ({}, {"curve": True}, {"pull_ahead": 4}))
    new = [row for row in measured["messages"] if not row["fitted"]]
    largest = max(row["machines"] for row in measured["messages"])
    old = [row for row in measured["messages"] if row["fitted"]]
    held = [
        [name, str(len(rows)), *(errors(costs, rows, ends) for ends in (*((end,) for end in ENDS), ENDS))]
        for name, rows in (
            ("fitted", old),
            (f"not fitted, up to {max(row['machines'] for row in old)} machines", [r for r in new if r["machines"] < largest]),
            (f"not fitted, {largest} machines", [row for row in new if row["machines"] == largest]),
            ("not fitted, whole steps", measured["whole"]),
        )
    ]
    assumed = (
        "All of this was measured on one host, over loopback: its system calls and copies are in the figures, a network card's "
        "interrupts and the way through switches are not. Every core is as fast as those measured while one or two were at work; "
        "that memory and clock keep up with 16 is assumed.",
        f"16 cores and 100 Gbit/s a machine, full duplex, without contention between machines; cores are divided as is best. "
        f"DistMult, dim 400, batch 1000, 200 negatives, and `--force_sync_interval {job.interval}`.",
        f"Of the triples, {job.cut:.0%} x (1 - 1/k) are cut on k machines: METIS's four parts in DGL-KE cut 24.7% of FB15k (and "
        "6.5% of Freebase). Negatives are drawn from all entities, so 1 - 1/k of them lie elsewhere; relations are dealt out "
        "evenly, and used as unevenly as FB15k's. Entities are so many that no two draws meet.",
        f"So a step has {far.pulled:.0f} different rows elsewhere with {MOST} machines, which travel once each way, and "
        f"{far.envelopes:.0f} envelopes there and back.",
        "Rows are asked for early enough, so nothing waits but at meetings. What a meeting takes was measured between 2 to 8 "
        "machines that shared two cores, so what they do at the same time is counted as done in turn: too long. All wait there "
        "for the slowest of all trainers, whose steps differ at random as measured; machines that are slower than others, "
        "evaluation and checkpoints are left out.",
        "Updates from so many trainers at once may need more steps for the same MRR; this page is about triples/s only.",
    )
    sentence = (
        f"{MOST} machines with 14 trainers each, not encrypted: {asked.rate / 1e6:.1f} million triples/s, with {asked.servers} "
        f"servers a machine ({curve.rate / 1e6:.1f} encrypted; {together.rate / 1e6:.1f} with the rows of 4 steps asked for "
        f"together). What limits: {asked.limit}{': ' + asked.most if asked.most else ''}. Meetings take {asked.met:.1%} of the "
        f"time, waiting at them for the slowest {asked.late:.1%}."
    )
    lines = [
        "# What more machines bring",
        "",
        paragraph(
            "**Computed, not measured: nobody has run this on 64 machines.** What a step costs in messages, rows and bytes was",
            "measured on one host, a model was fitted to that, and what it says of cases that it had not seen was held against",
            "measurements. `make bench-scaling` measures (benchmarks/results/scaling.md), `make scaling` writes this page.",
        ),
        "",
        paragraph(sentence),
        "",
        "Million triples a second, all machines together (trainers + servers of each; what limits: what takes most of it):",
        "",
        *table(
            ["machines", *(name for name, _ in COLUMNS)],
            [[str(n), *(cell(Job(n, **change), costs) for _, change in COLUMNS)] for n in COUNTS],
        ),
        "",
        "## What a step costs",
        "",
        f"A step on {MOST} machines, not encrypted:",
        "",
        *breakdown(job, costs),
        "",
        paragraph(
            "So much each term was found to cost (least squares of relative errors, none below nothing). An envelope is what a",
            "machine is told and asked at one moment, and its answer: pushes of some steps and a pull, which are a message each.",
        ),
        "",
        *prices(costs),
        "",
        paragraph(
            f"A step whose rows are all here takes {costs.arithmetic[0]:.2f} ms + {1000 * costs.arithmetic[1]:.2f} ms for 1,000",
            f"triples, {1000 * costs.here:.2f} us of it for each row; steps differ by {costs.spread:.0%} (standard deviation).",
            f"A meeting takes {costs.meeting[0]:.1f} ms + {costs.meeting[1]:.2f} ms for each machine.",
        ),
        "",
        "## What helps",
        "",
        *options(costs),
        "",
        paragraph(
            "What that costs elsewhere: rows of several steps at once are some steps older when they are used; negatives of its",
            "own machine alone cost accuracy, some models a lot ([cluster.md](cluster.md)); larger batches are fewer updates for",
            "the same triples; without encryption the network must be yours alone. More servers a machine are no more messages:",
            "any of them answers for all rows of its machine.",
        ),
        "",
        "## How far to trust it",
        "",
        "Errors of what the model says, median and worst, of each thread and of all together:",
        "",
        *table(["", "cases", *(NAMES[end] for end in ENDS), "all"], held),
        "",
        *(paragraph("-", each) for each in assumed),
        "",
        machine_line(measured),
    ]
    return "\n".join(lines) + "\n"


def results(measured: Mapping[str, Any]) -> str:
    """results/scaling.md: everything measured, and what the model says of it."""
    costs = costs_of(measured)
    rows = []
    for row in (*measured["messages"], *measured["whole"]):
        told = foretold(costs, row)
        kind = {True: "yes", False: "no", None: "no, whole step"}[row.get("fitted")]
        ways = [str(row["machines"]), str(row.get("servers", 1)), f"{row['rows']:.0f}", str(row.get("dim", 400))]
        ways += [str(row.get("pull_ahead", 1)), row.get("dtype", "fp32"), "CURVE" if row.get("curve") else ""]
        rows.append([*ways, kind, *(f"{row['found'][end]:.2f} ({told[end]:.2f})" for end in ENDS)])
    head = ["machines", "servers of each", "rows", "dim", "`--pull_ahead`", "wire", ""]
    lines = [
        "# Scaling: what was measured, and what the model says of it",
        "",
        "`make bench-scaling`. Milliseconds of a core a step; in brackets, by the model of docs/scaling.md.",
        "",
        *table([*head, "fitted", *(NAMES[end] for end in ENDS)], rows),
        "",
        *table(["batch, all rows here", "ms a step"], [[str(r["batch"]), f"{r['ms']:.2f}"] for r in measured["arithmetic"]]),
        "",
        *table(["machines", "ms a meeting"], [[str(r["machines"]), f"{r['ms']:.1f}"] for r in measured["meetings"]]),
        "",
        machine_line(measured),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both pages."""
    measured = json.loads((HERE / "results" / "scaling.json").read_text())
    (HERE / "results" / "scaling.md").write_text(results(measured), encoding="utf-8")
    (HERE.parent / "docs" / "scaling.md").write_text(page(measured), encoding="utf-8")
    print(page(measured))


if __name__ == "__main__":
    main()
