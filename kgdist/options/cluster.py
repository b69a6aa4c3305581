"""The options of several machines: where they are, how they are reached, how rows travel; and how a graph is divided among them.

They are fields of `kgdist.options.config.Config` like all others, in a file of their own because no other command has them.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from kgdist.options.option import option, whole_path

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
    return text if "://" in text else whole_path(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReachOptions:
    """Of whatever runs on several machines: which they are, how they are reached, when one counts as lost."""

    # ---- cluster
    ip_config: str = _cluster(
        "ip_config.txt",
        "file of the machines, one per line: address [first port [servers]]; 30050 and 1 if left out. The machine on line n "
        "trains partition_n",
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
        "seconds of silence after which a machine, or a process of it, counts as lost; below 5, a busy one may look lost",
        low=0.5,
        high=3600,
        ours=_DIST,
    )

    # ---- ssh
    backend: str = _ssh(
        "ssh",
        "how machines are reached: ssh; local, all of them as processes of this machine; manual, through kgdist-server and "
        "kgdist-client started by hand or by a scheduler; ray, one place for each partition wherever a cluster of Ray has room "
        "(--ip_config is not read); ray-train, Ray Train's TorchTrainer runs the workers of --encoder, one per partition",
        choices=("ssh", "local", "manual", "ray", "ray-train"),
        ours=_REACH,
    )
    ssh_key: str | None = _ssh(None, "private key; otherwise those of the agent, ssh_config and ~/.ssh are tried", dglke=_REACH)
    ssh_user: str | None = _ssh(None, "user on the machines", synonyms=("--ssh_username",), ours=_REACH)
    ssh_port: int | None = _ssh(None, "port of sshd on the machines", low=1, high=65535, ours=_REACH)
    ssh_config: str | None = _ssh(None, "ssh configuration to read instead of ~/.ssh/config", ours=_REACH, metavar="FILE")
    jump_host: str | None = _ssh(None, "reach the machines through this one, [user@]host[:port]", ours=_REACH, metavar="HOST")
    accept_new_host_keys: bool = _ssh(
        False, "trust the host key of a machine never seen before, and remember it; a changed key is always refused", ours=_REACH
    )
    remote_python: str | None = _ssh(
        None,
        "path of the Python on the machines in whose environment kgdist is installed; otherwise that of the one running this "
        "command",
        ours=_REACH,
        metavar="PATH",
    )

    job: str = _manual(
        "kgdist_job.json",
        "the file that a launcher with --backend manual writes and that kgdist-server and kgdist-client read; it holds keys, so "
        "only its owner may read it",
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
        None, "host:port of the cluster; otherwise the cluster that this machine belongs to", metavar="HOST:PORT"
    )
    ray_placement: str = _ray(
        "strict_spread",
        "strict_spread: every machine of the job on its own node; spread: on different nodes as long as there are any, then "
        "several on one",
        choices=("strict_spread", "spread"),
    )
    ray_wait: float = _ray(
        0.0,
        "seconds to wait for a cluster that scales by itself to grow to what the job needs; 0: a cluster that is too small is "
        "refused at once",
        low=0,
        high=86400,
    )
    transport_security: str = _store(
        "auto",
        "how strangers are kept out: curve, by encryption and authentication; auto, the same unless every address is this "
        "machine itself, where the system admits processes of your user only; none, open to anyone who reaches the ports",
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
        "training processes on each machine, each of which does --max_step steps; 1 when not given",
        low=1,
        high=4096,
        dglke=_DIST,
    )
    negatives: str = _cluster(
        "global",
        "where negatives come from: global, all entities, as on one machine; local, the machine's own (as in DGL-KE), which "
        "moves fewer rows and ranks worse. With --encoder: all entities that the worker's partition can embed, or its core ones",
        choices=("global", "local"),
        ours=_DIST,
    )
    storage: str | None = _cluster(
        None,
        "storage that all machines reach, a folder or an address of fsspec (s3://bucket/folder, gs://, ...): each one fetches "
        "its partition from there into its own workspace, and sends its checkpoints there, so that another machine can take its "
        "place; --copy puts the partitions there",
        ours=_REACH,
        clean=_address,
        metavar="ADDRESS",
    )
    copy: bool = _cluster(False, "send every machine its partition first, as kgdist-copy does", ours=_DIST, sticky=False)
    stall_timeout: float = _cluster(
        300.0,
        "seconds after which a training process that makes no step and is not waiting for others is restarted, and a machine "
        "that makes no progress with a file it is reading or writing counts as lost",
        low=1,
        high=86400,
        ours=_DIST,
    )
    max_restarts: int = _cluster(
        3,
        "how often each training process that dies is restarted without having made a step in between; and how often the job "
        "returns to its last checkpoint after losing a server or a machine without having written a newer one in between",
        low=0,
        high=1000,
        ours=_DIST,
    )
    machine: int = _manual(0, "line of --ip_config that is this machine, counted from 0", low=0, ours=_HAND, sticky=False)

    # ---- script
    part_config: str | None = _files(
        None,
        "send the partitions of a script's graph: the file <graph_name>.json beside them, below --path. Machine n receives "
        "partition_n and that file",
        metavar="FILE.json",
    )
    rel_data_path: str | None = _files(
        None, "folder below --path to put them in; that of --part_config when not given", metavar="FOLDER"
    )
    script_folder: str | None = _files(
        None, "send this folder to every machine, to the same place below --path", metavar="FOLDER"
    )

    # ---- parameter store
    local_update: str = _store(
        "direct",
        "how a process updates rows of its own machine: direct, in shared memory without locks (Hogwild, as in DGL-KE: of two "
        "updates of a row at the same moment one may be lost); owner, through the server that owns the row, each exactly once",
        choices=("direct", "owner"),
        ours=_DIST,
    )
    transport_dtype: str = _store(
        "fp32", "number type of rows sent between machines; bf16 halves the bytes", choices=("fp32", "bf16"), ours=_DIST
    )
    pull_ahead: int = _store(
        1,
        "number of steps whose rows are requested together, each row once, and whose updates are sent together, to be applied "
        "one by one. A larger number means fewer messages, which are what limits many machines, but rows may lack the updates of "
        "that many steps. From about 16 machines on, start with 4",
        low=1,
        high=16,
        ours=_DIST,
    )
    max_inflight: int = _store(
        1,
        "most messages with updates that may be on their way to a machine, not yet confirmed; each has those of --pull_ahead "
        "steps. A larger number hides more of a slow network, but older gradients cost accuracy (FB15k on 4 machines: MRR 0.645 "
        "to 0.646 with 1, 0.643 with 2)",
        low=1,
        high=64,
        ours=_DIST,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """Of kgdist-partition: into how many parts, by what method, balanced how, written where."""

    num_parts: int | None = option(
        None,
        "number of partitions, one per machine",
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
        "several passes over the triples on disk; random: equal shares, quickly; dglke: as in the text partitions that "
        "dglke_partition wrote into the folder of the data set. With --edges: hdrf (when not given), few copies of entities, in "
        "passes over the triples; dbh, by a hash of the end that has fewer triples; random; metis, a triple goes with its tail",
        choices=("metis", "streaming", "random", "dglke", "hdrf", "dbh"),
    )
    edges: bool = _partition(
        False,
        "divide the triples, and give every partition what graph encoders need of others: the triples within --expand hops",
    )
    expand: int = _partition(
        2, "with --edges: number of hops around a partition's own triples, as many as the encoder has layers", low=0, high=16
    )
    balance: str = _partition(
        "triples",
        "what to balance: triples and entities, so that machines have the same work; or entities alone, as in DGL-KE",
        choices=("triples", "entities"),
    )
    layout: str = _partition(
        "kgdist",
        "what to write: kgdist, the files that kgdist-dist-train trains on; graph, the training triples as a graph with data, "
        "which DistGraph opens; dglke, the text files of DGL-KE",
        choices=("kgdist", "graph", "dglke"),
    )
    features: tuple[str, ...] = _partition(
        (),
        "features of entities for --layout graph: a name, and an .npy file with one row per entity, by id",
        metavar="NAME=FILE",
    )
    metadata: str | None = _partition(
        None,
        "metadata.json of a graph in DGL's chunked format (csv, .npy, Parquet), to divide instead of a data set",
        metavar="FILE",
    )
    out: str | None = _partition(
        None, "folder for the partitions, instead of the data set's own, <data_path>/<dataset>", metavar="FOLDER"
    )
    verify: bool = _partition(
        False,
        "read what was written, or, without -k, what is there, and check that every triple is in exactly one partition",
    )
