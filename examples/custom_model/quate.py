"""QuatE: a relation turns the four parts of an entity (Zhang et al. 2019, Quaternion Knowledge Graph Embeddings)."""

import torch

import kgdist


@kgdist.register
class QuatE(kgdist.Model):
    """(h r / |r|) . t over quaternions; rows hold all first parts, then all second ones, and so on: 4 must divide the width."""

    name = "QuatE"
    compare = "dot"

    def query(self, anchor, relation, side):
        a, b, c, d = anchor.chunk(4, dim=-1)
        parts = relation.unflatten(-1, (4, -1))
        w, x, y, z = (parts / parts.norm(dim=-2, keepdim=True)).unbind(dim=-2)
        if side is kgdist.Side.HEAD:  # t r* . h is the same number, r* with these signs turned
            x, y, z = -x, -y, -z
        product = a * w - b * x - c * y - d * z, a * x + b * w + c * z - d * y, a * y - b * z + c * w + d * x
        return torch.cat([*product, a * z + b * y - c * x + d * w], dim=-1)
