"""What both soaks are asked, and where they ran."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys

import torch

import kgdist
from kgdist.base.machine import processor


def asked(name: str, doc: str | None, seconds: float) -> argparse.Namespace:
    """`--seconds`, which $KGDIST_SOAK_SECONDS says too, and `--seed`; SIGTERM ends the process in order from now on."""
    parser = argparse.ArgumentParser(prog=f"make {name}", description=doc)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("KGDIST_SOAK_SECONDS", seconds)))
    parser.add_argument("--seed", type=int, default=0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return parser.parse_args()


def machine(*more: str) -> str:
    """The processor, its load and versions, `more` among them, as the last line of a report."""
    here = f"{processor()[0]}, {len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[2]:.0f}"
    python, torch_version = platform.python_version(), torch.__version__.split("+")[0]
    return (
        ", ".join([f"Machine: {here}", f"Python {python}", f"kgdist {kgdist.__version__}", f"torch {torch_version}", *more]) + "."
    )
