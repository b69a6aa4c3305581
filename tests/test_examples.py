"""The examples do what their pages say: every command of a page is run as it stands there, on a copy of the folder."""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import kgdist
from kgdist.options import parse
from tests.faults.sshd import free_port
from tests.own_models import as_before, forget
from tests.patience import patience
from tests.runtime.rays import TOKEN, cluster_of

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def commands(page: Path) -> list[list[str]]:
    """The kgdist commands in the blocks of a page, as words."""
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("kgdist-")]


def run(words: list[str]) -> int:
    """Call the entry point of a command in this process; returns its exit code."""
    main = importlib.import_module(f"kgdist.cli.{words[0].removeprefix('kgdist-')}").main
    return int(main(words[1:]))


def test_train_own_triples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLES / "train_own_triples", folder, ignore=shutil.ignore_patterns(".kgdist", "runs"))
    monkeypatch.chdir(folder)
    train, evaluate = commands(folder / "README.md")

    assert run(train) == 0
    metrics = json.loads((folder / "runs/TransE_l2_borders_0/test.json").read_text())
    assert metrics["sides"]["tail"]["realistic"]["mrr"] > 0.6  # chance is below 0.1
    capsys.readouterr()

    assert run(evaluate) == 0
    printed = capsys.readouterr().out
    assert "Test average MRR :" in printed
    assert "raw" in printed


def test_custom_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By its commands, and the same answers from Python."""
    for name in ("train_own_triples", "custom_model"):
        shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns(".kgdist", "runs"))
    monkeypatch.chdir(tmp_path / "custom_model")
    train, evaluate, predict = commands(Path("README.md"))
    (block,) = re.findall(r"^```python\n(.*?)^```", Path("README.md").read_text(), re.MULTILINE | re.DOTALL)
    with as_before():
        assert run(train) == 0
        metrics = json.loads(Path("runs/QuatE_borders_0/test.json").read_text())
        assert metrics["all"]["realistic"]["mrr"] > 0.25  # chance is below 0.1
        assert run(evaluate) == 0
        assert json.loads(Path("runs/QuatE_borders_0/test.json").read_text())["all"] == metrics["all"]
        capsys.readouterr()
        assert run(predict) == 0
        answers = [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:4]]
        forget()
        assert run([word for word in evaluate if word not in ("--model_file", "quate.py")]) == 2
        assert "--model_file" in capsys.readouterr().err
    Path("block.py").write_text(block)
    out, err, code = output_of([sys.executable, "block.py"], Path.cwd(), os.environ | ours())
    assert code == 0, err
    assert len(answers) == 3 and [line.split()[2] for line in out.splitlines()[1:4]] == answers


def ours() -> dict[str, str]:
    """What lets a process of its own find this kgdist."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


def test_python_api(tmp_path: Path) -> None:
    script = EXAMPLES / "python_api" / "tour.py"
    out, err, code = output_of([sys.executable, str(script)], tmp_path, os.environ | ours())
    assert code == 0, err
    assert re.search(r"^step 200 of 2000: loss 0\.\d+$", out, re.MULTILINE)
    assert re.search(r"^dan +child_of +fay +-?\d+\.\d+ +1$", out, re.MULTILINE)
    assert (tmp_path / "ckpts").is_dir() and (tmp_path / "data").is_dir()


GNN = {
    "graphsage": ("train_dist.py --num_epochs 4 --batch_size 64 --lr 0.01", 0.8),
    "relational": ("train.py --num_people 200 --num_epochs 12", 0.5),
    "pyg_model": ("train.py --num_nodes 1000 --num_epochs 8", 0.8),
    "link_prediction": ("train.py --num_nodes 600 --num_epochs 3 --lr 0.01", None),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in GNN])
def test_graph_networks(name: str, tmp_path: Path) -> None:
    """Each script of a folder, smaller; four classes, so that chance is a quarter."""
    folder, (words, least) = tmp_path / name, GNN[name]
    shutil.copytree(EXAMPLES / name, folder)
    variables = os.environ | ours()
    if name == "graphsage":
        words_of_maker = [sys.executable, "make_graph.py", "--num_nodes", "1500"]
        out, err, code = output_of(words_of_maker, folder, variables)
        assert code == 0, err
        (launch,) = commands(folder / "README.md")
        given = parse.parse_tool("launch", launch[1:])
        assert given.command == "python3 train_dist.py" and given.num_trainers == 2
    out, err, code = output_of([sys.executable, *words.split()], folder, variables)
    assert code == 0, err
    if least is not None:
        (accuracy,) = re.findall(r"^Test Accuracy (\S+)$", out, re.MULTILINE)
        assert float(accuracy) > least
    else:
        (auc,) = re.findall(r"AUC (\S+)$", out, re.MULTILINE)
        by_features, by_edges = map(float, re.findall(r"accuracy (\S+)$", out, re.MULTILINE))
        assert float(auc) > 0.65 and by_edges > by_features


def test_classes_of_entities_by_their_literals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People know anybody; what they like, a literal, tells their class: as nodes, and, by the page, as attributes."""
    shutil.copytree(EXAMPLES / "node_classification", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    mine, draw = tmp_path / "mine", random.Random(3)
    mine.mkdir()
    people = [f"p{number}" for number in range(120)]
    for part in ("train", "valid", "test"):
        (mine / f"{part}.txt").write_text("".join(f"{draw.choice(people)}\tknows\t{person}\n" for person in people))
    literals = [
        f"{person}\tlikes\tstring\t{draw.choice(['tea', 'milk'] if number % 2 else ['coffee', 'juice'])}\n"
        + f"{person}\tage\thttp://www.w3.org/2001/XMLSchema#double\t{draw.randrange(99)}\n" * (number % 3 < 2)
        + f"{person}\tis\tstring\tperson\n"
        for number, person in enumerate(people)
    ]
    (mine / "literals.tsv").write_text("entity\tpredicate\tdatatype\tvalue\n" + "".join(literals))
    for part, known in (("train", people[:80]), ("test", people[80:])):
        lines = [f"{person}\t{'odd' if int(person[1:]) % 2 else 'even'}\n" for person in known]
        (mine / f"labels_{part}.tsv").write_text("entity\tlabel\n" + "".join(lines))
    drafting, making = commands(Path("README.md"))
    made = [sys.executable, "entities.py", "mine", "mine.jsonl"]
    assert output_of(made, tmp_path, os.environ | ours())[2] == 0
    assert run(drafting) == 0 and run(making) == 0
    row = json.loads((tmp_path / "mine.jsonl").read_text().splitlines()[0])
    assert row["entity"] == "p0" and row["has"] == ["age", "is", "likes"] and "is" not in row and isinstance(row["age"], float)
    assert (tmp_path / "attributes.html").exists()
    for more in ([], ["--attributes", "attributes", "--least", "1000"]):
        out, err, code = output_of([sys.executable, "classify.py", "mine", *more], tmp_path, os.environ | ours())
        assert code == 0, err
        (accuracy,) = re.findall(r"^Test Accuracy (\S+)$", out, re.MULTILINE)
        assert float(accuracy) > 0.8


def launched(script: str, folder: Path) -> str:
    """What a script prints under kgdist-launch, on two machines of this host with two trainers each, and a graph in data/."""
    (folder / "ip_config.txt").write_text(f"127.0.0.1 {free_port()}\n127.0.0.1 {free_port()}\n")
    words = (
        "--backend local --workspace . --num_trainers 2 --num_servers 1 --part_config data/planted.json --ip_config ip_config.txt"
    )
    command = [
        sys.executable,
        "-m",
        "kgdist.cli.launch",
        *words.split(),
        "--peer_timeout",
        str(patience(30)),
        f"python3 {script}",
    ]
    out, err, code = output_of(command, folder, os.environ | ours() | {"MPLBACKEND": "Agg"})
    assert code == 0, out + err
    return out + err


@pytest.mark.long
@pytest.mark.timeout(300)
def test_scripts_on_a_partitioned_graph_run_unchanged_on_two_machines(tmp_path: Path) -> None:
    for name in ("graphsage", "pyg_model"):
        shutil.copytree(EXAMPLES / name, tmp_path, dirs_exist_ok=True)
    _, err, code = output_of([sys.executable, "make_graph.py", "--num_nodes", "1500"], tmp_path, os.environ | ours())
    assert code == 0, err
    for script in (f"{GNN['graphsage'][0]}", "train.py --part_config data/planted.json --num_epochs 12"):
        accuracies = re.findall(r"Test Accuracy (\S+)$", launched(script, tmp_path), re.MULTILINE)
        assert len(set(accuracies)) == 1 and float(accuracies[0]) > 0.7


def test_the_commands_of_the_cluster_are_understood() -> None:
    found = commands(EXAMPLES / "fb15k_cluster" / "README.md")
    for words in found:
        parse.parse(words[0].removeprefix("kgdist-"), words[1:])
    assert {words[0] for words in found} >= {f"kgdist-{name}" for name in ("partition", "copy", "dist-train", "eval")}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("network", ["", pytest.param("--namespaces", marks=pytest.mark.long)])
def test_fb15k_cluster(network: str, tmp_path: Path) -> None:
    """The whole walk-through at small scale, over a real sshd, and across network namespaces where there are some."""
    small = "--max_step 20 --hidden_dim 16 --batch_size 200 --peer_timeout 30".split()
    words = [str(EXAMPLES / "fb15k_cluster" / "run.sh"), *([network] if network else []), *small]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    variables = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": paths, "PORT": str(free_port()), "TMPDIR": str(tmp_path)}
    out, err, code = output_of(words, tmp_path, variables)
    if code == 77:
        pytest.skip(err.strip().splitlines()[-1])
    assert code == 0, out + err
    parts = 2 if network else 4
    assert len(re.findall(r"^machine_\d .* complete already$", out, re.MULTILINE)) == (1 if network else parts)
    assert len(re.findall(r"^machine_\d .* MB sent$", out, re.MULTILINE)) == (1 if network else 0)
    assert ("connections are encrypted (CURVE)" if network else "connections are between processes of this user") in out
    assert f"{parts} trainers x 20 steps" in out and "wordnet_TransE_l2_entity.npy" in out
    trained, evaluated = re.findall(r"Test average MRR : (\S+)", out)
    assert trained == evaluated
    assert not list(tmp_path.iterdir())


SCHEDULER = {
    "scontrol": 'printf "127.0.0.1\\n127.0.0.2\\n"',
    "srun": 'for n in 0 1; do SLURM_NODEID=$n "$@" & done; wait',
}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_batch_script_runs_a_job_on_two_nodes(tmp_path: Path) -> None:
    """The recipe as it stands on the page; only its sizes are smaller, and srun and scontrol are stand-ins of one line."""
    (script,) = re.findall(r"^```bash parsed\n(#!.*?)^```", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE | re.DOTALL)
    sizes = {
        "SERVERS=4 TRAINERS=44": "SERVERS=1 TRAINERS=1",
        "30050": str(free_port()),
        "--dataset FB15k": "--dataset wordnet",
        "--hidden_dim 400": "--hidden_dim 16",
        "--batch_size 1000": "--batch_size 200",
        "--max_step 5000": "--max_step 20",
        "--regularization_coef 1e-9": "--regularization_coef 1e-9 --checkpoint_interval 10 --peer_timeout 30",
    }
    for old, new in sizes.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    programs = tmp_path / "bin"
    programs.mkdir()
    tools = {name: f"#!/bin/bash\n{text}\n" for name, text in SCHEDULER.items()}
    tools |= {
        f"kgdist-{name}": f'#!/bin/bash\nexec "{sys.executable}" -m kgdist.cli.{name.replace("-", "_")} "$@"\n'
        for name in ("dist-train", "server", "client")
    }
    for name, text in tools.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(script)
    task = tmp_path / "my_task"
    task.mkdir()
    assert run(["kgdist-partition", "--dataset", "wordnet", "-k", "2", "--data_path", str(task), "--method", "random"]) == 0
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    paths |= {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    variables = os.environ | paths | {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "both"}
    out, err, code = output_of(["bash", str(tmp_path / "job.sh")], tmp_path, variables)
    assert code == 0, out + err
    assert "2 trainers x 20 steps" in out and "Test average MRR :" in out
    assert (task / "ckpts/TransE_l2_wordnet_0/wordnet_TransE_l2_entity.npy").exists()
    assert (task / "ip_config_7.txt").exists() and not (task / "job_7.json").exists()


def output_of(words: list[str], folder: Path, variables: dict[str, str]) -> tuple[str, str, int]:
    """What a command prints on stdout and stderr, and its exit code; it is asked to end when it takes too long."""
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=variables,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=patience(250))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=patience(100))
    return out, err, process.returncode


def ours_and(tmp_path: Path) -> dict[str, str]:
    """The environment of an example that starts this Python."""
    (tmp_path / "tmp").mkdir()  # where torchrun and Ray leave files
    return os.environ | ours() | {"PYTHON": sys.executable, "WORK": str(tmp_path / "work"), "TMPDIR": str(tmp_path / "tmp")}


def little_freebase(folder: Path) -> list[str]:
    """A graph and attributes of its entities, small: the words that name them to run.sh."""
    draw = random.Random(2)
    people = [f"p{number}" for number in range(80)]
    (folder / "little").mkdir()
    for split, count in (("train", 600), ("valid", 30), ("test", 30)):
        lines = [f"{draw.choice(people)}\tr{draw.randrange(3)}\t{draw.choice(people)}\n" for _ in range(count)]
        (folder / "little" / f"{split}.txt").write_text("".join(lines))
    rows = [f"{person}\t{1900 + number}\tof kind {number % 4}\n" for number, person in enumerate(people[:60])]
    (folder / "entities.tsv").write_text("entity\tborn\tdescription\n" + "".join(rows))
    schema = "key: entity\nattributes:\n  born: {kind: numeric, bins: 4}\n  description: {kind: text, encoder: hashed, dim: 4}\n"
    (folder / "schema.yaml").write_text(schema)
    return [str(folder / "little"), str(folder / "entities.tsv"), str(folder / "schema.yaml")]


SHORT = ["--max_step", "6", "--eval_interval", "3", "--batch_size", "64", "--neg_sample_size", "16", "--hidden_dim", "8"]
SHORT += ["--encoder_dim", "8", "--num_bases", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [[], ["local"]])
def test_graph_encoders(engine: list[str], tmp_path: Path) -> None:
    words = [str(EXAMPLES / "graph_encoders" / "run.sh"), *little_freebase(tmp_path), *(engine or ["one"]), *SHORT]
    out, err, code = output_of(words, tmp_path, ours_and(tmp_path))
    assert code == 0 and "Test average MRR" in out, out + err
    assert (tmp_path / "work" / "ckpts" / "DistMult_little_0" / "little_DistMult_entity.npy").exists()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_graph_encoders_on_ray(tmp_path: Path) -> None:
    """By both ways on one cluster, a sweep on it, too: the same losses by Ray Train as by our own agents."""
    pytest.importorskip("ray.train.torch", reason="Ray Train is not installed")
    named, said = little_freebase(tmp_path), []
    with cluster_of(1, 1, 1) as address:
        variables = ours_and(tmp_path) | TOKEN | {"RAY_ADDRESS": address}
        for engine in ("ray", "ray-train"):
            where = ["--ray_address", address, "--ray_placement", "spread"]
            words = [str(EXAMPLES / "graph_encoders" / "run.sh"), *named, engine, *SHORT, *where]
            out, err, code = output_of(words, tmp_path, variables)
            assert code == 0, out + err
            said.append(re.findall(r"Test average .*", out))
        out, err, code = output_of([sys.executable, str(EXAMPLES / "graph_encoders" / "sweep.py"), "2", "8"], tmp_path, variables)
    assert said[0] == said[1] != []
    assert code == 0 and re.search(r"best MRR 0\.\d+: kgdist.train\(\*\*{'dataset': 'wordnet', .*'encoder': ", out), out + err


def asked(address: str) -> tuple[int, Any]:
    """The status of an answer, and what it says."""
    try:
        with urllib.request.urlopen(address, timeout=patience(30)) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_answers_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
    folder = EXAMPLES / "ray_serve"
    monkeypatch.chdir(tmp_path)
    (train,) = commands(folder / "README.md")
    assert run([*train, "--quiet", "--num_thread", "1", "--max_step", "20"]) == 0
    port, model = free_port(), kgdist.load("ckpts/TransE_l2_wordnet_0")
    with cluster_of(2) as address:
        words = [sys.executable, str(folder / "serve.py"), str(model.path), "--port", str(port)]
        variables = ours_and(tmp_path) | TOKEN | {"RAY_ADDRESS": address}
        with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                assert server.stdout is not None
                assert f"http://127.0.0.1:{port} answers" in server.stdout.readline()
                root = f"http://127.0.0.1:{port}"
                found = asked(f"{root}/predict?head=dog.n.01&relation=hypernym&k=3")
                here = model.predict(head="dog.n.01", relation="hypernym", k=3)
                assert found == (200, [row._asdict() for row in here])
                status, found = asked(f"{root}/similar?name=dog.n.01&k=5")
                assert (status, [row["right"] for row in found]) == (200, model.similar("dog.n.01", k=5)["right"].tolist())
                for path, code, why in (
                    ("predict?head=nobody&relation=hypernym", 400, "nobody"),
                    ("predict?head=dog.n.01&relation=hypernym&k=x", 400, "x"),
                    ("else", 404, "ask /predict or /similar"),
                ):
                    status, found = asked(f"{root}/{path}")
                    assert status == code and why in found["error"]
                server.send_signal(signal.SIGINT)
                assert server.wait(patience(60)) == 0
            finally:
                server.kill()


@pytest.mark.slow
def test_workers_by_torchrun(tmp_path: Path) -> None:
    folder = EXAMPLES / "graph_encoders"
    (partition,) = [words for words in commands(folder / "README.md") if words[0] == "kgdist-partition"]
    assert run([*partition[:-1], str(tmp_path / "wordnet"), "--quiet"]) == 0
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    out, err, code = output_of([*words, str(folder / "worker.py"), str(tmp_path / "wordnet"), "20"], tmp_path, ours_and(tmp_path))
    assert code == 0 and "step 20 of 20: MRR 0." in out and "dog.n.01" in out, out + err
