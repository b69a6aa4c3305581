"""From the options given to the options meant: fill-ins that are said aloud, and contradictions refused before any work.

Pure but for one question, how many CUDA devices there are, and that only when a GPU is asked for. What needs the data (a split
that is missing, ids, sizes) is checked where the data is loaded; what a score function asks for, by `settle` of its registry
(`kgdist.models.registry`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import PurePath

from kgdist.base.errors import OptionError
from kgdist.options.config import OPTIONS, Config

EXCLUSIVE = (("max_step", "max_epoch"),)  # at one level only one of them; a higher level's choice replaces the lower one's


def resolve(config: Config, explicit: Collection[str] = (), *, devices: int | None = None) -> tuple[Config, list[str]]:
    """Fill in and check `config`; returns it with one note for everything that was changed.

    `explicit` are the names that the user set, as opposed to defaults and presets; `devices` the number of CUDA devices (default:
    ask torch). Resolving twice is the same as once. Raises OptionError for options that contradict one another.
    """
    notes: list[str] = []
    _refuse_contradictions(config, explicit)
    config = _data(config, explicit, notes)
    config = _batch(config, notes)
    config = _processes(config, notes, devices)
    return config, notes


def _refuse_contradictions(config: Config, explicit: Collection[str]) -> None:
    for first, second in EXCLUSIVE:
        if first in explicit and second in explicit:
            raise OptionError(f"--{first}", f"contradicts --{second}; give one of them")
    if config.resume and config.init_from:
        raise OptionError("--resume", "contradicts --init_from: go on with a run, or start a new one from its embeddings")
    if config.resume and config.preset:
        raise OptionError("--resume", "contradicts --preset: a run that goes on keeps its options")
    if config.resume and "save_path" in explicit:
        raise OptionError(
            "--save_path", f"has no place beside --resume: the run goes on in its own folder, {config.resume}; drop it"
        )
    if config.debug and config.quiet:
        raise OptionError("--debug", "contradicts --quiet")
    if config.early_stop_patience and not config.valid:
        raise OptionError("--early_stop_patience", "needs --valid, whose MRR it watches")
    if config.pairwise and config.loss_genre not in ("Logistic", "Hinge"):
        message = f"is not defined for --loss_genre {config.loss_genre}; add --loss_genre Logistic or Hinge"
        raise OptionError("--pairwise", message)
    if config.pairwise and config.neg_adversarial_sampling:
        message = "contradicts --neg_adversarial_sampling, which weighs the negatives' own losses; drop one of them"
        raise OptionError("--pairwise", message)
    if config.neg_deg_sample_eval and not config.no_eval_filter:
        raise OptionError("--neg_deg_sample_eval", "needs --no_eval_filter")
    if config.neg_deg_sample_eval and config.neg_sample_size_eval < 0:
        message = "adds entities to a sample, so it needs --neg_sample_size_eval N; now all entities are ranked already"
        raise OptionError("--neg_deg_sample_eval", message)


def _data(config: Config, explicit: Collection[str], notes: list[str]) -> Config:
    count = len(config.data_files)
    if config.format == "built_in":
        if count:
            raise OptionError("--data_files", "own files need --format raw_udd_hrt (names) or udd_hrt (integer ids)")
        return config
    low, high, what = (1, 3, "train [valid [test]]") if config.format.startswith("raw") else (
        3, 5, "entities relations train [valid [test]]")  # fmt: skip
    if not low <= count <= high:
        raise OptionError("--data_files", f"--format {config.format} takes {low} to {high} files ({what}), not {count}")
    if config.dataset != OPTIONS["dataset"].default or "dataset" in explicit:
        return config
    file = config.data_files[low - 1]
    name = PurePath(file.replace("\\", "/")).name.split(".")[0] or "data"
    notes.append(f"--dataset {name}: the name is taken from {file}")
    return config.replace(dataset=name)


def _batch(config: Config, notes: list[str]) -> Config:
    size, chunk = config.batch_size, config.neg_sample_size
    if chunk >= size or size % chunk == 0:
        return config
    whole = -(-size // chunk) * chunk
    OPTIONS["batch_size"].check(whole)
    notes.append(f"--batch_size {whole}: rounded up from {size} to a multiple of --neg_sample_size {chunk}")
    return config.replace(batch_size=whole)


def _processes(config: Config, notes: list[str], devices: int | None) -> Config:
    gpus = config.gpu
    if gpus == (-1,):
        for name in ("mix_cpu_gpu", "async_update"):
            if getattr(config, name):
                raise OptionError(f"--{name}", "needs a GPU: add --gpu 0, or drop it to train on the CPU")
    else:
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
    asked = " ".join(map(str, gpus))
    if -1 in gpus:
        raise OptionError("--gpu", f"-1 means the CPU and cannot be mixed with GPUs, not {asked}")
    if len(set(gpus)) < len(gpus):
        raise OptionError("--gpu", f"each GPU once, not {asked}; several processes share one with --num_proc")
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
