"""Pages: a template of templates/ and its facts as one self-contained HTML file, with style, script, charts and what draws them.

Whatever a template shows is escaped; but for the style, the script and the library, which are this package's own. The library is
packed (a page is 2 MB and not 5), and browsers unpack it.
"""

from __future__ import annotations

import base64
import functools
import gzip
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgdist.base.files import PathLike, atomic_write
from kgdist.report.charts import COLOURS

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent / "templates"
UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PIECES = re.compile(r"[^_/:,;-]*[_/:,;-]+|[^_/:,;-]+$")


def write(path: PathLike, template: str, *, drawn: bool, **facts: Any) -> None:
    """Write the page, whole or not at all. `drawn`: it has charts. Raises KgdistError when the file cannot be written."""
    own = {"style": _text("page.css"), "script": _text("page.js"), "library": _library() if drawn else None}
    text = _environment().get_template(template).render(facts, **own, when=time.strftime("%Y-%m-%d %H:%M"))
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", "replace"))


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    made = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    made.filters |= {"number": format, "colour": colour, "pieces": _PIECES.findall}
    return made


def _printable(value: Any) -> Any:
    """A text of the user's without characters that no page may have, or that turn round what follows; ours are marked as safe."""
    return UNFIT.sub("\N{REPLACEMENT CHARACTER}", value) if type(value) is str else value


def colour(number: int | str) -> str:
    """A colour of the page, for a style: one of its numbers, or `rest`."""
    return f"var(--c{number % COLOURS})" if isinstance(number, int) else f"var(--{number})"


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@functools.cache
def _library() -> str:
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()
