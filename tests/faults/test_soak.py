"""A minute of `make soak`: faults and attacks at random under a real job, after which everything is exact and nothing is left."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.jobs import ROOT


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_minute_of_soaking() -> None:
    words = [sys.executable, "-m", "tests.soak", "--seconds", "60"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-20000:]
    assert "audits" in done.stdout and "nothing was confirmed that was not" in done.stdout.replace("\n  ", " ")
