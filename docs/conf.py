"""How Sphinx reads these pages: Markdown (MyST), the docstrings of the Python API, one theme, no network.

`make docs` builds them into build/docs with warnings as errors, as tests/test_docs.py does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError

from kgdist.version import __version__

project = "kgdist"
copyright = "the authors of kgdist"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["images", "static"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"kgdist {__version__}"
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]  # for the classes of pictures
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # types of other libraries, and of parts that have no page here
smartquotes = False  # two dashes are the beginning of a flag
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

ROOT = Path(__file__).resolve().parent.parent


def _as_restructured(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """The docstrings write `code` and indented blocks of code as Markdown does; reStructuredText wants `` and ::.

    And a name that ends in _ would be a link there.
    """
    found: list[str] = []
    above = ""
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("    ") and not before.strip() and above and above[0] not in " :.":
            found += ["::", ""]
        found.append(re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", re.sub(r"^( *\w+)_:", r"\1\\_:", line)))
        above = line if line.strip() else above
    lines[:] = found


def _outside(app: Any, page: str, source: list[str]) -> None:
    """Links that leave docs/ name their file instead: it is part of the sources, not of this site."""
    here = (Path(app.srcdir) / page).parent

    def named(match: re.Match[str]) -> str:
        text, target = match[1], (here / match[2]).resolve()
        if target.is_relative_to(app.srcdir):
            return match[0]
        if not target.exists():
            raise ExtensionError(f"{page}: {match[2]} leads nowhere")
        path = str(target.relative_to(ROOT))
        return f"`{path}`" if text in path else f"{text} (`{path}`)"

    source[0] = re.sub(r"\[([^\]\n]+)\]\((\.\./[^)\s]+)\)", named, source[0])


def _light_and_dark(app: Any, page: str, source: list[str]) -> None:
    """A picture NAME-light.webp, as pages show it elsewhere, is NAME-dark.webp for who reads the site in dark."""
    both = r"![\1](\2-light.webp){.only-light}\n![\1](\2-dark.webp){.only-dark}"
    source[0] = re.sub(r"^!\[(.*)\]\((\S+)-light\.webp\)$", both, source[0], flags=re.MULTILINE)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _outside)
    app.connect("source-read", _light_and_dark)
    app.connect("autodoc-process-docstring", _as_restructured)
