"""From what a user has set to the options of a training on this machine: those of a run that is resumed, fill-ins, refusals."""

from __future__ import annotations

from kgdist.base.errors import OptionError
from kgdist.base.log import tell
from kgdist.models.registry import settle
from kgdist.options.config import Config
from kgdist.options.parse import Parsed
from kgdist.runs import rundir


def ready(parsed: Parsed) -> Config:
    """The options to train with; what was filled in is told. Raises OptionError, CheckpointError."""
    config = parsed.config
    if config.resume:
        saved = rundir.open_run(config.resume, config.save_path).config
        config = parsed.over(saved).replace(resume=config.resume)
        for name in ("model_name", "dataset"):
            if getattr(config, name) != getattr(saved, name):
                raise OptionError(f"--{name}", "cannot change when a run is resumed; start a new one with --init_from")
    config, notes = settle(config, set(parsed.explicit))
    for note in (*parsed.notes, *notes):
        tell(note)
    return config
