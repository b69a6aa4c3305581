"""The layouts that a graph can be written in, by name."""

from __future__ import annotations

from kgdist.base.errors import OptionError
from kgdist.data.read.formats import Format, check_delimiter
from kgdist.exchange import graph_libkge, graph_ntriples, graph_parquet, graph_text
from kgdist.exchange.graph import Writer

PLAIN = {
    "built_in": graph_text.write_built_in,
    "parquet": graph_parquet.write,
    "pykeen": graph_text.write_pykeen,
    "libkge": graph_libkge.write,
}


def layout(name: str, *, delimiter: str = "\t", base: str | None = None) -> Writer:
    """The writer of a layout. Raises OptionError for one that is not there, and for options that have no say in it."""
    if delimiter != "\t" and (name in PLAIN or name == "ntriples"):
        raise OptionError("--output_delimiter", f"has no say in the layout {name}; drop it")
    if name == "ntriples":
        return graph_ntriples.writer(base)
    if name in PLAIN:
        return PLAIN[name]
    try:
        form = Format.parse(name)
    except OptionError as error:
        known = f"raw_udd_XYZ or udd_XYZ (XYZ: the order of h, r, t), ntriples, {', '.join(PLAIN)}"
        raise OptionError("--output_format", f"{name!r} is no layout; use {known}") from error
    try:
        check_delimiter(delimiter)
    except OptionError as error:
        raise OptionError("--output_delimiter", str(error).partition(": ")[2]) from error
    return graph_text.writer(form, delimiter)
