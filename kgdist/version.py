"""The version, in the one place that packaging and every message between processes read."""

from __future__ import annotations

__version__ = "0.1.0"
