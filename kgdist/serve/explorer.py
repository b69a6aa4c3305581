"""The page to explore a run: its files, and what a browser may do with them. What it shows it asks of the other paths."""

from __future__ import annotations

import functools
from pathlib import Path

import kgdist.report

_HERE = Path(__file__).parent / "page"
_STYLE = Path(kgdist.report.__file__).parent / "templates" / "page.css"  # the colours and cards of all pages

PATHS = {"/": "text/html", "/explorer.css": "text/css", "/explorer.js": "text/javascript"}  # and what each is
# Only this server's own script and style run, whatever a name in the graph might ask for; nothing is fetched from elsewhere, no
# form is sent, and no other page can lay itself around this one.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@functools.cache
def content(path: str) -> bytes:
    """The file of one of PATHS."""
    if path == "/explorer.css":
        return _STYLE.read_bytes() + (_HERE / "explorer.css").read_bytes()
    return (_HERE / (path.strip("/") or "index.html")).read_bytes()
