"""kgdist-convert: a knowledge graph from one format into another."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.base.errors import OptionError
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import ConvertOptions


@command()
def main(argv: Sequence[str]) -> int:
    options: ConvertOptions = parse.parse_tool("convert", argv)
    from kgdist.base import log
    from kgdist.data.dataset import HEADER, READING, load_dataset
    from kgdist.data.read.columns import Spec
    from kgdist.data.read.formats import RDF, SPLITS, Format, has_header
    from kgdist.data.read.lines import suffix
    from kgdist.exchange import graphs, layouts

    set_up_log(options)
    from_ntriples = any(suffix(Path(file)) in RDF for file in options.data_files)
    if options.base is not None and options.output_format != "ntriples" and not from_ntriples:
        raise OptionError("--base", "has an effect only where N-Triples are read or written; drop it")
    write = layouts.layout(options.output_format, delimiter=options.output_delimiter, base=options.base)
    dataset = load_dataset(
        path=options.data_path,
        name=options.dataset or Path(str(options.output_path)).name,
        format=options.input_format,
        files=list(options.data_files) or None,
        delimiter=options.delimiter,
        header=options.header,
        quoted=options.quoted,
        weighted=options.has_edge_importance,
        judged=READING,
    )
    dictionaries = 2 if options.input_format.startswith("udd_") else 0
    names = options.data_files[dictionaries:] or [f"{options.dataset}/{split}.txt" for split in SPLITS]
    files = {split: Path(options.data_path, name) for split, name in zip(SPLITS, names, strict=False)}
    if options.base is not None and from_ntriples:
        dataset = graphs.without_base(dataset, options.base)
    form = Format.parse(options.input_format)
    spec = Spec(
        form.order, options.delimiter, HEADER[options.header], limits=(0, 0) if dictionaries else None, quoted=options.quoted
    )
    headed = frozenset(split for split, file in files.items() if (has_header(file, spec) if spec.header is None else spec.header))
    source = graphs.Written(dataset, files, headed)
    for path in graphs.convert(source, options.output_format, write, Path(str(options.output_path)), force=options.force):
        log.say(str(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
