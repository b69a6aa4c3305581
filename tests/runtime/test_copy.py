"""Partitions on their way to machines, over a real sshd: whole, once, and continued."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgdist.base.errors import KgdistError, PeersLost, UsageError
from kgdist.base.files import sha256
from kgdist.cli.copy import main
from kgdist.partition.folder import Partition
from kgdist.partition.manifest import folder_of
from kgdist.runtime.copy.receive import MANIFEST, Receiver, part_name
from kgdist.runtime.copy.send import Delivery, Sender, send
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.processes.forkserver import environment, program
from tests.family import descendants
from tests.faults.commands import until
from tests.faults.sshd import ROOT, Sshd
from tests.partition.worlds import communities, dataset, partitioned
from tests.patience import patience


def written(folder: Path, files: dict[str, bytes]) -> dict[str, tuple[int, str]]:
    """Write files; their sizes and hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


FILES = {"a.npy": os.urandom(3_000_000), "b.npy": b"", "c.npy": b"c" * 1000, MANIFEST: b'{"files": {}}'}


class Copying:
    """One folder to send through one sshd."""

    def __init__(self, tmp_path: Path, server: Sshd) -> None:
        self.source, self.target, self.server = tmp_path / "source", tmp_path / "there" / "partition_0", server
        self.files = written(self.source, FILES)
        self.lines: list[str] = []

    def delivery(self, **more: Any) -> Delivery:
        """The order."""
        values = {"machine": self.server.machine(), "source": self.source, "target": str(self.target), "files": self.files}
        return Delivery(**(values | more))

    def send(self, **more: Any) -> str:
        """Send it; the line that tells."""
        send([self.delivery(**more)], self.server.options(), self.lines.append)
        return self.lines[-1]


@pytest.fixture
def copying(tmp_path: Path, sshd: Sshd) -> Copying:
    """See there."""
    return Copying(tmp_path, sshd)


def test_partitions_arrive_whole_and_once(tmp_path: Path, sshd: Sshd) -> None:
    triples = communities()
    folders = partitioned(dataset(tmp_path / "graph", triples, triples[:9], entities=400, relations=5), tmp_path / "here", 3)
    deliveries = [
        Delivery(sshd.machine(n), folder, str(folder_of(tmp_path / "there" / "toy", n)), Partition.open(folder).files())
        for n, folder in enumerate(folders)
    ]
    first: list[str] = []
    send(deliveries, sshd.options(), first.append)
    for n, folder in enumerate(folders):
        assert content(folder_of(tmp_path / "there" / "toy", n)) == content(folder)
        opened = Partition.open(folder_of(tmp_path / "there" / "toy", n), verify=True)
        assert opened.part == n and first[n].startswith(f"machine_{n} (127.0.0.1): {opened.folder}: ") and "MB sent" in first[n]
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "there").rglob("*")}
    second: list[str] = []
    send(deliveries, sshd.options(), second.append)
    assert all(line.endswith("complete already") for line in second)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "there").rglob("*")} == times


def test_an_interrupted_transfer_goes_on(copying: Copying) -> None:
    sent: list[int] = []

    def count(size: int) -> None:
        sent.append(size)
        if sum(sent) > 1_500_000:
            part = copying.target / part_name("a.npy", copying.files["a.npy"][1])
            until("some bytes have arrived", lambda: part.stat().st_size > 500_000)
            copying.server.stop()

    sender = Sender(copying.delivery(), copying.server.options())
    sender.look()
    assert sender.missing == sum(map(len, FILES.values()))
    with pytest.raises(PeersLost, match=r"127\.0\.0\.1"):
        sender.send(count)
    sender.close()
    assert not (copying.target / "a.npy").exists() and not (copying.target / MANIFEST).exists()
    copying.server.log.write_text("")
    copying.server.start()
    sender = Sender(copying.delivery(), copying.server.options())
    sender.look()
    assert sender.missing < sum(map(len, FILES.values())) - 500_000
    again: list[int] = []
    sender.send(again.append)
    sender.close()
    assert sum(again) < sum(map(len, FILES.values())) - 500_000
    assert content(copying.target) == FILES


SENDER = """
    import sys
    from pathlib import Path
    from kgdist.cli.command import run
    from kgdist.runtime.ip_config import Machine
    from kgdist.runtime.copy.send import Delivery, send
    from kgdist.runtime.channels.ssh_config import SshOptions
    port, key, source, target, size = sys.argv[1:]
    files = {"big.npy": (int(size), "0" * 64), "partition.json": (0, "0" * 64)}
    delivery = Delivery(Machine("127.0.0.1", 1, 1, 0), Path(source), target, files)
    options = SshOptions(ssh_port=int(port), ssh_key=key, remote_python=sys.executable)
    sys.exit(run(lambda words: send([delivery], options, print) or 0, []))
"""


def test_an_interruption_is_prompt(tmp_path: Path, sshd: Sshd) -> None:
    size = 400_000_000
    with (tmp_path / "big.npy").open("wb") as file:
        file.truncate(size)
    part = tmp_path / "there" / part_name("big.npy", "0" * 64)
    words = [sys.executable, "-c", textwrap.dedent(SENDER), str(sshd.port), str(sshd.user_key), str(tmp_path), str(part.parent)]
    with subprocess.Popen([*words, str(size)], env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        until("some bytes have arrived", lambda: part.exists() and part.stat().st_size > 1_000_000)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert process.stderr.read() == b"interrupted\n"
    assert 1_000_000 < part.stat().st_size < size


def test_a_damaged_file_is_repaired_and_only_that(copying: Copying) -> None:
    copying.send()
    data = bytearray(FILES["c.npy"])
    data[17] ^= 1
    (copying.target / "c.npy").write_bytes(data)
    before = (copying.target / "a.npy").stat().st_mtime_ns
    assert copying.send().endswith("0.0 MB sent")
    assert content(copying.target) == FILES
    assert (copying.target / "a.npy").stat().st_mtime_ns == before


def test_wrong_bytes_of_an_earlier_transfer_do_not_stay(copying: Copying) -> None:
    copying.target.mkdir(parents=True)
    part = copying.target / part_name("a.npy", copying.files["a.npy"][1])
    part.write_bytes(b"x" * 2_000_000)
    (copying.target / part_name("c.npy", "0" * 64)).write_bytes(b"of other contents")
    copying.send()
    assert content(copying.target) == FILES


def test_longer_than_the_file(copying: Copying) -> None:
    copying.target.mkdir(parents=True)
    (copying.target / part_name("c.npy", copying.files["c.npy"][1])).write_bytes(b"c" * 5000)
    copying.send()
    assert content(copying.target) == FILES


def test_a_damaged_source_makes_no_partition(copying: Copying) -> None:
    (copying.source / "c.npy").write_bytes(b"d" * 1000)
    with pytest.raises(KgdistError, match=r"c\.npy does not become what partition\.json says; is .*c\.npy damaged\?"):
        copying.send()
    assert set(content(copying.target)) == {"a.npy", "b.npy"}


def test_an_older_partition_is_none_until_the_new_one_is_complete(copying: Copying) -> None:
    written(copying.target, {"a.npy": b"old", "train.weights.npy": b"old", "mine.txt": b"mine"})
    old = b'{"files": {"a.npy": {}, "train.weights.npy": {}, "../../source/c.npy": {}}}'
    (copying.target / MANIFEST).write_bytes(old)
    sender = Sender(copying.delivery(), copying.server.options())
    sender.look()
    assert (copying.target / MANIFEST).read_bytes() == old  # a look changes nothing
    seen: list[set[str]] = []
    sender.send(lambda size: seen.append(set(content(copying.target))))
    sender.close()
    assert all(MANIFEST not in names or len(names) == 5 for names in seen[:-1]) and "train.weights.npy" not in seen[0]
    assert content(copying.target) == FILES | {"mine.txt": b"mine"}
    assert (copying.source / "c.npy").exists()


def test_more_than_fits_is_not_begun(copying: Copying) -> None:
    files = copying.files | {"a.npy": (10**15, "0" * 64)}
    with pytest.raises(UsageError, match=r"^machine_0 .* needs 1000000\.0 GB, and [0-9.]+ [MG]B are free there"):
        copying.send(files=files)
    assert not copying.target.exists()


@pytest.mark.parametrize("name", ["-with space, quo'te\"s, ünï and\na line", "$(touch pwned); touch pwned #`touch pwned`"])
def test_any_path(name: str, copying: Copying) -> None:
    copying.target = copying.target.parent / name / "partition_0"
    copying.send()
    assert content(copying.target) == FILES


def test_a_target_that_cannot_be(copying: Copying) -> None:
    copying.target.parent.write_text("a file")
    with pytest.raises(KgdistError, match="machine_0 .*Not a directory"):
        copying.send()


def test_problems_of_all_machines_are_told(
    copying: Copying, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgdist.base.log.log.propagate", True)
    deliveries = [copying.delivery(machine=Machine(f"no-{n}.invalid", 1, 1, n)) for n in range(2)] + [copying.delivery()]
    with pytest.raises(KgdistError) as caught:
        send(deliveries, copying.server.options(), copying.lines.append)
    told = caplog.text + str(caught.value)
    assert "no-0.invalid" in told and "no-1.invalid" in told
    assert not copying.target.exists() and copying.lines == []
    until("nothing is left on the machine", lambda: copying.server.process is None or not descendants(copying.server.process.pid))


def test_a_machine_without_kgdist(copying: Copying, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(UsageError, match="No module named 'kgdist'; install kgdist there, or name another .* --remote_python"):
        send([copying.delivery()], copying.server.options(remote_python=str(python)), copying.lines.append)


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/x", "..", ""])
def test_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Receiver(str(tmp_path), {name: (1, "0" * 64)})


def test_what_has_not_arrived_gets_no_name(tmp_path: Path) -> None:
    receiver = Receiver(str(tmp_path), {"a": (1, sha256(__file__))})
    assert receiver.look()["parts"] == {} and receiver.finish("a") == {"right": False}
    assert list(tmp_path.iterdir()) == []


# The command.


@pytest.fixture
def world(tmp_path: Path, sshd: Sshd) -> Callable[..., list[str]]:
    """Two partitions in a workspace; the words of a command that sends them, with the lines of its ip_config.txt."""
    triples = communities()
    partitioned(dataset(tmp_path / "graph", triples, entities=400, relations=5), tmp_path / "work" / "data" / "toy", 2)

    def words(*lines: str) -> list[str]:
        path = tmp_path / "ip_config.txt"
        path.write_text("\n".join(lines or ("127.0.0.1 30050 1", "127.0.0.1 30051 1")))
        flags = f"--dataset toy --data_path data --ssh_port {sshd.port} --ssh_key {sshd.user_key}".split()
        return [*flags, "--path", str(tmp_path / "work"), "--ip_config", str(path), "--remote_python", sys.executable]

    return words


def test_machines_that_share_this_folder_cost_a_look(world: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(world()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("complete already" in line for line in lines)


@pytest.mark.parametrize("more", [["--dry_run"], ["--backend", "local"]])
def test_nothing_is_sent(more: list[str], world: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    words = world("10.0.0.1 30050 1", "10.0.0.2 30050 1")  # nobody there
    assert main([*words, *more]) == 0
    assert ("would be sent to" if more == ["--dry_run"] else "is used where it is") in capsys.readouterr().out


def test_what_the_command_refuses(world: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(words: list[str]) -> str:
        assert main(words) == 2
        return capsys.readouterr().err

    assert "--ip_config: lists 1 machine, but toy is in 2 partitions" in said(world("10.0.0.1 30050 1"))
    assert "--backend: manual reaches no machine" in said([*world(), "--backend", "manual"])
    assert "ip_config.txt:1: " in said(world("10.0.0.1 x"))
    assert "no such file" in said([*world(), "--ip_config", str(tmp_path / "none")])
    assert "partition_0: no such folder; kgdist-partition makes it" in said([*world(), "--dataset", "other"])
    folder = tmp_path / "work" / "data" / "toy"
    os.rename(folder / "partition_0", folder / "x")
    os.rename(folder / "partition_1", folder / "partition_0")
    os.rename(folder / "x", folder / "partition_1")
    assert "belongs to another partitioning" in said(world())


def test_a_mixture_of_partitionings_is_refused(world: Callable[..., list[str]], tmp_path: Path) -> None:
    triples = communities()
    other = tmp_path / "work" / "data" / "other"
    partitioned(dataset(tmp_path / "graph", triples, entities=400, relations=5), other, 2, seed=9)
    folder = tmp_path / "work" / "data" / "toy" / "partition_1"
    os.rename(folder, tmp_path / "aside")
    os.rename(other / "partition_1", folder)
    assert main(world()) == 2


@pytest.mark.slow
def test_a_script_and_the_partitions_of_its_graph_go_to_their_machines(
    tmp_path: Path, sshd: Sshd, capsys: pytest.CaptureFixture[str]
) -> None:
    work, there = tmp_path / "work", tmp_path / "there"
    for name, text in {
        "made/g.json": '{"num_parts": 2}', "made/partition_0/a.npy": "0", "made/partition_0/partition.json": "{}",
        "made/partition_1/a.npy": "1", "code/train.py": "x", "code/lib/more.py": "y", "code/.git/z": "",
        "code/lib/__pycache__/q": "", "made/g.entities.tsv": "0\tcat", "made/other.entities.tsv": "0\tdog",
    }.items():  # fmt: skip
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    (tmp_path / "ip_config.txt").write_text("127.0.0.1\n127.0.0.1 30051\n")
    reach = f"--ssh_port {sshd.port} --ssh_key {sshd.user_key} --ip_config {tmp_path}/ip_config.txt".split()
    words = [*reach, "--remote_python", sys.executable, "--workspace", str(there), "--part_config", str(work / "made" / "g.json")]
    words += ["--rel_data_path", "data", "--script_folder", str(work / "code")]
    assert main([*words, "--dry_run"]) == 0 and not there.exists()
    assert main(words) == 0, capsys.readouterr().err
    found = {str(path.relative_to(there)): path.read_text() for path in there.rglob("*") if path.is_file()}
    assert found == {
        "data/g.json": '{"num_parts": 2}', "data/partition_0/a.npy": "0", "data/partition_0/partition.json": "{}",
        "data/partition_1/a.npy": "1", "code/train.py": "x", "code/lib/more.py": "y", "data/g.entities.tsv": "0\tcat",
    }  # fmt: skip
    capsys.readouterr()
    assert main(words) == 0 and capsys.readouterr().out.count("complete already") == 2 + 2 + 4
    for more, line in (
        (["--part_config", str(work / "no.json")], "--part_config: .*no.json: no such file"),
        (["--part_config", str(work / "code" / "train.py")], "train.py: is not a file of partitions"),
        (["--script_folder", "none"], "--script_folder: .*none: no such folder"),
    ):
        assert main([*words, *more]) == 2
        assert re.search(line, capsys.readouterr().err)


LOOK = {"folder": "/there", "have": [], "parts": {}, "free": 10**12}
NO_ANSWERS: list[dict[str, Any]] = [
    *(LOOK | wrong for wrong in ({"free": "x"}, {"folder": 1}, {"have": "all"}, {"parts": [1]}, {"free": None})),
    {},
    {"ready": True},
]


def test_an_answer_that_is_none_is_told_in_a_line(copying: Copying, tmp_path: Path) -> None:
    """What stands in the place of Python there says something else."""
    fake = tmp_path / "python"
    for answer in NO_ANSWERS:
        fake.write_text(f"#!/bin/sh\nread order\necho '{json.dumps(answer)}'\nread more\n")
        fake.chmod(0o755)
        with pytest.raises(
            KgdistError, match=r"^machine_0 \(127.0.0.1\): answers .* to 'look', which is not an answer; is it the same"
        ):
            send([copying.delivery()], copying.server.options(remote_python=str(fake)), copying.lines.append)
    odd = LOOK | {"have": [1, {}, "a.npy"], "parts": {"b.npy": "x", "c.npy": 10**9, "../d": 3, MANIFEST: -1}}
    fake.write_text(f"#!/bin/sh\nread order\necho '{json.dumps(odd)}'\nread more\n")
    sender = Sender(copying.delivery(), copying.server.options(remote_python=str(fake)))
    try:
        sender.look()
        assert sender.missing == sum(len(data) for name, data in FILES.items() if name != "a.npy")
    finally:
        sender.close()


@pytest.mark.parametrize("order", [b"[]", b"{}", b"x", b'{"do": "look"}', b'{"do": "look", "folder": 3, "files": {"a": 1}}'])
def test_an_order_that_is_none_is_answered_by_a_line(order: bytes) -> None:
    words = [sys.executable, "-c", program("kgdist.runtime.copy.receive")]
    done = subprocess.run(words, input=order + b"\n", capture_output=True, timeout=patience(60), check=True, env=environment(1))
    assert json.loads(done.stdout)["error"].startswith("an order was not understood (") and b"Traceback" not in done.stderr
