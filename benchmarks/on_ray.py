"""Two machines that Ray has placed beside the same over SSH: `make bench-ray`.

FB15k, TransE_l2 with the published options, in turn: over a loopback sshd, and on two raylets of this host. Both ways have the
same address, so that connections are encrypted in both or in none. Then what a killed actor costs: seconds until the job goes on.
And R-GCN by two workers of our own launcher beside Ray Train's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datasets import prepare
from dist_accuracy import DATASET, call, partition
from roofs import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.faults.sshd import Sshd, free_port, make_key
from tests.runtime.rays import TOKEN, cluster_of, processes

HERE = Path(__file__).parent
MODEL, PARTS = "TransE_l2", 2


def words_of(root: Path, out: Path, steps: int) -> list[str]:
    """What both ways are told."""
    shutil.rmtree(out, ignore_errors=True)
    folders = ["--path", str(root), "--data_path", str(partition(root, PARTS)), "--save_path", str(out)]
    ends = ["--test", "--no_save_emb", "--max_step", str(steps)]
    return ["--model_name", MODEL, "--dataset", DATASET, "--preset", *folders, *ends]


def trained(words: list[str], out: Path) -> dict[str, float]:
    """Triples a second while it trains, MRR, seconds of the whole command."""
    began = time.perf_counter()
    text = call("dist_train", *words)
    (folder,) = out.iterdir()
    rate = re.search(r"triples, ([\d,]+) triples/s", text)
    assert rate is not None, text
    metrics = json.loads((folder / "test.json").read_text())["all"]["realistic"]
    return {"rate": float(rate[1].replace(",", "")), "mrr": metrics["mrr"], "seconds": time.perf_counter() - began}


def wait(done: Callable[[], bool], log: Path) -> None:
    """Until it is done. Raises TimeoutError after two minutes, with what the job has said."""
    deadline = time.monotonic() + 120
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(log.read_text())
        time.sleep(0.02)


def back(words: list[str], out: Path) -> float:
    """Seconds from the death of an actor until the job has gone on."""
    words = [word for word in words if word not in ("--test", "--no_save_emb")]
    command = [sys.executable, "-m", "kgdist.cli.dist_train", *words, "--checkpoint_interval", "200", "--max_step", "1000000"]
    log = out.parent / "killed.log"
    with log.open("w") as to:
        job = subprocess.Popen(command, stdout=to, stderr=to)
    try:
        wait(lambda: len(list(out.glob("*/machine_*/ckpt-*"))) >= PARTS, log)
        os.kill(processes(b"ray::Keeper")[0], signal.SIGKILL)
        began = time.perf_counter()
        wait(lambda: "resumed" in log.read_text(), log)
        return time.perf_counter() - began
    finally:
        job.send_signal(signal.SIGINT)
        job.wait(120)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--steps", type=int, default=4000, help="of each trainer")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench-ray: asked to end"))  # so that the sshd and the raylets end as well
    root = options.data.resolve()
    prepare(DATASET, root)
    os.environ.update(TOKEN)
    folder = root / "on_ray"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found: dict[str, list[dict[str, Any]]] = {"ssh": [], "ray": []}
    with cluster_of(0, 1, 1) as address:
        host = address.rpartition(":")[0]
        sshd = Sshd(folder / "sshd", user_key=make_key(folder / "key"), address=host).start()
        (folder / "ip_config.txt").write_text(f"{host} {free_port(host)}\n{host} {free_port(host)}\n")
        reach = ["--ssh_port", str(sshd.port), "--ssh_key", str(sshd.user_key), "--remote_python", sys.executable]
        ways = {
            "ssh": ["--ip_config", str(folder / "ip_config.txt"), "--accept_new_host_keys", *reach],
            "ray": ["--backend", "ray", "--ray_address", address],
        }
        try:
            for _ in range(options.rounds):
                for way, more in ways.items():
                    out = folder / way
                    found[way].append(trained([*words_of(root, out, options.steps), *more], out))
                    print(way, found[way][-1], flush=True)
            out = folder / "killed"
            killed = back([*words_of(root, out, options.steps)[:-2], *ways["ray"]], out)
            train = workers(root, folder, address, options.rounds)
        finally:
            sshd.stop()
    text = page(found, killed, train, options.steps)
    (HERE / "results" / "ray.md").write_text(text, encoding="utf-8")
    print(text)


def encoder_words(root: Path, out: Path) -> list[str]:
    """What both launchers of workers are told."""
    shutil.rmtree(out, ignore_errors=True)
    parts = root / "edges" / DATASET
    if not parts.exists():
        words = [
            "--dataset",
            DATASET,
            "--data_path",
            str(root),
            "-k",
            str(PARTS),
            "--edges",
            "--expand",
            "2",
            "--out",
            str(parts),
        ]
        call("partition", *words, "--quiet")
    folders = ["--path", str(root), "--data_path", "edges", "--save_path", str(out), "--dataset", DATASET]
    sizes = ["--encoder", "rgcn", "--encoder_dim", "32", "--hidden_dim", "64", "--model_name", "DistMult", "--gamma", "10"]
    steps = ["--batch_size", "4096", "--max_step", "60", "--log_interval", "10", "--checkpoint_interval", "20", "--seed", "0"]
    return [*folders, *sizes, *steps, "--num_thread", "1", "--quiet"]


def encoded(words: list[str], out: Path) -> dict[str, Any]:
    """Triples a second (median of the log), losses, and the seconds of the command besides its steps."""
    began = time.perf_counter()
    call("dist_train", *words)
    seconds = time.perf_counter() - began
    (file,) = out.glob(f"DistMult_{DATASET}_*/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "train"]
    trained = sum(10 * PARTS * 4096 / row["triples_per_second"] for row in rows)
    rate = statistics.median(row["triples_per_second"] for row in rows[1:])
    return {"rate": rate, "losses": [row["loss"] for row in rows], "rest": seconds - trained}


def workers(root: Path, folder: Path, address: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Two workers of an encoder by either launcher on the cluster, in turn."""
    found: dict[str, list[dict[str, Any]]] = {"ray": [], "ray-train": []}
    for _ in range(rounds):
        for way in found:
            out = folder / f"encoder-{way}"
            words = [*encoder_words(root, out), "--backend", way, "--ray_address", address]
            found[way].append(encoded(words, out))
            print(way, found[way][-1], flush=True)
    return found


def page(found: dict[str, list[dict[str, Any]]], killed: float, train: dict[str, list[dict[str, Any]]], steps: int) -> str:
    """The tables."""

    def median(way: str, key: str) -> float:
        return statistics.median(each[key] for each in (found | {f"{name} ": rows for name, rows in train.items()})[way])

    ratio = statistics.median(ray["rate"] / ssh["rate"] for ray, ssh in zip(found["ray"], found["ssh"], strict=True))
    epoch = statistics.median(own["rate"] / theirs["rate"] for own, theirs in zip(*train.values(), strict=True))
    same = all(each["losses"] == train["ray"][0]["losses"] for rows in train.values() for each in rows)
    lines = [
        "# Machines that Ray places, beside SSH",
        "",
        f"{DATASET}, {MODEL} with the published options, {steps:,} steps of each of two trainers; two machines on",
        "this host, a server and a trainer on each, over a loopback sshd and on two raylets, in turn;",
        f"medians of {len(found['ray'])} rounds. Ray runs processes at a lower priority (`worker_niceness` 15), with tokens.",
        "",
        "| | ssh | ray | |",
        "|---|---:|---:|---:|",
        f"| triples/s | {median('ssh', 'rate'):,.0f} | {median('ray', 'rate'):,.0f} | {ratio:.2f} x |",
        f"| MRR, filtered, all entities | {median('ssh', 'mrr'):.4f} | {median('ray', 'mrr'):.4f} | "
        f"{median('ray', 'mrr') - median('ssh', 'mrr'):+.4f} |",
        f"| the whole command | {median('ssh', 'seconds'):.1f} s | {median('ray', 'seconds'):.1f} s | |",
        "",
        f"After an actor was killed the job had gone on at its last checkpoint in {killed:.1f} s.",
        "",
        f"R-GCN and DistMult on {DATASET} by two workers of one thread, 60 steps of 4,096 triples each, started by our own",
        f"launcher and by Ray Train; losses: {'the same to the last digit' if same else 'NOT the same'}. The rest is all",
        "but steps: cluster, placement, libraries, partitions, checkpoints every 20 steps, encoding all entities, saving.",
        "",
        "| | own launcher | Ray Train | |",
        "|---|---:|---:|---:|",
        f"| triples/s | {median('ray ', 'rate'):,.0f} | {median('ray-train ', 'rate'):,.0f} | an epoch takes {epoch:.2f} x |",
        f"| the rest | {median('ray ', 'rest'):.1f} s | {median('ray-train ', 'rest'):.1f} s | |",
        "",
        f"Command: `make bench-ray`. Machine: {machine()}, Ray {version('ray')}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
