"""The options of several machines: where they are, how they are reached, how rows travel; and how a graph is divided among them.

They are fields of `kgdist.options.config.Config` like all others, in a file of their own because no other command has them.
"""

from __future__ import annotations

import dataclasses
import os
from functools import partial

from kgdist.options.option import option

_DIST = ("dist-train",)
_REACH = ("dist-train", "copy")
_HAND = ("server", "client")
_PARTITION = ("partition",)

_cluster = partial(option, group="cluster")
_ssh = partial(option, group="ssh")
_manual = partial(option, group="without ssh")
_ray = partial(option, group="ray", ours=("dist-train",), sticky=False)
_files = partial(option, group="script", ours=("copy",), sticky=False)
_store = partial(option, group="parameter store")
_partition = partial(option, group="partition", ours=_PARTITION, sticky=False)


def _address(text: str) -> str:
    """A folder with its whole path; an address as it is."""
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReachOptions:
    """Of whatever runs on several machines: which they are, how they are reached, when one counts as lost."""

    # ---- cluster
    ip_config: str = _cluster(
        "ip_config.txt",
        "file of the machines, one a line: address [first port [servers]], 30050 and 1 where they are left out. The machine of "
        "line n trains partition_n",
        dglke=_REACH,
        metavar="FILE",
    )
    path: str = _cluster(
        ".",
        "workspace, the same on every machine: relative folders (--data_path, --save_path) are below it",
        synonyms=("--workspace",),
        dglke=_REACH,
        metavar="FOLDER",
    )
    dry_run: bool = _cluster(
        False, "print what would be done, and do nothing", ours=("dist-train", "partition", "copy"), sticky=False
    )
    peer_timeout: float = _cluster(
        15.0,
        "seconds of silence after which a machine, or a process of it, counts as lost; below 5 a busy machine may look like one",
        low=0.5,
        high=3600,
        ours=_DIST,
    )

    # ---- ssh
    backend: str = _ssh(
        "ssh",
        "how machines are reached: ssh; local, all of them as processes of this machine; manual, by kgdist-server and "
        "kgdist-client started by hand or by a scheduler; ray, a cluster of Ray places one for each partition, wherever it has "
        "room, and --ip_config is not read; ray-train, Ray Train's TorchTrainer runs the workers of --encoder, one a partition",
        choices=("ssh", "local", "manual", "ray", "ray-train"),
        ours=_REACH,
    )
    ssh_key: str | None = _ssh(None, "private key; otherwise those of the agent, of ssh_config and of ~/.ssh", dglke=_REACH)
    ssh_user: str | None = _ssh(None, "user on the machines", synonyms=("--ssh_username",), ours=_REACH)
    ssh_port: int | None = _ssh(None, "port of their sshd", low=1, high=65535, ours=_REACH)
    ssh_config: str | None = _ssh(None, "ssh configuration to read instead of ~/.ssh/config", ours=_REACH, metavar="FILE")
    jump_host: str | None = _ssh(None, "reach the machines through this one, [user@]host[:port]", ours=_REACH, metavar="HOST")
    accept_new_host_keys: bool = _ssh(
        False, "trust the host key of a machine never seen before, and remember it; a changed key is always refused", ours=_REACH
    )
    remote_python: str | None = _ssh(
        None,
        "Python of the machines, in whose environment kgdist is installed; otherwise the path of the one that runs this command",
        ours=_REACH,
        metavar="PATH",
    )

    job: str = _manual(
        "kgdist_job.json",
        "the file that a launcher with --backend manual writes, and kgdist-server and kgdist-client read; it holds keys, and "
        "only its owner can read it",
        ours=("dist-train", *_HAND),
        metavar="FILE",
        sticky=False,
    )
    control: str | None = _manual(
        None,
        "with --backend manual: host:port of the machine that runs this command, where kgdist-server and kgdist-client find it; "
        "otherwise the first machine of --ip_config and the port after its servers'",
        ours=_DIST,
        metavar="HOST:PORT",
        sticky=False,
    )
    ray_address: str | None = _ray(
        None, "host:port of the cluster; otherwise the one that this machine belongs to", metavar="HOST:PORT"
    )
    ray_placement: str = _ray(
        "strict_spread",
        "strict_spread: every machine of the job on a node of its own; spread: as far as nodes go, then several on one",
        choices=("strict_spread", "spread"),
    )
    ray_wait: float = _ray(
        0.0,
        "seconds for the cluster to grow to what the job needs, where it scales by itself; 0: one that is too small is refused "
        "at once",
        low=0,
        high=86400,
    )
    transport_security: str = _store(
        "auto",
        "how strangers are kept out: curve, encryption and authentication; auto, curve unless every address is this machine "
        "itself: there the system admits processes of your user only; none, open to whoever reaches the ports",
        choices=("auto", "curve", "none"),
        ours=_DIST,
    )

    @property
    def cores(self) -> int:
        """That a machine of the job is kept busy with."""
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterOptions(ReachOptions):
    """Of training on several machines."""

    # ---- cluster
    num_client_proc: int | None = _cluster(
        None,
        "training processes of each machine; every one does --max_step steps. 1 when not given",
        low=1,
        high=4096,
        dglke=_DIST,
    )
    negatives: str = _cluster(
        "global",
        "where negatives are drawn: from all entities, as on one machine, or from the machine's own (DGL-KE), which moves fewer "
        "rows and ranks worse. With --encoder: from all that the worker's partition suffices for, or from its core entities",
        choices=("global", "local"),
        ours=_DIST,
    )
    storage: str | None = _cluster(
        None,
        "what all machines reach, a folder or an address of fsspec (s3://bucket/folder, gs://, ...): each fetches its partition "
        "from there into its own workspace, and sends its checkpoints, so that another machine can take its place; --copy puts "
        "the partitions there",
        ours=_REACH,
        clean=_address,
        metavar="ADDRESS",
    )
    copy: bool = _cluster(False, "first send every machine its partition, as kgdist-copy does", ours=_DIST, sticky=False)
    stall_timeout: float = _cluster(
        300.0,
        "seconds after which a training process that makes no step, and is not waiting for others, is started again, and a "
        "machine that reads or writes nothing of what it is at counts as lost",
        low=1,
        high=86400,
        ours=_DIST,
    )
    max_restarts: int = _cluster(
        3,
        "how often a training process that died is started again, each, as long as it makes no step between; and how often the "
        "job goes back to its last checkpoint when a server or a machine died, as long as it makes no newer one between",
        low=0,
        high=1000,
        ours=_DIST,
    )
    machine: int = _manual(0, "which line of --ip_config this machine is, counted from 0", low=0, ours=_HAND, sticky=False)

    # ---- script
    part_config: str | None = _files(
        None,
        "send the partitions of a script's graph: the file <graph_name>.json beside them, below --path. Machine n gets "
        "partition_n and that file",
        metavar="FILE.json",
    )
    rel_data_path: str | None = _files(
        None, "folder below --path that gets them; that of --part_config when not given", metavar="FOLDER"
    )
    script_folder: str | None = _files(
        None, "send this folder to every machine, to the same place below --path", metavar="FOLDER"
    )

    # ---- parameter store
    local_update: str = _store(
        "direct",
        "how a process updates rows of its own machine: direct, in shared memory without locks (Hogwild, as DGL-KE: two updates "
        "of a row at one moment may lose one); owner, by the server that owns the row, every update exactly once",
        choices=("direct", "owner"),
        ours=_DIST,
    )
    transport_dtype: str = _store(
        "fp32", "numbers on their way between machines; bf16 halves the bytes", choices=("fp32", "bf16"), ours=_DIST
    )
    pull_ahead: int = _store(
        1,
        "steps whose rows are asked for together, each row once, and whose updates are sent together, to be applied one by one. "
        "More make fewer messages, which is what limits many machines; but a row may be so many steps old, lacking as many of "
        "the process's own updates, and others see those as much later. A number to start with is 4, from some 16 machines on",
        low=1,
        high=16,
        ours=_DIST,
    )
    max_inflight: int = _store(
        1,
        "messages with updates on their way to each machine that it has not confirmed yet, at most; each has those of "
        "--pull_ahead steps. More hide a slow network longer, but older gradients cost accuracy (FB15k on 4 machines: MRR .645 "
        "to .646 with 1, .643 with 2)",
        low=1,
        high=64,
        ours=_DIST,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """Of kgdist-partition: into how many parts, by what method, balanced how, written where."""

    num_parts: int | None = option(
        None,
        "number of partitions, one for each machine",
        short="-k",
        synonyms=("--num-parts",),
        low=1,
        high=65535,
        group="partition",
        dglke=_PARTITION,
        sticky=False,
    )
    method: str = _partition(
        "metis",
        "metis: few triples between partitions, for graphs that fit into memory several times over; streaming: nearly as few, in "
        "several passes over the triples on disk; random: even shares at once; dglke: as the text partitions in the folder of "
        "the data set say, which dglke_partition wrote. With --edges hdrf (when not given): few copies of entities, in passes "
        "over the triples; dbh: by a hash of the end of fewer triples; random; metis: a triple goes with its tail",
        choices=("metis", "streaming", "random", "dglke", "hdrf", "dbh"),
    )
    edges: bool = _partition(
        False,
        "divide triples, and give every partition all that graph encoders need of others: the triples within --expand hops",
    )
    expand: int = _partition(
        2, "with --edges: hops around the entities of a partition's own triples, as many as an encoder has layers", low=0, high=16
    )
    balance: str = _partition(
        "triples",
        "what is evened out: triples, so that machines have the same work, besides entities; or entities alone, as DGL-KE",
        choices=("triples", "entities"),
    )
    layout: str = _partition(
        "kgdist",
        "what is written: kgdist's own files, which kgdist-dist-train trains on; graph: the training triples as a graph with "
        "features, which DistGraph opens; dglke: the text files of DGL-KE",
        choices=("kgdist", "graph", "dglke"),
    )
    features: tuple[str, ...] = _partition(
        (),
        "features of entities for --layout graph: a name, and an .npy file with a row for each entity, by id",
        metavar="NAME=FILE",
    )
    metadata: str | None = _partition(
        None,
        "metadata.json of a graph in DGL's chunked format (csv, .npy, Parquet), which is divided instead of a data set",
        metavar="FILE",
    )
    out: str | None = _partition(
        None, "folder that gets the partitions, instead of the data set's own, <data_path>/<dataset>", metavar="FOLDER"
    )
    verify: bool = _partition(
        False,
        "read what was written, or, without -k, what is there, and prove that every triple is in exactly one partition",
    )
