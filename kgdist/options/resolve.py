"""From the options given to the options meant: fill-ins that are said aloud.

Pure but for one question, how many CUDA devices there are, and that only when a GPU is asked for. What a score function asks for
is filled in by `settle` of its registry (`kgdist.models.registry`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath

from kgdist.base.errors import OptionError
from kgdist.options.config import OPTIONS, Config
from kgdist.options.contradictions import FILES, of_a_run, refuse

MOST = 8  # processes that are started unasked: as many as DGL-KE has published figures for; more lose updates on small graphs


def resolve(config: Config, explicit: Collection[str] = (), *, devices: int | None = None) -> tuple[Config, list[str]]:
    """Fill in and check `config`; returns it with one note for everything that was changed.

    `explicit` are the names that the user set, as opposed to defaults and presets; `devices` the number of CUDA devices (default:
    ask torch). Resolving twice is the same as once. Raises OptionError for options that contradict one another.
    """
    notes: list[str] = []
    refuse(of_a_run(config, explicit))
    config = named(config, explicit, notes)
    config = _everybody(config, explicit, notes) if config.candidates == "all" else _batch(config, notes)
    config = _processes(config, notes, devices)
    return config, notes


def named(config: Config, explicit: Collection[str], notes: list[str]) -> Config:
    """With a name for the user's own files, where they have none, and a note of it."""
    if config.format == "built_in" or config.dataset != OPTIONS["dataset"].default or "dataset" in explicit:
        return config
    file = config.data_files[FILES[config.format.rpartition("_")[0]][0] - 1]  # the train split's
    name = PurePath(file.replace("\\", "/")).name.split(".")[0] or "data"
    notes.append(f"--dataset {name}: the name is taken from {file}")
    return config.replace(dataset=name)


def _everybody(config: Config, explicit: Collection[str], notes: list[str]) -> Config:
    """One process, whose threads own the rows; all answers of a query where they count as one."""
    if config.num_proc > 1:
        saved = config.resume is not None and "num_thread" not in explicit  # the run's own, of another --num_proc
        threads = config.num_proc * (1 if saved else config.num_thread)
        if threads > (most := int(OPTIONS["num_thread"].high or threads)):
            many = f"--num_proc {config.num_proc} --num_thread {config.num_thread}"
            raise OptionError(many, f"with --candidates all one process trains, with {most} threads at most")
        config = config.replace(num_proc=1, num_thread=threads, worker="process")
        notes.append(f"--num_thread {threads}: with --candidates all one process trains, whose threads share the entities")
    if (whole := with_all_answers(config, explicit)) != config:
        notes.append("--answers 0: with --k_vs_all the answers of a query are one example")
    return whole


def with_all_answers(config: Config, explicit: Collection[str]) -> Config:
    """With all answers of a query in a step where they count as one and nobody has given a number."""
    usual = config.answers == OPTIONS["answers"].default and "answers" not in explicit and config.resume is None
    return config.replace(answers=0) if config.k_vs_all and usual else config


def meant(config: Config) -> set[str]:
    """The options of a resolved training whose default is not what they are taken for when nobody gives them."""
    found = {"answers"} if config.k_vs_all else set[str]()
    return found | {"num_thread"} if config.candidates == "all" else found


def doubts(config: Config, explicit: Collection[str]) -> Iterator[str]:
    """What the options of a new training, already resolved, will hardly do as they are."""
    if config.resume is not None:
        return
    for name, needed, has in (
        ("margin", "--loss_genre Hinge", config.loss_genre == "Hinge"),
        ("adversarial_temperature", "--neg_adversarial_sampling", config.neg_adversarial_sampling),
    ):
        value = getattr(config, name)
        if name in explicit and not has and value != OPTIONS[name].default:  # refused by none of DGL-KE's commands
            yield f"--{name} {value:g} has no effect without {needed}"
    usual = OPTIONS["regularization_coef"].default
    if config.regularizer != "lp" and "regularization_coef" not in explicit and config.regularization_coef == usual:
        yield f"--regularization_coef {usual:g} is what lp takes; {config.regularizer} does little below .001 (docs/choosing.md)"
    if config.lr_schedule == "plateau" and config.valid and config.max_epoch is None and config.eval_interval:
        looks = config.max_step // config.eval_interval
        if looks <= config.plateau_patience:
            rest = "the rate is never lowered, for which a smaller --eval_interval is needed"
            yield f"--eval_interval {config.eval_interval}: only {looks} validations before the last step, so {rest}"


def _batch(config: Config, notes: list[str]) -> Config:
    size, chunk = config.batch_size, config.neg_sample_size
    if chunk >= size or size % chunk == 0:
        return config
    whole = -(-size // chunk) * chunk
    OPTIONS["batch_size"].check(whole)
    notes.append(f"--batch_size {whole}: rounded up from {size} to a multiple of --neg_sample_size {chunk}")
    return config.replace(batch_size=whole)


def _processes(config: Config, notes: list[str], devices: int | None) -> Config:
    if config.gpu != (-1,):
        config = _gpus(config, notes, devices)
    if config.num_proc > 1 and config.force_sync_interval < 0:
        config = config.replace(force_sync_interval=1000)
        notes.append("--force_sync_interval 1000: the processes wait for one another every 1000 steps")
    return config


def require_gpus(gpus: Sequence[int], devices: int | None = None) -> None:
    """Raise OptionError unless the machine has these GPUs; `devices`: how many it has, where that is known."""
    asked = " ".join(map(str, gpus))
    if devices is None:
        import torch  # slow to import, and not needed on the CPU

        devices = torch.cuda.device_count()
    if devices == 0:
        raise OptionError(f"--gpu {asked}", "no CUDA device can be used here; drop the flag to train on the CPU")
    if max(gpus) >= devices:
        raise OptionError(
            f"--gpu {asked}", f"this machine has the GPUs 0 to {devices - 1}" if devices > 1 else "there is only GPU 0 here"
        )


def _gpus(config: Config, notes: list[str], devices: int | None) -> Config:
    gpus = config.gpu
    require_gpus(gpus, devices)
    if len(gpus) == 1:
        return config
    if config.num_proc < len(gpus):
        config = config.replace(num_proc=len(gpus))
        notes.append(f"--num_proc {len(gpus)}: one process for each GPU")
    if config.num_proc % len(gpus):
        raise OptionError("--num_proc", f"must be a multiple of the {len(gpus)} GPUs, not {config.num_proc}")
    if not config.mix_cpu_gpu:
        config = config.replace(mix_cpu_gpu=True)
        notes.append("--mix_cpu_gpu added: several GPUs share one entity table, in CPU memory")
    return config


def processes(
    command: str, config: Config, explicit: Collection[str], cores: int, *, shared: bool = False
) -> tuple[int, list[str]]:
    """--num_proc where the user has not set it, and what to say about it.

    Ranks do not depend on it, so kgdist-eval takes all cores, and so does a training whose threads are to share all entities
    (`shared`: --candidates all), for they repeat themselves bit for bit. A preset states its steps in total, and they are
    divided: it takes the cores, too, unless a --seed asks for a run that can be repeated bit for bit. --max_step counts for every
    process (DGL-KE), so more processes would be another, longer training: one, and a line that tells of the others.
    """
    if command not in ("train", "eval") or cores == 1:
        return config.num_proc, []  # several machines: --num_client_proc, as many as the user says
    if config.gpu != (-1,) or config.resume or {"num_proc", "num_thread"} & set(explicit):
        return config.num_proc, []
    if command == "eval" or shared:
        return cores, []
    number = min(cores, MOST)
    if config.preset != "none" and not {"seed", "max_step"} & set(explicit):
        return number, [f"--num_proc {number}: the preset's work is divided; one process would repeat itself bit for bit"]
    what = "each does --max_step steps" if config.max_epoch is None else "they divide the epochs"
    return config.num_proc, [f"using 1 of {cores} cores; --num_proc {number} uses {number} ({what})"]


def most_jobs(config: Config, explicit: Collection[str], cores: int, trials: int) -> int:
    """--jobs of kgdist-tune where the user has not set it: all cores, unless the search is to be repeatable or the GPU shared."""
    if "seed" in explicit or config.gpu != (-1,):
        return 1
    return max(1, min(MOST, cores // (config.num_proc * config.num_thread), trials))
