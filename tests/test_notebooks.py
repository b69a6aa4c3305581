"""The notebooks run from top to bottom, as they are stored: without outputs, and without what a script does not know."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patience
from tests.test_examples import EXAMPLES, commands, launched, ours, output_of

nbformat = pytest.importorskip("nbformat")
nbconvert = pytest.importorskip("nbconvert")
nbclient = pytest.importorskip("nbclient")

FOLDER = EXAMPLES / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
ENCODERS = EXAMPLES / "graph_encoders" / "graph_encoders.ipynb"


@pytest.mark.parametrize("path", [*(FOLDER / f"{name}.ipynb" for name in NAMES), ENCODERS], ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_what_a_run_leaves(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
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


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is this Python, and says so nowhere: its description is written for this test alone."""
    folder = tmp_path / "jupyter" / "kernels" / "python3"
    folder.mkdir(parents=True)
    words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": words, "display_name": "Python 3", "language": "python"}))
    for variable, value in {"JUPYTER_PATH": tmp_path / "jupyter", "JUPYTER_RUNTIME_DIR": tmp_path / "runtime"}.items():
        monkeypatch.setenv(variable, str(value))
    for variable, value in ours().items():
        monkeypatch.setenv(variable, value)


def executed(path: Path, work: Path, seconds: float = 120) -> Any:
    """A notebook with what its cells have put out, in the folder `work`."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(work)}}
    nbclient.NotebookClient(notebook, timeout=patience(seconds), kernel_name="python3", resources=where).execute()
    return notebook


def kinds_of(notebook: Any) -> set[str]:
    """The MIME types of all outputs."""
    return {kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("kernel")
def test_the_notebooks_run_one_after_another(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name in NAMES:
        kinds = kinds_of(executed(FOLDER / f"{name}.ipynb", work))
        assert name.startswith("2") or "image/png" in kinds, f"{name} draws nothing"
    assert {path.name for path in work.glob("*.png")} == {"graphsage.png", "embeddings.png"}
    assert {path.name for path in (work / "data").glob("*.png")} == {"cut.png", "balance.png"}


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("kernel")
def test_graph_encoders_with_attributes(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    notebook = executed(ENCODERS, work, 200)
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    found = {way: float(mrr) for way, mrr in re.findall(r"^(.*): MRR (0\.\d+)$", printed, re.MULTILINE)}
    assert set(found) == {"alone", "encoder", "attributes alone", "attributes and rows"}
    assert min(found["encoder"], found["attributes and rows"]) > found["alone"] > 0
    assert (work / "encoders.png").exists() and "image/png" in kinds_of(notebook)
    assert "robot_dog.n.01" in (work / "grown" / "entities.tsv").read_text()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_notebooks_run_as_scripts_on_two_machines(tmp_path: Path) -> None:
    scripts = [script_of(name, tmp_path) for name in NAMES]
    _, err, code = output_of([sys.executable, scripts[0].name], tmp_path, os.environ | ours() | {"MPLBACKEND": "Agg"})
    assert code == 0, err
    printed = [launched(script.name, tmp_path) for script in scripts]
    for text in printed[2:]:
        assert float(re.findall(r"validation accuracy (\S+)$", text, re.MULTILINE)[-1]) > 0.8
    assert commands(FOLDER / "README.md")[0][-1] == "python3 3_graphsage.py"
