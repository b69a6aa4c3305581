"""What no file may do, whatever it is for: run code found in data, wait without end, name the machine it was written on.

The rules read syntax trees, so a word in a comment is free and an odd spelling is not a way around. Each is tried on a line that
breaks it, too.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Modules that turn bytes into objects or text into code; multiprocessing pickles what its queues, pipes and processes carry.
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "code",
    "multiprocessing",
    "imp",
    "runpy",
}
UNSAFE_CALLS = {
    *("eval", "exec", "compile", "__import__"),
    *(
        "torch.save",
        "torch.hub.load",
        "os.system",
        "os.popen",
        "ProcessPoolExecutor",
        "futures.ProcessPoolExecutor",
    ),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"),
}
UNSAFE_METHODS = {"recv_pyobj", "send_pyobj"}
WAITING_METHODS = {"join", "wait", "get", "acquire", "result", "communicate", "recv", "get_message"}  # with no argument: for ever
NEED_TIMEOUT = {
    *("subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output"),
    *("socket.create_connection", "urlopen", "urllib.request.urlopen", "request.urlopen"),
}
# Calls that let time pass.
WAITS = {"wait", "wait_for", "get", "poll", "join", "recv", "receive", "select", "sleep", "pump", "idle", "one", "step", "events"}
DEADLINES = re.compile(r"deadline|pause|until|patience|began|limit")
# Loops that wait and hold no deadline against the clock themselves: who sees to it that they end.
ENDED_BY = {
    "kvstore/connection.py:Connections.until": "Session: a server that says nothing for 2 x --peer_timeout is lost",
    "kvstore/connection.py:Connections.pump": "nothing is waited for: it takes what is there",
    "kvstore/wire.py:Wire.receive": "nothing is waited for: all parts of a message arrive together",
    "kvstore/wire.py:Wire._look": "nothing is waited for: it takes what is there",
    "kvstore/server.py:Server.serve": "its owner, by stdin; the agent, when it does not turn for --peer_timeout; the lease",
    "kvstore/server.py:Server.step": "nothing is waited for: it takes what is there, BURST messages at most",
    "runtime/agent/agent.py:Agent._show_life": "the end of the agent's run",
    "runtime/agent/agent.py:Agent._turn": "nothing is waited for: it takes what is there; `guard` ends a loop that does not turn",
    "runtime/agent/agent.py:guard": "the end of the process, which it brings about",
    "runtime/cluster/training_attempt.py:TrainingAttempt._train": "agents; Fleet, silence; itself, when nothing moves",
    "runtime/cluster/training_attempt.py:TrainingAttempt._task": "agents, each trainer; Fleet, silence and standstill",
    "runtime/channels/channel.py:Channel._deliver": "the end of the process or of its owner's interest, a thread beside",
    "runtime/ray_chunks.py:RayExecutor.map": "each call to Ray, after STALL",
    "runtime/ray_agents.py:RayCluster._place": "its own deadline",
    "runtime/ray_agents.py:Keeper._watch": "the end of the process that it is in",
    "runtime/ray_session.py:_guard": "the end of the block, or of the process, which it brings about",
    "runtime/processes/control.py:SharedControl.beat": "the end of the run that it shows to live",
    "runtime/copy/receive.py:main": "its owner, by stdin",
    "runtime/copy/send.py:_all": "each sender's own deadlines",
    "runtime/copy/send.py:Sender._ask": "an answer's deadline, which is handed to the queue",
    "runtime/agent/enlist.py:Line._move": "the end of the line; a thread beside",
    "runtime/cluster/fleet.py:Fleet._beat": "the end of the fleet, or of its owner's pumping",
    "runtime/processes/forkserver.py:ForkServer._hear": "nothing is waited for: it takes what is there",
    "runtime/processes/forking.py:serve_forks": "its owner, by the end of their line; the lease",
    "runtime/processes/keeper.py:below": "nothing is waited for: it looks who is there",
    "runtime/cluster/attempt.py:endure": "--max_restarts",
    "runtime/cluster/manual.py:Reception._serve": "the end of the reception; a thread beside",
    "runtime/agent/enlist.py:_serve": "_enlist, when no launcher answers",
    "runtime/agent/enlist.py:_wait": "the end of the conversation, which the line tells of when the launcher does not",
    "runtime/agent/roles.py:lease.watch": "the end of the process, which it brings about",
    "runtime/agent/roles.py:Tasks.serve": "its owner, by stdin; the lease",
    "runtime/observe.py:watched.watch": "the end of the work that it looks at",
    "runtime/processes/chunks.py:serve": "its owner, by stdin",
    "runtime/processes/worker.py:work": "its owner, by stdin",
    "runtime/processes/workers.py:Workers.watch": "_check_progress, when a worker makes no step for STALL",
}
OPTION_PARSERS = {"argparse", "optparse", "getopt", "click", "typer", "fire"}

LONGEST = 400
LONG_FILES: dict[str, str] = {}  # path -> why two nouns share that file

HOSTS = {
    "www.apache.org",
    "filesystem-spec.readthedocs.io",
    "data.dgl.ai",
    "arxiv.org",
    "doi.org",
    "127.0.0.1",
    "wordnet.princeton.edu",
    "example.org",
    "www.w3.org",
    "github.com",
    "docs.ray.io",
    "papers.nips.cc",
}
RESERVED = (".invalid", ".example", ".test")  # names that lead nowhere
OWN_PATHS = re.compile(r"(?<![\w.$}*-])/(?:home|root|Users|work|opt|mnt|srv|scratch|workspace)/[\w.]")
REGISTRIES = re.compile(
    r"--(?:extra-)?index-url|--find-link[s]|--trusted-hos[t]|p[y]pi\.|pythonhoste[d]|conda\.anacond[a]|deb\.debia[n]"
)


def dotted(node: ast.AST) -> str:
    """`a.b.c` for the expression of that form, and the attribute names alone for others: `.c`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def is_none(node: ast.AST | None) -> bool:
    """Whether the expression is the word None."""
    return isinstance(node, ast.Constant) and node.value is None


def endless(call: ast.Call) -> bool:
    """Whether a call can wait for ever: no deadline where one belongs."""
    name, method = dotted(call.func), call.func.attr if isinstance(call.func, ast.Attribute) else ""
    timeout = next((k.value for k in call.keywords if k.arg == "timeout"), None)
    if name in NEED_TIMEOUT:
        return timeout is None or is_none(timeout)
    if name == "select.select":
        return len(call.args) < 4 or is_none(call.args[3])
    if name == "os.waitpid":
        return len(call.args) < 2 or (isinstance(call.args[1], ast.Constant) and call.args[1].value == 0)
    if method in WAITING_METHODS and (timeout is None or is_none(timeout)):
        others = [k for k in call.keywords if k.arg not in ("timeout", "block", "blocking")]
        said = [a for a in call.args if not (is_none(a) or (isinstance(a, ast.Constant) and a.value is True))]
        non_blocking = any(
            k.arg in ("block", "blocking") and isinstance(k.value, ast.Constant) and not k.value.value for k in call.keywords
        )
        return not said and not others and not non_blocking
    return False


def waits_again(source: str) -> Iterator[str]:
    """The functions, as `Class.name`, with a loop that waits and waits again, and holds no deadline of its own against the
    clock."""

    def words(node: ast.AST) -> Iterator[str]:
        for child in ast.walk(node):
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Name | ast.Attribute):
                yield child.func.attr if isinstance(child.func, ast.Attribute) else child.func.id

    def clocked(node: ast.AST) -> bool:
        names = [dotted(found) for compare in ast.walk(node) if isinstance(compare, ast.Compare) for found in ast.walk(compare)]
        return "time.monotonic" in names and any(DEADLINES.search(name) for name in names)

    def visit(node: ast.AST, path: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            if isinstance(child, ast.While) and WAITS & set(words(child)) and not clocked(child):
                yield ".".join(path)
            yield from visit(child, (*path, child.name) if named else path)  # type: ignore[attr-defined]

    yield from visit(ast.parse(source), ())


def ours(name: ast.expr) -> bool:
    """Whether the module of that name is known, or one of this package: f"kgdist.cli.{...}"."""
    start = name.values[0] if isinstance(name, ast.JoinedStr) else None
    return isinstance(name, ast.Constant) or (isinstance(start, ast.Constant) and str(start.value).startswith("kgdist."))


def unsafe(call: ast.Call) -> bool:
    """Whether a call can run code that came as data, or hands text to a shell."""
    name = dotted(call.func)
    keywords = {k.arg: k.value for k in call.keywords}
    shell = keywords.get("shell")
    pickles, weights = keywords.get("allow_pickle"), keywords.get("weights_only")
    return (
        name in UNSAFE_CALLS
        or (name.endswith("import_module") and not ours(call.args[0]))
        or name.rpartition(".")[2] in UNSAFE_METHODS
        or (shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False))
        or (name == "torch.load" and not (isinstance(weights, ast.Constant) and weights.value is True))
        or (name in ("np.load", "numpy.load") and pickles is None)
        or (pickles is not None and not (isinstance(pickles, ast.Constant) and pickles.value is False))
    )


def broken_rules(source: str, *, parses_options: bool = False) -> Iterator[str]:
    """Every rule of this page that a Python source breaks, as `line: what`."""
    for node in ast.walk(ast.parse(source)):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [str(node.module).split(".")[0]]
        for module in modules:
            if module in UNSAFE_MODULES:
                yield f"{node.lineno}: {module} runs or carries code: send plain numbers and JSON"
            if module in OPTION_PARSERS and not parses_options:
                yield f"{node.lineno}: {module}: options are read in kgdist/options/parse.py only"
        if isinstance(node, ast.Call):
            if unsafe(node):
                yield f"{node.lineno}: {dotted(node.func)} can run code that came as data"
            if endless(node):
                yield f"{node.lineno}: {dotted(node.func)}() can wait for ever: give it a timeout"
        if isinstance(node, ast.Attribute) and dotted(node) == "sys.argv" and not parses_options:
            yield f"{node.lineno}: sys.argv is read in kgdist/options/parse.py and kgdist/cli only"


def tracked() -> list[Path]:
    """The files of the project, as git knows them; skips where there is no git."""
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout, so there is no list of the project's files")
    return [path for name in done.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


SOURCES = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "kgdist").rglob("*.py"))}


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_breaks_no_rule(name: str) -> None:
    source = SOURCES[name].read_text(encoding="utf-8")
    parses_options = name == "kgdist/options/parse.py" or name.startswith("kgdist/cli/")
    assert list(broken_rules(source, parses_options=parses_options)) == []
    assert not source.strip() or ast.get_docstring(ast.parse(source)), f"{name}: open it with what it is, and what it is not"


@pytest.mark.parametrize("folder", ["kgdist", "tests", "benchmarks", "examples", "scripts"])
def test_files_stay_small(folder: str) -> None:
    lengths = {str(p.relative_to(ROOT)): p.read_bytes().count(b"\n") for p in sorted((ROOT / folder).rglob("*.py"))}
    too_long = {name: lines for name, lines in lengths.items() if lines > LONGEST}
    surprising = {name: lines for name, lines in too_long.items() if name not in LONG_FILES}
    assert not surprising, f"over {LONGEST} lines: {surprising}; split them, or say why not in LONG_FILES"
    stale = {name for name in LONG_FILES if name.startswith(folder + "/") and name not in too_long}
    assert not stale, f"no longer long, take them out of LONG_FILES: {stale}"


def test_every_wait_has_its_end() -> None:
    """A call that waits has a timeout (test_a_file_breaks_no_rule); a loop of them has a deadline, or stands in ENDED_BY."""
    found = {
        f"{name.removeprefix('kgdist/')}:{function}"
        for name, path in SOURCES.items()
        if name.startswith(("kgdist/runtime/", "kgdist/kvstore/"))
        for function in waits_again(path.read_text(encoding="utf-8"))
    }
    assert found - set(ENDED_BY) == set(), "who ends these loops? give them a deadline, or say so in ENDED_BY"
    assert set(ENDED_BY) - found == set(), "no longer loops that wait without a deadline: take them out of ENDED_BY"


def test_loops_that_wait_are_seen() -> None:
    waiting = (
        "def f():\n    while not done:\n        fleet.pump(0.1)\nclass A:\n    def b(self):\n        while x.wait(1): pass\n"
    )
    assert list(waits_again(waiting)) == ["f", "A.b"]
    assert list(waits_again(waiting.replace("not done", "time.monotonic() < deadline"))) == ["A.b"]
    assert list(waits_again("def f():\n    while rows:\n        rows.pop()\n")) == []


def strange_words(text: str) -> Iterator[str]:
    """Paths of one machine, hosts of registries, and hosts that nobody has looked at, as `line: what`."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in (*OWN_PATHS.findall(line), *REGISTRIES.findall(line)):
            yield f"{number}: {found} belongs to one machine"
        for host in re.findall(r"[a-z]+://(?:[^/\s\"'`<>@]*@)?([\w.-]+)", line):
            if "." in host and not host.endswith(RESERVED) and host not in HOSTS:
                yield f"{number}: the host {host} is not in HOSTS of tests/test_fences.py"


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked():
        content = path.read_bytes()
        if b"\0" in content or len(content) > 1 << 20:
            continue  # data, not text
        found += [f"{path.relative_to(ROOT)}:{word}" for word in strange_words(content.decode(errors="replace"))]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from multiprocessing import Queue",
        "eval(x)",
        "importlib.import_module(name)",
        'importlib.import_module(f"{name}.cli")',
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "torch.load(p, weights_only=safe)",
        "yaml.load(f, Loader=L)",
        "np.load(p)",
        "np.load(p, allow_pickle=True)",
        "run(c, shell=True)",
        "s.recv_pyobj()",
        "t.join()",
        "self.process.wait()",
        "q.get()",
        "q.get(True)",
        "q.get(timeout=None)",
        "lock.acquire()",
        "future.result()",
        "subprocess.run(c)",
        "select.select(r, w, x)",
        "os.waitpid(p, 0)",
        "import argparse",
        "sys.argv[1]",
    ],
)
def test_the_rules_see_what_they_forbid(line: str) -> None:
    assert len(list(broken_rules(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(p, weights_only=True)",
        "', '.join(names)",
        "thread.join(timeout=3)",
        "process.wait(2)",
        "d.get(key)",
        "q.get(timeout=1)",
        "q.get(block=False)",
        "lock.acquire(timeout=2)",
        "np.load(p, mmap_mode='r', allow_pickle=False)",
        "yaml.safe_load(f)",
        "importlib.import_module('kgdist.training.loop')",
        "subprocess.run(c, timeout=9)",
        "re.compile(x)",
        "model.eval()",
    ],
)
def test_the_rules_leave_the_rest_alone(line: str) -> None:
    assert list(broken_rules(line)) == []


def test_the_words_are_seen() -> None:
    there = "/" + "home/somebody/graph.tsv", "--index" + "-url x", "https" + "://strange.net/x"
    assert [len(list(strange_words(word))) for word in there] == [1, 1, 1]
    assert list(strange_words("data/train.txt a/work/b https://data.dgl.ai/dataset/FB15k.zip /dev/shm $HOME/x")) == []
