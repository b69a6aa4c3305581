"""kgdist trains knowledge-graph embeddings, from one laptop upwards, with the commands of DGL-KE.

Importing the package costs nothing: no torch, no numba, no files. The parts are imported by their own names.
"""

from __future__ import annotations

from kgdist.version import __version__

__all__ = ["__version__"]
