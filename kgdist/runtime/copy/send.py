"""Every machine gets its partition, and only that: over SFTP, side by side, checked, and continued where it was interrupted.

First all machines are asked what they have (`kgdist.runtime.copy.receive` runs there), so that all problems are told at once and
one bar can count the bytes; then what is missing is sent, the manifest last. A folder that is complete is touched by nobody, so
machines that share a file system, or are this one, cost a look.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgdist.base.errors import KgdistError, OptionError, PeersLost, UsageError, one_line
from kgdist.base.files import size
from kgdist.base.log import bar, log
from kgdist.options.config import Config
from kgdist.partition.edges_folder import EdgePartition, EdgesInCommon
from kgdist.partition.folder import Partition
from kgdist.partition.manifest import numbered, version_of
from kgdist.runtime.channels.channel import Ending, Heard
from kgdist.runtime.channels.ssh_config import SshOptions
from kgdist.runtime.checks import check_parts
from kgdist.runtime.cluster.encoder_job import folders_of
from kgdist.runtime.cluster.training_plan import partition_folder
from kgdist.runtime.copy.receive import MANIFEST, part_name
from kgdist.runtime.ip_config import Machine, unplaced
from kgdist.runtime.storage import Storage

if TYPE_CHECKING:
    from kgdist.runtime.channels.ssh import SshChannel

SIDE_BY_SIDE = 32  # machines; one core encrypts for some of them anyway
ANSWER = 60.0  # seconds for an answer, besides hashing
HASHING = 20e6  # bytes a second that the slowest disk reads
TRIES = 2  # of a file that arrives wrong
# What a machine answers to each order, by type; its end is `kgdist.runtime.copy.receive`.
ANSWERS: dict[str, dict[str, type]] = {
    "look": {"folder": str, "have": list, "parts": dict, "free": int},
    "begin": {"ready": bool},
    "finish": {"right": bool},
}


@dataclass(frozen=True)
class Delivery:
    """What goes where: the folder `source` here becomes `target` on the machine."""

    machine: Machine
    source: Path
    target: str
    files: dict[str, tuple[int, str]]  # name -> bytes, sha256; the manifest last


def copy_partitions(config: Config, machines: list[Machine], tell: Callable[[str], None]) -> None:
    """kgdist-copy: send partition n to machine n, or all to the storage, unless it is there. `tell` gets a line for each.

    Raises KgdistError; what has arrived stays and is not sent again.
    """
    if (storage := Storage.of(config)) is not None:
        keep_partitions(config, storage, tell)
        return
    if config.backend == "manual":
        raise OptionError("--backend", "manual reaches no machine; copy partition_<n> to the machine of line n by your own means")
    deliver(config, deliveries_of(config, machines), tell)


def keep_partitions(config: Config, storage: Storage, tell: Callable[[str], None]) -> None:
    """Send the partitions that lie here to the storage. Raises KgdistError."""
    deliveries = deliveries_of(config, unplaced(len(numbered(partition_folder(config, 0).parent))))
    if config.dry_run:
        for d in deliveries:
            tell(f"{d.source} ({size(_total(d.files))}) would be sent to {storage.address}")
        return
    with bar(total=sum(_total(d.files) for d in deliveries), desc="copy", unit="B") as shown:
        for d in deliveries:
            sent = storage.send_partition(d.source, d.files, shown.update)
            if not sent:
                shown.update(_total(d.files))
            tell(f"{d.source}: {len(d.files)} files, {size(_total(d.files))}, {'sent' if sent else 'there already'}")


def deliver(config: Config, deliveries: list[Delivery], tell: Callable[[str], None]) -> None:
    """Send them as the options say, or tell what would be sent. Raises KgdistError."""
    if config.dry_run or config.backend == "local":
        for d in deliveries:
            where = "is used where it is" if config.backend == "local" else f"would be sent to {d.target}"
            tell(f"{d.machine.name}: {d.source} ({size(_total(d.files))}) {where}")
        return
    send(deliveries, SshOptions.of(config), tell)


def deliveries_of(config: Config, machines: list[Machine]) -> list[Delivery]:
    """The partitions that lie here, for the machines. Raises UsageError when one is missing or belongs to another graph."""
    found = []
    graph = None
    sufficient = version_of(partition_folder(config, 0)) == EdgesInCommon.FORMAT
    if not sufficient:
        check_parts(Partition.open(partition_folder(config, 0)).book.parts, machines, config.dataset)
    places = folders_of(config, machines) if sufficient else [(each, partition_folder(config, each.number)) for each in machines]
    for number, (machine, folder) in enumerate(places):
        partition = EdgePartition.open(folder) if sufficient else Partition.open(folder)
        if partition.part != number or (graph or partition.graph) != partition.graph:
            raise UsageError(f"{folder}: belongs to another partitioning than partition_0; make the partitions again")
        graph = partition.graph
        files = partition.files()
        ordered = {name: files[name] for name in [*sorted(files.keys() - {MANIFEST}), MANIFEST]}
        found.append(Delivery(machine, folder, str(folder), ordered))
    return found


def send(deliveries: list[Delivery], options: SshOptions, tell: Callable[[str], None]) -> None:
    """Bring every machine's folder up to date over SSH. Raises KgdistError naming the machine."""
    senders: list[Sender] = []
    pool = ThreadPoolExecutor(min(len(deliveries), SIDE_BY_SIDE), "kgdist-copy")
    try:
        _all([pool.submit(_look, delivery, options, senders) for delivery in deliveries], together=True)
        total, lock = sum(sender.missing for sender in senders), threading.Lock()
        started = time.monotonic()
        with bar(total=total, desc="copy", unit="B") as shown:

            def count(sent: int) -> None:
                with lock:
                    shown.update(sent)

            _all([pool.submit(sender.send, count) for sender in senders], together=False)
        for sender in sorted(senders, key=lambda one: one.machine.number):
            sent = f"{size(sender.missing)} sent" if sender.missing else "complete already"
            tell(f"{sender.machine.name}: {sender.folder}: {len(sender.files)} files, {size(_total(sender.files))}, {sent}")
        if total:
            log.info("%s in %.1f s", size(total), time.monotonic() - started)
    except BaseException:
        for sender in senders:
            sender.cut()  # the threads that still send find their connection closed
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for sender in senders:
            sender.close()


def _all(futures: list[Future[None]], *, together: bool) -> None:
    """Wait for the work of all, `together`: also after a failure; a line for each problem. Raises the last one."""
    waiting = set(futures)
    while waiting:  # woken each second, so that Ctrl-C is heard
        done, waiting = wait(waiting, timeout=1.0, return_when=FIRST_EXCEPTION)
        if not together and any(future.exception(timeout=0) for future in done):
            break
    errors = [error for future in futures if future.done() and (error := future.exception(timeout=0))]
    for error in errors:
        if not isinstance(error, KgdistError):
            raise error
    for error in errors[:-1]:
        log.error("%s", error)
    if errors:
        raise errors[-1]


def _look(delivery: Delivery, options: SshOptions, senders: list[Sender]) -> None:
    sender = Sender(delivery, options)
    senders.append(sender)  # whose connection is to be closed, whatever comes
    sender.look()


class Sender:
    """One machine on its way to a complete folder. Connects when made. Raises KgdistError, here and below."""

    def __init__(self, delivery: Delivery, options: SshOptions) -> None:
        from kgdist.runtime.channels.ssh import SshChannel

        self.machine, self.source, self.files = delivery.machine, delivery.source, delivery.files
        self.folder = delivery.target
        self._events: queue.Queue[Heard] = queue.Queue()
        self._have: set[str] = set()
        self._parts: dict[str, int] = {}
        self._channel: SshChannel = SshChannel.open(self.machine, options, self._events, module="kgdist.runtime.copy.receive")

    @property
    def missing(self) -> int:
        """Bytes that are still to be sent."""
        return sum(length - self._parts.get(name, 0) for name, (length, _) in self.files.items() if name not in self._have)

    def look(self) -> None:
        """Learn what the machine has, and whether the rest fits."""
        answer = self._ask({"do": "look", "folder": self.folder, "files": self.files}, _total(self.files))
        self.folder, parts = answer["folder"], answer["parts"]
        self._have = {name for name in self.files if name in answer["have"]}
        begun = {name: parts.get(name) for name in self.files}
        self._parts = {name: n for name, n in begun.items() if isinstance(n, int) and 0 <= n <= self.files[name][0]}
        if self.missing > answer["free"]:
            message = f"{self.folder} needs {size(self.missing)}, and {size(answer['free'])} are free there"
            raise UsageError(one_line(f"{self.machine.name}: {message}"))

    def send(self, count: Callable[[int], None]) -> None:
        """Send what is missing; `count` gets the bytes as they leave."""
        todo = [name for name in self.files if name not in self._have]
        if todo:
            self._ask({"do": "begin"}, self.files.get(MANIFEST, (0, ""))[0])
        for name in todo:
            self._send_file(name, count)

    def _send_file(self, name: str, count: Callable[[int], None]) -> None:
        length, digest = self.files[name]
        begin = self._parts.get(name, 0)
        for _ in range(TRIES):
            part = f"{self.folder}/{part_name(name, digest)}"
            self._channel.connection.upload(self.source / name, part, begin, count)
            if self._ask({"do": "finish", "name": name}, length)["right"]:
                return
            log.warning("%s: %s arrived wrong; once more from its beginning", self.machine.name, name)
            begin = 0
        message = f"{name} does not become what {MANIFEST} says; is {self.source / name} damaged? kgdist-partition --verify tells"
        raise KgdistError(one_line(f"{self.machine.name}: {message}"))

    def _ask(self, order: dict[str, Any], hashed: int) -> dict[str, Any]:
        """The answer to an order after which the machine reads `hashed` bytes."""
        self._channel.send(order)
        deadline = time.monotonic() + ANSWER + hashed / HASHING
        while True:
            try:
                heard = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise PeersLost(f"{self.machine.name}: no answer in {ANSWER + hashed / HASHING:.0f} s") from None
            if heard.kind == "log":
                log.info("%s: %s", self.machine.name, heard.value)
            elif heard.kind == "closed":
                raise self._ended(heard.value)
            elif "error" in heard.value:
                raise KgdistError(one_line(f"{self.machine.name}: {heard.value['error']}"))
            elif all(isinstance(heard.value.get(key), kind) for key, kind in ANSWERS[order["do"]].items()):
                return dict(heard.value)
            else:
                message = f"answers {str(heard.value)[:100]} to {order['do']!r}, which is not an answer; is it the same kgdist?"
                raise KgdistError(one_line(f"{self.machine.name}: {message}"))

    def _ended(self, ending: Ending) -> KgdistError:
        last = f" ({ending.last})" if ending.last else ""
        line = one_line(f"{self.machine.name}: {ending.words}{last}")
        if ending.code is None:
            return PeersLost(line)
        return UsageError(line)

    def cut(self) -> None:
        """End the connection under whatever is going on."""
        self._channel.connection.close()

    def close(self) -> None:
        """End the connection."""
        self._channel.close(grace=1.0)


def _total(files: dict[str, tuple[int, str]]) -> int:
    return sum(length for length, _ in files.values())
