"""A model of PyKEEN -> the arrays that kgdist-import reads: model.json, entity_<i>.npy and relation_<i>.npy, beside the model.

    python arrays.py FOLDER        FOLDER is what pipeline_result.save_to_directory(FOLDER) wrote

Run it where PyKEEN is installed. It unpickles FOLDER/trained_model.pkl, which runs code of that file: only for models that you
trust.
In a notebook, call `save(result.model, FOLDER)` instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch


def save(model: torch.nn.Module, folder: str | Path) -> None:
    """Write how the model scores, its scores of some triples, and its representations as it scores with them."""
    if type(model.interaction).__name__ == "ClampedInteraction":  # SimplE with a limit on scores, which only makes ties
        model.interaction = model.interaction.base
    interaction = model.interaction
    sizes = (model.num_entities, model.num_relations, model.num_entities)
    probe = torch.stack([torch.randint(size, (50,)) for size in sizes], dim=1)
    facts = {
        "model": type(model).__name__,
        "interaction": type(interaction).__name__,
        "p": getattr(interaction, "p", None),
        "power_norm": getattr(interaction, "power_norm", False),
        "inverse_triples": bool(getattr(model, "use_inverse_triples", False)),
    }
    with torch.inference_mode():
        scores = model.score_hrt(probe.to(next(model.parameters()).device)).cpu().double()
        facts["probe"] = torch.cat([probe.double(), scores.reshape(-1, 1)], dim=1).tolist()
        for kind in ("entity", "relation"):
            for number, rows in enumerate(getattr(model, f"{kind}_representations")):
                np.save(Path(folder, f"{kind}_{number}.npy"), rows(indices=None).cpu().numpy(), allow_pickle=False)
    Path(folder, "model.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    save(torch.load(Path(sys.argv[1], "trained_model.pkl"), map_location="cpu", weights_only=False).eval(), sys.argv[1])
