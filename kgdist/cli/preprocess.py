"""kgdist-preprocess: the attributes of entities as features."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kgdist.base.errors import KgdistError, OptionError, counted
from kgdist.base.files import atomic_write
from kgdist.base.log import log, result, say, tell
from kgdist.base.machine import peak_of_this_process, usable_cores
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import PreprocessOptions

if TYPE_CHECKING:
    from kgdist.attributes.attribute_folder import Attributes
    from kgdist.attributes.declaration import Declaration
    from kgdist.attributes.transforming import Executor
    from kgdist.data.vocabulary import Vocabulary


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    options: PreprocessOptions = parse.parse_tool("preprocess", argv)
    set_up_log(options)
    if options.draft_schema:
        return draft_schema(options)
    from kgdist.attributes.attribute_folder import open_attributes
    from kgdist.attributes.declaration import read_declaration
    from kgdist.attributes.preprocess import coverage, preprocess
    from kgdist.attributes.scanning import read_ids
    from kgdist.base.text_table import TextTable

    if options.report:
        from kgdist.base.files import check_output
        from kgdist.report.charts import require

        require("--report")  # now, not after the work
        check_output("--report", options.report)
    began = time.perf_counter()
    declarations = [read_declaration(Path(file)) for file in options.schema]
    device = device_of(options, declarations)
    with contextlib.ExitStack() as stack:
        executor, workers = executor_of(options, stack)
        manifest, times = preprocess(
            [Path(file) for file in options.entities],
            declarations,
            Path(options.out),
            executor=executor,
            vocabulary=dictionary(options),
            fit_on=None if options.fit_on is None else read_ids(Path(options.fit_on)),
            chunk_size=options.chunk_size,
            force=options.force,
            device=device,
        )
    attributes = open_attributes(options.out)
    titles, columns = coverage(manifest)
    for line in TextTable(titles, None if options.json else sys.stdout).lines(columns):
        say(line)
    say(f"written: {options.out}")
    seconds = {"scan": times.scan, "transform": times.transform, "work": times.work, "whole": time.perf_counter() - began}
    tell(
        f"reading and fitting {times.scan:.1f} s, transforming {times.transform:.1f} s ({times.work:.1f} s of work by "
        f"{workers}), {seconds['whole']:.1f} s in all; at most {peak_of_this_process() / 2**20:,.0f} MiB of memory"
    )
    if options.report:
        report_or_warn(options, attributes, declarations, seconds, workers)
    rounded = {name: round(each, 3) for name, each in seconds.items()}
    about = {"node_types": manifest["node_types"], "seconds": rounded, "peak_bytes": peak_of_this_process()}
    result({"folder": options.out, **about})
    return 0


def device_of(options: PreprocessOptions, declarations: Sequence[Declaration]) -> str:
    """Where models of texts compute. Raises OptionError for a GPU that is not there, or has nothing to do."""
    if options.gpu < 0:
        return "cpu"
    from kgdist.attributes.declaration import TextKind
    from kgdist.options.resolve import require_gpus

    settings = [each.settings for declaration in declarations for each in declaration.attributes]
    if not any(isinstance(each, TextKind) and each.model is not None for each in settings):
        raise OptionError("--gpu", "only models of texts compute on it, and no text has one (encoder: FOLDER); drop the flag")
    require_gpus([options.gpu])
    return f"cuda:{options.gpu}"


def report_or_warn(
    options: PreprocessOptions,
    attributes: Attributes,
    declarations: Sequence[Declaration],
    seconds: Mapping[str, float],
    workers: str,
) -> None:
    """Write the page and say so; when it cannot be written that is a warning, for the attributes are."""
    from kgdist.report.attributes_report import write_attributes_report

    assert options.report is not None
    times = [
        ("reading and fitting", f"{seconds['scan']:.1f} s"),
        ("transforming and writing", f"{seconds['transform']:.1f} s"),
        (f"work of {workers}, summed", f"{seconds['work']:.1f} s"),
        ("the whole", f"{seconds['whole']:.1f} s"),
        ("memory of this process", f"{peak_of_this_process() / 2**20:,.0f} MiB at most"),
    ]
    try:
        write_attributes_report(options.report, attributes, declarations, times)
        say(f"report: {options.report}")
    except KgdistError as error:
        log.warning("no report: %s; the attributes are written", error)


def executor_of(options: PreprocessOptions, stack: contextlib.ExitStack) -> tuple[Executor, str]:
    """Who transforms until `stack` is closed, and in words."""
    from kgdist.attributes.transforming import InThisProcess

    if options.executor == "local":
        return InThisProcess(), "this process"
    if options.executor == "ray":
        from kgdist.runtime.ray_chunks import RayExecutor

        tasks = stack.enter_context(RayExecutor(options.ray_address, options.num_workers))
        return tasks, f"{counted(tasks.workers, 'task')} of Ray"
    from kgdist.runtime.processes.chunks import ProcessExecutor

    workers = options.num_workers or usable_cores()
    return stack.enter_context(ProcessExecutor(workers)), f"{workers} processes" if workers > 1 else "1 process"


def dictionary(options: PreprocessOptions) -> Vocabulary | None:
    """The entities of the data set, if one is named."""
    if options.dataset is None:
        return None
    from kgdist.data.dataset import load_dataset

    return load_dataset(
        path=options.data_path,
        name=options.dataset,
        format=options.format,
        files=list(options.data_files) or None,
        delimiter=options.delimiter,
        header=options.header,
        quoted=options.quoted,
    ).entities


def draft_schema(options: PreprocessOptions) -> int:
    """Write the schema that is guessed, or say it. Raises OptionError when the file is there."""
    from kgdist.attributes.draft import draft

    text = draft(Path(options.entities[0]))
    if not options.schema:
        for line in text.splitlines():
            say(line)
    else:
        target = Path(options.schema[0])
        if target.exists() and not options.force:
            raise OptionError("--schema", f"{target} is there already; name another file, or --force replaces it")
        with atomic_write(target, "w") as file:
            file.write(text)
        say(f"written: {target}")
        log.info("look it over, then: kgdist-preprocess --entities %s --schema %s", options.entities[0], target)
    result({"schema": text})
    return 0


if __name__ == "__main__":
    sys.exit(main())
