"""The names of the built-in score functions, and where their classes are below kgdist.models. DGL-KE calls TransE_l2 TransE, too.

All else that is known of one stands on its class. Classes need torch, which takes seconds to import; --help needs names alone.
"""

from __future__ import annotations

BUILT_IN = {
    "TransE": "transe.TransE_l2",
    "TransE_l1": "transe.TransE_l1",
    "TransE_l2": "transe.TransE_l2",
    "TransR": "transr.TransR",
    "RESCAL": "rescal.RESCAL",
    "DistMult": "distmult.DistMult",
    "ComplEx": "complex.ComplEx",
    "RotatE": "rotate.RotatE",
    "SimplE": "simple.SimplE",
    "PairRE": "pairre.PairRE",
}
