"""Backend manual: real kgdist-server and kgdist-client processes find a real launcher, and are refused where they must be."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kgdist.base.errors import OptionError, UsageError
from kgdist.kvstore.wire import Keys
from kgdist.options.config import Config
from kgdist.runtime.agent.enlist import Line
from kgdist.runtime.cluster.fleet import AttemptFailed
from kgdist.runtime.cluster.jobfile import JobFile, computer
from kgdist.runtime.cluster.manual import ROLES, Reception, control_of
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.processes.forkserver import environment
from tests.family import alive, descendants
from tests.faults.jobs import Job, command, here, ip_config, wait, workspace
from tests.faults.sshd import free_port

pytestmark = pytest.mark.timeout(180)


class Half:
    """One kgdist-server or kgdist-client, ended by force at the end of the block."""

    def __init__(self, folder: Path, role: str, machine: int, job: str = "kgdist_job.json") -> None:
        words = command(role, job, "--machine", str(machine))
        self.process = subprocess.Popen(
            words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(1)
        )
        self.pids: set[int] = set()

    def __enter__(self) -> Half:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=10)

    def end(self, seconds: float = 60.0) -> tuple[int, str]:
        """Its exit code, and all it has printed."""
        text, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, text


def ends(code: int, *halves: Half) -> None:
    """All end with that exit code."""
    found = [half.end() for half in halves]
    assert [found_code for found_code, _ in found] == [code] * len(halves), found


def wait_for_job(job: Job) -> Path:
    """The job file, once it is there."""
    path = job.folder / "kgdist_job.json"
    wait(path.exists, 60, job)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Workspaces of one machine and of two."""
    return {parts: workspace(tmp_path_factory.mktemp(f"parts{parts}"), parts=parts) for parts in (1, 2)}


def place(folder: Path, made: dict[int, Path], parts: int) -> Path:
    """The same data in a workspace of one's own."""
    folder.mkdir(exist_ok=True)
    (folder / "data").symlink_to(made[parts] / "data")
    ip_config(folder, parts=parts)
    return folder


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """What the one run in a workspace has saved."""
    (run,) = (folder / "ckpts").iterdir()
    return {path.name: np.load(path, allow_pickle=False) for path in sorted(run.glob("*.npy"))}


def files(folder: Path) -> list[str]:
    """All files of a workspace's runs."""
    return sorted(str(path.relative_to(folder)) for path in (folder / "ckpts").rglob("*") if path.is_file())


@pytest.mark.long
def test_a_job_gives_the_very_rows_of_the_local_backend(tmp_path: Path, made: dict[int, Path]) -> None:
    """One machine with one trainer: nothing depends on who comes first."""
    options = {"max_step": "300", "checkpoint_interval": "100", "eval_interval": "100", "seed": "3"}
    found = {}
    for backend in ("local", "manual"):
        folder = place(tmp_path / backend, made, 1)
        with Job(folder, "--test", "--valid", backend=backend, **options) as job, contextlib.ExitStack() as stack:
            halves = []
            if backend == "manual":
                assert stat.S_IMODE(wait_for_job(job).stat().st_mode) == 0o600
                halves = [stack.enter_context(Half(folder, role, 0)) for role in ROLES]
            text = job.end(0)
            ends(0, *halves)
        assert not (folder / "kgdist_job.json").exists()
        found[backend] = arrays(folder), files(folder), re.findall(r"Test average .*", text)
    assert found["manual"][1:] == found["local"][1:] and len(found["local"][2]) == 6
    for name, array in found["local"][0].items():
        assert np.array_equal(found["manual"][0][name], array), name


@pytest.mark.long
def test_a_server_that_is_killed_and_started_again_is_awaited_and_the_job_goes_on(tmp_path: Path, made: dict[int, Path]) -> None:
    space = place(tmp_path, made, 2)
    options = {"max_step": "2000", "checkpoint_interval": "200", "peer_timeout": "5"}
    with Job(space, "--test", backend="manual", **options) as job:
        wait_for_job(job)
        with (
            Half(space, "server", 0) as server,
            Half(space, "client", 0) as client,
            Half(space, "client", 1) as other,
        ):
            with Half(space, "server", 1) as killed:
                wait(lambda: all(list(space.glob(f"ckpts/*/machine_{n}/ckpt-*")) for n in range(2)), 60, job)
                trainer = descendants(server.process.pid)[-1]
                os.kill(trainer, signal.SIGKILL)
                job.until("it is started again at step")
                killed.pids = set(descendants(killed.process.pid))
                killed.process.kill()
                job.until(r"machine_1.*(kgdist-server\) has said nothing|silent) for 5 s; attempt \d of \d follows", 30)
                wait(lambda: not any(map(alive, killed.pids)), 10, job)
            with Half(space, "server", 1) as again:
                text = job.end(0)
                ends(0, server, client, other, again)
    assert "resumed" in text and float(re.findall(r"Test average MRR : ([0-9.]+)", text)[0]) > 0.15


@pytest.mark.slow
def test_ctrl_c_at_one_of_them_saves_and_ends_everybody(tmp_path: Path, made: dict[int, Path]) -> None:
    single = place(tmp_path, made, 1)
    with Job(single, backend="manual", max_step="1000000", log_interval="20") as job:
        wait_for_job(job)
        with Half(single, "server", 0) as server, Half(single, "client", 0) as client:
            job.until(r"\[Train\]")
            client.process.send_signal(signal.SIGINT)
            text = job.end(130)
            assert "go on with: kgdist-dist-train --resume" in text
            ends(130, server, client)
    assert list(single.glob("ckpts/*/machine_0/ckpt-*")) and not (single / "kgdist_job.json").exists()


@pytest.mark.slow
def test_a_launcher_that_is_killed_takes_everything_with_it(tmp_path: Path, made: dict[int, Path]) -> None:
    single = place(tmp_path, made, 1)
    with Job(single, backend="manual", max_step="1000000", log_interval="20") as job:
        wait_for_job(job)
        with Half(single, "server", 0) as server, Half(single, "client", 0) as client:
            job.until(r"\[Train\]")
            below = descendants(server.process.pid)
            assert len(below) == 3 and not descendants(client.process.pid)  # what forks, a server, a trainer
            job.process.kill()
            wait(lambda: not any(map(alive, below)), 10, job)
            job.process.wait(timeout=10)
            with Half(single, "server", 0) as late:  # the file is still there
                code, text = late.end()
            assert code == 2 and re.search(r"its launcher has ended \(pid \d+\); start that first", text)


# ---- refusals, by a reception without a job


class Waiting:
    """A reception of `count` machines on this host that waits in a thread; `error` is what the wait has ended with."""

    def __init__(self, folder: Path, count: int, patience: float) -> None:
        machines = [Machine("127.0.0.1", free_port(), 1, n) for n in range(count)]
        config = Config(job=str(folder / "kgdist_job.json"), control=f"127.0.0.1:{free_port()}", peer_timeout=3.0)
        self.folder = folder
        self.reception = Reception(config, machines, Interrupts(), patience=patience)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._wait)

    def _wait(self) -> None:
        with contextlib.suppress(BaseException), self.reception:
            try:
                self.reception.connect()
            except BaseException as error:
                self.error = error
                raise

    def __enter__(self) -> Waiting:
        self.thread.start()
        wait(lambda: self.reception.file is not None, 10)
        return self

    def __exit__(self, *error: object) -> None:
        self.reception.interrupts.asked = True
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()

    def here(self, machine: int, role: str) -> bool:
        """Whether somebody has that place."""
        return (machine, role) in self.reception._places


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    """One that waits for two machines."""
    with Waiting(tmp_path, 2, patience=100.0) as running:
        yield running


def test_who_is_missing_is_named_and_the_others_are_sent_home(waiting: Waiting) -> None:
    with Half(waiting.folder, "client", 1) as client:
        wait(lambda: waiting.here(1, "client"), 60)
        waiting.reception.patience = 1.0
        waiting.thread.join(timeout=60)
        assert isinstance(waiting.error, AttemptFailed)
        names = [f"kgdist-{role} of machine_{n} (127.0.0.1)" for n in range(2) for role in ROLES if (n, role) != (1, "client")]
        assert str(waiting.error) == f"not started within 1 s: {', '.join(names)}"
        assert client.end()[0] == 3
    assert not (waiting.folder / "kgdist_job.json").exists()


@pytest.mark.long
def test_a_machine_has_its_number_for_itself(waiting: Waiting) -> None:
    with Half(waiting.folder, "server", 0) as first:
        wait(lambda: waiting.here(0, "server"), 60)
        with Half(waiting.folder, "server", 0) as second, Half(waiting.folder, "server", 2) as beyond:
            code, text = second.end()
            assert code == 2 and f"machine 0 has a kgdist-server already: process {first.process.pid} on" in text
            code, text = beyond.end()
            assert code == 2 and "--machine: 2: the job has 2 machines, 0 to 1" in text
        assert first.process.poll() is None and waiting.here(0, "server")
        waiting.reception.interrupts.asked = True
        ends(130, first)


def test_wrong_keys_and_old_files_are_refused_in_one_line(waiting: Waiting) -> None:
    made = json.loads((waiting.folder / "kgdist_job.json").read_text())
    launcher = waiting.reception._transport.keys
    assert launcher is not None and launcher.secret not in json.dumps(made) and launcher.public in made["keys"]["others"].values()
    mine, theirs = Keys.make().to_json(), Keys.make().to_json()
    changed = {
        "stranger": {"keys": mine | {"others": made["keys"]["others"]}},
        "other": {"keys": theirs},
        "old": {"run": "another"},
    }
    for name, change in changed.items():
        value = made | change
        path = waiting.folder / f"{name}.json"
        path.write_text(json.dumps(value))
        path.chmod(0o600)
    with (
        Half(waiting.folder, "client", 0, "stranger.json") as stranger,
        Half(waiting.folder, "client", 0, "other.json") as other,
        Half(waiting.folder, "client", 0, "old.json") as old,
    ):
        for half, words in ((stranger, "has other keys"), (other, "has other keys"), (old, "is of another job by now")):
            code, text = half.end()
            assert code == 2 and len(text.splitlines()) == 1 and words in text, text
    assert not waiting.reception._places


def test_whoever_has_the_file_and_talks_nonsense_changes_nothing(waiting: Waiting) -> None:
    line = Line(JobFile.read(waiting.folder / "kgdist_job.json"))
    try:
        assert waiting.reception.file is not None
        known = {"run": waiting.reception.file.run, "version": waiting.reception.file.version}
        line.post(enlist=1)
        line.post(enlist=known)
        line.post(enlist={"run": []})
        line.post(left=[], gone=1)
        line.post(failed={"what": "nobody asked", "recoverable": False, "code": 1})
        line.post(enlist=known | {"machine": 2, "role": "server"})
        answers = []
        wait(lambda: answers.append(line.get(0.1)) or "no kgdist-server of machine 2" in str(answers[-1]), 20)
        assert [list(answer) for answer in answers if answer] == [["refused"], ["bye"], ["refused"]]
        assert waiting.thread.is_alive() and not waiting.reception._places
    finally:
        line.close()


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (None, ("10.0.0.1", 33)),  # 30 and 31 are its own servers', 32 is the third machine's, which is on the same host
        ("host:5", ("host", 5)),
        ("[::1]:65535", ("::1", 65535)),
        ("host", None),
        ("host:0", None),
        ("host:65536", None),
        ("host:-1", None),
    ],
)
def test_where_the_launcher_waits(control: str | None, expected: tuple[str, int] | None) -> None:
    machines = [Machine("10.0.0.1", 30, 2, 0), Machine("10.0.0.2", 33, 1, 1), Machine("10.0.0.1", 32, 1, 2)]
    config = Config(control=control)
    if expected is not None:
        assert control_of(config, machines) == expected
    else:
        with pytest.raises(OptionError, match="--control: expected host:port, not"):
            control_of(config, machines)


def test_a_trial_refuses_what_the_job_would(tmp_path: Path, made: dict[int, Path]) -> None:
    space = place(tmp_path, made, 1)
    words = "--backend manual --control nonsense --dry_run --dataset toy --data_path data --max_step 5".split()
    done = here("dist_train", *words, folder=space)
    assert done.returncode == 2 and done.stderr.endswith("error: --control: expected host:port, not 'nonsense'\n"), done.stderr


# ---- the file


def test_a_job_file_is_its_owners_alone_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "job.json"
    file = JobFile("run", "::1", 5, 3, 1.5, Keys.make(), os.getpid(), computer())
    file.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert vars(JobFile.read(path)) | {"keys": 0} == vars(file) | {"keys": 0}
    path.chmod(0o640)
    with pytest.raises(UsageError, match="others can read it, and it holds keys: chmod 600"):
        JobFile.read(path)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=f"runs \\(pid {os.getpid()}\\); give another --job"):
        file.write(path)
    for change, words in (
        ({"version": "0"}, "was written by kgdist 0"),
        ({"port": "5"}, "is not a job file"),
        ({"keys": {}}, "is not a job file"),
        ({"more": 1}, "is not a job file"),
    ):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(UsageError, match=words):
            JobFile.read(path)
        path.unlink()
        file.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"computer": "another"}))
    with pytest.raises(UsageError, match="is of a job of another machine; delete it"):
        file.write(path)
    child = subprocess.Popen(["true"])
    child.wait(timeout=10)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"computer": computer(), "pid": child.pid}))
    with pytest.raises(UsageError, match=f"has ended \\(pid {child.pid}\\); start that first"):
        JobFile.read(path)
    file.write(path)
    assert "was left behind by a job that is over; it is written again" in caplog.text
    path.write_text("[]")
    with pytest.raises(UsageError, match="is not a job file"):
        file.write(path)
    file.remove(path)
    assert path.exists()  # it is not ours
    with pytest.raises(UsageError, match="no such file"):
        JobFile.read(tmp_path / "none.json")
