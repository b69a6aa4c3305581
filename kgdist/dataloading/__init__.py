"""Samplers and loaders under the names that users of DGL know; they are at home in kgdist.sampling.

negative_sampler.py  pairs of nodes that are no edges
"""

import kgdist.sampling as home
from kgdist.dataloading import negative_sampler
from kgdist.sampling import *  # noqa: F403

__all__ = ["negative_sampler", *home.__all__]
