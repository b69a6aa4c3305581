"""kgdist-convert: a knowledge graph from one format into another."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from pathlib import Path
from typing import cast

from kgdist.base.errors import OptionError
from kgdist.cli.command import run
from kgdist.options import parse
from kgdist.options.tools import ConvertOptions


def convert(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    parsed, given = parse.parse_tool("convert", argv)
    options = cast(ConvertOptions, parsed)
    from kgdist.base import log
    from kgdist.data.dataset import load_dataset
    from kgdist.data.read.formats import SPLITS, Format
    from kgdist.data.read.lines import suffix
    from kgdist.exchange import graphs, layouts

    log.setup(debug=options.debug, quiet=options.quiet)
    try:
        form = Format.parse(options.input_format)
    except OptionError as error:
        raise OptionError("--input_format", str(error).partition(": ")[2]) from error
    refuse(options, given, built_in=form.kind == "built_in")
    from_ntriples = any(suffix(Path(file)) == ".nt" for file in options.data_files)
    if options.base is not None and options.output_format != "ntriples" and not from_ntriples:
        raise OptionError("--base", "has a say only where N-Triples are read or written; drop it")
    write = layouts.layout(options.output_format, delimiter=options.output_delimiter, base=options.base)
    dataset = load_dataset(
        path=options.data_path,
        name=options.dataset or Path(str(options.output_path)).name,
        format=options.input_format,
        files=list(options.data_files) or None,
        delimiter=options.delimiter,
        header=options.header,
        weighted=options.has_edge_importance,
    )
    names = options.data_files[2 if form.kind == "udd" else 0 :] or [f"{options.dataset}/{split}.txt" for split in SPLITS]
    files = {split: Path(options.data_path, name) for split, name in zip(SPLITS, names, strict=False)}
    if options.base is not None and from_ntriples:
        dataset = graphs.without_base(dataset, options.base)
    source = graphs.Graph(dataset, files, options.header)
    for path in graphs.convert(source, options.output_format, write, Path(str(options.output_path)), force=options.force):
        log.say(str(path))
    return 0


def refuse(options: ConvertOptions, given: Set[str], *, built_in: bool) -> None:
    """Raise OptionError for what is missing, or without a say."""
    if options.output_path is None:
        raise OptionError("--output_path", "say which folder to write")
    if built_in and options.dataset is None:
        raise OptionError("--dataset", "say which data set; --input_format built_in reads the folder <data_path>/<dataset>")
    if not built_in and "dataset" in given:
        raise OptionError("--dataset", "goes with --input_format built_in; other formats take --data_files")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(convert, argv)


if __name__ == "__main__":
    sys.exit(main())
