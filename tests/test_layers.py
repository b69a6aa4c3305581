"""The layers of the package: a file imports its own layer or lower ones, and never in a circle; some libraries live in few files.

Imports inside functions count like the others, so that a circle cannot hide. A new file or folder is put into the table here, as
low as what it imports allows.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.patience import patience

PACKAGE = Path(__file__).resolve().parents[1] / "kgdist"

# A name with a slash is a folder with all its files; "__init__" is the package itself, which hands on the Python API.
LAYERS = (
    ("version", "base/"),
    ("options/", "kernels/"),
    ("data/", "graphs/", "sampling/", "dataloading/", "nn/", "attributes/", "models/"),
    ("partition/", "kvstore/"),
    ("runs/",),
    ("training/", "evaluation/", "predict/"),
    ("runtime/",),
    ("distributed/", "exchange/", "report/", "serve/", "tuning/"),
    ("__init__", "api/"),
    ("cli/",),
)

# library -> the files that may import it
HOMES = {
    "filelock": ("base/files",),
    "argparse": ("options/parse", "cli/"),
    "yaml": ("options/configfile",),
    "numba": ("kernels/",),
    "pyarrow": ("data/", "attributes/", "exchange/", "predict/answers", "api/results"),
    "subprocess": ("runtime/",),
    "pymetis": ("partition/metis",),
    "zmq": ("kvstore/server", "kvstore/client", "kvstore/wire", "runtime/doctor"),
    "paramiko": ("runtime/channels/ssh",),
    "ray": ("runtime/ray_session", "runtime/ray_agents", "runtime/ray_train"),
    "plotly": ("report/",),
    "jinja2": ("report/",),
    "faiss": ("predict/index",),
    "optuna": ("tuning/study",),
    "pyoxigraph": ("data/read/rdf",),
    "shtab": ("cli/completion",),
    "starlette": ("serve/app",),
    "uvicorn": ("serve/listener",),
    "scipy": ("graphs/convert",),
    "networkx": ("graphs/convert",),
    "torch_geometric": ("graphs/convert", "nn/"),
    "threadpoolctl": ("attributes/",),
    "fsspec": ("runtime/storage",),
    "sentence_transformers": ("attributes/text_model",),
    "transformers": ("attributes/text_model",),
}


# Imports stand at the top of a file. Inside functions are those of packages that take long to import, or may not be there ...
LATE = {
    "torch": "seconds",
    "numba": "half a second",
    "llvmlite": "numba's",
    "pyarrow": "a large library",
    "scipy": "only for those who have it",
    "networkx": "only for those who have it",
    "torch_geometric": "extra gnn",
    "tqdm": "--help needs none",
    "filelock": "few need it",
    "pymetis": "few need it",
    "zmq": "doctor says that it is missing",
    "numpy": "doctor says that it is missing",
    "pandas": "only for those who have it",
    "sklearn": "extra gnn",
    "threadpoolctl": "sklearn's",
    "fsspec": "few need it",
    "shtab": "extra completion",
    "faiss": "extra index",
    "ray": "extra ray, and seconds",
    "sentence_transformers": "extra text",
    "transformers": "extra text",
    "jinja2": "extra viz",
    "plotly": "extra viz",
    "pyoxigraph": "extra rdf",
}
# ... and of files of ours that need such a package: where, and which.
LATE_FILES = {
    "cli/": "torch, which --help and refusals do without",
    "api/": "torch, as far as `import kgdist` goes",
    "data/": "pyarrow, which a cached graph does without",
    "distributed/context": "torch, which scripts may do without",
    "runtime/agent/": "torch, while an agent gives signs of life",
    "runtime/cluster/connect": "paramiko, which one machine does without",
    "runtime/copy/send": "paramiko",
    "runtime/doctor": "any, which it says is missing",
    "runtime/processes/worker": "numba, while its owner prepares the job",
    "training/loop": "numba, which steps of autograd do without",
}


def place(file: str) -> str:
    """`kgdist.data.dataset` is written `data/dataset`, and the package of a folder like the folder, `data/`."""
    inside = file.removeprefix("kgdist").removeprefix(".").replace(".", "/")
    return inside + "/" if inside and (PACKAGE / inside).is_dir() else inside or "__init__"


def belongs(name: str, homes: Iterable[str]) -> bool:
    """Whether the file `name` is one of `homes`, or in a folder that is."""
    return any(name == home or (home.endswith("/") and name.startswith(home)) for home in homes)


def layer(name: str) -> int | None:
    """The layer of the file `name`, or None when the table does not have it."""
    return next((number for number, homes in enumerate(LAYERS) if belongs(name, homes)), None)


def imports(source: str) -> set[str]:
    """Full names of all that `source` imports; `from kgdist.data import x` gives `kgdist.data.x` when that is a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written with the full name"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_file = PACKAGE.parent.joinpath(*inner.split(".")).with_suffix(".py").exists()
                found.add(inner if is_file else str(node.module))
    return found


def upward(name: str, imported: Iterable[str]) -> list[str]:
    """What the file `name` must not import, of `imported` files."""
    own = layer(name)
    return [other for other in imported if own is None or (layer(other) or 0) > own]


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    """One circle of `graph` (file -> imported files) as the files along it, or None."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for other in sorted(graph.get(name, ())):
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return None

    return next((found for name in sorted(graph) if (found := visit(name, []))), None)


def named(path: Path) -> str:
    """A file of the package by its place."""
    return place(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"))


PATHS = {named(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache  # read by the tests, and not by every process that looks for tests
def files() -> dict[str, set[str]]:
    """Every file of the package -> all that it imports."""
    return {name: imports(path.read_text(encoding="utf-8")) for name, path in PATHS.items()}


@functools.cache
def graph() -> dict[str, set[str]]:
    """Every file of the package -> the others that it imports."""
    ours = {name: {place(other) for other in imported if other.split(".")[0] == "kgdist"} for name, imported in files().items()}
    return {name: imported - {name} for name, imported in ours.items()}


@pytest.mark.parametrize("name", PATHS)
def test_a_file_imports_its_own_layer_or_lower_ones(name: str) -> None:
    assert layer(name) is not None, f"{name}: in no layer; add it to LAYERS in tests/test_layers.py, as low as its imports allow"
    for other in upward(name, graph()[name]):
        pytest.fail(f"{name} (layer {layer(name)}) imports {other} (layer {layer(other)}): move what it needs down, or itself up")


def test_the_picture_of_the_layers_is_this_table() -> None:
    page = PACKAGE.parent.joinpath("docs", "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^ (\d)  ((?:\w+ +)+?) {2,}\S", page, flags=re.MULTILINE)
    expected = [{home.strip("/") for home in homes} - {"__init__"} for homes in LAYERS]
    assert [(int(number), set(names.split())) for number, names in reversed(drawn)] == list(enumerate(expected))


def late_imports(source: str) -> set[str]:
    """Full names of what is imported inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            for each in ast.walk(node):
                found |= {alias.name for alias in each.names} if isinstance(each, ast.Import) else set()
                found |= {str(each.module)} if isinstance(each, ast.ImportFrom) else set()
    return found


def test_imports_inside_functions_say_what_they_wait_for() -> None:
    packages, homes = set(), set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        for late in late_imports(path.read_text(encoding="utf-8")):
            package = late.partition(".")[0]
            home = next((each for each in LATE_FILES if belongs(name, (each,))), None)
            assert package in LATE or (package == "kgdist" and home is not None), (
                f"{name}: {late} belongs at its top, or into LATE"
            )
            packages.add(package)
            homes.add(home if package == "kgdist" else None)
    assert packages - {"kgdist"} == LATE.keys() and homes - {None} == LATE_FILES.keys()


def test_no_imports_go_round() -> None:
    assert circle(graph()) is None


@pytest.mark.parametrize("library", HOMES)
def test_a_library_stays_where_it_is_at_home(library: str) -> None:
    users = {name for name, imported in files().items() if any(other.split(".")[0] == library for other in imported)}
    strangers = {name for name in users if not belongs(name, HOMES[library])}
    assert not strangers, f"{library} is imported by {sorted(strangers)}, but belongs to {HOMES[library]}"


PACKAGES = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)


def test_the_map_in_the_readme_has_every_folder() -> None:
    text = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    chart = text[text.index("<!-- map: begin -->") : text.index("<!-- map: end -->")]
    named = re.findall(r"^ +(\w+/|\w+\.py) +\S", chart, re.MULTILINE)
    there = [f"{path.name}/" for path in PACKAGES] + [path.name for path in PACKAGE.glob("*.py")]
    assert sorted(named) == sorted(there), "the map in README.md names every folder of the package, with a line on what it is"


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda path: path.name)
def test_a_folder_says_what_its_files_are(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")), clean=False) or ""
    named = re.findall(r"^(\w+\.py) +\S", said, re.MULTILINE)
    there = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert named == sorted(there), f"{folder.name}/__init__.py names its files, each with a line on what it is"


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, kgdist; print(*sorted({'torch', 'numpy', 'numba', 'pyarrow', 'yaml', 'tqdm'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, timeout=patience(60), check=True
    )
    assert done.stdout.split() == []


def test_the_rules_see_what_they_forbid() -> None:
    assert imports("def f():\n    from kgdist.data import dataset\n    import zmq.green\n") == {
        "kgdist.data.dataset",
        "zmq.green",
    }
    assert upward("base/files", ["base/errors", "training/loop", "data/dataset"]) == ["training/loop", "data/dataset"]
    assert upward("cli/train", ["runtime/local", "base/errors"]) == []
    assert layer("nobody") is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == ["a", "b", "c", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
