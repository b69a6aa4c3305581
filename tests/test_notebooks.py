"""The notebooks run from top to bottom, as they are stored: without outputs, and without what a script does not know."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.patience import patience
from tests.test_examples import EXAMPLES, commands, launched, ours, output_of

nbformat = pytest.importorskip("nbformat")
nbconvert = pytest.importorskip("nbconvert")
nbclient = pytest.importorskip("nbclient")

FOLDER = EXAMPLES / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_what_a_run_leaves(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
            assert not any(line.lstrip().startswith(("%", "!")) for line in cell.source.splitlines()), "scripts know no magics"


def script_of(name: str, folder: Path) -> Path:
    """The notebook as a script, as nbconvert makes it."""
    text, _ = nbconvert.PythonExporter().from_filename(str(FOLDER / f"{name}.ipynb"))
    made = folder / f"{name}.py"
    made.write_text(text, encoding="utf-8")
    return made


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_notebooks_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel is this Python, and says so nowhere: its description is written for this test alone.
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": words, "display_name": "Python 3", "language": "python"}))
    for variable, value in {"JUPYTER_PATH": tmp_path / "jupyter", "JUPYTER_RUNTIME_DIR": tmp_path / "runtime"}.items():
        monkeypatch.setenv(variable, str(value))
    for variable, value in ours().items():
        monkeypatch.setenv(variable, value)
    work = tmp_path / "work"
    work.mkdir()
    for name in NAMES:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        client = nbclient.NotebookClient(
            notebook, timeout=patience(120), kernel_name="python3", resources={"metadata": {"path": str(work)}}
        )
        client.execute()
        kinds = {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
        assert name.startswith("2") or "image/png" in kinds, f"{name} draws nothing"
    assert {path.name for path in work.glob("*.png")} == {"graphsage.png", "embeddings.png"}
    assert {path.name for path in (work / "data").glob("*.png")} == {"cut.png", "balance.png"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_notebooks_run_as_scripts_on_two_machines(tmp_path: Path) -> None:
    scripts = [script_of(name, tmp_path) for name in NAMES]
    _, err, code = output_of([sys.executable, scripts[0].name], tmp_path, os.environ | ours() | {"MPLBACKEND": "Agg"})
    assert code == 0, err
    printed = [launched(script.name, tmp_path) for script in scripts]
    for text in printed[2:]:
        assert float(re.findall(r"validation accuracy (\S+)$", text, re.MULTILINE)[-1]) > 0.8
    assert commands(FOLDER / "README.md")[0][-1] == "python3 3_graphsage.py"
