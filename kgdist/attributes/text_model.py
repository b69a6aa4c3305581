"""Texts as numbers by a model of sentence-transformers, which lies in a folder (the extra kgdist[text]).

A model computes texts in batches, padded to the longest, so the last bits of a row depend on what stands beside it and on how
many threads there are. So batches are fixed: the first BATCH rows of all that are transformed, the next BATCH, and so on, by one
thread. `chunk_rows` makes chunks begin where a batch does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import KgdistError

BATCH = 32  # texts that are computed together
MOST = 16 * BATCH  # rows of a chunk: a large model takes minutes for some thousand texts, and workers tell of whole chunks


def chunk_rows(asked: int) -> int:
    """Rows of a chunk: whole batches, about as many as asked for, and at most MOST."""
    return min(max(asked // BATCH, 1) * BATCH, MOST)


@functools.lru_cache(maxsize=4)
def load_model(folder: str, device: str) -> Any:
    """The model in the folder, once for all attributes of this process; nothing is fetched. Raises KgdistError."""
    if not Path(folder).is_dir():
        raise KgdistError(f"{folder}: is not a folder; put the model there, or take encoder: hashed")
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging
    except ImportError as error:
        raise KgdistError(f"a model of texts needs a package that is not there ({error}); pip install 'kgdist[text]'") from error
    logging.disable_progress_bar()
    try:
        return SentenceTransformer(folder, device=device, local_files_only=True).eval()
    except Exception as error:  # what it raises for a file that is missing or broken is anything
        told = str(error).strip().splitlines()
        raise KgdistError(
            f"{folder}: holds no model that sentence-transformers can load ({told[0][:200] if told else type(error).__name__})"
        ) from error


def encoded(model: Any, texts: Sequence[str]) -> np.ndarray:
    """float32[n, width] of one batch."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        made = model.encode(list(texts), batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True)
    finally:
        torch.set_num_threads(threads)
    return np.asarray(made, np.float32)
