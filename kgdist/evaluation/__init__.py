"""Exact ranks, and what is made of them.

baselines.py   ranks by what needs no model: frequent answers
bootstrap.py   intervals of MRR and HITS@k
candidates.py  whom a true entity is ranked against, and who does not count
counting.py    how many candidates beat the true entity, exactly
evaluator.py   the ranks of a split, on several threads
kept.py        the ranks of a test, beside its metrics
ranks.py       ranks to MRR, MR, the median, HITS@k, AUC-ROC, AMRI; these as text
relations.py   ranks of relations between two entities
scorer.py      queries, projections and exact scores of a model
shared.py      the same by the processes of several machines
threads.py     blocks of one computation dealt out to threads
"""
