"""What more machines bring, computed from measured costs: writes docs/scaling.md. `make scaling`, after `make bench-kvstore`.

Nothing is trained here. The costs of a step are those in results/store_train.json; how much of it is remote follows from the
number of machines; the rest are assumptions, which the page lists.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
COUNTS = (1, 2, 4, 8, 16, 32, 64)
CORES = 16
NETWORKS = ((10, "fp32"), (25, "fp32"), (25, "bf16"), (100, "fp32"))  # Gbit/s of each machine, each way
CUT = 0.3  # of the triples, when there are many partitions
HEADER = 8 + 4  # bytes of a row besides its numbers, both ways: its id twice, its square


class Costs:
    """Of one step of a trainer, in seconds of a core; a remote row costs its trainer and its server."""

    def __init__(self, found: dict[str, dict[str, list[float]]], rows: float) -> None:
        work = found["work"]
        self.own = work["own memory"][0]
        self.rows = rows
        self.trainer, self.server = {}, {}
        for dtype, name in (("fp32", "store, one batch ahead"), ("bf16", "store, bf16")):
            self.trainer[dtype] = (work[name][0] - self.own) / rows
            self.server[dtype] = work[name][1] / rows


def remote(count: int, batch: int, relations: int, entities: float) -> float:
    """Rows of a step that lie on other machines: heads of cut triples, and what is drawn or dealt out evenly."""
    away = 1 - 1 / count
    cut = CUT * (1 - 1 / count)
    heads, drawn = batch, entities - 2 * batch
    return heads * cut + (drawn + relations) * away


def best(costs: Costs, count: int, gigabits: float, dtype: str, batch: int, dim: int) -> tuple[float, str, int]:
    """(triples/s of all machines, what limits them, trainers of each machine) at the best division of the cores."""
    relations = 267
    rows = remote(count, batch, relations, costs.rows - relations)
    wire = rows * (dim * (4 if dtype == "fp32" else 2) + HEADER)  # bytes of a step, each way
    found = []
    for trainers in range(1, CORES + (count == 1)):
        servers = CORES - trainers
        step = costs.own + rows * costs.trainer[dtype]
        speeds = {"trainers": trainers / step}
        if count > 1:
            speeds["servers"] = servers / (rows * costs.server[dtype])
            speeds["network"] = gigabits * 1e9 / 8 / (2 * wire)  # own pulls come in, and pushes of others; the same goes out
        limit = min(speeds, key=lambda name: speeds[name])
        found.append((speeds[limit] * batch * count, limit, trainers))
    return max(found)


def paragraph(*parts: str) -> str:
    """One paragraph, or item of a list, in lines of 130 letters."""
    return textwrap.fill(" ".join(parts), 130, subsequent_indent="  " if parts[0] == "-" else "")


def main() -> None:
    """Write the page."""
    measured = json.loads((HERE / "results" / "store_train.json").read_text())
    costs, batch, dim = Costs(measured, measured["rows"]), measured["batch"], measured["dim"]
    far = remote(64, batch, 267, costs.rows - 267)
    lines = [
        "# What more machines bring",
        "",
        paragraph(
            "A simulation from measured costs, not a measurement: nobody has run this on 64 machines. Written by",
            "`make scaling` from `benchmarks/results/store_train.json`.",
        ),
        "",
        paragraph(
            f"Measured on {measured['machine']}, in milliseconds of a core and step (DistMult, dim {dim}, batch {batch},",
            f"200 negatives): a step with all rows in its own memory {1000 * costs.own:.2f}. A row that lies elsewhere adds, in",
            "microseconds of a core:",
        ),
        "",
        "| | trainer | server |",
        "|---|---:|---:|",
    ]
    for dtype in ("fp32", "bf16"):
        lines.append(f"| {dtype} | {1e6 * costs.trainer[dtype]:.2f} | {1e6 * costs.server[dtype]:.2f} |")
    assumptions = (
        (
            f"{CORES} cores a machine, divided between trainers and servers as is best; every core is as fast as those measured,",
            "and memory keeps up with all of them.",
        ),
        (
            f"Of the heads of a batch, {CUT:.0%} x (1 - 1/k) lie elsewhere (METIS cuts so many where there are communities);",
            "negatives are drawn from all entities and relations dealt out evenly, so of both 1 - 1/k lie elsewhere. With",
            "`--negatives local` only the relations and the cut would.",
        ),
        (
            f"A step has {costs.rows:.0f} different rows, {far:.0f} of them elsewhere with 64 machines. Each travels once",
            "each way, and the network carries its nominal rate, full duplex, with no contention between machines.",
        ),
        ("Waiting is hidden: a step's rows are asked for one step ahead. Evaluation, checkpoints and stragglers are left out.",),
        ("Asynchronous updates from so many trainers may need more steps for the same MRR; this page is about triples/s only.",),
    )
    lines += ["", "Assumptions:", "", *(paragraph("-", *each) for each in assumptions), ""]
    names = [f"{gigabits} Gbit/s, {dtype}" for gigabits, dtype in NETWORKS]
    lines += ["Million triples a second, all machines together (trainers of each machine; what limits):", ""]
    lines += ["| machines | " + " | ".join(names) + " |", "|---:|" + "---:|" * len(names)]
    for count in COUNTS:
        cells = []
        for gigabits, dtype in NETWORKS:
            rate, limit, trainers = best(costs, count, gigabits, dtype, batch, dim)
            cells.append(f"{rate / 1e6:.2f} ({trainers}; {limit})")
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    reading = (
        "Read it so: from one machine to two, the rows that now lie elsewhere cost cores, and a slow network limits; from",
        "then on the share that lies elsewhere hardly grows, so the speed grows with the machines. More cores a machine need",
        "more network a machine; `--transport_dtype bf16` halves what must travel.",
    )
    lines += ["", paragraph(*reading), ""]
    (HERE.parent / "docs" / "scaling.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
