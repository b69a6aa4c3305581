"""What shells complete, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kgdist.cli import completion
from kgdist.options.built_in import BUILT_IN
from tests.patience import patience

pytest.importorskip("shtab")
CASES = {
    "kgdist-train --model_name Tr": {name for name in BUILT_IN if name.startswith("Tr")},
    "kgdist-train --lr 0.1 --neg_deg": {"--neg_deg_sample", "--neg_deg_sample_eval"},
    "kgdist-eval --rank_ties o": {"optimistic"},
    "kgdist-train --dataset wn1": {"wn18", "wn18rr"},
    "kgdist dist": {"dist-train"},
    "kgdist train --optim": {"--optimizer"},
    "kgdist completion z": {"zsh"},
    "kgdist-tune --tri": {"--trials"},
    "kgdist-tune --neg_adv": {"--neg_adversarial_sampling"},
}
BASH = """
COMP_WORDS=($1); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMPREPLY=()
name=${COMP_WORDS[0]}
function=$(complete -p "$name" | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" "$name" "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """What `kgdist completion` prints, in a file."""
    assert completion.main([shell]) == 0
    file = folder / f"kgdist.{shell}"
    file.write_text(capsys.readouterr().out)
    return file


def run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=patience(60), check=True).stdout


def test_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script("bash", tmp_path, capsys)
    for line, wanted in CASES.items():
        assert set(run("bash", "-c", f". {file}\n{BASH}", "bash", line).split()) == wanted, line


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script("fish", tmp_path, capsys)
    for line, wanted in CASES.items():
        found = run("fish", "--no-config", "-c", f"source {file}; complete -C '{line}'").splitlines()
        assert {each.split("\t")[0] for each in found} == wanted, line


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_knows_all_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script("zsh", tmp_path, capsys)
    start = f'autoload -Uz compinit && compinit -u -d {tmp_path / "dump"}; eval "$(cat {file})"; print -l ${{(k)_comps}}'
    assert {"kgdist", "kgdist-train", "kgdist-dist-train", "kgdist-tune"} <= set(run("zsh", "-f", "-c", start).split())
