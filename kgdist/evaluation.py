"""The report of an evaluation as Python hands it out: the dictionary that test.json holds, with its main numbers by name."""

from __future__ import annotations

from typing import Any

from kgdist.report_text import protocol_line, report_table


class Evaluation(dict[str, Any]):
    """All of the report (see `kgdist.ranking.summary`): "all", "sides", "relations", "categories", "protocol", ...

    The properties are those of the tie policy that was asked for (`rank_ties`, realistic unless told otherwise).

    >>> result = run.evaluate("test")
    >>> result.mrr, result.hits10, result["sides"]["tail"]["realistic"]["mrr"]
    """

    @property
    def metrics(self) -> dict[str, float]:
        """mrr, mr, hits@1, hits@3, hits@10, amri."""
        found: dict[str, float] = self["all"][self["ties"]]
        return found

    @property
    def mrr(self) -> float:
        """Mean of 1 / rank."""
        return self.metrics["mrr"]

    @property
    def mr(self) -> float:
        """Mean rank."""
        return self.metrics["mr"]

    @property
    def hits1(self) -> float:
        """Share of ranks of at most 1."""
        return self.metrics["hits@1"]

    @property
    def hits3(self) -> float:
        """Share of ranks of at most 3."""
        return self.metrics["hits@3"]

    @property
    def hits10(self) -> float:
        """Share of ranks of at most 10."""
        return self.metrics["hits@10"]

    def __repr__(self) -> str:
        return "\n".join([protocol_line(self), *report_table(self)])
